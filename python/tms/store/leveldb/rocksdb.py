"""RocksDB below a map, through rocksdict: what its options must be, and its errors in two kinds.

Invariants

* Logs end where they are torn, and only there: whatever else is wrong with them refuses the open.
  RocksDB by itself stops at the first record that is damaged and says nothing.
* An iterator that is not valid was asked for its status.
* Checksums are verified by every read, as RocksDB does unless told otherwise.
* Closing does not raise: what it could not put into a table stands in the log.
"""

import logging
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from tms.store.leveldb.drivers import BLOCK_CACHE_BYTES

_FILES_OPEN = 20  # the least that RocksDB takes: 10 tables and 10 files of its own
_WRITE_BUFFER_BYTES = 4 << 20  # of a repair
_RESERVED_BYTES = 64 << 10  # of the disk, for each open log and manifest; by default 13 MB
_OF_BYTES = ("Corruption", "Invalid argument", "Not implemented")
_log = logging.getLogger("tms.store")


class RocksDamage(Exception):
    """RocksDB found something else than what it wrote."""


class RocksDriver:
    """See `Driver`."""

    failures: tuple[type[Exception], ...] = (RocksDamage, OSError)

    def open(self, path: Path, write_buffer_bytes: int) -> "RocksDatabase":
        """The database in this directory."""
        options = _options(write_buffer_bytes)
        if any(path.glob("*.ldb")):  # LevelDB's, to be upgraded; some make compacting crash
            options.set_disable_auto_compactions(True)
        try:
            return RocksDatabase(path, Rdict(str(path), options))
        except Exception as exc:
            raise _failure(exc) from exc

    def repair(self, path: Path) -> None:
        """RocksDB's own repair."""
        try:
            Rdict.repair(str(path), _options(_WRITE_BUFFER_BYTES))
        except Exception as exc:
            raise _failure(exc) from exc


class RocksDatabase:
    """See `Database`."""

    def __init__(self, path: Path, db: Any) -> None:
        self._path = path
        self._db = db
        self._synced, self._unsynced = WriteOptions(), WriteOptions()
        self._synced.sync = True

    def get(self, key: bytes, *, verify_checksums: bool = True) -> bytes | None:
        """The value of a key."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as exc:
            raise _failure(exc) from exc
        return value

    def put(self, key: bytes, value: bytes, *, sync: bool) -> None:
        """Put one row."""
        try:
            self._db.put(key, value, self._synced if sync else self._unsynced)
        except Exception as exc:
            raise _failure(exc) from exc

    def write_batch(self, *, sync: bool) -> "RocksBatch":
        """An empty batch."""
        return RocksBatch(self._db, self._synced if sync else self._unsynced)

    def raw_iterator(self, *, verify_checksums: bool = True) -> "RocksRows":
        """A place in the rows, nowhere yet."""
        return RocksRows(self._db.iter())

    def close(self) -> None:
        """Make a table of what is in memory, and close."""
        try:
            self._db.close()
        except Exception as exc:
            _log.warning("rows stay in the log: map=%s reason=%s", self._path, exc)


class RocksBatch:
    """See `DatabaseBatch`."""

    def __init__(self, db: Any, options: Any) -> None:
        self._db = db
        self._options = options
        self._batch = WriteBatch(raw_mode=True)
        self.put = self._batch.put
        self.delete = self._batch.delete

    def write(self) -> None:
        """Make the changes."""
        try:
            self._db.write(self._batch, self._options)
        except Exception as exc:
            raise _failure(exc) from exc


class RocksRows:
    """See `Rows`. It holds the database open until `close`."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def seek(self, key: bytes) -> None:
        """To the first row at or behind `key`."""
        self._rows.seek(key)

    def seek_to_last(self) -> None:
        """To the last row."""
        self._rows.seek_to_last()

    def valid(self) -> bool:
        """Whether it stands at a row. Raises when it does not because of an error."""
        if self._rows.valid():
            return True
        try:
            self._rows.status()
        except Exception as exc:
            raise _failure(exc) from exc
        return False

    def key(self) -> bytes:
        """The row's key."""
        key: bytes = self._rows.key()
        return key

    def value(self) -> bytes:
        """The row's value."""
        value: bytes = self._rows.value()
        return value

    def item(self) -> tuple[bytes, bytes]:
        """The row."""
        return self._rows.key(), self._rows.value()

    def next(self) -> None:
        """To the next row."""
        self._rows.next()

    def prev(self) -> None:
        """To the row before."""
        self._rows.prev()

    def close(self) -> None:
        """Let go of the database."""
        self._rows = None


def _options(write_buffer_bytes: int) -> Any:
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(BLOCK_CACHE_BYTES))  # by default 32 MiB for each database
    options = Options(raw_mode=True)  # keys and values are bytes
    options.create_if_missing(False)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_open_files(_FILES_OPEN)
    options.set_max_background_jobs(1)
    options.set_max_file_opening_threads(1)
    options.set_manifest_preallocation_size(_RESERVED_BYTES)
    options.set_max_total_wal_size(_RESERVED_BYTES)  # with one column family it bounds only that
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    return options


def _failure(exc: Exception) -> Exception:
    """The kind of an error: what rocksdict raises is told apart by its text only. Damage is what
    RocksDB says of bytes that it has read, and a file that is missing; it says `Invalid argument`,
    too, of options that it could not read because of an `IO error`."""
    text = str(exc)
    if "No such file" in text or (text.startswith(_OF_BYTES) and "IO error" not in text):
        return RocksDamage(text)
    return OSError(text)
