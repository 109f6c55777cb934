"""A service in this process: HTTP on a free port of 127.0.0.1, before an engine of a test."""

import asyncio
import socket
import threading
from concurrent.futures import Future

from tms.engine.engine import Engine
from tms.runtime.clock import SystemClock
from tms.runtime.extras import needed

with needed("tms_service", "server"):
    from tms.compat.cdap.app import CDAP, Cdap, CdapLimits
    from tms.console.settings import CONSOLE, ConsolePaths
    from tms.server.front import Front
    from tms.server.http.watchdog import ConnectionLimits
    from tms.server.service import RequestLimits, Service
    from tms.server.serving import Server

START_S = 30.0
STOP_S = 30.0
DRAIN_S = 1.0


class ServiceUnderTest:
    """Serves an engine until it is closed. `url` is what programs connect to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        engine.start()
        started: Future[Server] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="tms-service", daemon=True
        )
        self._thread.start()
        try:
            self._server = started.result(START_S)
        except BaseException:
            self._listener.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def close(self) -> None:
        """Stop serving; the engine stays. A second call does nothing."""
        self._server.ask_to_stop()
        self._thread.join(STOP_S)
        self._listener.close()

    def _run(self, started: "Future[Server]") -> None:
        async def serve() -> None:
            service = Service(self._engine, SystemClock(), RequestLimits(), ConnectionLimits())
            cdap = Front(CDAP, paths=Cdap(service, CdapLimits()))
            console = Front(CONSOLE, paths=ConsolePaths(service, has_tls=False))
            server = Server(service, DRAIN_S, [cdap, console])
            started.set_result(server)
            await server.serve(self._listener)

        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
