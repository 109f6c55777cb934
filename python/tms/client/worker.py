"""A worker: receives the messages of a queue, hands each to a function, and settles it.

    receive ─▶ waiting ─▶ handler ─┬─ returns ─▶ ack
                                   └─ raises ──▶ nack: again after the back-off, or a dead letter

Invariants

* Leases last from the receive until a message is settled; what was lost before its turn is left to
  who has it.
* What a handler has settled, or handed to a transaction, is left so.
* A worker ends in good order: it receives nothing more, lets its handlers finish for up to
  `drain_s`, settles what they did, and gives back what waits.
* While the service is away it waits; once it is to stop, each call is made for its time-out only.
"""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Generic, NamedTuple, Self

from tms.block.received import Delivered
from tms.client.leases import HeldMessage, Pace
from tms.errors import Conflict, Invalid, TMSError
from tms.events import EventLog
from tms.model.quantity import Duration, seconds, whole
from tms.model.queue import TokenResult, dead_letter_topic, error_text
from tms.model.serializer import V
from tms.retrying import is_retriable

if TYPE_CHECKING:
    from tms.client.queue import Queue

CONCURRENCY_MAX = 1_000
DRAIN_S = 30.0
WAIT_S = 1.0  # of a receive: a worker stops within it
LOOK_S = 0.2  # between two looks for a signal
NOTHING_DONE = TokenResult(0, ())
SIGNALS = (signal.SIGTERM, signal.SIGINT)
Handler = Callable[[Delivered[V]], object]
_log = EventLog(__name__)


class WorkerOptions(NamedTuple):
    """How many messages are handled at once, and how long those that are get to finish."""

    concurrency: int
    drain_s: float

    @classmethod
    def of(cls, handler: object, concurrency: int, drain_s: Duration) -> Self:
        """What a caller gave. Raises `Invalid`."""
        if not callable(handler):
            raise Invalid(
                f"A worker's handler is a function of a message, got {handler!r:.80}.",
                field="handler",
            )
        whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        return cls(concurrency, seconds("drain_s", drain_s))


