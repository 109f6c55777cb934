"""A transaction: messages for any topics and positions of consumers, all or nothing.

    with bus.transaction() as tx:
        tx.send("orders", b"…", key=b"…")
        tx.ack(consumer)

Messages wait here until the commit, which carries everything in one request; whoever reads waits
for nobody. Beyond `WAITING_BYTES` they are staged: stored where nobody sees them, and the commit
only names them.

Invariants

* A commit whose answer was lost is repeated with the same id or token, and done once.
* After an exception in the `with` block nothing of the transaction is ever seen.
* What waits is bounded by `WAITING_BYTES`, all of it by `TRANSACTION_BYTES`.
* It is its process's: in one that was forked meanwhile it neither commits nor ends anything.
"""

import os
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar, overload

from tms.block import check_event_time
from tms.client.batches import Batches, parts_of
from tms.client.batching import (
    Expect,
    KnownTopic,
    check_partition,
    message_bytes,
    value_sizes,
)
from tms.client.committed import Acknowledgement, KnownPositions
from tms.client.delivery import Numbering
from tms.client.participants import COMMITTED, Participant, Participants
from tms.client.queue import Deliveries, Queue
from tms.client.topic_cache import TopicCache
from tms.client.transport import Transport
from tms.errors import Closed, Invalid, TMSError, TooLarge, TransactionEnded
from tms.model.ids import MessageId
from tms.model.message import Headers, NewBlock
from tms.model.position import Position
from tms.model.preconditions import as_expected
from tms.model.queue import Settlement
from tms.model.serializer import V
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, PositionChange, TopicBlock, TopicStaged
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import attempt_s, retrying

C = TypeVar("C")
WAITING_BYTES = 15 << 20  # a request has at most 16 MiB
TRANSACTION_BYTES = 4 << 30
_STAGING_S = 3_600.0  # how long a transaction may take that stages messages; nobody waits for it


class _Consumer(Protocol):
    committed: KnownPositions

    def positions(self) -> dict[int, Position]: ...


