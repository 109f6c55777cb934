"""What a store is at one moment, as the files that bring it back."""

from typing import NamedTuple

import msgspec

CHUNK_BYTES_MAX = 4 << 20  # of a file, at once
FILES_MAX = 10_000  # that are named at once


class ImageFile(NamedTuple):
    """A file of an image. Of two images a file with the same path and version has the same bytes;
    of two with the same path and origin, if that is not empty, the longer begins with the shorter.

    `path` is below the data directory, with `/`; the file counts up to `bytes`."""

    path: str
    bytes: int
    version: str
    origin: str = ""


class BackupInfo(NamedTuple):
    """A backup that was made: of which moment, in ms since 1970, how much it has, and how much of
    that was copied for it."""

    id: str
    moment_ms: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int


class BackupBegun(msgspec.Struct, frozen=True):
    """An image that waits to be read: when it was so, in ms since 1970, and how much it is."""

    id: str
    moment_ms: int
    files: int
    bytes: int
