"""The state of a view: the messages that it has applied so far. Pure state.

Invariants

* Every committed message is applied once, those of a partition in their order.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar, cast

from tms.client.cursor import Batch, Page
from tms.model.ids import MessageId
from tms.model.message import NOTHING, Message
from tms.model.position import PositionKind
from tms.model.serializer import Decoder, decoded

V = TypeVar("V")
Apply = Callable[[V | None, Message], V | None]


class ViewEntry(NamedTuple, Generic[V]):
    """The value of a key, and the id of its last message."""

    value: V
    id: MessageId


class ViewSnapshot(NamedTuple, Generic[V]):
    """A copy of a view, and up to where it goes: a new view may begin with it. Plain values, to be
    kept in any form."""

    entries: dict[bytes, ViewEntry[V]]
    positions: dict[int, tuple[MessageId, int]]  # the last id, and the offset after it
    generation: int  # of the topic


class ViewState(Generic[V]):
    """The messages that were applied so far. Not thread-safe."""

    def __init__(self, apply: Apply[V] | None, serializer: Decoder[V] | None = None) -> None:
        self.entries: dict[bytes, ViewEntry[V]] = {}
        self.read: dict[int, MessageId] = {}  # by partition, the last id that was looked at
        self.offsets: dict[int, int] = {}  # by partition, the offset after what was applied
        self.gone: dict[bytes, MessageId] | None = {}  # removed keys; None once all is read
        self.stops: dict[int, int] = {}  # by partition, the offset to stop before
        self.ended: set[int] = set()  # partitions that have come so far
        self._apply = apply
        self._serializer = serializer

    def take(self, found: Page) -> Iterator[tuple[bytes, V | None]]:
        """Apply what is new of a page; the keys that changed."""
        for batch in found.batches:
            if batch.last_id > self.read[batch.partition]:
                yield from self._take(batch)
                self.read[batch.partition] = batch.last_id
        for partition, there in found.next.items():
            if there.kind is PositionKind.AFTER and there.id is not None:
                self.read[partition] = max(self.read[partition], there.id)
        for partition, offset in found.reached.items():
            self._reach(partition, offset)

    def _take(self, batch: Batch) -> Iterator[tuple[bytes, V | None]]:
        partition = batch.partition
        stop = self.stops.get(partition)
        applied = self._newest(batch) if self._apply is None else self._folded(batch, self._apply)
        for offset, key, value, id in applied:
            if stop is not None and offset >= stop:
                break
            if key is not None:
                self._set(key, value, id)
                yield key, value
        self._reach(partition, batch.end_offset)

    def _reach(self, partition: int, offset: int) -> None:
        """Everything before an offset was looked at."""
        stop = self.stops.get(partition)
        if stop is not None and offset >= stop:
            offset = stop
            self.ended.add(partition)
        self.offsets[partition] = max(self.offsets[partition], offset)

    def _newest(self, batch: Batch) -> Iterator[tuple[int, bytes | None, V | None, MessageId]]:
        for offset, key, value, id in zip(
            batch.offsets(), batch.keys(), batch.values(), batch.ids(), strict=True
        ):
            if key is None or not self._newer(key, id):
                yield offset, None, None, id
            elif value is None or self._serializer is None:
                yield offset, key, cast(V | None, value), id
            else:
                yield offset, key, decoded(value, self._serializer, id, batch.topic), id

    def _folded(
        self, batch: Batch, apply: Apply[V]
    ) -> Iterator[tuple[int, bytes | None, V | None, MessageId]]:
        for message in batch.messages():
            value = None
            if message.key is not None:
                before = self.entries.get(message.key)
                value = apply(None if before is None else before.value, message)
            yield message.offset, message.key, value, message.id

    def _newer(self, key: bytes, id: MessageId) -> bool:
        """True if nothing newer is known of a key: it may have been in another partition when there
        were fewer."""
        entry = self.entries.get(key)
        if entry is not None:
            return entry.id <= id
        return not self.gone or self.gone.get(key, NOTHING) <= id

    def _set(self, key: bytes, value: V | None, id: MessageId) -> None:
        if value is not None:
            self.entries[key] = ViewEntry(value, id)
            return
        self.entries.pop(key, None)
        if self.gone is not None:
            self.gone[key] = id
