"""The transactional ids of producers that speak Kafka's protocol (pure state).

    Empty ─▶ Ongoing ─┬─▶ CompleteCommit ─▶ Ongoing …
      ▲               └─▶ PrepareAbort ─▶ CompleteAbort ─▶ Ongoing …
      └── InitProducerId raises the epoch, in every phase; from Ongoing by way of PrepareAbort

Each id has a record: the number and epoch of its producer, and the transaction of TMS that is under
way. A record is a value; every decision returns the record that replaces it, or raises `Refused`.
The journal `system:_producers` holds the records: the key of an entry is the id, the value the
record in MessagePack, none for a deleted one. The newest entry of an id counts.

Invariants

* The epochs of a number only grow, and a number is never given to a second id. A producer that does
  not name the present number and epoch of its id is refused.
* Only in the phase Ongoing does a record have partitions, groups and positions, and can its
  transaction still commit. It has a transaction in the phases Ongoing and PrepareAbort only.
* Records, and their bytes, are bounded: `RECORDS_MAX`, `RECORD_BYTES_MAX`, `BYTES_MAX`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from tms.errors import DataCorrupt, Overloaded, TMSError, TooLarge
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import NO_LEADER_EPOCH, PositionChange, PositionKey
from tms.runtime.decoding import msgpack_decoder

EPOCH_MAX = 2**15 - 2  # that a producer gets; the next one fences it
RECORDS_MAX = 100_000
RECORD_BYTES_MAX = 1 << 20
BYTES_MAX = 256 << 20
RETRY_AFTER_S = 60


class RefusalCode(IntEnum):
    """Kafka's numbers of the reasons for which a producer is refused."""

    INVALID_REQUEST = 42
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105


class Refused(Exception):
    """A request that a rule of Kafka's transactions refuses."""

    def __init__(self, code: RefusalCode) -> None:
        super().__init__(code.name)
        self.code = code


class ProducerEpoch(NamedTuple):
    """The number and epoch that a producer names itself by."""

    number: int
    epoch: int


NO_PRODUCER = ProducerEpoch(0, -1)


