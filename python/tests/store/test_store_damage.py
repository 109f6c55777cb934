"""Damaged data directories: nothing is lost silently, no wrong byte is read, the rest is saved."""

import logging
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tests.contracts.store_contract import ALL, rows_of
from tests.databases import disturb, kill
from tms.errors import AlreadyRunning, ConfigError, DataCorrupt, NotFound, StorageFull, TMSError
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBLimits, LevelDBStore, read_only_copy, repair

pytestmark = pytest.mark.usefixtures("database")

Rows = list[tuple[bytes, bytes]]
FLIPS = 80  # of random bits, per class of files
FILES = ["*.log", "*.ldb", "values", "MANIFEST-*", "CURRENT", "FORMAT"]
LARGE_BYTES = 50_000


@pytest.fixture
def path() -> Iterator[Path]:
    """The place of a data directory: in memory if possible, for hundreds of openings."""
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=fast) as temporary:
        yield Path(temporary) / "data"


@pytest.fixture
def rows(path: Path) -> Rows:
    """A data directory with one map whose rows are in several tables, in a log and in the file of
    values."""
    random = Random(5)
    sizes = [60_000 if n % 25 == 8 else 40_000 if n % 9 == 8 else 700 for n in range(100)]
    rows = [(b"%04d" % n, random.randbytes(size)) for n, size in enumerate(sizes)]
    store = LevelDBStore(path, create=True, limits=LevelDBLimits(write_buffer_bytes=64 << 10))
    store.open("map", create=True).write(rows[:8], Durability.WRITTEN)
    for some in (rows[8:60], rows[60:90], rows[90:]):
        store.close()  # makes a table of the log
        store = LevelDBStore(path, create=True, limits=LevelDBLimits(large_bytes=LARGE_BYTES))
        for row in some:
            durability = Durability.SYNCED if len(row[1]) >= LARGE_BYTES else Durability.WRITTEN
            store.open("map", create=False).write([row], durability)
    kill(store, path)
    for pattern in FILES:
        assert find(path, pattern), f"there is no {pattern} to damage"
    return rows


def find(path: Path, pattern: str) -> list[Path]:
    place = path if pattern == "FORMAT" else path / "maps" / "map"
    tables = [] if pattern != "*.ldb" else place.glob("*.sst")  # RocksDB's
    return sorted([*place.glob(pattern), *tables])


def read(path: Path) -> Rows:
    store = LevelDBStore(path, create=True)
    try:
        return rows_of(store.open("map", create=False))
    finally:
        store.close()


def read_alone(path: Path, keys: list[bytes]) -> list[bytes | None]:
    store = LevelDBStore(path, create=True)
    try:
        one = store.open("map", create=False)
        return [one.get(key) for key in keys]
    finally:
        store.close()


def _table_of(path: Path, rows: Rows) -> Path:
    """Write rows to a new data directory; returns the only table, which no opening compacts."""
    store = LevelDBStore(path, create=True)
    store.open("map", create=True).write(rows, Durability.WRITTEN)
    store.close()
    read(path)  # moves the rows from the log to a table
    read(path)
    [table] = find(path, "*.ldb")
    return table


def copy_of(path: Path) -> Path:
    return Path(shutil.copytree(path, path.with_name("copy")))


# Flipped bits


