"""The producer: messages to blocks to the log, without delaying a lone message and without a
duplicate.

    send ──▶ batcher ──▶ push: pack and submit ──▶ in flight ──▶ settle: answer taken, or recovered

When is pushed: by the calling thread, at once, when nothing is in flight and the last push is not a
moment ago; by the calling thread when a block is full; otherwise by the driver, a thread that makes
progress when the caller stops calling. The driver stays out of the way while the caller fills
blocks by itself: waking it would cost the caller the interpreter lock at each answer. It holds the
producer only while there is something to do: a producer that is dropped without `close` sends
the messages that it has accepted, and its thread and connection end within `IDLE_S` after that.

What is promised stands in `tms.client.sending`.
"""

import atexit
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Generic, NoReturn, Self
from weakref import WeakValueDictionary, finalize, ref

from tms.block import TimesColumn
from tms.client.batching import Batcher, KnownTopic
from tms.client.delivery import deliver
from tms.client.receipts import SentCells, settle
from tms.client.sending import STALLED_S, Sending, closing_after, dropped, tell_lost
from tms.client.transport import LocalTransport, PendingAnswer, RemoteTransport, open_channel
from tms.errors import TimedOut, TMSError, again
from tms.model.ids import MessageId
from tms.model.message import Appended, Headers, NewBlock
from tms.model.serializer import V
from tms.runtime import forks
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.retrying import attempt_s, is_retriable

CALM_S = 0.000_2  # after a push, a message may be followed by others that soon
BUSY_S = 0.005  # how long the driver stays away while the caller fills blocks
_DRIVER = "tms-producer"  # a thread's name
IDLE_S = 1.0  # between two looks of an idle driver at whether its producer was dropped
EXIT_S = 5.0  # time for all producers together when a program ends without closing them


