"""What transactions store before they commit: messages that hold readers back, staged messages that
nobody sees, and taking both back.

Invariants

* A message with a pointer that was given here is stored only while that is in progress; one that
  comes too late is rolled back at once.
* It is synced, whatever the topic says, because the commit may be.
* Whether everything that a transaction stored is known is never guessed: after a start, and after
  a failed write, it is not.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from tms.clock import Clock
from tms.errors import Invalid, TMSError, TransactionEnded
from tms.log.pending import PendingAppend
from tms.log.writer import Stamp
from tms.model.block import Flags
from tms.model.log import Appended, NewBlock
from tms.model.topic import Durability, TopicName
from tms.topic.partitions import PartitionLog, Partitions
from tms.topic.publishing import Publisher
from tms.topic.registry import Registry
from tms.tx.manager import WRITE_TIMEOUT_S, TransactionManager

_SYNCED = Durability.SYNCED


class Range(NamedTuple):
    """Where a transaction's messages stand: keys of the first and the last, both inclusive."""

    topic: TopicName
    partition: int
    first: tuple[int, int]
    last: tuple[int, int]
    write_pointer: int

    @classmethod
    def of(cls, topic: TopicName, place: Appended, write_pointer: int) -> "Range":
        """The range of one block."""
        last = (place.time_ms, place.sequence + place.count - 1)
        return cls(topic, place.partition, (place.time_ms, place.sequence), last, write_pointer)


class _Stored:
    """What an open transaction has stored so far."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.staged: set[tuple[TopicName, int, int]] = set()  # topic, partition, pointer
        self.certain = True


class EarlyMessages:
    """Messages that are stored before their commit. Thread-safe."""

    def __init__(
        self,
        manager: TransactionManager,
        registry: Registry,
        partitions: Partitions,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._partitions = partitions
        self._publisher = publisher
        self._clock = clock
        self._lock = threading.Lock()
        self._stored: dict[int, _Stored] = {}  # by transactions given here that may be aborted
        self._referred: dict[tuple[int, int, int], int] = {}  # uid, partition, pointer → blocks
        self._first_pointer = manager.state.next_pointer(clock.now_ms())

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int
    ) -> PendingAppend:
        """Store blocks in the log: readers of committed messages wait there."""
        stamp = self._stamp(write_pointer)
        pending = self._publisher.submit(name, blocks, _SYNCED, _SYNCED, stamp)
        self._follow(name, stamp, pending)
        return pending

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None:
        """Store blocks where nobody sees them, until `refer` or a commit names them."""
        stamp = self._stamp(write_pointer)
        name.require_writable()
        checked = self._publisher.check(name, blocks)
        if stamp.flags & Flags.ISSUED:
            with self._lock:
                staged = self._of(write_pointer).staged
                staged.update((name, new.partition, write_pointer) for new in blocks)
        for partition in {new.partition for new in blocks}:
            some = [
                (new.block, header)
                for new, header in zip(blocks, checked, strict=True)
                if new.partition == partition
            ]
            self._log(name, partition).staged.add(some, write_pointer, self._clock.now_ms())

    def references(self, name: TopicName, partition: int, write_pointer: int) -> list[NewBlock]:
        """Blocks that name what a transaction staged in a partition, in order."""
        staged = self._log(name, partition).staged.of(write_pointer)
        return [NewBlock(partition, one.reference()) for one in staged]

    def refer(self, name: TopicName, partition: int, write_pointer: int) -> list[Appended]:
        """Store references to what was staged since the last time; readers of committed messages
        wait there."""
        stamp = self._stamp(write_pointer)
        place = (self._registry.find(name).uid, partition, write_pointer)
        blocks = self.references(name, partition, write_pointer)
        new = blocks[self._referred.get(place, 0) :]
        if not new:
            return []
        named = Stamp(stamp.flags | Flags.STAGED, write_pointer)
        pending = self._publisher.submit(name, new, _SYNCED, _SYNCED, named, internal=True)
        self._follow(name, stamp, pending)
        appended = pending.result(WRITE_TIMEOUT_S)
        with self._lock:
            self._referred[place] = len(blocks)
        return appended

    def roll_back(self, range: Range) -> int:
        """Take back the messages of a transaction in a range, synced; how many blocks there
        were."""
        state = self._log(range.topic, range.partition).state
        with state.changing():
            state.load()
            count = state.roll_back(range.first, range.last, range.write_pointer)
        self._manager.rolled_back(range.write_pointer)
        return count

    def is_certain(self, id: int) -> bool:
        """Whether everything is known that a transaction stored before its commit."""
        stored = self._stored.get(id)
        return id >= self._first_pointer if stored is None else stored.certain

    def is_clean(self, id: int) -> bool:
        """Whether it certainly stored nothing in the log."""
        stored = self._stored.get(id)
        return self.is_certain(id) and (stored is None or not stored.ranges)

    def take_back(self, id: int) -> bool:
        """Roll back what a transaction stored, which can no longer commit; whether that was
        everything."""
        stored = self._stored.get(id)
        if stored is None:
            return self.is_certain(id)
        try:
            for range in stored.ranges:
                self.roll_back(range)
            for name, partition, pointer in stored.staged:
                self._log(name, partition).staged.drop(pointer)
        except TMSError:
            return False
        return self.is_certain(id)

    def forget(self, id: int) -> None:
        """A transaction has ended, and nothing of it is to be taken back."""
        with self._lock:
            stored = self._stored.pop(id, None)
            for name, partition, pointer in stored.staged if stored is not None else ():
                record = self._registry.peek(name)
                if record is not None:
                    self._referred.pop((record.uid, partition, pointer), None)

    def _follow(self, name: TopicName, stamp: Stamp, pending: PendingAppend) -> None:
        if stamp.flags & Flags.ISSUED:
            pending.add_done_callback(lambda: self._note(name, stamp.write_pointer, pending))

    def _note(self, name: TopicName, pointer: int, pending: PendingAppend) -> None:
        """Remember what was stored; what came after the end of its transaction goes at once."""
        ranges: list[Range] = []
        try:
            ranges = [Range.of(name, place, pointer) for place in pending.result(0)]
        except TMSError:
            with self._lock:
                self._of(pointer).certain = False
        with self._lock:
            self._of(pointer).ranges += ranges
        if not self._manager.is_open(pointer) and not self._manager.is_committed(pointer):
            for range in ranges:
                self.roll_back(range)

    def _of(self, pointer: int) -> _Stored:
        id = self._manager.state.in_progress.get(pointer, pointer)
        return self._stored.setdefault(id, _Stored())

    def _stamp(self, write_pointer: int) -> Stamp:
        if not 0 < write_pointer < 2**63:
            raise Invalid("A write pointer is a positive number of 63 bits.")
        if self._manager.is_open(write_pointer):
            return Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, write_pointer)
        if self._manager.knows(write_pointer):
            raise TransactionEnded(
                f"The transaction {write_pointer} has ended; nothing can be published in it.",
                transaction=write_pointer,
            )
        return Stamp(Flags.TRANSACTIONAL, write_pointer)

    def _log(self, name: TopicName, partition: int) -> PartitionLog:
        return self._partitions.get(name, self._registry.find(name), partition)
