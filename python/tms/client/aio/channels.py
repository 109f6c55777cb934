"""Channels for asyncio: what the asyncio client needs from below, and the one of an engine in this
process.

Nothing here blocks the event loop for longer than an append that needs no sync: what may touch the
disk otherwise runs in a thread, and waiting is done by callbacks.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tms.api.queue_operations import QueuesApi
from tms.block.received import Received
from tms.client.transport import FetchRequest, LocalTransport, ReceiveRequest
from tms.errors import Closed, TimedOut, TMSError
from tms.model.message import Appended, Fetched, Holder, NewBlock, PartitionPosition
from tms.model.topic import Durability, TopicName

DUE_S_MIN = 0.02  # leases that end within this time end together


class AsyncChannel(Protocol):
    """The requests of one caller, handled in the order in which they were begun."""

    async def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None,
        timeout_s: float,
    ) -> list[Appended]: ...

    async def fetch(self, request: FetchRequest, timeout_s: float) -> Fetched: ...

    async def receive(self, request: ReceiveRequest, timeout_s: float) -> Received: ...

    def reset(self) -> None:
        """Give up on everything under way; its outcome is unknown. The channel stays usable."""
        ...

    def close(self) -> None:
        """Like `reset`, for good: whoever waits gets `Closed` at once."""
        ...


class LocalQueues(QueuesApi, Protocol):
    """The further methods of an engine's queues."""

    def watch(
        self, topic: TopicName, group: str, callback: Callable[[], None]
    ) -> tuple[Callable[[bool], None], float | None]: ...


class AsyncLocalTransport(LocalTransport, Protocol):
    """An engine in this process."""

    @property
    def queues(self) -> LocalQueues: ...


class AsyncLocalChannel:
    """A channel on an engine in this process."""

    def __init__(self, engine: AsyncLocalTransport) -> None:
        self._engine = engine
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    async def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None,
        timeout_s: float,
    ) -> list[Appended]:
        self._check_open()
        pending = self._engine.submit(name, blocks, durability)
        if not pending.done():
            wake = self._wake()
            pending.add_done_callback(wake.fire)
            if not await wake.wait(timeout_s):
                raise TimedOut("The append has not finished in time.", outcome="unknown")
        return pending.result(0)

    async def fetch(self, request: FetchRequest, timeout_s: float) -> Fetched:
        until_s = asyncio.get_running_loop().time() + request.wait_s
        name, positions, bytes_max, _, isolation, where, _ = request
        held: Mapping[int, Holder] = {}
        while True:
            self._check_open()
            wake = self._wake()
            cancel = self._engine.watch(name, positions, wake.fire, held)
            try:
                found: Fetched | None = None
                if where is None:
                    found = self._engine.fetch_cached(name, positions, bytes_max, isolation)
                if found is None:
                    found = await asyncio.to_thread(
                        self._engine.fetch, name, positions, bytes_max, 0, isolation, where
                    )
                left_s = until_s - asyncio.get_running_loop().time()
                if found.blocks or not found.ended or left_s <= 0:
                    return found
                positions = [PartitionPosition(*there) for there in found.next.items()]
                if found.held != held:  # what to wait for is only known now
                    held = found.held
                    continue
                await wake.wait(left_s)
            finally:
                cancel()

    async def receive(self, request: ReceiveRequest, timeout_s: float) -> Received:
        loop, queues = asyncio.get_running_loop(), self._engine.queues
        until_s = loop.time() + request.wait_s
        while True:
            self._check_open()
            found = await _leased(queues, request)
            left_s = until_s - loop.time()
            if found.slices or left_s <= 0:
                return found
            wake, looks = self._wake(), False
            end_watch, due_s = queues.watch(request.name, request.group, wake.fire)
            try:
                await wake.wait(left_s if due_s is None else min(left_s, max(due_s, DUE_S_MIN)))
                looks = True
            finally:
                end_watch(looks)

    def reset(self) -> None:
        pass  # an append under way in the engine ends by itself

    def close(self) -> None:
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(Closed("It was closed while it waited."))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("The bus, producer or consumer was closed.")

    def _wake(self) -> "_Wake":
        return _Wake(self._waiting)


class _Wake:
    """A thread's knock at the event loop."""

    def __init__(self, waiting: set[asyncio.Future[None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fired: asyncio.Future[None] = self._loop.create_future()
        self._waiting = waiting

    def fire(self) -> None:
        """From any thread, any number of times."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set)

    async def wait(self, timeout_s: float) -> bool:
        """True if it was fired in time. Raises `Closed` when the channel is closed meanwhile."""
        self._waiting.add(self._fired)
        try:
            async with asyncio.timeout(timeout_s):
                await self._fired
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(self._fired)
        return True

    def _set(self) -> None:
        if not self._fired.done():
            self._fired.set_result(None)


async def _leased(queues: QueuesApi, request: ReceiveRequest) -> Received:
    """Messages that are ready now. Those leased for a cancelled call are released."""
    receiving = asyncio.to_thread(queues.receive, *request._replace(wait_s=0))
    work = asyncio.create_task(receiving)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(TMSError):  # then the leases end by themselves
            found = await work
            if found.slices:
                await asyncio.to_thread(queues.release, request.name, request.group, found.tokens())
        raise
