"""The asyncio bus: the same names as `tms.client.client.Bus`.

Publishing and reading run on the event loop. Administration is rare and runs on the synchronous bus
in a thread.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal, Self, TypeVar, Unpack
from weakref import WeakSet

from tms.api.parameters import TIMEOUT_S
from tms.api.queues import FETCH_BYTES_MAX
from tms.block import Compression
from tms.client.aio.channels import AsyncChannel
from tms.client.aio.coalescing import AsyncCoalescing
from tms.client.aio.consumer import AsyncConsumer
from tms.client.aio.derived import in_thread, iterated_in_thread
from tms.client.aio.member import AsyncMemberConsumer, AsyncTold
from tms.client.aio.pool import ChannelPool
from tms.client.aio.producer import AsyncProducer
from tms.client.aio.queues import AsyncQueue
from tms.client.aio.table import AsyncTable
from tms.client.aio.transaction import AsyncTransaction
from tms.client.batching import REQUEST_BYTES, Batcher, Expect, Headers, KnownTopic
from tms.client.client import Bus
from tms.client.committed import CommittedPositions
from tms.client.consumer import FETCH_BYTES, WAIT_S, ConsumerSettings, consumer_name
from tms.client.cursor import Cursor, Page, Start, asks, check_flag, page, start_positions
from tms.client.delivery import Numbering, Unacknowledged, deliver_async
from tms.client.group_letters import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    DELIVERIES,
    GroupLetters,
    LetterOptions,
)
from tms.client.group_options import DeliveryMode, check_letters, member_options
from tms.client.known import Lone, as_compression, ids_in_order
from tms.client.sending import BATCH_BYTES, IN_FLIGHT_MAX, SendPace
from tms.client.transport import FetchRequest
from tms.clock import Clock, SystemClock
from tms.errors import Invalid, NotFound
from tms.model.filter import Filter, as_filter
from tms.model.group import SESSION_S
from tms.model.ids import MessageId
from tms.model.message import Appended, NewBlock
from tms.model.position import Position
from tms.model.preconditions import ANSWERED
from tms.model.quantity import Duration, seconds, timeout, whole
from tms.model.queue import QueueOptions
from tms.model.serializer import Decoder, Serializer, V
from tms.model.snapshot import Isolation
from tms.model.topic import Durability, TopicName
from tms.retrying import retrying_async

T = TypeVar("T")

CHANNELS_MAX = 64


class AsyncBus:
    """Made by `tms.aio.open(path)` and `tms.aio.connect(url)`. For one event loop. Use it with
    `async with`."""

    _producer_type: type[AsyncProducer[Any]] = AsyncProducer
    _queue_type: type[AsyncQueue[Any]] = AsyncQueue

    def __init__(
        self,
        bus: Bus,
        open_channel: Callable[[], AsyncChannel],
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._sync = bus
        self._publishing = bus.publishing
        self._open_channel = open_channel
        self._timeout_s = timeout_s
        self._clock = clock
        self._channels = ChannelPool(open_channel, CHANNELS_MAX)
        send = partial(_send, bus, self._channels, clock)
        self._coalescing = AsyncCoalescing(self._publishing, send, timeout_s)
        self._open: WeakSet[AsyncProducer[Any] | AsyncConsumer[Any] | AsyncQueue[Any]] = WeakSet()

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"

    # --- publishing -------------------------------------------------------------------------------

    async def publish(
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
        """See `Bus.publish`. When it is cancelled, the message may or may not be stored."""
        if expect is not None:
            some = None if key is None else [key], None if headers is None else [headers]
            [id] = await self.publish_many(
                topic, [value], *some, partition, durability, timeout_s=timeout_s, expect=expect
            )
            return id
        if timeout_s is not None:
            timeout_s = seconds("timeout_s", timeout_s)
        known = self._publishing.known(topic) or await self._refresh_topic(topic)
        if self._publishing.place is not None:
            headers = self._publishing.placed(known, value, key, headers)
        message = Lone(value, key, headers, partition)
        try:
            return await self._coalescing.publish(known, message, durability, timeout_s)
        except NotFound:  # the topic may have changed since it was looked up; nothing was stored
            known = await self._refresh_topic(topic)
            return await self._coalescing.publish(known, message, durability, timeout_s)

    async def publish_many(
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
        """See `Bus.publish_many`."""
        packing, publishing = as_compression(compression), self._publishing
        if expect is not None and durability == Durability.NONE:
            raise Invalid(ANSWERED, field="expect")
        known = publishing.known(topic) or await self._refresh_topic(topic)
        numbering = publishing.take_numbering()
        batcher = publishing.batcher(
            known,
            numbering,
            batch_bytes=REQUEST_BYTES,
            compression=packing,
            partition=partition,
        )
        delivery = self._sync.delivery(known.name, numbering, durability, timeout_s, packing)
        appended: list[Appended] = []
        try:
            async with self._channels.channel() as channel:
                for blocks in batcher.requests(values, keys, headers, partition, expect):
                    left = Unacknowledged(delivery, blocks)
                    appended += await deliver_async(
                        channel.append, left, self._clock, delivery.timeout_s
                    )
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
    ) -> AsyncProducer[V]:
        """See `Bus.producer`."""
        pace = SendPace.of(linger_ms, batch_bytes, in_flight_max)
        packing = as_compression(compression)
        name, numbering = TopicName.parse(topic), Numbering()

        async def batcher() -> Batcher[V]:
            return self._publishing.batcher(
                await self._refresh_topic(topic),
                numbering,
                batch_bytes=batch_bytes,
                compression=packing,
                serializer=serializer,
            )

        producer = self._producer_type(
            self._open_channel(),
            batcher,
            self._sync.delivery(name, numbering, durability, timeout_s, packing),
            self._clock,
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
        on_assigned: AsyncTold | None = None,
        on_revoked: AsyncTold | None = None,
        dead_letter: str | None = None,
        deliveries_max: int = DELIVERIES,
        backoff_first_s: Duration = BACKOFF_FIRST_S,
        backoff_max_s: Duration = BACKOFF_MAX_S,
        serializer: Decoder[V] | None = None,
    ) -> AsyncConsumer[V]:
        """See `Bus.consumer`; `latest`, and where the group stands, are as of entering or
        iterating. The callbacks may be coroutine functions, and so may the handler of `handle`."""
        name, wanted = TopicName.parse(topic), as_filter(where)
        check_flag("stop_at_end", stop_at_end)
        options = member_options(group, partitions, delivery, session_s, on_assigned, on_revoked)
        retries = LetterOptions.of(dead_letter, deliveries_max, backoff_first_s, backoff_max_s)
        check_letters(retries.dead_letter, options)
        committed = CommittedPositions(name, group, self._sync._transport.groups)

        async def cursor() -> Cursor:
            known = committed if options is None else None
            starts = self._sync.starts
            positions = await asyncio.to_thread(starts, topic, start, partitions, known)
            return Cursor(str(name), positions, stop_at_end, wanted, serializer)

        limit_s = timeout(timeout_s, self._timeout_s)
        outage = self._sync.outage(consumer_name(name, group))
        fetching = ConsumerSettings.of(wait_s, bytes_max, limit_s, isolation, outage)
        place = (name, self._open_channel(), cursor, self._clock, fetching, committed)
        if options is None:
            consumer: AsyncConsumer[V] = AsyncConsumer(*place)
        else:
            member = partial(self._sync.member, name, options)
            letters = GroupLetters(name, group, retries, self._sync)
            consumer = AsyncMemberConsumer(*place, make_member=member, letters=letters)
        self._open.add(consumer)
        return consumer

    def transaction(
        self, *, durability: str | None = None, timeout_s: Duration | None = None
    ) -> AsyncTransaction:
        """See `Bus.transaction`: `async with bus.transaction() as tx: await tx.send(…)`."""
        return AsyncTransaction(self._sync.transaction(durability=durability, timeout_s=timeout_s))

    def table(self, name: str) -> AsyncTable:
        """See `Bus.table`."""
        return AsyncTable(self._sync.table(name))

    async def queue(
        self,
        topic: str,
        *,
        group: str,
        serializer: Decoder[V] | None = None,
        **settings: Unpack[QueueOptions],
    ) -> AsyncQueue[V]:
        """See `Bus.queue`."""
        queue = await asyncio.to_thread(
            lambda: self._sync.queue(topic, group=group, serializer=serializer, **settings)
        )
        async_queue = self._queue_type(queue, self._open_channel, self._clock, self._timeout_s)
        self._open.add(async_queue)
        return async_queue

    async def fetch(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        partitions: Sequence[int] | None = None,
        *,
        bytes_max: int = FETCH_BYTES,
        wait_s: Duration = 0,
    ) -> Page:
        """See `Bus.fetch`."""
        whole("bytes_max", bytes_max, 1, FETCH_BYTES_MAX)
        waiting_s = seconds("wait_s", wait_s)
        name = TopicName.parse(topic)
        counted = partitions is None and not isinstance(start, Mapping)
        known = self._publishing.known(topic) if counted else None
        if known is not None:
            positions = start_positions(start, None, lambda: known.partitions)
            try:
                return await self._fetch(name, positions, bytes_max, waiting_s)
            except NotFound:  # the topic may have changed since it was remembered
                pass
        partition_count = (await self._refresh_topic(topic)).partitions if counted else 0
        positions = start_positions(start, partitions, lambda: partition_count)
        return await self._fetch(name, positions, bytes_max, waiting_s)

    # --- administration: what the bus does, in a thread -------------------------------------------

    create_topic = in_thread(Bus.create_topic)
    describe_topic = in_thread(Bus.describe_topic)
    list_topics = iterated_in_thread(Bus.list_topics)
    update_topic = in_thread(Bus.update_topic)
    truncate_topic = in_thread(Bus.truncate_topic)
    erase = in_thread(Bus.erase)
    delete_topic = in_thread(Bus.delete_topic)
    offsets = in_thread(Bus.offsets)
    inspect = in_thread(Bus.inspect)

    backup = in_thread(Bus.backup)
    topic_sizes = iterated_in_thread(Bus.topic_sizes)
    list_groups = iterated_in_thread(Bus.list_groups)
    list_queues = iterated_in_thread(Bus.list_queues)
    instances = in_thread(Bus.instances)

    groups = in_thread(Bus.groups)
    group = in_thread(Bus.group)
    positions = in_thread(Bus.positions)
    set_positions = in_thread(Bus.set_positions)
    forget_positions = in_thread(Bus.forget_positions)

    queues = in_thread(Bus.queues)
    dead_letters = iterated_in_thread(Bus.dead_letters)
    view = in_thread(Bus.view)

    publish_later = in_thread(Bus.publish_later)
    publish_later_many = in_thread(Bus.publish_later_many)
    cancel = in_thread(Bus.cancel)
    delayed = in_thread(Bus.delayed)
    delayed_messages = iterated_in_thread(Bus.delayed_messages)

    # --- closing ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close what is still open of its producers and consumers, then the bus."""
        self._channels.end()
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(asyncio.to_thread, self._sync.close)
            last_first.callback(self._channels.close)
            for opened in list(self._open):
                last_first.push_async_callback(opened.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # --- parts ------------------------------------------------------------------------------------

    async def _refresh_topic(self, topic: str) -> KnownTopic:
        self._publishing.forget(topic)
        return self._publishing.learn(topic, await self.describe_topic(topic))

    async def _fetch(
        self, name: TopicName, positions: Mapping[int, Position], bytes_max: int, wait_s: float
    ) -> Page:
        turns = asks(positions)
        each, wait_s = max(1, bytes_max // max(1, len(turns))), wait_s / max(1, len(turns))
        answers = []
        async with self._channels.channel() as channel:
            for turn in turns:
                fetch = partial(channel.fetch, FetchRequest(name, turn, each, wait_s))
                clock, limit_s = self._clock, self._timeout_s
                answers.append(await retrying_async(fetch, clock, limit_s, what="fetch"))
        return page(str(name), positions, answers)


async def _send(
    bus: Bus,
    channels: ChannelPool,
    clock: Clock,
    known: KnownTopic,
    durability: str | None,
    numbering: Numbering,
    timeout_s: float | None,
    blocks: list[NewBlock],
) -> list[Appended]:
    """Deliver blocks of coalesced publishes; see `tms.client.client`."""
    delivery = bus.delivery(known.name, numbering, durability, timeout_s)
    left = Unacknowledged(delivery, blocks)
    async with channels.channel() as channel:
        return await deliver_async(channel.append, left, clock, delivery.timeout_s)
