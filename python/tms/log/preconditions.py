"""Conditional appends: a block is stored only if no message came after the id that it expects.

    E = the id that the caller knows as the last one          (`model.message.NewBlock.expect`)

    … K  E  L  M  K │ end          with the key K: refused, K is there after E
    … K  E  L  M    │ end          with the key K: stored; without a key: refused, L is after E

Most messages are checked before the block waits for its turn; the later ones are checked when the
block gets its offset.

Invariants

* When a block gets its offset, every message before it and after E was checked.
* A message that cannot be read, because it expired or was truncated, does not count. A block that
  expects an empty log is therefore checked from the first readable message on.
* An E that is no longer readable is refused unless it is the partition's last message: messages
  after it may be gone as well.
* A message of a transaction in progress counts, because it may still commit. Messages of the
  block's own transaction do not count, nor those that will never be visible.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tms.block import Flags, decode
from tms.errors import WrongLastId
from tms.log.records import BlockKey, key_before
from tms.log.recovery import header_of
from tms.log.visibility import FateOf, fate_of_block
from tms.model.ids import MessageId
from tms.model.message import NOTHING, StoredBlock
from tms.model.preconditions import expected_text
from tms.model.snapshot import Fate


@dataclass(slots=True)
class Precondition:
    """The condition of one block: no message after `after` has one of its `keys` or, without keys,
    there is no message after it at all. The log was checked up to the key `checked`."""

    keys: frozenset[bytes]
    after: MessageId
    pointer: int  # of its own transaction, 0: none
    fate_of: FateOf
    resolve: Callable[[StoredBlock], StoredBlock]
    checked: BlockKey
    refusal: WrongLastId | None = None  # for the caller, unless the block is a repetition

    def pass_over(self, start: BlockKey) -> None:
        """Ignore messages before `start`, the first readable key. An expected id is not passed
        over: `refuse_to_tell` handles it."""
        if self.after == NOTHING:
            self.checked = max(self.checked, key_before(start))

    def look(self, blocks: Iterable[StoredBlock]) -> None:
        """Check blocks of the partition, in order, up to the first one with a message that violates
        the condition."""
        for stored in blocks:
            last = (stored.time_ms, stored.last_sequence)
            if self.refusal is None and last > self.checked:
                unexpected = self._last(stored)
                if unexpected is not None:
                    self.refusal = self._refused(stored.partition, unexpected)
                self.checked = last

    def refuse_to_tell(self, partition: int) -> None:
        """Refuse the block: messages after `after` may be gone already."""
        self.refusal = WrongLastId(
            f"Partition {partition} no longer keeps the messages after "
            f"{expected_text(self.after)}, so `expect` cannot be checked. Nothing was stored; "
            "expect a newer id, such as the one that a view has read to.",
            partition=partition,
            last="",
            expected=expected_text(self.after),
        )

    def _last(self, stored: StoredBlock) -> MessageId | None:
        """The last of a block's messages that violates the condition."""
        header = header_of(stored)
        own = header.flags & Flags.TRANSACTIONAL and header.write_pointer == self.pointer != 0
        if own or fate_of_block(header, self.fate_of) is Fate.SKIPPED:
            return None
        if not self.keys:
            return MessageId(stored.time_ms, stored.last_sequence)
        first = stored.last_sequence - header.count + 1
        columns = decode(self.resolve(stored).block)
        keys, index = columns.keys(), columns.index
        for at in range(len(keys) - 1, -1, -1):
            id = MessageId(stored.time_ms, first + index[at])
            if id[:2] <= self.checked:
                return None
            if keys[at] in self.keys:
                return id
        return None

    def _refused(self, partition: int, last: MessageId) -> WrongLastId:
        of = "of this key " if self.keys else ""
        return WrongLastId(
            f"Partition {partition} has the message {last} {of}after {expected_text(self.after)}, "
            "which was expected to be the last. Nothing was stored; read on to the newest message "
            "and decide again.",
            partition=partition,
            last=str(last),
            expected=expected_text(self.after),
        )
