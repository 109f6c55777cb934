"""The store contract on every engine, and further promises of the engines."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from sim.faulty import FaultyStore
from tests.contracts.store_contract import (
    ALL,
    SYNCED,
    WRITTEN,
    DurableStoreContract,
    StoreContract,
    WholeWritesContract,
    rows_of,
    run_together,
)
from tests.databases import disturb
from tests.waiting import PATIENCE_S, until
from tms.errors import (
    Closed,
    DataCorrupt,
    NotFound,
    StorageFull,
    StorageUnavailable,
)
from tms.store.base import Map, Store
from tms.store.leveldb import LevelDBLimits, LevelDBStore
from tms.store.memory import MemoryStore


class TestMemory(WholeWritesContract, StoreContract):
    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        return MemoryStore


class TestFaulty(WholeWritesContract, StoreContract):
    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        return lambda: FaultyStore(MemoryStore())


class TestLevelDB(WholeWritesContract, DurableStoreContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path, database: str) -> Callable[[], Store]:
        return lambda: LevelDBStore(tmp_path / "data", create=True)


class TestLevelDBWithValuesApart(WholeWritesContract, DurableStoreContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path, database: str) -> Callable[[], Store]:
        return lambda: LevelDBStore(
            tmp_path / "data", create=True, limits=LevelDBLimits(large_bytes=1)
        )


@pytest.mark.parametrize("shared", [False, True])
def test_a_store_says_whether_others_may_write_to_it(tmp_path: Path, shared: bool) -> None:
    assert FaultyStore(MemoryStore(shared=shared)).shared is shared
    assert not MemoryStore().shared
    with contextlib.closing(LevelDBStore(tmp_path / "data", create=True)) as store:
        assert not store.shared


# Open databases


@pytest.mark.usefixtures("database")
def test_few_databases_are_open_and_nobody_notices(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True, limits=LevelDBLimits(maps_open_max=3))
    maps = [store.open(f"map/{n}", create=True) for n in range(10)]

    def work(seed: int) -> None:
        random = Random(seed)
        for step in range(60):
            number = random.randrange(10)
            key = b"%d.%d" % (seed, step)
            maps[number].write([(key, b"%d" % number)], random.choice([WRITTEN, SYNCED]))
            assert maps[number].get(key) == b"%d" % number
            assert (key, b"%d" % number) in rows_of(maps[number])

    run_together([lambda seed=seed: work(seed) for seed in range(4)])
    assert sum(len(rows_of(one)) for one in maps) == 4 * 60
    store.close()


@pytest.mark.usefixtures("database")
def test_the_maps_that_were_used_longest_ago_are_closed(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path, create=True, limits=LevelDBLimits(maps_open_max=3))

    def opened() -> str:
        found = []
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                if file.name == "LOCK" and file.parent.parent == tmp_path / "maps":
                    found.append(file.parent.name)
        return "".join(sorted(found))

    maps = {name: store.open(name, create=True) for name in "abc"}
    assert opened() == "abc"
    maps["a"].get(b"k")
    maps["d"] = store.open("d", create=True)
    assert opened() == "acd"
    maps["c"].write([(b"k", b"v")], WRITTEN)
    maps["b"].scan(None, None, 1)
    assert opened() == "bcd"
    maps["a"].compare_and_set(b"k", None, b"v")
    assert opened() == "abc"
    store.open("d", create=False)
    assert opened() == "abd"
    store.drop("a")
    maps["c"].get(b"k")
    assert opened() == "bcd"
    assert maps["c"].get(b"k") == b"v"
    store.close()
    assert opened() == ""


@pytest.mark.usefixtures("database")
def test_the_write_buffers_of_many_open_maps_share_64_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def noting(open: Callable[..., object], driver: object, path: Path, size: int) -> object:
        sizes.append(size)
        return open(driver, path, size)

    disturb(monkeypatch, "open", noting)
    store = LevelDBStore(tmp_path, create=True)
    for number in range(20):
        store.open(f"map/{number}", create=True)
    assert sizes[:8] == [8 << 20] * 8
    assert sizes[8:16] == [(64 << 20) // number for number in range(9, 17)]
    assert sizes[16:] == [4 << 20] * 4
    store.close()


@pytest.mark.usefixtures("database")
def test_file_descriptors_stay_bounded(tmp_path: Path, database: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    store = LevelDBStore(
        tmp_path / "data",
        create=True,
        limits=LevelDBLimits(maps_open_max=4, write_buffer_bytes=64 << 10),
    )
    for number in range(30):
        one = store.open(f"map/{number}", create=True)
        for key in range(8):
            one.write([(b"%d" % key, bytes(40_000))], WRITTEN)
        rows_of(one)
    # An open database has a lock, a log, a manifest and LOG; while it makes a table, two more.
    # RocksDB has its directory open twice, and up to ten tables.
    each = 4 + 2 + (12 if database == "rocksdb" else 0)
    assert descriptors() - before <= 1 + 4 * each
    store.close()
    assert descriptors() == before


@pytest.mark.usefixtures("database")
def test_a_map_stays_open_while_one_of_several_readers_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if they came together and found it closed."""
    store = LevelDBStore(tmp_path, create=True)
    one = store.open("map", create=True)
    one.write([(key, bytes(5_000)) for key in (b"a", b"b")], SYNCED)
    assert one.rest()
    opening, reading = threading.Event(), threading.Barrier(3)
    leave = {b"a": threading.Event(), b"b": threading.Event()}

    def open_late(open: Callable[..., object], *args: object) -> object:
        assert opening.wait(PATIENCE_S)
        return open(*args)

    def read(key: bytes) -> None:
        found = one._pin()
        reading.wait(PATIENCE_S)
        assert leave[key].wait(PATIENCE_S)
        assert found.db.get(key, verify_checksums=True) is not None
        one._unpin(found)

    disturb(monkeypatch, "open", open_late)
    readers = {key: threading.Thread(target=read, args=(key,)) for key in leave}
    for reader in readers.values():
        reader.start()
    until(lambda: all(_waits_in("_pin", reader) for reader in readers.values()))
    opening.set()
    reading.wait(PATIENCE_S)
    assert not one.rest()
    for key, reader in readers.items():
        assert not one.rest()
        leave[key].set()
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
    assert one.rest()
    store.close()


