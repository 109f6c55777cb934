"""The manifest of a backup: `manifest.json`, written last.

    {"tms_backup": 2, "id": "…", "parent": "…", "moment_ms": …, "release": "0.1.0", "bytes": …,
     "pieces": [{"path": "maps/metadata/CURRENT", "start": 0, "bytes": 16, "version": "…",
                 "origin": "", "sha256": "…"}, …],
     "sha256": "…"}

    files/maps/metadata/CURRENT.VERSION         the bytes of a file, or of its first piece
    files/maps/metadata/values.VERSION.START    those of a further piece

* A file that only grew since the backup before has another piece with the new bytes. The pieces of
  a file follow one another; version and origin are those of the time when the piece was copied.
* `sha256` at the end is that of everything before it, from the first byte up to the comma.
* The last file is FORMAT, which makes a data directory whole: it is restored last.
"""

import hashlib
import re
from collections.abc import Iterable

import msgspec

from tms.errors import ConfigError, DataCorrupt
from tms.model.backup import ImageFile
from tms.runtime.decoding import from_json

FORMAT_VERSION = 2
PIECES_MAX = 64  # of a file; then it is copied whole again
MANIFEST = "manifest.json"
FILES = "files"
MAPS = "maps"
CLOSED = 0o700  # the mode of a directory: its files contain every message
LAST = "FORMAT"  # makes a data directory whole
_PATH = re.compile(rf"{LAST}|{MAPS}/[a-z0-9_-][a-z0-9_.+-]*/[A-Za-z0-9_-]+(\.[a-z]+)?", re.ASCII)
_VERSION = re.compile("[A-Za-z0-9]{1,64}", re.ASCII)
_ORIGIN = re.compile("[A-Za-z0-9]{0,64}", re.ASCII)
_SUM = re.compile(rb',\n"sha256": "([0-9a-f]{64})"\}\n')
_SUM_BYTES = 80


class BackupPiece(msgspec.Struct, frozen=True):
    """A file of a backup, or a piece of one: `bytes` of it, from `start` on."""

    path: str
    start: int
    bytes: int
    version: str
    origin: str
    sha256: str

    @property
    def place(self) -> str:
        """The path of its bytes, below the backup."""
        return place_of(self.path, self.version, self.start)

    @property
    def stop(self) -> int:
        """The offset at which the next piece begins."""
        return self.start + self.bytes


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a backup. `parent` is the id of the backup that it replaces, if any."""

    tms_backup: int
    id: str
    parent: str
    moment_ms: int
    release: str
    bytes: int
    pieces: list[BackupPiece]

    @property
    def files(self) -> int:
        """Number of files."""
        return sum(not piece.start for piece in self.pieces)


class _Version(msgspec.Struct):
    tms_backup: int


def manifest_of(
    id: str, parent: str, moment_ms: int, release: str, pieces: list[BackupPiece]
) -> Manifest:
    """The manifest of a backup with these pieces."""
    size = sum(piece.bytes for piece in pieces)
    return Manifest(FORMAT_VERSION, id, parent, moment_ms, release, size, pieces)


def place_of(path: str, version: str, start: int) -> str:
    """The path of a file's bytes from `start` on, below the backup."""
    return f"{FILES}/{path}.{version}" + (f".{start}" if start else "")


def encode(manifest: Manifest) -> bytes:
    """A manifest as it is stored."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=0).rstrip()
    body = text.removesuffix(b"}").rstrip()
    return b'%b,\n"sha256": "%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def decode(raw: bytes, where: str) -> Manifest:
    """A manifest from its stored form. Raises `ConfigError` for one of another release or format,
    `DataCorrupt` for one that was torn or edited."""
    try:
        version = from_json(raw, _Version).tms_backup
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{where} is not the manifest of a backup of TMS: {exc}.") from exc
    except msgspec.DecodeError as exc:
        raise _damaged(where, f"it is no JSON ({exc})") from exc
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{where} has the format {version}, and this release reads {FORMAT_VERSION}. Use the "
            "release that wrote it, or a newer one."
        )
    found = _SUM.fullmatch(raw[-_SUM_BYTES:])
    if found is None or hashlib.sha256(raw[:-_SUM_BYTES]).hexdigest().encode() != found[1]:
        raise _damaged(where, "its checksum is wrong: it was torn, or edited")
    try:
        manifest = from_json(raw, Manifest)
    except msgspec.DecodeError as exc:
        raise _damaged(where, str(exc)) from exc
    pieces = manifest.pieces
    good = all(_is_place(piece.path, piece.version) for piece in pieces)
    if not good or not pieces or pieces[-1].path != LAST:
        raise _damaged(where, "it names files that no data directory has")
    if not _follow(pieces):
        raise _damaged(where, "it names pieces that do not follow one another")
    return manifest


def require_place(file: ImageFile) -> None:
    """Require that the path of a service's file is one of a data directory. Raises
    `DataCorrupt`."""
    if not _is_place(file.path, file.version) or _ORIGIN.fullmatch(file.origin) is None:
        raise DataCorrupt(
            f"The image names {file.path[:200]!r}, version {file.version[:40]!r}, which no data "
            "directory has.",
            next="look at what answers there: it is no service of TMS, or one that is damaged",
        )


def _is_place(path: str, version: str) -> bool:
    return _PATH.fullmatch(path) is not None and _VERSION.fullmatch(version) is not None


def _follow(pieces: Iterable[BackupPiece]) -> bool:
    """True if the pieces of each file follow one another without a gap."""
    known, path, stop = set[str](), "", 0
    for piece in pieces:
        follows = piece.path == path and piece.start == stop > 0
        if not follows and (piece.path in known or piece.start):
            return False
        path, stop = piece.path, piece.stop
        known.add(path)
    return True


def by_path(pieces: Iterable[BackupPiece]) -> dict[str, list[BackupPiece]]:
    """The pieces of each file."""
    files: dict[str, list[BackupPiece]] = {}
    for piece in pieces:
        files.setdefault(piece.path, []).append(piece)
    return files


def _damaged(where: str, what: str) -> DataCorrupt:
    return DataCorrupt(
        f"{where} is damaged: {what}.",
        file=where,
        next="take another backup; of this one nothing is restored",
    )
