"""Versions of keys, as a map of the store holds them, and which of them a reader sees (pure).

    key of a row    the user's key with 00 as 00 FF · 00 00 · 2⁶⁴ − 1 − write pointer, 8 bytes
    value           1 and the value, or 0 for "deleted"

Invariants

* Rows sort by the user's keys, and those of one key by age, the newest first: one seek finds the
  version that a reader sees.
* A reader sees the newest version that was committed for it, and no other.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from tms.errors import Invalid, TooLarge
from tms.model.snapshot import Fate

KEY_BYTES_MAX = 500  # twice that, and the pointer, is what a store takes
_END = b"\x00\x00"
_AFTER = b"\x00\x01"
_POINTER = struct.Struct(">Q")
_NEWEST = 2**64 - 1
_DELETED, _PRESENT = b"\x00", b"\x01"

VersionRow = tuple[bytes, bytes]


class Version(NamedTuple):
    """The version of a key that a transaction wrote; `value` is None where it was deleted."""

    key: bytes
    pointer: int
    value: bytes | None


def check_key(key: bytes) -> bytes:
    """The key itself. Raises `Invalid`, `TooLarge`."""
    if type(key) is not bytes or not key:
        raise Invalid(f"A key is bytes, at least one; got {key!r:.80}.")
    if len(key) > KEY_BYTES_MAX:
        raise TooLarge(f"A key has at most {KEY_BYTES_MAX} bytes, this one has {len(key)}.")
    return key


def row_key(key: bytes, pointer: int) -> bytes:
    """The row of a version."""
    return _escaped(key) + _END + _POINTER.pack(_NEWEST - pointer)


def rows_of(key: bytes) -> tuple[bytes, bytes]:
    """The range of all versions of a key."""
    return _escaped(key) + _END, _escaped(key) + _AFTER


def first_row(key: bytes) -> bytes:
    """The first row of the versions of this key; those of greater keys follow."""
    return _escaped(key)


def encode(version: Version) -> VersionRow:
    """The row of a version."""
    value = _DELETED if version.value is None else _PRESENT + version.value
    return row_key(version.key, version.pointer), value


def decode(row: VersionRow) -> Version:
    """The version in a row."""
    name, value = row
    key = name[:-10].replace(b"\x00\xff", b"\x00")
    pointer = _NEWEST - _POINTER.unpack(name[-8:])[0]
    return Version(key, pointer, None if value[:1] == _DELETED else value[1:])


def visible(versions: Iterable[Version], sees: Callable[[int], bool]) -> Iterator[Version]:
    """The version of each key that a reader sees, of versions in the order of rows."""
    for _, group in groupby(versions, lambda version: version.key):
        seen = next((version for version in group if sees(version.pointer)), None)
        if seen is not None and seen.value is not None:
            yield seen


def unneeded(
    versions: Iterable[Version], fate: Callable[[int], Fate], bound: int
) -> Iterator[Version]:
    """The versions, given in the order of rows, that no reader can see any more: every transaction
    in progress sees the commits up to the pointer `bound`. A deletion comes after the versions that
    it hides, so that removing them one by one never shows one of them again."""
    for _, group in groupby(versions, lambda version: version.key):
        above = covered = False
        deletion: Version | None = None
        for version in group:
            what = fate(version.pointer)
            if what is Fate.SKIPPED or covered:
                yield version
            elif what is Fate.VISIBLE and version.pointer <= bound:
                covered = True
                if version.value is None and not above:
                    deletion = version
            else:
                above = True
        if deletion is not None:
            yield deletion


def _escaped(key: bytes) -> bytes:
    return key.replace(b"\x00", b"\x00\xff")
