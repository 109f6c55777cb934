"""`tms export`: a topic becomes a file of messages, which `tms import` takes.

* The range of an export is fixed at its begin: up to `--end`, and no further than the topic's end
  at that time.
* A file appears whole or not at all. It has the owner and the mode of the file that it replaces,
  and a link that names it stays.
* A pipe, a device and standard output by any name are written to as they are.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import click

from tms.cli.message_files import FORMS, form_of, writer_of
from tms.cli.parameters import PositionOption, TopicParameter, session_command
from tms.cli.session import Session
from tms.model.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    import tms
    from tms.model.message import Message

_STANDARD_OUTPUT = Path("-")


@session_command("export")
def command(
    session: Session,
    topic: TopicParameter,
    target: Annotated[
        Path,
        "--to",
        click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        "A file, or - for standard output. [-]",
    ] = _STANDARD_OUTPUT,
    start: Annotated[PositionOption, "The first message. [earliest]"] = EARLIEST,
    end: Annotated[PositionOption, "Before which to stop. [latest]"] = LATEST,
    form: Annotated[
        str | None, "--format", click.Choice(FORMS), "[by the file's name, else ndjson]"
    ] = None,
) -> None:
    """Write the messages of TOPIC to a file, with keys, headers, ids and times.

    \b
      tms export flights --to flights.ndjson
      tms export flights --to november.parquet --start 2026-11-01 --end 2026-12-01
      tms export flights | tms import copies --data elsewhere
    """
    if _is_standard_output(target):  # as /dev/stdout
        target = _STANDARD_OUTPUT
    with session.bus() as bus, _output(target) as file:
        writer = writer_of(form_of(form, target), file)
        count = 0
        for message in _messages(bus, topic, start, end):
            writer.write(message)
            count += 1
        writer.close()
    session.say(f"exported {count:,} messages of {topic}")
    if target != _STANDARD_OUTPUT:
        session.show_result({"topic": topic, "messages": count, "file": str(target)})


def _messages(bus: "tms.Bus", topic: str, start: Position, end: Position) -> "Iterator[Message]":
    """The messages of all partitions in [start, end), those of each in their order."""
    ends = bus.offsets(topic, str(end))
    left = {partition for partition, offset in ends.items() if offset > 0}
    with bus.consumer(topic, start=start, partitions=sorted(ends), stop_at_end=True) as consumer:
        for batch in consumer.batches():
            stop = ends[batch.partition]
            for message in batch.messages():
                if message.offset < stop:
                    yield message
            if len(batch) and batch.offsets()[-1] + 1 >= stop:
                left.discard(batch.partition)
                if not left:
                    return


@contextlib.contextmanager
def _output(target: Path) -> Iterator[BinaryIO]:
    """Standard output, what is no regular file, or a file that takes its place when everything is
    written."""
    before = _status(target)
    if target == _STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif before is not None and not stat.S_ISREG(before.st_mode):
        with target.open("wb") as file:
            yield file
    else:
        target = Path(os.path.realpath(target))
        new = target.with_name(f".{target.name}.new")
        try:
            with open(new, "wb", opener=partial(_create, before=before)) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            new.rename(target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def _create(path: str, flags: int, before: os.stat_result | None) -> int:
    """The descriptor of a new file, which only those may read who may read the one before."""
    if before is None:
        return os.open(path, flags, 0o666)
    fd = os.open(path, flags, 0o600)
    with contextlib.suppress(PermissionError):  # of another user: it becomes one's own
        os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    return fd


def _is_standard_output(target: Path) -> bool:
    with contextlib.suppress(OSError):  # it may be closed
        return os.path.samestat(os.stat(target), os.fstat(1))
    return False


def _status(target: Path) -> os.stat_result | None:
    """The status of the file that a path leads to, None if there is none."""
    try:
        return target.stat()
    except FileNotFoundError:
        return None
