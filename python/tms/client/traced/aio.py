"""The asyncio bus, its producers and queues with spans; see `bus`. Each task has its own
active span."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tms.block import Compression
from tms.block.received import Delivered
from tms.client.aio.bus import AsyncBus
from tms.client.aio.channels import AsyncChannel
from tms.client.aio.derived import in_thread
from tms.client.aio.producer import AsyncProducer
from tms.client.aio.queues import AsyncQueue
from tms.client.aio.worker import AsyncHandler, AsyncWorker
from tms.client.batching import STAMPS_BYTES_MAX, Batcher, Expect, Headers
from tms.client.client import Bus
from tms.client.leases import HeldMessage
from tms.client.traced.bus import TracedBus, queue_telemetry, telemetry_of
from tms.client.traced.transport import TracedAsyncChannel
from tms.client.worker import WorkerOptions
from tms.model.ids import MessageId
from tms.model.message import Appended
from tms.model.quantity import Duration
from tms.model.queue import TokenResult
from tms.telemetry.messaging import TracedOperation


def traced_channels(
    bus: Bus, open_channel: Callable[[], AsyncChannel]
) -> Callable[[], AsyncChannel]:
    """Channels that tell of what they bring, as the transport of the bus does."""
    telemetry = telemetry_of(bus._transport)
    return lambda: TracedAsyncChannel(open_channel(), telemetry)


class TracedAsyncProducer(AsyncProducer):
    """See `AsyncProducer` and `TracedProducer`."""

    def __init__(self, channel: AsyncChannel, *parts: Any) -> None:
        assert isinstance(channel, TracedAsyncChannel), "it is made for traced channels"
        self._telemetry = channel.telemetry
        super().__init__(channel, *parts)

    async def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """See `Producer.send`."""
        self._sending.check()
        batcher: Batcher = self._sending.batcher or await self._begin()
        headers = self._telemetry.stamped(value, key, headers, batcher.message_bytes_max)
        await super().send(value, key, headers, partition)

    async def send_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """See `Producer.send_many`."""
        self._sending.check()
        batcher: Batcher = self._sending.batcher or await self._begin()
        columns = values, keys, headers
        headers, _ = self._telemetry.stamp(columns, batcher.message_bytes_max, STAMPS_BYTES_MAX)
        await super().send_many(values, keys, headers, partition)

    def _launch(self) -> None:
        operation = self._telemetry.sending(str(self._delivery.name), self._batcher.count)
        operation.enter()
        try:
            super()._launch()
        except BaseException as error:
            operation.end(error)
            raise
        finally:
            operation.leave()
        _end_with(operation, self._sending.flights[-1].pending)


def _end_with(operation: TracedOperation, task: "asyncio.Task[list[Appended]]") -> None:
    def ended(task: "asyncio.Task[list[Appended]]") -> None:
        operation.end(asyncio.CancelledError() if task.cancelled() else task.exception())

    task.add_done_callback(ended)


class TracedAsyncWorker(AsyncWorker):
    """See `AsyncWorker` and `TracedWorker`."""

    def __init__(self, queue: AsyncQueue, handler: AsyncHandler, options: WorkerOptions) -> None:
        self._telemetry = queue_telemetry(queue.queue)
        super().__init__(queue, self._telemetry.watched_async(handler), options)

    async def _settled(self, message: Delivered, held: HeldMessage) -> TokenResult:
        with self._telemetry.processing(message, self._queue.queue.group):
            return await super()._settled(message, held)


class TracedAsyncQueue(AsyncQueue):
    """See `AsyncQueue`."""

    _worker_type = TracedAsyncWorker

    @asynccontextmanager
    async def settling(self, message: Delivered) -> AsyncIterator[Delivered]:
        """See `Queue.settling`; within a span of the message."""
        with queue_telemetry(self.queue).processing(message, self.queue.group):
            async with super().settling(message):
                yield message


class TracedAsyncBus(AsyncBus):
    """See `AsyncBus` and `TracedBus`."""

    _producer_type, _queue_type = TracedAsyncProducer, TracedAsyncQueue

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
        """See `Bus.publish`."""
        telemetry = telemetry_of(self._sync._transport)
        with telemetry.sending(topic) as operation:
            known = self._publishing.known(topic) or await self._refresh_topic(topic)
            headers = telemetry.stamped(value, key, headers, known.message_bytes_max)
            id = await super().publish(
                topic, value, key, headers, partition, durability, timeout_s, expect
            )
            operation.note(id, partition)
            return id

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
        with telemetry_of(self._sync._transport).sending(topic, len(values)):
            return await super().publish_many(
                topic, values, keys, headers, partition, durability, compression, timeout_s, expect
            )

    publish_later_many = in_thread(TracedBus.publish_later_many)