@pytest.mark.parametrize("pattern", FILES)
def test_a_flipped_bit_is_refused_or_harmless_and_never_read(
    path: Path, rows: Rows, pattern: str
) -> None:
    random = Random(pattern)
    refused = 0
    for _ in range(FLIPS):
        damaged = copy_of(path)
        file = random.choice(find(damaged, pattern))
        flip(file, random.randrange(8 * file.stat().st_size))
        try:
            assert read(damaged) == rows
        except (DataCorrupt, ConfigError) as error:
            assert str(damaged.name) in error.message, "the message does not say where"
            named = error.details.get("file", str(damaged))
            assert named.startswith(str(damaged)), "the details do not say which file"
            refused += 1
        shutil.rmtree(damaged)
    assert refused >= FLIPS * 0.9, f"only {refused} of {FLIPS} flips were noticed"


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*"])
def test_every_flipped_bit_in_the_headers_of_a_log_is_refused(
    path: Path, rows: Rows, pattern: str
) -> None:
    """A damaged length looks to LevelDB like a torn end: it drops the following records
    silently."""
    limits = LevelDBLimits(write_buffer_bytes=64 << 10, large_bytes=1 << 20)
    store = LevelDBStore(path, create=False, limits=limits)
    large = [row for row in rows if len(row[1]) >= 40_000]
    for row in (*large[:8], *rows[:8]):  # other edits in the manifest, and other logs
        store.open("map", create=False).write([row], Durability.WRITTEN)
    kill(store, path)
    whole = find(path, pattern)[-1].read_bytes()
    offset = fragments = 0
    while offset < len(whole):
        length = struct.unpack_from("<H", whole, offset + 4)[0]
        for bit in range(8 * (offset + 4), 8 * (offset + 7)):
            damaged = copy_of(path)
            flip(find(damaged, pattern)[-1], bit)
            with pytest.raises(DataCorrupt):
                read(damaged)
            shutil.rmtree(damaged)
        fragments += 1
        offset += 7 + length
        if 32_768 - offset % 32_768 < 7:
            offset += 32_768 - offset % 32_768
    assert fragments > 4


def test_a_damaged_row_does_not_hide_the_others(path: Path) -> None:
    random = Random(5)
    rows = [(b"%04d" % n, random.randbytes(700)) for n in range(100)]
    table = _table_of(path, rows)
    key, value = rows[50]  # neither in the first block of the table nor in its last
    flip(table, 8 * table.read_bytes().index(value) + 5)
    store = LevelDBStore(path, create=False)
    one = store.open("map", create=False)
    with pytest.raises(DataCorrupt):
        one.get(key)
    with pytest.raises(DataCorrupt):
        one.scan(None, None, ALL)
    with pytest.raises(DataCorrupt):
        one.scan(key, None, 1)
    with pytest.raises(DataCorrupt):
        one.scan(None, key + b"\0", 1, reverse=True)
    assert one.get(rows[-1][0]) == rows[-1][1]
    assert one.scan(rows[-1][0], None, ALL) == rows[-1:]
    store.close()


def test_a_damaged_end_of_a_table_is_not_taken_for_the_end_of_the_rows(path: Path) -> None:
    """plyvel's own iterator ends there silently."""
    table = _table_of(path, [(b"%04d" % n, b"v" * 100) for n in range(200)])
    flip(table, 8 * (table.read_bytes().index(b"v" * 99) + 200 * 107))
    for reverse in (False, True):
        store = LevelDBStore(path, create=False)
        one = store.open("map", create=False)
        with pytest.raises(DataCorrupt):
            one.scan(b"0199", None, ALL, reverse)
        with pytest.raises(DataCorrupt):
            one.scan(None, None, ALL, reverse)
        store.close()


# Torn ends and holes


