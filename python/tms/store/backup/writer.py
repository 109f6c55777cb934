"""The writers of backups: to a directory, which holds the newest one, and to a stream.

    DIR/
      manifest.json    the files of the backup; the next one replaces it in one step
      files/           the bytes of each file, named after path and version; never written twice
      incoming/        files being copied
      LOCK             held with flock by the process that makes a backup there

Invariants

* A file is in `files/` only when it is whole and synced; the manifest names only such files. So the
  previous backup stays whole until the new manifest has its name, and the new one is whole from
  then on.
* A file that the manifest names with the same path and version is not copied again; of a file that
  only grew, the new bytes are copied as another piece.
* Files that no manifest names are removed at the end of a backup, also of one that fails. If it is
  unknown which manifest would survive power loss, the files of both stay until the next backup.
* Nothing is changed in a directory that has other files, or an unreadable manifest.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from tms.errors import (
    AlreadyRunning,
    ConfigError,
    NotFound,
    StorageFull,
    StorageUnavailable,
    TMSError,
)
from tms.model.backup import CHUNK_BYTES_MAX, FILES_MAX, BackupBegun, ImageFile
from tms.model.message import Buffer
from tms.runtime.disk import sync_path
from tms.store.backup.manifest import (
    CLOSED,
    FILES,
    MANIFEST,
    PIECES_MAX,
    BackupPiece,
    Manifest,
    by_path,
    decode,
    encode,
    manifest_of,
    place_of,
    require_place,
)

_INCOMING, _LOCK = "incoming", "LOCK"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ImageSource(Protocol):
    """The source of images, as `BackupsApi` declares it."""

    def begin(self) -> BackupBegun: ...
    def files(self, id: str, after: int = 0, limit: int = FILES_MAX) -> list[ImageFile]: ...
    def read(
        self, id: str, file: int, start: int = 0, bytes_max: int = CHUNK_BYTES_MAX
    ) -> Buffer: ...
    def end(self, id: str) -> None: ...


class BackupResult(NamedTuple):
    """The contents of a backup, and the bytes that were copied for it."""

    manifest: Manifest
    copied_files: int
    copied_bytes: int


class _Image(NamedTuple):
    """An image that is being read."""

    source: ImageSource
    begun: BackupBegun
    pause: Callable[[], None]

    def files(self) -> Iterator[tuple[int, ImageFile]]:
        """All files with their numbers."""
        number = 0
        while number < self.begun.files:
            files = self.source.files(self.begun.id, number, FILES_MAX)
            if not files:
                raise StorageUnavailable(
                    f"Of {self.begun.files:,} files the image named {number:,}. Start the backup "
                    "again."
                )
            for file in files:
                require_place(file)
                yield number, file
                number += 1

    def chunks(self, number: int, file: ImageFile, start: int = 0) -> Iterator[Buffer]:
        """The bytes of a file from `start` on."""
        while start < file.bytes:
            self.pause()
            chunk = self.source.read(self.begun.id, number, start, CHUNK_BYTES_MAX)
            if not chunk:
                raise StorageUnavailable(f"{file.path} ended early. Start the backup again.")
            yield chunk
            start += len(chunk)


@contextlib.contextmanager
def _image(source: ImageSource, pause: Callable[[], None]) -> Iterator[_Image]:
    begun = source.begin()
    try:
        yield _Image(source, begun, pause)
    finally:
        with contextlib.suppress(NotFound):
            source.end(begun.id)


def back_up(
    source: ImageSource, directory: Path, release: str, pause: Callable[[], None] = lambda: None
) -> BackupResult:
    """Make a backup in a directory, which is made if need be. `release` is this one of TMS; `pause`
    is called between pieces of the work. Raises the errors of the source, `ConfigError`,
    `DataCorrupt`, `AlreadyRunning`, `StorageFull`, `StorageUnavailable`; after any of them the
    previous backup is still whole."""
    with (
        _image(source, pause) as image,
        _refusing(directory),
        _BackupDirectory(directory) as target,
    ):
        before = target.manifest
        known = {} if before is None else by_path(before.pieces)
        written: list[BackupPiece] = []
        count = size = 0
        for number, file in image.files():
            pieces = target.usable(known.get(file.path, []), file)
            start = pieces[-1].stop if pieces else 0
            if start < file.bytes or not pieces:
                piece = target.add(file, start, image.chunks(number, file, start))
                pieces.append(piece)
                count, size = count + 1, size + piece.bytes
            written += pieces
        parent = "" if before is None else before.id
        manifest = manifest_of(image.begun.id, parent, image.begun.moment_ms, release, written)
        target.finish(manifest)
        return BackupResult(manifest, count, size)


def stream(
    source: ImageSource, out: BinaryIO, release: str, pause: Callable[[], None] = lambda: None
) -> BackupResult:
    """Write a backup as a tar archive, the manifest last: unpacked, it is a directory as `back_up`
    makes it. Raises the errors of the source, and the OSError of `out`."""
    with _image(source, pause) as image, tarfile.open(fileobj=out, mode="w|") as archive:
        written: list[BackupPiece] = []
        for number, file in image.files():
            entry = tarfile.TarInfo(place_of(file.path, file.version, 0))
            entry.size = file.bytes
            entry.mtime = image.begun.moment_ms // 1_000
            reader = _Reader(image.chunks(number, file))
            archive.addfile(entry, reader)  # type: ignore[arg-type]  # it only reads
            written.append(_piece(file, 0, reader.digest.hexdigest()))
        manifest = manifest_of(image.begun.id, "", image.begun.moment_ms, release, written)
        raw = encode(manifest)
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(raw)
        entry.mtime = image.begun.moment_ms // 1_000
        archive.addfile(entry, io.BytesIO(raw))
    return BackupResult(manifest, len(written), manifest.bytes)


def _piece(file: ImageFile, start: int, digest: str) -> BackupPiece:
    return BackupPiece(file.path, start, file.bytes - start, file.version, file.origin, digest)


class _Reader:
    """Chunks as a file to read from; computes their digest."""

    def __init__(self, chunks: Iterator[Buffer]) -> None:
        self._chunks = chunks
        self._chunk = io.BytesIO()
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next bytes."""
        taken = self._chunk.read(size)
        while len(taken) < size and (chunk := next(self._chunks, b"")):
            self.digest.update(chunk)
            self._chunk = io.BytesIO(chunk)
            taken += self._chunk.read(size - len(taken))
        return taken


