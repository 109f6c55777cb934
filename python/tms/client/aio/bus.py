"""The asyncio bus: the same names as `tms.client.client.Bus`.

Publishing and reading run on the event loop. Administration is rare and runs on the synchronous bus
in a thread.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol, Self, TypeVar, Unpack
from weakref import WeakSet

from tms.api.queues import FETCH_BYTES_MAX
from tms.block import Compression, TimesColumn
from tms.client.aio.channels import AsyncChannel
from tms.client.aio.coalescing import AsyncCoalescing
from tms.client.aio.consumer import AsyncConsumer, TaskIo, on_this_loop
from tms.client.aio.derived import Derived, in_thread, iterated_in_thread
from tms.client.aio.pool import ChannelPool
from tms.client.aio.producer import AsyncProducer
from tms.client.aio.queues import AsyncQueue
from tms.client.aio.table import AsyncTable
from tms.client.aio.transaction import AsyncTransaction
from tms.client.batching import Expect, KnownTopic, as_columns
from tms.client.choices import CompressionChoice, DurabilityChoice
from tms.client.client import Bus
from tms.client.consuming import PartitionChoice
from tms.client.cursor import Page, Start, asks, page, start_positions
from tms.client.delivery import deliver_async
from tms.client.group_options import Group
from tms.client.reading import FETCH_BYTES, FetchOptions, Reader
from tms.client.sending import BATCH_BYTES, IN_FLIGHT_MAX
from tms.client.topic_cache import Lone, Publication
from tms.client.transport import FetchRequest
from tms.errors import NotFound
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import Headers
from tms.model.position import Position
from tms.model.quantity import Duration, seconds, whole
from tms.model.queue import QueueOptions
from tms.model.serializer import Decoder, Serializer, V
from tms.model.topic import TopicName
from tms.runtime.retrying import retrying_async

CHANNELS_MAX = 64


class AsyncClosing(Protocol):
    """An object that a bus closes."""

    async def close(self) -> None: ...


Opened = TypeVar("Opened", bound=AsyncClosing)


class AsyncBus(Derived[Bus]):
    """Made by `tms.aio.open(path)` and `tms.aio.connect(url)`. For one event loop. Use it with
    `async with`."""

    def __init__(self, bus: Bus, open_channel: Callable[[], AsyncChannel]) -> None:
        super().__init__(bus)
        self._publishing = bus._publishing
        self._open_channel = open_channel
        self._timeout_s = bus._timeout_s
        self._clock = bus._clock
        self._channels = ChannelPool(open_channel, CHANNELS_MAX)
        self._coalescing = AsyncCoalescing(
            self._publishing, self._channels, self._timeout_s, self._clock
        )
        self._open: WeakSet[AsyncClosing] = WeakSet()

    # --- publishing -------------------------------------------------------------------------------

    async def publish(
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
        """As `Bus.publish`. When it is cancelled, the message may or may not be stored."""
        if expect is not None:
            cells = topic, [value], *as_columns(key, headers), partition, durability
            [id] = await self.publish_many(
                *cells, Compression.NONE, timeout_s, expect, [event_time_ms]
            )
            return id
        known = self._publishing.known(topic) or await self._refresh_topic(topic)
        if self._publishing.place is not None:
            headers = self._publishing.placed(known, value, key, headers)
        message = Lone(value, key, headers, partition, event_time_ms)
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
        durability: DurabilityChoice | None = None,
        compression: CompressionChoice = Compression.NONE,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
        event_times_ms: TimesColumn | None = None,
    ) -> list[MessageId]:
        """As `Bus.publish_many`."""
        known = self._publishing.known(topic) or await self._refresh_topic(topic)
        numbering = self._publishing.take_numbering()
        delivery = self._sync._delivery(known.name, numbering, durability, timeout_s, compression)
        with Publication(self._publishing, topic, known, delivery, partition) as publication:
            async with self._channels.channel() as channel:
                for left in publication.requests(values, keys, headers, expect, event_times_ms):
                    publication.appended += await deliver_async(
                        channel.append, left, self._clock, delivery.timeout_s
                    )
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
    ) -> AsyncProducer[V]:
        """As `Bus.producer`."""
        plan = self._sync._producer_plan(
            topic, linger_ms, batch_bytes, compression, durability, in_flight_max, timeout_s
        )
        return self._opened(
            AsyncProducer(
                self._open_channel(),
                self._sync._sending(plan, None),
                lambda: self._refresh_topic(topic),
                lambda known: plan.batcher(self._publishing, known, serializer),
                self._clock,
            )
        )

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
    ) -> AsyncConsumer[V]:
        """As `Bus.consumer`; `latest`, and the group's position, are as of entering or iterating.
        The callbacks may be coroutine functions, and so may the handler of `handle`."""
        plan = self._sync._consumer_plan(
            topic, start, partitions, stop_at_end, group, where, serializer, fetching
        )
        io = TaskIo(self._open_channel(), self._clock, plan.settings)

        async def reader() -> Reader[V]:
            return await asyncio.to_thread(self._sync._reader, on_this_loop(plan), io)

        return self._opened(AsyncConsumer(reader, io, plan.committed))

    def transaction(
        self, *, durability: DurabilityChoice | None = None, timeout_s: Duration | None = None
    ) -> AsyncTransaction:
        """As `Bus.transaction`: `async with bus.transaction() as tx: await tx.send(…)`."""
        return AsyncTransaction(self._sync.transaction(durability=durability, timeout_s=timeout_s))

    def table(self, name: str) -> AsyncTable:
        """As `Bus.table`."""
        return AsyncTable(self._sync.table(name))

    async def queue(
        self,
        topic: str,
        *,
        group: str,
        serializer: Decoder[V] | None = None,
        **settings: Unpack[QueueOptions],
    ) -> AsyncQueue[V]:
        """As `Bus.queue`."""
        queue = await asyncio.to_thread(
            lambda: self._sync.queue(topic, group=group, serializer=serializer, **settings)
        )
        return self._opened(AsyncQueue(queue, self._open_channel))

    async def fetch(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        partitions: Sequence[int] | None = None,
        *,
        bytes_max: int = FETCH_BYTES,
        wait_s: Duration = 0,
    ) -> Page:
        """As `Bus.fetch`."""
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
    list_producers = in_thread(Bus.list_producers)
    inspect = in_thread(Bus.inspect)

    backup = in_thread(Bus.backup)
    list_topic_sizes = iterated_in_thread(Bus.list_topic_sizes)
    list_groups = iterated_in_thread(Bus.list_groups)
    list_queues = iterated_in_thread(Bus.list_queues)
    list_instances = in_thread(Bus.list_instances)

    describe_group = in_thread(Bus.describe_group)
    positions = in_thread(Bus.positions)
    plan_reset = in_thread(Bus.plan_reset)
    set_positions = in_thread(Bus.set_positions)
    forget_positions = in_thread(Bus.forget_positions)

    describe_queues = in_thread(Bus.describe_queues)
    list_dead_letters = iterated_in_thread(Bus.list_dead_letters)
    view = in_thread(Bus.view)

    publish_later = in_thread(Bus.publish_later)
    publish_later_many = in_thread(Bus.publish_later_many)
    cancel_delayed = in_thread(Bus.cancel_delayed)
    describe_delayed = in_thread(Bus.describe_delayed)
    list_delayed = iterated_in_thread(Bus.list_delayed)

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

    def _opened(self, opened: Opened) -> Opened:
        self._open.add(opened)
        return opened

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
