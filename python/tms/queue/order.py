"""The order within a key: of the messages with one key only the first is with a worker.

Invariants

* A key has a head as long as something of it is not settled; all others stand behind it, in the
  order in which they were published.
* Keys are known by 8 bytes of a digest. Two keys with the same digest are treated as one: then
  they wait for each other, and nothing is out of order.
"""

import hashlib
from collections import deque

NO_KEY = bytes(8)


def key_hash(key: bytes | None) -> bytes:
    """The 8 bytes of a key; zeros for a message without one, which waits for nobody."""
    if key is None:
        return NO_KEY
    found = hashlib.blake2b(key, digest_size=8).digest()
    return found if found != NO_KEY else b"\1" * 8


class KeyOrder:
    """What is not settled, by key."""

    __slots__ = ("_behind", "_hashes", "_heads")

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}
        self._behind: dict[bytes, deque[int]] = {}
        self._hashes: dict[int, bytes] = {}

    def is_free(self, key: bytes) -> bool:
        """Whether nothing of this key has to be settled before."""
        return key not in self._heads

    def add(self, offset: int, key: bytes) -> None:
        """A message that was looked at, after all that were before."""
        if key == NO_KEY:
            return
        self._hashes[offset] = key
        if key not in self._heads:
            self._heads[key] = offset
        else:
            self._behind.setdefault(key, deque()).append(offset)

    def remove(self, offset: int) -> int | None:
        """A message is settled; which one is first of its key now, if that is news."""
        key = self._hashes.pop(offset, None)
        if key is None:
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

    def hash_of(self, offset: int) -> bytes:
        """The 8 bytes of a message's key."""
        return self._hashes.get(offset, NO_KEY)
