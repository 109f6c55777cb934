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
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from tms.block.received import Delivered
from tms.client.leases import HeldMessage, Pace
from tms.client.reading import run
from tms.errors import Conflict, Invalid, TMSError
from tms.model.quantity import Duration, seconds, whole
from tms.model.queue import TokenResult, dead_letter_topic, error_text
from tms.model.serializer import V
from tms.runtime.events import EventLog
from tms.runtime.retrying import is_retriable

if TYPE_CHECKING:
    import asyncio

    from tms.client.queue import Queue, QueuePatience

T = TypeVar("T")
CONCURRENCY_MAX = 1_000
DRAIN_S = 30.0
WAIT_S = 1.0  # of a receive: a worker stops within it
LOOK_S = 0.2  # between two looks for a signal
NOTHING_DONE = TokenResult(0, ())
SIGNALS = (signal.SIGTERM, signal.SIGINT)
Handler = Callable[[Delivered[V]], object]
_log = EventLog(__name__)


class WorkerOptions(NamedTuple):
    """The number of messages that are handled at once, and the time they get to finish."""

    concurrency: int
    drain_s: float

    @classmethod
    def of(cls, handler: object, concurrency: int, drain_s: Duration) -> Self:
        """Checked options. Raises `Invalid`."""
        if not callable(handler):
            raise Invalid(
                f"A worker's handler is a function of a message, got {handler!r:.80}.",
                field="handler",
            )
        whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        return cls(concurrency, seconds("drain_s", drain_s))

    def describe(self, worker: object, queue: object) -> str:
        """The worker of a queue, as `repr` shows it."""
        return f"<{type(worker).__name__} of {queue!r}, {self.concurrency} at once>"


class HandlerIo(Protocol):
    """The I/O of a worker. An error of the class `cancelled` cancels a handler."""

    cancelled: tuple[type[BaseException], ...]

    async def call(self, handler: Callable[[Delivered[V]], Any], message: Delivered[V]) -> None:
        """Call a handler with a message."""
        ...

    async def survive(self, call: Callable[[], T]) -> T:
        """The result of a call that blocks, once the service is there."""
        ...


class Handling(Generic[V]):
    """The messages of one worker in its handler, without I/O: when they are acked and nacked, and
    why the worker cannot go on, if it cannot."""

    def __init__(
        self,
        queue: "Queue[V]",
        handler: Callable[[Delivered[V]], Any],
        make_io: Callable[["QueuePatience"], HandlerIo],
        stop: Callable[[], object],
    ) -> None:
        self.name = f"worker of the queue {queue.group} of {queue.name}"
        outage = queue.patience.outage.beside(self.name)
        self.patience = queue.patience._replace(outage=outage)
        self.handler = handler
        self._queue = queue
        self._io = make_io(self.patience)
        self._stop = stop
        self._failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Stop the worker for an error; one that may pass does not count once it is to stop."""
        if not (self.patience.outage.ended.is_set() and is_retriable(error)):
            self._failure = self._failure or error
        self._stop()

    def reraise(self) -> None:
        """Raises the first error that counts."""
        if self._failure is not None:
            raise self._failure

    async def handle(self, message: Delivered[V], held: HeldMessage) -> None:
        """Handle and settle a message. An error that is not the message's stops the worker."""
        try:
            with self._queue._processing(message) as mark_failed:
                result = await self._settled(message, held, mark_failed)
        except self._io.cancelled:
            raise
        except BaseException as error:
            if isinstance(error, TMSError) and error.retriable:
                _log.warning("message_not_settled", **self._facts(message), error=error.message)
            else:
                self.fail(error)
        else:
            if result.fenced and not held.lost:  # else that is told already
                _log.warning("lease_lost", **self._facts(message))

    def not_drained(self, handlers: int) -> None:
        """Log that handlers have not finished in the time to drain."""
        _log.warning("worker_not_drained", worker=self.name, handlers=handlers)

    async def _settled(
        self,
        message: Delivered[V],
        held: HeldMessage,
        mark_failed: Callable[[BaseException], object],
    ) -> TokenResult:
        """Handle a message; the result of its settlement."""
        queue = self._queue
        result = NOTHING_DONE
        try:
            await self._io.call(self.handler, message)
        except BaseException as error:
            mark_failed(error)
            cause = error_text(error)
            facts = _place(message)
            _log.exception("handler_failed", worker=self.name, **facts, error=cause)
            try:
                if not held.settled:
                    result = await self._io.survive(lambda: queue.nack(message, cause=cause))
                    self._tell_dead(message, result)
            finally:
                if not isinstance(error, (Exception, *self._io.cancelled)):
                    raise error
        else:
            if not held.settled:
                result = await self._io.survive(lambda: queue.ack(message))
        return result

    def _tell_dead(self, message: Delivered[V], result: TokenResult) -> None:
        """Log that a message is a dead letter, if that was its last delivery."""
        queue = self._queue
        settings = queue.settings
        if result.done and 0 < settings.deliveries_max <= message.deliveries:
            to = dead_letter_topic(queue.group, queue.name, settings.dead_letter)
            _log.warning("dead_letter", **self._facts(message), to=str(to))

    def _facts(self, message: Delivered[V]) -> dict[str, Any]:
        return {"worker": self.name, **_place(message)}