class TransactionPhase(StrEnum):
    """The phase of an id, by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class PendingPosition(msgspec.Struct, frozen=True, array_like=True):
    """A position that a transaction moves when it commits."""

    group: str
    topic: str
    partition: int
    position: str  # its spelling
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH

    @classmethod
    def of(cls, change: PositionChange) -> "PendingPosition":
        """The position of a change; only the change of a member that was checked counts here."""
        (group, topic, partition) = change.key
        position = str(change.position)
        return cls(group, str(topic), partition, position, change.metadata, change.leader_epoch)

    @property
    def place(self) -> tuple[str, str, int]:
        """The group, topic and partition."""
        return self.group, self.topic, self.partition

    @property
    def change(self) -> PositionChange:
        """The change of a commit."""
        return PositionChange(
            PositionKey(self.group, TopicName.parse(self.topic), self.partition),
            Position.parse(self.position),
            metadata=self.metadata,
            leader_epoch=self.leader_epoch,
        )


class TransactionalRecord(msgspec.Struct, frozen=True, array_like=True):
    """An id. `previous` is the producer that got the present epoch by naming itself, which may ask
    again. `transaction` is the id of the transaction of TMS, 0 if there is none. Times are in ms.
    `owner` is the principal that the id belongs to, empty where access is not controlled."""

    producer: ProducerEpoch
    previous: ProducerEpoch
    timeout_ms: int
    used_ms: int
    phase: TransactionPhase = TransactionPhase.EMPTY
    transaction: int = 0
    began_ms: int = 0
    partitions: dict[str, tuple[int, ...]] = {}  # by topic
    groups: tuple[str, ...] = ()
    positions: tuple[PendingPosition, ...] = ()
    owner: str = ""

    def require(self, producer: ProducerEpoch) -> None:
        """Raise `Refused` for another producer than that of the id."""
        if producer.number != self.producer.number:
            raise Refused(RefusalCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != self.producer.epoch:
            raise Refused(RefusalCode.PRODUCER_FENCED)

    def has(self, topic: TopicName, partition: int) -> bool:
        """True if the open transaction has a partition."""
        return partition in self.partitions.get(str(topic), ())

    def began(self, transaction: int, now_ms: int) -> "TransactionalRecord":
        """A transaction of TMS began for this producer."""
        return self._idle(TransactionPhase.ONGOING, now_ms, transaction, now_ms)

    def with_partitions(
        self, places: Iterable[tuple[TopicName, int]], now_ms: int
    ) -> "TransactionalRecord":
        """The transaction has these partitions, too."""
        new = [place for place in places if not self.has(*place)]
        if not new:
            return self
        partitions = dict(self.partitions)
        for topic, partition in dict.fromkeys(new):
            partitions[str(topic)] = (*partitions.get(str(topic), ()), partition)
        return msgspec.structs.replace(self, partitions=partitions, used_ms=now_ms)

    def with_group(self, group: str, now_ms: int) -> "TransactionalRecord":
        """The transaction has this group, too."""
        if group in self.groups:
            return self
        return msgspec.structs.replace(self, groups=(*self.groups, group), used_ms=now_ms)

    def with_positions(
        self, group: str, changes: Iterable[PositionChange], now_ms: int
    ) -> "TransactionalRecord":
        """The transaction moves these positions of a group, too; the last change of a position
        counts. Raises `Refused` unless the transaction has the group."""
        if self.phase is not TransactionPhase.ONGOING or group not in self.groups:
            raise Refused(RefusalCode.INVALID_TXN_STATE)
        moved = {one.place: one for one in self.positions}
        moved |= {one.place: one for one in map(PendingPosition.of, changes)}
        return msgspec.structs.replace(self, positions=tuple(moved.values()), used_ms=now_ms)

    def require_end(self, committed: bool) -> bool:
        """True if the transaction has to be ended; False if it ended so before. Raises `Refused` if
        there is none, or if it ended otherwise."""
        if self.phase is TransactionPhase.ONGOING:
            return True
        if self.phase is TransactionPhase.PREPARE_ABORT and not committed:
            raise Refused(RefusalCode.CONCURRENT_TRANSACTIONS)
        if self.phase is not (
            TransactionPhase.COMPLETE_COMMIT if committed else TransactionPhase.COMPLETE_ABORT
        ):
            raise Refused(RefusalCode.INVALID_TXN_STATE)
        return False

    def aborting(self, now_ms: int) -> "TransactionalRecord":
        """The transaction is to be aborted."""
        return self._idle(TransactionPhase.PREPARE_ABORT, now_ms, self.transaction, self.began_ms)

    def ended(self, committed: bool, now_ms: int) -> "TransactionalRecord":
        """The transaction has ended."""
        phase = TransactionPhase.COMPLETE_COMMIT if committed else TransactionPhase.COMPLETE_ABORT
        return self._idle(phase, now_ms)

    def fenced(self, now_ms: int) -> "TransactionalRecord":
        """TMS has ended the transaction, which its producer may not know: it is refused from now
        on, and has to begin anew."""
        number, epoch = self.producer
        idle = self._idle(TransactionPhase.COMPLETE_ABORT, now_ms)
        return msgspec.structs.replace(
            idle, producer=ProducerEpoch(number, epoch + 1), previous=NO_PRODUCER
        )

    def _idle(
        self, phase: TransactionPhase, now_ms: int, transaction: int = 0, began_ms: int = 0
    ) -> "TransactionalRecord":
        return TransactionalRecord(
            self.producer,
            self.previous,
            self.timeout_ms,
            now_ms,
            phase,
            transaction,
            began_ms,
            owner=self.owner,
        )


class TransactionalState:
    """The records of all ids, the one that was used longest ago first; `open` are the ids that have
    a transaction. One thread at a time changes it; any thread may look a record up."""

    def __init__(self) -> None:
        self.records: OrderedDict[str, TransactionalRecord] = OrderedDict()
        self.open: set[str] = set()
        self.bytes = 0  # of the records as they are stored
        self._ids: dict[int, str] = {}  # by the number of the producer
        self._sizes: dict[str, int] = {}
        self._moving: dict[str, set[str]] = {}  # ids that move positions of a group

    def find(self, id: str, producer: ProducerEpoch) -> TransactionalRecord:
        """The record of an id whose producer this is. Raises `Refused`."""
        record = self.records.get(id)
        if record is None:
            raise Refused(RefusalCode.INVALID_PRODUCER_ID_MAPPING)
        record.require(producer)
        return record

    def of_number(self, number: int) -> TransactionalRecord | None:
        """The record whose producer has this number."""
        return self.records.get(self._ids.get(number, ""))

    def moving(self, group: str) -> list[TransactionalRecord]:
        """The records whose transactions move positions of a group if they commit."""
        ids = tuple(self._moving.get(group, ()))
        return [record for id in ids if (record := self.records.get(id)) is not None]

    def require_room(self, id: str, record: TransactionalRecord) -> None:
        """Raise `TooLarge` for a record that is too large, and `Overloaded` if there are too many,
        or too many bytes of them."""
        size = len(encode_record(record))
        before = self._sizes.get(id, 0)
        if size > RECORD_BYTES_MAX:
            raise TooLarge(
                f"The transaction of {id!r:.80} has more partitions, groups and positions than "
                f"{RECORD_BYTES_MAX} bytes hold. Commit it before, or move fewer positions."
            )
        is_full = len(self.records) >= RECORDS_MAX and not before
        if is_full or (size > before and self.bytes + size - before > BYTES_MAX):
            raise Overloaded(
                f"There are {len(self.records)} transactional ids with {self.bytes} bytes; "
                f"{RECORDS_MAX} ids and {BYTES_MAX} bytes are the limit. Ids are forgotten 7 days "
                "after their last use: use the same ids again instead of new ones.",
                retry_after_s=RETRY_AFTER_S,
            )

    def apply(self, id: str, record: TransactionalRecord | None) -> None:
        """Set or delete a record."""
        before = self.records.get(id)
        if before is not None:
            self._ids.pop(before.producer.number, None)
            self.bytes -= self._sizes.pop(id)
        if record is None:
            self.records.pop(id, None)
        else:
            self.records[id] = record
            self.records.move_to_end(id)
            self._ids[record.producer.number] = id
            self._sizes[id] = len(encode_record(record))
            self.bytes += self._sizes[id]
        (self.open.add if record is not None and record.transaction else self.open.discard)(id)
        groups = _groups_of(record)
        for group in groups - _groups_of(before):
            self._moving.setdefault(group, set()).add(id)
        for group in _groups_of(before) - groups:
            self._moving[group].discard(id)
            if not self._moving[group]:
                del self._moving[group]


def initialised(
    record: TransactionalRecord | None,
    expected: ProducerEpoch | None,
    timeout_ms: int,
    now_ms: int,
    new_number: Callable[[], int],
    owner: str = "",
) -> TransactionalRecord:
    """The record of an id whose producer begins, or goes on after an error: then `expected` is its
    number and epoch. Returns the record itself for a request that is repeated. `new_number` gives
    a number if the id has none, or no epoch is left. The id belongs to `owner` from now on, unless
    that is empty. Raises `Refused`."""
    if record is None:
        first = ProducerEpoch(new_number(), 0)
        return TransactionalRecord(first, NO_PRODUCER, timeout_ms, now_ms, owner=owner)
    if expected is not None and expected == record.previous:
        return record
    if expected is not None and expected != record.producer:
        raise Refused(RefusalCode.PRODUCER_FENCED)
    number, epoch = record.producer
    producer = (
        ProducerEpoch(new_number(), 0) if epoch >= EPOCH_MAX else ProducerEpoch(number, epoch + 1)
    )
    return TransactionalRecord(
        producer,
        expected or NO_PRODUCER,
        timeout_ms,
        now_ms,
        TransactionPhase.PREPARE_ABORT if record.transaction else TransactionPhase.EMPTY,
        record.transaction,
        record.began_ms,
        owner=owner or record.owner,
    )


def _groups_of(record: TransactionalRecord | None) -> set[str]:
    return set() if record is None else {one.group for one in record.positions}


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgpack_decoder(TransactionalRecord)


def encode_record(record: TransactionalRecord) -> bytes:
    """The value of a journal entry."""
    return _encode(record)


def decode_record(id: bytes | None, raw: bytes | None) -> tuple[str, TransactionalRecord | None]:
    """An id with its record. Raises `DataCorrupt`."""
    try:
        return (id or b"").decode(), None if raw is None else _decoder.decode(raw)
    except (ValueError, msgspec.MsgspecError, TMSError) as exc:
        raise DataCorrupt(
            f"An entry in the journal of transactional ids cannot be read: {id!r:.80}. Run "
            "`tms fsck`."
        ) from exc
