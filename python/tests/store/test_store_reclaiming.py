"""Reclaiming space in LevelDB's directory: removed data is gone from the disk, whatever happens
meanwhile."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.contracts.store_contract import rows_of
from tests.databases import crash_image
from tms.errors import NotFound, StorageFull, StorageUnavailable
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore
from tms.store.leveldb.directory import DataDirectory

pytestmark = pytest.mark.usefixtures("database")

SYNCED = Durability.SYNCED
ROWS = [(b"%03d" % n, Random(n).randbytes(20 + n % 2 * 9_000)) for n in range(200)]
SECRET_SMALL, SECRET_LARGE = b"a small secret", b"a large secret" * 1_000


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def with_secrets(store: LevelDBStore) -> None:
    one = store.open("map", create=True)
    one.write(ROWS, SYNCED)
    one.write([(b"large", SECRET_LARGE), (b"small", SECRET_SMALL)], SYNCED)
    one.write([(b"z", b"alone: " + SECRET_SMALL)], SYNCED)
    one.overwrite([(b"large", b"")], SYNCED)
    one.delete([b"small", b"z"])


LEFT = [*ROWS, (b"large", b"")]


def test_what_was_replaced_or_deleted_is_gone_from_the_disk(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path, create=True)
    with_secrets(store)
    assert SECRET_SMALL in on_disk(tmp_path) and SECRET_LARGE in on_disk(tmp_path)
    one = store.open("map", create=False)
    before = one.stored_bytes()
    one.reclaim()
    assert SECRET_SMALL not in on_disk(tmp_path) and SECRET_LARGE[:100] not in on_disk(tmp_path)
    assert one.stored_bytes() < before
    assert rows_of(one) == LEFT
    store.close()
    assert rows_of(LevelDBStore(tmp_path, create=False).open("map", create=False)) == LEFT


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_a_crash_at_any_step_leaves_one_of_the_two_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Each rename is a step: the copy goes beside the old map, the old one away, the copy in its
    place."""
    store = LevelDBStore(tmp_path / "data", create=True)
    with_secrets(store)
    works: Callable[..., Path] = Path.rename
    done = 0

    def crash(self: Path, target: Path) -> Path:
        nonlocal done
        if done == renames and not (tmp_path / "crashed").exists():
            crash_image(tmp_path / "data", tmp_path / "crashed")
        done += 1
        return works(self, target)

    monkeypatch.setattr(Path, "rename", crash)
    store.open("map", create=False).reclaim()
    monkeypatch.undo()
    store.close()
    assert done == 3
    found = tmp_path / ("crashed" if renames < 3 else "data")
    store = LevelDBStore(found, create=False)
    assert store.names("") == ["map"]
    assert rows_of(store.open("map", create=False)) == LEFT
    store.open("map", create=False).reclaim()
    assert SECRET_SMALL not in on_disk(found)
    store.close()


def test_a_dropped_map_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LevelDBStore(tmp_path, create=True)
    with_secrets(store)

    def fail(self: DataDirectory, map: Path, beside: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(DataDirectory, "replace", fail)
    with pytest.raises(StorageUnavailable):
        store.open("map", create=False).reclaim()
    store.drop("map")
    store.close()
    store = LevelDBStore(tmp_path, create=False)
    assert store.names("") == []
    with pytest.raises(NotFound):
        store.open("map", create=False)
    store.close()


def test_a_full_disk_leaves_the_map_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LevelDBStore(tmp_path, create=True)
    with_secrets(store)
    one = store.open("map", create=False)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(StorageFull):
            one.reclaim()
    assert rows_of(one) == LEFT
    one.write([(b"zz", b"later" * 2_000)], SYNCED)
    one.reclaim()
    assert rows_of(one) == [*LEFT, (b"zz", b"later" * 2_000)]
    store.close()