class ThreadHandlerIo:
    """The I/O of a worker with threads; see `HandlerIo`."""

    cancelled: tuple[type[BaseException], ...] = ()

    def __init__(self, patience: "QueuePatience") -> None:
        self._patience = patience

    async def call(self, handler: Handler[V], message: Delivered[V]) -> None:
        """As `HandlerIo.call`."""
        handler(message)

    async def survive(self, call: Callable[[], T]) -> T:
        """As `HandlerIo.survive`."""
        return self._patience.survive(call)


class Worker(Generic[V]):
    """Handles the messages of a queue in threads; created by `Queue.worker`. Call `run`, or use it
    as a context manager, which works until its block ends. Calling the worker calls its handler. A
    worker runs only once.

    A message is acked when the handler returns. If the handler raises, the message is nacked with
    the error as its cause. Any thread may call `stop`, and so may a handler.
    """

    def __init__(self, queue: "Queue[V]", handler: Handler[V], options: WorkerOptions) -> None:
        self._queue = queue
        self._options = options
        self._handling = Handling(queue, handler, ThreadHandlerIo, self.stop)
        self._patience = self._handling.patience
        self._stopping = self._patience.outage.ended
        self._pace = Pace(queue.settings.lease_s, queue.settings.deliveries_max)
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[tuple[Delivered[V], HeldMessage]] = deque()
        self._busy = 0
        self._draining = False

    def __call__(self, message: Delivered[V]) -> object:
        """The result of the handler."""
        return self._handling.handler(message)

    def __repr__(self) -> str:
        return self._options.describe(self, self._queue)

    def run(self) -> None:
        """Work until `stop`, then drain. In the main thread, SIGTERM and SIGINT stop the worker,
        too; a second signal has its usual effect. Raises the error that keeps it from working, such
        as `QueueNotFound`."""
        signals: list[int] = []
        with on_signals(signals.append):
            thread = self._start()
            while thread.is_alive():
                thread.join(LOOK_S)
                if signals:
                    self.stop()
        self._handling.reraise()

    def start(self) -> None:
        """Work in threads until `close`."""
        self._start()

    def stop(self) -> None:
        """Receive nothing more, and drain. Does not wait for the end."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and wait until the worker has drained. Raises the error that kept it from
        working."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._handling.reraise()

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

    def _work(self) -> None:
        threads: list[threading.Thread] = []
        try:
            for number in range(self._options.concurrency):
                name = f"tms-handler-{number}"
                thread = threading.Thread(target=self._handle_on, name=name, daemon=True)
                thread.start()
                threads.append(thread)
            while not self._stopping.is_set():
                self._receive()
        except Exception as error:
            self._handling.fail(error)
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
            self._handling.not_drained(late)

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
                    run(self._handling.handle(message, held))
            finally:
                self._queue.leases.release(held)
                with self._changed:
                    self._busy -= 1
                    self._pace.took(clock.monotonic_s() - began_s)
                    self._changed.notify_all()


def once(worker: object) -> Conflict:
    """The error of a worker that is started again."""
    return Conflict(f"{worker!r} was started already. Make another one with queue.worker(…).")


def _place(message: Delivered[V]) -> dict[str, int]:
    return {
        "partition": message.partition,
        "offset": message.offset,
        "deliveries": message.deliveries,
    }


@contextmanager
def on_signals(
    call: Callable[[int], object], loop: "asyncio.AbstractEventLoop | None" = None
) -> Iterator[None]:
    """While the block runs in the main thread, the first SIGTERM or SIGINT calls this, on the event
    loop if there is one; the second has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = {one: signal.getsignal(one) or signal.SIG_DFL for one in SIGNALS}

    def first(number: int, _: FrameType | None = None) -> None:
        restore()
        call(number)

    def restore() -> None:
        for one, handler in usual.items():
            if loop is not None:
                loop.remove_signal_handler(one)
            signal.signal(one, handler)

    for one in SIGNALS:
        if loop is None:
            signal.signal(one, first)
        else:
            loop.add_signal_handler(one, first, one)
    try:
        yield
    finally:
        restore()
