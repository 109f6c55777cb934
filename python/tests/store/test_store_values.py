"""The file of large values: frames, torn and damaged ones, and its synced part."""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.clocks import ManualClock
from tests.contracts.store_contract import ALL, rows_of
from tests.databases import crash_image
from tms.errors import DataCorrupt, StorageFull, StorageUnavailable
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore, databases, repair, values
from tms.store.leveldb.map import LevelDBMap
from tms.store.leveldb.values import VALUES

pytestmark = pytest.mark.usefixtures("database")

Rows = list[tuple[bytes, bytes]]
WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED
SMALL_ROW = (b"small", b"s" * 10)


def value(number: int) -> bytes:
    return Random(number).randbytes(5_000 + number)


def row(number: int) -> tuple[bytes, bytes]:
    return b"%04d" % number, value(number)


class Directory:
    """A data directory with one map, opened and closed as a test likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.file = path / "maps" / "map" / VALUES
        self._store: LevelDBStore | None = None

    def open(self) -> LevelDBMap:
        self.close()
        self._store = LevelDBStore(self.path, create=True, clock=self.clock)
        return self._store.open("map", create="map" not in self._store.names(""))

    def health(self) -> str | None:
        assert self._store is not None
        return self._store.healthy()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def read(self) -> Rows:
        try:
            return rows_of(self.open())
        finally:
            self.close()

    def copy(self) -> "Directory":
        target = self.path.with_name("copy")
        shutil.rmtree(target, ignore_errors=True)
        return Directory(crash_image(self.path, target))


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path / "data")
    yield made
    made.close()


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, after: int = 0) -> None:
    """Let the system call fail once, after `after` calls that worked."""
    works: Callable[..., object] = getattr(os, name)
    calls = 0

    def call(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == after + 1:
            raise OSError(code, os.strerror(code))
        return works(*args)

    monkeypatch.setattr(os, name, call)


def recovered(data: Directory, one: LevelDBMap) -> None:
    data.clock.pass_ms(600)
    one.recover()


# Positions of values


def test_a_large_value_is_written_once_and_a_small_one_stays_in_the_database(
    data: Directory,
) -> None:
    one = data.open()
    one.write([SMALL_ROW], SYNCED)
    assert data.file.stat().st_size == 0
    one.write([row(1)], SYNCED)
    assert data.file.read_bytes().count(value(1)) == 1
    others = b"".join(each.read_bytes() for each in data.file.parent.iterdir() if each != data.file)
    assert value(1) not in others and SMALL_ROW[1] in others
    assert one.stored_bytes() > len(value(1))


def test_rows_of_both_kinds_are_ordered_replaced_and_removed_alike(data: Directory) -> None:
    one = data.open()
    one.write([row(2), SMALL_ROW, row(1)], WRITTEN)
    one.write([(b"0001", b"now small"), (b"0003", b"")], WRITTEN)
    one.write([(b"small", value(9))], SYNCED)
    one.delete([b"0002"])
    expected = [(b"0001", b"now small"), (b"0003", b""), (b"small", value(9))]
    assert rows_of(one) == expected
    assert one.scan(None, None, ALL, reverse=True) == expected[::-1]
    assert one.scan(b"0002", b"small", ALL) == [(b"0003", b"")]
    assert data.read() == expected


def test_the_bytes_of_a_scan_are_those_of_the_values(data: Directory) -> None:
    one = data.open()
    for number in range(10):
        one.write([row(number)], WRITTEN)
    assert len(one.scan(None, None, 11_000)) == 3


# Bytes behind the end


@pytest.mark.parametrize("durability", [WRITTEN, SYNCED])
def test_an_end_cut_off_at_any_byte_loses_only_what_was_cut(
    data: Directory, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    one = data.open()
    one.write([row(1)], SYNCED)
    one.write([row(2), row(3)], durability)
    data.close()
    size = data.file.stat().st_size
    frame = 24 + 2 * (10 + 4) + len(value(2)) + len(value(3))
    for cut in (*range(1, 80, 3), 5_000, 9_000, *range(frame - 60, frame + 1)):
        torn = data.copy()
        os.truncate(torn.file, size - cut)
        if durability is SYNCED:
            with pytest.raises(DataCorrupt, match="were synced"):
                torn.read()
            continue
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tms.store"):
            one = torn.open()
        assert rows_of(one) == [row(1)]
        assert len(caplog.records) == (cut < frame)
        one.write([row(4)], SYNCED)
        one.write([row(5)], WRITTEN)
        assert torn.read() == [row(1), row(4), row(5)]


def test_frames_without_rows_in_the_database_get_them_when_it_is_opened(data: Directory) -> None:
    data.open().write([row(1)], SYNCED)
    data.close()
    before = data.copy()
    data.open().write([row(2), SMALL_ROW], SYNCED)
    data.open().write([row(3)], SYNCED)
    data.close()
    shutil.copy(data.file, before.file)  # the database lost unsynced writes
    assert before.read() == [row(1), row(2), row(3), SMALL_ROW]
    assert before.read() == [row(1), row(2), row(3), SMALL_ROW]


def test_rows_whose_values_never_reached_the_disk_go_for_good(data: Directory) -> None:
    data.open().write([row(1)], SYNCED)
    data.open().write([row(2)], WRITTEN)
    data.close()
    raw = data.file.read_bytes()
    at = raw.index(value(2))
    data.file.write_bytes(raw[: at + 100] + bytes(len(raw) - at - 100))
    assert data.read() == [row(1)]
    data.open().write([(b"0009", value(2))], SYNCED)  # to the same place
    assert data.read() == [row(1), (b"0009", value(2))]


def test_rows_are_not_judged_by_a_table_that_is_damaged(data: Directory) -> None:
    data.open().write([SMALL_ROW], SYNCED)
    data.open().write([row(2)], WRITTEN)
    data.close()
    data.read()  # moves the rows from the log to a table
    os.truncate(data.file, 100)
    table = next(
        each
        for pattern in ("*.ldb", "*.sst")
        for each in data.file.parent.glob(pattern)
        if SMALL_ROW[1] in each.read_bytes()
    )
    raw = bytearray(table.read_bytes())
    raw[raw.index(SMALL_ROW[1])] ^= 1
    table.write_bytes(raw)
    with pytest.raises(DataCorrupt, match=str(data.file.parent)):
        data.open()


# Synced bytes


def test_a_synced_write_of_large_rows_syncs_only_their_file(
    data: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = data.open()
    synced: list[int] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), sync(fd)))
    one.write([row(1)], SYNCED)
    one.write([row(2)], WRITTEN)
    assert len(synced) == 1
    one.write([SMALL_ROW], SYNCED)  # makes earlier writes durable
    assert len(synced) == 2
    one.write([], SYNCED)
    assert len(synced) == 2


def test_much_that_is_not_synced_is_synced_in_the_background(
    data: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "SYNC_BEHIND_BYTES", 20_000)
    one = data.open()
    for number in range(10):
        one.write([row(number)], WRITTEN)
    one._databases._syncs.submit(int).result()  # the syncs have ended
    one.write([row(10)], WRITTEN)
    data.close()
    os.truncate(data.file, 19_000)
    with pytest.raises(DataCorrupt, match="were synced"):
        data.read()


def assert_goes_on_behind_one(data: Directory, one: LevelDBMap) -> None:
    """Only the first row is stored; after a recovery the map takes the third one."""
    recovered(data, one)
    one.write([row(3)], SYNCED)
    assert data.read() == [row(1), row(3)]


def test_an_error_of_a_sync_in_the_background_fails_the_next_write(
    data: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "SYNC_BEHIND_BYTES", 1)
    one = data.open()
    failing(monkeypatch, "fdatasync", errno.EIO)
    one.write([row(1)], WRITTEN)
    one._databases._syncs.submit(int).result()  # the sync has ended
    with pytest.raises(StorageUnavailable):
        one.write([row(2)], SYNCED)
    assert_goes_on_behind_one(data, one)


def test_after_a_failed_sync_recovering_writes_again_what_may_not_be_on_the_disk(
    data: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = data.open()
    one.write([row(1)], SYNCED)
    failing(monkeypatch, "fdatasync", errno.EIO)
    with pytest.raises(StorageUnavailable):
        one.write([row(2)], SYNCED)
    written: list[bytes] = []
    write = os.pwritev

    def noting(fd: int, parts: list[bytes], at: int) -> int:
        written.extend(parts)
        return write(fd, parts, at)

    monkeypatch.setattr(os, "pwritev", noting)
    recovered(data, one)
    assert value(2) in b"".join(written) and value(1) not in b"".join(written)
    assert sum(map(len, written)) < 2 * len(value(2))
    assert rows_of(one) == [row(1), row(2)]


def test_recovering_is_tried_twice_a_second_at_most(
    data: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = data.open()
    failing(monkeypatch, "pwritev", errno.EIO)
    with pytest.raises(StorageUnavailable):
        one.write([row(1)], SYNCED)
    assert one.failed and data.health() is None, "nobody knows yet that it stays so"
    away = data.file.rename(data.file.with_suffix(".away"))
    with pytest.raises(DataCorrupt, match="missing") as caught:
        one.recover()
    away.rename(data.file)
    data.clock.pass_ms(499)
    with pytest.raises(DataCorrupt, match="missing"):
        one.recover()
    assert data.health() == caught.value.message
    data.clock.pass_ms(1)
    one.recover()
    assert not one.failed and data.health() is None
    one.write([row(2)], SYNCED)
    assert data.read() == [row(2)]


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, StorageFull), (errno.EIO, None)])
def test_a_write_that_fails_halfway_leaves_nothing(
    data: Directory, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StorageFull] | None
) -> None:
    one = data.open()
    one.write([row(1)], SYNCED)
    write = os.pwritev

    def halfway(fd: int, parts: list[bytes], at: int) -> int:
        monkeypatch.setattr(os, "pwritev", write)
        write(fd, [b"".join(parts)[:3_000]], at)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", halfway)
    with pytest.raises(error or StorageUnavailable):
        one.write([row(2), SMALL_ROW], SYNCED)
    assert rows_of(one) == [row(1)]
    assert_goes_on_behind_one(data, one)


def test_a_write_that_the_system_takes_in_pieces_is_whole(
    data: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: write(fd, [b"".join(parts)[:1_777]], at)
    )
    one = data.open()
    one.write([row(1), SMALL_ROW, row(2)], SYNCED)
    assert data.read() == [row(1), row(2), SMALL_ROW]


def test_a_write_of_thousands_of_rows_is_whole(data: Directory) -> None:
    rows = [(b"%05d" % n, b"x" * (n % 50)) for n in range(3_000)]
    data.open().write([*rows, (b"large", value(1))], SYNCED)
    assert data.read() == [*rows, (b"large", value(1))]


# Damage


def test_a_flipped_bit_in_a_value_is_damage_and_hides_no_other(data: Directory) -> None:
    one = data.open()
    for number in range(3):
        one.write([row(number)], SYNCED)
    data.close()
    raw = bytearray(data.file.read_bytes())
    raw[raw.index(value(1)) + 99] ^= 4
    data.file.write_bytes(raw)
    one = data.open()
    with pytest.raises(DataCorrupt, match="wrong checksum"):
        one.get(b"0001")
    with pytest.raises(DataCorrupt):
        one.scan(None, None, ALL)
    assert one.get(b"0000") == value(0)
    assert one.scan(b"0002", None, ALL) == [row(2)]


def test_a_missing_file_is_damage(data: Directory) -> None:
    data.open().write([SMALL_ROW], SYNCED)
    data.close()
    data.file.unlink()
    with pytest.raises(DataCorrupt, match="missing"):
        data.read()
    assert not data.file.exists()


@pytest.mark.parametrize("part", ["head", "table", "value", "mark", "file"])
def test_a_repair_keeps_every_value_that_is_intact(
    data: Directory, part: str, database: str
) -> None:
    one = data.open()
    for number in range(0, 6, 2):
        one.write([row(number), row(number + 1)], SYNCED)
    one.write([SMALL_ROW], SYNCED)
    data.close()
    raw = bytearray(data.file.read_bytes())
    start = raw.index(b"TMSV", 10)  # of the second frame
    lost = {"head": {2, 3}, "table": {2, 3}, "value": {2}, "mark": set(), "file": set(range(6))}
    if part == "file":
        data.file.unlink()
    elif part == "mark":
        for each in data.file.parent.glob("*.log"):
            each.unlink()
        lost[part] = set()
    else:
        at = {"head": 9, "table": 30, "value": 24 + 28 + 5}[part]
        raw[start + at] ^= 1
        data.file.write_bytes(raw)
    repair(data.path, "map")
    kept = [row(n) for n in range(6) if n not in lost[part]]
    if part != "mark" or database == "rocksdb":  # it makes a table of its log when it is closed
        kept.append(SMALL_ROW)
    assert data.read() == kept
    data.open().write([row(7)], SYNCED)
    assert row(7) in data.read()


@pytest.mark.parametrize("chunk", [16, values._CHUNK])
def test_a_repair_finds_values_wherever_they_have_got_to(
    data: Directory, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """A look through the file, piece by piece, also finds frames that begin in one piece and end in
    the next."""
    monkeypatch.setattr(values, "_CHUNK", chunk)
    rows = [row(1), row(2)]
    for one in rows:
        data.open().write([one], SYNCED)
    data.close()
    whole = data.file.read_bytes()
    for junk in range(1, 18):
        moved = data.copy()
        moved.file.write_bytes(b"T" * junk + whole + b"TMSV"[: junk % 5])
        repair(moved.path, "map")
        assert moved.read() == rows, junk
