"""The service on its listeners, from the first request to the last.

serve ─▶ listeners of front ends start ─▶ ready ─▶ asked to stop ─▶ everything drains ─▶ closed
"""

import asyncio
import socket
from collections.abc import Sequence

from tms.runtime.events import EventLog
from tms.server.app import App
from tms.server.certificates import Certificates
from tms.server.front import Front, FrontListener
from tms.server.http.listening import HttpServer, endpoint_of
from tms.server.service import Service
from tms.server.systemd import SystemdNotifier
from tms.server.tracing import traced

_log = EventLog("tms.server")


class Server:
    """The service on its listener, with TLS if it has certificates, and its front ends. Made on the
    event loop that serves."""

    def __init__(
        self,
        service: Service,
        drain_s: float,
        fronts: Sequence[Front] = (),
        certificates: Certificates | None = None,
        systemd: SystemdNotifier | None = None,
    ) -> None:
        self._service = service
        self._scheme = "http" if certificates is None else "https"
        self._drain_s = drain_s
        self._systemd = systemd or SystemdNotifier({})
        self._reload: asyncio.Task[None] | None = None
        self._url = ""
        self._fronts = {one.name: one.listener for one in fronts if one.listener is not None}
        self._certificates = certificates
        app = traced(App(service, fronts), self._scheme)
        self._http = HttpServer(app, service.watchdog, drain_s, certificates)
        self._draining: list[tuple[FrontListener, asyncio.Task[None]]] = []

    def ask_to_stop(self) -> None:
        """SIGTERM or SIGINT; a second time: do not wait. From any thread."""
        self._http.ask_to_stop()

    def ask_to_reload(self) -> None:
        """SIGHUP: read the certificates again, if there are any. From the event loop's thread."""
        busy = self._reload is not None and not self._reload.done()
        if self._url and not self._service.draining and not busy:
            self._reload = asyncio.get_running_loop().create_task(self._reload_certificates())

    async def _reload_certificates(self) -> None:
        self._systemd.reloading()
        if self._certificates is not None:
            await asyncio.to_thread(self._certificates.look, asked=True)
        if not self._service.draining:
            self._systemd.ready(self._url)

    async def serve(self, *listeners: socket.socket) -> None:
        """Serve until asked to stop, then answer received requests, up to the drain time."""

        async def ready() -> None:
            ports = {}
            for name, front in self._fronts.items():
                await front.start()
                ports[f"{name}_port"] = front.port
            self._url = url_of(self._scheme, listeners[0])
            _log.info("ready", url=self._url, **ports)
            self._systemd.ready(self._url)

        try:
            await self._http.serve(listeners, ready, self._drain)
        finally:
            await self._end_fronts()
            self._service.close()

    def _drain(self) -> None:
        cluster = self._service.engine.cluster
        if cluster is not None:
            cluster.drain(ends=True)
        self._service.draining = True
        _log.info("draining", requests=self._http.requests)
        self._systemd.stopping()
        for front in self._fronts.values():
            self._draining.append((front, asyncio.create_task(front.drain(self._drain_s))))

    async def _end_fronts(self) -> None:
        await self._http.finish([task for _, task in self._draining], self._drain_s)
        for front, _ in self._draining:
            front.stop()
        for end in await asyncio.gather(
            *(task for _, task in self._draining), return_exceptions=True
        ):
            if isinstance(end, Exception):
                _log.error("drain_failed", error=repr(end))


def url_of(scheme: str, listener: socket.socket, host: str = "") -> str:
    """The URL of a bound listener, with another name of its `host` if that is given."""
    return f"{scheme}://{endpoint_of(listener, host)}"
