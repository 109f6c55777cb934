"""The asyncio producer: the same batching and the same promises as `tms.client.producer`.

Requests are tasks on one channel. When the oldest is done, the next block leaves: the event loop is
what the driver thread is for the synchronous producer.

Invariants

* Every accepted message is acknowledged, or an error says that it was not: at the next send, flush
  or close.
* At most `in_flight_max` requests are under way and one is being filled; beyond that `send` waits.
* A request that failed is repeated block by block, in order, byte for byte; nothing else is sent
  meanwhile.
* What was accepted before a fork is sent by the parent alone: in the child the producer is as new.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from tms import forks
from tms.block import read_header
from tms.client.aio.channels import AsyncChannel, AsyncDelivery
from tms.client.batching import Batcher, Headers
from tms.client.producer import SendPace
from tms.errors import Closed, TimedOut, TMSError
from tms.model.message import Appended, NewBlock
from tms.model.topic import TopicName
from tms.retrying import attempt_s, is_retriable


class AsyncProducer:
    """Publishes to one topic; made by `AsyncBus.producer`. Use it with `async with`, or close it.

    The topic is looked up on entering, or with the first message.
    """

    def __init__(
        self,
        name: TopicName,
        channel: AsyncChannel,
        make_batcher: Callable[[], Awaitable[Batcher]],
        delivery: AsyncDelivery,
        pace: SendPace,
    ) -> None:
        self._name = name
        self._channel = channel
        self._make_batcher = make_batcher
        self._delivery = delivery
        self._durability, _, self._timeout_s = delivery.options
        self._linger_s, self._in_flight_max = pace
        self._closed = False
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def __repr__(self) -> str:
        state = " closed" if self._closed else f", {len(self._flights)} requests under way"
        return f"<{type(self).__name__} to {self._name}{state}>"

    def _begin_anew(self) -> None:
        self._batcher_made: Batcher | None = None
        self._flights: deque[tuple[asyncio.Task[list[Appended]], list[NewBlock]]] = deque()
        self._recovering: asyncio.Task[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()
        self._failure: TMSError | None = None
        self._told = False  # whether the caller has met the failure

    async def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Publish one message; it is acknowledged when a later `flush` or `close` returns.

        See `Producer.send`.
        """
        self._check()
        if self._batcher_made is None:
            await self._begin()
        first = not self._batcher.fillings
        if self._batcher.add(value, key, headers, partition):
            await self._push()
        elif first:
            self._begin_waiting()

    async def send_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Publish messages in this order, like `send` for each but faster. Errors carry `index`."""
        self._check()
        if self._batcher_made is None:
            await self._begin()
        try:
            for _ in self._batcher.add_many(values, keys, headers, partition):
                await self._push()
        finally:
            if self._batcher.fillings:
                self._begin_waiting()

    async def flush(self) -> None:
        """See `Producer.flush`."""
        self._check()
        if self._batcher_made is None:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._push()
                while self._flights or self._recovering is not None:
                    await self._move()
        except TimeoutError as exc:
            raise TimedOut("Not everything is acknowledged yet; flush again.") from exc
        self._check()

    async def close(self) -> None:
        """Flush and release. A second call does nothing. Raises an error no call has raised yet."""
        if self._closed:
            return
        try:
            if self._failure is None or not self._told:
                await self.flush()
        finally:
            self._closed = True
            self._channel.close()

    async def __aenter__(self) -> Self:
        if self._batcher_made is None:
            await self._begin()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except TMSError as second:
            error.add_note(f"The producer could not be closed cleanly: {second}")

    @property
    def _batcher(self) -> Batcher:
        assert self._batcher_made is not None, "every way in begins with _begin"
        return self._batcher_made

    async def _begin(self) -> None:
        """Look the topic up. Raises `TopicNotFound`."""
        self._batcher_made = await self._make_batcher()

    def _check(self) -> None:
        if self._failure is not None:
            self._told = True
            raise self._failure
        if self._closed:
            raise Closed("The producer is closed; make a new one.")

    def _begin_waiting(self) -> None:
        """Something waits: send it now, with the next answer, or after lingering."""
        if self._linger_s:
            if self._lingering is None:
                loop = asyncio.get_running_loop()
                self._lingering = loop.call_later(self._linger_s, self._linger_over)
        elif not self._flights and self._recovering is None:
            self._launch()

    def _linger_over(self) -> None:
        self._lingering = None
        busy = self._recovering is not None or len(self._flights) >= self._in_flight_max
        if self._batcher.fillings and not busy:
            self._launch()

    async def _push(self) -> None:
        while self._recovering is not None or len(self._flights) >= self._in_flight_max:
            await self._move()
            self._check()
        if self._batcher.fillings:
            self._launch()

    async def _move(self) -> None:
        """Wait until a request has ended."""
        self._moved.clear()
        await self._moved.wait()

    def _launch(self) -> None:
        """Pack what waits and begin its request."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        blocks = self._batcher.pack()
        self._batcher.next_partition()
        task = asyncio.create_task(
            self._channel.append(self._name, blocks, self._durability, attempt_s(self._timeout_s))
        )
        self._flights.append((task, blocks))
        task.add_done_callback(self._landed)

    def _landed(self, _: asyncio.Task[list[Appended]]) -> None:
        if self._recovering is None:
            while self._flights and _succeeded(self._flights[0][0]):
                self._flights.popleft()
            if self._flights and self._flights[0][0].done():
                self._recovering = asyncio.create_task(self._recover())
            elif self._batcher.fillings and not self._flights and self._lingering is None:
                self._launch()
        self._moved.set()

    async def _recover(self) -> None:
        """The oldest request failed: repeat what is not acknowledged."""
        try:
            left: list[NewBlock] = []
            for task, blocks in list(self._flights):
                try:
                    await task
                except TMSError as error:
                    if not is_retriable(error):
                        raise
                    left += blocks
            self._channel.reset()
            await self._delivery.repeat(self._channel, left, self._timeout_s)
            self._flights.clear()
        except TMSError as error:
            self._fail(error)
        finally:
            self._recovering = None
            self._moved.set()
        if self._batcher.fillings and self._failure is None:
            self._begin_waiting()

    def _fail(self, error: TMSError) -> None:
        """Give up for good: what is not acknowledged now never will be."""
        error.details["unacknowledged"] = self._batcher.count + sum(
            read_header(entry.block).count for _, blocks in self._flights for entry in blocks
        )
        self._failure = error
        self._flights.clear()


def _succeeded(task: asyncio.Task[list[Appended]]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
