"""A whole service in this process, on a free port, for tests."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from tms.clock import Clock, SystemClock
from tms.engine import Engine
from tms.server.http.watchdog import ConnectionLimits
from tms.server.main import Server
from tms.server.service import RequestLimits, Service


@contextlib.contextmanager
def serving(
    engine: Engine,
    *,
    clock: Clock | None = None,
    limits: RequestLimits | None = None,
    port: int = 0,
) -> Iterator[str]:
    """The URL of a service for `engine`, which stays open when the service ends."""
    listener = socket.create_server(("127.0.0.1", port))
    started: Future[Server] = Future()

    async def run() -> None:
        service = Service(
            engine, clock or SystemClock(), limits or RequestLimits(), ConnectionLimits()
        )
        server = Server(service, drain_s=5)
        started.set_result(server)
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="tms-service")
    thread.start()
    server = started.result(10)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.ask_to_stop()
        thread.join(20)
        assert not thread.is_alive(), "the service did not stop"
        listener.close()
