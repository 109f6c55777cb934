"""Readers of a directory whose service has ended: a program that opens it, and `tms fsck`."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import tms
from integration.soak.load.embedded import TABLE
from integration.soak.readers.writing import Place, cells, write

TMS = (sys.executable, "-c", "from tms.cli.main import main; main()")
FSCK_S = 300


def opened(place: Place, data: str) -> None:
    """Read every topic, and the table, with a program that opens the store itself."""
    with tms.open(data) as bus:
        there = {one.topic for one in bus.list_topics()}
        for topic in there & place.topics.keys():
            write(
                place,
                "opened consumer",
                topic,
                map(cells, bus.consumer(topic, stop_at_end=True)),
            )

        def rows() -> Iterator[list[Any]]:
            for key, _ in bus.table(TABLE).scan(b"a/", b"a0"):
                yield [None, None, None, key[2:].decode(), None, None]

        write(place, "table", "rows", rows(), of="table")


def fsck(data: str) -> list[str]:
    """The findings of `tms fsck`."""
    done = subprocess.run(
        [*TMS, "fsck", "--data", data], capture_output=True, timeout=FSCK_S, check=False
    )
    if done.returncode == 0:
        return []
    said = (done.stdout + done.stderr).decode(errors="replace")[-2_000:]
    return [f"tms fsck ended with {done.returncode}: {said}"]
