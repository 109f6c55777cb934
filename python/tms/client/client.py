"""The bus: everything a program does with topics and messages, over an engine in the same process
or over HTTP.

Invariants

* Every call has a time-out: `timeout_s`, given when the bus is made or with the call.
* Retriable errors are met with repetitions within that time; a repetition never stores a message
  twice. What reads on and on goes on repeating for `outage_s`, without end if None.
* How many partitions a topic has is remembered for a minute at most, and looked up again when that
  proves wrong.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, Self

from tms.api.parameters import TIMEOUT_S
from tms.api.queues import FETCH_BYTES_MAX
from tms.block import Compression
from tms.client.backups import BackupCalls
from tms.client.batching import REQUEST_BYTES, Expect, Headers, KnownTopic
from tms.client.coalescing import Coalescing
from tms.client.committed import CommittedPositions
from tms.client.consumer import FETCH_BYTES, WAIT_S, Consumer, ConsumerSettings, consumer_name
from tms.client.cursor import Cursor, Page, Start, check_flag, start_positions
from tms.client.delayed import DelayedCalls
from tms.client.delivery import Append, Delivery, Numbering, Unacknowledged, deliver
from tms.client.glance import GlanceCalls
from tms.client.group_calls import GroupCalls
from tms.client.group_consumer import MemberConsumer
from tms.client.group_letters import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    DELIVERIES,
    GroupLetters,
    LetterOptions,
)
from tms.client.group_options import (
    DeliveryMode,
    MemberOptions,
    Told,
    check_letters,
    member_options,
)
from tms.client.known import Lone, PublishMemory, as_compression, as_durability, ids_in_order
from tms.client.producer import Producer
from tms.client.queue import QueueCalls
from tms.client.sending import BATCH_BYTES, IN_FLIGHT_MAX, SendPace
from tms.client.table import Table
from tms.client.topics import TopicCalls
from tms.client.transaction import Transaction
from tms.client.transport import Channel, LocalTransport, RemoteTransport, open_channel
from tms.client.view import ViewCalls
from tms.clock import Clock, SystemClock
from tms.errors import Invalid, NotFound, TMSError
from tms.model.filter import Filter, as_filter
from tms.model.group import SESSION_S
from tms.model.ids import MessageId
from tms.model.message import Appended, NewBlock
from tms.model.position import Position, PositionKind
from tms.model.preconditions import ANSWERED
from tms.model.quantity import Duration, seconds, timeout, whole
from tms.model.serializer import Decoder, Serializer, V
from tms.model.snapshot import Isolation
from tms.model.topic import Durability, TopicName, parse_durability


class Bus(TopicCalls, GroupCalls, QueueCalls, DelayedCalls, ViewCalls, BackupCalls, GlanceCalls):
    """Made by `tms.open(path)` and `tms.connect(url)`. Thread-safe. Use it as a context manager, or
    close it."""

    _producer_type: type[Producer[Any]] = Producer
    _transaction_type: type[Transaction] = Transaction

    def __init__(
        self,
        transport: LocalTransport | RemoteTransport,
        *,
        timeout_s: float = TIMEOUT_S,
        outage_s: float | None = 0,
        clock: Clock | None = None,
        place: str = "",
    ) -> None:
        clock = clock or SystemClock()
        memory = PublishMemory(clock, getattr(transport, "place", None))
        super().__init__(transport, memory, clock, timeout_s, outage_s)
        self._place = place
        send = partial(_send, transport.append, clock, timeout_s)  # without a cycle: see `_send`
        self._coalescing = Coalescing(self._publishing, transport, send, timeout_s, clock)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}{' closed' if self._closed else ''}>"

    # --- publishing -------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        durability: str | None = None,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
    ) -> MessageId | None:
        """Publish one message and wait for its acknowledgement; its id, or None with durability
        `none`.

        A key decides the partition, unless `partition` does; with neither, messages take turns.
        While another thread's publish to the topic is under way, messages gather and go together
        in the next request. With `expect`, the id of the last message of the key that the caller
        knows or `"nothing"`, it is stored only if none of the key came after; without a key that
        is about the partition, which is to be given. Raises `TopicNotFound`, `PartitionNotFound`,
        `Invalid`, `TooLarge`, `WrongLastId`; `TimedOut` when it is unknown whether it is stored.
        """
        if expect is not None:
            some = None if key is None else [key], None if headers is None else [headers]
            [id] = self.publish_many(
                topic, [value], *some, partition, durability, timeout_s=timeout_s, expect=expect
            )
            return id
        if timeout_s is not None:
            timeout_s = seconds("timeout_s", timeout_s)
        known = self._publishing.known(topic) or self.refresh_topic(topic)
        if self._publishing.place is not None:
            headers = self._publishing.placed(known, value, key, headers)
        message = Lone(value, key, headers, partition)
        try:
            return self._coalescing.publish(known, message, durability, timeout_s)
        except NotFound:  # the topic may have changed since it was looked up; nothing was stored
            known = self.refresh_topic(topic)
            return self._coalescing.publish(known, message, durability, timeout_s)

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        durability: str | None = None,
        compression: str = Compression.NONE,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
    ) -> list[MessageId]:
        """Publish messages and wait for all acknowledgements; their ids in this order, none with
        durability `none`.

        Messages without key go to one partition together. What goes to one partition is stored as
        one block, all or nothing, up to 65,536 messages and 4 MiB; with `expect`, see `publish`,
        all go as one. Errors carry `index` where one message is the reason; then nothing of the
        request was sent, unless it is larger than that.
        """
        packing, publishing = as_compression(compression), self._publishing
        if expect is not None and durability == Durability.NONE:
            raise Invalid(ANSWERED, field="expect")
        known = publishing.known(topic) or self.refresh_topic(topic)
        numbering = publishing.take_numbering()
        batcher = publishing.batcher(
            known,
            numbering,
            batch_bytes=REQUEST_BYTES,
            compression=packing,
            partition=partition,
        )
        delivery = self.delivery(known.name, numbering, durability, timeout_s, packing)
        append = self._transport.append
        appended: list[Appended] = []
        try:
            for blocks in batcher.requests(values, keys, headers, partition, expect):
                left = Unacknowledged(delivery, blocks)
                appended += deliver(append, left, self._clock, delivery.timeout_s)
        except NotFound:
            publishing.forget(topic)
            raise
        publishing.return_numbering(numbering)
        return ids_in_order(appended, batcher.partitions_of(len(values), keys, partition))

    def producer(
        self,
        topic: str,
        *,
        linger_ms: Duration = 0,
        batch_bytes: int = BATCH_BYTES,
        compression: str = Compression.NONE,
        durability: str | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        timeout_s: Duration | None = None,
        serializer: Serializer[V] | None = None,
    ) -> Producer[V]:
        """A producer that batches by itself; see `Producer.send`.

        While a request is under way the next block fills; `linger_ms` makes every message wait that
        long for others. A block is sent when its messages have `batch_bytes`; up to
        `in_flight_max` requests (1 to 8) are under way. `compression` is none, lz4 or zstd. With a
        `serializer` it takes objects, see `tms.serializers`. Raises `TopicNotFound`, `Invalid`.
        """
        pace = SendPace.of(linger_ms, batch_bytes, in_flight_max)
        packing = as_compression(compression)
        known = self.refresh_topic(topic)
        numbering = Numbering()
        batcher = self._publishing.batcher(
            known,
            numbering,
            batch_bytes=batch_bytes,
            compression=packing,
            serializer=serializer,
        )
        delivery = self.delivery(known.name, numbering, durability, timeout_s, packing)
        producer = self._producer_type(
            self._transport,
            batcher,
            delivery,
            self._clock,
            lambda: self.refresh_topic(topic).partitions,
            pace,
        )
        self._open.add(producer)
        return producer

    # --- reading ----------------------------------------------------------------------------------

    def consumer(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        partitions: Sequence[int] | Literal["all"] | None = None,
        stop_at_end: bool = False,
        *,
        wait_s: Duration = WAIT_S,
        bytes_max: int = FETCH_BYTES,
        timeout_s: Duration | None = None,
        isolation: str | bytes = Isolation.COMMITTED,
        group: str = "",
        where: str | Filter | None = None,
        delivery: str = DeliveryMode.EXPLICIT,
        session_s: Duration = SESSION_S,
        on_assigned: Told | None = None,
        on_revoked: Told | None = None,
        dead_letter: str | None = None,
        deliveries_max: int = DELIVERIES,
        backoff_first_s: Duration = BACKOFF_FIRST_S,
        backoff_max_s: Duration = BACKOFF_MAX_S,
        serializer: Decoder[V] | None = None,
    ) -> Consumer[V]:
        """A consumer of all partitions, or of those named; with `where` of the messages that match,
        see `Filter`. With a group it is a member, see docs/groups.md: the members share the
        partitions, each beginning where the group stands; with `partitions` too (some, or `"all"`)
        it reads them whoever else does. `delivery` says when the group's position moves: `explicit`
        (by `ack`), `at-most-once`, `at-least-once` or `exactly-once` (in a transaction).
        `dead_letter` and what follows are about `Consumer.handle`.

        `start` is `"earliest"`, `"latest"` (as of this call), a MessageId (inclusive), a datetime
        with time zone, any position's text, or a mapping of partitions to these. With `stop_at_end`
        it ends where each partition ended when it was first read. A `serializer` gives messages
        `decoded`, see `tms.serializers`. Raises `TopicNotFound`, `PartitionNotFound`, `Invalid`.
        """
        name, wanted = TopicName.parse(topic), as_filter(where)
        check_flag("stop_at_end", stop_at_end)
        options = member_options(group, partitions, delivery, session_s, on_assigned, on_revoked)
        retries = LetterOptions.of(dead_letter, deliveries_max, backoff_first_s, backoff_max_s)
        check_letters(retries.dead_letter, options)
        committed = CommittedPositions(name, group, self._transport.groups)
        known = committed if options is None else None
        positions = self.starts(topic, start, partitions, known)
        begun = positions if options is None else {}
        cursor = Cursor(str(name), begun, stop_at_end, wanted, serializer)
        limit_s = timeout(timeout_s, self._timeout_s)
        outage = self.outage(consumer_name(name, group))
        settings = ConsumerSettings.of(wait_s, bytes_max, limit_s, isolation, outage)
        place = (name, open_channel(self._transport), cursor, self._clock, settings, committed)
        return self._consumer(place, options, retries, positions)

    def _consumer(
        self,
        place: tuple[TopicName, Channel, Cursor, Clock, ConsumerSettings, CommittedPositions],
        options: MemberOptions | None,
        retries: LetterOptions,
        starts: Mapping[int, Position],
    ) -> Consumer[V]:
        if options is None:
            consumer: Consumer[V] = Consumer(*place)
        else:
            name, _, cursor, _, _, committed = place
            letters = GroupLetters(name, committed.group, retries, self)
            member = self.member(name, options)
            member.begin(cursor, committed, starts)
            consumer = MemberConsumer(*place, member=member, letters=letters)
        self._open.add(consumer)
        return consumer

    def transaction(
        self, *, durability: str | None = None, timeout_s: Duration | None = None
    ) -> Transaction:
        """A transaction over messages and positions: `with bus.transaction() as tx: tx.send(…)`.
        Its durability is the strongest of its topics', unless given."""
        limit_s = timeout(timeout_s, self._timeout_s)
        return self._transaction_type(
            self._publishing,
            self.refresh_topic,
            self._transport,
            self._clock,
            None if durability is None else parse_durability(durability),
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
        wait_s: Duration = 0,
    ) -> Page:
        """One fetch: batches from `start` on, about `bytes_max` bytes of them, at least one unless
        there is none.

        Waits up to `wait_s` for the first. Go on at the answer's `next`. Raises like `consumer`,
        and `OffsetOutOfRange`.
        """
        known = self._publishing.known(topic)
        whole("bytes_max", bytes_max, 1, FETCH_BYTES_MAX)
        waiting_s = seconds("wait_s", wait_s) if wait_s else 0
        name = TopicName.parse(topic) if known is None else known.name
        positions = start_positions(
            start, partitions, lambda: (known or self.refresh_topic(topic)).partitions
        )
        try:
            return self._fetch(name, positions, bytes_max, waiting_s)
        except NotFound:  # the topic may have changed since it was remembered
            if known is None or partitions is not None:
                raise
        positions = start_positions(start, None, lambda: self.refresh_topic(topic).partitions)
        return self._fetch(name, positions, bytes_max, waiting_s)

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close what is still open of its producers and consumers, then the bus. A second call does
        nothing."""
        self._closed = True
        with ExitStack() as last_first:
            last_first.callback(self._transport.close)
            for opened in list(self._open):
                last_first.callback(opened.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- parts ------------------------------------------------------------------------------------

    def starts(
        self,
        topic: str,
        start: Start | Mapping[int, Start],
        partitions: Sequence[int] | Literal["all"] | None,
        committed: CommittedPositions | None,
    ) -> dict[int, Position]:
        """Where a consumer begins: where its group stands, if it has one; `latest` is meant as of
        now."""
        wanted = None if partitions == "all" else partitions
        positions = start_positions(start, wanted, lambda: self.refresh_topic(topic).partitions)
        if committed is not None and committed.group:
            stored = self.positions(topic, group=committed.group)
            committed.learn(stored)
            positions.update({p: position for p, position in stored.items() if p in positions})
        latest = {p: at for p, at in positions.items() if at.kind is PositionKind.LATEST}
        if latest:
            positions.update(self._fetch(TopicName.parse(topic), latest, 1, 0).next)
        return positions


def _send(
    append: Append[list[Appended]],
    clock: Clock,
    timeout_s: float,
    known: KnownTopic,
    durability: str | None,
    numbering: Numbering,
    left_s: float | None,
    blocks: list[NewBlock],
    failed: TMSError | None = None,
) -> list[Appended]:
    """Deliver blocks of coalesced publishes. No method of the bus, which would hold itself then: a
    dropped bus ends at once, with its connections."""
    limit_s = timeout(left_s, timeout_s)
    how = Delivery(known.name, numbering, as_durability(durability), Compression.NONE, limit_s)
    return deliver(append, Unacknowledged(how, blocks), clock, limit_s, failed)
