"""Messages that transactions store before they commit: those that hold readers back, staged ones
that no reader sees, and the roll-back of both.

Invariants

* A message with a pointer that was issued here is stored only while the pointer is in progress, and
  its transaction ends only when nothing is being stored in it (`tms.transactions.writes`).
* The message is synced, whatever the topic says, because the commit may be.
* No message stays under a barred pointer, which was issued elsewhere: an append that was under way
  when the pointer was barred is rolled back when it is done.
* After a start, and after a failed write, the ranges of a transaction count as not all known.
* A thread that owns a partition never waits for the journal of transactions.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self

from tms.block import Flags
from tms.errors import Invalid, TimedOut, TMSError, TopicNotFound, TransactionEnded
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.log.staging import reference_to
from tms.model.message import Appended, NewBlock, Staged
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import Durability, TopicName
from tms.model.transaction import HeldPartition, TopicStaged
from tms.topics.topics import Topics
from tms.transactions.edits import Stored
from tms.transactions.manager import WRITE_TIMEOUT_S, TransactionManager
from tms.transactions.repeating import RepeatedAppend
from tms.transactions.writes import UncommittedWrites, Writes

_SYNCED = Durability.SYNCED
AHEAD_MS_MAX = 3_600_000  # of a pointer that was given elsewhere
REFERRED_MAX = 100_000
CLIENTS_REMEMBERED = 10_000
StagedPartition = tuple[TopicName, int, int]  # topic, partition, pointer


class StoredRange(NamedTuple):
    """A range of a transaction's messages: the keys of the first and the last, both inclusive."""

    topic: TopicName
    partition: int
    first: tuple[int, int]
    last: tuple[int, int]
    write_pointer: int

    @classmethod
    def of(cls, topic: TopicName, place: Appended, write_pointer: int) -> "StoredRange":
        """The range of one block."""
        last = (place.time_ms, place.sequence + place.count - 1)
        return cls(topic, place.partition, (place.time_ms, place.sequence), last, write_pointer)


_Referring = tuple[int, int, int]  # topic's uid, partition, pointer


class _Referred(NamedTuple):
    """The number of staged blocks that are referred to, and the places of the last references."""

    blocks: int
    places: list[Appended]


class Unnamed(NamedTuple):
    """Staged blocks of a partition that no commit will publish."""

    topic: TopicName
    partition: int
    pointer: int
    blocks: list[Staged]


