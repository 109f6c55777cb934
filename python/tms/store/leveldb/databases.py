"""The resources that the maps of a store share: opening databases, the number of open ones, the
state of the disk.

Invariants

* Opening never creates: a directory is checked first, and a damaged or incomplete one is refused.
* At most `maps_open_max` databases are open, and no more than the limit of descriptors has room
  for, apart from those in use at this moment: the least recently used ones are closed.
* If the process may open no more files all the same, half of the databases are closed, and the next
  attempt has room.
* The disk is probed at most once per `RETRY_S`, for all maps together.
"""

import contextlib
import errno
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from tms.errors import ConfigError, StorageFull, StorageUnavailable, TMSError, again
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.store.leveldb.directory import DataDirectory
from tms.store.leveldb.drivers import Database, driver_of
from tms.store.leveldb.files import check
from tms.store.leveldb.values import ValueFile, damaged

RETRY_S = 0.5
WRITE_BUFFER_BYTES = 8 << 20  # with 4 MiB, writers wait half of the time for the sync that ends one
WRITE_BUFFER_BYTES_MIN = 4 << 20
WRITE_BUFFERS_BYTES = 64 << 20  # of all open maps, while each has at least the minimum
PROBE_BYTES_MAX = 8 << 20
LARGE_BYTES = 4 << 10  # values of at least this size are written once, to a file of their own
SYNC_BEHIND_BYTES = 16 << 20
DESCRIPTORS_OF_A_MAP = 12
_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_TOO_MANY = tuple(os.strerror(code) for code in (errno.EMFILE, errno.ENFILE))
_DENIED = tuple(os.strerror(code) for code in (errno.EACCES, errno.EPERM, errno.EROFS))
_OPEN_FILES = "open files"  # the limit that an error names in its details
_log = logging.getLogger("tms.store")
T = TypeVar("T")