def test_a_torn_log_loses_only_its_torn_end_and_says_how_much(
    path: Path, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    size = find(path, "*.log")[-1].stat().st_size
    for cut in (*range(1, 30), 700, 731, 800, 2_000, size // 2, size - 8, size - 1, size):
        torn = copy_of(path)
        os.truncate(find(torn, "*.log")[-1], size - cut)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tms.store"):
            left = read(torn)
        assert left == rows[: len(left)]
        lost = [len(key) + len(value) for key, value in rows[len(left) :]]
        assert sum(lost[1:]) < cut, "rows before the torn one are lost"
        dropped = sum(int(record.getMessage().rpartition("=")[2]) for record in caplog.records)
        overhead = cut + dropped - sum(lost)
        assert 0 <= overhead <= 40 * len(lost), "the message does not say how much"
        shutil.rmtree(torn)


@pytest.mark.parametrize("size", [7, 512, 4_096])
def test_zeros_in_the_middle_of_a_log_are_refused(path: Path, rows: Rows, size: int) -> None:
    log = find(path, "*.log")[-1]
    raw = bytearray(log.read_bytes())
    start = raw.index(next(value for _, value in rows if value[:500] in raw)[:500]) - 50
    raw[start : start + size] = bytes(size)
    log.write_bytes(raw)
    with pytest.raises(DataCorrupt):
        read(path)


@pytest.mark.parametrize("size", [1, 6, 7, 8, 5_000, 70_000])
def test_zeros_behind_the_end_of_a_log_are_a_torn_end(path: Path, rows: Rows, size: int) -> None:
    """A file may have grown before its bytes reached the disk."""
    with find(path, "*.log")[-1].open("ab") as log:
        log.write(bytes(size))
    assert read(path) == rows


def test_a_length_that_no_write_can_have_made_is_damage(path: Path, rows: Rows) -> None:
    """With any checksum beside it: a record that reaches beyond its block was not torn."""
    log = find(path, "*.log")[-1]
    raw = log.read_bytes()
    last = last_fragment(raw)
    log.write_bytes(raw[:last] + b"any!" + struct.pack("<H", 32_768) + raw[last + 6 :])
    with pytest.raises(DataCorrupt, match=f"byte {last} has a wrong header") as caught:
        read(path)
    assert caught.value.details["file"] == str(log)


def test_a_length_that_does_not_fit_its_checksum_is_damage(path: Path, rows: Rows) -> None:
    log = find(path, "*.log")[-1]
    last = last_fragment(log.read_bytes())
    flip(log, 8 * (last + 5) + 3)  # reaches beyond the end of the file, not of the block
    with pytest.raises(DataCorrupt, match=f"byte {last} has a wrong length"):
        read(path)


def last_fragment(log: bytes) -> int:
    """The offset of the last fragment of a log."""
    offset = last = 0
    while offset < len(log):
        last = offset
        offset += 7 + int(struct.unpack_from("<H", log, offset + 4)[0])
        if 32_768 - offset % 32_768 < 7:
            offset += 32_768 - offset % 32_768
    return last


# Deleted files


@pytest.mark.parametrize("pattern", [*FILES, "maps"])
def test_a_deleted_file_is_refused_and_nothing_is_made_in_its_place(
    path: Path, rows: Rows, pattern: str, database: str
) -> None:
    missing = path / "maps" if pattern == "maps" else find(path, pattern)[-1]
    missing.rename(path.parent / "elsewhere")
    before = sorted(path.rglob("[!L]*"))
    with pytest.raises(ConfigError if pattern == "FORMAT" else DataCorrupt) as caught:
        read(path)
    if pattern != "FORMAT":
        if (pattern, database) == ("*.log", "rocksdb"):  # its manifest does not name it exactly
            missing = Path(caught.value.details["file"])
            assert missing.suffix == ".log"
        assert caught.value.message.startswith(f"{missing} is ")
        assert "missing" in caught.value.message
        assert caught.value.details["file"] == str(missing)
    assert [file for file in sorted(path.rglob("[!L]*")) if file.exists()] == before


def test_a_table_that_was_cut_off_is_refused(path: Path, rows: Rows) -> None:
    table = find(path, "*.ldb")[-1]
    size = table.stat().st_size
    os.truncate(table, size - 1)
    with pytest.raises(DataCorrupt, match=f"has {size - 1} bytes instead of {size}") as caught:
        read(path)
    assert caught.value.details["file"] == str(table)


def test_a_table_deleted_under_an_open_map_is_not_taken_for_missing_keys(
    path: Path, database: str
) -> None:
    """plyvel's `get` returns None there. RocksDB has the table open, and reads on."""
    rows = [(b"%04d" % n, b"v" * 100) for n in range(20)]
    store = LevelDBStore(path, create=True)
    store.open("map", create=True).write(rows, Durability.WRITTEN)
    store.close()
    read(path)  # moves the rows from the log to a table
    store = LevelDBStore(path, create=False)
    one = store.open("map", create=False)
    for table in find(path, "*.ldb"):
        table.rename(table.with_suffix(".hidden"))
    if database == "rocksdb":
        assert one.get(rows[0][0]) == rows[0][1]
        assert rows_of(one) == rows
        assert not one.compare_and_set(rows[0][0], None, b"")
    else:
        for read_row in (lambda: one.get(rows[0][0]), lambda: one.scan(None, None, 1)):
            with pytest.raises(DataCorrupt):
                read_row()
        with pytest.raises(DataCorrupt):
            one.compare_and_set(rows[0][0], None, b"")
    store.close()


# The format of the data directory


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"format": 1, "store": "leveldb"}', ConfigError),
        ('{"format": 3, "store": "leveldb"}', ConfigError),
        ('{"format": 2, "store": "hbase"}', ConfigError),
        ('{"format": 2}', DataCorrupt),
        ("[]", DataCorrupt),
        ("", DataCorrupt),
    ],
)
def test_another_format_is_refused(
    path: Path, rows: Rows, text: str, error: type[TMSError]
) -> None:
    (path / "FORMAT").write_text(text)
    with pytest.raises(error):
        read(path)


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError):
        LevelDBStore(tmp_path, create=True)
    with pytest.raises(NotFound):
        LevelDBStore(tmp_path / "missing", create=False)
    assert not (tmp_path / "missing").exists()


