"""An image of a store at one moment, as the files that restore it."""

from typing import NamedTuple

import msgspec

CHUNK_BYTES_MAX = 4 << 20  # of a file, in one call
FILES_MAX = 10_000  # in one call


class ImageFile(NamedTuple):
    """A file of an image. If two images have files with the same path and version, their bytes are
    equal; if the files have the same path and origin, and that is not empty, the longer begins with
    the shorter.

    `path` is below the data directory, with `/`; the file counts up to `bytes`."""

    path: str
    bytes: int
    version: str
    origin: str = ""


class BackupInfo(NamedTuple):
    """A finished backup: its moment, in ms since 1970, its bytes, and the bytes that were copied
    for it."""

    id: str
    moment_ms: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int


class BackupBegun(msgspec.Struct, frozen=True):
    """An image that is ready to be read: its moment, in ms since 1970, and its bytes."""

    id: str
    moment_ms: int
    files: int
    bytes: int
