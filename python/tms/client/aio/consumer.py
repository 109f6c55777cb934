"""The consumer for asyncio: drives a `Reader` with I/O on the event loop. Calls that block run in a
thread; the callbacks of a group run on the event loop.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tms.client.aio.channels import AsyncChannel
from tms.client.aio.derived import resumed
from tms.client.committed import KnownPositions
from tms.client.consuming import ConsumerPlan
from tms.client.cursor import Batch, Start
from tms.client.frames import as_pandas, as_polars, as_table, require_end
from tms.client.group_options import AssignmentCallback
from tms.client.reading import ConsumerSettings, Reader, consumer_text
from tms.client.transport import FetchRequest
from tms.model.message import Fetched, Message
from tms.model.position import Position
from tms.model.quantity import Duration, seconds
from tms.model.serializer import V
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import retrying_async

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")


def on_this_loop(plan: ConsumerPlan) -> ConsumerPlan:
    """A plan whose callbacks, which may be coroutine functions, run on the present event loop,
    while the thread that calls them waits."""
    options = plan.options
    loop = asyncio.get_running_loop()
    if options is None:
        return plan

    def there(callback: AssignmentCallback) -> AssignmentCallback:
        async def call(partitions: Sequence[int]) -> None:
            result = callback(partitions)
            if inspect.isawaitable(result):
                await result

        return lambda partitions: asyncio.run_coroutine_threadsafe(call(partitions), loop).result()

    on_assigned, on_revoked = there(options.on_assigned), there(options.on_revoked)
    return plan._replace(options=replace(options, on_assigned=on_assigned, on_revoked=on_revoked))


class TaskIo:
    """The I/O of a consumer for one task; see `ReaderIo`."""

    def __init__(self, channel: AsyncChannel, clock: Clock, settings: ConsumerSettings) -> None:
        self._channel = channel
        self._clock = clock
        self._settings = settings
        self.closed = False
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """In a forked child: a fetch under way is the parent's."""
        self._ahead: asyncio.Task[Fetched] | None = None
        self._ended = asyncio.Event()

    def begin(self, request: FetchRequest) -> None:
        """As `ReaderIo.begin`."""
        fetch = self._channel.fetch(request, self._settings.timeout_s)
        self._ahead = asyncio.create_task(fetch)

    def drop(self) -> bool:
        """As `ReaderIo.drop`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if not ahead.done():
                self._channel.reset()
            ahead.cancel()
            ahead.add_done_callback(_forget)
        return ahead is not None

    async def answer(self, ask: Callable[[], FetchRequest], patient: bool = True) -> Fetched:
        """As `ReaderIo.answer`."""

        async def attempt(left_s: float) -> Fetched:
            ahead, self._ahead = self._ahead, None
            return await (ahead or self._channel.fetch(ask(), left_s))

        return await self._repeated(attempt, patient)

    async def survive(self, call: Callable[[], T], patient: bool = True) -> T:
        """As `ReaderIo.survive`."""
        return await self._repeated(lambda _: asyncio.to_thread(call), patient)

    async def call(self, call: Callable[[], T]) -> T:
        """As `ReaderIo.call`."""
        return await asyncio.to_thread(call)

    async def handle(self, handler: Callable[[Message[V]], object], message: Message[V]) -> None:
        """As `ReaderIo.handle`; the handler may be a coroutine function."""
        handling = handler(message)
        if inspect.isawaitable(handling):
            await handling

    async def pause(self, pause_s: float) -> None:
        """As `ReaderIo.pause`."""
        try:
            async with asyncio.timeout(pause_s):
                await self._ended.wait()
        except TimeoutError:
            return

    def end(self) -> None:
        """As `ReaderIo.end`."""
        self.closed = True
        self._ended.set()
        self._settings.outage.ended.set()

    def close(self) -> None:
        """As `ReaderIo.close`."""
        self._channel.close()
        if self._ahead is not None:
            self._ahead.add_done_callback(_forget)

    async def _repeated(self, attempt: Callable[[float], Awaitable[T]], patient: bool) -> T:
        outage = self._settings.survived(patient)
        return await retrying_async(attempt, self._clock, self._settings.timeout_s, outage=outage)


class AsyncConsumer(Generic[V]):
    """Reads one topic; made by `AsyncBus.consumer`. `async for` over it, or over `batches()`.

    The topic is looked up, and `latest` is meant, on entering or when the first iteration begins. A
    new iteration goes on where the last one was left, which raises `Invalid` from then on. For one
    task; only `close` may be called from another one: to iterate while another task fetches raises
    `Invalid`.
    """

    def __init__(
        self,
        make_reader: Callable[[], Awaitable[Reader[V]]],
        io: TaskIo,
        committed: KnownPositions,
    ) -> None:
        self.committed = committed
        self._make_reader = make_reader
        self._io = io
        self._made: Reader[V] | None = None
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """In a forked child: a member of a group is another member."""
        self._over = False  # True if the last iteration has come to its end
        self._making = asyncio.Lock()
        if self._made is not None and self._made.watches:
            self._made = None
            self.committed.forget()

    def __repr__(self) -> str:
        return consumer_text(self, self.committed, self._io.closed)

    def __del__(self) -> None:
        made = getattr(self, "_made", None)
        if made is not None and not self._io.closed:
            made.abandon()

    @resumed
    async def __aiter__(self) -> AsyncGenerator[Message[V], None]:
        """Messages; ends at the end with `stop_at_end`, or when the consumer is closed. After an
        `anext` that a time-out has cancelled the next one goes on."""
        async with self._iteration() as (reader, iteration):
            while await reader.advance(iteration):
                for message in reader.messages():
                    yield message

    @resumed
    async def batches(self) -> AsyncGenerator[Batch[V], None]:
        """Batches: messages that were published together, for millions per second."""
        async with self._iteration() as (reader, iteration):
            while (batch := await reader.next_batch(iteration)) is not None and reader.take(batch):
                yield batch

    async def to_arrow(self) -> "pa.Table":
        """As `Consumer.to_arrow`."""
        require_end((await self._reader()).cursor.stop_at_end)
        return as_table([batch async for batch in self.batches()])

    async def to_pandas(self) -> "pd.DataFrame":
        """As `Consumer.to_pandas`."""
        return as_pandas(await self.to_arrow())

    async def to_polars(self) -> "pl.DataFrame":
        """As `Consumer.to_polars`."""
        return as_polars(await self.to_arrow())

    async def poll(self, timeout_s: Duration = 0) -> Message[V] | None:
        """As `Consumer.poll`."""
        limit_s = seconds("timeout_s", timeout_s)
        return await (await self._reader()).poll(limit_s)

    def assignment(self) -> list[int]:
        """As `Consumer.assignment`. Empty before the consumer was entered or iterated over."""
        return [] if self._made is None else self._made.assignment()

    async def seek(self, partition: int, position: Start) -> None:
        """As `Consumer.seek`."""
        await (await self._reader()).seek(partition, position)

    async def pause(self, partitions: Sequence[int]) -> None:
        """As `Consumer.pause`."""
        (await self._reader()).pause(partitions)

    async def resume(self, partitions: Sequence[int]) -> None:
        """As `Consumer.resume`."""
        (await self._reader()).resume(partitions)

    async def lag(self) -> dict[int, int]:
        """As `Consumer.lag`."""
        return await (await self._reader()).lag()

    def positions(self) -> dict[int, Position]:
        """As `Consumer.positions`. Empty before the consumer was entered or iterated over."""
        return {} if self._made is None else self._made.positions()

    async def ack(self) -> None:
        """As `Consumer.ack`."""
        await (await self._reader()).ack()

    async def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """As `Consumer.handle`; the handler may be a coroutine function."""
        await (await self._reader()).handle(handler)

    async def close(self) -> None:
        """As `Consumer.close`; an iteration in another task ends, too."""
        self._io.end()
        if self._made is None:
            self._io.close()
        else:
            await self._made.close()

    async def __aenter__(self) -> Self:
        await self._reader()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def _reader(self) -> Reader[V]:
        """The reader, which looks the topic up when it is made. Raises `TopicNotFound`."""
        async with self._making:
            if self._made is None:
                self._made = await self._make_reader()
            return self._made

    @asynccontextmanager
    async def _iteration(self) -> AsyncIterator[tuple[Reader[V], object]]:
        self._over = False
        reader = await self._reader()
        with reader.iteration() as iteration:
            yield reader, iteration
        self._over = True


def _forget(task: asyncio.Task[Fetched]) -> None:
    if not task.cancelled():
        task.exception()
