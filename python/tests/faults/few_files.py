"""A program that may have few open files, and uses more maps than that. Its arguments, with which
`faults.forker` starts it:

    DIRECTORY LIMIT PARTITIONS         publishes to all partitions of a topic and reads them
    DIRECTORY LIMIT PARTITIONS hoard   opens files of its own until there is no room, in between
"""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator

import tms
from tests.databases import obey


@contextlib.contextmanager
def hoard() -> Iterator[None]:
    """Take every descriptor that is left."""
    mine: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            mine.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for descriptor in mine:
            os.close(descriptor)


def main() -> None:
    path, limit, partitions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    obey()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with tms.open(path) as bus:
        bus.create_topic("many", partitions=partitions, durability="written")
        for partition in range(partitions):
            with (
                hoard() if "hoard" in sys.argv and partition % 9 == 8 else contextlib.nullcontext()
            ):
                bus.publish("many", b"%d" % partition, partition=partition)
        values = {message.value for message in bus.consumer("many", stop_at_end=True)}
        assert values == {b"%d" % partition for partition in range(partitions)}