# Rescue


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: find(path, "CURRENT")[0].unlink(),
        lambda path: find(path, "MANIFEST-*")[0].unlink(),
        lambda path: flip(find(path, "MANIFEST-*")[0], 100),
        lambda path: None,
    ],
    ids=["CURRENT deleted", "MANIFEST deleted", "MANIFEST flipped", "nothing damaged"],
)
def test_repair_saves_all_rows_where_only_the_bookkeeping_is_damaged(
    path: Path, rows: Rows, damage: Callable[[Path], object]
) -> None:
    damage(path)
    repair(path, "map")
    assert read(path) == rows


@pytest.mark.parametrize("pattern", ["*.log", "*.ldb"])
def test_repair_saves_every_intact_row_and_keeps_the_damaged_map(
    path: Path, rows: Rows, pattern: str, database: str
) -> None:
    random = Random(pattern)
    for _ in range(12):
        damaged = copy_of(path)
        file = random.choice(find(damaged, pattern))
        raw = file.read_bytes()
        candidates = [(key, value) for key, value in rows if len(value) < 1_000 and value in raw]
        victim = random.choice(candidates)
        flip(file, 8 * raw.index(victim[1]) + random.randrange(5_000))
        broken = {one.name: one.read_bytes() for one in (damaged / "maps/map").iterdir()}
        kept = repair(damaged, "map")
        assert {one.name: one.read_bytes() for one in kept.iterdir()} == broken
        left = read(damaged)
        assert set(left) <= set(rows), "repair made up rows"
        lost = set(rows) - set(left)
        assert victim in lost
        # Rows share a checksummed block of 4 KiB in tables; in logs each write has its own. Of a
        # table with damage RocksDB's repair leaves nothing.
        in_file = {row for row in rows if row[1] in raw}
        least = in_file if database == "rocksdb" else set[tuple[bytes, bytes]]()
        assert len(lost) <= (1 if pattern == "*.log" else 8) or lost <= least
        shutil.rmtree(damaged)


def test_repair_saves_records_wherever_in_a_block_of_the_log_they_begin(path: Path) -> None:
    """A fragment's header stays within a block of 32 KiB; a record may span several."""
    for size in range(32_768 - 40, 32_768 - 20):
        values = [bytes(size), b"small", Random(size).randbytes(100_000), b"last"]
        rows = [(b"%d" % n, value) for n, value in enumerate(values)]
        store = LevelDBStore(path, create=True, limits=LevelDBLimits(large_bytes=1 << 20))
        one = store.open("map", create=True)
        for row in rows:
            one.write([row], Durability.WRITTEN)
        kill(store, path)
        for damage in (False, True):
            copied = copy_of(path)
            if damage:
                flip(find(copied, "*.log")[-1], 8 * 1_000)
            repair(copied, "map")
            assert read(copied) == rows[damage:], size
            shutil.rmtree(copied)
        shutil.rmtree(path)


