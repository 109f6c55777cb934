"""RocksDB below a map, through rocksdict: its options, and its two kinds of errors.

Invariants

* A log may end with a torn record; any other damage of a log refuses the open. RocksDB's default
  stops at the first damaged record silently.
* The status of an iterator that is not valid is always checked.
* Checksums are verified by every read, as is RocksDB's default.
* Closing does not raise: rows that it could not write to a table are in the log.
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
_RESERVED_BYTES = 64 << 10  # disk space reserved for each open log and manifest; default 13 MB
_OF_BYTES = ("Corruption", "Invalid argument", "Not implemented")
_log = logging.getLogger("tms.store")


class RocksDamage(Exception):
    """RocksDB read other bytes than it wrote."""


class RocksDriver:
    """The driver of RocksDB."""

    failures: tuple[type[Exception], ...] = (RocksDamage, OSError)

    def open(self, path: Path, write_buffer_bytes: int) -> "RocksDatabase":
        """The database in this directory."""
        options = _options(write_buffer_bytes)
        if any(path.glob("*.ldb")):  # of LevelDB, during an upgrade; some make compacting crash
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
    """An open RocksDB, as `Database`."""

    def __init__(self, path: Path, db: Any) -> None:
        self._path = path
        self._db = db
        self._synced = WriteOptions()
        self._unsynced = WriteOptions()
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
        """An iterator over the rows, not positioned yet."""
        return RocksRows(self._db.iter())

    def close(self) -> None:
        """Write the rows in memory to a table, and close."""
        try:
            self._db.close()
        except Exception as exc:
            _log.warning("rows stay in the log: map=%s reason=%s", self._path, exc)


class RocksBatch:
    """Changes of a RocksDB, as `DatabaseBatch`."""

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
    """An iterator over a RocksDB, as `Rows`. It holds the database open until `close`."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def seek(self, key: bytes) -> None:
        """Go to the first row at or behind `key`."""
        self._rows.seek(key)

    def seek_to_last(self) -> None:
        """Go to the last row."""
        self._rows.seek_to_last()

    def valid(self) -> bool:
        """True if it is at a row. Raises the error if it is not at a row because of one."""
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
        """Go to the next row."""
        self._rows.next()

    def prev(self) -> None:
        """Go to the row before."""
        self._rows.prev()

    def close(self) -> None:
        """Release the database."""
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
    """The kind of an error of rocksdict, which only its text tells. Damage is an error about bytes
    that RocksDB has read, and about a missing file; RocksDB also says `Invalid argument` of options
    that it could not read because of an `IO error`."""
    text = str(exc)
    if "No such file" in text or (text.startswith(_OF_BYTES) and "IO error" not in text):
        return RocksDamage(text)
    return OSError(text)
