"""From a backup to a data directory.

    manifest and sizes ──▶ every file copied, its checksum compared ──▶ synced ──▶ FORMAT

Invariants

* A backup is restored whole or not at all: without its last file, FORMAT, a directory does not
  open.
* A restore writes only to a directory that is new or empty, or that an interrupted restore has
  left: such a directory has RESTORING, no FORMAT, and only files that a restore makes.
* One restore at a time writes to a directory: it holds RESTORING with flock.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tms.errors import Conflict, DataCorrupt
from tms.model.backup import CHUNK_BYTES_MAX
from tms.runtime.disk import sync_path
from tms.store.backup.manifest import CLOSED, LAST, MAPS, BackupPiece, Manifest
from tms.store.backup.writer import lock, read_manifest, refused, sums, write_synced

_RESTORING = "RESTORING"
_MADE = {_RESTORING, MAPS, f"{LAST}.new"}
_NAMED = 5  # missing files, in an error
_NOTHING = "Nothing was restored."


def verify(backup: Path) -> Manifest:
    """Read a whole backup and compare its checksums. Raises `NotFound`, `ConfigError`,
    `DataCorrupt`."""
    manifest = _whole(backup)
    for piece in manifest.pieces:
        _copy(backup, piece, None)
    return manifest


def restore(backup: Path, data: Path) -> Manifest:
    """Make a data directory from a backup. Raises the errors of `verify`, `Conflict` for a
    directory that is not empty, `StorageFull`, `StorageUnavailable`. After any of them there is no
    data directory."""
    manifest = _whole(backup)
    _require_empty(data)
    made = not data.exists()
    try:
        data.mkdir(CLOSED, parents=True, exist_ok=True)
        with _alone(data):
            _restore(backup, manifest, data, made)
    except OSError as exc:
        raise refused(exc, data, _NOTHING) from exc
    return manifest


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Exclude other restores to the directory. Raises `AlreadyRunning`."""
    fd = lock(
        data / _RESTORING,
        f"Another restore writes to {data}. Wait for its end, or name another directory.",
    )
    try:
        _require_empty(data)  # another restore may have ended meanwhile
        yield
    finally:
        os.close(fd)


def _restore(backup: Path, manifest: Manifest, data: Path, made: bool) -> None:
    try:
        _clear(data)
        _fill(backup, manifest, data)
    except BaseException:
        with contextlib.suppress(OSError):
            _clear(data)
            (data / _RESTORING).unlink()
            if made:
                data.rmdir()
        raise
    (data / _RESTORING).unlink()


def _fill(backup: Path, manifest: Manifest, data: Path) -> None:
    *pieces, last = manifest.pieces
    for piece in pieces:
        target = data / piece.path
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(backup, piece, target)
    for folder, _, _ in os.walk(data):
        sync_path(Path(folder))
    new = data / f"{last.path}.new"
    _copy(backup, last, new)
    new.rename(data / last.path)
    sync_path(data)
    sync_path(data.parent)


def _whole(backup: Path) -> Manifest:
    """The manifest of a backup whose files all exist."""
    manifest = read_manifest(backup)
    missing = [piece.place for piece in manifest.pieces if not (backup / piece.place).is_file()]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        raise DataCorrupt(
            f"{len(missing):,} of {len(manifest.pieces):,} files of the backup in {backup} are "
            f"missing: {named}. {_NOTHING}",
            next="bring the files back, or take another backup",
        )
    return manifest


def _copy(backup: Path, piece: BackupPiece, target: Path | None) -> None:
    """Copy a piece to its place in `target`; without `target` only verify it. Raises
    `DataCorrupt`."""
    place = backup / piece.place
    with place.open("rb") as source:
        chunks = iter(partial(source.read, CHUNK_BYTES_MAX), b"")
        if target is None:
            found = sums(chunks)
        else:
            with target.open("ab" if piece.start else "wb") as copy:
                found = write_synced(copy, chunks)
    if found != (piece.bytes, piece.sha256):
        raise DataCorrupt(
            f"{place} is damaged: it has {found[0]:,} bytes of {piece.bytes:,}, and its checksum "
            f"is not that of the manifest. {_NOTHING}",
            file=str(place),
            next="bring the file back, or take another backup",
        )


def _require_empty(data: Path) -> None:
    there = set(os.listdir(data)) if data.is_dir() else set()
    if data.exists() and not data.is_dir():
        raise Conflict(f"{data} is a file; a backup is restored to a new or empty directory.")
    others = there - _MADE if _RESTORING in there else there
    if others:
        raise Conflict(
            f"{data} is not empty: it has {min(others)}. {_NOTHING}",
            next="choose a new or empty directory with --data",
        )


def _clear(data: Path) -> None:
    """Remove the files of an interrupted restore, except RESTORING."""
    shutil.rmtree(data / MAPS, ignore_errors=True)
    (data / f"{LAST}.new").unlink(missing_ok=True)
    (data / LAST).unlink(missing_ok=True)
