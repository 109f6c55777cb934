"""Changes of the delayed messages of a topic: additions and cancellations. A group of changes is
decided from the stored rows, and answered once it is written.

Invariants

* A later change of a group sees the earlier ones.
* A repeated request gets the first decision, as long as that is remembered.
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
    """The delayed messages of a topic, as a change sees them."""

    stored: StoredDelayQueue

    def is_taken(self, id: DelayedId) -> bool:
        """True if the scheduler has taken this entry."""
        ...

    def note_cancelled(self, id: DelayedId, together: int) -> None:
        """Note a cancelled message of an entry with `together` messages."""
        ...


@dataclass(slots=True)
class Addition:
    """Blocks to be delayed."""

    blocks: Sequence[CheckedBlock]
    due: Due
    durability: Durability
    token: bytes = b""
    digest: str = ""
    answer: Pending[list[Deferred]] = field(default_factory=lambda: Pending(1))

    @property
    def size(self) -> int:
        """About how many bytes the change writes."""
        return sum(len(block.block) for block in self.blocks)

    def decide(self, to: ChangeDecider, now_ms: int, writes: RowWrites) -> Callable[[], None]:
        """Assign an id to each block; a repeated request gets the ids of the first one."""
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
        """Answer with an error: the blocks were not stored, or the outcome is unknown."""
        self.answer.fail(1, error)


@dataclass(slots=True)
class Cancellation:
    """A message to be cancelled. The answer is None while the scheduler has taken its entry."""

    id: DelayedId
    durability: Durability
    answer: Pending[tuple[bool | None]] = field(default_factory=lambda: Pending(1))

    @property
    def size(self) -> int:
        """About how many bytes the change writes."""
        return _MARK_BYTES

    def decide(self, to: ChangeDecider, now_ms: int, writes: RowWrites) -> Callable[[], None]:
        """Mark the message as cancelled if it exists and was not moved."""
        cancelled = self._decide(to, writes)
        return lambda: self.answer.settle(0, (cancelled,))

    def _decide(self, to: ChangeDecider, writes: RowWrites) -> bool | None:
        stored, key = to.stored, cancelled_key(self.id)
        if key in writes.marks:
            return True
        entry, epoch = stored.holding(self.id), stored.mark(self.id)
        if entry is not None and to.is_taken(entry.id):
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
        """Answer with an error: the message was not cancelled, or the outcome is unknown."""
        self.answer.fail(1, error)


DelayedChange = Addition | Cancellation  # a change of a group
