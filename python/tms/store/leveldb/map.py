"""One map: a database, and the file with its large values; open only while needed.

Invariants

* A write with a large value puts all of its rows into the file, and then pointers into the
  database; the file alone restores them. So a synced write syncs the file, and the database only if
  it alone has rows.
* A handle is closed only while no call on it is under way: readers pin it, and writing, opening and
  closing require the map's write lock. Lock order: `_writing`, then `_gate`.
* After a failed write the map takes no write until `recover` has closed, checked and opened the
  database again. LevelDB itself would go on behind the half-written record, and lose everything
  after it at the next start.
* A synced write also syncs the bytes that LevelDB leaves unsynced when it changes to a new log: the
  end of the log before, and the new log's entry in its directory.
* A missing row is checked a second time: plyvel's `get` also misses rows of a table file that was
  deleted, and its `iterator` ends silently where the last block is damaged. The raw iterator
  reports both.
"""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from tms.errors import Closed, StorageFull, StorageUnavailable, TMSError, again
from tms.model.message import Buffer
from tms.model.topic import Durability
from tms.store.base import KEY_BYTES_MAX, VALUE_BYTES_MAX, MapRow, check_key, check_row
from tms.store.leveldb.databases import (
    RETRY_S,
    Databases,
    is_out_of_files,
    refusing,
    translate,
)
from tms.store.leveldb.drivers import Database
from tms.store.leveldb.files import LogTail, write_empty
from tms.store.leveldb.rows import FIRST_KEY, collect, every, put, value_of
from tms.store.leveldb.values import MARK_KEY, SMALL, ValueFile, ValuesEnd

_COPY_BYTES = 4 << 20
_DRAIN_S = 30.0
_log = logging.getLogger("tms.store")


class _Open(NamedTuple):
    db: Database
    values: ValueFile


