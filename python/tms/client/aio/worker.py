"""The asyncio worker: what `tms.client.worker` does, with a task for each message.

Invariants

* A message is begun as soon as it is received: no more are received than there are free tasks.
* Handlers that have not finished when the time to drain is over are cancelled; their messages are
  given back.
"""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tms.block.received import Delivered
from tms.client.leases import HeldMessage
from tms.client.worker import (
    NOTHING_DONE,
    SIGNALS,
    WAIT_S,
    WorkerOptions,
    once,
    tell_dead,
    tell_failed,
    tell_lost,
    tell_not_drained,
    tell_unsettled,
)
from tms.errors import TMSError
from tms.model.queue import TokenResult, error_text
from tms.model.serializer import V
from tms.retrying import is_retriable, retrying_async

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
        self._handler = handler
        self._options = options
        sync = queue.queue
        self._name = f"worker of the queue {sync.group} of {sync.name}"
        self._clock, self._timeout_s, outage = sync.patience
        self._outage = outage.beside(self._name)
        self._stopping = asyncio.Event()
        self._handling: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def __call__(self, message: Delivered[V]) -> Awaitable[object]:
        """What the handler says."""
        return self._handler(message)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue!r}, {self._options.concurrency} at once>"

    async def run(self) -> None:
        """See `Worker.run`. When it is cancelled, its handlers are."""
        with self._signals():
            task = self._start()
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self.stop()
                for handling in self._handling:
                    handling.cancel()
                await task
                raise
        self._raise()

    async def start(self) -> None:
        """Work in tasks until `close`."""
        self._start()

    def stop(self) -> None:
        """See `Worker.stop`. On the worker's event loop."""
        self._stopping.set()
        self._outage.ended.set()

    async def close(self) -> None:
        """See `Worker.close`."""
        self.stop()
        if self._task is not None:
            await asyncio.shield(self._task)
        self._raise()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        usual = {one: signal.getsignal(one) or signal.SIG_DFL for one in SIGNALS}

        def restore() -> None:
            for one, handler in usual.items():
                loop.remove_signal_handler(one)
                signal.signal(one, handler)

        def first() -> None:
            restore()
            self.stop()

        for one in SIGNALS:
            loop.add_signal_handler(one, first)
        try:
            yield
        finally:
            restore()

    # -- receiving ---------------------------------------------------------------------------------

    def _start(self) -> asyncio.Task[None]:
        if self._task is not None:
            raise once(self)
        self._task = asyncio.create_task(self._work(), name="tms-worker")
        return self._task

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: BaseException) -> None:
        if not (self._stopping.is_set() and is_retriable(error)):
            self._error = self._error or error
        self.stop()

    async def _work(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                room = self._options.concurrency - len(self._handling)
                if room:
                    await self._receive(room, stopping)
                else:
                    await asyncio.wait(
                        {stopping, *self._handling}, return_when=asyncio.FIRST_COMPLETED
                    )
        except Exception as error:
            self._fail(error)
        finally:
            stopping.cancel()
            await self._drain()

    async def _receive(self, room: int, stopping: asyncio.Task[bool]) -> None:
        """Take what there is room for, unless the worker is to stop meanwhile."""
        receive = self._queue.receive
        receiving = asyncio.create_task(self._survive(lambda: receive(room, WAIT_S)))
        await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await receiving
        if receiving.cancelled():
            return
        messages = receiving.result()
        for message, held in zip(messages, self._queue.queue.leases.keep(messages), strict=True):
            task = asyncio.create_task(self._handle(message, held))
            self._handling.add(task)
            task.add_done_callback(partial(self._handled, held))

    def _handled(self, held: HeldMessage, task: asyncio.Task[None]) -> None:
        """A task has ended, which may have been cancelled before it began."""
        self._handling.discard(task)
        self._queue.queue.leases.release(held)

    async def _drain(self) -> None:
        if self._handling:
            _, late = await asyncio.wait({*self._handling}, timeout=self._options.drain_s)
            for task in late:
                task.cancel()
            if late:
                tell_not_drained(self._name, len(late))
                await asyncio.wait(late, timeout=self._timeout_s)

    async def _survive(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retrying_async(
            lambda _: call(), self._clock, self._timeout_s, outage=self._outage
        )

    # -- handling ----------------------------------------------------------------------------------

    async def _handle(self, message: Delivered[V], held: HeldMessage) -> None:
        try:
            result = await self._settled(message, held)
            if result.fenced and not held.lost:  # else that is told already
                tell_lost(self._name, message)
        except TMSError as error:
            if error.retriable:
                tell_unsettled(self._name, message, error)
            else:
                self._fail(error)

    async def _settled(self, message: Delivered[V], held: HeldMessage) -> TokenResult:
        """What the service says of its settlement."""
        queue = self._queue
        try:
            await self._handler(message)
        except BaseException as error:
            tell_failed(self._name, message, error)
            cause = error_text(error)
            if held.settled:
                return NOTHING_DONE
            result = await self._survive(lambda: queue.nack(message, cause=cause))
            tell_dead(self._name, queue.queue, message, result)
            if not isinstance(error, Exception | asyncio.CancelledError):
                self._fail(error)
            return result
        if held.settled:
            return NOTHING_DONE
        return await self._survive(lambda: queue.ack(message))
