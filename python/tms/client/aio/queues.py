"""A queue for asyncio: receives wait on the event loop, everything else is what the queue does, in
a thread.

Invariants

* Each receive under way has a lane of its own, so none waits behind another one's wait.
* A receive that is cancelled leases nothing from then on; what was leased at that moment is given
  back, or, if a service leased it, comes again when the leases end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tms.client.aio.calls import AsyncCalls
from tms.client.aio.lanes import AsyncLane, retrying
from tms.client.aio.pool import LanePool
from tms.client.http.queues import WAIT_S_MAX, explained, surely_not_done
from tms.client.queues.queue import Messages, Queue
from tms.clock import Clock
from tms.errors import TMSError
from tms.model.queue import RECEIVE_BYTES, QueueInfo, TokenResult
from tms.model.received import Delivered, Received

AHEAD, WAIT_S = 16, 20.0  # of an iteration
RECEIVES_MAX = 64  # of one object, at the same time; more wait for their turn


class AsyncQueueCalls(AsyncCalls):
    """The part of an asyncio bus that lists queues."""

    async def queues(self, topic: str) -> list[QueueInfo]:
        """See `Bus.queues`."""
        return await asyncio.to_thread(self._bus.queues, topic)


class AsyncQueue:
    """Made by `AsyncBus.queue`; see `Queue`. For one event loop, and any number of its tasks."""

    def __init__(
        self, queue: Queue, open_lane: Callable[[], AsyncLane], clock: Clock, timeout_s: float
    ) -> None:
        self.queue = queue
        self._clock = clock
        self._timeout_s = timeout_s
        self._lanes = LanePool(open_lane, RECEIVES_MAX)

    # -- messages ----------------------------------------------------------------------------------

    async def receive(
        self, limit: int = 1, wait_s: float = 0, bytes_max: int = RECEIVE_BYTES
    ) -> list[Delivered]:
        """See `Queue.receive`."""
        found = await self.receive_slices(limit, wait_s, bytes_max)
        return found.messages(self.queue.topic)

    async def receive_slices(
        self, limit: int = 1, wait_s: float = 0, bytes_max: int = RECEIVE_BYTES
    ) -> Received:
        """See `Queue.receive_slices`."""
        until_s = self._clock.monotonic_s() + wait_s
        async with self._lanes.lane() as lane:
            while True:
                left_s = max(0.0, min(WAIT_S_MAX, until_s - self._clock.monotonic_s()))
                found = await self._receive(lane, limit, left_s, bytes_max)
                if found.slices or self._clock.monotonic_s() >= until_s:
                    return found

    async def _receive(
        self, lane: AsyncLane, limit: int, wait_s: float, bytes_max: int
    ) -> Received:
        group, name = self.queue.group, self.queue.name

        async def attempt(timeout_s: float) -> Received:
            return await lane.receive(group, name, limit, wait_s, bytes_max, timeout_s)

        try:
            return await retrying(attempt, self._clock, self._timeout_s, surely_not_done)
        except TMSError as error:
            raise explained(error) from error

    async def __aiter__(self) -> AsyncIterator[Delivered]:
        """See `Queue.__iter__`."""
        while True:
            for message in await self.receive(AHEAD, WAIT_S):
                yield message

    @asynccontextmanager
    async def settling(self, message: Delivered) -> AsyncIterator[Delivered]:
        """See `Queue.settling`."""
        try:
            yield message
        except BaseException:
            await self.nack(message)
            raise
        await self.ack(message)

    # -- what became of them -----------------------------------------------------------------------

    async def ack(self, messages: Messages) -> TokenResult:
        """See `Queue.ack`."""
        return await asyncio.to_thread(self.queue.ack, messages)

    async def nack(self, messages: Messages, delay_s: float | None = None) -> TokenResult:
        """See `Queue.nack`."""
        return await asyncio.to_thread(self.queue.nack, messages, delay_s)

    async def extend(self, messages: Messages, lease_s: float | None = None) -> TokenResult:
        """See `Queue.extend`."""
        return await asyncio.to_thread(self.queue.extend, messages, lease_s)

    async def reject(self, messages: Messages, cause: str = "") -> TokenResult:
        """See `Queue.reject`."""
        return await asyncio.to_thread(self.queue.reject, messages, cause)

    # -- the queue ---------------------------------------------------------------------------------

    async def describe(self) -> QueueInfo:
        """See `Queue.describe`."""
        return await asyncio.to_thread(self.queue.describe)

    async def update(self, **changes: Any) -> QueueInfo:
        """See `Queue.update`."""
        return await asyncio.to_thread(self.queue.update, **changes)

    async def redrive(self, limit: int = 1_000) -> int:
        """See `Queue.redrive`."""
        return await asyncio.to_thread(self.queue.redrive, limit)

    async def delete(self) -> None:
        """See `Queue.delete`."""
        await asyncio.to_thread(self.queue.delete)

    async def close(self) -> None:
        """End the receives that wait, with `Closed`; the bus does it, too. The queue stays."""
        self._lanes.close()
