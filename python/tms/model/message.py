"""Messages and blocks on their way into and out of a partition log: values that engine, wire and
client share.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, cast

import msgspec

from tms.model.ids import MessageId, utc
from tms.model.position import Position
from tms.model.serializer import Plain, ReadableValue, V

Buffer = bytes | bytearray | memoryview
Headers = Mapping[str, bytes | None]
MESSAGES_MAX = 65_536  # of a block
KEY_BIT = 1 << 63  # of the producer ids that stand for idempotency keys

NOTHING = MessageId(0, 0)
_PLAIN = Plain()


class _Identified(Protocol):
    @property
    def id(self) -> MessageId: ...


class LogMessage(ReadableValue, Generic[V]):
    """A base of the classes of messages that are in the log."""

    __slots__ = ()

    @property
    def decoded(self) -> V:
        """The object in the value, read by the serializer of the consumer or queue that the
        message comes from; without a serializer the value itself. Raises like `decode`."""
        return cast(V, self.decode(_PLAIN))  # type: ignore[misc]

    @property
    def timestamp_ms(self: _Identified) -> int:
        """Publish time, in ms since 1970-01-01T00:00Z."""
        return self.id.time_ms

    @property
    def timestamp(self: _Identified) -> datetime:
        """Publish time, in UTC."""
        return utc(self.id.time_ms)


class _MessageCells(NamedTuple):
    topic: str
    partition: int
    offset: int
    id: MessageId
    key: bytes | None
    value: bytes | None
    headers: Headers
    event_time_ms: int | None = None


class Message(_MessageCells, LogMessage[V]):
    """A message as a consumer gets it. `value` is None for a tombstone, `key` for a message without
    one. `event_time_ms` is the time that its publisher gave it, in ms since 1970-01-01T00:00Z;
    None: none."""

    __slots__ = ()


class NewBlock(msgspec.Struct, frozen=True):
    """A producer's block for a partition; the service fills in flags and base offset, the CRC stays
    the producer's.

    With `expect` it is stored only if no message came after this id: none with one of the block's
    keys or, if its messages have no keys, none at all in the partition. `NOTHING`: the log must
    have none at all.
    """

    partition: int
    block: Buffer
    expect: MessageId | None = None


class StoredBlock(msgspec.Struct, frozen=True):
    """A stored block, with the id of its last message. A block that a transaction staged also has
    the payload time and sequence of its first message."""

    partition: int
    time_ms: int
    last_sequence: int
    block: Buffer
    payload: tuple[int, int] = (0, 0)


class Staged(NamedTuple):
    """A staged block of a transaction: its key without the pointer, and the fields of its
    header."""

    time_ms: int
    last_sequence: int
    count: int  # type: ignore[assignment]  # of messages, not tuple's method
    producer_id: int
    producer_sequence: int


class Appended(msgspec.Struct, frozen=True):
    """The place of a stored block: its messages have `count` consecutive sequences from `sequence`
    and offsets from `base_offset`.

    With durability `none` the block is acknowledged before it has a place: `time_ms`, `sequence`
    and `base_offset` are -1.
    """

    partition: int
    time_ms: int
    sequence: int
    count: int
    base_offset: int
    duplicate: bool = False

    def ids(self) -> list[MessageId]:
        """The ids of the messages, in order; empty with durability `none`."""
        if self.time_ms < 0:
            return []
        return [MessageId(self.time_ms, self.sequence + i) for i in range(self.count)]


class PartitionPosition(NamedTuple):
    """One partition of a fetch."""

    partition: int
    position: Position


def in_turn(positions: Sequence[PartitionPosition], turn: int) -> list[PartitionPosition]:
    """The positions, beginning with another partition each turn: an answer is filled in their
    order, so that otherwise the first one with much to read would delay all others."""
    first = turn % max(1, len(positions))
    return [*positions[first:], *positions[:first]]


class Readable(msgspec.Struct, frozen=True, array_like=True):
    """The readable messages of a partition: those from the id of time and sequence `floor` on,
    without those that rewrites removed. `rewrites` counts these."""

    floor: tuple[int, int]
    rewrites: int


class Holder(NamedTuple):
    """The open transaction that a reader waits for, by its write pointer. A transaction that was
    begun elsewhere is not `issued` and ends by a roll back; `roll_backs` counts those of the
    partition when it was read."""

    pointer: int
    issued: bool
    roll_backs: int = 0


class Fetched(msgspec.Struct, frozen=True):
    """The answer to a fetch.

    `blocks` are in the order of the requested partitions and, within one, in message order; the
    first block of a partition may begin before the requested position, and the reader drops those
    messages. `next` is the position to fetch next, by partition (also if nothing was found, so that
    `latest` is resolved once). `ends` are the offsets after the last message, by partition; offsets
    give the lag. `reached` are the offsets up to which everything from the position on was read, by
    partition: no blocks, or none that the reader wants, do not mean that there are no more. `held`
    are the open transactions that reading waits for, by partition.
    """

    blocks: list[StoredBlock]
    next: dict[int, Position]
    ends: dict[int, int]
    reached: dict[int, int]
    held: dict[int, Holder] = {}

    @property
    def ended(self) -> bool:
        """True if this answer reached the end of every partition."""
        return all(self.reached[partition] >= end for partition, end in self.ends.items())
