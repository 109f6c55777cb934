"""A transaction: messages for any topics and positions of consumers, all or nothing.

    with bus.transaction() as tx:
        tx.send("orders", b"…", key=b"…")
        tx.acknowledge(consumer)

Messages wait here until the commit, which carries everything in one request; until then nothing of
it is stored, and whoever reads waits for nobody.

Invariants

* A commit whose answer was lost is repeated with the same id or token, and done once.
* After an exception in the `with` block nothing of the transaction is stored.
* What waits is bounded by `TRANSACTION_BYTES`.
"""

from collections.abc import Callable, Sequence
from secrets import token_hex
from types import TracebackType
from typing import Protocol, Self

from tms.client.publish.batching import REQUEST_BYTES, Headers, check_partition, message_bytes
from tms.client.publish.known import Known
from tms.client.standing import Standing
from tms.client.transport import Transport, retrying
from tms.clock import Clock
from tms.errors import Closed, TMSError, TooLarge
from tms.model.block import MESSAGES_MAX, encode
from tms.model.ids import MessageId
from tms.model.keys import partition_for_key
from tms.model.log import NewBlock
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, PositionChange, TopicBlock

TRANSACTION_BYTES = 15 << 20  # a request has at most 16 MiB


class _Consumer(Protocol):
    standing: Standing

    def positions(self) -> dict[int, Position]: ...


class _Batch:
    """The messages for one partition."""

    __slots__ = ("bytes", "headers", "keys", "places", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        self.places: list[int] = []
        self.bytes = 0


class Transaction:
    """Made by `Bus.transaction`; commits at the end of its `with` block. For one thread."""

    def __init__(
        self,
        known: Callable[[str], Known],
        turn: Callable[[Known], int],
        transport: Transport,
        clock: Clock,
        durability: Durability | None,
        timeout_s: float,
    ) -> None:
        self._known = known
        self._turn = turn
        self._transport = transport
        self._clock = clock
        self._durability = durability
        self._timeout_s = timeout_s
        self._id = 0
        self._token = token_hex(16)
        self._batches: dict[tuple[TopicName, int], list[_Batch]] = {}
        self._acknowledged: list[_Consumer] = []
        self._changes: set[bytes] = set()
        self._bytes = 0
        self._count = 0
        self._over = False
        self._sticky: dict[TopicName, int] = {}

    @property
    def id(self) -> int:
        """The transaction's id; begins it. Needed only where other data takes part."""
        self._require_open()
        if not self._id:
            begun = self._transport.transactions.begin(timeout_s=None, token=self._token)
            self._id = begun.transaction_id
        return self._id

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a message. Messages without key or partition go to one partition of a topic together.
        Raises `TopicNotFound`, `PartitionNotFound`, `Invalid`, `TooLarge`."""
        self._require_open()
        known = self._known(topic)
        size = message_bytes(value, key, headers, known.message_bytes_max)
        if partition is not None:
            check_partition(partition, known.partitions)
        elif key is not None:
            partition = partition_for_key(key, known.partitions)
        else:
            partition = self._sticky.setdefault(known.name, self._turn(known))
        if self._bytes + size > TRANSACTION_BYTES:
            raise TooLarge(
                f"A transaction holds at most {TRANSACTION_BYTES} bytes of messages. Commit more "
                "often."
            )
        batches = self._batches.setdefault((known.name, partition), [_Batch()])
        batch = batches[-1]
        if batch.bytes + size > REQUEST_BYTES or len(batch.values) == MESSAGES_MAX:
            batch = _Batch()
            batches.append(batch)
        batch.values.append(value)
        batch.keys.append(key)
        batch.headers.append(headers)
        batch.places.append(self._count)
        batch.bytes += size
        self._bytes += size
        self._count += 1

    def acknowledge(self, consumer: "_Consumer") -> None:
        """Move the position of the consumer's group behind what it has handed out by the time this
        commits. Another consumer that moved it meanwhile makes the commit fail with `Conflict`."""
        self._require_open()
        consumer.standing.behind({})  # raises without a group
        if consumer not in self._acknowledged:
            self._acknowledged.append(consumer)

    def change(self, key: bytes) -> None:
        """Name a key that this transaction changed elsewhere: of two transactions at a time that
        changed the same key, only one commits."""
        _ = self.id  # conflicts count from the beginning
        self._changes.add(key)

    def commit(self) -> list[MessageId]:
        """Commit; the ids of the messages, in the order of `send`. Raises `TransactionConflict`,
        `Conflict`, `TransactionEnded`; `TimedOut` when it is not known whether it is done: then the
        same call may be repeated."""
        self._require_open()
        moved = [one.standing.behind(one.positions()) for one in self._acknowledged]
        request = self._request([change for one in moved for change in one.changes])
        if not (request.blocks or request.positions or request.changes or self._id):
            self._over = True
            return []
        result = retrying(
            lambda left_s: self._transport.transactions.commit(request, left_s),
            self._clock,
            self._timeout_s,
        )
        self._over = True
        for one in moved:
            one.done()
        return self._ids(result)

    def abort(self) -> None:
        """Give it up; nothing of it is stored. A second call does nothing."""
        if self._over:
            return
        self._over = True
        if self._id:
            self._transport.transactions.abort(self._id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            if not self._over:
                self.commit()
            return
        try:
            self.abort()
        except TMSError:
            if error is None:
                raise

    def _request(self, positions: Sequence[PositionChange]) -> Commit:
        blocks = tuple(
            TopicBlock(name, NewBlock(partition, encode(one.values, one.keys, one.headers)))
            for (name, partition), batches in self._batches.items()
            for one in batches
        )
        return Commit(
            self._id,
            "" if self._id else self._token,
            blocks,
            tuple(positions),
            tuple(sorted(self._changes)),
            self._durability,
        )

    def _ids(self, result: CommitResult) -> list[MessageId]:
        places = [batch.places for batches in self._batches.values() for batch in batches]
        found: list[tuple[int, MessageId]] = []
        for numbers, (_, place) in zip(places, result.appended, strict=False):
            found += zip(numbers, place.ids(), strict=True)
        return [id for _, id in sorted(found)]

    def _require_open(self) -> None:
        if self._over:
            raise Closed("The transaction is over; begin another one.")
