"""The bus: everything a program does with topics and messages, over an engine in the same process
or over HTTP.

Invariants

* Every call has a time-out: `timeout_s`, given when the bus is made or with the call.
* Retriable errors are met with repetitions within that time; a repetition never stores a message
  twice.
* How many partitions a topic has is remembered for a minute at most, and looked up again when that
  proves wrong.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self
from weakref import WeakSet

from tms.client.consumer import FETCH_BYTES, WAIT_S, Consumer
from tms.client.cursor import Cursor, Page, Start, asks, page, start_positions
from tms.client.delayed import DelayedCalls
from tms.client.groups.calls import GroupCalls
from tms.client.publish.batching import REQUEST_BYTES, Headers
from tms.client.publish.company import Lone, Together
from tms.client.publish.delivery import Delivery, Numbering
from tms.client.publish.known import (
    Known,
    Publishing,
    as_compression,
    as_durability,
    ids_in_order,
)
from tms.client.publish.producer import BATCH_BYTES, IN_FLIGHT_MAX, Producer, check_options
from tms.client.standing import Standing
from tms.client.table import Table
from tms.client.topics import TopicCalls
from tms.client.transaction import Transaction
from tms.client.transport import TIMEOUT_S, LocalTransport, RemoteTransport, open_lane
from tms.clock import Clock, SystemClock
from tms.errors import Invalid, NotFound
from tms.model.block import Compression
from tms.model.ids import MessageId
from tms.model.log import Appended
from tms.model.position import Kind, Position
from tms.model.snapshot import Isolation, as_view
from tms.model.topic import TopicName
from tms.model.transaction import check_group


class Bus(TopicCalls, GroupCalls, DelayedCalls):
    """Made by `tms.open(path)` and `tms.connect(url)`. Thread-safe. Use it as a context manager, or
    close it."""

    def __init__(
        self,
        transport: LocalTransport | RemoteTransport,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(transport, Publishing(clock), clock, timeout_s)
        self._together = Together(
            self._publishing, transport, self._delivery, timeout_s, self._clock
        )
        self._open: WeakSet[Producer | Consumer] = WeakSet()

    # --- publishing -------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> MessageId | None:
        """Publish one message and wait for its acknowledgement; its id, or None with durability
        `none`.

        A key decides the partition, unless `partition` does; with neither, messages take turns.
        While another thread's publish to the topic is under way, messages gather and go together
        in the next request. Raises `TopicNotFound`, `PartitionNotFound`, `Invalid`, `TooLarge`;
        `TimedOut` when it is unknown whether the message is stored.
        """
        known = self._publishing.known(topic) or self.look_up(topic)
        message = Lone(value, key, headers, partition)
        try:
            return self._together.publish(known, message, durability, timeout_s)
        except NotFound:  # the topic may have changed since it was looked up; nothing was stored
            known = self.look_up(topic)
            return self._together.publish(known, message, durability, timeout_s)

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        durability: str | None = None,
        compression: str = Compression.NONE,
        timeout_s: float | None = None,
    ) -> list[MessageId]:
        """Publish messages and wait for all acknowledgements; their ids in this order, none with
        durability `none`.

        Messages without key go to one partition together. What goes to one partition is stored as
        one block, all or nothing, up to 65,536 messages and 4 MiB. Errors carry `index` where one
        message is the reason; then nothing of the request was sent, unless it is larger than that.
        """
        packing, publishing = as_compression(compression), self._publishing
        known = publishing.known(topic) or self.look_up(topic)
        numbering = publishing.take_numbering()
        batcher = publishing.batcher(
            known,
            numbering,
            batch_bytes=REQUEST_BYTES,
            compression=packing,
            partition=partition,
        )
        delivery = self._delivery(known, durability, numbering, timeout_s, packing)
        appended: list[Appended] = []
        try:
            for _ in batcher.add_many(values, keys, headers, partition):
                appended += delivery.append(batcher.pack())
            if batcher.fillings:
                appended += delivery.append(batcher.pack())
        except NotFound:
            publishing.forget(topic)
            raise
        publishing.give_back(numbering)
        return ids_in_order(appended, batcher.partitions_of(len(values), keys, partition))

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = 0,
        batch_bytes: int = BATCH_BYTES,
        compression: str = Compression.NONE,
        durability: str | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        timeout_s: float | None = None,
    ) -> Producer:
        """A producer that batches by itself; see `Producer.send`.

        While a request is under way the next block fills; `linger_ms` makes every message wait that
        long for company. A block is sent when its messages have `batch_bytes`; up to
        `in_flight_max` requests (1 to 8) are under way. `compression` is none, lz4 or zstd. Raises
        `TopicNotFound`, `Invalid`.
        """
        check_options(linger_ms, batch_bytes, in_flight_max)
        packing = as_compression(compression)
        known = self.look_up(topic)
        numbering = Numbering()
        batcher = self._publishing.batcher(
            known, numbering, batch_bytes=batch_bytes, compression=packing
        )
        made = Producer(
            known.name,
            open_lane(self._transport),
            batcher,
            self._delivery(known, durability, numbering, timeout_s, packing),
            self._clock,
            lambda: self.look_up(topic).partitions,
            durability=as_durability(durability),
            linger_s=linger_ms / 1_000,
            in_flight_max=in_flight_max,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )
        self._open.add(made)
        return made

    # --- reading ----------------------------------------------------------------------------------

    def consumer(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        partitions: Sequence[int] | None = None,
        stop_at_end: bool = False,
        *,
        wait_s: float = WAIT_S,
        fetch_bytes: int = FETCH_BYTES,
        timeout_s: float | None = None,
        isolation: str | bytes = Isolation.COMMITTED,
        group: str = "",
    ) -> Consumer:
        """A consumer of all partitions, or of those named. With a group it begins where the group
        stands, and moves its position with `acknowledge`.

        `start` is `"earliest"`, `"latest"` (as of this call), a MessageId (inclusive), a datetime
        with time zone, `"offset:N"`, any position's text, or a mapping of partitions to these, such
        as `Consumer.positions()`. With `stop_at_end` the iteration ends behind the messages that
        were there when it began. Raises `TopicNotFound`, `PartitionNotFound`, `Invalid`.
        """
        name = TopicName.parse(topic)
        positions = start_positions(start, partitions, lambda: self.look_up(topic).partitions)
        stored = self._transport.transactions.positions(check_group(group), name) if group else {}
        positions.update({p: there for p, there in stored.items() if p in positions})
        latest = {p: there for p, there in positions.items() if there.kind is Kind.LATEST}
        if latest:
            positions.update(self._fetch(name, latest, 1, 0).next)
        made = Consumer(
            name,
            open_lane(self._transport),
            Cursor(str(name), positions, stop_at_end),
            self._clock,
            wait_s=wait_s,
            fetch_bytes=fetch_bytes,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            isolation=as_view(isolation),
            standing=Standing(group, name, stored),
            move=self._transport.transactions.move,
        )
        self._open.add(made)
        return made

    def transaction(
        self, *, durability: str | None = None, timeout_s: float | None = None
    ) -> Transaction:
        """A transaction over messages and positions: `with bus.transaction() as tx: tx.send(…)`.
        Its durability is the strongest of its topics', unless given."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return Transaction(
            lambda topic: self._publishing.known(topic) or self.look_up(topic),
            self._publishing.turn,
            self._transport,
            self._clock,
            as_durability(durability),
            limit_s,
        )

    def table(self, name: str) -> Table:
        """Key-value data that commits with messages; only of a bus that is opened, not connected.
        Raises `Invalid`."""
        tables = getattr(self._transport, "tables", None)
        if tables is None:
            raise Invalid(
                "Tables are kept by an engine in this process; use tms.open(…), or take a database "
                "with tms.sql."
            )
        return Table(name, tables)

    def fetch(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        partitions: Sequence[int] | None = None,
        *,
        bytes_max: int = FETCH_BYTES,
        wait_s: float = 0,
    ) -> Page:
        """One fetch: batches from `start` on, about `bytes_max` bytes of them, at least one if
        there is one.

        Waits up to `wait_s` for the first. Go on at the answer's `next`. Raises like `consumer`,
        and `OffsetOutOfRange`.
        """
        name = TopicName.parse(topic)
        positions = start_positions(start, partitions, lambda: self.look_up(topic).partitions)
        return self._fetch(name, positions, bytes_max, wait_s)

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close what is still open of its producers and consumers, then the bus. A second call does
        nothing."""
        with ExitStack() as last_first:
            last_first.callback(self._transport.close)
            for opened in list(self._open):
                last_first.callback(opened.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- parts ------------------------------------------------------------------------------------

    def _fetch(
        self, name: TopicName, positions: Mapping[int, Position], bytes_max: int, wait_s: float
    ) -> Page:
        turns = asks(positions)
        each = max(1, bytes_max // max(1, len(turns)))
        answers = (self._transport.fetch(name, turn, each, wait_s / len(turns)) for turn in turns)
        return page(str(name), positions, answers)

    def _delivery(
        self,
        known: Known,
        durability: str | None,
        numbering: Numbering,
        timeout_s: float | None,
        compression: Compression = Compression.NONE,
    ) -> Delivery:
        return Delivery(
            self._transport,
            known.name,
            as_durability(durability),
            numbering,
            compression,
            self._clock,
            self._timeout_s if timeout_s is None else timeout_s,
        )