class Transaction:
    """Messages, positions and other data that commit together or not at all; created by
    `Bus.transaction`. Commits at the end of its `with` block. For one thread."""

    def __init__(
        self,
        publishing: TopicCache,
        refresh: Callable[[str], KnownTopic],
        transport: Transport,
        clock: Clock,
        durability: Durability | None,
        timeout_s: float,
    ) -> None:
        self._publishing = publishing
        self._refresh = refresh
        self._transport = transport
        self._clock = clock
        self._durability = durability
        self._timeout_s = timeout_s
        self._id = 0
        self._token = os.urandom(16).hex()
        self._topics: dict[str, KnownTopic] = {}
        self._sticky: dict[str, int] = {}  # where messages go that name no place
        self._batches = Batches()
        self._acked: list[_Consumer] = []
        self._settled: list[Settlement] = []
        self._participants = Participants(lambda: transport.transactions)
        self._changes: set[bytes] = set()
        self._bytes = 0  # of the messages that wait
        self._bytes_staged = 0
        self._staged: dict[tuple[TopicName, int], list[list[int]]] = {}  # places, block by block
        self._numbering: Numbering | None = None  # once something is staged
        self._count = 0
        self._over = False
        self._generation = forks.generation

    @property
    def id(self) -> int:
        """The id of the transaction; reading it begins the transaction. Only participants need
        it."""
        return self._begin(None)

    def __repr__(self) -> str:
        state = "over" if self._over else f"open, {self._count} messages"
        return f"<{type(self).__name__} {self._id or 'without id'}, {state}>"

    def _begin(self, timeout_s: float | None) -> int:
        self._require_open()
        if not self._id:
            begun = self._transport.transactions.begin(timeout_s=timeout_s, token=self._token)
            self._id = begun.transaction_id
        return self._id

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        expect: Expect | None = None,
        event_time_ms: int | None = None,
    ) -> None:
        """Add a message. Messages without key and partition all go to one partition of their topic.
        `expect` is that of `Bus.publish`: if it does not hold, the commit fails with `WrongLastId`;
        `event_time_ms` is that of `Bus.publish`, too. Raises `TopicNotFound`, `PartitionNotFound`,
        `Invalid`, `TooLarge`."""
        known = self._topics.get(topic) or self._learn(topic)
        size = message_bytes(value, key, headers, known.message_bytes_max)
        if event_time_ms is not None:
            check_event_time(event_time_ms)
        if partition is not None:
            check_partition(partition, known.partitions)
        elif key is not None:
            partition = known.partition_of(key)
        else:
            partition = self._sticky[topic]
        if self._bytes + size > WAITING_BYTES:
            self._make_room(size)
        self._bytes += size
        if expect is None:
            batch = self._batches.room(known.name, topic, partition, size, 1)
        else:
            batch = self._batches.begin(known.name, topic, partition, as_expected(expect))
        if key is not None or batch.keys:
            batch.keys += [None] * (len(batch.values) - len(batch.keys))
            batch.keys.append(key)
        if headers or batch.headers:
            batch.headers += [None] * (len(batch.values) - len(batch.headers))
            batch.headers.append(headers)
        if event_time_ms is not None or batch.event_times:
            batch.event_times += [None] * (len(batch.values) - len(batch.event_times))
            batch.event_times.append(event_time_ms)
        batch.values.append(value)
        batch.places.append(self._count)
        batch.bytes += size
        self._count += 1

    def send_many(
        self, topic: str, values: Sequence[bytes | None], partition: int | None = None
    ) -> None:
        """Add messages without keys, all to one partition; faster than one by one. Raises the
        errors of `send`; then none of the messages was added."""
        known = self._topics.get(topic) or self._learn(topic)
        if partition is None:
            partition = self._sticky[topic]
        check_partition(partition, known.partitions)
        sizes = value_sizes(values, known.message_bytes_max)
        if self._bytes_staged + self._bytes + sum(sizes) > TRANSACTION_BYTES:
            raise _too_large()
        for start, stop in parts_of(sizes):
            part, size = values[start:stop], sum(sizes[start:stop])
            self._make_room(size)
            batch = self._batches.room(known.name, topic, partition, size, len(part))
            batch.values += part
            if batch.keys:
                batch.keys += [None] * len(part)
            if batch.headers:
                batch.headers += [None] * len(part)
            if batch.event_times:
                batch.event_times += [None] * len(part)
            batch.places += range(self._count, self._count + len(part))
            batch.bytes += size
            self._bytes += size
            self._count += len(part)

    @overload
    def ack(self, source: "_Consumer") -> None: ...

    @overload
    def ack(self, source: Queue[V], messages: Deliveries[V]) -> None: ...

    def ack(self, source: "_Consumer | Queue[V]", messages: Deliveries[V] | None = None) -> None:
        """Acknowledge messages with the commit. For a consumer, the commit moves the position of
        its group behind all messages handed out by then; for a queue, it acks the given messages.
        The commit fails with `Conflict` if another consumer has moved the position in the meantime,
        and with `Fenced` if a message was delivered to another worker."""
        self._require_open()
        if isinstance(source, Queue):
            if messages is None:
                raise Invalid(
                    "Messages of a queue are acked by name: tx.ack(queue, messages).",
                    field="messages",
                )
            self._settled.append(source.settlement(messages))
            return
        committed = getattr(source, "committed", None)
        if messages is not None or not isinstance(committed, KnownPositions):
            raise Invalid(
                "tx.ack takes a consumer alone, or a queue and its messages, got "
                f"{type(source).__name__}.",
                field="source",
            )
        committed.behind({})  # raises without a group
        if source not in self._acked:
            self._acked.append(source)

    def change(self, key: bytes) -> None:
        """Name a key that this transaction changed outside of TMS: of two concurrent transactions
        that changed the same key, only one commits."""
        _ = self.id  # conflicts count from the beginning
        self._changes.add(key)

    @property
    def participants(self) -> tuple[Participant[object], ...]:
        """The participants that have joined."""
        return tuple(self._participants.all)

    def join(self, participant: Participant[C]) -> C:
        """Add a participant, whose data commits with this transaction or not at all, and return the
        object to write with. Raises `Invalid` if it cannot be combined with the participants that
        have joined."""
        self._require_open()
        return self._participants.join(participant, self)

    def commit(self) -> list[MessageId]:
        """Commit, and return the ids of the messages in the order of `send`.

        Raises `TransactionConflict`, `Conflict`, `TransactionEnded` (with the outcome `committed`
        if the transaction is committed but its ids are no longer known), and `TimedOut` if the
        outcome is unknown: then the call may be repeated. With participants, also raises their
        errors, `CommitUnfinished` and `PostCommitFailed`.
        """
        return self._ids(self._commit())

    def _commit(self) -> CommitResult:
        self._require_open()
        moved: list[Acknowledgement] = []
        for consumer in self._acked:
            moved.append(consumer.committed.behind(consumer.positions()))
        joined = self._participants.all
        try:
            request = self._request(moved)
            if not (
                request.blocks
                or request.positions
                or request.changes
                or request.settlements
                or joined
                or self._id
            ):
                self._end()
                return CommitResult(0)
            result = (
                self._participants.commit(request, self._send) if joined else self._send(request)
            )
        except BaseException:
            if joined and not self._participants.unknown:
                self._end()
            raise
        self._end()
        for one in moved:
            one.done()
        if joined:
            self._participants.after_commit(result.transaction_id)
        return result

    def _send(self, request: Commit) -> CommitResult:
        commit, begun_s = self._transport.transactions.commit, self._clock.monotonic_s()
        try:  # straight: whatever is needed for a repetition is made when there is one
            return commit(request, attempt_s(self._timeout_s))
        except TMSError as error:
            left_s = self._timeout_s - (self._clock.monotonic_s() - begun_s)
            return retrying(
                lambda left_s: commit(request, left_s),
                self._clock,
                left_s,
                failed=error,
                what="commit",
            )

    def abort(self) -> None:
        """Abort the transaction: none of its messages ever become visible, and its participants are
        rolled back. A second call does nothing. Raises `TransactionEnded` if the transaction is
        committed nevertheless."""
        self._abort(None)

    def _abort(self, error: BaseException | None) -> None:
        if self._over or self._generation != forks.generation:
            return
        try:
            self._participants.roll_back(self._id, error)
        finally:
            if not self._participants.unknown:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            if not self._over:
                self._commit()
            return
        self._abort(error)

    def _make_room(self, size: int) -> None:
        """Stage what waits if there is no room for so much more."""
        if self._bytes + size <= WAITING_BYTES:
            return
        if self._bytes_staged + self._bytes + size > TRANSACTION_BYTES:
            raise _too_large()
        if any(one.expect is not None for one in self._batches.all):
            raise TooLarge(
                f"A transaction that expects something holds at most {WAITING_BYTES} bytes "
                "of them. Commit more often."
            )
        id = self._begin(_STAGING_S)
        while self._batches.all:
            batch = self._batches.all[0]
            if batch.number == (0, 0):  # one that is repeated keeps its number
                self._numbering = self._numbering or Numbering()
                batch.number = self._numbering.take((batch.name, batch.partition))
            self._stage(batch.name, NewBlock(batch.partition, batch.block()), id)
            self._staged.setdefault((batch.name, batch.partition), []).append(batch.places)
            self._bytes_staged += batch.bytes
            self._bytes -= batch.bytes
            del self._batches.all[0]
        self._batches.close()

    def _stage(self, name: TopicName, new: NewBlock, id: int) -> None:
        retrying(
            lambda left_s: self._transport.transactions.stage(name, [new], id),
            self._clock,
            self._timeout_s,
            what="stage",
        )

    def _request(self, moved: Sequence[Acknowledgement]) -> Commit:
        blocks: list[TopicBlock] = []
        for batch in self._batches.all:
            new = NewBlock(batch.partition, batch.block(), batch.expect)
            blocks.append(TopicBlock(batch.name, new))
        positions: list[PositionChange] = []
        for acknowledgement in moved:
            positions += acknowledgement.changes
        changes = self._changes
        if self._participants.all:
            changes = changes | self._participants.changes(self._id)
        staged: list[TopicStaged] = []
        for place, places in self._staged.items():
            staged.append(TopicStaged(*place, len(places)))
        return Commit(
            self._id,
            "" if self._id else self._token,
            tuple(blocks),
            tuple(positions),
            tuple(sorted(changes)),
            self._durability,
            tuple(staged),
            tuple(self._settled),
        )

    def _ids(self, result: CommitResult) -> list[MessageId]:
        found: list[tuple[int, MessageId]] = []
        places = [block for blocks in self._staged.values() for block in blocks]
        places += [batch.places for batch in self._batches.by_topic()]
        if places and not result.appended:
            raise TransactionEnded(
                f"The transaction {result.transaction_id} is committed, but the ids of its "
                "messages are not known any more. Do not do it again.",
                transaction=result.transaction_id,
                outcome=COMMITTED,
            )
        for block, appended in zip(places, result.appended, strict=True):
            found += zip(block, appended.place.ids(), strict=True)
        return [id for _, id in sorted(found)]

    def _end(self) -> None:
        self._over = True
        self._topics = {}  # so that a message that comes late is noticed

    def _learn(self, topic: str) -> KnownTopic:
        self._require_open()
        known = self._publishing.known(topic) or self._refresh(topic)
        self._topics[topic] = known
        self._sticky[topic] = self._publishing.turn(known)
        return known

    def _require_open(self) -> None:
        if self._over:
            raise Closed("The transaction is over; begin another one.")
        if self._generation != forks.generation:
            raise Closed(
                "The transaction belongs to the process from which this one was forked, which "
                "commits it or does not; begin another one here."
            )


def _too_large() -> TooLarge:
    return TooLarge(
        f"A transaction holds at most {TRANSACTION_BYTES} bytes of messages. Commit more often."
    )
