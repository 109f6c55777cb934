"""For a data directory that is not open: inspecting a copy, repairing a damaged map.

Invariants

* Inspecting changes nothing in the directory: logs and manifests are copied, tables are linked.
* A repair keeps the damaged map in `damaged/`, and every intact record in the new one.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tms.errors import DataCorrupt, NotFound, StorageUnavailable
from tms.runtime.disk import sync_path
from tms.store.base import check_name
from tms.store.leveldb.databases import WRITE_BUFFER_BYTES_MIN, translate
from tms.store.leveldb.directory import DataDirectory, check_format, sync_tree
from tms.store.leveldb.drivers import Driver, driver_of
from tms.store.leveldb.files import check, copy, logs, salvage
from tms.store.leveldb.rows import every
from tms.store.leveldb.values import MARK_KEY, POINTER
from tms.store.leveldb.values import salvage as salvage_values

_COPY_ATTEMPTS = 5


@contextlib.contextmanager
def read_only_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A copy of a data directory, in use or not, to open as a store and inspect; removed at the
    end.

    A map that is damaged is damaged in the copy too, and raises `DataCorrupt` when it is opened.
    """
    source = Path(os.path.realpath(path))
    if not source.is_dir():
        raise NotFound(f"There is no data directory at {source}.")
    check_format(source)
    with tempfile.TemporaryDirectory(prefix="tms-copy-") as temporary:
        target = Path(temporary) / "data"
        (target / "maps").mkdir(parents=True)
        shutil.copyfile(source / "FORMAT", target / "FORMAT")
        for name in os.listdir(source / "maps"):
            _copy_map(source / "maps" / name, target / "maps" / name)
        yield target


def repair(path: str | os.PathLike[str], name: str) -> Path:
    """Rebuild a damaged map from its intact records; returns the directory with the damaged one.

    Raises `NotFound` if there is no such map, `AlreadyRunning` if the data directory is in use.
    """
    check_name(name)
    directory = DataDirectory(path, create=False)
    try:
        source = directory.map_path(name)
        if not source.is_dir():
            raise NotFound(f"There is no map {name} in {directory.path}.")
        driver = driver_of(directory.store, directory.path)
        saved = _keep(source, directory.path / "damaged")
        for log in logs(source):
            salvage(log)
        try:
            driver.repair(source)
            _mend_pointers(source, driver)
        except driver.failures as exc:
            raise translate(exc, source) from exc
        shutil.rmtree(source / "lost", ignore_errors=True)
        sync_tree(source)
        check(source)
        return saved
    finally:
        directory.close()


def _mend_pointers(source: Path, driver: Driver) -> None:
    """Write a pointer for every intact value, and remove all others."""
    with contextlib.closing(driver.open(source, WRITE_BUFFER_BYTES_MIN)) as db:
        intact, mark = salvage_values(source, db.get(MARK_KEY, verify_checksums=True))
        known, rows = dict(intact), {row for _, row in intact}
        batch = db.write_batch(sync=True)
        with contextlib.closing(db.raw_iterator(verify_checksums=True)) as stored:
            for key, row in every(stored):
                if row[:1] == POINTER and row not in rows:
                    batch.delete(key)
                else:
                    known.pop(key, None)
        for key, row in known.items():
            batch.put(key, row)
        batch.put(MARK_KEY, mark)
        batch.write()


def _copy_map(source: Path, target: Path) -> None:
    """Copy a map, again if LevelDB removed a table meanwhile. A damaged map is copied as it is."""
    for _ in range(_COPY_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        try:
            if not copy(source, target):
                raise StorageUnavailable(f"{source} changes too fast to be copied; try again.")
            check(target)
            return
        except FileNotFoundError:  # dropped meanwhile
            shutil.rmtree(target, ignore_errors=True)
            return
        except DataCorrupt:
            continue


def _keep(source: Path, damaged: Path) -> Path:
    damaged.mkdir(exist_ok=True)
    saved = next(path for n in count(1) if not (path := damaged / f"{source.name}.{n}").exists())
    shutil.copytree(source, saved)
    sync_tree(saved)
    sync_path(damaged)
    return saved
