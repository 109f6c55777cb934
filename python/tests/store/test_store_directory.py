"""The data directory of the LevelDB store: its owner, and the making and removing of its maps."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts.store_contract import SYNCED, WRITTEN, rows_of
from tms.errors import (
    AlreadyRunning,
    Closed,
    ConfigError,
    NotFound,
    StorageFull,
    StorageUnavailable,
)
from tms.store.leveldb import LevelDBStore
from tms.store.leveldb.directory import DataDirectory

pytestmark = pytest.mark.usefixtures("database")

# One owner of a data directory


def test_a_new_data_directory_is_closed_to_other_users(tmp_path: Path) -> None:
    """An existing directory keeps its mode: it was chosen."""
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o750)
    for path, mode in ((tmp_path / "new", 0o700), (there, 0o750)):
        LevelDBStore(path, create=True).close()
        assert path.stat().st_mode & 0o777 == mode


def test_a_data_directory_opens_once_in_a_process(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for path in (tmp_path / "data", tmp_path / "link"):
        with pytest.raises(AlreadyRunning) as caught:
            LevelDBStore(path, create=True)
        assert caught.value.details["pid"] == os.getpid()
        assert "this process" in caught.value.message
    store.open("still", create=True).write([(b"k", b"v")], SYNCED)
    store.close()
    LevelDBStore(tmp_path / "data", create=False).close()


def test_a_data_directory_opens_in_one_process_until_that_dies(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", OPEN_AND_WAIT, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(AlreadyRunning) as caught:
            LevelDBStore(tmp_path / "data", create=True)
        assert caught.value.details["pid"] == child.pid
        assert str(child.pid) in caught.value.message
        child.kill()
    store = LevelDBStore(tmp_path / "data", create=False)
    assert store.open("map", create=False).get(b"k") == b"v"
    store.close()


@pytest.mark.parametrize(("held", "named"), [("4711", "process 4711;"), ("", "process unknown;")])
def test_the_lock_of_a_data_directory_says_who_has_it(
    tmp_path: Path, held: str, named: str
) -> None:
    LevelDBStore(tmp_path, create=True).close()
    with (tmp_path / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(held)
        lock.flush()
        with pytest.raises(AlreadyRunning, match=named) as caught:
            LevelDBStore(tmp_path, create=False)
        assert caught.value.details == ({"pid": int(held)} if held else {})
        assert (tmp_path / "LOCK").read_text() == held
    LevelDBStore(tmp_path, create=False).close()


def in_child(work: Callable[[], object]) -> int:
    """Fork a child that ends with 0 once `work` returns; its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def ended_well(child: int) -> bool:
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_process_has_no_part_in_what_its_parent_has_open(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    one = store.open("map", create=True)
    one.write([(b"k", b"v")], WRITTEN)

    def work() -> None:
        for call in (
            lambda: one.get(b"k"),
            lambda: one.write([(b"k", b"child")], WRITTEN),
            lambda: store.names(""),
        ):
            with pytest.raises(Closed):
                call()
        with pytest.raises(ConfigError, match="forked"):
            LevelDBStore(tmp_path / "other", create=True)
        store.close()
        with pytest.raises(AlreadyRunning) as caught:
            DataDirectory(tmp_path / "data", create=False)
        assert caught.value.details["pid"] == os.getppid()

    assert ended_well(in_child(work))
    one.write([(b"l", b"w")], SYNCED)
    assert rows_of(one) == [(b"k", b"v"), (b"l", b"w")]
    store.close()


@pytest.mark.parametrize("closed", [True, False])
def test_the_lock_goes_with_its_owner_though_a_fork_lives_on(tmp_path: Path, closed: bool) -> None:
    """With an owner that closes its directory, and one that dies with it open."""
    (reading, writing), (lives, alive) = os.pipe(), os.pipe()
    LevelDBStore(tmp_path, create=True).close()

    def live_on() -> None:
        os.close(writing)
        os.write(alive, b".")
        os.read(reading, 1)

    def own() -> None:
        directory = DataDirectory(tmp_path, create=False)
        in_child(live_on)
        os.read(lives, 1)
        if closed:
            directory.close()

    owner = in_child(own)
    try:
        assert ended_well(owner)
        LevelDBStore(tmp_path, create=False).close()
    finally:
        os.close(writing)  # ends the fork
        os.close(lives)
        os.close(alive)
        os.close(reading)


def test_a_forked_process_cannot_write_to_the_maps_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK_AND_WRITE, str(tmp_path / "data")]
    done = subprocess.run(
        command, capture_output=True, timeout=60, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout == b"refused\nwritten\n", done.stderr.decode()


FORK_AND_WRITE = """
import os, sys
from tms.errors import Closed
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore
from tms.store.leveldb.directory import DataDirectory
store = LevelDBStore(sys.argv[1], create=True)
one = store.open("map", create=True)
child = os.fork()
try:
    if child:
        os.waitpid(child, 0)
    one.write([(b"k", b"v")], Durability.WRITTEN)
    os.write(1, b"written\\n")
except Closed:
    os.write(1, b"refused\\n")
if not child:
    os._exit(0)
store.close()
"""

OPEN_AND_WAIT = """
import sys
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore
from tms.store.leveldb.directory import DataDirectory
store = LevelDBStore(sys.argv[1], create=True)
store.open("map", create=True).write([(b"k", b"v")], Durability.WRITTEN)
print("open", flush=True)
sys.stdin.read()
"""


# Making and removing maps


def test_leftovers_of_a_crash_are_swept_when_the_store_is_opened(tmp_path: Path) -> None:
    LevelDBStore(tmp_path / "data", create=True).close()
    leftover = tmp_path / "data/temporary/7"
    leftover.mkdir()
    (leftover / "CURRENT").write_bytes(b"half")
    store = LevelDBStore(tmp_path / "data", create=False)
    assert list((tmp_path / "data/temporary").iterdir()) == []
    store.open("map", create=True)
    store.close()


def failing(call: Callable[..., object], code: int) -> Callable[..., object]:
    """A call that fails once."""
    failed = False

    def call_or_fail(*args: object) -> object:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError(code, os.strerror(code))
        return call(*args)

    return call_or_fail


FAILURES = [(errno.ENOSPC, StorageFull), (errno.EIO, StorageUnavailable)]


@pytest.mark.parametrize(("code", "error"), FAILURES)
def test_an_error_of_the_disk_while_something_is_made_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StorageUnavailable]
) -> None:
    monkeypatch.setattr(os, "fsync", failing(os.fsync, code))
    with pytest.raises(error, match=os.strerror(code)):
        LevelDBStore(tmp_path, create=True)
    store = LevelDBStore(tmp_path, create=True)
    monkeypatch.setattr(os, "fsync", failing(os.fsync, code))
    with pytest.raises(error, match=os.strerror(code)):
        store.open("map", create=True)
    assert store.names("") == [] and list((tmp_path / "temporary").iterdir()) == []
    assert rows_of(store.open("map", create=True)) == []
    store.close()


