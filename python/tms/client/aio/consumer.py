"""The asyncio consumer: the same cursor and the same promises as `tms.client.consumer`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tms import forks
from tms.client.aio.channels import AsyncChannel
from tms.client.committed import CommittedPositions
from tms.client.consumer import ConsumerSettings, Iterations, consumer_text, no_member
from tms.client.cursor import Batch, Cursor
from tms.client.frames import as_pandas, as_polars, as_table, require_end
from tms.client.transport import FetchRequest
from tms.clock import Clock
from tms.errors import TMSError
from tms.model.message import Fetched, Message
from tms.model.position import Position
from tms.model.serializer import V
from tms.model.topic import TopicName
from tms.retrying import retrying_async

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")


class AsyncConsumer(Generic[V]):
    """Reads one topic; made by `AsyncBus.consumer`. `async for` over it, or over `batches()`.

    The topic is looked up, and `latest` is meant, on entering or when the first iteration begins. A
    new iteration goes on where the last one was left, which raises `Invalid` from then on. For one
    task; only `close` may be called from another one: to iterate while another task fetches raises
    `Invalid`.
    """

    def __init__(
        self,
        name: TopicName,
        channel: AsyncChannel,
        make_cursor: Callable[[], Awaitable[Cursor]],
        clock: Clock,
        settings: ConsumerSettings,
        committed: CommittedPositions,
    ) -> None:
        self.committed = committed
        self._name = name
        self._channel = channel
        self._make_cursor = make_cursor
        self._cursor_made: Cursor | None = None
        self._clock = clock
        self._settings = settings
        self._wait_s = settings.wait_s
        self._timeout_s = settings.timeout_s
        self._closed = False
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Of what is under way nothing is known in a process that was forked."""
        self._ahead: asyncio.Task[Fetched] | None = None
        self._iterations = Iterations()

    def __repr__(self) -> str:
        return consumer_text(type(self).__name__, self.committed, self._cursor_made, self._closed)

    async def __aiter__(self) -> AsyncIterator[Message[V]]:
        """Messages; ends at the end with `stop_at_end`, or when the consumer is closed."""
        async for batch in self._fetched():
            cursor = self._cursor
            for message in batch.messages():
                cursor.message = message
                yield message
            cursor.hand_out(batch)

    async def batches(self) -> AsyncIterator[Batch[V]]:
        """Batches: messages that were published together, for millions per second."""
        async for batch in self._fetched():
            self._cursor.hand_out(batch)
            yield batch

    async def to_arrow(self) -> "pa.Table":
        """See `Consumer.to_arrow`."""
        await self._begin()
        require_end(self._cursor.stop_at_end)
        return as_table([batch async for batch in self.batches()])

    async def to_pandas(self) -> "pd.DataFrame":
        """See `Consumer.to_pandas`."""
        return as_pandas(await self.to_arrow())

    async def to_polars(self) -> "pl.DataFrame":
        """See `Consumer.to_polars`."""
        return as_polars(await self.to_arrow())

    def positions(self) -> dict[int, Position]:
        """For each partition the place behind the last message handed out; usable as `start`.

        Empty before the consumer was entered or iterated over.
        """
        return {} if self._cursor_made is None else self._cursor_made.positions()

    async def ack(self) -> None:
        """See `Consumer.ack`."""
        acknowledgement = self.committed.behind(self.positions())
        await self._survive(self.committed.move(acknowledgement.changes))
        acknowledgement.done()

    async def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """See `Consumer.handle`; the handler may be a coroutine function."""
        raise no_member()

    async def close(self) -> None:
        """End the iteration, also one that waits in another task. A second call does nothing."""
        self._closed = True
        self._settings.outage.ended.set()
        self._channel.close()
        if self._ahead is not None:
            self._ahead.add_done_callback(_forget)

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def _cursor(self) -> Cursor:
        assert self._cursor_made is not None, "every way in begins with _begin"
        return self._cursor_made

    async def _begin(self) -> None:
        """Find out where to start. Raises `TopicNotFound`."""
        if self._cursor_made is None:
            self._cursor_made = await self._make_cursor()
            if self._cursor_made.stop_at_end:
                self._wait_s = 0

    async def _fetched(self) -> AsyncIterator[Batch[V]]:
        iterations = self._iterations
        with iterations.begin() as iteration:
            self._abandon(self._ahead)
            await self._begin()
            self._cursor.rewind()
        mine: asyncio.Task[Fetched] | None = None
        try:
            while not self._cursor.finished and not self._closed:
                with iterations.fetch(iteration):
                    batches = self._cursor.accept(await self._answer(mine))
                    mine = None
                    if not self._cursor.finished:
                        mine = self._ahead = asyncio.create_task(self._fetch(self._timeout_s))
                for batch in batches:
                    yield batch
                    iterations.require_last(iteration)
                self._cursor.settle()
        except TMSError:
            if not self._closed:
                raise
        finally:
            self._abandon(mine)

    def _abandon(self, ahead: asyncio.Task[Fetched] | None) -> None:
        """The answer that is under way for nobody, unless a newer iteration has its own."""
        if ahead is None or ahead is not self._ahead:
            return
        self._ahead = None
        if not ahead.done():
            self._channel.reset()
        ahead.cancel()
        ahead.add_done_callback(_forget)

    async def _answer(self, ahead: asyncio.Task[Fetched] | None) -> Fetched:
        held = [] if ahead is None else [ahead]

        async def attempt(left_s: float) -> Fetched:
            if not held:
                return await self._fetch(left_s)
            try:
                return await held.pop()
            finally:
                self._ahead = None

        outage = self._settings.outage
        return await retrying_async(attempt, self._clock, self._timeout_s, outage=outage)

    async def _survive(self, call: Callable[[], T]) -> T:
        """See `Consumer`; the call is made in a thread."""

        async def attempt(_: float) -> T:
            return await asyncio.to_thread(call)

        outage = self._settings.outage
        return await retrying_async(attempt, self._clock, self._timeout_s, outage=outage)

    async def _fetch(self, left_s: float) -> Fetched:
        positions, wait_s = self._cursor.ask(self._wait_s)
        settings = self._settings
        request = FetchRequest(
            self._name,
            positions,
            settings.bytes_max,
            wait_s,
            settings.isolation,
            self._cursor.where,
            goes_on=True,
        )
        return await self._channel.fetch(request, left_s)


def _forget(task: asyncio.Task[Fetched]) -> None:
    if not task.cancelled():
        task.exception()
