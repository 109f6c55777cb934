"""The data directory of a store on disk: its lock, its files, and how maps are added and removed in
one step.

    FORMAT       {"format": 2, "store": "leveldb"}, or "rocksdb"; written last, so a directory with
                 it is whole
    LOCK         held with flock by the process that has the directory open; contains its process id
    maps/NAME/   one map; the slashes of its name are written as +
    maps/NAME~/  the complete replacement of a map, about to be renamed to NAME
    temporary/   files being made or removed; emptied whenever the directory is opened
    upgraded/    the replacement of `maps` once FORMAT says rocksdb; `upgrade` makes it

Invariants

* One owner at a time: flock against other processes, a registry of real paths against this one
  (network file systems may grant flock to the same process twice).
* The lock ends with its owner, even if processes that were forked from it live on.
* A map appears and disappears by one rename, after its files and before its space is synced: a
  crash leaves either the whole map or none, and leftovers only in `temporary`.
* The replacement of a map stands beside it first, whole and synced: when a directory is opened it
  is used only if the old map is gone.
* Nothing is created in a directory that holds other files.
"""

import contextlib
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

from tms.errors import AlreadyRunning, ConfigError, DataCorrupt, NotFound
from tms.runtime import forks
from tms.runtime.disk import sync_path
from tms.store.leveldb.drivers import LIBRARIES, ROCKSDB, new_store

FORMAT_VERSION = 2
FORMAT, _LOCK, MAPS, _TEMPORARY = "FORMAT", "LOCK", "maps", "temporary"
_UPGRADED = "upgraded"
CLOSED = 0o700  # the mode of a directory: its files contain every message
_NEXT = "~"  # behind the name of a map's replacement


class DataDirectory:
    """A data directory, locked until `close`.

    With `create` it is made if the path is free or empty. Raises `NotFound`, `ConfigError`,
    `DataCorrupt`, `AlreadyRunning`.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool) -> None:
        self.path = Path(os.path.realpath(path))
        self._numbers = count()
        if create:
            self.path.mkdir(CLOSED, parents=True, exist_ok=True)
        elif not self.path.is_dir():
            raise NotFound(f"There is no data directory at {self.path}.")
        if not (self.path / FORMAT).exists():
            self._require_empty(create)  # before anything is written there
        self._lock_fd = _locks.take(self.path)
        try:
            if not (self.path / FORMAT).exists():
                self._create(create)
            self.finish_upgrade()
            self.store = check_format(self.path)
            self._sweep()
        except BaseException:
            self.close()
            raise

    @property
    def lock(self) -> int:
        """The descriptor of the lock, for processes that share the directory."""
        return self._lock_fd

    def map_path(self, name: str) -> Path:
        """The path of the map with this name, which need not exist."""
        return self.path / MAPS / name.replace("/", "+")

    def names(self, prefix: str) -> list[str]:
        """Names of the maps that begin with `prefix`, sorted."""
        entries = os.listdir(self.path / MAPS)
        found = (name.replace("+", "/") for name in entries if not name.endswith(_NEXT))
        return sorted(name for name in found if name.startswith(prefix))

    def add(self, name: str, build: Callable[[Path], None]) -> None:
        """Make the map's directory with `build` and then rename it into place."""
        self._place(self.map_path(name), build)

    def prepare(self, map: Path, build: Callable[[Path], None]) -> Path:
        """Make a map's replacement beside it with `build`; it has no effect yet."""
        beside = map.with_name(map.name + _NEXT)
        self._place(beside, build)
        return beside

    def _place(self, target: Path, build: Callable[[Path], None]) -> None:
        made = self.temporary_path()
        try:
            build(made)
            sync_tree(made)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        sync_path(self.path / MAPS)

    def replace(self, map: Path, beside: Path) -> None:
        """Replace a map, which must not be open, by its prepared replacement."""
        away = self.temporary_path()
        map.rename(away)
        try:
            beside.rename(map)
        except OSError:
            away.rename(map)
            raise
        sync_path(self.path / MAPS)
        shutil.rmtree(away, ignore_errors=True)

    def discard(self, name: str) -> Path | None:
        """Rename the map into `temporary`; the caller removes the returned directory. None if there
        is no such map."""
        away = self.temporary_path()
        try:
            self.map_path(name).rename(away)
        except FileNotFoundError:
            return None
        sync_path(self.path / MAPS)
        return away

    def probe(self, size: int) -> None:
        """Write and sync a file of this size, and remove it. Raises OSError if the disk refuses
        it."""
        path = self.temporary_path()
        try:
            path.write_bytes(bytes(size))
            sync_path(path)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """Unlock the directory."""
        _locks.release(self.path, self._lock_fd)

    def _require_empty(self, create: bool) -> None:
        others = set(os.listdir(self.path)) - {_LOCK, MAPS, _TEMPORARY, FORMAT + ".new"}
        maps = self.path / MAPS
        if others or (maps.is_dir() and any(maps.iterdir())):
            raise ConfigError(
                f"{self.path} is not a data directory of TMS: it holds files, but no {FORMAT}. "
                "Choose an empty or new directory, or restore that file if this was one."
            )
        if not create:
            raise NotFound(f"There is no data directory at {self.path}: it is empty.")

    def _create(self, create: bool) -> None:
        self._require_empty(create)
        store = new_store()
        (self.path / MAPS).mkdir(exist_ok=True)
        (self.path / _TEMPORARY).mkdir(exist_ok=True)
        self.name_store(store)
        sync_path(self.path.parent)

    def name_store(self, store: str) -> None:
        """Record the database of the maps, in one step."""
        new = self.path / (FORMAT + ".new")
        with new.open("w") as file:
            json.dump({"format": FORMAT_VERSION, "store": store}, file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self.path / FORMAT)
        sync_path(self.path)
        self.store = store

    def begin_upgrade(self) -> Path:
        """An empty directory in which the replacements of all maps are to be built."""
        beside = self.path / _UPGRADED
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        return beside

    def finish_upgrade(self) -> None:
        """Replace `maps` by the upgraded maps, if those are complete."""
        beside, maps = self.path / _UPGRADED, self.path / MAPS
        if beside.is_dir() and _store_of(self.path) == ROCKSDB:
            if maps.is_dir():
                self._empty_temporary()  # a power loss may bring back removed files
                maps.rename(self.temporary_path())
            beside.rename(maps)
            sync_path(self.path)
            self._sweep()

    def _empty_temporary(self) -> None:
        temporary = self.path / _TEMPORARY
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(exist_ok=True)

    def _sweep(self) -> None:
        self._empty_temporary()
        shutil.rmtree(self.path / _UPGRADED, ignore_errors=True)  # of an interrupted upgrade
        for beside in (self.path / MAPS).glob(f"*{_NEXT}"):
            map = beside.with_name(beside.name.removesuffix(_NEXT))
            if map.exists():
                shutil.rmtree(beside, ignore_errors=True)
            else:
                beside.rename(map)
                sync_path(self.path / MAPS)

    def temporary_path(self) -> Path:
        """A free path, for files being made or removed."""
        return self.path / _TEMPORARY / str(next(self._numbers))