class LevelDBMap:
    """A map; `LevelDBStore` makes it. Values of at least `large_bytes` go to the file; None: none
    does."""

    value_bytes_max = VALUE_BYTES_MAX

    def __init__(self, databases: Databases, path: Path, large_bytes: int | None) -> None:
        self.used = 0
        self._databases = databases
        self._failures = databases.failures
        self._path = path
        self._large_bytes = VALUE_BYTES_MAX + 1 if large_bytes is None else large_bytes
        self._open: _Open | None = None
        self._values_end: ValuesEnd | None = None  # while it is closed; None if it may change
        self._log_dirty = False  # True if rows are in LevelDB's log only, unsynced
        self._tail = LogTail(path)
        self._pins = 0
        self._writing = threading.Lock()
        self._gate = threading.Lock()  # guards _open and _pins
        self._unpinned = threading.Condition(self._gate)
        self._failure: TMSError | None = None
        self._recovery_failed = False
        self._retry_at_s = 0.0
        self._gone: TMSError | None = None

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows, all or nothing."""
        for key, value in rows:
            if not 0 < len(key) <= KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
                check_row(key, value)
        synced = durability is Durability.SYNCED
        if rows or synced:  # an empty batch is a write to LevelDB's log too, and syncs it
            with self._writing:
                opened = self._open
                if opened is None or self._failure is not None:
                    opened = self._writable()
                else:
                    self.used = next(self._databases.ticks)
                self._commit(opened, rows, synced)

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """As `write`."""
        self.write(rows, durability)

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
            opened = self._writable()
            if self._get(opened, key) != expected:
                return False
            if value is not None or expected is not None:
                self._commit(opened, [(key, value)], sync=True)
            return True

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""
        check_key(key)
        opened = self._pin()
        try:
            return self._get(opened, key)
        finally:
            self._unpin(opened)

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached."""
        if start is not None and stop is not None and start >= stop:
            return []
        opened = self._pin()
        try:
            with contextlib.closing(opened.db.raw_iterator(verify_checksums=True)) as rows:
                stored = collect(rows, start or FIRST_KEY, stop, bytes_max, reverse)
            return [(key, value_of(opened.values, row)) for key, row in stored]
        except self._failures as exc:
            raise self._meaning(exc) from exc
        finally:
            self._unpin(opened)

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Copy the present rows to new files, and replace the old files by them. Readers go on
        meanwhile, except for the moment of the change."""
        with self._writing:
            opened, directory = self._writable(), self._databases.directory
            with refusing():
                beside = directory.prepare(self._path, lambda path: self._copy(opened, path, pause))
                try:
                    self._close()
                    self._values_end = None
                    directory.replace(self._path, beside)
                except BaseException:
                    shutil.rmtree(beside, ignore_errors=True)
                    raise

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
            self._failure = None
            self._recovery_failed = False

    @property
    def failed(self) -> bool:
        """True if the map takes no writes until `recover`."""
        return self._failure is not None

    @property
    def hopeless(self) -> str | None:
        """The reason why the last `recover` failed; None if it did not."""
        failure = self._failure
        return failure.message if failure is not None and self._recovery_failed else None

    def load(self) -> None:
        """Open the database now, so that damage is noticed."""
        self._unpin(self._pin())

    def rest(self) -> bool:
        """Close the database unless it is in use; True if it is closed."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if self._pins or self._failure is not None:
                return False
            self._close()
            return True
        finally:
            self._writing.release()

    def hold(self, timeout_s: float) -> bool:
        """Prevent writing, opening and closing until `go_on`; False if a call that does so takes
        longer than this."""
        return self._writing.acquire(timeout=timeout_s)

    def go_on(self) -> None:
        """End a `hold`."""
        self._writing.release()

    @property
    def is_open(self) -> bool:
        """True if the database is open."""
        return self._open is not None

    @property
    def values_end(self) -> ValuesEnd | None:
        """The counted bytes of the file with the values; None if that is unknown while it is
        closed."""
        opened = self._open
        return self._values_end if opened is None else opened.values.counted()

    def end(self, reason: TMSError) -> None:
        """Close the database once no call uses it, and raise `reason` from then on."""
        with self._writing:
            self._gone = reason
            self._close()

    def _commit(
        self, opened: _Open, rows: Sequence[tuple[bytes, Buffer | None]], sync: bool
    ) -> None:
        """Put rows, or delete those with the value None, in one step."""
        values, large = opened.values, self._large_bytes
        try:
            for _, value in rows:
                if value is not None and len(value) >= large:
                    self._put_apart(opened, cast(Sequence[MapRow], rows), sync)
                    return
            marked = sync and values.end > values.synced
            if marked:
                values.sync()
            before = self._tail.size() if sync else 0
            if len(rows) == 1 and rows[0][1] is not None and not marked:
                opened.db.put(rows[0][0], SMALL + rows[0][1], sync=sync)
            else:
                batch = opened.db.write_batch(sync=sync)
                for key, value in rows:
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, SMALL + value)
                if marked:
                    batch.put(MARK_KEY, values.mark())
                batch.write()
            self._log_dirty = not sync
            if sync and self._tail.size() <= before:
                self._tail.sync()
        except self._failures as exc:
            self._failure = self._meaning(exc)
            self._recovery_failed = False
            raise again(self._failure) from exc

    def _put_apart(self, opened: _Open, rows: Sequence[MapRow], sync: bool) -> None:
        """Put rows into the file, and pointers to them into the database."""
        db, values = opened
        pointers = values.append(rows)
        if sync:
            values.sync()
        sync = sync and self._log_dirty
        before = self._tail.size() if sync else 0
        put(db, [*pointers, (MARK_KEY, values.mark())], sync)
        if sync:
            self._log_dirty = False
            if self._tail.size() <= before:
                self._tail.sync()
        self._databases.sync_behind(values)

    def _copy(self, opened: _Open, path: Path, pause: Callable[[], None]) -> None:
        """Make a map of the present rows."""
        write_empty(path)
        copy = LevelDBMap(self._databases, path, self._large_bytes)
        try:
            with contextlib.closing(opened.db.raw_iterator(verify_checksums=True)) as rows:
                start = FIRST_KEY
                while some := collect(rows, start, None, _COPY_BYTES, reverse=False):
                    copy.write(
                        [(key, value_of(opened.values, row)) for key, row in some],
                        Durability.WRITTEN,
                    )
                    start = some[-1][0] + b"\0"
                    pause()
            copy.write([], Durability.SYNCED)
        except self._failures as exc:
            raise self._meaning(exc) from exc
        finally:
            copy.end(Closed("The copy of a map is used in its place."))

    def _get(self, opened: _Open, key: bytes) -> bytes | None:
        try:
            row: bytes | None = opened.db.get(key, verify_checksums=True)
            if row is None:
                with contextlib.closing(opened.db.raw_iterator(verify_checksums=True)) as rows:
                    rows.seek(key)
                    row = rows.value() if rows.valid() and rows.key() == key else None
            return None if row is None else value_of(opened.values, row)
        except self._failures as exc:
            raise self._meaning(exc) from exc

    def _writable(self) -> _Open:
        if self._failure is not None:
            raise again(self._failure)
        self.used = next(self._databases.ticks)
        if self._open is not None:
            return self._open
        try:
            return self._opened()
        except (StorageFull, StorageUnavailable) as error:
            self._failure = error
            self._recovery_failed = False
            raise

    def _pin(self) -> _Open:
        with self._gate:
            if self._open is not None:
                self._pins += 1
                self.used = next(self._databases.ticks)
                return self._open
        with self._writing:
            opened = self._opened()
            with self._gate:
                self._pins += 1
            return opened

    def _unpin(self, opened: _Open) -> None:
        with self._gate:
            self._pins -= 1
            if self._open is not opened:
                self._unpinned.notify_all()

    def _opened(self) -> _Open:
        """The database and the file, opened if need be; needs `_writing`."""
        if self._gone is not None:
            raise again(self._gone)
        if self._open is None:
            opened = self._databases.with_room(self._open_both)
            self._log_dirty = False  # opening has turned the logs into synced tables
            self.used = next(self._databases.ticks)
            with self._gate:
                self._open = opened
            self._databases.opened(self)
            return opened
        return self._open

    def _open_both(self) -> _Open:
        db = self._databases.open(self._path)
        try:
            return self._aligned(db)
        except BaseException:
            db.close()
            raise

    def _meaning(self, exc: Exception) -> TMSError:
        """The error of TMS for an error of the database. Makes room if too many files are open."""
        error = translate(exc, self._path)
        if is_out_of_files(error):
            self._databases.make_room()
        return error

    def _aligned(self, db: Database) -> _Open:
        """The database with its file, after their contents were reconciled."""
        values: ValueFile | None = None
        try:
            values = ValueFile(self._path, db.get(MARK_KEY, verify_checksums=True))
            self._tail.look()
            if self._values_end is not None:
                values.go_on_from(self._values_end)
            if self._failure is not None:
                values.rewrite()
            if values.torn_bytes:
                _log.warning(
                    "torn end of the values dropped: map=%s bytes=%d", self._path, values.torn_bytes
                )
            if values.lost:  # durably: what comes next goes to the places that these point to
                with contextlib.closing(db.raw_iterator(verify_checksums=True)) as rows:
                    gone = [row[0] for row in every(rows) if values.behind_end(row[1])]
                batch = db.write_batch(sync=True)
                for key in gone:
                    batch.delete(key)
                batch.put(MARK_KEY, values.mark())
                batch.write()
                self._tail.sync()
            if values.unrecorded:
                put(db, [*values.unrecorded, (MARK_KEY, values.mark())], sync=False)
            return _Open(db, values)
        except BaseException as exc:
            if values is not None:
                values.close()
            if isinstance(exc, self._failures):
                raise self._meaning(exc) from exc
            raise

    def _close(self) -> None:
        """Close both once no reader uses them; needs `_writing`."""
        with self._gate:
            opened, self._open = self._open, None
            if not self._unpinned.wait_for(lambda: not self._pins, _DRAIN_S):
                self._open = opened
                raise StorageUnavailable(f"Reads of {self._path} do not end, so it stays open.")
        if opened is not None:
            opened.db.close()
            opened.values.close()
            # after a failure the disk may differ from the bytes that were read
            self._values_end = opened.values.counted() if self._failure is None else None
            self._databases.closed(self)