class _Map(Protocol):
    used: int

    def rest(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class LevelDBLimits:
    """Bounds of a store. A map holds up to `write_buffer_bytes`, twice that at worst, in memory
    before it writes them to a file; less if many maps are open. Fewer than `maps_open_max` maps are
    open if the process may open few files. Values of at least `large_bytes` are stored beside the
    database."""

    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    maps_open_max: int = 256
    large_bytes: int = LARGE_BYTES


class Databases:
    """Opens the databases of one data directory."""

    def __init__(self, directory: DataDirectory, clock: Clock, limits: LevelDBLimits) -> None:
        self.clock = clock
        self.large_bytes = limits.large_bytes
        self.directory = directory
        self.driver = driver_of(directory.store, directory.path)
        self.failures = self.driver.failures  # errors of calls on an open database
        self._limits = limits
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._maps_open_max = maps_within(descriptors, limits.maps_open_max)
        self.ticks = count(1)  # one more with every use of any map
        self._lock = threading.Lock()  # guards _open
        self._open: set[_Map] = set()
        self._syncs = ThreadPoolExecutor(1, "tms-sync")
        self._probing = threading.Lock()
        self._probe_again_s = float("-inf")
        self._probe_error: TMSError | None = None

    def open(self, path: Path) -> Database:
        """A handle on the database in this directory. Raises `DataCorrupt` and the errors of
        `translate`."""
        try:
            torn = check(path)
            db = self.driver.open(path, self._write_buffer_size())
        except self.failures as exc:
            raise translate(exc, path) from exc
        for file, dropped_bytes in torn.items():
            _log.warning("torn end of a log dropped: file=%s bytes=%d", file, dropped_bytes)
        return db

    def _write_buffer_size(self) -> int:
        share = WRITE_BUFFERS_BYTES // (len(self._open) + 1)
        return min(self._limits.write_buffer_bytes, max(WRITE_BUFFER_BYTES_MIN, share))

    def opened(self, one: _Map) -> None:
        """Count a map as open, and close others if there are too many."""
        with self._lock:
            self._open.add(one)
            excess = len(self._open) - self._maps_open_max
        self._rest(excess)

    def make_room(self) -> bool:
        """Close the least recently used half of the open maps; False if all are in use."""
        return self._rest((len(self._open) + 1) // 2) > 0

    def with_room(self, work: Callable[[], T]) -> T:
        """Run `work`, which opens files; if too many files are open, close some maps and run it
        once more."""
        try:
            return work()
        except StorageUnavailable as error:
            if not is_out_of_files(error) or not self.make_room():
                raise
        return work()

    def _rest(self, count: int) -> int:
        """Close this number of maps, the least recently used ones first; returns how many were
        closed."""
        rested = 0
        with self._lock:
            by_age = sorted(self._open, key=lambda each: each.used) if count > 0 else []
        for each in by_age:
            rested += each.rest()
            if rested >= count:
                break
        return rested

    def closed(self, one: _Map) -> None:
        """Count a map as closed."""
        with self._lock:
            self._open.discard(one)

    def sync_behind(self, values: ValueFile) -> None:
        """Sync a file of values in the background once much of it is not synced: then opening has
        little to check, and a synced write little to wait for."""
        if values.end - values.sync_begun >= SYNC_BEHIND_BYTES:
            values.sync_begun = values.end
            self._syncs.submit(values.sync_behind)

    def close(self) -> None:
        """End the syncing thread."""
        self._syncs.shutdown()

    def probe(self) -> None:
        """Raises `StorageFull` or `StorageUnavailable` unless the disk takes two write buffers, or
        `PROBE_BYTES_MAX` bytes."""
        with self._probing:
            now_s = self.clock.monotonic_s()
            if now_s >= self._probe_again_s:
                self._probe_again_s = now_s + RETRY_S
                self._probe_error = None
                try:
                    self.directory.probe(min(2 * self._limits.write_buffer_bytes, PROBE_BYTES_MAX))
                except OSError as exc:
                    self._probe_error = refused(exc)
            if self._probe_error is not None:
                raise again(self._probe_error)


_generation: int | None = None  # of the process that used a database first


def require_threads() -> None:
    """LevelDB and RocksDB compact in threads that they begin once in a process and miss in its
    children: they would write for a while, and then wait for ever. Raises `ConfigError` in such a
    child."""
    global _generation
    if _generation is None:
        _generation = forks.generation
    if _generation != forks.generation:
        raise ConfigError(
            "This process was forked from one that has had a data directory open, and its database "
            "does not work in a fork. Fork before opening anything, or start a new process: "
            'multiprocessing.get_context("spawn").'
        )


def maps_within(descriptors: int, most: int) -> int:
    """The number of maps that may be open in a process that may have `descriptors` files open."""
    if descriptors == resource.RLIM_INFINITY:
        return most
    return min(most, max(1, descriptors // DESCRIPTORS_OF_A_MAP))


def is_out_of_files(error: TMSError) -> bool:
    """True if the process, or the machine, has the largest allowed number of files open."""
    return error.details.get("limit") == _OPEN_FILES


def translate(exc: Exception, path: Path) -> TMSError:
    """The error of TMS for one of the database or of the operating system."""
    if isinstance(exc, OSError):  # as plyvel's IOError is
        return refused(exc)
    return damaged(path, _reason(exc))


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raises what `refused` makes of an error of the operating system."""
    try:
        yield
    except TMSError:
        raise
    except OSError as exc:
        raise refused(exc) from exc


def refused(exc: OSError) -> TMSError:
    """The error of TMS for one of the operating system, sorted by what has to be done."""
    reason = _reason(exc)
    if any(words in reason for words in _FULL):
        return StorageFull(
            f"The disk is full ({reason}). Free some space; writing goes on by itself then."
        )
    if any(words in reason for words in _TOO_MANY):
        return StorageUnavailable(
            f"This process can open no more files ({reason}). Raise its limit (`ulimit -n`), or "
            "close files and connections; TMS closes what it can and tries again by itself.",
            limit=_OPEN_FILES,
        )
    if any(words in reason for words in _DENIED):
        return StorageUnavailable(
            f"The user of this process may not do that ({reason}). Give it the data directory "
            "(chown), on a disk that is mounted to be written; TMS tries again by itself."
        )
    return StorageUnavailable(f"The disk refuses ({reason}). Check it; TMS tries again by itself.")


def _reason(exc: Exception) -> str:
    text = exc.args[0]
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(exc)
