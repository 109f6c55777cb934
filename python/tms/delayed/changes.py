"""What is asked of the delayed messages of a topic: to add some, or to cancel one. Each is decided
from what is stored, together with all that came with it, and answered once it is written.

Invariants

* What is decided later in a group sees what was decided before in it.
* A repetition is decided like the first time, as long as that is remembered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tms.delayed.entries import Request, cancelled_key, entry_key, entry_value, request_key
from tms.delayed.stored_queue import RowWrites, StoredDelayQueue
from tms.errors import Conflict, TMSError, TooLarge
from tms.log.pending import Pending
from tms.log.records import encode
from tms.model.delayed import Deferred, DelayedId, Due
from tms.model.message import Buffer
from tms.model.topic import Durability, strongest

_MARK_BYTES = 32


class CheckedBlock(NamedTuple):
    """A checked block to be stored."""

    partition: int
    messages: int
    block: Buffer


class ChangeDecider(Protocol):
    """Who decides: the topic's delayed messages."""

    stored: StoredDelayQueue

    def lends(self, id: DelayedId) -> bool:
        """Whether the scheduler has this entry."""
        ...

    def note_cancelled(self, id: DelayedId, together: int) -> None:
        """A message is cancelled, of an entry of so many."""
        ...


@dataclass(slots=True)
class Addition:
    """Blocks that are to wait."""

    blocks: Sequence[CheckedBlock]
    due: Due
    durability: Durability
    token: bytes = b""
    digest: str = ""
    answer: Pending[list[Deferred]] = field(default_factory=lambda: Pending(1))

    @property
    def size(self) -> int:
        """About how many bytes are to be written."""
        return sum(len(block.block) for block in self.blocks)

    def decide(self, to: ChangeDecider, now_ms: int, writes: RowWrites) -> Callable[[], None]:
        """Give the request its place, or the place that it has already."""
        stored = to.stored
        known = stored.requests.find(self.token, self.digest) if self.token else None
        if known is None:
            known = self._place(stored, now_ms, writes)
        entries, cancelled = known.entries, known.ids()
        placed = [
            Deferred(partition, id.due_ms, id.sequence, count)
            for (partition, count), id in zip(entries, cancelled, strict=True)
        ]
        return lambda: self.answer.settle(0, placed)

    def _place(self, stored: StoredDelayQueue, now_ms: int, writes: RowWrites) -> Request:
        due_ms = self.due.after(now_ms)
        values = [entry_value(block.partition, block.block) for block in self.blocks]
        if max(map(len, values)) > stored.value_bytes_max:
            raise TooLarge(
                f"Delayed messages are stored in at most {stored.value_bytes_max} bytes together, "
                f"these take {max(map(len, values))}. Publish fewer at once."
            )
        messages = sum(block.messages for block in self.blocks)
        first = stored.sequences(messages)
        group = writes.first_sequence = min(writes.first_sequence, first)
        request = Request(
            due_ms,
            first,
            [(block.partition, block.messages) for block in self.blocks],
            self.digest,
            group,
        )
        for id, value in zip(request.ids(), values, strict=True):
            writes.rows.append((entry_key(id), value))
        if self.token:
            raw = encode(request)
            stored.requests.add(now_ms, self.token, raw)
            writes.requests.append((request_key(now_ms, self.token), raw))
        id = DelayedId(due_ms, first)
        writes.first = id if writes.first is None else min(writes.first, id)
        writes.waiting += messages
        writes.durability = strongest(writes.durability, self.durability)
        return request

    def fail(self, error: TMSError) -> None:
        """It was not stored, or nobody knows."""
        self.answer.fail(1, error)


@dataclass(slots=True)
class Cancellation:
    """A message that is not to be delivered. The answer is None while it is lent."""

    id: DelayedId
    durability: Durability
    answer: Pending[tuple[bool | None]] = field(default_factory=lambda: Pending(1))

    @property
    def size(self) -> int:
        """About how many bytes are to be written."""
        return _MARK_BYTES

    def decide(self, to: ChangeDecider, now_ms: int, writes: RowWrites) -> Callable[[], None]:
        """Mark it, if it is there and was not moved."""
        cancelled = self._decide(to, writes)
        return lambda: self.answer.settle(0, (cancelled,))

    def _decide(self, to: ChangeDecider, writes: RowWrites) -> bool | None:
        stored, key = to.stored, cancelled_key(self.id)
        if key in writes.marks:
            return True
        entry, epoch = stored.holding(self.id), stored.mark(self.id)
        if entry is not None and to.lends(entry.id):
            return None
        late = entry is None or stored.moved.covers(entry.id)
        if epoch is not None:
            if late and stored.shared and epoch != stored.head.epoch:
                raise Conflict(
                    f"Whether {self.id} was cancelled before it was delivered is not known any "
                    "more: another process has taken over since. Look into the topic."
                )
            return True
        if entry is None or late:
            return False
        writes.rows.append((key, stored.head.mark()))
        writes.marks.add(key)
        writes.waiting -= 1
        writes.durability = strongest(writes.durability, self.durability)
        to.note_cancelled(self.id, entry.messages)
        return True

    def fail(self, error: TMSError) -> None:
        """It was not cancelled, or nobody knows."""
        self.answer.fail(1, error)


DelayedChange = Addition | Cancellation  # what waits to be decided
