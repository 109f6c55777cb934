"""The producer: messages to blocks to the log, without delaying a lone message and without a
duplicate.

    send ──▶ batcher ──▶ push: pack and submit ──▶ in flight ──▶ settle: answer taken, or recovered

When is pushed: by the calling thread, at once, when nothing is in flight and the last push is not a
moment ago; by the calling thread when a block is full; otherwise by the driver, a thread that makes
progress when the caller stops calling. The driver stays out of the way while the caller fills
blocks by itself: waking it would cost the caller the interpreter lock at each answer.

Invariants

* Every accepted message is acknowledged, or an error says that it was not: at the next send, flush
  or close.
* At most `in_flight_max` requests are under way and one is being filled; beyond that `send` waits.
* A request that failed is repeated block by block, in order, byte for byte; nothing else is sent
  meanwhile.
* What was accepted before a fork is sent by the parent alone: in the child the producer is as new.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Self

from tms import forks
from tms.block import read_header
from tms.client.batching import REQUEST_BYTES, Batcher, Headers
from tms.client.delivery import Delivery
from tms.client.known import REFRESH_S
from tms.client.transport import Channel, PendingAnswer
from tms.clock import Clock
from tms.errors import Closed, TimedOut, TMSError
from tms.model.message import Appended, NewBlock
from tms.model.quantity import Duration, milliseconds, whole
from tms.retrying import attempt_s, is_retriable

BATCH_BYTES = 512 << 10
IN_FLIGHT_MAX = 8
LINGER_MS_MAX = 60_000
IN_FLIGHT_LIMIT = 8  # so many blocks of a producer the service remembers
CALM_S = 0.000_2  # after a push, a message may have company that soon
BUSY_S = 0.005  # how long the driver stays away while the caller fills blocks


class _Flight(NamedTuple):
    """A request under way; without an answer at `due_s` it is repeated."""

    pending: PendingAnswer[list[Appended]]
    blocks: list[NewBlock]
    due_s: float


class SendPace(NamedTuple):
    """How a producer sends: how long a message waits for company, and how many requests may be
    under way."""

    linger_s: float
    in_flight_max: int


class Producer:
    """Publishes to one topic; made by `Bus.producer`. Thread-safe. Use it as a context manager, or
    close it."""

    def __init__(
        self,
        channel: Channel,
        batcher: Batcher,
        delivery: Delivery,
        clock: Clock,
        count_partitions: Callable[[], int],
        pace: SendPace,
    ) -> None:
        self._channel = channel
        self._batcher = batcher
        self._delivery = delivery
        self._clock = clock
        self._count_partitions = count_partitions
        self._linger_s, self._in_flight_max = pace
        self._timeout_s = delivery.options.timeout_s
        self._attempt_s = attempt_s(self._timeout_s)
        self._closed = False
        self._full_pushes = 0
        self._pushed_at_s = -1.0
        self._send_at_s = 0.0
        self._refresh_at_s = clock.monotonic_s() + REFRESH_S
        self._begin()
        forks.in_child(self._begin)

    def __repr__(self) -> str:
        state = " closed" if self._closed else f", {len(self._flights)} requests under way"
        return f"<{type(self).__name__} to {self._delivery.name}{state}>"

    def _begin(self) -> None:
        self._batcher.drop()
        self._flights: deque[_Flight] = deque()
        self._failure: TMSError | None = None
        self._told = False  # whether the caller has met the failure
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._driver: threading.Thread | None = None
        self._driver_sleeps = False

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Publish one message; it is acknowledged when a later `flush` or `close` returns.

        A key decides the partition, unless `partition` does; with neither, messages are spread in
        blocks. `None` as value is a tombstone. Returns at once, or waits while `in_flight_max`
        requests are under way. Raises `Invalid`, `TooLarge` or `PartitionNotFound` for this
        message, any other error for messages before it.
        """
        with self._lock:
            if self._failure is not None or self._closed:
                self._refuse()
            batcher = self._batcher
            first = not batcher.fillings
            if batcher.add(value, key, headers, partition):
                self._push_full()
            elif first:
                self._begin_waiting()

    def send_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Publish messages in this order, like `send` for each but faster. Errors carry `index`."""
        with self._lock:
            if self._failure is not None or self._closed:
                self._refuse()
            first = not self._batcher.fillings
            try:
                for _ in self._batcher.add_many(values, keys, headers, partition):
                    self._push_full()
                    first = True
            finally:
                if first and self._batcher.fillings:
                    self._begin_waiting()

    def flush(self) -> None:
        """Wait until everything sent so far is acknowledged. Raises the error of what never will
        be, and `TimedOut` for what is only late: it is still under way, flush again."""
        with self._lock:
            if self._failure is not None or self._closed:
                self._refuse()
            self._finish()

    def close(self) -> None:
        """Flush and release. A second call does nothing. Raises an error that no call has raised
        yet."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._failure is None:
                    self._finish()
                elif not self._told:
                    self._refuse()
            finally:
                self._closed = True
                self._wake.notify_all()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except TMSError as second:
            error.add_note(f"The producer could not be closed cleanly: {second}")

    # --- pushing; the caller of these holds the lock ----------------------------------------------

    def _push_full(self) -> None:
        self._full_pushes += 1
        self._collect()
        self._push()

    def _begin_waiting(self) -> None:
        """The first message since the last push: send it now, or see to it that it will be sent."""
        self._collect()
        now_s = self._clock.monotonic_s()
        calm_at_s = self._pushed_at_s + CALM_S
        if not self._linger_s and not self._flights and now_s >= calm_at_s:
            self._push()
        else:
            self._send_at_s = now_s + self._linger_s if self._linger_s else calm_at_s
        if self._driver is None:
            self._driver = threading.Thread(target=self._drive, name="tms-producer", daemon=True)
            self._driver.start()
        elif self._driver_sleeps and not self._flights:
            self._wake.notify()

    def _push(self) -> None:
        while len(self._flights) >= self._in_flight_max:
            self._settle(self._deadline())
        now_s = self._clock.monotonic_s()
        if now_s >= self._refresh_at_s:
            self._refresh(now_s)
        try:
            blocks = self._batcher.pack()
        except TMSError as error:
            self._fail(error)
        self._batcher.next_partition()
        try:
            pending = self._channel.submit(
                self._delivery.name, blocks, self._delivery.options.durability
            )
        except TMSError as error:
            pending = _RefusedAppend(error)
        self._flights.append(_Flight(pending, blocks, now_s + self._attempt_s))
        self._pushed_at_s = now_s
        if self._driver_sleeps:
            self._wake.notify()

    def _refresh(self, now_s: float) -> None:
        self._refresh_at_s = now_s + REFRESH_S
        try:
            self._batcher.partitions = self._count_partitions()
        except TMSError as error:
            if not is_retriable(error):
                self._fail(error)

    def _deadline(self) -> float:
        return self._clock.monotonic_s() + self._timeout_s

    def _collect(self) -> None:
        """Take the answers that are there, and repeat what is overdue."""
        while self._flights:
            flight = self._flights[0]
            if not flight.pending.done() and self._clock.monotonic_s() < flight.due_s:
                return
            self._settle(self._deadline())

    def _settle(self, deadline_s: float) -> None:
        """Take the oldest answer, waiting for it."""
        flight = self._flights[0]
        until_s = min(flight.due_s, deadline_s)
        try:
            flight.pending.result(max(0.0, until_s - self._clock.monotonic_s()))
        except TimedOut as error:
            if until_s < flight.due_s and not flight.pending.done():
                raise
            self._recover(error, deadline_s)
        except TMSError as error:
            self._recover(error, deadline_s)
        else:
            self._flights.popleft()

    def _finish(self) -> None:
        deadline_s = self._deadline()
        if self._batcher.fillings:
            self._push()
        while self._flights:
            self._settle(deadline_s)

    def _recover(self, error: TMSError, deadline_s: float) -> None:
        """The oldest request failed: repeat what is not acknowledged."""
        if not is_retriable(error):
            self._fail(error)
        if isinstance(error, TimedOut):
            self._channel.reset()
        left = list(self._flights[0].blocks)
        for flight in list(self._flights)[1:]:
            try:
                flight.pending.result(max(0.0, flight.due_s - self._clock.monotonic_s()))
            except TMSError as later:
                if not is_retriable(later):
                    self._fail(later)
                left += flight.blocks
        self._channel.reset()
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            self._fail(error)
        try:
            self._delivery.repeat(left, left_s)
        except TMSError as last:
            self._fail(last)
        self._flights.clear()

    def _fail(self, error: TMSError) -> NoReturn:
        """Give up for good: what is not acknowledged now never will be. Raises `error`."""
        lost = self._batcher.count + sum(
            read_header(entry.block).count for flight in self._flights for entry in flight.blocks
        )
        error.details["unacknowledged"] = lost
        self._failure, self._told = error, True
        self._flights.clear()
        raise error

    def _refuse(self) -> NoReturn:
        if self._failure is None:
            raise Closed("The producer is closed; make a new one.")
        self._told = True
        raise self._failure

    # --- the driver -------------------------------------------------------------------------------

    def _drive(self) -> None:
        seen = 0
        with self._lock:
            while not self._closed:
                idle = not self._flights and not self._batcher.fillings
                if idle or self._failure is not None:
                    self._sleep(None)
                elif self._full_pushes != seen:
                    seen = self._full_pushes
                    self._wake.wait(BUSY_S)
                else:
                    try:
                        self._step()
                    except TMSError:
                        self._told = False  # it is kept for the caller

    def _step(self) -> None:
        if self._flights:
            pending, _, due_s = self._flights[0]
            self._lock.release()
            try:
                _await(pending, max(0.0, due_s - self._clock.monotonic_s()))
            finally:
                self._lock.acquire()
            self._collect()
            if self._flights or not self._batcher.fillings or self._linger_s:
                return
            self._push()
        elif (pause_s := self._send_at_s - self._clock.monotonic_s()) > 0:
            self._sleep(pause_s)
        else:
            self._push()

    def _sleep(self, pause_s: float | None) -> None:
        """Sleep until there is work for the driver."""
        self._driver_sleeps = True
        self._wake.wait(pause_s)
        self._driver_sleeps = False


class _RefusedAppend:
    """An append that could not even be begun."""

    def __init__(self, error: TMSError) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def result(self, timeout_s: float | None = None) -> list[Appended]:
        raise self._error


def _await(pending: PendingAnswer[list[Appended]], timeout_s: float) -> None:
    """Wait until the request is done; `_settle` takes its outcome."""
    try:
        pending.result(timeout_s)
    except TMSError:
        return


def check_options(linger_ms: Duration, batch_bytes: int, in_flight_max: int) -> float:
    """The linger in seconds. Raises `Invalid`."""
    whole("batch_bytes", batch_bytes, 1, REQUEST_BYTES)
    whole("in_flight_max", in_flight_max, 1, IN_FLIGHT_LIMIT)
    return milliseconds("linger_ms", linger_ms, 0, LINGER_MS_MAX) / 1_000
