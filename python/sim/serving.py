"""The service's own code for followers, in one thread: fetching, following and the answer of HTTP
run on an event loop that the world turns, and on connections that are cut, left and not read.

Invariants

* A callback runs when the world lets the loop turn, and at no other time; so do the service's
  threads, whose work is one more callback. Anything may happen between two of them.
* Bytes that arrive on a connection arrive in order; of bytes in flight when the
  connection is cut only a prefix arrives.
* Coroutines that a service had begun when its process died go no step further, whenever Python
  collects them.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from sim.bounds.drawing import Bounds
from sim.world import VirtualClock, World
from tms.client.http.answers import AnswerReader
from tms.client.http.exchange import Calls, Response
from tms.client.transport import FetchRequest
from tms.engine.engine import Engine
from tms.errors import TMSError, Unavailable
from tms.model.message import Buffer, Fetched
from tms.server.fetch import Fetching
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.http.watchdog import ConnectionLimits
from tms.server.service import RequestLimits, Service

WRITE_BUFFER_BYTES = 600  # what a connection takes before its sender waits
_CALLS = Calls("sim", "the service")


class TurnedLoop:
    """An event loop that runs a callback when the simulation lets it, with the methods of an event
    loop that the service uses; its time is the world's."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._self: Any = self  # as asyncio knows it
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self.begun: list[Coroutine[Any, Any, Any]] = []  # some may have ended

    @property
    def is_idle(self) -> bool:
        """True if no callback is ready to run."""
        return all(handle.cancelled() for handle in self._ready)

    def turn(self) -> bool:
        """Run the next callback; True if there was one."""
        for timer in [timer for timer in self._timers if timer.when() <= self.time()]:
            self._timers.remove(timer)
            self._ready.append(timer)
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                self._run(handle)
                return True
        return False

    def _run(self, handle: Any) -> None:
        """Run a callback; errors of the simulation pass through."""
        asyncio._set_running_loop(self._self)
        try:
            handle._context.run(handle._callback, *handle._args)
        finally:
            asyncio._set_running_loop(None)

    def time(self) -> float:
        return self._clock.monotonic_s()

    # -- as asyncio wants it -------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        self.begun.append(coro)
        return asyncio.Task(coro, loop=self._self)

    def call_soon(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.time() + delay, callback, args, self._self, context)
        self._timers.append(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle in self._timers:
            self._timers.remove(handle)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_soon(work)
        return done

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore the failure of a look whose answer is no longer awaited."""


class SimConnection:
    """A `ClientConnection` to the service. It is its own transport."""

    peer_certificate_name = None

    def __init__(self, service: Service) -> None:
        self.watchdog = service.watchdog
        self.transport = self
        self.writable: asyncio.Event | None = None
        self.unread = bytearray()
        self.ended = False  # the service writes no more
        self._closing = False

    def write(self, data: Buffer) -> None:
        if not self._closing:
            self.unread += data
        if len(self.unread) > WRITE_BUFFER_BYTES and self.writable is None:
            self.writable = asyncio.Event()

    def read(self, count: int) -> bytes:
        """The bytes that the client reads."""
        data = bytes(self.unread[:count])
        del self.unread[:count]
        if len(self.unread) <= WRITE_BUFFER_BYTES and self.writable is not None:
            self.writable.set()
            self.writable = None
        return data

    def on_response_complete(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._closing = self.ended = True

    def get_extra_info(self, name: str) -> None:
        return None

    def resume_reading(self) -> None:
        """Do nothing: the request has been read."""


class SimServer:
    """The service of an engine for the lifetime of that engine."""

    def __init__(self, engine: Engine, clock: VirtualClock, limits: RequestLimits) -> None:
        self.engine = engine
        self.loop = TurnedLoop(clock)
        self.service = service = Service(engine, clock, limits, ConnectionLimits())
        if service.routing is not None:
            service.routing._forwarding = _not_forwarded  # type: ignore[assignment]
        self.fetching = Fetching(self.service)

    def end(self) -> None:
        """End the service: its process has died."""
        for steps in self.loop.begun:
            with suppress(Exception):
                steps.close()


async def _not_forwarded(*_: object) -> None:
    raise Unavailable("The simulation forwards no request.")


class Servers:
    """The services of a world's engines."""

    def __init__(self, world: World, bounds: Bounds) -> None:
        self._world = world
        self._limits = bounds.make(RequestLimits)
        self._servers: list[SimServer] = []

    def of(self, engine: Engine) -> SimServer:
        """The service of a live engine."""
        for server in [one for one in self._servers if not self._world.lives(one.engine)]:
            server.end()
            self._servers.remove(server)
        for server in self._servers:
            if server.engine is engine:
                return server
        server = SimServer(engine, self._world.clock, self._limits)
        self._servers.append(server)
        return server

    def end(self) -> None:
        """End all services: the run is over."""
        for server in self._servers:
            server.end()


class Following:
    """A request that follows, from both sides."""

    def __init__(self, server: SimServer, request: FetchRequest) -> None:
        self.server = server
        self._connection = SimConnection(server.service)
        self._call = _CALLS.fetch(request, follow=True)
        self._reader = AnswerReader("the service", follows=True)
        head, *lines = bytes(self._call.chunks[0]).decode().split("\r\n")
        path, _, query = head.split(" ")[1].partition("?")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        self._exchange = Exchange(
            connection=self._connection,  # type: ignore[arg-type]
            request_id="",
            method="GET",
            path=path.encode(),
            query=query.encode(),
            headers={name.encode(): value.encode() for name, value in headers.items()},
            version="1.1",
            content_length=None,
            keep_alive=True,
            expects_continue=False,
            more_body=False,
        )
        namespace, topic = path.split("/")[3:6:2]
        varying = namespace.encode(), topic.encode()
        steps = server.fetching(self._exchange, varying)
        server.loop.begun.append(steps)
        server.loop.call_soon(self._go_on, steps)

    def _go_on(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine until it waits, as the service does."""
        try:
            woken = steps.send(None)
        except (StopIteration, TMSError, Disconnected):
            self._connection.abort()
            return
        if woken is None:
            self.server.loop.call_soon(self._go_on, steps)
            return
        woken._asyncio_future_blocking = False
        woken.add_done_callback(lambda _: self._go_on(steps))

    @property
    def is_over(self) -> bool:
        """True if the answer is complete."""
        return self._connection.ended and not self._connection.unread

    @property
    def is_idle(self) -> bool:
        """True if everything was read, and the service waits for new messages."""
        connection = self._connection
        begun = self._exchange.response_started and not connection.ended
        return begun and not connection.unread and self.server.loop.is_idle

    @property
    def unread_bytes(self) -> int:
        """The number of bytes in flight."""
        return len(self._connection.unread)

    def receive(self, bytes_max: int) -> list[Fetched]:
        """The parts that become complete with as many bytes as have arrived, up to `bytes_max`.
        Raises the error that the service answers."""
        data = self._connection.read(bytes_max)
        answers: list[Response] = []
        while data:
            buffer = self._reader.buffer
            count = min(len(data), len(buffer))
            buffer[:count] = data[:count]
            answers += self._reader.buffer_updated(count)
            data = data[count:]
        return [self._call.read(answer) for answer in answers]

    def drain(self) -> None:
        """Drain the service."""
        self._exchange.hurry()

    def cut(self, arriving: int) -> list[Fetched]:
        """Cut the connection; `arriving` bytes of those in flight arrive."""
        self._connection.abort()
        self._exchange.abandon()
        try:
            return self.receive(arriving)
        finally:
            self._connection.unread.clear()
