"""The consumer for threads: drives a `Reader` with I/O that blocks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from tms.client.cursor import Batch, Start
from tms.client.frames import as_pandas, as_polars, as_table, require_end
from tms.client.reading import ConsumerSettings, Reader, consumer_text, run
from tms.client.transport import Channel, FetchRequest, PendingAnswer
from tms.errors import Closed, TimedOut, TMSError
from tms.model.message import Fetched, Message
from tms.model.position import Position
from tms.model.quantity import Duration, seconds
from tms.model.serializer import V
from tms.runtime.clock import Clock
from tms.runtime.retrying import retrying

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")


class _Ahead(NamedTuple):
    """A fetch under way, and how long the service may wait before it answers."""

    pending: PendingAnswer[Fetched]
    wait_s: float


class ThreadIo:
    """The I/O of a consumer for one thread; see `ReaderIo`."""

    def __init__(self, channel: Channel, clock: Clock, settings: ConsumerSettings) -> None:
        self._channel = channel
        self._clock = clock
        self._settings = settings
        self._ahead: _Ahead | None = None
        self.closed = False

    def begin(self, request: FetchRequest) -> None:
        """As `ReaderIo.begin`; if that fails, `answer` begins another fetch."""
        with suppress(TMSError):
            self._ahead = _Ahead(self._channel.begin_fetch(request), request.wait_s)

    def drop(self) -> bool:
        """As `ReaderIo.drop`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not ahead.pending.done():
            with suppress(Closed):
                self._channel.leave()
        return ahead is not None

    async def answer(self, ask: Callable[[], FetchRequest], patient: bool = True) -> Fetched:
        """As `ReaderIo.answer`."""

        def attempt(left_s: float) -> Fetched:
            ahead, self._ahead = self._ahead, None
            if ahead is None:
                request = ask()
                ahead = _Ahead(self._channel.begin_fetch(request), request.wait_s)
            try:
                return ahead.pending.result(ahead.wait_s + left_s)
            except TimedOut:
                self._channel.reset()
                raise

        return self._repeated(attempt, patient)

    async def survive(self, call: Callable[[], T], patient: bool = True) -> T:
        """As `ReaderIo.survive`."""
        return self._repeated(lambda _: call(), patient)

    async def call(self, call: Callable[[], T]) -> T:
        """As `ReaderIo.call`."""
        return call()

    async def handle(self, handler: Callable[[Message[V]], object], message: Message[V]) -> None:
        """As `ReaderIo.handle`."""
        handler(message)

    async def pause(self, pause_s: float) -> None:
        """As `ReaderIo.pause`."""
        self._settings.outage.ended.wait(pause_s)

    def end(self) -> None:
        """As `ReaderIo.end`."""
        self.closed = True
        self._settings.outage.ended.set()

    def close(self) -> None:
        """As `ReaderIo.close`."""
        self._channel.close()

    def _repeated(self, attempt: Callable[[float], T], patient: bool) -> T:
        outage = self._settings.survived(patient)
        return retrying(attempt, self._clock, self._settings.timeout_s, outage=outage)


