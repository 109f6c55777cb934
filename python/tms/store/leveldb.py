"""The LevelDB engine: each map is a LevelDB database in a directory of its own.

Invariants

* A database is created only in `temporary` and renamed into place; opening never creates one.
* A handle is closed only while nobody is inside a call on it: readers pin it, the writer holds the map's write lock.
* After a failed write the map stops writing until its database was closed, checked and opened again. LevelDB itself
  would go on behind a half-written record, and everything after it would be lost at the next start.
* A synced write also makes durable what LevelDB leaves behind when it changes to a new log file: the earlier log's
  unsynced end and the new log's directory entry.
* At most `maps_open_max` databases are open, apart from those in use at this moment.
"""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import plyvel

from tms.clock import Clock, SystemClock
from tms.errors import (
    Closed,
    Conflict,
    DataCorrupt,
    NotFound,
    StorageFull,
    StorageUnavailable,
    TMSError,
)
from tms.model.topic import Durability
from tms.store.base import Row, check_key, check_name, check_row
from tms.store.directory import DataDirectory

RETRY_S = 0.5
DRAIN_S = 30.0
_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class LevelDBMap:
    """A map in a LevelDB database that is opened when needed."""

    def __init__(self, store: "LevelDBStore", name: str, path: Path) -> None:
        self.used = 0
        self._store = store
        self._name = name
        self._path = path
        self._db: plyvel.DB | None = None
        self._pins = 0
        self._writing = threading.RLock()  # one writer, or whoever opens and closes the database
        self._gate = threading.Condition(threading.Lock())  # guards _db and _pins
        self._failure: TMSError | None = None
        self._retry_at_s = 0.0
        self._gone: str | None = None
        self._log: tuple[str, int] = ("", 0)
        self._unsynced = False

    def write(self, rows: Sequence[Row], durability: Durability) -> None:
        """Store these rows, all or nothing."""
        for key, value in rows:
            check_row(key, value)
        if not rows:
            return
        sync = durability is Durability.SYNCED
        with self._writing:
            db = self._writable()
            try:
                if len(rows) == 1:
                    db.put(*rows[0], sync=sync)
                else:
                    with db.write_batch(sync=sync) as batch:
                        for key, value in rows:
                            batch.put(key, value)
            except plyvel.Error as exc:
                raise self._fail(exc) from exc

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when there is none."""
        db = self._pin()
        try:
            value: bytes | None = db.get(key, verify_checksums=True)
            return value
        except plyvel.Error as exc:
            raise translate(exc, self._path) from exc
        finally:
            self._unpin(db)

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached."""
        if start is not None and stop is not None and start >= stop:
            return []
        found: list[tuple[bytes, bytes]] = []
        size = 0
        db = self._pin()
        try:
            with contextlib.closing(
                db.iterator(start=start, stop=stop, reverse=reverse, verify_checksums=True)
            ) as rows:
                for row in rows:
                    found.append(row)
                    size += len(row[0]) + len(row[1])
                    if size >= bytes_max:
                        break
            return found
        except plyvel.Error as exc:
            raise translate(exc, self._path) from exc
        finally:
            self._unpin(db)

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys."""
        wanted = list(keys)
        for key in wanted:
            check_key(key)
        if not wanted:
            return
        with self._writing:
            db = self._writable()
            try:
                with db.write_batch(sync=True) as batch:
                    for key in wanted:
                        batch.delete(key)
            except plyvel.Error as exc:
                raise self._fail(exc) from exc

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set or remove `key` if it is `expected` now."""
        with self._writing:
            self._writable()
            if self.get(key) != expected:
                return False
            if value is None:
                self.delete([key])
            else:
                self.write([(key, value)], Durability.SYNCED)
            return True

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
            now_s = self._store.clock.monotonic_s()
            if now_s < self._retry_at_s:
                raise type(self._failure)(self._failure.message, **self._failure.details)
            self._retry_at_s = now_s + RETRY_S
            try:
                self._store.probe()
                self._close()
                self._opened()
            except TMSError as error:
                self._failure = error
                raise
            self._failure = None

    @property
    def failure(self) -> str | None:
        """What keeps the map from writing until `recover`."""
        return None if self._failure is None else self._failure.message

    def load(self) -> None:
        """Open the database now, so that damage shows."""
        self._unpin(self._pin())

    def release(self, wait: bool, gone: str | None = None) -> bool:
        """Close the database if nobody is using it, or (`wait`) as soon as nobody is."""
        if not self._writing.acquire(blocking=wait):
            return False
        try:
            if not wait and (self._pins or self._failure is not None):
                return False
            self._gone = gone
            self._close()
            return True
        finally:
            self._writing.release()

    @property
    def is_open(self) -> bool:
        """Whether the database is open at this moment."""
        return self._db is not None

    def _pin(self) -> plyvel.DB:
        with self._gate:
            if self._db is not None:
                self._pins += 1
                self.used = next(self._store.ticks)
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
                self._gate.notify_all()

    def _writable(self) -> plyvel.DB:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, **self._failure.details)
        self.used = next(self._store.ticks)
        return self._db or self._opened()

    def _opened(self) -> plyvel.DB:
        if self._db is None:
            if self._gone is not None:
                raise Closed(f"The map {self._name} {self._gone}; open it again.")
            db = self._store.open_database(self._path)
            with self._gate:
                self._db = db
            self.used = next(self._store.ticks)
            self._store.make_room()
        return self._db

    def _close(self) -> None:
        with self._gate:
            db, self._db = self._db, None
            if not self._gate.wait_for(lambda: not self._pins, DRAIN_S):
                self._db = db
                raise StorageUnavailable(f"Reads of the map {self._name} do not end; it stays open.")
        if db is not None:
            db.close()

    def _fail(self, exc: plyvel.Error) -> TMSError:
        self._failure = translate(exc, self._path)
        return self._failure