class _BackupDirectory:
    """A directory that has a backup or none yet, locked within its `with` block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.manifest: Manifest | None = None
        self._lock_fd = -1
        self._copied = 0
        self._certain = True  # False if it is unknown which manifest is on the disk

    def __enter__(self) -> "_BackupDirectory":
        path = self._path
        path.mkdir(CLOSED, parents=True, exist_ok=True)
        if not (path / MANIFEST).exists():
            others = set(os.listdir(path)) - {FILES, _INCOMING, _LOCK, MANIFEST + ".new"}
            if others:
                raise ConfigError(
                    f"{path} is not a directory of backups: it has {min(others)}, and no "
                    f"{MANIFEST}. Choose an empty or new directory."
                )
        self._lock_fd = lock(
            path / _LOCK,
            f"Another backup is being made in {path}. Wait for its end, or name another directory.",
        )
        try:
            if (path / MANIFEST).exists():
                self.manifest = read_manifest(path)
            shutil.rmtree(path / _INCOMING, ignore_errors=True)
            for made in (_INCOMING, FILES):
                (path / made).mkdir(exist_ok=True)
            sync_path(path)
            sync_path(path.parent)
        except BaseException:
            os.close(self._lock_fd)
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if self._certain:
                with contextlib.suppress(OSError):
                    self._sweep()
        finally:
            os.close(self._lock_fd)

    def usable(self, pieces: list[BackupPiece], file: ImageFile) -> list[BackupPiece]:
        """The pieces of a file that the next backup can use as well: all of them, or none."""
        if not pieces or not all(map(self._has, pieces)):
            return []
        last = pieces[-1]
        if last.version == file.version and last.stop == file.bytes:
            return pieces.copy()
        grew = last.origin == file.origin != "" and 0 < last.stop <= file.bytes
        return pieces.copy() if grew and len(pieces) < PIECES_MAX else []

    def _has(self, piece: BackupPiece) -> bool:
        try:
            return (self._path / piece.place).stat().st_size == piece.bytes
        except FileNotFoundError:
            return False

    def add(self, file: ImageFile, start: int, chunks: Iterator[Buffer]) -> BackupPiece:
        """Copy a file from `start` on."""
        incoming = self._path / _INCOMING / str(self._copied)
        self._copied += 1
        with incoming.open("wb") as opened:
            _, digest = write_synced(opened, chunks)
        piece = _piece(file, start, digest)
        place = self._path / piece.place
        place.parent.mkdir(parents=True, exist_ok=True)
        incoming.rename(place)
        return piece

    def finish(self, manifest: Manifest) -> None:
        """Make this the backup of the directory."""
        for folder, _, _ in os.walk(self._path / FILES):
            sync_path(Path(folder))
        new = self._path / (MANIFEST + ".new")
        with new.open("wb") as opened:
            opened.write(encode(manifest))
            opened.flush()
            os.fsync(opened.fileno())
        self._certain = False
        new.rename(self._path / MANIFEST)
        sync_path(self._path)
        self._certain = True
        self.manifest = manifest

    def _sweep(self) -> None:
        """Remove the files that the manifest does not name."""
        pieces = [] if self.manifest is None else self.manifest.pieces
        named = {piece.place for piece in pieces}
        shutil.rmtree(self._path / _INCOMING, ignore_errors=True)
        (self._path / (MANIFEST + ".new")).unlink(missing_ok=True)
        for folder, _, names in os.walk(self._path / FILES, topdown=False):
            for name in names:
                place = Path(folder) / name
                if place.relative_to(self._path).as_posix() not in named:
                    place.unlink()
            with contextlib.suppress(OSError):  # not empty
                Path(folder).rmdir()


def write_synced(file: BinaryIO, chunks: Iterable[Buffer]) -> tuple[int, str]:
    """Write chunks and sync them; returns their size in bytes and their SHA-256.

    They are not read again soon: each chunk begins its way to the disk at once and leaves the cache
    then, so that they take neither the cache of others nor fresh memory, and the sync is short.
    """
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += file.write(chunk)
        file.flush()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return size, digest.hexdigest()


def sums(chunks: Iterable[Buffer]) -> tuple[int, str]:
    """The size of chunks in bytes, and their SHA-256."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the backup in a directory. Raises `NotFound`, and the errors of `decode`."""
    file = directory / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise NotFound(
            f"There is no backup in {directory}: {MANIFEST} is missing.",
            next="name the directory that `tms backup --to` was given",
        ) from exc
    return decode(raw, str(file))


def lock(file: Path, busy: str) -> int:
    """A descriptor that holds this file with flock until it is closed. Raises `AlreadyRunning`,
    with this message."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(fd)
        raise AlreadyRunning(busy, next="wait for its end, and do it again") from exc
    return fd


@contextlib.contextmanager
def _refusing(directory: Path) -> Iterator[None]:
    try:
        yield
    except TMSError:
        raise
    except OSError as exc:
        raise refused(exc, directory, "The backup that was there before is still whole.") from exc


def refused(exc: OSError, directory: Path, what: str) -> StorageFull | StorageUnavailable:
    """The error for a write that the disk refuses."""
    if exc.errno in _FULL:
        return StorageFull(
            f"The disk of {directory} is full. {what}",
            next="free space there, or choose another directory, and do it again",
        )
    return StorageUnavailable(
        f"{exc.filename or directory} refuses ({exc.strerror or exc}). {what}",
        next="look at the directory and its disk, and do it again",
    )
