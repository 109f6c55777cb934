"""The consumer: fetches ahead and hands out batches and messages, in the order of each partition.

    fetch begins ──▶ answer ──▶ Cursor.accept ──▶ next fetch begins ──▶ batches handed out

The next fetch is under way while the caller works on the batches of the last one, so at most two
answers of `bytes_max` are in memory, and the buffer of a third.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from tms import forks
from tms.api.queues import FETCH_BYTES_MAX
from tms.client.committed import CommittedPositions
from tms.client.cursor import Batch, Cursor
from tms.client.frames import as_pandas, as_polars, as_table, require_end
from tms.client.transport import Channel, FetchRequest, PendingAnswer
from tms.clock import Clock
from tms.errors import Invalid, TimedOut, TMSError
from tms.model.message import Fetched, Message
from tms.model.position import Position
from tms.model.quantity import Duration, seconds, whole
from tms.model.serializer import V
from tms.model.snapshot import View, as_view
from tms.model.topic import TopicName
from tms.retrying import Outage, retrying

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")
FETCH_BYTES = 4 << 20
WAIT_S = 1.0
SHOWN = 4  # partitions of a repr


class ConsumerSettings(NamedTuple):
    """How a consumer fetches: how long it waits for the first message and for an answer, how much
    it takes at once, what it is shown of transactions, and how it survives outages."""

    wait_s: float
    bytes_max: int
    timeout_s: float
    isolation: View
    outage: Outage

    @classmethod
    def of(
        cls,
        wait_s: Duration,
        bytes_max: int,
        timeout_s: float,
        isolation: str | bytes,
        outage: Outage,
    ) -> Self:
        """What a caller gave. Raises `Invalid`."""
        waiting_s = seconds("wait_s", wait_s)
        whole("bytes_max", bytes_max, 1, FETCH_BYTES_MAX)
        return cls(waiting_s, bytes_max, timeout_s, as_view(isolation), outage)


class Iterations:
    """The iterations over one consumer: the last one that has begun goes on, and one thread or task
    fetches at a time. Any other raises `Invalid`."""

    def __init__(self) -> None:
        self._fetching = threading.Lock()
        self._last: object = None

    @property
    def fetches(self) -> bool:
        """True while a thread or task fetches."""
        return self._fetching.locked()

    @contextmanager
    def begin(self) -> Iterator[object]:
        """Begin an iteration, which ends the one before. Within, none fetches."""
        with self._alone():
            self._last = iteration = object()
            yield iteration

    @contextmanager
    def fetch(self, iteration: object) -> Iterator[None]:
        """Within, this iteration fetches."""
        with self._alone():
            self.require_last(iteration)
            yield

    def is_last(self, iteration: object) -> bool:
        """True unless another one has begun."""
        return self._last is iteration

    def require_last(self, iteration: object) -> None:
        """Raises `Invalid` if another iteration has begun."""
        if self._last is not iteration:
            raise _one_at_a_time()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._fetching.acquire(blocking=False):
            raise _one_at_a_time()
        try:
            yield
        finally:
            self._fetching.release()


def _one_at_a_time() -> Invalid:
    return Invalid(
        "Another iteration over this consumer has begun, perhaps in another thread or task. A "
        "consumer serves one iteration at a time: make one for each thread or task, in a group if "
        "they share partitions."
    )


class Consumer(Generic[V]):
    """Reads one topic; made by `Bus.consumer`. Iterate over it for messages, or over `batches()`.

    A new iteration goes on where the last one was left, which raises `Invalid` from then on.
    Iterating and `ack` go on by themselves when the service was away. For one thread; only `close`
    may be called from another one: to iterate while another thread fetches raises `Invalid`.
    """

    def __init__(
        self,
        name: TopicName,
        channel: Channel,
        cursor: Cursor,
        clock: Clock,
        settings: ConsumerSettings,
        committed: CommittedPositions,
    ) -> None:
        self.committed = committed
        self._name = name
        self._channel = channel
        self._cursor = cursor
        self._clock = clock
        self._settings = settings
        self._wait_s = 0 if cursor.stop_at_end else settings.wait_s
        self._closed = False
        self._ahead: PendingAnswer[Fetched] | None = None
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        self._iterations = Iterations()

    def __repr__(self) -> str:
        return consumer_text(type(self).__name__, self.committed, self._cursor, self._closed)

    def __del__(self) -> None:
        if (channel := getattr(self, "_channel", None)) is not None:
            channel.close()  # what is under way holds it

    def __iter__(self) -> Iterator[Message[V]]:
        """Messages; ends at the end with `stop_at_end`, or when the consumer is closed."""
        cursor = self._cursor
        for batch in self._fetched():
            for message in batch.messages():
                cursor.message = message
                yield message
            cursor.hand_out(batch)

    def batches(self) -> Iterator[Batch[V]]:
        """Batches: messages that were published together, for millions per second."""
        for batch in self._fetched():
            self._cursor.hand_out(batch)
            yield batch

    def to_arrow(self) -> "pa.Table":
        """All messages up to the end, in memory, with the columns of `Batch.to_arrow`. Raises
        `Invalid` without `stop_at_end`."""
        require_end(self._cursor.stop_at_end)
        return as_table(self.batches())

    def to_pandas(self) -> "pd.DataFrame":
        """The same for pandas."""
        return as_pandas(self.to_arrow())

    def to_polars(self) -> "pl.DataFrame":
        """The same for Polars."""
        return as_polars(self.to_arrow())

    def positions(self) -> dict[int, Position]:
        """For each partition the place behind the last message handed out; usable as `start`."""
        return self._cursor.positions()

    def ack(self) -> None:
        """Move the group's position behind what was handed out. Raises `Conflict` when another
        consumer of the group has moved it. Within a transaction: `Transaction.ack`."""
        moved = self.committed.behind(self.positions())
        self._survive(self.committed.move(moved.changes))
        moved.done()

    def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """Call the handler with each message, in order, until the consumer is closed, or up to the
        end with `stop_at_end`; see docs/groups.md. When it raises, it gets the message again,
        `deliveries_max` times in all; then the message is a dead letter, or, without `dead_letter`,
        the error is raised. With `explicit` each message is acked once it is handled. Raises
        `Invalid` for a consumer that is no member of a group; what iterating raises."""
        raise no_member()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread. A second call does nothing."""
        self._closed = True
        self._settings.outage.ended.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _fetched(self) -> Iterator[Batch[V]]:
        iterations = self._iterations
        with iterations.begin() as mine:
            self._give_up_ahead()
            self._cursor.rewind()
        try:
            while not self._cursor.finished and not self._closed:
                with iterations.fetch(mine):
                    batches = self._next_batches()
                for batch in batches:
                    yield batch
                    iterations.require_last(mine)
                self._cursor.settle()
        except TMSError:
            if not self._closed:
                raise
        finally:
            if iterations.is_last(mine):
                self._give_up_ahead()

    def _next_batches(self) -> list[Batch[V]]:
        ahead, self._ahead = self._ahead, None
        batches = self._cursor.accept(self._answer(ahead))
        if not self._cursor.finished:
            self._ahead = self._begin()
        return batches

    def _give_up_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead = None
            self._channel.reset()

    def _begin(self) -> PendingAnswer[Fetched] | None:
        """Begin the next fetch; when that fails, the next answer is asked for with retries."""
        try:
            return self._ask()
        except TMSError:
            return None

    def _ask(self) -> PendingAnswer[Fetched]:
        positions, wait_s = self._cursor.ask(self._wait_s)
        settings = self._settings
        return self._channel.begin_fetch(
            FetchRequest(
                self._name,
                positions,
                settings.bytes_max,
                wait_s,
                settings.isolation,
                self._cursor.where,
                goes_on=True,
            )
        )

    def _answer(self, ahead: PendingAnswer[Fetched] | None) -> Fetched:
        held = [ahead]

        def attempt(left_s: float) -> Fetched:
            pending = held.pop() if held else None
            if pending is None:
                pending = self._ask()
            try:
                return pending.result(self._wait_s + left_s)
            except TimedOut:
                self._channel.reset()
                raise

        settings = self._settings
        return retrying(attempt, self._clock, settings.timeout_s, outage=settings.outage)

    def _survive(self, call: Callable[[], T]) -> T:
        """What the call, which has a time-out of its own, gives once the service is there."""
        settings = self._settings
        return retrying(lambda _: call(), self._clock, settings.timeout_s, outage=settings.outage)


def no_member() -> Invalid:
    """The error of `handle` where nobody counts."""
    return Invalid(
        "Only a member of a group hands messages to a function: make the consumer with a group, "
        "and without partitions."
    )


def consumer_name(name: TopicName, group: str) -> str:
    """The consumer as a log names it."""
    return f"consumer of {name}{f' for {group}' if group else ''}"


def consumer_text(
    kind: str, committed: CommittedPositions, cursor: Cursor | None, closed: bool
) -> str:
    """What a consumer reads, and where it stands."""
    places = () if cursor is None else sorted(cursor.positions().items())
    at = ", ".join(f"{partition} {position}" for partition, position in places[:SHOWN])
    group = f" for {committed.group}" if committed.group else ""
    stands = f" at {at}" if at else ""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"<{kind} of {committed.name}{group}{stands}{more}{' closed' if closed else ''}>"
