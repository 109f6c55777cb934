"""The asyncio bus, its producers and queues with spans; see `bus`. Each task has its own
active span."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tms.block.received import Delivered
from tms.client.aio.bus import AsyncBus
from tms.client.aio.derived import in_thread
from tms.client.aio.producer import AsyncProducer
from tms.client.aio.queues import AsyncQueue
from tms.client.aio.worker import AsyncHandler, AsyncWorker
from tms.client.leases import HeldMessage
from tms.client.traced.bus import (
    TracedBus,
    begin_request,
    queue_telemetry,
    sending,
    watched_async,
)
from tms.client.worker import WorkerOptions
from tms.model.message import Appended
from tms.model.queue import TokenResult
from tms.model.serializer import V
from tms.telemetry.messaging import TracedOperation


class TracedAsyncProducer(AsyncProducer[V]):
    """See `AsyncProducer` and `TracedProducer`."""

    def _launch(self) -> None:
        operation = begin_request(self._channel.telemetry, self)  # type: ignore[attr-defined]
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


class TracedAsyncWorker(AsyncWorker[V]):
    """See `AsyncWorker` and `TracedWorker`."""

    def __init__(
        self, queue: AsyncQueue[V], handler: AsyncHandler[V], options: WorkerOptions
    ) -> None:
        self._telemetry = queue_telemetry(queue.queue)
        super().__init__(queue, watched_async(handler), options)

    async def _settled(self, message: Delivered[V], held: HeldMessage) -> TokenResult:
        with self._telemetry.processing(message, self._queue.queue.group):
            return await super()._settled(message, held)


class TracedAsyncQueue(AsyncQueue[V]):
    """See `AsyncQueue`."""

    _worker_type = TracedAsyncWorker

    @asynccontextmanager
    async def settling(self, message: Delivered[V]) -> AsyncIterator[Delivered[V]]:
        """See `Queue.settling`; within a span of the message."""
        with queue_telemetry(self.queue).processing(message, self.queue.group):
            async with super().settling(message):
                yield message


class TracedAsyncBus(AsyncBus):
    """See `AsyncBus` and `TracedBus`."""

    _producer_type, _queue_type = TracedAsyncProducer, TracedAsyncQueue

    publish = sending(AsyncBus.publish)
    publish_many = sending(AsyncBus.publish_many)
    publish_later_many = in_thread(TracedBus.publish_later_many)
