"""An image of a data directory in use, at one moment: links to its files.

    closed maps are linked ──▶ all maps are held ──▶ open maps are linked, and those that changed
                                                 ──▶ all go on; the links are read

Tables never change; logs, manifests and files of values only grow. So a link and a size preserve a
file as it was. A database opened from these files equals the one that opens after this process was
killed at that moment.

Invariants

* While all maps are held none is written, opened, closed, made or dropped. So, across all maps, the
  image has every call that had returned before, and none that began later.
* A map that was linked before that moment counts only if it was not opened since: opening one gives
  it another manifest.
* A file of values keeps its origin, and its counted bytes never change, until the store is closed
  or the map is recovered or copied: after that it may end earlier, and go on with other bytes.
* The links stand in `temporary`: after a crash they are removed when the directory is opened.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from tms.errors import NotFound, StorageUnavailable
from tms.model.backup import ImageFile
from tms.store.leveldb.databases import refusing
from tms.store.leveldb.directory import FORMAT, MAPS, DataDirectory
from tms.store.leveldb.files import link
from tms.store.leveldb.values import VALUES, ValuesEnd

_Signature = tuple[int, int, bytes]


class FrozenMaps(NamedTuple):
    """The open maps, and the counted bytes of the files of values, as far as known."""

    opened: Set[str]
    ends: Mapping[str, ValuesEnd | None]


class _Maps(Protocol):
    """The maps of a store."""

    def closed(self, name: str) -> AbstractContextManager[bool]:
        """Yields True if the map's database is closed; it stays so within the block."""
        ...

    def frozen(self) -> AbstractContextManager[FrozenMaps]:
        """Within the block no map is written, opened, closed, made or dropped."""
        ...


class _LinkedMap(NamedTuple):
    """A linked map, and its state when it was linked."""

    signature: _Signature
    sizes: dict[str, int]


class DirectoryImage:
    """The image of a data directory, as `StoreImage`. `place` has the links."""

    def __init__(self, place: Path, files: list[ImageFile]) -> None:
        self._place = place
        self.files = files

    def read(self, file: ImageFile, start: int, bytes_max: int) -> bytes:
        """Bytes of a file from `start` on."""
        wanted = max(0, min(bytes_max, file.bytes - start))
        with refusing():
            try:
                with (self._place / file.path).open("rb") as opened:
                    found = os.pread(opened.fileno(), wanted, start)
            except FileNotFoundError as exc:
                raise NotFound(f"The image that has {file.path} was released.") from exc
        if len(found) != wanted:
            raise StorageUnavailable(f"{file.path} is shorter than it was; start the backup again.")
        return found

    def release(self) -> None:
        """Remove the links."""
        shutil.rmtree(self._place, ignore_errors=True)


def take_image(directory: DataDirectory, maps: _Maps) -> DirectoryImage:
    """The image of a directory that this process has open. Raises OSError."""
    place = directory.temporary_path()
    (place / MAPS).mkdir(parents=True)
    try:
        os.link(directory.path / FORMAT, place / FORMAT)
        linked = _link_closed(directory, place, maps)
        with maps.frozen() as (opened, ends):
            names = directory.names("")
            for name in names:
                path = directory.map_path(name)
                before = linked.get(name)
                if name in opened or before is None or before.signature != _signature(path):
                    linked[name] = _linked(path, place)
        files = [
            file
            for name in names
            for file in _files(directory, place, name, linked[name].sizes, ends.get(name))
        ]
        return DirectoryImage(place, [*files, _file(place, FORMAT)])
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _link_closed(directory: DataDirectory, place: Path, maps: _Maps) -> dict[str, _LinkedMap]:
    linked: dict[str, _LinkedMap] = {}
    for name in directory.names(""):
        with maps.closed(name) as closed, contextlib.suppress(FileNotFoundError):  # dropped
            if closed:
                linked[name] = _linked(directory.map_path(name), place)
    return linked


def _linked(path: Path, place: Path) -> _LinkedMap:
    signature, sizes = _signature(path), link(path, place / MAPS / path.name)
    if sizes is None:
        raise StorageUnavailable(f"{path} changes too fast to be backed up. Try again.")
    return _LinkedMap(signature, sizes)


def _signature(path: Path) -> _Signature:
    """A value that differs after a map was opened or replaced."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, (path / "CURRENT").read_bytes()


def _files(
    directory: DataDirectory,
    place: Path,
    name: str,
    sizes: Mapping[str, int],
    values: ValuesEnd | None,
) -> Iterator[ImageFile]:
    folder = f"{MAPS}/{directory.map_path(name).name}"
    for file, size in sorted(sizes.items()):
        if file == VALUES and values is not None:
            yield _file(place, f"{folder}/{file}", values.bytes, values.origin)
        else:
            yield _file(place, f"{folder}/{file}", size)


def _file(place: Path, path: str, size: int | None = None, origin: str = "") -> ImageFile:
    status = os.stat(place / path)
    size = status.st_size if size is None else size
    identity = f"{status.st_dev} {status.st_ino} {status.st_mtime_ns} {size}"
    version = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return ImageFile(path, size, version, origin)
