"""A queue for asyncio: receives wait on the event loop, everything else is what the queue does, in
a thread.

Invariants

* Each receive under way has a lane of its own, so none waits behind another one's wait.
* Leases are extended by the thread of `Queue`, also while a handler keeps the event loop busy.
* A receive that is cancelled leases nothing from then on; what was leased at that moment is given
  back, or, if a service leased it, comes again when the leases end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from tms.block.received import Delivered, Received
from tms.client.aio.calls import AsyncCalls
from tms.client.aio.channels import AsyncLane, retrying
from tms.client.aio.pool import LanePool
from tms.client.http.exchange import WAIT_S_MAX
from tms.client.http.queues import explained, surely_not_done
from tms.client.leases import Pace
from tms.client.queue import WAIT_S, Messages, Queue, lease_lost
from tms.clock import Clock
from tms.errors import TMSError
from tms.model.queue import RECEIVE_BYTES, QueueInfo, TokenResult

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
        pace = Pace(self.queue.settings.lease_s, self.queue.settings.deliveries_max)
        while True:
            messages = await self.receive(pace.limit, WAIT_S)
            async with aclosing(self._handled(messages, pace)) as handled:
                async for message in handled:
                    yield message

    async def _handled(
        self, messages: Sequence[Delivered], pace: Pace
    ) -> AsyncGenerator[Delivered, None]:
        leases = self.queue.leases
        ahead = deque(zip(messages, leases.keep(messages), strict=True))
        try:
            while ahead:
                message, kept = ahead.popleft()
                began_s = self._clock.monotonic_s()
                try:
                    if kept.lost:  # others have it
                        continue
                    yield message
                finally:
                    leases.release(kept)
                if kept.lost and not kept.settled:
                    raise lease_lost(self.queue, message)
                pace.took(self._clock.monotonic_s() - began_s)
        finally:
            if rest := [message for message, kept in ahead if not kept.lost]:
                with suppress(TMSError):  # then the leases end
                    await self.nack(rest, delay_s=0)
            for _, kept in ahead:
                leases.release(kept)

    @asynccontextmanager
    async def settling(self, message: Delivered) -> AsyncIterator[Delivered]:
        """See `Queue.settling`."""
        (kept,) = self.queue.leases.keep((message,))
        try:
            yield message
        except BaseException as error:
            if not kept.settled and (await self.nack(message)).fenced:
                error.add_note(lease_lost(self.queue, message).message)
            raise
        else:
            if not kept.settled and (await self.ack(message)).fenced:
                raise lease_lost(self.queue, message)
        finally:
            self.queue.leases.release(kept)

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
