"""The loop of a consumer, without I/O: fetching ahead, handing out, settling.

    fetch begins ──▶ answer ──▶ Cursor.accept ──▶ next fetch begins ──▶ batches handed out

A `Reader` decides; its `ReaderIo` fetches, calls and waits, either by blocking a thread
(`tms.client.consumer`) or on an event loop (`tms.client.aio.consumer`).

Invariants

* A coroutine of a reader awaits nothing but its `ReaderIo` and other coroutines of the reader. One
  that blocks never suspends them: `run` finishes them in one step.
* The next fetch is under way while the caller works on the batches of the last one, so at most two
  answers of `bytes_max` are in memory, and the buffer of a third.
* The iteration that began last goes on, and one thread or task fetches at a time.
"""

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypedDict, TypeVar

from tms.api.queues import FETCH_BYTES_MAX
from tms.client.choices import IsolationChoice
from tms.client.committed import KnownPositions
from tms.client.cursor import Batch, Cursor, Start, as_position, numbers, page_of
from tms.client.transport import FetchRequest
from tms.errors import Closed, Invalid, TMSError
from tms.model.message import Fetched, Message, PartitionPosition
from tms.model.position import Position, PositionKind
from tms.model.quantity import Duration, seconds, whole
from tms.model.serializer import V
from tms.model.snapshot import Isolation, ReadIsolation, as_isolation
from tms.model.topic import TopicName
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import Outage

T = TypeVar("T")
FETCH_BYTES = 4 << 20
WAIT_S = 1.0
SHOWN = 4  # partitions of a repr


class FetchOptions(TypedDict, total=False):
    """Options of a consumer's fetches: `wait_s` (1 s) bounds the wait for the first message,
    `bytes_max` (4 MiB) an answer, `timeout_s` (that of the bus) a call. `isolation` is `committed`,
    `uncommitted`, or the bytes of a snapshot."""

    wait_s: Duration
    bytes_max: int
    timeout_s: Duration | None
    isolation: IsolationChoice | bytes


class ConsumerSettings(NamedTuple):
    """Waits, sizes and isolation of a consumer's fetches, and the outages that it survives."""

    wait_s: float
    bytes_max: int
    timeout_s: float
    isolation: ReadIsolation
    outage: Outage

    @classmethod
    def of(cls, options: FetchOptions, timeout_s: float, outage: Outage) -> Self:
        """Checked settings. Raises `Invalid`."""
        waiting_s = seconds("wait_s", options.get("wait_s", WAIT_S))
        bytes_max = whole("bytes_max", options.get("bytes_max", FETCH_BYTES), 1, FETCH_BYTES_MAX)
        view = as_isolation(options.get("isolation", Isolation.COMMITTED))
        return cls(waiting_s, bytes_max, timeout_s, view, outage)

    def survived(self, patient: bool) -> Outage | None:
        """The outages that a call survives; None if it is not `patient`."""
        return self.outage if patient else None


class ReaderIo(Protocol):
    """The I/O of one consumer. `closed` is True after `end`."""

    closed: bool

    def begin(self, request: FetchRequest) -> None:
        """Begin a fetch, whose answer the next `answer` returns."""
        ...

    def drop(self) -> bool:
        """Give up the fetch that was begun; False if none was."""
        ...

    async def answer(self, ask: Callable[[], FetchRequest], patient: bool = True) -> Fetched:
        """The answer to the fetch that was begun, else to one that begins now. Repeats a fetch that
        fails, with a new request, for as long as an outage may last; unless `patient` for the
        consumer's `timeout_s`."""
        ...

    async def survive(self, call: Callable[[], T], patient: bool = True) -> T:
        """The result of a call that blocks, which is repeated like a fetch."""
        ...

    async def call(self, call: Callable[[], T]) -> T:
        """The result of a call that blocks."""
        ...

    async def handle(self, handler: Callable[[Message[V]], object], message: Message[V]) -> None:
        """Call a handler with a message."""
        ...

    async def pause(self, pause_s: float) -> None:
        """Wait, at most until `end`."""
        ...

    def end(self) -> None:
        """End pauses and the survival of outages."""
        ...

    def close(self) -> None:
        """Close the channel: a fetch that waits ends."""
        ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("The I/O of a thread blocks and never suspends.")


