"""The asyncio worker: what `tms.client.worker` does, with a task for each message.

Invariants

* A message is begun as soon as it is received: no more are received than there are free tasks.
* Handlers that have not finished when the time to drain is over are cancelled; their messages are
  given back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tms.block.received import Delivered
from tms.client.leases import HeldMessage
from tms.client.queue import QueuePatience
from tms.client.worker import WAIT_S, Handling, WorkerOptions, on_signals, once
from tms.errors import TMSError
from tms.model.serializer import V

if TYPE_CHECKING:
    from tms.client.aio.queues import AsyncQueue

T = TypeVar("T")
AsyncHandler = Callable[[Delivered[V]], Awaitable[object]]


class AsyncWorker(Generic[V]):
    """Made by `AsyncQueue.worker`; see `Worker`. The handler is a coroutine function."""

    def __init__(
        self, queue: "AsyncQueue[V]", handler: AsyncHandler[V], options: WorkerOptions
    ) -> None:
        self._queue = queue
        self._options = options
        self._handling = Handling(queue.queue, handler, TaskHandlerIo, self.stop)
        self._patience = self._handling.patience
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()  # of messages that are handled
        self._task: asyncio.Task[None] | None = None

    def __call__(self, message: Delivered[V]) -> Awaitable[object]:
        """The result of the handler."""
        result: Awaitable[object] = self._handling.handler(message)
        return result

    def __repr__(self) -> str:
        return self._options.describe(self, self._queue)

    async def run(self) -> None:
        """As `Worker.run`. When it is cancelled, its handlers are."""
        with on_signals(lambda _: self.stop(), asyncio.get_running_loop()):
            task = self._start()
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self.stop()
                await asyncio.sleep(0)  # each handler has begun: its message is given back
                for handling in self._tasks:
                    handling.cancel()
                await task
                raise
        self._handling.reraise()

    async def start(self) -> None:
        """Work in tasks until `close`."""
        self._start()

    def stop(self) -> None:
        """As `Worker.stop`. On the worker's event loop."""
        self._stopping.set()
        self._patience.outage.ended.set()

    async def close(self) -> None:
        """As `Worker.close`."""
        self.stop()
        if self._task is not None:
            await asyncio.shield(self._task)
        self._handling.reraise()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # -- receiving ---------------------------------------------------------------------------------

    def _start(self) -> asyncio.Task[None]:
        if self._task is not None:
            raise once(self)
        self._task = asyncio.create_task(self._work(), name="tms-worker")
        return self._task

    async def _work(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                room = self._options.concurrency - len(self._tasks)
                if room:
                    await self._receive(room, stopping)
                else:
                    await asyncio.wait(
                        {stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED
                    )
        except Exception as error:
            self._handling.fail(error)
        finally:
            stopping.cancel()
            await self._drain()

    async def _receive(self, room: int, stopping: asyncio.Task[bool]) -> None:
        """Take what there is room for, unless the worker is to stop meanwhile."""
        receive = self._queue.receive
        receiving = asyncio.create_task(self._patience.survive_async(lambda: receive(room, WAIT_S)))
        await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await receiving
        if receiving.cancelled():
            return
        messages = receiving.result()
        if messages and self._stopping.is_set():
            with suppress(TMSError):  # then the leases end
                await self._queue.release(messages)
            return
        for message, held in zip(messages, self._queue.queue.leases.keep(messages), strict=True):
            task = asyncio.create_task(self._handling.handle(message, held))
            self._tasks.add(task)
            task.add_done_callback(partial(self._handled, held))

    def _handled(self, held: HeldMessage, task: asyncio.Task[None]) -> None:
        """A task has ended, which may have been cancelled before it began."""
        self._tasks.discard(task)
        self._queue.queue.leases.release(held)

    async def _drain(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait({*self._tasks}, timeout=self._options.drain_s)
            for task in late:
                task.cancel()
            if late:
                self._handling.not_drained(len(late))
                await asyncio.wait(late, timeout=self._patience.timeout_s)


class TaskHandlerIo:
    """The I/O of a worker on an event loop; see `HandlerIo`. A handler that is cancelled has
    failed."""

    cancelled: tuple[type[BaseException], ...] = (asyncio.CancelledError,)

    def __init__(self, patience: QueuePatience) -> None:
        self._patience = patience

    async def call(self, handler: AsyncHandler[V], message: Delivered[V]) -> None:
        """As `HandlerIo.call`."""
        await handler(message)

    async def survive(self, call: Callable[[], T]) -> T:
        """As `HandlerIo.survive`."""
        return await self._patience.survive_async(lambda: asyncio.to_thread(call))
