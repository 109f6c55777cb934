"""The answers of a service before its store is open, which may take long: HBase may be unreachable,
or there is much to recover.

    /livez  200     /startupz, /readyz  503, with the reason     everything else  503, try again

Invariants

* Nothing here knows the store: the process is alive although the store is not.
* Within `PATIENCE_S` requests wait for the service itself, as at a short start.
* At the end all connections are closed, and the listeners are the service's.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import uvloop

from tms.api import bodies, routes
from tms.api.bodies import LivenessBody, ReadinessBody, StartedBody
from tms.errors import Unavailable
from tms.runtime.clock import Clock
from tms.server.certificates import Certificates
from tms.server.http.exchange import Exchange
from tms.server.http.listening import HttpServer
from tms.server.http.watchdog import ConnectionLimits, Watchdog
from tms.server.problems import JSON_HEAD, refuse

PATIENCE_S = 2.0  # before anything is answered
STARTING = "The service is starting: its store is not open yet."


async def _answer(exchange: Exchange) -> None:
    exchange.keep_alive = False
    path = exchange.path.decode("ascii")
    reading = exchange.method in ("GET", "HEAD")
    if reading and path == routes.LIVEZ:
        exchange.respond(routes.OK, JSON_HEAD, bodies.encode(LivenessBody(True)))
    elif reading and path == routes.STARTUPZ:
        body = bodies.encode(StartedBody(False, [STARTING]))
        exchange.respond(routes.NOT_READY, JSON_HEAD, body)
    elif reading and path == routes.READYZ:
        body = bodies.encode(ReadinessBody(False, [STARTING]))
        exchange.respond(routes.NOT_READY, JSON_HEAD, body)
    else:
        refuse(exchange, Unavailable(f"{STARTING} Try again."))


@contextlib.contextmanager
def answering(
    listeners: Sequence[socket.socket],
    limits: ConnectionLimits,
    clock: Clock,
    certificates: Callable[[], Certificates | None],
) -> Iterator[None]:
    """While this lasts, and after `PATIENCE_S`, probes are answered on the listeners, which stay
    open afterwards."""
    ended = threading.Event()
    stopping: list[HttpServer] = []
    lock = threading.Lock()  # between beginning and ending

    async def serve() -> None:
        mine = [listener.dup() for listener in listeners]
        watchdog = Watchdog(limits, clock)
        server = HttpServer(_answer, watchdog, 0, certificates())
        with lock:
            stopping.append(server)

        async def ready() -> None:
            if ended.is_set():
                server.ask_to_stop()

        await server.serve(mine, ready, lambda: None)

    def run() -> None:
        if not ended.wait(PATIENCE_S):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())

    thread = threading.Thread(target=run, name="tms-starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        with lock:
            for server in stopping:
                server.ask_to_stop()
        thread.join()