class JoinedDirectory(DataDirectory):
    """The directory of another process, which has locked it and shares it with this one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self._numbers = count()
        self.store = check_format(self.path)

    def close(self) -> None:
        """Nothing to do: the other process keeps the lock."""

    def temporary_path(self) -> Path:
        """A path that no other process uses."""
        return self.path / _TEMPORARY / f"{os.getpid()}-{next(self._numbers)}"


def check_format(path: Path) -> str:
    """The name of the database of a data directory's maps. Raises `ConfigError` if this release
    cannot read the directory, `DataCorrupt` if parts of it are missing, `NotFound` if it is no data
    directory."""
    file = path / FORMAT
    try:
        found = json.loads(file.read_bytes())
        version, kind = found["format"], found["store"]
    except (OSError, ValueError, TypeError, KeyError) as exc:
        if not file.exists() and not (path / MAPS).exists():
            raise NotFound(f"There is no data directory at {path}.") from exc
        raise DataCorrupt(
            f"{file} cannot be read ({exc}); restore it from a backup.", file=str(file)
        ) from exc
    if kind not in LIBRARIES:
        raise ConfigError(
            f"{path} belongs to the store {kind!r}, and this release knows "
            f"{' and '.join(LIBRARIES)}; open it with the release that wrote it."
        )
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{path} has format {version!r}, and this release reads {FORMAT_VERSION}; use the "
            "release that wrote it."
        )
    if kind == ROCKSDB and (path / _UPGRADED).exists():
        raise ConfigError(
            f"{path} was interrupted at the end of its upgrade; open it once, e.g. with "
            f"tms upgrade --data {path}.",
        )
    if not (path / MAPS).is_dir():
        raise DataCorrupt(
            f"{path / MAPS} is missing; restore it from a backup.", file=str(path / MAPS)
        )
    return str(kind)


def _store_of(path: Path) -> str | None:
    """The database that FORMAT names; None if `check_format` would refuse FORMAT."""
    try:
        found = json.loads((path / FORMAT).read_bytes())["store"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return str(found)


def sync_tree(root: Path) -> None:
    """Make the files of a directory survive power loss, and the directory itself."""
    for path in (*root.iterdir(), root):
        sync_path(path)


class _Locks:
    """The directories that this process has open."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._fds: dict[str, int] = {}
        forks.in_child(self._forked)

    def take(self, path: Path) -> int:
        """Lock a directory; returns the lock, for `release`. Raises `AlreadyRunning`."""
        with self._guard:
            if str(path) in self._fds:
                raise AlreadyRunning(
                    f"{path} is open in this process already (process {os.getpid()}); share that "
                    "one, or close it first.",
                    pid=os.getpid(),
                )
            fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
            except BlockingIOError as exc:
                found = os.pread(fd, 20, 0)
                os.close(fd)
                holder = {"pid": int(found)} if found.isdigit() else {}
                raise AlreadyRunning(
                    f"{path} is in use by process {holder.get('pid', 'unknown')}; stop that one, "
                    "or choose another directory.",
                    **holder,
                ) from exc
            except BaseException:
                os.close(fd)
                raise
            self._fds[str(path)] = fd
            return fd

    def release(self, path: Path, fd: int) -> None:
        """Unlock a directory once, also when a child has inherited the lock."""
        with self._guard:
            if self._fds.get(str(path)) == fd:
                del self._fds[str(path)]
                fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)

    def _forked(self) -> None:
        """Leave the locks to the parent: a directory that is closed here is unlocked when the
        parent closes it or ends."""
        self._guard = threading.Lock()
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)


_locks = _Locks()
