"""Serving listeners, until the service is asked to stop.

    serve ─▶ ready ─▶ asked to stop ─▶ drain: what was received is answered, within `drain_s`
                      asked again ─▶ what is left ends at once

* New connections are accepted during the drain, so that their requests get an answer.
* Once `serve` has returned, no connection and no task of a request is left.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from tms.runtime.events import EventLog
from tms.server.certificates import Certificates
from tms.server.http.protocol import Application, ClientConnection
from tms.server.http.tls import TlsLayer
from tms.server.http.watchdog import Watchdog

BACKLOG = 2_048
CLOSE_S = 1.0  # for connections to end by themselves, once everything is answered
_log = EventLog("tms.server")


class HttpServer:
    """Made and used on one event loop, of any thread. With `certificates` it speaks TLS only."""

    def __init__(
        self,
        application: Application,
        watchdog: Watchdog,
        drain_s: float,
        certificates: Certificates | None = None,
    ) -> None:
        self._application = application
        self._watchdog = watchdog
        self._drain_s = drain_s
        self._certificates = certificates
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def requests(self) -> int:
        """The number of requests under way."""
        return len(self._tasks)

    def ask_to_stop(self) -> None:
        """Let `serve` end; asked again, at once. From any thread; once it has ended nothing is
        left to do."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        (self._hurried if self._asked.is_set() else self._asked).set()

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        ready: Callable[[], Awaitable[None]],
        drain: Callable[[], None],
    ) -> None:
        """Serve until asked to stop. `ready` is awaited once requests are answered, `drain` called
        when no more are to be begun."""
        self._watchdog.start(self._loop)
        accept = self._connection if self._certificates is None else self._tls_connection
        servers = [
            await self._loop.create_server(accept, sock=listener, backlog=BACKLOG)
            for listener in listeners
        ]
        try:
            await ready()
            await self._asked.wait()
            drain()
            self._shut_down_connections()
            if left := await self.finish(self._tasks, self._drain_s):
                _log.warning("drain_incomplete", requests=left)
        finally:
            for server in servers:
                server.close()
            self._shut_down_connections()
            await self.finish([client.lost for client in self._watchdog.connections], CLOSE_S)
            for connection in list(self._watchdog.connections):
                connection.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.sleep(0)  # what was cancelled ends
            self._watchdog.stop()

    async def finish(self, ends: Collection[asyncio.Future[None]], timeout_s: float) -> int:
        """Wait until all ends are done, also those added meanwhile; at most for this time, and not
        after a second request to stop. Returns how many are not done."""
        hurried = self._loop.create_task(self._hurried.wait())
        deadline = self._loop.time() + timeout_s
        try:
            while (left := [end for end in ends if not end.done()]) and not self._hurried.is_set():
                if (left_s := deadline - self._loop.time()) <= 0:
                    break
                some: list[asyncio.Future[Any]] = [hurried, *left]
                await asyncio.wait(some, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            return len(left)
        finally:
            hurried.cancel()

    def _connection(self) -> ClientConnection:
        return ClientConnection(self._application, self._watchdog, self._loop, self._tasks)

    def _tls_connection(self) -> TlsLayer:
        assert self._certificates is not None, "else there are plain ones only"
        return TlsLayer(self._connection(), self._certificates.newest)

    def _shut_down_connections(self) -> None:
        for connection in list(self._watchdog.connections):
            connection.shutdown()


def endpoint_of(listener: socket.socket, host: str = "") -> str:
    """HOST:PORT of a bound listener, with another name of its `host` if that is given."""
    bound, port = listener.getsockname()[:2]
    host = host or bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
