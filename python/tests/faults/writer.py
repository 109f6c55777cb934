"""A process that works on a data directory and notes acknowledgements, for tests to disturb. Its
arguments, with which `faults.forker` starts it:

    steps DATA ACKS      two lives of creating, writing, counting and dropping
    endure DATA ACKS     writes; when a write fails, recovers and writes on

Each acknowledgement is one line of JSON in the file ACKS, written with one system call after the
store's call returned.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from tests.databases import obey
from tms.errors import StorageFull, StorageUnavailable
from tms.model.topic import Durability
from tms.store.base import Map, Store
from tms.store.leveldb import LevelDBLimits, LevelDBStore

ENDURED = 90
REPEATED_MAX = 60
WRITE_BUFFER_BYTES = 64 << 10  # the least that LevelDB takes, so that logs become tables soon
Ack = Callable[..., None]
ALL = 1 << 40


def pair(name: str, number: int) -> list[tuple[bytes, bytes]]:
    """The two rows of a numbered write: both are there or none."""
    random = Random(f"{name}/{number}")
    size = 40_000 if number % 5 == 4 else random.randint(1_000, 4_000)
    return [(b"%s%06d" % (side, number), random.randbytes(size)) for side in (b"a", b"b")]


def open_store(path: str | Path) -> LevelDBStore:
    obey()
    return LevelDBStore(
        path,
        create=True,
        limits=LevelDBLimits(write_buffer_bytes=WRITE_BUFFER_BYTES, maps_open_max=3),
    )


def steps(store: Store, ack: Ack, life: int) -> None:
    """Run one life: maps written in turn, every third write synced; a counter; a map that is
    dropped."""
    names = [f"map/{life}.{n}" for n in range(2)]
    maps = {name: create(store, name, ack) for name in names}
    if life:
        maps["map/0.0"] = store.open("map/0.0", create=False)
    counter = create(store, f"counter/{life}", ack)
    for number in range(life * 100, life * 100 + 24):
        for name, one in maps.items():
            durability = Durability.SYNCED if number % 3 == 0 else Durability.WRITTEN
            one.write(pair(name, number), durability)
            ack("written", name, number, durability)
        if number % 6 == 0:
            now = counter.get(b"n")
            assert counter.compare_and_set(b"n", now, b"%d" % (int(now or 0) + 1))
            ack("counted", f"counter/{life}", int(now or 0) + 1)
    ack("dropping", names[1])
    store.drop(names[1])
    ack("dropped", names[1])


def create(store: Store, name: str, ack: Ack) -> Map:
    made = store.open(name, create=True)
    ack("created", name)
    return made


def endure(store: Store, ack: Ack) -> None:
    """Write to one map, through transient failures: enough to fill LevelDB's buffer three times, so
    that a failure behind a write is noticed by a later one."""
    one = create(store, "map/0.0", ack)
    failures = 0
    for number in range(ENDURED):
        durability = Durability.SYNCED if number % 3 == 0 else Durability.WRITTEN
        failures += _write(one, number, durability, ack)
        ack("written", "map/0.0", number, durability)
    for _ in range(REPEATED_MAX):  # on a busy machine a thread that writes a table may be late
        if failures:
            break
        Event().wait(0.05)
        failures += _write(one, ENDURED - 1, Durability.WRITTEN, ack)


def _write(one: Map, number: int, durability: Durability, ack: Ack) -> int:
    """Write a pair, and again after each failure; returns the number of failures."""
    failures = 0
    while True:
        try:
            one.write(pair("map/0.0", number), durability)
            return failures
        except (StorageFull, StorageUnavailable) as error:
            failures += 1
            ack("failed", "map/0.0", number, type(error).__name__)
            readable = len(one.scan(None, None, ALL))
            ack("readable", "map/0.0", readable)
            recover(one)
            ack("recovered", "map/0.0", number)


def recover(one: Map) -> None:
    """Recover within ten tries, half a second apart as the store requires."""
    for _ in range(10):
        try:
            one.recover()
            return
        except (StorageFull, StorageUnavailable):
            Event().wait(0.6)
    raise AssertionError("the map does not recover")


def verify(store: Store, acks: list[list[Any]], synced_only: bool = False) -> None:
    """Check a store against the acknowledgements: nothing lost, nothing torn, no wrong byte.

    With `synced_only` only synced writes, and earlier writes to the same map, must be there.
    """
    names = {ack[1] for ack in acks if ack[0] == "created"}
    unsure = {ack[1] for ack in acks if ack[0] == "dropping"}
    gone = {ack[1] for ack in acks if ack[0] == "dropped"}
    there = set(store.names(""))
    assert names - unsure <= there, f"lost maps: {names - unsure - there}"
    assert not gone & there, f"dropped maps are back: {gone & there}"
    for name in sorted(there):
        one = store.open(name, create=False)
        if name.startswith("counter/"):
            counts = [ack[2] for ack in acks if ack[0] == "counted" and ack[1] == name]
            now, last = int(one.get(b"n") or 0), max(counts, default=0)
            assert now in (last, last + 1), f"{name} counts {now}, acknowledged was {last}"
            continue
        numbers = check_rows(name, one)
        written = [ack for ack in acks if ack[0] == "written" and ack[1] == name]
        if synced_only:
            while written and written[-1][3] != Durability.SYNCED:
                written.pop()
        lost = {ack[2] for ack in written} - numbers
        assert not lost or name in unsure, f"{name} lost the acknowledged writes {sorted(lost)}"


def check_rows(name: str, one: Map) -> set[int]:
    """The numbers of the writes that a map holds; each must be whole and as it was written."""
    rows = dict(one.scan(None, None, ALL))
    numbers = {int(key[1:]) for key in rows}
    for number in numbers:
        for key, value in pair(name, number):
            assert rows.pop(key, None) == value, f"{name} write {number} is torn or wrong"
    assert not rows, f"{name} holds what nobody wrote: {sorted(rows)[:3]}"
    return numbers


def read_acks(path: Path) -> list[list[Any]]:
    """The acknowledgements in a file; a last line that was cut off was not given."""
    if not path.exists():
        return []
    *whole, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole]


def main() -> None:
    what, data, acks = sys.argv[1:]
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def ack(*words: object) -> None:
        os.write(fd, json.dumps(words).encode() + b"\n")

    for life in range(2 if what == "steps" else 1):
        store = open_store(data)
        if what == "steps":
            steps(store, ack, life)
        else:
            endure(store, ack)
        verify(store, read_acks(Path(acks)))
        store.close()
        ack("closed")
