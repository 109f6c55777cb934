"""Transactional ids, by which Kafka's producers keep their transactions: the service, its journal.

    initialise ─▶ add partitions, groups ─▶ publish, add positions ─▶ end
                    └ begins a transaction of TMS                      └ commits or aborts it

Invariants

* A change of a record is journaled, synced, before it is answered, so it survives any crash. Only
  the end of a transaction is noted, because the journal of transactions has it.
* A producer is fenced before its transaction is aborted: once a later producer of the id has its
  epoch, nothing of the earlier one is stored or committed.
* Messages and positions of a transaction count together, or not at all: the commit of the
  transaction of TMS is what decides. A record whose transaction has ended without it, by its
  time-out, a failed write or a crash halfway, is fenced.
* One caller at a time changes an id. Another one waits for `TURN_S`, and is refused then.

Locks: the turn of an id is held over all of a change, and no lock is held when it is asked for;
`_writing` is the turn of the journal, `_lock` guards the state, and `_changed` the ids with a turn.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile

from tms.errors import (
    Conflict,
    TopicNotFound,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
)
from tms.log.journaled import Cells, Journaled, JournalEntry
from tms.log.pending import PendingAppend
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName
from tms.model.transaction import TIMEOUT_S_MAX, Commit, PositionChange
from tms.topics.sharding import PRODUCERS
from tms.topics.topics import Topics
from tms.transactions.edits import Outcome
from tms.transactions.transactional_state import (
    ProducerEpoch,
    RefusalCode,
    Refused,
    TransactionalRecord,
    TransactionalState,
    TransactionPhase,
    decode_record,
    encode_record,
    initialised,
)
from tms.transactions.transactions import Transactions

ID_BYTES_MAX = 4_096
UNUSED_MS = 7 * 86_400_000  # until an id is forgotten
TURN_S = 1.0
ENTRIES_MAX = 20_000  # of the journal that a start reads
FORGOTTEN_MAX = 1_000  # ids at a time
_Change = tuple[str, TransactionalRecord | None]


class _Machine:
    """The records that follow from the journal."""

    def replay(self, entries: Iterator[JournalEntry]) -> TransactionalState:
        state = TransactionalState()
        for key, value, _ in entries:
            state.apply(*decode_record(key, value))
        return state

    def apply(self, state: TransactionalState, change: _Change) -> None:
        state.apply(*change)

    def encode(self, changes: Sequence[_Change]) -> list[list[Cells]]:
        return [
            [
                (id.encode(), None if record is None else encode_record(record))
                for id, record in changes
            ]
        ]


class TransactionalIds:
    """The transactional ids of a store, at the process that coordinates transactions. Thread-safe.
    Methods that name a producer raise `Refused` unless it is the one of the id."""

    def __init__(self, topics: Topics, transactions: Transactions) -> None:
        self._transactions = transactions
        self._clock = topics.clock
        self._new_number = topics.producer_numbers.next
        self._journal = topics.journal(PRODUCERS)
        self._registry = topics.registry
        self._lock = threading.Lock()
        self._journaled = Journaled[TransactionalState, _Change](
            self._journal, _Machine(), self._lock
        )
        self._has_notes = False  # ends of transactions that the journal may not have
        self._writing = threading.Lock()
        self._changed = threading.Condition()
        self._taken: set[str] = set()  # ids that have a turn

    # -- the calls of a producer -----------------------------------------------------------------

    def initialise(
        self,
        id: str,
        timeout_ms: int,
        expected: ProducerEpoch | None = None,
        owner: str = "",
        takes_over: bool = False,
    ) -> ProducerEpoch:
        """Begin as the producer of an id, or with `expected` go on after an error as the next epoch
        of that producer. The transaction of the producer before is aborted; `timeout_ms` is for
        those to come. The id belongs to the principal `owner` then, unless that is empty; one that
        belongs to another principal is refused, unless `takes_over`."""
        if not 0 < len(id.encode()) <= ID_BYTES_MAX:
            raise Refused(RefusalCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= TIMEOUT_S_MAX * 1_000:
            raise Refused(RefusalCode.INVALID_TRANSACTION_TIMEOUT)
        with self._turn(id):
            before = self._load().records.get(id)
            if before is not None:
                if owner and before.owner not in ("", owner) and not takes_over:
                    raise Refused(RefusalCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                before = self._settled(id, before)
            now_ms = self._clock.now_ms()
            record = initialised(before, expected, timeout_ms, now_ms, self._new_number, owner)
            if record is not before:
                self._write(id, record)
                record = self._settled(id, record)
            return record.producer

    def add_partitions(
        self, id: str, producer: ProducerEpoch, places: Sequence[tuple[TopicName, int]]
    ) -> None:
        """Add partitions to the transaction; the first ones begin it. They need not exist."""
        self._add(id, producer, lambda record, ms: record.with_partitions(places, ms))

    def add_group(self, id: str, producer: ProducerEpoch, group: str) -> None:
        """Add a group, whose positions the transaction may move; the first one begins it."""
        self._add(id, producer, lambda record, ms: record.with_group(group, ms))

    def add_positions(
        self, id: str, producer: ProducerEpoch, group: str, changes: Sequence[PositionChange]
    ) -> None:
        """Move positions of a group when the transaction commits. Raises `Refused` unless the group
        was added."""
        with self._turn(id):
            record = self._open(id, producer)
            self._write(id, record.with_positions(group, changes, self._clock.now_ms()))

    def publish(
        self, id: str, producer: ProducerEpoch, name: TopicName, blocks: Sequence[NewBlock]
    ) -> PendingAppend:
        """Store blocks, synced, before the transaction commits. Raises `Refused` unless all their
        partitions were added, and as `Transactions.submit`."""
        record = self._load().find(id, producer)
        added = all(record.has(name, new.partition) for new in blocks)
        if record.phase is not TransactionPhase.ONGOING or not added:
            raise Refused(RefusalCode.INVALID_TXN_STATE)
        try:
            return self._transactions.submit(name, blocks, record.transaction, repeats=True)
        except TransactionEnded:
            with self._turn(id):
                self._open(id, producer)  # raises if the producer is fenced by that
            raise Refused(RefusalCode.INVALID_TXN_STATE) from None
        except Conflict:  # it is being ended
            raise Refused(RefusalCode.INVALID_TXN_STATE) from None

    def end(self, id: str, producer: ProducerEpoch, committed: bool) -> None:
        """Commit or abort the transaction. May be repeated. Raises `Refused` if there is none, or
        if it ended otherwise."""
        with self._turn(id):
            record = self._load().find(id, producer)
            under_way = self._is_committing(record)
            if under_way and not committed:
                raise Refused(RefusalCode.INVALID_TXN_STATE)
            if not under_way:  # else the repeated commit gets the answer of the first
                record = self._open(id, producer)
            if not record.require_end(committed):
                return
            if committed:
                self._commit(id, record)
            else:
                self._abort(id, record)

    # -- looking ---------------------------------------------------------------------------------

    def find(self, id: str) -> TransactionalRecord:
        """The record of an id. Raises `Refused` if there is none."""
        record = self._load().records.get(id)
        if record is None:
            raise Refused(RefusalCode.TRANSACTIONAL_ID_NOT_FOUND)
        return record

    def owner(self, id: str) -> str:
        """The principal that an id belongs to; empty for an id that belongs to nobody."""
        record = self._load().records.get(id)
        return "" if record is None else record.owner

    def all(self) -> list[tuple[str, TransactionalRecord]]:
        """All ids with their records."""
        state = self._load()
        with self._lock:
            return list(state.records.items())

    def pending(self, group: str) -> set[tuple[TopicName, int]]:
        """The positions of a group that open transactions will move if they commit. The others are
        those that a look at the positions after this call finds."""
        return {
            (TopicName.parse(one.topic), one.partition)
            for record in self._load().moving(group)
            for one in record.positions
            if one.group == group and not self._has_ended(record)
        }

    def has_number(self, number: int) -> bool:
        """True if the producer of this number has a transactional id."""
        return self._load().of_number(number) is not None

    def holds(self, number: int, name: TopicName, partition: int) -> bool:
        """True if the producer of this number has added a partition to its open transaction: all
        that it stores there belongs to the transaction."""
        return self.transaction_of(number, name, partition) is not None

    def transaction_of(self, number: int, name: TopicName, partition: int) -> int | None:
        """The write pointer of the open transaction to which the producer of this number has added
        a partition; None if there is none."""
        record = self._load().of_number(number)
        return record.transaction if record is not None and record.has(name, partition) else None

    def load(self) -> None:
        """Read the journal, unless its state is known."""
        self._load()

    # -- operating -------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Fence the producers whose transactions have timed out, forget ids that are not used, and
        shorten the journal."""
        if not (self._journaled.known or self._is_used()):
            return
        state = self._load()
        before_ms = self._clock.now_ms() - UNUSED_MS
        with self._lock:
            under_way = sorted(state.open)
            oldest = list(islice(state.records.items(), FORGOTTEN_MAX))
        for id in under_way:
            with suppress(Refused), self._turn(id):
                record = self.find(id)
                if record.transaction and self._has_ended(record):
                    self._settled(id, record)
        for id, _ in takewhile(lambda one: one[1].used_ms < before_ms, oldest):
            with suppress(Refused), self._turn(id):
                record = self.find(id)
                if not record.transaction and record.used_ms < before_ms:
                    self._write(id, None)
        self._shorten()

    def _is_used(self) -> bool:
        """True if a producer has ever had a transactional id: the journal then has a topic."""
        try:
            self._registry.find(PRODUCERS)
        except TopicNotFound:
            return False
        return True

    def _shorten(self) -> None:
        """Journal what was noted, as long as the outcomes of those transactions are known."""
        with self._writing:
            self._journaled.load()
            if self._has_notes:
                self._journaled.write([], Durability.SYNCED)
                self._has_notes = False
            if self._journal.length > ENTRIES_MAX and self._journal.is_worth_a_snapshot:
                self._journaled.snapshot(lambda state: list(state.records.items()))

    # -- parts -----------------------------------------------------------------------------------

    def _add(
        self,
        id: str,
        producer: ProducerEpoch,
        add: Callable[[TransactionalRecord, int], TransactionalRecord],
    ) -> None:
        with self._turn(id):
            before = self._open(id, producer)
            now_ms = self._clock.now_ms()
            record = before
            if record.phase is not TransactionPhase.ONGOING:
                begun = self._transactions.begin(
                    timeout_s=record.timeout_ms / 1_000, caller=record.owner
                )
                record = record.began(begun.transaction_id, now_ms)
            record = add(record, now_ms)
            if record is not before:
                self._write(id, record)

    def _commit(self, id: str, record: TransactionalRecord) -> None:
        """Commit the transaction of a record. Raises `Refused` if it has ended otherwise."""
        changes = tuple(one.change for one in record.positions)
        request = Commit(record.transaction, positions=changes, overtakes=True)
        try:
            self._transactions.commit(request)
        except TransactionConflict:  # another commit that moves these positions is under way
            if not self._has_ended(record):
                raise Refused(RefusalCode.CONCURRENT_TRANSACTIONS) from None
        except TransactionEnded:
            pass
        after = self._settled(id, record)
        after.require(record.producer)
        after.require_end(committed=True)

    def _abort(self, id: str, record: TransactionalRecord) -> None:
        aborting = record.aborting(self._clock.now_ms())
        self._write(id, aborting)
        self._settled(id, aborting)

    def _open(self, id: str, producer: ProducerEpoch) -> TransactionalRecord:
        """The record of a producer that no end of a transaction is under way for. The caller has
        the turn."""
        self._settled(id, self._load().find(id, producer))
        return self._load().find(id, producer)

    def _settled(self, id: str, record: TransactionalRecord) -> TransactionalRecord:
        """The record of an id once the outcome of its transaction is known: fences its producer if
        the transaction has ended without it, finishes an abort. The caller has the turn. Raises
        `Refused` while a commit is under way."""
        if not record.transaction:
            return record
        outcome = self._outcome(record)
        now_ms = self._clock.now_ms()
        if record.phase is TransactionPhase.PREPARE_ABORT:
            if outcome is Outcome.OPEN:
                self._transactions.abort(record.transaction)
            return self._note(id, record.ended(committed=False, now_ms=now_ms))
        if outcome is Outcome.COMMITTED:
            return self._note(id, record.ended(committed=True, now_ms=now_ms))
        if outcome is not Outcome.OPEN:
            record = record.fenced(now_ms)
            self._write(id, record)
        elif self._is_committing(record):
            raise Refused(RefusalCode.CONCURRENT_TRANSACTIONS)
        return record

    def _outcome(self, record: TransactionalRecord) -> Outcome:
        try:
            return self._transactions.manager.outcome(record.transaction)
        except TransactionNotFound:  # long ago: it did not commit for this producer
            return Outcome.INVALID

    def _has_ended(self, record: TransactionalRecord) -> bool:
        return self._outcome(record) is not Outcome.OPEN

    def _is_committing(self, record: TransactionalRecord) -> bool:
        return self._transactions.manager.is_intended(record.transaction)

    # -- the journal -----------------------------------------------------------------------------

    def _load(self) -> TransactionalState:
        if self._journaled.known:
            return self._journaled.state
        with self._writing:
            return self._journaled.load()

    def _write(self, id: str, record: TransactionalRecord | None) -> None:
        """Journal a record, synced."""
        with self._writing:
            state = self._journaled.load()
            if record is not None:
                state.require_room(id, record)
            self._journaled.write([(id, record)], Durability.SYNCED)
            self._has_notes = False  # they were written, too

    def _note(self, id: str, record: TransactionalRecord) -> TransactionalRecord:
        """Set a record that follows from the journals; it is journaled with the next one."""
        with self._writing:
            self._journaled.load()
            with self._lock:
                self._journaled.note((id, record))
            self._has_notes = True
        return record

    @contextmanager
    def _turn(self, id: str) -> Iterator[None]:
        """Change an id, alone. Raises `Refused`."""
        with self._changed:
            if not self._changed.wait_for(lambda: id not in self._taken, TURN_S):
                raise Refused(RefusalCode.CONCURRENT_TRANSACTIONS)
            self._taken.add(id)
        try:
            yield
        finally:
            with self._changed:
                self._taken.discard(id)
                self._changed.notify_all()
