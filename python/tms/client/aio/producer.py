"""The asyncio producer: drives `tms.client.sending` like `tms.client.producer`, without threads.

Requests are tasks on one channel. When the oldest is done, the next block leaves: the event loop is
what the driver thread is for the synchronous producer.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, Self
from weakref import finalize, ref

from tms.block import TimesColumn
from tms.client.aio.channels import AsyncChannel
from tms.client.batching import Batcher, KnownTopic
from tms.client.delivery import Unacknowledged, deliver_async
from tms.client.receipts import SentCells, settle
from tms.client.sending import STALLED_S, Flight, Sending, closing_after, dropped
from tms.errors import TimedOut, TMSError, again
from tms.model.ids import MessageId
from tms.model.message import Appended, Headers, NewBlock
from tms.model.serializer import V
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import attempt_s, is_retriable


class AsyncProducer(Generic[V]):
    """Publishes to one topic; made by `AsyncBus.producer`. Use it with `async with`, or close it.

    The topic is looked up on entering, or with the first message.
    """

    def __init__(
        self,
        channel: AsyncChannel,
        sending: Sending[asyncio.Task[list[Appended]]],
        look_up: Callable[[], Awaitable[KnownTopic]],
        make_batcher: Callable[[KnownTopic], Batcher[V]],
        clock: Clock,
    ) -> None:
        self._channel = channel
        self._sending = sending
        self._look_up = look_up
        self._make_batcher = make_batcher
        self._clock = clock
        self._linger_s, self._in_flight_max = sending.pace
        self._weakly = ref(self)  # a held outcome does not keep the producer
        self._begin_anew()
        forks.in_child(self._begin_anew)
        self._end = finalize(self, dropped, self._sending)

    def __repr__(self) -> str:
        return self._sending.describe(self)

    def _begin_anew(self) -> None:
        self._sending.begin_anew()
        self._recovering: asyncio.Task[None] | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._beginning = asyncio.Lock()

    async def send(
        self,
        value: V | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        event_time_ms: int | None = None,
    ) -> "AsyncSent":
        """As `Producer.send`: `await producer.send(…)` accepts the message, and awaiting what that
        returns gives its id."""
        self._sending.check()
        if self._sending.stalled is not None:
            await self._resume()
        batcher = self._sending.batcher or await self._begin()
        first = not batcher.fillings
        is_full = batcher.add(value, key, headers, partition, event_time_ms)
        newest = batcher.newest
        sent = AsyncSent(self._weakly, newest.receipt, len(newest.values) - 1)
        if is_full:
            try:
                await self._push()
            except TMSError as error:
                self._sending.raise_unless_kept(error)
        elif first:
            self._begin_waiting()
        return sent

    async def send_many(
        self,
        values: Sequence[V | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        event_times_ms: TimesColumn | None = None,
    ) -> None:
        """Publish messages in this order, like `send` for each but faster; see
        `Producer.send_many`."""
        self._sending.check()
        if self._sending.stalled is not None:
            await self._resume()
        batcher = self._sending.batcher or await self._begin()
        accepted = 0
        try:
            for taken in batcher.add_many(values, keys, headers, partition, event_times_ms):
                accepted = taken
                await self._push()
        except TMSError as error:
            self._sending.raise_unless_kept(error, accepted < len(values), accepted)
        finally:
            if batcher.fillings:
                self._begin_waiting()

    async def flush(self) -> None:
        """As `Producer.flush`."""
        self._sending.check()
        if self._sending.batcher is None:
            return
        await self._push()
        await self._until(lambda: not self._sending.flights)

    async def close(self) -> None:
        """Flush and release. A second call does nothing. Raises an error no call has raised yet."""
        try:
            with self._sending.closing() as flushes:
                if flushes:
                    await self.flush()
        finally:
            self._end.detach()
            self._channel.close()
            for late in (self._refreshing, self._recovering, self._resuming):
                if late is not None:
                    late.cancel()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with closing_after(error):
            await self.close()

    @property
    def _batcher(self) -> Batcher[V]:
        assert self._sending.batcher is not None, "every way in begins with _begin"
        return self._sending.batcher

    async def _begin(self) -> Batcher[V]:
        """Look the topic up, once. Raises `TopicNotFound`."""
        async with self._beginning:
            if self._sending.batcher is None:
                self._sending.batcher = self._make_batcher(await self._look_up())
        return self._batcher

    async def _refresh(self) -> None:
        """Ask how the topic routes messages by now, while requests go on."""
        with contextlib.suppress(TMSError):  # what is wrong with the topic, the next request says
            self._batcher.learn(await self._look_up())

    def _begin_waiting(self) -> None:
        """Something waits: send it now, with the next answer, or after lingering."""
        if self._linger_s:
            if self._lingering is None:
                loop = asyncio.get_running_loop()
                self._lingering = loop.call_later(self._linger_s, self._linger_over)
        elif not self._sending.flights and not self._repeats():
            self._launch()

    def _repeats(self) -> bool:
        """True while what failed is repeated, or waits for that."""
        return self._recovering is not None or self._sending.left is not None

    def _linger_over(self) -> None:
        self._lingering = None
        if self._batcher.fillings and not self._repeats() and self._has_room():
            self._launch()

    def _has_room(self) -> bool:
        return len(self._sending.flights) < self._in_flight_max

    async def _push(self) -> None:
        if self._repeats() or not self._has_room():
            await self._until(self._has_room)
        if self._batcher.fillings:
            self._launch()

    async def _resume(self) -> None:
        """Wait until what did not get through has, and send what waits behind it."""
        await self._until(self._has_room)
        await self._push()

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait until nothing is to be repeated and a state is reached. Raises `TimedOut`, and the
        failure of a producer that has ended."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._repeat()
        timeout_s = self._sending.delivery.timeout_s
        until_s = self._clock.monotonic_s() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self._repeats() or not reached():
                    await self._move()
                    self._sending.check()
                    if self._clock.monotonic_s() >= until_s:
                        raise TimeoutError
        except TMSError:
            raise
        except TimeoutError as exc:
            late = TimedOut("Not everything is acknowledged yet; it is kept, flush again.")
            error = late if self._sending.stalled is None else again(self._sending.stalled)
            self._sending.stall(error)
            raise error from exc

    async def _move(self) -> None:
        """Wait until a request has ended."""
        self._moved.clear()
        await self._moved.wait()

    def _launch(self) -> None:
        """Pack what waits and begin its request."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._batcher.is_outdated(self._clock.monotonic_s()):
            self._refreshing = asyncio.create_task(self._refresh())
        self._sending.launch(self._append)

    def _append(self, blocks: Sequence[NewBlock]) -> asyncio.Task[list[Appended]]:
        name, _, durability, _, timeout_s = self._sending.delivery
        append = self._channel.append(name, blocks, durability, attempt_s(timeout_s))
        task = asyncio.create_task(append)
        task.add_done_callback(self._landed)
        return task

    def _landed(self, _: asyncio.Task[list[Appended]]) -> None:
        if not self._repeats():
            while self._sending.flights and _succeeded(self._sending.flights[0].pending):
                self._sending.landed(self._sending.flights[0].pending.result())
            if self._sending.flights and self._sending.flights[0].pending.done():
                self._recovering = asyncio.create_task(self._recover())
            elif self._batcher.fillings and not self._sending.flights and self._lingering is None:
                self._launch()
        self._moved.set()

    async def _recover(self) -> None:
        """The oldest request failed: repeat what is not acknowledged."""
        try:
            left = self._sending.left or await self._failed()
            timeout_s = self._sending.delivery.timeout_s
            appended = await deliver_async(self._channel.append, left, self._clock, timeout_s)
            self._sending.recovered(appended)
        except TMSError as error:
            if is_retriable(error):
                self._sending.stall(error)
                self._resuming = asyncio.get_running_loop().call_later(STALLED_S, self._repeat)
            else:
                self._sending.give_up(error)
        finally:
            self._recovering = None
            self._moved.set()
        if self._batcher.fillings and self._sending.stalled is self._sending.failure is None:
            self._begin_waiting()

    def _repeat(self) -> None:
        self._resuming = None
        if self._recovering is None and not self._sending.ended:
            self._recovering = asyncio.create_task(self._recover())

    async def _failed(self) -> Unacknowledged:
        """The blocks that are left of the requests under way, once each has an outcome. Raises an
        error that ends the producer."""
        failed: list[tuple[Flight[asyncio.Task[list[Appended]]], TMSError]] = []
        for flight in list(self._sending.flights):
            try:
                settle(flight.receipts, await flight.pending)
            except TMSError as error:
                self._sending.require_retriable(error)
                failed.append((flight, error))
        self._channel.reset()
        return self._sending.repeat(failed, self._clock.monotonic_s())


class AsyncSent(SentCells):
    """The outcome of `AsyncProducer.send`; await it for the id of the message."""

    __slots__ = ()

    async def result(self) -> MessageId | None:
        """As `Sent.result`."""
        if not self.done() and (producer := self.producer()) is not None:
            with self.receipt.awaited():
                await producer.flush()
        return self.receipt.id(self.number)

    def __await__(self) -> Generator[Any, None, MessageId | None]:
        return self.result().__await__()


def _succeeded(task: asyncio.Task[list[Appended]]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