class UncommittedMessages:
    """Messages that are stored before their commit. Thread-safe."""

    def __init__(self, manager: TransactionManager, topics: Topics) -> None:
        self._manager = manager
        self._topics = topics
        self._registry = topics.registry
        self._publisher = topics.publisher
        self._clock = topics.clock
        self._lock = threading.Lock()  # guards what follows
        self._staged: dict[int, set[StagedPartition]] = {}  # by transactions given here
        self._referred: dict[_Referring, _Referred] = {}
        self._referring: set[_Referring] = set()
        self._refers = threading.Condition(self._lock)
        self.clients: OrderedDict[int, str] = OrderedDict()  # by pointers given elsewhere
        self._first = manager.state.next_pointer(topics.clock.now_ms())  # that is given from now on
        self.writes: UncommittedWrites[StoredRange] = UncommittedWrites(self._first)

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        write_pointer: int,
        client: str = "",
        repeats: bool = False,
    ) -> PendingAppend:
        """Store blocks in the log: readers of committed messages wait there. With `repeats` they
        are of a producer, and go to another owner of their partition if the first one goes."""
        with self._storing(write_pointer) as storing:
            if storing.id is None:
                self._note_foreign(name, write_pointer, client)

            def store(blocks: Sequence[NewBlock]) -> PendingAppend:
                return self._publisher.submit(name, blocks, _SYNCED, _SYNCED, storing.stamp())

            if repeats and self._topics.partitions.are_of_several:
                pending = RepeatedAppend(self._clock, blocks, store).begin()
            else:
                pending = store(blocks)
            storing.follow(name, pending)
        return pending

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None:
        """Store blocks out of sight, until `refer` or a commit names them."""
        with self._storing(write_pointer) as storing:
            name.require_writable()
            self._publisher.check(name, blocks)
            if storing.id is not None:
                with self._lock:
                    staged = self._staged.setdefault(storing.id, set())
                    staged.update((name, new.partition, write_pointer) for new in blocks)
            for partition in dict.fromkeys(new.partition for new in blocks):
                some = [new for new in blocks if new.partition == partition]
                port, flags = self._topics.port(name, partition), storing.stamp().flags
                port.stage(name, some, flags, write_pointer)

    def references(
        self, name: TopicName, partition: int, write_pointer: int, producers: Sequence[int] = ()
    ) -> list[NewBlock]:
        """Blocks that name what a transaction staged in a partition, in order; of these producers,
        if some are given."""
        port, named = self._topics.port(name, partition), frozenset(producers)
        staged = port.staged(name, partition, write_pointer)
        return [
            NewBlock(partition, reference_to(one))
            for one in staged
            if not named or one.producer_id in named
        ]

    def refer(
        self, name: TopicName, partition: int, write_pointer: int, client: str = ""
    ) -> list[Appended]:
        """Store references to the blocks that were staged since the last time; readers of committed
        messages wait there. One caller at a time does that; a repetition returns the places of the
        first."""
        place = (self._registry.find(name).uid, partition, write_pointer)
        with self._alone(place), self._storing(write_pointer) as storing:
            before = self._referred.get(place) or self._referred_before(name, partition, storing)
            blocks = self.references(name, partition, write_pointer)
            new = blocks[before.blocks :]
            if not new:
                return before.places
            if storing.id is None:
                self._note_foreign(name, write_pointer, client)
            stamp = storing.stamp(Flags.STAGED)
            pending = self._publisher.submit(name, new, _SYNCED, _SYNCED, stamp, internal=True)
            storing.follow(name, pending)
            places = pending.result(WRITE_TIMEOUT_S)
            self._referred[place] = _Referred(len(blocks), places)
            if len(self._referred) > REFERRED_MAX:
                del self._referred[next(iter(self._referred))]
        return places

    def _referred_before(self, name: TopicName, partition: int, storing: "_Storing") -> _Referred:
        """The references that an earlier process stored, from the log; none of a transaction that
        began since the start."""
        pointer, ahead = storing.pointer, AHEAD_MS_MAX * POINTERS_PER_MS
        if pointer >= self._first + (0 if storing.id else ahead):
            return _Referred(0, [])
        from_ms = max(0, pointer - ahead) // POINTERS_PER_MS
        port = self._topics.port(name, partition)
        places = port.referred(name, partition, pointer, from_ms)
        return _Referred(len(places), places)

    @contextlib.contextmanager
    def _alone(self, place: "_Referring") -> Iterator[None]:
        """Refer to the staged blocks of a transaction in a partition, with no other caller. Raises
        `TimedOut`."""
        with self._refers:
            if not self._refers.wait_for(lambda: place not in self._referring, WRITE_TIMEOUT_S):
                raise TimedOut(
                    f"The transaction {place[2]} is still being published in. Try again."
                )
            self._referring.add(place)
        try:
            yield
        finally:
            with self._refers:
                self._referring.discard(place)
                self._refers.notify_all()

    def roll_back(self, range: StoredRange) -> int:
        """Take back the messages of a transaction in a range, synced; how many blocks there
        were. Raises `TransactionEnded` for one that was committed here: it stays."""
        _check_pointer(range.write_pointer)
        topic, partition, first, last, pointer = range
        port = self._topics.port(topic, partition)
        return port.roll_back(topic, partition, pointer, first, last)

    def invalidate_elsewhere(self, pointer: int) -> None:
        """Roll back everything that a transaction begun elsewhere stored, and let it store nothing
        more. Does nothing if it stored nothing. May be repeated after a failure."""
        if any(self._stored_elsewhere(pointer)):
            self._manager.bar(pointer)
            for stored in self._stored_elsewhere(pointer):
                self.roll_back(stored)

    def _stored_elsewhere(self, pointer: int) -> Iterator[StoredRange]:
        """The blocks of a transaction begun elsewhere that are not rolled back."""
        from_ms = max(0, pointer // POINTERS_PER_MS - AHEAD_MS_MAX)
        places = (
            (name, partition)
            for name, record in self._registry.all()
            for partition in range(record.partitions if record.has_foreign else 0)
        )
        for name, partition in places:
            with contextlib.suppress(TopicNotFound):
                port = self._topics.port(name, partition)
                for place in port.referred(name, partition, pointer, from_ms, elsewhere=True):
                    yield StoredRange.of(name, place, pointer)

    def held(self) -> list[HeldPartition]:
        """The partitions that transactions begun elsewhere hold back at this moment."""
        held = []
        for name in self._registry.foreign():
            with contextlib.suppress(TopicNotFound):
                held += self._topics.fetcher.find_held(name)
        return held

    def _note_foreign(self, name: TopicName, pointer: int, client: str) -> None:
        self._registry.note_foreign(name)
        if client:
            with self._lock:
                self.clients[pointer] = client
                if len(self.clients) > CLIENTS_REMEMBERED:
                    self.clients.popitem(last=False)

    def take_back(self, writes: Writes[StoredRange]) -> bool:
        """Roll back what a transaction stored, which can no longer commit; whether nothing of it is
        left."""
        for range_ in writes.ranges:
            try:
                self.roll_back(range_)
            except TopicNotFound:
                continue
            except TMSError:
                return False
        return writes.sure

    def forget(self, id: int, committed: bool) -> None:
        """A transaction has ended: what it staged is named by its commit, or dropped."""
        with self._lock:
            places = self._staged.pop(id, set())
        for name, partition, pointer in sorted(places):
            with contextlib.suppress(TMSError):
                uid = self._registry.find(name).uid
                self._referred.pop((uid, partition, pointer), None)
                if not committed:
                    self._topics.port(name, partition).drop_staged(name, partition, pointer)

    def unnamed(self, id: int, named: Sequence[TopicStaged]) -> list[Unnamed]:
        """The staged blocks of a transaction, as far as they are known, that a commit which names
        producers will not publish."""
        if not any(part.producers for part in named):
            return []
        with self._lock:
            places = sorted(self._staged.get(id, ()))
        unnamed_: list[Unnamed] = []
        for name, partition, pointer in places:
            here = [part for part in named if (part.topic, part.partition) == (name, partition)]
            published = frozenset(number for part in here for number in part.producers)
            if any(not part.producers for part in here):
                continue
            with contextlib.suppress(TMSError):  # of a topic that is gone, all of it is
                staged = self._topics.port(name, partition).staged(name, partition, pointer)
                blocks = [part for part in staged if part.producer_id not in published]
                uid = self._registry.find(name).uid
                if blocks and (uid, partition, pointer) not in self._referred:
                    unnamed_.append(Unnamed(name, partition, pointer, blocks))
        return unnamed_

    def drop(self, unnamed: Sequence[Unnamed]) -> None:
        """Free the space of blocks that no commit will name. Those that cannot be dropped now stay
        until their day is dropped."""
        for name, partition, pointer, blocks in unnamed:
            with contextlib.suppress(TMSError):
                port = self._topics.port(name, partition)
                port.drop_staged(name, partition, pointer, blocks)

    def _storing(self, write_pointer: int) -> "_Storing":
        _check_pointer(write_pointer)
        id = self._manager.state.in_progress.get(write_pointer)
        if id is None and (
            self._manager.knows(write_pointer) or self._manager.is_barred(write_pointer)
        ):
            raise _too_late(write_pointer)
        ahead_ms = write_pointer // POINTERS_PER_MS - self._clock.now_ms()
        if id is None and ahead_ms > AHEAD_MS_MAX:  # it would hold readers back until its time
            raise Invalid(
                f"The write pointer {write_pointer} is {ahead_ms} ms ahead of the clock; it is the "
                "time at which its transaction began, in ms × 1,000,000."
            )
        return _Storing(self, self._manager, write_pointer, id)

    def check_barred(self, name: TopicName, pointer: int, pending: PendingAppend) -> None:
        """Roll back an append under a pointer that was barred meanwhile. Another thread does: this
        one may own the partition. If that fails, the partition is listed as held again."""

        def roll_back() -> None:
            with contextlib.suppress(TMSError):
                for place in pending.result(0):
                    self.roll_back(StoredRange.of(name, place, pointer))

        if pointer in self._manager.state.barred:
            self._topics.run_in_background(roll_back)

    def note(
        self, id: int, name: TopicName, pointer: int, pending: PendingAppend, may_wait: bool
    ) -> None:
        """Note the ranges that an open transaction has stored. A failed append may have stored its
        blocks or not, so it makes the transaction invalid. Unless the caller `may_wait`, another
        thread does: the caller may own the partition, for which a thread that writes the journal
        may be waiting."""
        try:
            places = pending.result(0)
            uid = self._registry.find(name).uid
        except TMSError:
            self._note_failed(id, may_wait)
            return
        ranges = [StoredRange.of(name, place, pointer) for place in places]
        ends = [Stored(uid, place.partition, place.base_offset + place.count) for place in places]
        self.writes.leave(id, ranges, ends, True)

    def _note_failed(self, id: int, may_wait: bool) -> None:
        if may_wait:
            self._invalidate(id)
            return
        try:
            self._topics.partitions.failing.submit(lambda: self._invalidate(id))
        except RuntimeError:  # the engine is closing: nothing more is journaled
            self.writes.leave(id, (), (), False)

    def _invalidate(self, id: int) -> None:
        """Make a transaction invalid; only then may it be ended."""
        try:
            with contextlib.suppress(TMSError):
                self._manager.invalidate(id)
        finally:
            self.writes.leave(id, (), (), False)


class _Storing:
    """An append or a staging under a pointer: until it has ended, no caller ends the
    transaction."""

    def __init__(
        self,
        uncommitted: UncommittedMessages,
        manager: TransactionManager,
        pointer: int,
        id: int | None,
    ) -> None:
        self.id = id  # of the transaction, if it was given here
        self._uncommitted = uncommitted
        self._manager = manager
        self.pointer = pointer
        self._followed = False

    def __enter__(self) -> Self:
        if self.id is not None:
            self._uncommitted.writes.enter(self.id)
            if self.pointer not in self._manager.state.in_progress:
                self._uncommitted.writes.leave(self.id, (), (), True)
                raise _too_late(self.pointer)
        return self

    def __exit__(self, *_: object) -> None:
        if self.id is not None and not self._followed:
            self._uncommitted.writes.leave(self.id, (), (), True)

    def stamp(self, more: int = 0) -> Stamp:
        """The stamp of the blocks."""
        issued = Flags.ISSUED if self.id is not None else 0
        return Stamp(Flags.TRANSACTIONAL | issued | more, self.pointer)

    def follow(self, name: TopicName, pending: PendingAppend) -> None:
        """It is over once this is stored."""
        if self.id is None:
            check = self._uncommitted.check_barred
            pending.add_done_callback(partial(check, name, self.pointer, pending))
            return
        self._followed = True
        note = partial(self._uncommitted.note, self.id, name, self.pointer, pending)
        if pending.done():
            note(may_wait=True)
        else:
            pending.add_done_callback(partial(note, may_wait=False))


def _too_late(pointer: int) -> TransactionEnded:
    return TransactionEnded(
        f"The transaction {pointer} has ended; nothing can be published in it.",
        transaction=pointer,
    )


def _check_pointer(write_pointer: int) -> None:
    if not 0 < write_pointer < 2**63:
        raise Invalid("A write pointer is a positive number of 63 bits.")