@pytest.mark.usefixtures("database")
def test_a_map_whose_readers_do_not_leave_stays_open_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.store.leveldb.map._DRAIN_S", 0.01)
    store = LevelDBStore(tmp_path, create=True)
    one = store.open("map", create=True)
    one.write([(b"k", b"v")], SYNCED)
    reader = one._pin()
    with pytest.raises(StorageUnavailable, match=r"Reads of .*/maps/map do not end"):
        one.reclaim()
    assert rows_of(one) == [(b"k", b"v")]
    one.write([(b"l", b"w")], SYNCED)
    one._unpin(reader)
    one.reclaim()
    assert rows_of(one) == [(b"k", b"v"), (b"l", b"w")]
    store.close()


def _waits_in(function: str, thread: threading.Thread) -> bool:
    """True if a thread is within a call of this function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


@pytest.mark.usefixtures("database")
def test_closing_and_dropping_wait_for_readers(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    maps = [store.open(f"map/{n}", create=True) for n in range(2)]
    for one in maps:
        one.write([(b"%05d" % n, bytes(100)) for n in range(5_000)], WRITTEN)
    reading = threading.Barrier(5)

    def read(one: Map) -> None:
        reading.wait(PATIENCE_S)
        try:
            while True:
                assert len(rows_of(one)) == 5_000
        except (Closed, NotFound):
            return

    def end() -> None:
        reading.wait(PATIENCE_S)
        store.drop("map/0")
        store.close()

    run_together([lambda one=one: read(one) for one in maps * 2] + [end])


@pytest.mark.usefixtures("database")
def test_a_write_that_cannot_be_encoded_leaves_nothing(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    one = store.open("map", create=True)
    with pytest.raises(TypeError):
        one.write([(b"a", b"v"), (b"b", "text")], WRITTEN)  # type: ignore[list-item]
    assert rows_of(one) == []
    store.close()


# The faulty store


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.mark.parametrize("stored", [False, True])
def test_a_scripted_failure_happens_at_its_write_and_ends_with_recover(
    faulty: FaultyStore, stored: bool
) -> None:
    one, other = faulty.open("a/1", create=True), faulty.open("b", create=True)
    faulty.fail_write(2, stored=stored, prefix="a/", refusals=1)
    other.write([(b"k", b"v")], SYNCED)
    one.write([(b"1", b"v")], SYNCED)
    for change in (
        lambda: one.write([(b"2", b"v"), (b"3", b"v")], SYNCED),
        lambda: one.write([(b"4", b"v")], SYNCED),
        lambda: one.delete([b"1"]),
        lambda: one.compare_and_set(b"1", b"v", b"w"),
        one.recover,
    ):
        with pytest.raises(StorageUnavailable):
            change()
        other.write([(b"k", b"v")], SYNCED)
    assert faulty.healthy() is not None
    one.recover()
    assert faulty.healthy() is None
    assert [key for key, _ in rows_of(one)] == ([b"1", b"2", b"3"] if stored else [b"1"])
    one.write([(b"5", b"v")], SYNCED)


def test_a_faulty_store_is_full_until_released(faulty: FaultyStore) -> None:
    one = faulty.open("m", create=True)
    one.write([(b"k", b"v")], SYNCED)
    faulty.fill()
    for change in (lambda: one.compare_and_set(b"k", b"v", None), lambda: one.delete([b"k"])):
        with pytest.raises(StorageFull):
            change()
    with pytest.raises(StorageFull):
        one.recover()
    assert rows_of(one) == [(b"k", b"v")]
    assert faulty.healthy() is not None
    faulty.release()
    one.recover()
    assert faulty.healthy() is None
    one.delete([b"k"])
    assert rows_of(one) == []


def test_a_crash_loses_exactly_what_was_not_synced(faulty: FaultyStore) -> None:
    one, other = faulty.open("m", create=True), faulty.open("n", create=True)
    one.write([(b"1", b"old"), (b"2", b"v")], WRITTEN)
    one.write([(b"3", b"v")], SYNCED)
    one.write([(b"1", b"new"), (b"4", b"v")], WRITTEN)
    one.write([(b"4", b"w")], WRITTEN)
    other.compare_and_set(b"k", None, b"v")
    left = faulty.crash()
    assert rows_of(left.open("m", create=False)) == [(b"1", b"old"), (b"2", b"v"), (b"3", b"v")]
    assert rows_of(left.open("n", create=False)) == [(b"k", b"v")]
    for call in (lambda: one.get(b"1"), lambda: faulty.open("m", create=False)):
        with pytest.raises(StorageUnavailable):
            call()


def test_a_crash_with_chance_keeps_some_first_part_of_what_was_not_synced() -> None:
    kept = set()
    for seed in range(30):
        faulty = FaultyStore(MemoryStore())
        one = faulty.open("m", create=True)
        one.write([(b"0", b"v")], SYNCED)
        for number in b"123":
            one.write([(bytes([number]), b"v")], WRITTEN)
        keys = b"".join(key for key, _ in rows_of(faulty.crash(Random(seed)).open("m", False)))
        assert b"0123".startswith(keys) and keys
        kept.add(keys)
    assert kept == {b"0", b"01", b"012", b"0123"}


def test_a_corrupt_row_raises_wherever_it_is_read(faulty: FaultyStore) -> None:
    one = faulty.open("m", create=True)
    one.write([(b"1", b"v"), (b"2", b"v")], SYNCED)
    faulty.corrupt_value("m", b"2")
    with pytest.raises(DataCorrupt):
        one.get(b"2")
    with pytest.raises(DataCorrupt):
        rows_of(one)
    assert one.scan(None, b"2", ALL) == [(b"1", b"v")]


def test_the_hook_of_a_faulty_store_sees_every_operation() -> None:
    seen: list[tuple[str, str]] = []
    faulty = FaultyStore(MemoryStore(), lambda operation, name: seen.append((operation, name)))
    one = faulty.open("m", create=True)
    one.write([(b"k", b"v")], SYNCED)
    one.scan(None, None, 1)
    one.compare_and_set(b"k", None, b"v")
    assert seen == [("open", "m"), ("write", "m"), ("scan", "m"), ("compare_and_set", "m")]
