"""Transactions of an engine: commits over topics and positions, all or nothing.

    intend (journal) ─▶ store the messages with the write pointer ─▶ commit (journal) ─▶ visible
        └─ anything fails ─▶ invalid: what is stored already is never seen

Invariants

* The messages of a commit are stored before it is journaled, and shown only after that.
* A repeated commit, by id or token, is answered like the first one and does nothing.
* Positions that a transaction moves are messages of it in `system:_positions`.
* A message with a pointer that was given here is stored only while that is in progress, and its
  transaction ends only when nothing is being stored in it; see `tms.tx.published`.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tms.clock import Clock
from tms.errors import Conflict, Invalid, TMSError, TopicNotFound, TransactionEnded
from tms.group.positions import Positions, decode_entry, encode_key
from tms.log.pending import PendingAppend
from tms.log.writer import Stamp
from tms.model.block import Flags
from tms.model.log import Appended, NewBlock
from tms.model.position import Position
from tms.model.snapshot import TransactionType
from tms.model.topic import SYSTEM_NAMESPACE, Durability, TopicName
from tms.model.transaction import (
    Commit,
    CommitResult,
    PositionChange,
    PositionKey,
    TopicAppended,
    TransactionInfo,
)
from tms.topic.journal import Journal, end_of
from tms.topic.partitions import Partitions
from tms.topic.publishing import Publisher
from tms.topic.registry import Registry
from tms.tx.edits import Outcome, Stored
from tms.tx.manager import WRITE_TIMEOUT_S, TransactionManager
from tms.tx.published import Published, Writes
from tms.tx.tephra import Tephra

RESULTS_REMEMBERED = 10_000
PART_BYTES = 4 << 20  # of the journal, written at a time
TRANSACTIONS = TopicName(SYSTEM_NAMESPACE, "_transactions")
POSITIONS = TopicName(SYSTEM_NAMESPACE, "_positions")


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


class _EditLog:
    """The journal of the transaction manager."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, edits: Sequence[bytes], durability: Durability) -> None:
        appends = [self._journal.append(part, durability) for part in _parts(edits)]
        for pending in appends:
            pending.result(WRITE_TIMEOUT_S)

    def read(self) -> Iterator[bytes]:
        return (entry.value for entry in self._journal.replay() if entry.value is not None)


