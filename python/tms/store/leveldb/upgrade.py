"""Upgrades a data directory from LevelDB to RocksDB, for good: new maps are built beside the old.

    upgraded/NAME/   the maps on RocksDB, whole once FORMAT says so; values are links

Invariants

* Nothing in `maps` changes. FORMAT changes in one step, after everything in `upgraded` is on the
  disk; from then on opening the directory puts `upgraded` in the place of `maps`.
* Before that step an interrupted upgrade has no effect: the next one starts again.
* LevelDB's tables are read and never compacted by RocksDB: it crashes over some (rocksdict 0.3.29).
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tms.errors import StorageUnavailable
from tms.runtime.disk import sync_path
from tms.store.leveldb.databases import WRITE_BUFFER_BYTES, refusing, translate
from tms.store.leveldb.directory import (
    CLOSED,
    FORMAT_VERSION,
    DataDirectory,
    JoinedDirectory,
    sync_tree,
)
from tms.store.leveldb.drivers import LEVELDB, ROCKSDB, Driver, driver_of, has
from tms.store.leveldb.files import check, copy, write_empty
from tms.store.leveldb.rows import collect, put
from tms.store.leveldb.values import MARK_KEY, VALUES

_ROWS_BYTES = 4 << 20  # of one write


def upgrade(path: str | os.PathLike[str]) -> Iterator[str]:
    """Upgrade the directory, which must not be open, and close it to other users; yields each map
    once it was copied. Raises `NotFound`, `AlreadyRunning`, `DataCorrupt`, `StorageFull`, and
    `ConfigError` without rocksdict."""
    directory = DataDirectory(path, create=False)
    try:
        directory.path.chmod(CLOSED)
        target = driver_of(ROCKSDB, directory.path)
        if directory.store == ROCKSDB:
            return
        source = driver_of(LEVELDB, directory.path) if has(LEVELDB) else target
        with refusing():
            beside = directory.begin_upgrade()
            for name in directory.names(""):
                old = directory.map_path(name)
                check(old)
                _copy(old, beside / old.name, directory.temporary_path(), source, target)
                yield name
            sync_path(beside)
            sync_path(directory.path)
            directory.name_store(ROCKSDB)
            directory.finish_upgrade()
    finally:
        directory.close()


class UpgradeCheck(NamedTuple):
    """The format of a data directory, and the work of an upgrade: the number of maps to rebuild and
    the largest number of bytes that it needs; 0 if there is nothing to do."""

    store: str
    format: int
    maps: int
    anew: int
    anew_bytes: int
    free_bytes: int


def look(path: str | os.PathLike[str]) -> UpgradeCheck:
    """Check that this release reads the directory, which may be in use; changes nothing. Raises
    `NotFound`, `DataCorrupt`, and `ConfigError` for a directory that it does not read."""
    directory = JoinedDirectory(path)
    driver_of(directory.store, directory.path)
    names = directory.names("")
    anew = [] if directory.store == ROCKSDB else names
    size = 0
    for name in anew:
        for file in directory.map_path(name).glob("*"):
            with contextlib.suppress(FileNotFoundError):  # in use: merged, or dropped
                size += file.stat().st_size if file.name != VALUES else 0
    free = shutil.disk_usage(directory.path).free
    return UpgradeCheck(directory.store, FORMAT_VERSION, len(names), len(anew), size, free)


def _copy(old: Path, new: Path, opened: Path, source: Driver, target: Driver) -> None:
    """Make `new` from the rows of `old`, which is opened as a copy at `opened`."""
    if not copy(old, opened):
        raise StorageUnavailable(f"{old} changes too fast to be copied; try again.")
    write_empty(new)
    (new / VALUES).unlink()
    os.link(old / VALUES, new / VALUES)
    try:
        with (
            contextlib.closing(source.open(opened, WRITE_BUFFER_BYTES)) as found,
            contextlib.closing(target.open(new, WRITE_BUFFER_BYTES)) as made,
            contextlib.closing(found.raw_iterator(verify_checksums=True)) as rows,
        ):
            start = MARK_KEY
            while some := collect(rows, start, None, _ROWS_BYTES, reverse=False):
                put(made, some, sync=False)
                start = some[-1][0] + b"\0"
            put(made, [], sync=True)
    except (*source.failures, *target.failures) as exc:
        raise translate(exc, old) from exc
    check(new)
    sync_tree(new)
    shutil.rmtree(opened)