@pytest.mark.parametrize(("code", "error"), FAILURES)
def test_a_map_that_could_not_be_dropped_or_reclaimed_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StorageUnavailable]
) -> None:
    store = LevelDBStore(tmp_path, create=True)
    one = store.open("map", create=True)
    one.write([(b"k", b"v")], SYNCED)
    monkeypatch.setattr(Path, "rename", failing(Path.rename, code))
    with pytest.raises(error, match=os.strerror(code)):
        one.reclaim()
    assert list((tmp_path / "temporary").iterdir()) == []
    one.write([(b"l", b"w")], SYNCED)
    monkeypatch.setattr(Path, "rename", failing(Path.rename, code))
    with pytest.raises(error, match=os.strerror(code)):
        store.drop("map")
    assert store.names("") == ["map"]
    assert rows_of(store.open("map", create=False)) == [(b"k", b"v"), (b"l", b"w")]
    store.drop("map")
    assert store.names("") == []
    store.close()


@pytest.mark.parametrize("database", ["leveldb"], indirect=True)
def test_an_error_of_leveldb_is_told_though_a_name_in_it_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plyvel = pytest.importorskip("plyvel")
    store = LevelDBStore(tmp_path, create=True)

    def fail(*_: object, **more: object) -> None:
        raise plyvel.IOError(b"IO error: /\xff/LOCK: Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(plyvel, "DB", fail)
        with pytest.raises(StorageUnavailable, match="/\ufffd/LOCK: Too many open files"):
            store.open("map", create=True)
    assert rows_of(store.open("map", create=False)) == []
    store.close()


def test_files_that_cannot_be_removed_keep_nothing_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in `temporary` are gone for every user; the next opening removes them."""
    store = LevelDBStore(tmp_path, create=True)
    one = store.open("map", create=True)
    one.write([(b"k", b"v")], SYNCED)
    store.open("other", create=True)

    def refuse(*_: object, **more: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        one.reclaim()
        store.drop("other")
        store.close()
        assert len(list((tmp_path / "temporary").iterdir())) == 2
        store = LevelDBStore(tmp_path, create=False)
        assert store.names("") == ["map"]
        assert rows_of(store.open("map", create=False)) == [(b"k", b"v")]
        store.close()
    LevelDBStore(tmp_path, create=False).close()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_data_directory_whose_making_was_cut_off_is_made_again(tmp_path: Path) -> None:
    for done in (["LOCK"], ["LOCK", "maps"], ["LOCK", "maps", "temporary", "FORMAT.new"]):
        path = tmp_path / str(len(done))
        path.mkdir()
        for name in done:
            (path / name).mkdir() if name[0] in "mt" else (path / name).touch()
        with pytest.raises(NotFound):
            LevelDBStore(path, create=False)
        store = LevelDBStore(path, create=True)
        store.open("map", create=True)
        store.close()


def test_a_file_cannot_be_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/data"):
        with pytest.raises(ConfigError):
            LevelDBStore(path, create=True)