class Consumer(Generic[V]):
    """Reads one topic; created by `Bus.consumer`. Iterate over it for messages, or over
    `batches()`.

    A new iteration continues where the previous one was left, and the previous one raises `Invalid`
    from then on. After an outage of the service, iterating and `ack` continue by themselves. For
    one thread; another thread may only call `close`: iterating while another thread fetches raises
    `Invalid`.
    """

    def __init__(self, reader: Reader[V], io: ThreadIo) -> None:
        self.committed = reader.committed
        self._reader = reader
        self._io = io

    def __repr__(self) -> str:
        return consumer_text(self, self.committed, self._io.closed)

    def __del__(self) -> None:
        if (io := getattr(self, "_io", None)) is not None:
            if not io.closed:
                self._reader.abandon()
            io.close()  # its fetch under way refers to the channel

    def __iter__(self) -> Iterator[Message[V]]:
        """Messages; ends at the end with `stop_at_end`, or when the consumer is closed."""
        reader = self._reader
        with reader.iteration() as iteration:
            while run(reader.advance(iteration)):
                yield from reader.messages()

    def batches(self) -> Iterator[Batch[V]]:
        """Iterate over batches, which are messages that were published together; fast enough for
        millions of messages per second."""
        reader = self._reader
        with reader.iteration() as iteration:
            while (batch := run(reader.next_batch(iteration))) is not None and reader.take(batch):
                yield batch

    def to_arrow(self) -> "pa.Table":
        """All messages up to the end, in memory, with the columns of `Batch.to_arrow`. Raises
        `Invalid` without `stop_at_end`."""
        require_end(self._reader.cursor.stop_at_end)
        return as_table(self.batches())

    def to_pandas(self) -> "pd.DataFrame":
        """All messages up to the end as a pandas data frame; see `to_arrow`."""
        return as_pandas(self.to_arrow())

    def to_polars(self) -> "pl.DataFrame":
        """All messages up to the end as a Polars data frame; see `to_arrow`."""
        return as_polars(self.to_arrow())

    def poll(self, timeout_s: Duration = 0) -> Message[V] | None:
        """The next message, or None if none arrives within `timeout_s`, or if none is left with
        `stop_at_end`. The previous message counts as handled. Raises `Closed`, and `TimedOut` or
        `Unavailable` if the service is away for longer than the consumer's `timeout_s`."""
        return run(self._reader.poll(seconds("timeout_s", timeout_s)))

    def assignment(self) -> list[int]:
        """The partitions that the consumer reads. For a member of a group, these are the partitions
        assigned to it; they change while it is iterated over or polled."""
        return self._reader.assignment()

    def seek(self, partition: int, position: Start) -> None:
        """Continue at another position of a partition, such as `"earliest"`, a MessageId or a time;
        `"latest"` is as of this call. The next `ack` moves the group's position there, or behind
        the messages handed out since. Raises `Invalid` for a partition that the consumer does not
        read."""
        run(self._reader.seek(partition, position))

    def pause(self, partitions: Sequence[int]) -> None:
        """Hand out no messages of these partitions until `resume`; with `stop_at_end`, iterating
        waits until then. Raises `Invalid` for a partition that the consumer does not read."""
        self._reader.pause(partitions)

    def resume(self, partitions: Sequence[int]) -> None:
        """Continue with paused partitions. Raises `Invalid` for a partition that the consumer does
        not read."""
        self._reader.resume(partitions)

    def lag(self) -> dict[int, int]:
        """For each partition, the number of offsets between the position and the current end; with
        `where`, messages that do not match count, too."""
        return run(self._reader.lag())

    def positions(self) -> dict[int, Position]:
        """For each partition, the position past the last message that was handed out; usable as
        `start`."""
        return self._reader.positions()

    def ack(self) -> None:
        """Move the group's position past the messages that were handed out. Raises `Conflict` if
        another consumer of the group has moved it, `Fenced` if this member had lost a partition
        before, and `Invalid` with exactly-once delivery. In a transaction use `Transaction.ack`."""
        run(self._reader.ack())

    def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """Call the handler with each message, in order, until the consumer is closed, or up to the
        end with `stop_at_end`; see docs/groups.md. If the handler raises, it gets the message
        again, `deliveries_max` times in all; then the message becomes a dead letter, or, without
        `dead_letter`, the error is raised. With `explicit`, each message is acked once it is
        handled. Raises `Invalid` for a consumer that is no member of a group, and the errors of
        iterating."""
        run(self._reader.handle(handler))

    def close(self) -> None:
        """End the iteration, also one that waits in another thread. A member of a group first
        commits the positions of handled messages, if its positions move by themselves, and leaves
        the group. A second call does nothing."""
        run(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