@pytest.mark.parametrize("left", ["values", None])
def test_repair_makes_an_empty_map_of_a_directory_that_has_lost_its_files(
    path: Path, left: str | None
) -> None:
    store = LevelDBStore(path, create=True)
    store.open("map", create=True).write([(b"k", b"v")], Durability.SYNCED)
    store.close()
    for file in (path / "maps/map").iterdir():
        if file.name != left:
            file.unlink()
    repair(path, "map")
    assert read(path) == []
    assert {file.name for file in (path / "maps/map").iterdir()} >= {"CURRENT", "values"}


def test_repair_leaves_nothing_beside_the_map_and_what_it_keeps(path: Path, rows: Rows) -> None:
    first, second = (repair(path, "map") for _ in range(2))
    assert [first, second] == [path / "damaged" / name for name in ("map.1", "map.2")]
    assert not [file for file in path.rglob("*") if file.name in ("lost", "map~")]
    assert list((path / "temporary").iterdir()) == []
    assert read(path) == rows


def test_a_disk_that_is_full_while_a_map_is_mended_is_named(
    path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("IO error: 000009.ldb: No space left on device")

    with monkeypatch.context() as patched:
        disturb(patched, "repair", full)
        with pytest.raises(StorageFull, match=r"000009\.ldb"):
            repair(path, "map")
    repair(path, "map")
    assert read(path) == rows


def test_repair_refuses_a_map_that_is_missing_or_in_use(path: Path, rows: Rows) -> None:
    with pytest.raises(NotFound):
        repair(path, "other")
    store = LevelDBStore(path, create=False)
    with pytest.raises(AlreadyRunning):
        repair(path, "map")
    store.close()


def test_a_read_only_copy_can_be_worked_on_and_changes_nothing(path: Path, rows: Rows) -> None:
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with read_only_copy(path) as copied:
        assert read(copied) == rows
        store = LevelDBStore(copied, create=False)
        store.open("map", create=False).write([(b"new", b"row")], Durability.SYNCED)
        store.drop("map")
        store.close()
    assert not copied.exists()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_what_is_no_data_directory_is_not_copied_and_half_of_one_is_damaged(
    path: Path, rows: Rows
) -> None:
    def error() -> TMSError:
        with pytest.raises((DataCorrupt, NotFound)) as caught, read_only_copy(path):
            pass
        return caught.value

    text = (path / "FORMAT").read_text()
    (path / "FORMAT").unlink()
    assert isinstance(error(), DataCorrupt) and error().details["file"] == str(path / "FORMAT")
    (path / "maps").rename(path / "elsewhere")
    assert isinstance(error(), NotFound)
    (path / "FORMAT").write_text(text[:5])
    assert isinstance(error(), DataCorrupt) and error().details["file"] == str(path / "FORMAT")
    (path / "FORMAT").write_text(text)
    assert isinstance(error(), DataCorrupt) and error().details["file"] == str(path / "maps")
    path.rename(path.with_name("elsewhere"))
    assert isinstance(error(), NotFound)


def test_a_read_only_copy_of_a_busy_store_is_whole(path: Path) -> None:
    store = LevelDBStore(path, create=True, limits=LevelDBLimits(write_buffer_bytes=1 << 20))
    one = store.open("map", create=True)
    acknowledged = 0
    enough = threading.Event()

    def write() -> None:
        nonlocal acknowledged
        for number in range(40_000):
            one.write([(b"%06d" % number, bytes(1_000))], Durability.WRITTEN)
            acknowledged = number + 1
            if enough.is_set():
                break

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(6):
            at_least = acknowledged
            with read_only_copy(path) as copied:
                found = read(copied)
            assert len(found) >= at_least
            assert [key for key, _ in found] == [b"%06d" % n for n in range(len(found))]
    finally:
        enough.set()
        thread.join(60)
        store.close()


def test_a_copy_of_a_damaged_map_is_damaged(path: Path, rows: Rows) -> None:
    find(path, "CURRENT")[0].unlink()
    with read_only_copy(path) as copied, pytest.raises(DataCorrupt):
        read(copied)


def flip(file: Path, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)
