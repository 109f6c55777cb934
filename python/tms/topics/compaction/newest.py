"""The newest offset of each key in a range of a partition, in bounded memory.

A short key stands for itself, a longer one for 17 bytes of its BLAKE2b hash, which is longer than
any short key. Two keys with the same hash are not to be expected within the life of a planet.
"""

from collections.abc import Iterable
from hashlib import blake2b

SHORT_BYTES = 16
_HASH_BYTES = SHORT_BYTES + 1


class Newest:
    """Offsets by key; `full` once it holds `keys_max` keys: then no further block must be added."""

    __slots__ = ("_keys_max", "_offsets")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def full(self) -> bool:
        """True if it holds as many keys as allowed."""
        return len(self._offsets) >= self._keys_max

    def add(self, keys: Iterable[bytes | None], offsets: Iterable[int]) -> None:
        """Add the messages of a block; earlier blocks have smaller offsets."""
        known = self._offsets
        for key, offset in zip(keys, offsets, strict=True):
            if key is not None:
                known[key if len(key) <= SHORT_BYTES else _hash(key)] = offset

    def has_newer(self, key: bytes, offset: int) -> bool:
        """True if a message of the key comes after this offset."""
        return self._offsets.get(key if len(key) <= SHORT_BYTES else _hash(key), -1) > offset


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=_HASH_BYTES).digest()
