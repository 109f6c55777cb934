"""The store of LevelDB maps in a data directory.

Invariants

* A map is made in `temporary` and renamed into place, and dropped in reverse: a crash leaves all of
  it or nothing.
* Each open map has one `LevelDBMap`, shared by all callers.
"""

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Iterator

from tms.errors import Closed, ConfigError, Conflict, NotFound, StorageUnavailable, TMSError
from tms.model.topic import Durability
from tms.runtime import forks
from tms.runtime.clock import Clock, SystemClock
from tms.store.base import Map, OwnStore, StoreImage, Volume, check_name
from tms.store.leveldb.databases import (
    Databases,
    LevelDBLimits,
    refused,
    refusing,
    require_threads,
)
from tms.store.leveldb.directory import DataDirectory
from tms.store.leveldb.files import write_empty
from tms.store.leveldb.image import FrozenMaps, take_image
from tms.store.leveldb.map import LevelDBMap

HOLD_S = 0.25  # by which writes are delayed at most until all maps are held
FREEZE_S = 30.0
_COME_AND_GO = re.compile(r"t[0-9a-f]{8}/delayed", re.ASCII)


class LevelDBStore(OwnStore):
    """Maps in a data directory, one database each: LevelDB's, or RocksDB's.

    With `create` the directory is made if the path is free. Large values are written once, to a
    file beside the database, except in maps whose rows come and go one by one: there the space of a
    value is reclaimed without dropping the map. Raises `NotFound`, `ConfigError`, `DataCorrupt`,
    `AlreadyRunning`.
    """

    shared = False  # one process has the directory
    immediate = Durability.WRITTEN

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool,
        clock: Clock | None = None,
        limits: LevelDBLimits | None = None,
    ) -> None:
        require_threads()
        self._lock = threading.Lock()
        self._maps: dict[str, LevelDBMap] = {}
        self._closed = False
        self._directory = self._open_directory(path, create)
        try:
            self._databases = Databases(
                self._directory, clock or SystemClock(), limits or LevelDBLimits()
            )
        except BaseException:
            self._directory.close()
            raise
        forks.in_child(self._forked)

    def _open_directory(self, path: str | os.PathLike[str], create: bool) -> DataDirectory:
        return _directory(path, create)

    @property
    def lock(self) -> int:
        """As `DataDirectory.lock`."""
        return self._directory.lock

    def open(self, name: str, create: bool) -> Map:
        """The map with this name; raises `NotFound`, `Conflict` or `DataCorrupt`."""
        check_name(name)
        path = self._directory.map_path(name)
        with self._lock:
            self._require_open()
            map = self._maps.get(name)
            if create:
                if map is not None or path.exists():
                    raise Conflict(f"The map {name} exists already.")
                self._databases.with_room(lambda: self._add(name))
            elif map is None and not path.exists():
                raise NotFound(f"There is no map {name} in {self._directory.path}.")
            if map is None:
                apart = None if _COME_AND_GO.fullmatch(name) else self._databases.large_bytes
                map = self._maps[name] = LevelDBMap(self._databases, path, apart)
        map.load()
        return map

    def drop(self, name: str) -> None:
        """Remove the map and its files."""
        check_name(name)
        with self._lock:
            self._require_open()
            map = self._maps.pop(name, None)
            if map is not None:
                map.end(NotFound(f"The map {name} was dropped."))
            with refusing():
                away = self._directory.discard(name)
        if away is not None:
            shutil.rmtree(away, ignore_errors=True)

    def _add(self, name: str) -> None:
        with refusing():
            self._directory.add(name, write_empty)

    def close_maps(self, prefix: str) -> None:
        """Close the databases of these maps."""
        with self._lock:
            released = [name for name in self._maps if name.startswith(prefix)]
            maps = [self._maps.pop(name) for name in released]
        for map in maps:
            map.end(StorageUnavailable("This process has let go of the map. Try again."))

    def volume(self) -> Volume:
        """The file system of the data directory."""
        with refusing():
            total, _, free = shutil.disk_usage(self._directory.path)
        return Volume(total, free)

    def image(self) -> StoreImage:
        """Links to the files of all maps."""
        with self._lock:
            self._require_open()
        with refusing():
            return take_image(self._directory, self)

    @contextlib.contextmanager
    def closed(self, name: str) -> Iterator[bool]:
        """Yields True if the map's database is closed; it stays so within the block."""
        with self._lock:
            map = self._maps.get(name)
            if map is None:  # the first `open` of it waits here
                yield True
                return
        if not map.hold(0):
            yield False
            return
        try:
            yield not map.is_open
        finally:
            map.go_on()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[FrozenMaps]:
        """Within the block no map is written, opened, closed, made or dropped. Raises
        `StorageUnavailable`."""
        clock = self._databases.clock
        until_s = clock.monotonic_s() + FREEZE_S
        while True:
            with contextlib.ExitStack() as held:
                held.enter_context(self._lock)
                self._require_open()
                hold_until_s = clock.monotonic_s() + HOLD_S
                for map in self._maps.values():
                    if not map.hold(max(0.0, hold_until_s - clock.monotonic_s())):
                        break
                    held.callback(map.go_on)
                else:
                    opened = {name for name, map in self._maps.items() if map.is_open}
                    ends = {name: map.values_end for name, map in self._maps.items()}
                    yield FrozenMaps(opened, ends)
                    return
            if clock.monotonic_s() >= until_s:
                raise StorageUnavailable(
                    f"A map is being written to for over {FREEZE_S:g} s, so that there is no "
                    "moment to back up. Try again."
                )
            threading.Event().wait(HOLD_S)  # other threads go on

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        self._require_open()
        return self._directory.names(prefix)

    def healthy(self) -> str | None:
        """None, or the reason why the store cannot write. After a failed write this probes the
        disk, at a bounded rate."""
        failed = [one for one in list(self._maps.values()) if one.failed]
        if not failed:
            return None
        try:
            self._databases.probe()
        except TMSError as error:
            return error.message
        return next((reason for one in failed if (reason := one.hopeless) is not None), None)

    def close(self) -> None:
        """Close every database and unlock the directory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                for map in self._maps.values():
                    map.end(self._closed_error())
            finally:
                self._databases.close()
                self._directory.close()

    def _forked(self) -> None:
        """Leave LevelDB's objects as they are: releasing them would write to the parent's files, or
        wait for threads that do not exist here."""
        forks.leave(self, *self._maps.values())

    def _require_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> Closed:
        return Closed(f"The store at {self._directory.path} is closed; open it again.")


def _directory(path: str | os.PathLike[str], create: bool) -> DataDirectory:
    try:
        return DataDirectory(path, create=create)
    except (PermissionError, FileExistsError, NotADirectoryError) as exc:
        raise ConfigError(
            f"{os.fspath(path)} cannot be a data directory: {exc.strerror}. Choose a directory "
            "that this user may write to."
        ) from exc
    except OSError as exc:
        raise refused(exc) from exc
