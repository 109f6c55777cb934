"""The rows of the map of a topic's delayed messages. Big-endian, unsigned.

    key      0  1  d                        an entry: messages of one partition that are due at once
             1  8  due, ms
             9  8  sequence of its first message
    value    0  1  version (1)
             1  1  zero
             2  2  partition
             4  …  a block; its producer is zero

    key      0  1  x                        a message that was cancelled
             1  8  due, ms
             9  8  its sequence
    value    0  8  epoch of the owner that cancelled it

    key      0  1  a                        a request, so that a repeated one is not stored
             1  8  when, ms
             9 16  its token
    value       …  JSON: due, sequence of the first message, entries, digest, first of its group,
                   the decision of a later owner

    key      0  1  h                        the owner
    value       …  JSON: epoch, reserved sequences, settled groups

    key      0  1  n                        the number of waiting messages
    value       …  JSON: a position, the number at that position

The scheduler's position is that of the group `system:delayed` in partition 0, an id whose 20 bytes
are read as

    0   8  due of the last entry that was moved
    8   6  its sequence
    14  6  entries with a lower sequence that were due earlier were moved, none from here on

Invariants

* A sequence is assigned once in a topic's generation, so an entry stored after a move never counts
  as moved, whenever it is due: a clock that goes back does no harm.
* Requests sort before entries, so a write that is cut off rather has them than the entries.
"""

import struct
from collections.abc import Container
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, Self

import msgspec

from tms.errors import DataCorrupt
from tms.model.delayed import DelayedId
from tms.model.ids import MessageId
from tms.model.message import Buffer
from tms.model.position import Position

GROUP = "system:delayed"
HEAD, TALLY = b"h", b"n"
_KEY, _KEY_BYTES = struct.Struct(">cQQ"), 17
_REQUEST = struct.Struct(">cQ16s")
_START = struct.Struct(">BBH")
_READ = struct.Struct(">BBH8xI")  # with the number of messages in the block's header
_MOVED = struct.Struct(">Q6s6s")
_PRODUCER = slice(32, 44)  # of a block's header
_VERSION = 1


class Moved(NamedTuple):
    """The set of moved entries: those up to (`due_ms`, `last`) with a sequence below `before`."""

    due_ms: int = 0
    last: int = 0
    before: int = 0

    def covers(self, id: DelayedId) -> bool:
        """True if this entry was moved."""
        return id.sequence < self.before and id <= (self.due_ms, self.last)

    def position(self) -> Position:
        """The position that encodes this set."""
        last, before = self.last.to_bytes(6, "big"), self.before.to_bytes(6, "big")
        return Position.at(MessageId.from_bytes(_MOVED.pack(self.due_ms, last, before)))

    @classmethod
    def of(cls, position: Position | None) -> Self:
        """The set that a position encodes."""
        if position is None or position.id is None:
            return cls()
        due_ms, last, before = _MOVED.unpack(bytes(position.id))
        return cls(due_ms, int.from_bytes(last, "big"), int.from_bytes(before, "big"))


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The owner that raised the epoch last, which alone may write, and assigns sequences up to
    `reserved`. `settled` are half-open ranges of groups: of their requests only those count that a
    later owner found whole; the others were stored too late."""

    epoch: int
    reserved: int
    settled: list[tuple[int, int]] = []

    def mark(self) -> bytes:
        """The value of the mark of a message that this owner cancels."""
        return self.epoch.to_bytes(8, "big")


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """The number of waiting messages when the scheduler is at a position."""

    moved: tuple[int, int, int]
    waiting: int


class RequestState(IntEnum):
    """The final decision of a later owner about a request."""

    NONE = 0
    WHOLE = 1
    CANCELLED = 2  # it was not whole


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A stored request: entries with these partitions and counts, one after another. `group` is the
    first sequence of all requests that were written with it."""

    due_ms: int
    sequence: int
    entries: list[tuple[int, int]]
    digest: str
    group: int
    state: RequestState = RequestState.NONE

    def ids(self) -> list[DelayedId]:
        """The ids of the entries, each that of its first message."""
        ids, sequence = [], self.sequence
        for _, count in self.entries:
            ids.append(DelayedId(self.due_ms, sequence))
            sequence += count
        return ids


class DelayedEntry(NamedTuple):
    """A stored entry: a block of `messages` messages."""

    id: DelayedId
    partition: int
    messages: int
    block: memoryview

    def id_at(self, place: int) -> DelayedId:
        """The id of a message by its index."""
        return DelayedId(self.id.due_ms, self.id.sequence + place)

    @property
    def end(self) -> DelayedId:
        """The smallest id after its messages."""
        return self.id_at(self.messages)

    def places_of(self, ids: Container[DelayedId]) -> set[int]:
        """The indexes of its messages with one of these ids."""
        return {at for at in range(self.messages if ids else 0) if self.id_at(at) in ids}


def entry_key(id: DelayedId) -> bytes:
    """The key of an entry."""
    return _KEY.pack(b"d", id.due_ms, id.sequence)


def cancelled_key(id: DelayedId) -> bytes:
    """The key of the mark of a cancelled message."""
    return _KEY.pack(b"x", id.due_ms, id.sequence)


def request_key(made_ms: int, token: bytes) -> bytes:
    """The key of a request."""
    return _REQUEST.pack(b"a", made_ms, token)


def split_request_key(key: bytes) -> tuple[int, bytes]:
    """The time at which a request was made, and its token."""
    _, made_ms, token = _REQUEST.unpack(key)
    return made_ms, token


def id_of(key: bytes) -> DelayedId:
    """The id in the key of an entry or a mark. Raises `DataCorrupt`."""
    if len(key) != _KEY_BYTES:
        raise DataCorrupt(f"The key {key.hex()} of a delayed message is damaged. Run `tms fsck`.")
    return DelayedId(*_KEY.unpack(key)[1:])


def all_of(kind: bytes) -> tuple[bytes, bytes]:
    """The half-open range of all keys of a kind."""
    return kind, bytes((kind[0] + 1,))


def entry_value(partition: int, block: Buffer) -> bytes:
    """The value of an entry."""
    whole = bytearray(_START.pack(_VERSION, 0, partition)) + block
    at = _START.size
    whole[at + _PRODUCER.start : at + _PRODUCER.stop] = bytes(_PRODUCER.stop - _PRODUCER.start)
    return bytes(whole)


def entry_of(key: bytes, value: bytes) -> DelayedEntry:
    """A stored entry. Raises `DataCorrupt`."""
    if len(value) < _READ.size or value[0] != _VERSION:
        raise DataCorrupt(f"The delayed message {key.hex()} is damaged. Run `tms fsck`.")
    _, _, partition, messages = _READ.unpack_from(value)
    return DelayedEntry(id_of(key), partition, messages, memoryview(value)[_START.size :])


def hashed(token: str) -> bytes:
    """The digest of a token in a key."""
    return blake2b(token.encode(), digest_size=16, person=b"tms-delayed").digest()
