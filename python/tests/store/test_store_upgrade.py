"""`tms upgrade`: a directory on LevelDB moves to RocksDB with every row, or stays unchanged."""

import json
from pathlib import Path
from random import Random

import pytest

from tests.contracts.store_contract import rows_of
from tests.databases import NAMES, kill
from tms.cli.main import run
from tms.errors import AlreadyRunning, ConfigError, DataCorrupt, NotFound
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBLimits, LevelDBStore, drivers, read_only_copy
from tms.store.leveldb import upgrade as upgrading
from tms.store.leveldb.directory import DataDirectory
from tms.store.leveldb.upgrade import upgrade

pytestmark = pytest.mark.skipif(len(NAMES) < 2, reason="needs plyvel and rocksdict")
Content = dict[str, list[tuple[bytes, bytes]]]
MAPS = ("map", "of/tables", "empty")


@pytest.fixture
def path(fast_path: Path) -> Path:
    """The path of the data directory."""
    return fast_path / "data"


@pytest.fixture
def content(path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    """The contents of `path`."""
    return make(path, monkeypatch)


def make(path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    """Make a directory on LevelDB whose rows are in tables, in a log and in the file of values."""
    monkeypatch.setattr(drivers, "PREFERENCE", ("leveldb",))
    random = Random(7)
    store = LevelDBStore(path, create=True, limits=LevelDBLimits(write_buffer_bytes=64 << 10))
    for name in MAPS:
        store.open(name, create=True)
    for number in range(300):
        size = 9_000 if number % 50 == 7 else 700
        rows = [(b"%04d" % number, random.randbytes(size))]
        store.open("of/tables", create=False).write(rows, Durability.WRITTEN)
    store.open("of/tables", create=False).delete([b"0003"])
    store.open("map", create=False).write([(b"k", b"v"), (b"l", bytes(5_000))], Durability.SYNCED)
    found = {name: rows_of(store.open(name, create=False)) for name in MAPS}
    kill(store, path)
    return found


def read(path: Path) -> Content:
    store = LevelDBStore(path, create=False)
    try:
        return {name: rows_of(store.open(name, create=False)) for name in store.names("")}
    finally:
        store.close()


def read_format_and_maps(path: Path) -> dict[Path, bytes]:
    files = (path / "FORMAT", *(path / "maps").rglob("*"))
    return {file: file.read_bytes() for file in files if file.is_file()}


def store_of(path: Path) -> str:
    return str(json.loads((path / "FORMAT").read_text())["store"])


def test_every_row_is_there_and_no_table_of_leveldb(path: Path, content: Content) -> None:
    assert sorted(upgrade(path)) == sorted(MAPS)
    assert store_of(path) == "rocksdb"
    assert not list(path.rglob("*.ldb"))
    assert read(path) == content
    store = LevelDBStore(path, create=False)
    store.open("map", create=False).write([(b"new", b"row")], Durability.SYNCED)
    store.close()
    assert read(path)["map"] == sorted([*content["map"], (b"new", b"row")])


def test_an_upgraded_directory_is_closed_to_other_users(path: Path, content: Content) -> None:
    for _ in range(2):  # a directory that is on RocksDB already, too
        path.chmod(0o755)
        list(upgrade(path))
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_second_time_changes_nothing(path: Path, content: Content) -> None:
    list(upgrade(path))
    before = sorted(path.rglob("*"))
    assert list(upgrade(path)) == []
    assert sorted(path.rglob("*")) == before
    assert read(path) == content


@pytest.mark.parametrize("after", range(len(MAPS)))
def test_what_is_interrupted_before_its_end_changes_nothing(
    path: Path, content: Content, after: int
) -> None:
    done = upgrade(path)
    for _ in range(after + 1):
        next(done)
    done.close()
    assert store_of(path) == "leveldb"
    assert read(path) == content
    assert sorted(upgrade(path)) == sorted(MAPS)
    assert read(path) == content


@pytest.mark.parametrize("step", ["maps", "upgraded"])
def test_what_is_interrupted_at_its_end_is_finished_when_it_is_opened(
    path: Path, content: Content, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self == path / step:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(upgrade(path))
    assert store_of(path) == "rocksdb"
    with pytest.raises(ConfigError, match="tms upgrade"), read_only_copy(path):
        pass
    assert read(path) == content
    assert not (path / "upgraded").exists()
    with read_only_copy(path) as copied:
        assert read(copied) == content


def test_leftovers_of_a_power_loss_do_not_keep_an_upgrade_from_being_finished(
    path: Path, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files removed from `temporary` are there again, where the old maps are to go."""
    with monkeypatch.context() as patched:
        patched.setattr(DataDirectory, "finish_upgrade", lambda self: None)
        list(upgrade(path))
    (path / "temporary/0").mkdir(parents=True)
    (path / "temporary/0/000003.log").touch()
    assert read(path) == content
    assert store_of(path) == "rocksdb" and not (path / "upgraded").exists()


def test_leveldb_is_read_where_only_rocksdb_is(
    path: Path, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrading, "has", lambda store: False)
    assert sorted(upgrade(path)) == sorted(MAPS)
    assert read(path) == content


@pytest.mark.parametrize("pattern", ["*.ldb", "*.log", "MANIFEST-*", "CURRENT"])
def test_a_directory_with_damage_stays_as_it_was(
    path: Path, content: Content, pattern: str
) -> None:
    files = list((path / "maps/of+tables").glob(pattern))
    assert files
    for file in files:  # a crash may leave files that the database no longer needs
        file.unlink()
    before = read_format_and_maps(path)
    with pytest.raises(DataCorrupt, match="tms fsck"):
        list(upgrade(path))
    assert read_format_and_maps(path) == before
    assert store_of(path) == "leveldb"


def test_a_directory_that_is_missing_or_in_use_is_refused(path: Path, content: Content) -> None:
    with pytest.raises(NotFound):
        list(upgrade(path.with_name("other")))
    store = LevelDBStore(path, create=False)
    with pytest.raises(AlreadyRunning):
        list(upgrade(path))
    store.close()
    assert store_of(path) == "leveldb"


def test_a_python_without_the_database_says_what_to_do(
    path: Path, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(drivers, "installed", lambda library: library == "rocksdict")
        with pytest.raises(ConfigError, match="tms upgrade --data") as caught:
            read(path)
        assert str(path) in caught.value.message
        list(upgrade(path))
        assert read(path) == content
    with monkeypatch.context() as patched:
        patched.setattr(drivers, "installed", lambda library: library == "plyvel")
        with pytest.raises(ConfigError, match=r"rocksdict.*tms-log\[rocksdb\]"):
            read(path)


def test_the_command_asks_and_tells(
    path: Path, content: Content, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["upgrade", "--data", str(path), "--no-input"]) == 2
    assert run(["upgrade", "--data", str(path), "--dry-run"]) == 0
    assert run(["upgrade", "--url", "http://127.0.0.1:9"]) == 2
    assert store_of(path) == "leveldb"
    assert run(["upgrade", "--data", str(path), "--yes"]) == 0
    assert "has RocksDB; maps: 3" in capsys.readouterr().err
    assert read(path) == content