def _parts(edits: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The edits in order, in parts that a block can hold; each edit can be one."""
    start = size = 0
    for at, edit in enumerate(edits):
        if at > start and size + len(edit) > PART_BYTES:
            yield edits[start:at]
            start, size = at, 0
        size += len(edit)
    yield edits[start:]


class Transactions:
    """The transactions of one engine. Thread-safe."""

    def __init__(
        self, registry: Registry, partitions: Partitions, publisher: Publisher, clock: Clock
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._publisher = publisher
        self._journal = Journal(POSITIONS, registry, partitions, publisher)
        edits = _EditLog(Journal(TRANSACTIONS, registry, partitions, publisher))
        self.manager = TransactionManager(edits, clock, self._is_stored)
        self._positions = Positions()
        self._lock = threading.Lock()  # guards positions and results
        self._results: OrderedDict[int, CommitResult] = OrderedDict()
        first = self.manager.state.next_pointer(clock.now_ms())
        self._published: Published[Range] = Published(first)
        self.tephra = Tephra(self.manager, self._published, self._take_back)
        for entry in self._journal.replay(self.manager.fate):
            self._positions.apply(*decode_entry(entry.key, entry.value))

    # -- transactions ----------------------------------------------------------------------------

    def begin(
        self, *, long: bool = False, timeout_s: float | None = None, token: str = ""
    ) -> TransactionInfo:
        """Begin a transaction. Raises `Invalid` for a time-out that is none."""
        kind = TransactionType.LONG if long else TransactionType.SHORT
        began = self.manager.begin(type=kind, timeout_s=timeout_s, token=token)
        return self._info(began.id, Outcome.OPEN)

    def describe(self, id: int) -> TransactionInfo:
        """How a transaction stands. Raises `TransactionNotFound`."""
        return self._info(id, self.manager.outcome(id))

    def open(self) -> list[TransactionInfo]:
        """Those in progress, oldest first."""
        return [self._info(id, Outcome.OPEN) for id in sorted(self.manager.state.open)]

    def abort(self, id: int) -> TransactionInfo:
        """Abort a transaction; one that was aborted or is invalid stays so. What it published
        before is rolled back; where that is not known, because the engine was started since, or
        fails, it becomes invalid. Raises `TransactionNotFound`, `TransactionEnded`."""
        with self._published.ending(id) as writes:
            outcome = self.manager.outcome(id)
            if outcome is Outcome.COMMITTED:
                raise self.manager.why_not_open(id)
            if outcome is Outcome.OPEN and self._take_back(writes):
                self.manager.abort(id)
                writes.settle()
            elif outcome is Outcome.OPEN:
                self.manager.invalidate(id)
        return self.describe(id)

    def _take_back(self, writes: Writes[Range]) -> bool:
        """Roll back what a transaction stored; whether nothing of it is left."""
        for one in writes.ranges:
            try:
                self.roll_back(one)
            except TopicNotFound:
                continue
            except TMSError:
                return False
        return writes.sure

    def invalidate(self, id: int) -> TransactionInfo:
        """Make a transaction invalid, whatever it may have stored."""
        self.manager.invalidate(id)
        return self.describe(id)

    def commit(self, request: Commit, timeout_s: float = 30.0) -> CommitResult:
        """Store and commit everything of a transaction. Raises `TransactionConflict`, `Conflict`
        for a position that is not the expected one, `TransactionEnded`, and what keeps a block from
        being stored; nothing is ever seen of it then."""
        done = self._done(request)
        if done is not None:
            return done
        changes = [*request.changes]
        with self._lock:
            self._positions.check(request.positions)
        changes += [b"position/" + encode_key(one.key) for one in request.positions]
        durability = request.durability or self._strongest(request)
        id = self.manager.intend(request.transaction_id, request.token, changes)
        try:
            with self._published.ending(id) as writes:
                if not self.manager.is_intended(id):
                    raise self.manager.why_not_open(id)
                appended, stored = self._store(id, request, durability, timeout_s)
                with self._lock:
                    self._positions.check(request.positions)
                self.manager.commit(id, changes, [*stored, *writes.stored], durability)
                writes.settle()
        except TMSError:
            self.manager.invalidate(id)
            raise
        result = CommitResult(id, tuple(appended))
        with self._lock:
            for change in request.positions:
                self._positions.apply(change.key, change.position)
            self._results[id] = result
            if len(self._results) > RESULTS_REMEMBERED:
                self._results.popitem(last=False)
        return result

    def _done(self, request: Commit) -> CommitResult | None:
        """The answer if this was committed already. Raises `TransactionEnded` if it ended
        otherwise."""
        id = request.transaction_id
        if id:
            outcome = self.manager.outcome(id)
        else:
            known = self.manager.of_token(request.token) if request.token else None
            if known is None or known[1] in (Outcome.ABORTED, Outcome.INVALID, Outcome.TIMED_OUT):
                return None
            id, outcome = known
        if outcome is Outcome.COMMITTED:
            with self._lock:
                return self._results.get(id) or CommitResult(id)
        if outcome is Outcome.OPEN and not self.manager.is_intended(id):
            return None
        if outcome is Outcome.OPEN:
            raise Conflict(f"The transaction {id} is being committed. Ask for its outcome.")
        raise self.manager.why_not_open(id)

    def _store(
        self, id: int, request: Commit, durability: Durability, timeout_s: float
    ) -> tuple[list[TopicAppended], list[Stored]]:
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, id)
        by_topic: dict[TopicName, list[NewBlock]] = {}
        for topic, new in request.blocks:
            by_topic.setdefault(topic, []).append(new)
        under_way: list[tuple[TopicName, PendingAppend]] = []
        appended: list[TopicAppended] = []
        stored: list[Stored] = []
        for topic, blocks in by_topic.items():
            under_way.append(
                (
                    topic,
                    self._publisher.submit(topic, blocks, durability, Durability.SYNCED, stamp),
                )
            )
        moved = self._move(request.positions, durability, stamp)
        for topic, pending in under_way:
            uid = self._registry.find(topic).uid
            for place in pending.result(timeout_s):
                appended.append(TopicAppended(topic, place))
                stored.append(Stored(uid, place.partition, end_of(place)))
        if moved is not None:
            uid = self._registry.find(POSITIONS).uid
            stored += [Stored(uid, 0, end_of(place)) for place in moved.result(timeout_s)]
        return appended, stored

    def _strongest(self, request: Commit) -> Durability:
        levels = [self._registry.find(topic).durability for topic in {b[0] for b in request.blocks}]
        if request.positions or not levels:
            levels.append(Durability.SYNCED)
        return max(*levels, Durability.WRITTEN, key=lambda level: level.rank)

    def _is_stored(self, block: Stored) -> bool:
        """Whether the log still reaches as far; of a topic that is gone nothing is missed."""
        name = self._registry.name_of(block.uid)
        if name is None:
            return True
        log = self._partitions.get(name, self._registry.find(name), block.partition)
        log.reader.load()
        return log.state.end_offset >= block.end_offset

    def _info(self, id: int, outcome: Outcome) -> TransactionInfo:
        found = self.manager.state.open.get(id)
        if found is None:
            return TransactionInfo(id, outcome.value)
        began = found.began
        return TransactionInfo(
            id, outcome.value, self.manager.state.read_pointer, began.expires_ms, began.client
        )

    # -- publishing before the commit --------------------------------------------------------------

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        write_pointer: int,
        durability: Durability | None = None,
    ) -> PendingAppend:
        """Store blocks of a transaction that may still commit. Raises `TransactionEnded` when it
        was given here and has ended."""
        if not 0 < write_pointer < 2**63:
            raise Invalid("A write pointer is a positive number of 63 bits.")
        stamp = Stamp(Flags.TRANSACTIONAL, write_pointer)
        id = self.manager.transaction_of(write_pointer)
        if id is None:
            if self.manager.knows(write_pointer):
                raise self._too_late(write_pointer)
            return self._publisher.submit(name, blocks, durability, Durability.SYNCED, stamp)
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, write_pointer)
        self._published.enter(id)
        try:
            if not self.manager.is_open(write_pointer):
                raise self._too_late(write_pointer)
            pending = self._publisher.submit(name, blocks, durability, Durability.SYNCED, stamp)
        except BaseException:
            self._published.leave(id, (), (), True)
            raise
        pending.add_done_callback(lambda: self._note(id, name, write_pointer, pending))
        return pending

    @staticmethod
    def _too_late(pointer: int) -> TransactionEnded:
        return TransactionEnded(
            f"The transaction {pointer} has ended; nothing can be published in it.",
            transaction=pointer,
        )

    def _note(self, id: int, name: TopicName, write_pointer: int, pending: PendingAppend) -> None:
        """Remember what an open transaction stored. Of an append that failed nobody knows, so the
        transaction is invalid."""
        ranges: list[Range] = []
        stored: list[Stored] = []
        sure = False
        try:
            places = pending.result(0)
            uid = self._registry.find(name).uid
            for place in places:
                if place.time_ms >= 0:  # else it was noted when it was stored
                    stored.append(Stored(uid, place.partition, end_of(place)))
                    ranges.append(Range.of(name, place, write_pointer))
            sure = True
        except TMSError:
            self.manager.invalidate(id)
        finally:
            self._published.leave(id, ranges, stored, sure)

    def roll_back(self, range: "Range") -> int:
        """Take back the messages of a transaction in a range, synced; how many blocks there
        were."""
        record = self._registry.find(range.topic)
        state = self._partitions.get(range.topic, record, range.partition).state
        with state.changing():
            state.load()
            count = state.roll_back(range.first, range.last, range.write_pointer)
        self.manager.rolled_back(range.write_pointer)
        return count

    # -- positions ---------------------------------------------------------------------------------

    def positions(self, group: str, topic: TopicName) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        with self._lock:
            return self._positions.of(group, topic)

    def groups(self) -> list[tuple[str, TopicName]]:
        """Which groups have positions in which topics."""
        with self._lock:
            return self._positions.groups()

    def move(
        self, changes: Sequence[PositionChange], durability: Durability = Durability.SYNCED
    ) -> None:
        """Move positions outside of a transaction, all or none. Raises `Conflict`."""
        with self._lock:
            self._positions.check(changes)
            pending = self._move(changes, durability, Stamp(0, 0))
            if pending is not None:
                pending.result(WRITE_TIMEOUT_S)
            for change in changes:
                self._positions.apply(change.key, change.position)

    def forget(self, keys: Sequence[PositionKey]) -> None:
        """Forget positions."""
        with self._lock:
            values: list[bytes | None] = [None] * len(keys)
            names = [encode_key(key) for key in keys]
            self._journal.append(values, Durability.SYNCED, names).result(WRITE_TIMEOUT_S)
            for key in keys:
                self._positions.apply(key, None)

    def _move(
        self, changes: Sequence[PositionChange], durability: Durability, stamp: Stamp
    ) -> PendingAppend | None:
        if not changes:
            return None
        values = [str(change.position).encode() for change in changes]
        names = [encode_key(change.key) for change in changes]
        return self._journal.append(values, durability, names, stamp)