class Producer(Generic[V]):
    """Publishes to one topic; created by `Bus.producer`. Thread-safe. Use it as a context manager,
    or close it."""

    def __init__(
        self,
        transport: LocalTransport | RemoteTransport,
        sending: Sending[PendingAnswer[list[Appended]]],
        clock: Clock,
        look_up: Callable[[], KnownTopic],
    ) -> None:
        self._append = transport.append
        self._channel = open_channel(transport)
        assert sending.batcher is not None, "the topic is looked up before"
        self._batcher: Batcher[V] = sending.batcher
        self._sending = sending
        self._clock = clock
        self._look_up = look_up
        self._linger_s, self._in_flight_max = sending.pace
        self._attempt_s = attempt_s(sending.delivery.timeout_s)
        self._full_pushes = self._full_pushes_seen = 0
        self._pushed_at_s = -1.0
        self._send_at_s = 0.0
        self._weakly = ref(self)  # a held outcome does not keep the producer
        self._begin()
        forks.in_child(self._begin)
        self._end = finalize(self, dropped, self._sending, self._channel.close)
        self._end.atexit = False  # `_flush_all` runs at exit
        _producers[id(self)] = self
        _flush_at_exit()

    def __repr__(self) -> str:
        return self._sending.describe(self)

    def _begin(self) -> None:
        self._sending.begin_anew()
        _busy.discard(self)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._driver: threading.Thread | None = None
        self._driver_sleeps = False

    def send(
        self,
        value: V | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        event_time_ms: int | None = None,
    ) -> "Sent":
        """Publish one message. It is acknowledged once a later `flush` or `close` returns, or once
        the `result` of the returned `Sent` returns its id.

        The key selects the partition, unless `partition` does; messages with neither are spread
        over the partitions block by block. The value None is a tombstone. The producer's serializer
        encodes the value; without a serializer the value is bytes. `event_time_ms` is that of
        `Bus.publish`. Returns at once, but waits while
        `in_flight_max` requests are in progress.

        Raises `Invalid`, `TooLarge` or `PartitionNotFound` for this message, and any other error
        for earlier messages. After a retriable error this message is not accepted, and the earlier
        ones are kept: send it again. After any other error the producer has ended; `unacknowledged`
        in the details is the number of messages that may or may not be stored.
        """
        with self._lock:
            sending, batcher = self._sending, self._batcher
            if sending.ended:
                sending.check()
            if sending.stalled is not None:
                self._resume()
            first = not batcher.fillings
            is_full = batcher.add(value, key, headers, partition, event_time_ms)
            newest = batcher.newest
            sent = _AS_SENT((self._weakly, newest.receipt, len(newest.values) - 1))
            if is_full:
                try:
                    self._push_full()
                except TMSError as error:
                    sending.raise_unless_kept(error)
            elif first:
                self._begin_waiting()
            return sent

    def send_many(
        self,
        values: Sequence[V | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        event_times_ms: TimesColumn | None = None,
    ) -> None:
        """Publish messages in this order; like `send` for each of them, but faster. Errors carry
        `index`. If a retriable error comes after some messages were accepted, it carries their
        number as `accepted`: send the others again."""
        with self._lock:
            if self._sending.ended:
                self._sending.check()
            if self._sending.stalled is not None:
                self._resume()
            first = not self._batcher.fillings
            accepted = 0
            try:
                columns = values, keys, headers, partition, event_times_ms
                for taken in self._batcher.add_many(*columns):
                    accepted = taken
                    self._push_full()
                    first = True
            except TMSError as error:
                self._sending.raise_unless_kept(error, accepted < len(values), accepted)
            finally:
                if first and self._batcher.fillings and self._sending.stalled is None:
                    self._begin_waiting()

    def flush(self) -> None:
        """Wait until all messages sent so far are acknowledged. Raises a retriable error, such as
        `TimedOut`, if messages are only late: the producer keeps and repeats them, so call `flush`
        again; `unacknowledged` in the details is their number. After any other error, such as
        `OutcomeUnknown`, the producer has ended: create a new one. Then `unacknowledged` is the
        number of messages that may or may not be stored."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Flush and close the producer. A second call does nothing. Raises an error that no call
        has raised yet, or the error of messages that are still not acknowledged: `unacknowledged`
        in its details is their number, and they may or may not be stored."""
        with self._lock:
            try:
                with self._sending.closing() as flushes:
                    if flushes:
                        self._flush()
            finally:
                self._wake.notify_all()
                self._end.detach()
                _producers.pop(id(self), None)
                _busy.discard(self)
                self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with closing_after(error):
            self.close()

    # --- pushing; the caller of these holds the lock ----------------------------------------------

    def _push_full(self) -> None:
        _busy.add(self)
        self._full_pushes += 1
        if self._driver is None:
            self._begin_driving()
        self._collect()
        self._push()

    def _begin_waiting(self) -> None:
        """The first message since the last push: send it now, or see to it that it will be sent."""
        _busy.add(self)
        if self._driver is None:
            self._begin_driving()
        try:
            self._collect()
        except TMSError as error:
            self._sending.raise_unless_kept(error)
            return
        now_s = self._clock.monotonic_s()
        calm_at_s = self._pushed_at_s + CALM_S
        if not self._linger_s and not self._sending.flights and now_s >= calm_at_s:
            self._push()
        else:
            self._send_at_s = now_s + self._linger_s if self._linger_s else calm_at_s
        if self._driver_sleeps and not self._sending.flights:
            self._wake.notify()

    def _begin_driving(self) -> None:
        drive = (ref(self), self._lock, self._wake)
        self._driver = threading.Thread(target=_drive, args=drive, name=_DRIVER, daemon=True)
        self._driver.start()

    def _push(self, until_s: float | None = None) -> None:
        flights = self._sending.flights
        while len(flights) >= self._in_flight_max:
            self._settle(self._deadline() if until_s is None else until_s)
        now_s = self._clock.monotonic_s()
        if self._batcher.is_outdated(now_s):
            self._refresh()
        try:
            self._sending.launch(self._submit, now_s + self._attempt_s)
        except TMSError as error:
            self._fail(error)
        self._pushed_at_s = now_s
        if self._driver_sleeps:
            self._wake.notify()

    def _submit(self, blocks: Sequence[NewBlock]) -> PendingAnswer[list[Appended]]:
        delivery = self._sending.delivery
        try:
            return self._channel.submit(delivery.name, blocks, delivery.durability)
        except TMSError as error:
            return _RefusedAppend(error)

    def _refresh(self) -> None:
        try:
            self._batcher.learn(self._look_up())
        except TMSError as error:
            if not is_retriable(error):
                self._fail(error)

    def _deadline(self) -> float:
        return self._clock.monotonic_s() + self._sending.delivery.timeout_s

    def _collect(self) -> None:
        """Take the answers that are there, and repeat what is overdue."""
        while self._sending.flights:
            flight = self._sending.flights[0]
            if not flight.pending.done() and self._clock.monotonic_s() < flight.due_s:
                return
            self._settle(self._deadline())

    def _settle(self, deadline_s: float) -> None:
        """Take the oldest answer, waiting for it."""
        flight = self._sending.flights[0]
        until_s = min(flight.due_s, deadline_s)
        try:
            appended = flight.pending.result(max(0.0, until_s - self._clock.monotonic_s()))
        except TimedOut as error:
            if until_s < flight.due_s and not flight.pending.done():
                self._sending.stall(error)
                raise
            self._recover(error, deadline_s)
        except TMSError as error:
            self._recover(error, deadline_s)
        else:
            self._sending.landed(appended)

    def _flush_for(self, left_s: float) -> int:
        """Flush for so long at most; the number of messages that are lost then."""
        until_s = self._clock.monotonic_s() + left_s
        if self._lock.acquire(timeout=max(0.0, left_s)):
            try:
                if not self._sending.ended:
                    self._finish(until_s)
            except TMSError:
                return self._sending.lost()
            finally:
                self._lock.release()
        return self._sending.lost()

    def _flush(self) -> None:
        if self._sending.ended:
            self._sending.check()
        self._finish()

    def _finish(self, until_s: float | None = None) -> None:
        deadline_s = self._deadline() if until_s is None else until_s
        self._go_on(deadline_s)
        if self._batcher.fillings:
            self._push(until_s)
        while self._sending.flights:
            self._settle(deadline_s)

    def _recover(self, error: TMSError, deadline_s: float) -> None:
        """The oldest request failed: repeat what is not acknowledged."""
        first, *others = self._sending.flights
        failed = [(first, error)]
        try:
            self._sending.require_retriable(error)
            if isinstance(error, TimedOut):
                self._channel.reset()
            for flight in others:
                try:
                    wait_s = max(0.0, flight.due_s - self._clock.monotonic_s())
                    settle(flight.receipts, flight.pending.result(wait_s))
                except TMSError as later:
                    self._sending.require_retriable(later)
                    failed.append((flight, later))
        except TMSError as last:
            self._fail(last)
        self._channel.reset()
        self._sending.repeat(failed, self._clock.monotonic_s())
        self._sending.stall(error)
        self._go_on(deadline_s)

    def _resume(self) -> None:
        """Send what did not get through, and what waits behind it."""
        self._go_on(self._deadline())
        if self._batcher.fillings:
            self._push()

    def _go_on(self, deadline_s: float) -> None:
        """Repeat what did not get through. Raises what keeps it from that, and keeps it if it may
        get through later."""
        left = self._sending.left
        late = self._sending.stalled
        if left is not None:
            left_s = deadline_s - self._clock.monotonic_s()
            try:
                if left_s <= 0 and late is not None:
                    raise again(late)
                appended = deliver(self._append, left, self._clock, left_s)
            except TMSError as error:
                if not is_retriable(error):
                    self._fail(error)
                self._sending.stall(error)
                raise
            self._sending.recovered(appended)
        self._sending.stalled = None

    def _fail(self, error: TMSError) -> NoReturn:
        self._sending.give_up(error)
        self._sending.told = True
        raise error

    # --- the driver -------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        """True if the driver has something to do."""
        waits = self._sending.flights or self._batcher.fillings or self._sending.left is not None
        return bool(waits) and self._sending.failure is None

    def _drive_on(self) -> None:
        """One step of the driver, which holds the lock."""
        if self._full_pushes != self._full_pushes_seen:
            self._full_pushes_seen = self._full_pushes
            self._wake.wait(BUSY_S)
            return
        try:
            self._step()
        except TMSError:
            self._sending.told = False  # it is kept for the caller
            if self._sending.failure is None:
                self._wake.wait(STALLED_S)

    def _step(self) -> None:
        if self._sending.stalled is not None:
            self._resume()
            if not self._has_work():
                return
        if self._sending.flights:
            oldest = self._sending.flights[0]
            self._lock.release()
            try:
                _await(oldest.pending, max(0.0, oldest.due_s - self._clock.monotonic_s()))
            finally:
                self._lock.acquire()
            self._collect()
            if self._sending.flights or not self._batcher.fillings or self._linger_s:
                return
            self._push()
        elif (pause_s := self._send_at_s - self._clock.monotonic_s()) > 0:
            self._sleep(pause_s)
        else:
            self._push()

    def _sleep(self, pause_s: float) -> None:
        """Sleep until there is work for the driver."""
        self._driver_sleeps = True
        self._wake.wait(pause_s)
        self._driver_sleeps = False


class Sent(SentCells):
    """The outcome of `Producer.send`."""

    __slots__ = ()

    def result(self) -> MessageId | None:
        """The id of the message, None with durability `none`; flushes the producer if the id is not
        known yet. Raises the errors of `Producer.flush`, and `OutcomeUnknown` or another error of
        the message."""
        if not self.done() and (producer := self.producer()) is not None:
            with self.receipt.awaited():
                producer.flush()
        return self.receipt.id(self.number)


# A third of the time of calling the class.
_AS_SENT: Callable[[Iterable[object]], Sent] = partial(tuple.__new__, Sent)


def _drive(held: ref[Producer[Any]], lock: threading.Lock, wake: threading.Condition) -> None:
    """Make progress for a producer until it is closed or dropped."""
    with lock:
        while (producer := held()) is not None and not producer._sending.closed:
            if producer._has_work():
                producer._drive_on()
                continue
            producer._driver_sleeps = True
            _busy.discard(producer)
            del producer  # so that it can be dropped
            wake.wait(IDLE_S)
            if (producer := held()) is not None:
                producer._driver_sleeps = False
            del producer


def is_driver() -> bool:
    """True in the thread of a producer."""
    return threading.current_thread().name == _DRIVER


_producers: WeakValueDictionary[int, Producer[Any]] = WeakValueDictionary()  # not closed
_busy: set[Producer[Any]] = set()  # with work for their driver, which keeps them from being dropped


@cache
def _flush_at_exit() -> None:
    """Register, once in a process, that producers are flushed when the program ends: while the
    engine's threads still work, and again after the program's other threads have ended."""
    register = getattr(threading, "_register_atexit", None)  # as concurrent.futures does
    if register is not None:
        with suppress(RuntimeError):  # the program ends already
            register(_flush_all)
    atexit.register(_flush_all, last=True)


def _flush_all(last: bool = False) -> None:
    until_s = SystemClock().monotonic_s() + EXIT_S
    for held in _producers.valuerefs():
        if (producer := held()) is None:
            continue
        lost = producer._flush_for(until_s - SystemClock().monotonic_s())
        if lost and last:
            tell_lost(producer._sending.delivery.name, lost)


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
