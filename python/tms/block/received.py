"""Messages as a queue delivers them: slices of blocks, each message with its token.

    Received ─▶ slices: consecutive messages of one block, delivered equally often ─▶ messages

Invariants

* Nothing is unpacked before its first use: a worker that only counts, or forwards columns, makes no
  object for each message.
* A compressed block is unpacked once for all of its slices, and only one at a time.
* Slices stand in the order in which their messages are to be handled.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from tms.block import Columns, unpacked
from tms.model.ids import MessageId, as_id
from tms.model.message import Headers, LogMessage
from tms.model.queue import DELIVERIES_MASK, Token
from tms.model.serializer import Plain, V

_PLAIN = Plain()
_COLUMNS, _UNPACKED_BYTES = attrgetter("columns"), attrgetter("columns.unpacked_bytes")


class _DeliveredCells(NamedTuple):
    topic: str
    partition: int
    offset: int
    id: MessageId
    key: bytes | None
    value: bytes | None
    headers: Headers
    deliveries: int
    token: str
    event_time_ms: int | None = None


class Delivered(_DeliveredCells, LogMessage[V]):
    """A message that a queue has delivered `deliveries` times, without released deliveries. `token`
    names this delivery; `value` is None for a tombstone, `key` for a message without one.
    `event_time_ms` as in `Message`."""

    __slots__ = ()


class Slice(Struct, frozen=True):
    """Consecutive messages of a block that were delivered together: offsets from `offset` and ids
    from `id` on, one for each cell of `columns`. `deliveries` is the number of the delivery."""

    partition: int
    offset: int
    id: MessageId
    deliveries: int
    columns: Columns

    def token(self, epoch: int) -> Token:
        """The token of all messages of the slice."""
        return Token(self.partition, self.offset, self.deliveries, epoch, self.columns.count)

    def ids(self) -> list[MessageId]:
        """The id of each message."""
        time_ms, sequence, payload_ms, payload = self.id
        count = self.columns.count
        payloads: Iterable[int] = range(payload, payload + count) if payload_ms else repeat(0)
        cells = zip(
            repeat(time_ms), range(sequence, sequence + count), repeat(payload_ms), payloads
        )
        return list(map(as_id, cells))


class Received(Struct, frozen=True):
    """The answer to a receive: empty if no message was ready in time. `epoch` is the queue's, a
    part of every token."""

    epoch: int
    slices: tuple[Slice, ...] = ()

    def __len__(self) -> int:
        return sum(part.columns.count for part in self.slices)

    @property
    def unpacked_bytes(self) -> int:
        """Memory in bytes that unpacking its blocks takes, one at a time."""
        return max(map(_UNPACKED_BYTES, self.slices), default=0)

    def tokens(self) -> list[str]:
        """Tokens of all messages, one for each slice."""
        return [str(part.token(self.epoch)) for part in self.slices]

    def messages(self, topic: str, kind: type[Delivered[V]] = Delivered) -> list[Delivered[V]]:
        """The messages one by one, of this class. Raises `DataCorrupt`."""
        # three times as fast as calling the class, which names each field
        make: Callable[[Iterable[object]], Delivered[V]] = partial(tuple.__new__, kind)
        messages: list[Delivered[V]] = []
        parts: Iterable[Columns] = map(_COLUMNS, self.slices)
        if len(self.slices) != 1 or self.slices[0].columns.unpacked_bytes:
            parts = unpacked(parts)
        for part, columns in zip(self.slices, parts, strict=True):
            count = columns.count
            token = f"{part.partition:x}.{{:x}}.{part.deliveries:x}.{self.epoch:x}".format
            offsets = range(part.offset, part.offset + count)
            cells = zip(
                repeat(topic, count),
                repeat(part.partition),
                offsets,
                part.ids(),
                columns.keys(),
                columns.values(),
                columns.headers(),
                repeat(part.deliveries & DELIVERIES_MASK),
                map(token, offsets),
                repeat(None) if columns.times is None else columns.event_times(),
            )
            messages += map(make, cells)
        return messages
