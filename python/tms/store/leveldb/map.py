"""One map in a LevelDB database that is open only while it is needed.

Invariants

* A handle is closed only while nobody is inside a call on it: readers pin it, and whoever writes,
  opens or closes holds the map's write lock. Lock order: `_writing`, then `_gate`.
* After a failed write the map takes no write until `recover` has closed, checked and opened the
  database again. LevelDB itself goes on behind the half-written record, and loses everything after
  it at the next start.
* A synced write also makes durable what LevelDB leaves behind when it changes to a new log: the
  unsynced end of the log before, and the new log's entry in its directory.
* What plyvel answers with "not there" is looked at twice: its `get` says so for a table file that
  was deleted, and its `iterator` ends silently where the last block is damaged. The raw iterator
  reports both.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import plyvel

from tms.errors import StorageFull, StorageUnavailable, TMSError
from tms.model.log import Buffer
from tms.model.topic import Durability
from tms.store.base import Row, check_key, check_row
from tms.store.leveldb.databases import RETRY_S, Databases, again, translate
from tms.store.leveldb.files import LogTail

RawIterator = Any  # plyvel does not export its class
_DRAIN_S = 30.0


class LevelDBMap:
    """A map; made by `LevelDBStore`."""

    def __init__(self, databases: Databases, path: Path) -> None:
        self.used = 0
        self._databases = databases
        self._path = path
        self._db: plyvel.DB | None = None
        self._tail = LogTail(path)
        self._pins = 0
        self._writing = threading.Lock()
        self._gate = threading.Lock()  # guards _db and _pins
        self._unpinned = threading.Condition(self._gate)
        self._failure: TMSError | None = None
        self._recovery_failed = False
        self._retry_at_s = 0.0
        self._gone: TMSError | None = None

    def write(self, rows: Sequence[Row], durability: Durability) -> None:
        """Store these rows, all or nothing."""
        for key, value in rows:
            check_row(key, value)
        synced = durability is Durability.SYNCED
        if rows or synced:  # an empty batch is a write to LevelDB's log too, and syncs it
            with self._writing:
                self._commit(self._writable(), rows, synced)

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, synced."""
        rows = [(key, None) for key in keys]
        for key, _ in rows:
            check_key(key)
        if rows:
            with self._writing:
                self._commit(self._writable(), rows, sync=True)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set or remove `key` if it is `expected` now; synced."""
        check_row(key, value or b"")
        with self._writing:
            db = self._writable()
            if self._get(db, key) != expected:
                return False
            if value is not None or expected is not None:
                self._commit(db, [(key, value)], sync=True)
            return True

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when there is none."""
        check_key(key)
        db = self._pin()
        try:
            return self._get(db, key)
        finally:
            self._unpin(db)

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached."""
        if start is not None and stop is not None and start >= stop:
            return []
        db = self._pin()
        try:
            with contextlib.closing(db.raw_iterator(verify_checksums=True)) as rows:
                return _collect(rows, start, stop, bytes_max, reverse)
        except plyvel.Error as exc:
            raise translate(exc, self._path) from exc
        finally:
            self._unpin(db)

    def stored_bytes(self) -> int:
        """The sizes of the database's files, without opening it."""
        size = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat().st_size
        return size

    def recover(self) -> None:
        """Close, check and open the database again after a failed write, at most twice a second."""
        with self._writing:
            if self._failure is None:
                return
            now_s = self._databases.clock.monotonic_s()
            if now_s < self._retry_at_s:
                raise again(self._failure)
            self._retry_at_s = now_s + RETRY_S
            self._recovery_failed = True
            try:
                self._databases.probe()
                self._close()
                self._opened()
            except TMSError as error:
                self._failure = error
                raise
            self._failure, self._recovery_failed = None, False

    @property
    def failed(self) -> bool:
        """Whether the map takes no writes until `recover`."""
        return self._failure is not None

    @property
    def hopeless(self) -> str | None:
        """Why the last `recover` failed; None if it did not."""
        failure = self._failure
        return failure.message if failure is not None and self._recovery_failed else None

    def load(self) -> None:
        """Open the database now, so that damage shows."""
        self._unpin(self._pin())

    def rest(self) -> bool:
        """Close the database unless someone uses it; whether it is closed."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if self._pins or self._failure is not None:
                return False
            self._close()
            return True
        finally:
            self._writing.release()

    def end(self, reason: TMSError) -> None:
        """Close the database once nobody uses it, and raise `reason` from then on."""
        with self._writing:
            self._gone = reason
            self._close()

    def _commit(
        self, db: plyvel.DB, rows: Sequence[tuple[bytes, Buffer | None]], sync: bool
    ) -> None:
        """Put rows, or delete those whose value is None, in one step."""
        try:
            before = self._tail.size() if sync else 0
            if len(rows) == 1 and rows[0][1] is not None:
                db.put(rows[0][0], rows[0][1], sync=sync)
            else:
                batch = db.write_batch(sync=sync)
                for key, value in rows:
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                batch.write()
            if sync and self._tail.size() <= before:
                self._tail.sync()
        except (plyvel.Error, OSError) as exc:
            self._failure, self._recovery_failed = translate(exc, self._path), False
            raise again(self._failure) from exc

    def _get(self, db: plyvel.DB, key: bytes) -> bytes | None:
        try:
            value: bytes | None = db.get(key, verify_checksums=True)
            if value is None:
                with contextlib.closing(db.raw_iterator(verify_checksums=True)) as rows:
                    rows.seek(key)
                    value = rows.value() if rows.valid() and rows.key() == key else None
            return value
        except plyvel.Error as exc:
            raise translate(exc, self._path) from exc

    def _writable(self) -> plyvel.DB:
        if self._databases.forked:
            raise self._databases.forked_error()
        if self._failure is not None:
            raise again(self._failure)
        self.used = self._databases.tick()
        if self._db is not None:
            return self._db
        try:
            return self._opened()
        except (StorageFull, StorageUnavailable) as error:
            self._failure, self._recovery_failed = error, False
            raise

    def _pin(self) -> plyvel.DB:
        with self._gate:
            if self._db is not None:
                self._pins += 1
                self.used = self._databases.tick()
                return self._db
        with self._writing:
            db = self._opened()
            with self._gate:
                self._pins += 1
            return db

    def _unpin(self, db: plyvel.DB) -> None:
        with self._gate:
            self._pins -= 1
            if self._db is not db:
                self._unpinned.notify_all()

    def _opened(self) -> plyvel.DB:
        """The database, opened if need be; needs `_writing`."""
        if self._gone is not None:
            raise again(self._gone)
        if self._db is None:
            db = self._databases.open(self._path)
            self._tail.look()
            self.used = self._databases.tick()
            with self._gate:
                self._db = db
            self._databases.opened(self)
        return self._db

    def _close(self) -> None:
        """Close the database once the readers that are in it are out; needs `_writing`."""
        with self._gate:
            db, self._db = self._db, None
            if not self._unpinned.wait_for(lambda: not self._pins, _DRAIN_S):
                self._db = db
                raise StorageUnavailable(f"Reads of {self._path} do not end, so it stays open.")
        if db is not None:
            db.close()
            self._databases.closed(self)


def _collect(
    rows: RawIterator, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool
) -> list[tuple[bytes, bytes]]:
    if reverse:
        if stop is not None:
            rows.seek(stop)
        if stop is not None and rows.valid():
            rows.prev()
        else:
            rows.seek_to_last()
    elif start is not None:
        rows.seek(start)
    else:
        rows.seek_to_first()
    step = rows.prev if reverse else rows.next
    found: list[tuple[bytes, bytes]] = []
    size = 0
    while rows.valid():
        row = rows.item()
        key = row[0]
        if (stop is not None and key >= stop) or (start is not None and key < start):
            break
        found.append(row)
        size += len(key) + len(row[1])
        if size >= bytes_max:
            break
        step()
    return found