class Iterations:
    """The iterations over one consumer: the last one that has begun goes on, and one thread or task
    fetches at a time. Any other raises `Invalid`."""

    def __init__(self) -> None:
        self._last: object = None
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        self._fetching = threading.Lock()
        self._polling = threading.Lock()

    @property
    def fetches(self) -> bool:
        """True while a thread or task fetches."""
        return self._fetching.locked()

    @contextmanager
    def begin(self) -> Iterator[object]:
        """Begin an iteration, which ends the one before. Within, none fetches."""
        with _alone(self._fetching):
            self._last = iteration = object()
            yield iteration

    @contextmanager
    def fetch(self, iteration: object) -> Iterator[None]:
        """Within, this iteration fetches."""
        with _alone(self._fetching):
            self.require_last(iteration)
            yield

    def poll(self) -> AbstractContextManager[None]:
        """Within, no other thread or task polls."""
        return _alone(self._polling)

    def is_last(self, iteration: object) -> bool:
        """True unless another one has begun."""
        return self._last is iteration

    def require_last(self, iteration: object) -> None:
        """Raises `Invalid` if another iteration has begun."""
        if self._last is not iteration:
            raise _one_at_a_time()


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise _one_at_a_time()
    try:
        yield
    finally:
        lock.release()


def _one_at_a_time() -> Invalid:
    return Invalid(
        "Another iteration over this consumer has begun, perhaps in another thread or task. A "
        "consumer serves one iteration at a time: make one for each thread or task, in a group if "
        "they share partitions."
    )


class ReaderParts(NamedTuple):
    """The state of a consumer and its I/O. `offsets` looks up, by partition, the offset of the
    first message at or after a position."""

    cursor: Cursor
    committed: KnownPositions
    settings: ConsumerSettings
    clock: Clock
    io: ReaderIo
    offsets: Callable[[Position], Mapping[int, int]]


