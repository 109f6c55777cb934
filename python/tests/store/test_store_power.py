"""Syncs of the LevelDB store, and their order: bytes that power loss must not take are on the disk
before they count. `test_store_faults` plays real power losses; here a process sees its own steps.
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.contracts.store_contract import rows_of
from tests.databases import disturb
from tms.model.topic import Durability
from tms.store.base import Map
from tms.store.leveldb import LevelDBLimits, LevelDBStore, repair
from tms.store.leveldb.files import _framed

pytestmark = pytest.mark.usefixtures("database")

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED
Step = tuple[str, Path]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The syncs and renames of this process, as they happen."""
    done = list[Step]()
    fsync, rename = os.fsync, Path.rename

    def noting_sync(fd: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{fd}"))))
        fsync(fd)

    def noting_rename(self: Path, target: Path) -> Path:
        done.append(("rename", target))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(Path, "rename", noting_rename)
    return done


def around(steps: list[Step], target: Path) -> tuple[list[Path], list[Path]]:
    """The files synced before and after the first renaming to `target`."""
    at = steps.index(("rename", target))
    return (
        [path for what, path in steps[:at] if what == "sync"],
        [path for what, path in steps[at:] if what == "sync"],
    )


def test_a_data_directory_is_one_once_all_of_it_is_on_the_disk(
    tmp_path: Path, steps: list[Step]
) -> None:
    path = tmp_path / "data"
    LevelDBStore(path, create=True).close()
    before, after = around(steps, path / "FORMAT")
    assert before == [path / "FORMAT.new"]
    assert after == [path, tmp_path]


def test_a_map_is_there_once_all_of_it_is_on_the_disk(tmp_path: Path, steps: list[Step]) -> None:
    store = LevelDBStore(tmp_path, create=True)
    steps.clear()
    store.open("map", create=True)
    before, after = around(steps, tmp_path / "maps/map")
    made = tmp_path / "temporary/0"
    assert sorted(before) == [made, made / "CURRENT", made / "MANIFEST-000001", made / "values"]
    assert before[-1] == made
    assert after == [tmp_path / "maps"]
    store.close()


def test_a_dropped_map_stays_away(tmp_path: Path, steps: list[Step]) -> None:
    store = LevelDBStore(tmp_path, create=True)
    store.open("map", create=True)
    steps.clear()
    store.drop("map")
    assert [what for what, _ in steps] == ["rename", "sync"]
    assert steps[-1] == ("sync", tmp_path / "maps")
    store.close()


def test_a_copy_takes_the_place_of_a_map_once_all_of_it_is_on_the_disk(
    tmp_path: Path, steps: list[Step]
) -> None:
    store = LevelDBStore(tmp_path, create=True)
    one = store.open("map", create=True)
    one.write([(b"%d" % n, bytes(5_000)) for n in range(9)], WRITTEN)
    steps.clear()
    one.reclaim()
    before, after = around(steps, tmp_path / "maps/map~")
    made = before[-1]
    assert {path.name for path in before if path.parent == made} >= {"CURRENT", "values"}
    assert any(path.suffix == ".log" for path in before)
    assert after == [tmp_path / "maps"] * 2
    beside, away, placed = (at for at, (what, _) in enumerate(steps) if what == "rename")
    assert steps[beside + 1] == ("sync", tmp_path / "maps")
    assert placed == away + 1
    assert steps[placed:] == [("rename", tmp_path / "maps/map"), ("sync", tmp_path / "maps")]
    store.close()


class NotingDB:
    """A database that notes whether LevelDB syncs its log for a write."""

    def __init__(self, db: Any, synced: list[bool]) -> None:
        self._db, self._synced = db, synced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def put(self, key: bytes, value: bytes, *, sync: bool) -> None:
        self._synced.append(sync)
        self._db.put(key, value, sync=sync)

    def write_batch(self, *, sync: bool) -> Any:
        self._synced.append(sync)
        return self._db.write_batch(sync=sync)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    """The numbers of syncs of the file of values and of the log since the last call."""
    fdatasync, of_values, of_log = os.fdatasync, list[int](), list[bool]()

    def opened(open: Callable[..., object], *args: object) -> NotingDB:
        return NotingDB(open(*args), of_log)

    monkeypatch.setattr(os, "fdatasync", lambda fd: (of_values.append(fd), fdatasync(fd)))
    disturb(monkeypatch, "open", opened)

    def syncs() -> tuple[int, int]:
        found = len(of_values), sum(of_log)
        of_values.clear()
        of_log.clear()
        return found

    return syncs


def test_a_synced_write_syncs_each_place_that_has_rows_which_are_not_on_the_disk(
    tmp_path: Path, syncs: Callable[[], tuple[int, int]]
) -> None:
    small, other, large = (b"s", b"v"), (b"t", b"v"), (b"l", bytes(5_000))
    store = LevelDBStore(tmp_path, create=True)
    one = store.open("map", create=True)

    def counted(call: Callable[[], object]) -> tuple[int, int]:
        syncs()
        call()
        return syncs()

    assert counted(lambda: one.write([small], WRITTEN)) == (0, 0)
    assert counted(lambda: one.write([small, other], WRITTEN)) == (0, 0)
    assert counted(lambda: one.write([large], WRITTEN)) == (0, 0)
    assert counted(lambda: one.write([large, small], SYNCED)) == (1, 1)
    assert counted(lambda: one.write([large], SYNCED)) == (1, 0)
    for call in (
        lambda: one.write([small], SYNCED),
        lambda: one.write([small, other], SYNCED),
        lambda: one.write([], SYNCED),
        lambda: one.delete([b"s", b"none"]),
        lambda: one.compare_and_set(b"c", one.get(b"c"), b"v"),
    ):
        assert counted(call) == (0, 1)
        assert counted(lambda: one.write([large], WRITTEN)) == (0, 0)
        assert counted(call) == (1, 1)
    store.close()


@pytest.mark.parametrize("change", ["put", "batch", "delete", "large"])
def test_a_synced_write_syncs_the_logs_that_were_left_since_the_last_one(
    tmp_path: Path, steps: list[Step], change: str
) -> None:
    """LevelDB itself syncs only the log to which it writes at that moment."""
    store = LevelDBStore(tmp_path, create=True, limits=LevelDBLimits(write_buffer_bytes=64 << 10))
    one = store.open("map", create=True)
    synced: Callable[[], None] = {
        "put": lambda: one.write([(b"last", b"v")], SYNCED),
        "batch": lambda: one.write([(b"last", b"v"), (b"one", b"v")], SYNCED),
        "delete": lambda: one.delete([b"last"]),
        "large": lambda: one.write([(b"large", bytes(5_000))], SYNCED),
    }[change]
    assert logs_left(one, tmp_path / "maps/map", synced, steps) > 1
    store.close()


def test_a_map_may_have_had_a_million_files(tmp_path: Path, steps: list[Step]) -> None:
    """Numbers of files have six digits up to it, and seven from then on."""
    store = LevelDBStore(tmp_path, create=True)
    store.open("map", create=True)
    store.close()
    path = tmp_path / "maps/map"
    for file in path.iterdir():
        if file.name != "values":
            file.unlink()
    name, number = b"leveldb.BytewiseComparator", 999_999
    digits = bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    edit = bytes((1, len(name))) + name + bytes((2, 0, 3)) + digits + bytes((4, 0))
    (path / "MANIFEST-999998").write_bytes(b"".join(_framed(edit, 0)))
    (path / "CURRENT").write_text("MANIFEST-999998\n")
    store = LevelDBStore(tmp_path, create=False, limits=LevelDBLimits(write_buffer_bytes=64 << 10))
    one = store.open("map", create=False)
    left = logs_left(one, path, lambda: one.write([(b"last", b"v")], SYNCED), steps)
    assert left > 1
    store.close()


def logs_left(one: Map, path: Path, synced: Callable[[], None], steps: list[Step]) -> int:
    """Write some 150 KB with a synced write now and then; returns how many of these found a new
    log."""

    def logs() -> list[Path]:
        return sorted(path.glob("*.log"), key=lambda log: int(log.stem))

    newest, left = logs()[-1], 0
    for number in range(150):
        one.write([(b"%d" % number, Random(number).randbytes(1_000))], WRITTEN)
        steps.clear()
        synced()
        if logs()[-1] == newest:
            assert steps == [], "a sync for nothing"
        else:
            newest, left = logs()[-1], left + 1
            assert {("sync", file) for file in (path, *logs())} <= set(steps)
    return left


def test_what_a_repair_keeps_and_what_it_makes_is_on_the_disk(
    tmp_path: Path, steps: list[Step]
) -> None:
    store = LevelDBStore(tmp_path, create=True)
    store.open("map", create=True).write([(b"k", b"v"), (b"l", bytes(5_000))], SYNCED)
    store.close()
    steps.clear()
    kept = repair(tmp_path, "map")
    synced = [path for what, path in steps if what == "sync"]
    mended = tmp_path / "maps/map"
    for directory in (kept, mended):
        assert {directory, *directory.iterdir()} <= set(synced)
    assert synced.index(kept) < synced.index(kept.parent) < synced.index(mended)
    store = LevelDBStore(tmp_path, create=False)
    assert len(rows_of(store.open("map", create=False))) == 2
    store.close()
