"""A queue for asyncio: receives wait on the event loop, everything else is what the queue does, in
a thread.

Invariants

* Each receive under way has a channel of its own, so none waits behind another one's wait.
* Leases are extended by the thread of `Queue`, also while a handler keeps the event loop busy.
* A receive that is cancelled leases nothing from then on; what was leased at that moment is given
  back, or, if a service leased it, comes again when the leases end.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Generic, overload

from tms.block.received import Delivered, Received
from tms.client.aio.channels import AsyncChannel
from tms.client.aio.derived import Derived, in_thread, resumed
from tms.client.aio.pool import ChannelPool
from tms.client.aio.worker import AsyncHandler, AsyncWorker
from tms.client.http.exchange import WAIT_S_MAX, explained, surely_not_done
from tms.client.leases import Pace
from tms.client.queue import (
    WAIT_S,
    Queue,
    check_receive,
    handled,
    held,
    lease_lost,
    leased,
    unhandled,
)
from tms.client.transport import ReceiveRequest
from tms.client.worker import DRAIN_S, WorkerOptions
from tms.errors import TMSError
from tms.model.quantity import Duration
from tms.model.queue import RECEIVE_BYTES, error_text
from tms.model.serializer import V
from tms.runtime.retrying import retrying_async

RECEIVES_MAX = 64  # of one object, at the same time; more wait for their turn


class AsyncQueue(Derived[Queue[V]], Generic[V]):
    """Made by `AsyncBus.queue`; see `Queue`. For one event loop, and any number of its tasks."""

    _over = False  # its iterations have no end

    def __init__(self, queue: Queue[V], open_channel: Callable[[], AsyncChannel]) -> None:
        super().__init__(queue)
        self._channels = ChannelPool(open_channel, RECEIVES_MAX)

    @property
    def queue(self) -> Queue[V]:
        """The synchronous queue."""
        return self._sync

    @property
    def topic(self) -> str:
        """As `Queue.topic`."""
        return self._sync.topic

    # -- messages ----------------------------------------------------------------------------------

    async def receive(
        self, limit: int = 1, wait_s: Duration = 0, bytes_max: int = RECEIVE_BYTES
    ) -> list[Delivered[V]]:
        """As `Queue.receive`."""
        found = await self.receive_slices(limit, wait_s, bytes_max)
        return found.messages(self._sync.topic, self._sync.kind)

    async def receive_slices(
        self, limit: int = 1, wait_s: Duration = 0, bytes_max: int = RECEIVE_BYTES
    ) -> Received:
        """As `Queue.receive_slices`."""
        clock = self._sync.patience.clock
        until_s = clock.monotonic_s() + check_receive(limit, wait_s, bytes_max)
        request = ReceiveRequest(self._sync.name, self._sync.group, limit, 0.0, bytes_max)
        async with self._channels.channel() as channel:
            while True:
                left_s = max(0.0, min(WAIT_S_MAX, until_s - clock.monotonic_s()))
                found = await self._receive(channel, request._replace(wait_s=left_s))
                if found.slices or clock.monotonic_s() >= until_s:
                    return found

    async def _receive(self, channel: AsyncChannel, request: ReceiveRequest) -> Received:
        receive = partial(channel.receive, request)
        clock, timeout_s, _ = self._sync.patience
        try:
            return await retrying_async(receive, clock, timeout_s, surely_not_done, what="receive")
        except TMSError as error:
            raise explained(error) from error

    @resumed
    async def __aiter__(self) -> AsyncGenerator[Delivered[V], None]:
        """As `Queue.__iter__`. After an `anext` that a time-out has cancelled the next one goes
        on."""
        queue = self._sync
        pace = Pace(queue.settings.lease_s, queue.settings.deliveries_max)
        while True:
            messages = await queue.patience.survive_async(lambda: self.receive(pace.limit, WAIT_S))
            with leased(queue, messages) as ahead:
                turns = handled(queue, ahead, pace)
                try:
                    for message in turns:
                        yield message
                finally:
                    turns.close()
                    if rest := unhandled(ahead):
                        with suppress(TMSError):  # then the leases end
                            await self.release(rest)

    @asynccontextmanager
    async def settling(self, message: Delivered[V]) -> AsyncIterator[Delivered[V]]:
        """As `Queue.settling`."""
        survive = self._sync.patience.survive_async
        with held(self._sync, message) as kept:
            try:
                yield message
            except BaseException as error:
                if not kept.settled and (await self.nack(message, cause=error_text(error))).fenced:
                    error.add_note(lease_lost(self._sync, message).message)
                raise
            if not kept.settled and (await survive(lambda: self.ack(message))).fenced:
                raise lease_lost(self._sync, message)

    @overload
    def worker(
        self, handler: AsyncHandler[V], *, concurrency: int = 1, drain_s: Duration = DRAIN_S
    ) -> AsyncWorker[V]: ...

    @overload
    def worker(
        self, handler: None = None, *, concurrency: int = 1, drain_s: Duration = DRAIN_S
    ) -> Callable[[AsyncHandler[V]], AsyncWorker[V]]: ...

    def worker(
        self,
        handler: AsyncHandler[V] | None = None,
        *,
        concurrency: int = 1,
        drain_s: Duration = DRAIN_S,
    ) -> AsyncWorker[V] | Callable[[AsyncHandler[V]], AsyncWorker[V]]:
        """As `Queue.worker`; the handler is a coroutine function, and each message has a task."""
        if handler is None:
            return lambda function: self.worker(function, concurrency=concurrency, drain_s=drain_s)
        return AsyncWorker(self, handler, WorkerOptions.of(handler, concurrency, drain_s))

    # -- what the queue does, in a thread ----------------------------------------------------------

    ack = in_thread(Queue.ack)
    nack = in_thread(Queue.nack)
    release = in_thread(Queue.release)
    extend = in_thread(Queue.extend)
    reject = in_thread(Queue.reject)
    peek = in_thread(Queue.peek)
    describe = in_thread(Queue.describe)
    update = in_thread(Queue.update)
    redrive = in_thread(Queue.redrive)
    discard = in_thread(Queue.discard)
    delete = in_thread(Queue.delete)

    async def close(self) -> None:
        """End the receives that wait, with `Closed`; the bus does it, too. The queue stays."""
        self._channels.close()