class Reader(Generic[V]):
    """Reads the partitions of its cursor."""

    watches: ClassVar[bool] = False  # True if `hands_out` and `due` are to be asked

    def __init__(self, parts: ReaderParts) -> None:
        self.cursor = parts.cursor
        self.committed = parts.committed
        self._settings = parts.settings
        self._clock = parts.clock
        self._io = parts.io
        self._offsets_at = parts.offsets
        self._wait_s = 0 if parts.cursor.stop_at_end else parts.settings.wait_s
        self.iterations = Iterations()
        self.void: set[int] = set()  # partitions whose batch in hand is not handed out further
        self._is_settled = True  # False while batches of the last answer are handed out
        self._complete = False  # True if the iteration has come to its end
        self._batch: Batch[V] | None = None  # the messages of which are handed out one by one
        self._rest: Iterator[Message[V]] = iter(())  # of that batch
        self._refused = False  # True if a message was not handed out, because of `close`
        self._following: Iterator[Message[V]] = iter(())  # of `next_message`
        self._polled: object = object()  # the iteration of `poll`
        self._until_s: float | None = None  # when the poll under way is over
        self._has_looked = False  # True if that poll has asked the service

    # -- an iteration ------------------------------------------------------------------------------

    def begin(self) -> object:
        """Begin an iteration behind the last message that was handed out."""
        with self.iterations.begin() as iteration:
            self._drop()
            self._rewind()
            self._is_settled = True
            self._complete = False
            self._refused = False
            self._batch = None
        return iteration

    @contextmanager
    def iteration(self) -> Iterator[object]:
        """Within, an iteration goes on, from `begin` to `end`."""
        iteration = self.begin()
        try:
            yield iteration
        finally:
            self.end(iteration)

    async def next_batch(self, iteration: object) -> Batch[V] | None:
        """The next batch to hand out; None if the iteration is over."""
        try:
            self.iterations.require_last(iteration)
            self.void = set()  # no batch is in hand
            await self._hand_back()
            while (batch := self.cursor.next_waiting()) is None:
                if not self._is_settled:
                    self._is_settled = True
                    self.cursor.settle()
                if self._io.closed or await self._is_complete():
                    break
                if self._has_looked and self._left_s(WAIT_S) <= 0:
                    return None  # the time of a poll is over
                with self.iterations.fetch(iteration):
                    await self._advance()
        except TMSError:
            if not self._io.closed:
                raise
            return None
        if batch is None:
            self._complete = True
            await self._finish()
        return batch

    async def advance(self, iteration: object) -> bool:
        """True if `messages` goes on, in the batch in hand or in the next one; False if the
        iteration is over."""
        if self._refused:
            return False
        batch = self._batch if self.iterations.is_last(iteration) else None
        if batch is None or await self.is_void(batch.partition):
            self._batch = batch = await self.next_batch(iteration)
            self._rest = iter(() if batch is None else batch.messages())
        return batch is not None

    def messages(self) -> Iterator[Message[V]]:
        """Hand out the messages of the batch in hand, as long as `advance` need not be awaited."""
        batch = self._batch
        cursor = self.cursor
        watches = self.watches
        assert batch is not None, "`advance` has returned True"
        for message in self._rest:
            if not watches:
                cursor.message = message
            elif not self.hands_out(message):
                self._refused = True
                return
            yield message
            if self.void or self._batch is not batch or (watches and self.due):
                return
        self._batch = None
        cursor.hand_out(batch)

    async def next_message(self, iteration: object) -> Message[V] | None:
        """The next message to hand out; None if the iteration is over."""
        while (message := next(self._following, None)) is None and await self.advance(iteration):
            self._following = self.messages()
        return message

    async def poll(self, timeout_s: float) -> Message[V] | None:
        """As `Consumer.poll`."""
        if self._io.closed:
            raise Closed("The consumer is closed; make a new one.")
        with self.iterations.poll():
            self._until_s = self._clock.monotonic_s() + timeout_s
            try:
                if not self.iterations.is_last(self._polled):
                    self._polled = self.begin()
                return await self.next_message(self._polled)
            except BaseException:  # may leave batches that are not claimed, or of lost partitions
                self._polled = object()  # the next poll begins anew
                raise
            finally:
                self._until_s = None
                self._has_looked = False

    def end(self, iteration: object) -> None:
        """The iteration is over, or its caller has left it."""
        if self.iterations.is_last(iteration):
            self._drop()

    # -- handing out -------------------------------------------------------------------------------

    def take(self, batch: Batch[V]) -> bool:
        """Hand out a whole batch; False if the consumer was closed meanwhile."""
        self.cursor.hand_out(batch)
        return True

    def hands_out(self, message: Message[V]) -> bool:
        """Hand out a message; False if the consumer was closed meanwhile."""
        self.cursor.message = message
        return True

    @property
    def due(self) -> bool:
        """True if `is_void` is to be awaited before the next message."""
        return False

    async def is_void(self, partition: int) -> bool:
        """True if the rest of a batch of this partition is not to be handed out."""
        void, self.void = self.void, set()
        return partition in void

    # -- the caller's calls ------------------------------------------------------------------------

    def positions(self) -> dict[int, Position]:
        """As `Consumer.positions`."""
        return self.cursor.positions()

    async def ack(self) -> None:
        """As `Consumer.ack`."""
        acknowledgement = self.committed.behind(self.cursor.positions())
        await self._survive(self.committed.move(acknowledgement.changes))
        acknowledgement.done()

    def assignment(self) -> list[int]:
        """As `Consumer.assignment`."""
        return sorted(self.cursor.positions())

    async def seek(self, partition: int, start: Start) -> None:
        """As `Consumer.seek`."""
        self._require_assigned([partition])
        position = as_position(start)
        self._drop()
        if position.kind is PositionKind.LATEST:
            position = await self._latest(partition)
        self._touch({partition})
        self._give(partition, position)
        self.committed.seek(partition)

    def pause(self, partitions: Iterable[int]) -> None:
        """As `Consumer.pause`."""
        paused = self._require_assigned(partitions)
        for partition in paused:
            self.cursor.suspend(partition)
        self._touch(paused)

    def resume(self, partitions: Iterable[int]) -> None:
        """As `Consumer.resume`."""
        resumed = self._require_assigned(partitions)
        for partition in resumed:
            self._unsuspend(partition)
        self._drop()

    async def lag(self) -> dict[int, int]:
        """As `Consumer.lag`."""
        positions = self.cursor.positions()
        offsets = self.cursor.offsets()
        ends = await self._offsets(Position.latest())
        for position in {positions[p] for p in positions.keys() - offsets.keys()}:
            found = await self._offsets(position)
            offsets |= {p: found[p] for p, at in positions.items() if at == position}
        return {p: max(0, ends[p] - offsets[p]) for p in sorted(positions)}

    async def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """As `Consumer.handle`."""
        raise Invalid(
            "Only a member of a group hands messages to a function: make the consumer with a "
            "group, and without partitions."
        )

    async def close(self) -> None:
        """As `Consumer.close`."""
        self._io.end()
        self._io.close()

    def abandon(self) -> None:
        """The caller has dropped the consumer or an iteration. From any thread, at any moment."""

    # -- parts -------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Give up the fetch that was begun, if any: its partitions keep their turn."""
        if self._io.drop():
            self.cursor.take_back()

    def _rewind(self) -> None:
        self.cursor.rewind()

    async def _hand_back(self) -> None:
        """The caller is done with all that was handed out."""

    async def _is_complete(self) -> bool:
        """True if everything was read that has to be."""
        return self.cursor.finished

    async def _finish(self) -> None:
        """The iteration has come to its end."""

    async def _advance(self) -> None:
        """Fetch once, or wait a moment if all partitions are paused."""
        if self.cursor.asks:
            await self._fetch()
        else:
            await self._pause(WAIT_S)

    async def _pause(self, pause_s: float) -> None:
        await self._io.pause(self._left_s(pause_s))
        self._has_looked = self._until_s is not None

    def _left_s(self, wait_s: float) -> float:
        """The part of a wait that the poll under way leaves, in seconds."""
        if self._until_s is None:
            return wait_s
        return max(0.0, min(wait_s, self._until_s - self._clock.monotonic_s()))

    async def _survive(self, call: Callable[[], T]) -> T:
        return await self._io.survive(call, self._until_s is None)

    async def _offsets(self, position: Position) -> Mapping[int, int]:
        return await self._survive(lambda: self._offsets_at(position))

    async def _latest(self, partition: int) -> Position:
        """The end of a partition as of now."""
        latest = Position.latest()
        name = self.committed.name
        isolation = self._settings.isolation
        request = FetchRequest(name, [PartitionPosition(partition, latest)], 1, 0, isolation)
        answer = await self._io.answer(lambda: request)
        return page_of(str(name), {partition: latest}, answer).next[partition]

    def _require_assigned(self, partitions: Iterable[int]) -> set[int]:
        wanted = set(numbers(partitions))
        assigned = self.assignment()
        if strangers := sorted(wanted.difference(assigned)):
            raise Invalid(
                f"The consumer does not read the partitions {strangers}; it reads {assigned}.",
                field="partitions",
            )
        return wanted

    def _touch(self, partitions: set[int]) -> None:
        """Nothing more is handed out of what was fetched of these partitions."""
        self._drop()
        self.cursor.drop(partitions)
        self.void |= partitions

    def _give(self, partition: int, position: Position) -> None:
        self.cursor.give(partition, position)

    def _unsuspend(self, partition: int) -> None:
        self.cursor.unsuspend(partition)

    async def _fetch(self) -> None:
        polls = self._until_s is not None
        batches = self.cursor.accept(await self._io.answer(self._ask, not polls))
        self._has_looked = polls
        if self.cursor.asks and not polls:
            self._io.begin(self._ask())
        self.cursor.waiting.extend(batches)
        self._is_settled = False

    def _ask(self) -> FetchRequest:
        positions, wait_s = self.cursor.ask(self._left_s(self._wait_s))
        settings = self._settings
        return FetchRequest(
            self.committed.name,
            positions,
            settings.bytes_max,
            wait_s,
            settings.isolation,
            self.cursor.where,
            goes_on=self._until_s is None,
        )


def consumer_name(name: TopicName, group: str) -> str:
    """The consumer as a log names it."""
    return f"consumer of {name}{f' for {group}' if group else ''}"


class Positioned(Protocol):
    """A consumer."""

    def positions(self) -> dict[int, Position]: ...


def consumer_text(consumer: Positioned, committed: KnownPositions, closed: bool) -> str:
    """The `repr` of a consumer: its topic, its group, and the positions of `SHOWN` partitions."""
    kind = type(consumer).__name__
    places = sorted(consumer.positions().items())
    at = ", ".join(f"{partition} {position}" for partition, position in places[:SHOWN])
    group = f" for {committed.group}" if committed.group else ""
    stands = f" at {at}" if at else ""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"<{kind} of {committed.name}{group}{stands}{more}{' closed' if closed else ''}>"
