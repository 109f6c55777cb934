"""The order within a key: of the messages with one key only the first is with a worker.

Invariants

* A key has a head as long as it has unsettled messages; the others stand behind it, in the order in
  which they were published.
* A key is known by 60 bits of a digest, as an integer: larger ones take more memory. Two keys with
  the same digest are treated as one: then they wait for each other, and nothing is out of order.
"""

import hashlib
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Sequence

NO_KEY = 0
_NEIGHBOURS_BITS = 5
_NEIGHBOURS = 1 << _NEIGHBOURS_BITS
_NOTHING = bytes(8 * _NEIGHBOURS)


def key_hash(key: bytes | None) -> int:
    """The digest of a key; 0 for a message without a key, which waits for no other message."""
    if key is None:
        return NO_KEY
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 4 or 1


def pack(hashes: Iterable[int]) -> bytes:
    """Digests as bytes, 8 for each."""
    packed = array("Q", hashes)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def unpack(hashes: bytes) -> Sequence[int]:
    """The digests in these bytes."""
    packed = array("Q", hashes)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed


class _Digests:
    """Digests by offset, in arrays of some neighbours: where most of them are there, a dictionary
    takes three times as much."""

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        self._arrays: dict[int, array[int]] = {}

    def put(self, offset: int, key: int) -> None:
        neighbours = self._arrays.get(offset >> _NEIGHBOURS_BITS)
        if neighbours is None:
            neighbours = self._arrays[offset >> _NEIGHBOURS_BITS] = array("Q", _NOTHING)
        neighbours[offset & _NEIGHBOURS - 1] = key

    def get(self, offset: int) -> int:
        neighbours = self._arrays.get(offset >> _NEIGHBOURS_BITS)
        return NO_KEY if neighbours is None else neighbours[offset & _NEIGHBOURS - 1]

    def pop(self, offset: int) -> int:
        neighbours = self._arrays.get(offset >> _NEIGHBOURS_BITS)
        if neighbours is None:
            return NO_KEY
        key, neighbours[offset & _NEIGHBOURS - 1] = neighbours[offset & _NEIGHBOURS - 1], NO_KEY
        if not any(neighbours):
            del self._arrays[offset >> _NEIGHBOURS_BITS]
        return key


class KeyOrder:
    """Messages that are not settled, by key."""

    __slots__ = ("_behind", "_hashes", "_heads")

    def __init__(self) -> None:
        self._heads: dict[int, int] = {}
        self._behind: dict[int, deque[int]] = {}
        self._hashes = _Digests()

    def is_free(self, key: int) -> bool:
        """True if no message of this key has to be settled first."""
        return key not in self._heads

    def add_all(self, looked_at: Iterable[tuple[int, int]]) -> list[int]:
        """Add messages, as offset and digest of the key, behind all earlier ones. Returns the
        offsets that are the first of their keys."""
        heads, first = self._heads, []
        for offset, key in looked_at:
            if key == NO_KEY:
                continue
            self._hashes.put(offset, key)
            if key not in heads:
                heads[key] = offset
                first.append(offset)
            else:
                self._behind.setdefault(key, deque()).append(offset)
        return first

    def remove(self, offset: int) -> int | None:
        """Remove a settled message; returns the offset that became the first of its key, None if
        none did."""
        key = self._hashes.pop(offset)
        if key == NO_KEY:
            return None
        behind = self._behind.get(key)
        if self._heads[key] != offset:
            if behind is not None:
                behind.remove(offset)
            return None
        if not behind:
            del self._heads[key]
            self._behind.pop(key, None)
            return None
        head = self._heads[key] = behind.popleft()
        if not behind:
            del self._behind[key]
        return head

    def hash_of(self, offset: int) -> int:
        """The digest of a message's key."""
        return self._hashes.get(offset)