class Worker(Generic[V]):
    """Made by `Queue.worker`: `run` it, or use it as a context manager, which works as long as its
    block takes. Calling it calls its handler. It works once.

    A message is acked when the handler returns, and nacked with the error as its cause when it
    raises. `stop` may be called from any thread, and by a handler.
    """

    def __init__(self, queue: "Queue[V]", handler: Handler[V], options: WorkerOptions) -> None:
        self._queue = queue
        self._handler = handler
        self._options = options
        self._name = f"worker of the queue {queue.group} of {queue.name}"
        outage = queue.patience.outage.beside(self._name)
        self._patience = queue.patience._replace(outage=outage)
        self._stopping = outage.ended
        self._pace = Pace(queue.settings.lease_s, queue.settings.deliveries_max)
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[tuple[Delivered[V], HeldMessage]] = deque()
        self._busy = 0
        self._draining = False
        self._error: BaseException | None = None

    def __call__(self, message: Delivered[V]) -> object:
        """What the handler says."""
        return self._handler(message)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue!r}, {self._options.concurrency} at once>"

    def run(self) -> None:
        """Work until `stop`, or, in the main thread, until SIGTERM or SIGINT, whose second has its
        usual effect; then drain. Raises what keeps it from working, such as `QueueNotFound`."""
        signals: list[int] = []
        with on_signals(signals.append):
            thread = self._start()
            while thread.is_alive():
                thread.join(LOOK_S)
                if signals:
                    self.stop()
        self._raise()

    def start(self) -> None:
        """Work in threads until `close`."""
        self._start()

    def stop(self) -> None:
        """Receive nothing more, and drain. Does not wait for it."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and wait until it has drained. Raises what has kept it from working."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._raise()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- receiving ---------------------------------------------------------------------------------

    def _start(self) -> threading.Thread:
        if self._thread is not None:
            raise once(self)
        self._thread = threading.Thread(target=self._work, name="tms-worker", daemon=True)
        self._thread.start()
        return self._thread

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: BaseException) -> None:
        """It cannot go on."""
        if not (self._stopping.is_set() and is_retriable(error)):
            self._error = self._error or error
        self.stop()

    def _work(self) -> None:
        threads = [
            threading.Thread(target=self._handle_on, name=f"tms-handler-{number}", daemon=True)
            for number in range(self._options.concurrency)
        ]
        for thread in threads:
            thread.start()
        try:
            while not self._stopping.is_set():
                self._receive()
        except Exception as error:
            self._fail(error)
        finally:
            self._drain(threads)

    def _receive(self) -> None:
        """Take what there is room for."""
        with self._changed:
            ahead = self._pace.limit - 1
            room = self._options.concurrency + ahead - self._busy - len(self._waiting)
            if room <= 0 or (self._waiting and room < ahead // 2):
                self._changed.wait(WAIT_S)
                return
        queue = self._queue
        messages = self._patience.survive(lambda: queue.receive(room, WAIT_S))
        held = queue.leases.keep(messages)
        with self._changed:
            self._waiting.extend(zip(messages, held, strict=True))
            self._changed.notify_all()

    def _drain(self, threads: list[threading.Thread]) -> None:
        with self._changed:
            rest = [*self._waiting]
            self._waiting.clear()
            self._draining = True
            self._changed.notify_all()
        if returned := [message for message, held in rest if not held.lost]:
            with suppress(TMSError):  # then the leases end
                self._queue.release(returned)
        for _, held in rest:
            self._queue.leases.release(held)
        clock = self._patience.clock
        until_s = clock.monotonic_s() + self._options.drain_s
        for thread in threads:
            thread.join(max(0.0, until_s - clock.monotonic_s()))
        if late := sum(thread.is_alive() for thread in threads):
            tell_not_drained(self._name, late)

    # -- handling ----------------------------------------------------------------------------------

    def _handle_on(self) -> None:
        clock = self._patience.clock
        while True:
            with self._changed:
                while not self._draining and (self._stopping.is_set() or not self._waiting):
                    self._changed.wait(WAIT_S)
                if self._draining:
                    return
                message, held = self._waiting.popleft()
                self._busy += 1
            began_s = clock.monotonic_s()
            try:
                if not held.lost:  # else others have it
                    self._handle(message, held)
            except BaseException as error:
                self._fail(error)
            finally:
                self._queue.leases.release(held)
                with self._changed:
                    self._busy -= 1
                    self._pace.took(clock.monotonic_s() - began_s)
                    self._changed.notify_all()

    def _handle(self, message: Delivered[V], held: HeldMessage) -> None:
        queue, survive = self._queue, self._patience.survive
        result = NOTHING_DONE
        try:
            try:
                self._handler(message)
            except BaseException as error:
                tell_failed(self._name, message, error)
                cause = error_text(error)
                if not held.settled:
                    result = survive(lambda: queue.nack(message, cause=cause))
                    tell_dead(self._name, queue, message, result)
                if not isinstance(error, Exception):
                    raise
            else:
                if not held.settled:
                    result = survive(lambda: queue.ack(message))
        except TMSError as error:
            if not error.retriable:
                raise
            tell_unsettled(self._name, message, error)
        if result.fenced and not held.lost:  # else that is told already
            tell_lost(self._name, message)


def once(worker: object) -> Conflict:
    """The error for who starts a worker again."""
    return Conflict(f"{worker!r} was started already. Make another one with queue.worker(…).")


def tell_failed(worker: str, message: Delivered[V], error: BaseException) -> None:
    """Log that a handler has raised."""
    _log.exception("handler_failed", worker=worker, **_place(message), error=error_text(error))


def tell_dead(worker: str, queue: "Queue[V]", message: Delivered[V], result: TokenResult) -> None:
    """Log that a message is a dead letter, if that was its last delivery."""
    settings = queue.settings
    if result.done and 0 < settings.deliveries_max <= message.deliveries:
        to = dead_letter_topic(queue.group, queue.name, settings.dead_letter)
        _log.warning("dead_letter", worker=worker, **_place(message), to=str(to))


def tell_unsettled(worker: str, message: Delivered[V], error: TMSError) -> None:
    """Log that the service was not told what became of a message, which comes again."""
    _log.warning("message_not_settled", worker=worker, **_place(message), error=error.message)


def tell_lost(worker: str, message: Delivered[V]) -> None:
    """Log that somebody else got a message while it was handled."""
    _log.warning("lease_lost", worker=worker, **_place(message))


def tell_not_drained(worker: str, handlers: int) -> None:
    """Log that handlers have not finished in the time to drain."""
    _log.warning("worker_not_drained", worker=worker, handlers=handlers)


def _place(message: Delivered[V]) -> dict[str, int]:
    return {
        "partition": message.partition,
        "offset": message.offset,
        "deliveries": message.deliveries,
    }


@contextmanager
def on_signals(call: Callable[[int], object]) -> Iterator[None]:
    """While the block runs in the main thread, the first SIGTERM or SIGINT calls this; the second
    has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = {one: signal.getsignal(one) or signal.SIG_DFL for one in SIGNALS}

    def first(number: int, _: FrameType | None) -> None:
        restore()
        call(number)

    def restore() -> None:
        for one, handler in usual.items():
            signal.signal(one, handler)

    for one in SIGNALS:
        signal.signal(one, first)
    try:
        yield
    finally:
        restore()