class LevelDBStore:
    """Maps in a data directory, one LevelDB database each.

    With `create` the directory is made if nothing is there. `write_buffer_bytes` is how much a map keeps in memory (twice
    at worst) before it makes a file of it. Raises `NotFound`, `ConfigError`, `DataCorrupt`, `AlreadyRunning`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool,
        clock: Clock | None = None,
        write_buffer_bytes: int = 4 << 20,
        block_cache_bytes: int = 256 << 10,
        maps_open_max: int = 256,
        sync_directories: bool = True,
    ) -> None:
        self.clock = clock or SystemClock()
        self.ticks = count(1)
        self._write_buffer_bytes = write_buffer_bytes
        self._block_cache_bytes = block_cache_bytes
        self._maps_open_max = maps_open_max
        self._lock = threading.Lock()
        self._maps: dict[str, LevelDBMap] = {}
        self._closed = False
        self._directory = DataDirectory(path, "leveldb", create=create, sync=sync_directories)

    def open(self, name: str, create: bool) -> LevelDBMap:
        """The map with this name; raises `NotFound`, `Conflict` or `DataCorrupt`."""
        check_name(name)
        with self._lock:
            self._require_open()
            found = self._maps.get(name)
            path = self._directory.map_path(name)
            if create:
                if found is not None or path.exists():
                    raise Conflict(f"The map {name} exists already.")
                self._directory.add(name, self._build)
            elif found is None and not path.is_dir():
                raise NotFound(f"There is no map {name} in {self._directory.path}.")
            if found is None:
                found = self._maps[name] = LevelDBMap(self, name, path)
        found.load()
        return found

    def drop(self, name: str) -> None:
        """Remove the map and its files."""
        check_name(name)
        with self._lock:
            self._require_open()
            found = self._maps.pop(name, None)
            if found is not None:
                found.release(wait=True, gone="was dropped")
            away = self._directory.discard(name)
        if away is not None:
            shutil.rmtree(away, ignore_errors=True)

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        self._require_open()
        return self._directory.names(prefix)

    def healthy(self) -> str | None:
        """None, or what keeps a map from writing."""
        failures = (one.failure for one in list(self._maps.values()))
        return next((failure for failure in failures if failure is not None), None)

    def close(self) -> None:
        """Close every database and give the directory free."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for one in self._maps.values():
                one.release(wait=True, gone="was closed with its store")
            self._directory.close()

    def open_database(self, path: Path, create: bool = False) -> plyvel.DB:
        """A handle on the database in this directory."""
        try:
            return plyvel.DB(
                str(path),
                create_if_missing=create,
                error_if_exists=create,
                paranoid_checks=True,
                compression=None,
                write_buffer_size=self._write_buffer_bytes,
                lru_cache_size=self._block_cache_bytes,
                max_open_files=74,
            )
        except plyvel.Error as exc:
            raise translate(exc, path) from exc

    def make_room(self) -> None:
        """Close the databases that were used least recently until no more than `maps_open_max` are open."""
        open_maps = [one for one in list(self._maps.values()) if one.is_open]
        excess = len(open_maps) - self._maps_open_max
        if excess > 0:
            for one in sorted(open_maps, key=lambda one: one.used):
                excess -= one.release(wait=False)
                if excess <= 0:
                    break

    def probe(self) -> None:
        """Raises `StorageFull` or `StorageUnavailable` unless the disk takes two write buffers."""
        try:
            self._directory.probe(2 * self._write_buffer_bytes)
        except OSError as exc:
            raise translate(exc, self._directory.path) from exc

    def _build(self, path: Path) -> None:
        self.open_database(path, create=True).close()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"The store at {self._directory.path} is closed; open it again.")


def translate(exc: Exception, path: Path) -> TMSError:
    """What an error of LevelDB or of the operating system means."""
    text = exc.args[0] if exc.args else ""
    reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(exc)
    if isinstance(exc, plyvel.CorruptionError) or "Corruption" in reason:
        return DataCorrupt(f"{path} is damaged ({reason}); run `tms fsck`.", file=str(path))
    if any(words in reason for words in _FULL):
        return StorageFull(f"The disk of {path} is full ({reason}); free some space, writing resumes by itself.")
    return StorageUnavailable(f"{path} cannot be used now ({reason}); it is tried again by itself.")
