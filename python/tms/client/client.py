"""The bus: topics and their messages, over an engine in the same process or over HTTP.

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
from typing import Any, Self, Unpack

from tms.api.parameters import TIMEOUT_S
from tms.api.queues import FETCH_BYTES_MAX
from tms.block import Compression, TimesColumn
from tms.client.backups import BackupCalls
from tms.client.batching import Batcher, Expect, as_columns
from tms.client.choices import CompressionChoice, DurabilityChoice
from tms.client.coalescing import Coalescing
from tms.client.committed import KnownPositions
from tms.client.consumer import Consumer, ThreadIo
from tms.client.consuming import ConsumerPlan, PartitionChoice
from tms.client.cursor import Page, Start, check_flag, start_positions
from tms.client.dead_letters import GroupDeadLetters, RetryOptions
from tms.client.delayed import DelayedCalls
from tms.client.delivery import Numbering, deliver
from tms.client.group_calls import GroupCalls
from tms.client.group_options import Group, as_group, check_dead_letter, member_options
from tms.client.group_reading import MemberReader
from tms.client.overview import OverviewCalls
from tms.client.producer import Producer
from tms.client.queue import QueueCalls
from tms.client.reading import (
    FETCH_BYTES,
    ConsumerSettings,
    FetchOptions,
    Reader,
    ReaderIo,
    ReaderParts,
    consumer_name,
)
from tms.client.sending import BATCH_BYTES, IN_FLIGHT_MAX, ProducerPlan, Sending
from tms.client.table import Table
from tms.client.topic_cache import Lone, Publication, TopicCache
from tms.client.topics import TopicCalls
from tms.client.transaction import Transaction
from tms.client.transport import LocalTransport, RemoteTransport, open_channel
from tms.client.view import ViewCalls
from tms.errors import Invalid, NotFound
from tms.model.filter import Filter, as_filter
from tms.model.ids import MessageId
from tms.model.message import Headers
from tms.model.position import Position, PositionKind
from tms.model.quantity import Duration, seconds, timeout, whole
from tms.model.serializer import Decoder, Serializer, V
from tms.model.topic import TopicName, parse_durability
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.options import check_options


class Bus(TopicCalls, GroupCalls, QueueCalls, DelayedCalls, ViewCalls, BackupCalls, OverviewCalls):
    """Topics and their messages, in an engine of this process or in a service. Thread-safe. Use it
    as a context manager, or close it. docs/python.md has more.

        with tms.open("data/") as bus:                     # or tms.connect("http://host:7070")
            bus.create_topic("flights", partitions=4)
            id = bus.publish("flights", b"LH 400", key=b"LH")
            with bus.producer("flights") as producer:      # batches by itself
                producer.send(b"LH 401", key=b"LH")
            for message in bus.consumer("flights", stop_at_end=True):
                print(message.id, message.value)
            with bus.consumer("flights", group="billing") as consumer:
                message = consumer.poll(timeout_s=5)       # the members of a group share a topic
                consumer.ack()
            with bus.transaction() as tx:                  # all or nothing
                tx.send("flights", b"LH 402")
    """

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
        memory = TopicCache(clock, getattr(transport, "place", None))
        super().__init__(transport, memory, clock, timeout_s, outage_s)
        self._place = place
        self._coalescing = Coalescing(self._publishing, transport, timeout_s, clock)

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
        durability: DurabilityChoice | None = None,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
        event_time_ms: int | None = None,
    ) -> MessageId | None:
        """Publish one message, wait for its acknowledgement, and return its id, which is None with
        durability `none`.

        The key selects the partition, unless `partition` does; messages with neither take turns.
        While a publish of another thread to the topic is in progress, messages are collected and
        sent together in the next request. `expect` is the id of the last message of the key that
        the caller knows, or `"nothing"`: the message is stored only if no later message of the key
        exists. Without a key, `expect` concerns the partition, which must be given. `event_time_ms`
        is stored with the message: any time in ms since 1970-01-01T00:00Z up to the year 9999, such
        as that of the event which it tells of. It orders nothing.

        Raises `TopicNotFound`, `PartitionNotFound`, `Invalid`, `TooLarge`, `WrongLastId`, and
        `TimedOut` if it is unknown whether the message is stored.
        """
        if expect is not None:
            cells = topic, [value], *as_columns(key, headers), partition, durability
            [id] = self.publish_many(*cells, Compression.NONE, timeout_s, expect, [event_time_ms])
            return id
        if timeout_s is not None:
            timeout_s = seconds("timeout_s", timeout_s)
        known = self._publishing.known(topic) or self._refresh_topic(topic)
        if self._publishing.place is not None:
            headers = self._publishing.placed(known, value, key, headers)
        message = Lone(value, key, headers, partition, event_time_ms)
        try:
            return self._coalescing.publish(known, message, durability, timeout_s)
        except NotFound:  # the topic may have changed since it was looked up; nothing was stored
            known = self._refresh_topic(topic)
            return self._coalescing.publish(known, message, durability, timeout_s)

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        durability: DurabilityChoice | None = None,
        compression: CompressionChoice = Compression.NONE,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
        event_times_ms: TimesColumn | None = None,
    ) -> list[MessageId]:
        """Publish messages, wait for all acknowledgements, and return the ids in the order of the
        messages; none with durability `none`.

        Messages without a key all go to one partition. The messages of one partition are stored as
        one block, all or nothing, up to 65,536 messages and 4 MiB; with `expect`, see `publish`,
        all messages are one block. Errors carry `index` if one message is the reason. Then nothing
        was sent, unless the messages exceed one request.
        """
        known = self._publishing.known(topic) or self._refresh_topic(topic)
        numbering = self._publishing.take_numbering()
        delivery = self._delivery(known.name, numbering, durability, timeout_s, compression)
        append = self._transport.append
        with Publication(self._publishing, topic, known, delivery, partition) as publication:
            for left in publication.requests(values, keys, headers, expect, event_times_ms):
                publication.appended += deliver(append, left, self._clock, delivery.timeout_s)
        return publication.ids(len(values), keys)

    def producer(
        self,
        topic: str,
        *,
        linger_ms: Duration = 0,
        batch_bytes: int = BATCH_BYTES,
        compression: CompressionChoice = Compression.NONE,
        durability: DurabilityChoice | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        timeout_s: Duration | None = None,
        serializer: Serializer[V] | None = None,
    ) -> Producer[V]:
        """A producer, which collects messages into batches; see `Producer.send`.

        While a request is in progress the next block fills; `linger_ms` makes every message wait
        that long for others. A block is sent when its messages have `batch_bytes`; up to
        `in_flight_max` requests (1 to 8) are in progress at once. `compression` is none, lz4 or
        zstd. With a `serializer` the producer accepts objects, see `tms.serializers`. Raises
        `TopicNotFound`, `Invalid`.
        """
        plan = self._producer_plan(
            topic, linger_ms, batch_bytes, compression, durability, in_flight_max, timeout_s
        )
        batcher = plan.batcher(self._publishing, self._refresh_topic(topic), serializer)
        producer: Producer[V] = Producer(
            self._transport,
            self._sending(plan, batcher),
            self._clock,
            lambda: self._refresh_topic(topic),
        )
        return self._opened(producer)

    # --- reading ----------------------------------------------------------------------------------

    def consumer(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        partitions: PartitionChoice = None,
        stop_at_end: bool = False,
        *,
        group: str | Group = "",
        where: str | Filter | None = None,
        serializer: Decoder[V] | None = None,
        **fetching: Unpack[FetchOptions],
    ) -> Consumer[V]:
        """A consumer of all partitions or of the given ones; with `where`, only of messages that
        match the filter (see `Filter`).

        With a `group`, which is a name or a `tms.Group` with settings, the consumer is a member of
        the group: the members share the partitions, and each begins at the group's position. With
        both `group` and `partitions` (some of them, or `"all"`) the consumer is no member: it reads
        these partitions whoever else does, from the group's position.

        `start` is `"earliest"`, `"latest"` (as of this call), a MessageId (inclusive), a datetime
        with time zone, the text of any position, or a mapping of partitions to these. With
        `stop_at_end` the consumer ends where each partition ended when it was first read. With a
        `serializer`, messages have the object as `decoded`, see `tms.serializers`. `fetching` are
        the `FetchOptions`: `wait_s`, `bytes_max`, `timeout_s`, `isolation`. Raises `TopicNotFound`,
        `PartitionNotFound`, `Invalid`.
        """
        plan = self._consumer_plan(
            topic, start, partitions, stop_at_end, group, where, serializer, fetching
        )
        io = ThreadIo(open_channel(self._transport), self._clock, plan.settings)
        return self._opened(Consumer(self._reader(plan, io), io))

    def transaction(
        self, *, durability: DurabilityChoice | None = None, timeout_s: Duration | None = None
    ) -> Transaction:
        """A transaction over messages and positions. Its durability is the strongest of its topics,
        unless given.

            with bus.transaction() as tx:
                tx.send(…)
        """
        limit_s = timeout(timeout_s, self._timeout_s)
        return self._transaction_type(
            self._publishing,
            self._refresh_topic,
            self._transport,
            self._clock,
            None if durability is None else parse_durability(durability),
            limit_s,
        )

    def table(self, name: str) -> Table:
        """Key-value data that commits together with messages; only for a bus of `tms.open`. Raises
        `Invalid` for a bus of `tms.connect`."""
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
        """Fetch once: batches from `start` on with about `bytes_max` bytes, at least one batch if
        there is any.

        Waits up to `wait_s` for the first batch. Continue at the page's `next`. Raises the errors
        of `consumer`, and `OffsetOutOfRange`.
        """
        known = self._publishing.known(topic)
        whole("bytes_max", bytes_max, 1, FETCH_BYTES_MAX)
        waiting_s = seconds("wait_s", wait_s) if wait_s else 0
        name = TopicName.parse(topic) if known is None else known.name
        positions = start_positions(
            start, partitions, lambda: (known or self._refresh_topic(topic)).partitions
        )
        try:
            return self._fetch(name, positions, bytes_max, waiting_s)
        except NotFound:  # the topic may have changed since it was remembered
            if known is None or partitions is not None:
                raise
        positions = start_positions(start, None, lambda: self._refresh_topic(topic).partitions)
        return self._fetch(name, positions, bytes_max, waiting_s)

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the producers and consumers of this bus that are still open, then the bus. A second
        call does nothing."""
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

    def _producer_plan(
        self,
        topic: str,
        linger_ms: Duration,
        batch_bytes: int,
        compression: str,
        durability: str | None,
        in_flight_max: int,
        timeout_s: Duration | None,
    ) -> ProducerPlan:
        """The checked arguments of `producer`. Raises `Invalid`."""
        name, numbering = TopicName.parse(topic), Numbering()
        return ProducerPlan.of(
            self._delivery(name, numbering, durability, timeout_s, compression),
            linger_ms,
            batch_bytes,
            in_flight_max,
        )

    def _sending(self, plan: ProducerPlan, batcher: Batcher[Any] | None) -> Sending[Any]:
        """The state of a producer; `batcher` is None until its topic is looked up."""
        return Sending(plan.delivery, plan.pace, batcher)

    def _consumer_plan(
        self,
        topic: str,
        start: Start | Mapping[int, Start],
        partitions: PartitionChoice,
        stop_at_end: bool,
        group: str | Group,
        where: str | Filter | None,
        serializer: Decoder[Any] | None,
        fetching: FetchOptions,
    ) -> ConsumerPlan:
        """The checked arguments of `consumer`. Raises `Invalid`."""
        name = TopicName.parse(topic)
        settings = as_group(group)
        check_flag("stop_at_end", stop_at_end)
        options = member_options(settings, partitions)
        retries = RetryOptions.of(settings)
        check_dead_letter(retries.dead_letter, options)
        dead_letters = None
        if options is not None:
            dead_letters = GroupDeadLetters(name, settings.name, retries, self)
        check_options("bus.consumer", fetching, FetchOptions.__annotations__)
        limit_s = timeout(fetching.get("timeout_s"), self._timeout_s)
        outage = self._outage(consumer_name(name, settings.name))
        return ConsumerPlan(
            start,
            partitions,
            stop_at_end,
            as_filter(where),
            serializer,
            ConsumerSettings.of(fetching, limit_s, outage),
            KnownPositions(name, settings.name, self._transport.groups),
            options,
            dead_letters,
        )

    def _reader(self, plan: ConsumerPlan, io: ReaderIo) -> Reader[Any]:
        """The reader of a consumer: looks up where it begins. Raises `TopicNotFound`."""
        positions = self._starts(plan)
        cursor = plan.cursor(positions)
        offsets = partial(_offsets, self._transport, plan)
        parts = ReaderParts(cursor, plan.committed, plan.settings, self._clock, io, offsets)
        if plan.options is None or plan.dead_letters is None:
            return Reader(parts)
        member = self._member(plan.committed.name, plan.options)
        member.begin(cursor, plan.committed, positions)
        return MemberReader(parts, member, plan.dead_letters)

    def _starts(self, plan: ConsumerPlan) -> dict[int, Position]:
        """The positions at which a consumer begins: those of its group, if it has some; `latest`
        is meant as of now."""
        name = plan.committed.name
        committed = plan.committed
        wanted = None if plan.partitions == "all" else plan.partitions
        positions = start_positions(
            plan.start, wanted, lambda: self._refresh_topic(str(name)).partitions
        )
        if plan.options is None and committed.group:
            stored = self.positions(str(name), group=committed.group)
            committed.learn(stored)
            positions.update({p: position for p, position in stored.items() if p in positions})
        latest = {p: at for p, at in positions.items() if at.kind is PositionKind.LATEST}
        if latest:
            positions.update(self._fetch(name, latest, 1, 0).next)
        return positions


def _offsets(
    transport: LocalTransport | RemoteTransport, plan: ConsumerPlan, position: Position
) -> Mapping[int, int]:
    """The offsets of a position, as the consumer of a plan reads."""
    return transport.offsets(plan.committed.name, position, plan.settings.isolation)
