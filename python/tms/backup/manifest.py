"""What a backup says of itself: `manifest.json`, written last.

    {"tms_backup": 1, "id": "…", "parent": "…", "moment_ms": …, "release": "0.1.0", "bytes": …,
     "files": [{"path": "maps/metadata/CURRENT", "bytes": 16, "version": "…", "sha256": "…"}, …],
     "sha256": "…"}

    files/maps/metadata/CURRENT.VERSION    the bytes of each file

* `sha256` at the end is that of everything before it, from the first byte up to the comma.
* The last file is FORMAT, which makes a data directory whole: it is restored last.
"""

import hashlib
import re
from collections.abc import Iterable

import msgspec

from tms.errors import ConfigError, DataCorrupt
from tms.model.backup import ImageFile

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
FILES = "files"
MAPS = "maps"
LAST = "FORMAT"  # makes a data directory whole
_PATH = re.compile(rf"{LAST}|{MAPS}/[a-z0-9_-][a-z0-9_.+-]*/[A-Za-z0-9_-]+(\.[a-z]+)?", re.ASCII)
_VERSION = re.compile("[A-Za-z0-9]{1,64}", re.ASCII)
_SUM = re.compile(rb',\n"sha256": "([0-9a-f]{64})"\}\n')
_SUM_BYTES = 80


class KeptFile(msgspec.Struct, frozen=True):
    """A file of a backup."""

    path: str
    bytes: int
    version: str
    sha256: str

    @property
    def place(self) -> str:
        """Where its bytes are, below the backup."""
        return place_of(ImageFile(self.path, self.bytes, self.version))


class Manifest(msgspec.Struct, frozen=True):
    """What a backup has. `parent` is the id of the backup that was in its place, if any."""

    tms_backup: int
    id: str
    parent: str
    moment_ms: int
    release: str
    bytes: int
    files: list[KeptFile]


class _Version(msgspec.Struct):
    tms_backup: int


def manifest_of(
    id: str, parent: str, moment_ms: int, release: str, files: list[KeptFile]
) -> Manifest:
    """What is said of a backup of these files."""
    size = sum(file.bytes for file in files)
    return Manifest(FORMAT_VERSION, id, parent, moment_ms, release, size, files)


def place_of(file: ImageFile) -> str:
    """Where the bytes of a file are, below the backup."""
    return f"{FILES}/{file.path}.{file.version}"


def encode(manifest: Manifest) -> bytes:
    """A manifest as it is stored."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=0).rstrip()
    body = text.removesuffix(b"}").rstrip()
    return b'%b,\n"sha256": "%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def decode(raw: bytes, where: str) -> Manifest:
    """A manifest from what is stored. Raises `ConfigError` for one of another release, or of
    something else, `DataCorrupt` for one that was torn or edited."""
    try:
        version = msgspec.json.decode(raw, type=_Version).tms_backup
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
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as exc:
        raise _damaged(where, str(exc)) from exc
    files = manifest.files
    good = all(_is_place(file.path, file.version) for file in files)
    if not good or not files or files[-1].path != LAST:
        raise _damaged(where, "it names files that no data directory has")
    return manifest


def require_place(file: ImageFile) -> None:
    """A service names only files that a data directory has. Raises `DataCorrupt`."""
    if not _is_place(file.path, file.version):
        raise DataCorrupt(
            f"The image names {file.path[:200]!r}, version {file.version[:40]!r}, which no data "
            "directory has.",
            next="look at what answers there: it is no service of TMS, or one that is damaged",
        )


def _is_place(path: str, version: str) -> bool:
    return _PATH.fullmatch(path) is not None and _VERSION.fullmatch(version) is not None


def by_place(files: Iterable[KeptFile]) -> dict[str, KeptFile]:
    """The files by where their bytes are."""
    return {file.place: file for file in files}


def _damaged(where: str, what: str) -> DataCorrupt:
    return DataCorrupt(
        f"{where} is damaged: {what}.",
        file=where,
        next="take another backup; of this one nothing is restored",
    )
