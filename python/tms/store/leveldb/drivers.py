"""The port of the database below a map, and the choice of a database for a data directory.

    FORMAT's store    library      where it installs without a compiler
    leveldb           plyvel       Python 3.11 and 3.12 on x86-64
    rocksdb           rocksdict    Python 3.11 to 3.14 on x86-64 and aarch64

Invariants

* A data directory keeps the database that FORMAT names. A new one gets the first of `PREFERENCE`
  that is installed.
* RocksDB reads LevelDB's files, LevelDB not RocksDB's. So `upgrade` goes one way, and opening alone
  never does.
* Both databases have the same files (`files`), as far as TMS reads them.
"""

from pathlib import Path
from typing import Protocol

from tms.errors import ConfigError
from tms.runtime.extras import installed, missing

LEVELDB, ROCKSDB = "leveldb", "rocksdb"
LIBRARIES = {LEVELDB: "plyvel", ROCKSDB: "rocksdict"}
PREFERENCE: tuple[str, ...] = (LEVELDB, ROCKSDB)
BLOCK_CACHE_BYTES = 256 << 10


class Rows(Protocol):
    """An iterator over the rows of a database. An error is raised, and never ends the iteration
    silently."""

    def seek(self, key: bytes) -> None: ...
    def seek_to_last(self) -> None: ...
    def valid(self) -> bool: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def next(self) -> None: ...
    def prev(self) -> None: ...
    def close(self) -> None: ...


class DatabaseBatch(Protocol):
    """Changes that `write` makes in one step."""

    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def write(self) -> None: ...


class Database(Protocol):
    """An open database: the methods of plyvel's that TMS uses, with the same names."""

    def get(self, key: bytes, *, verify_checksums: bool) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, sync: bool) -> None: ...
    def write_batch(self, *, sync: bool) -> DatabaseBatch: ...
    def raw_iterator(self, *, verify_checksums: bool) -> Rows: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """A library for one database. Calls on it, and on its databases, raise `failures`: an OSError
    if the disk refuses, another error if files are damaged."""

    failures: tuple[type[Exception], ...]

    def open(self, path: Path, write_buffer_bytes: int) -> Database:
        """The database in this directory, which must exist."""
        ...

    def repair(self, path: Path) -> None:
        """Rebuild the database from its readable tables and logs."""
        ...


def has(store: str) -> bool:
    """True if this Python has the library of a database."""
    return installed(LIBRARIES[store])


def new_store() -> str:
    """The database of a new data directory. Raises `ConfigError` where none is installed."""
    for store in PREFERENCE:
        if has(store):
            return store
    raise missing("A data directory", " or ".join(LIBRARIES.values()), "embedded")


def driver_of(store: str, path: Path) -> Driver:
    """The driver of the data directory at `path`, which has this database. Raises
    `ConfigError`."""
    if store == ROCKSDB:
        if not has(ROCKSDB):
            raise missing(f"{path} has RocksDB, which", "rocksdict", "rocksdb")
        return _driver(ROCKSDB)
    if not has(LEVELDB):
        if not has(ROCKSDB):
            raise missing(f"{path} has LevelDB, which", "plyvel", "embedded")
        fix = f"tms upgrade --data {path}"
        raise ConfigError(
            f"{path} has LevelDB, and plyvel is not installed in this Python, only rocksdict for "
            f"RocksDB. Use a Python that has plyvel, or make it RocksDB's for good: {fix}.",
            library="plyvel",
            next=fix,
        )
    return _driver(LEVELDB)


def _driver(store: str) -> Driver:
    if store == ROCKSDB:
        from tms.store.leveldb.rocksdb import RocksDriver

        return RocksDriver()
    from tms.store.leveldb.plyveldb import PlyvelDriver

    return PlyvelDriver()
