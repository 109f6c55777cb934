"""The content of messages, and the digests that identify them.

* A message names itself: in its value before the first `|` or, for a tombstone, in the header
  `name`. The rest is bytes that do not compress, or do.
"""

import hashlib
import math
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

_NOISE = Random(20).randbytes(1 << 20)
_WORDS = b"the flight of the albatross " * 8_192
NAME, DEAD = "name", "tms-dead-"


class Content(NamedTuple):
    """A message before it has a position."""

    name: str
    key: bytes | None
    headers: dict[str, bytes] | None
    value: bytes | None

    @property
    def digest(self) -> str:
        return digest(self.key, self.headers or {}, self.value)


class Maker:
    """Makes the messages of one writer, numbered from 0, all from its seed."""

    def __init__(self, writer: str, random: Random, bytes_max: int) -> None:
        self.writer = writer
        self._random = random
        self._bytes_max = max(1, bytes_max)
        self._count = 0

    def make(
        self, key: bytes | None = None, *, tombstone: bool = False, size: int | None = None
    ) -> Content:
        """The next message; its size is drawn log-uniformly unless given."""
        name, random = f"{self.writer}/{self._count}", self._random
        self._count += 1
        headers: dict[str, bytes] = {}
        if random.random() < 0.3:
            for number in range(random.randint(1, 3)):
                headers[f"h{number}"] = random.randbytes(random.randint(0, 20))
        if tombstone:
            return Content(name, key, {**headers, NAME: name.encode()}, None)
        if size is None:
            size = int(math.exp(random.uniform(0, math.log(self._bytes_max))))
        source = _WORDS if random.random() < 0.3 else _NOISE
        start = random.randrange(1 + max(0, len(source) - size))
        return Content(name, key, headers or None, name.encode() + b"|" + source[start:][:size])


def name_of(value: bytes | None, headers: Mapping[str, bytes | None]) -> str:
    """The name in a message."""
    if value is None:
        return (headers.get(NAME) or b"?").decode(errors="replace")
    return value.split(b"|", 1)[0][:100].decode(errors="replace")


def digest(key: bytes | None, headers: Mapping[str, bytes | None], value: bytes | None) -> str:
    """The digest of all fields that a publisher set."""
    own = sorted((name, cell) for name, cell in headers.items() if not name.startswith(DEAD))
    parts = [key, value, *(part for name, cell in own for part in (name.encode(), cell))]
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(b"-" if part is None else b"%d:" % len(part))
        found.update(part or b"")
    return found.hexdigest()


def value_digest(value: bytes | None) -> str:
    """The digest of the value alone, for readers that show no more; a tombstone's is that of
    b""."""
    return hashlib.blake2b(value or b"", digest_size=8).hexdigest()
