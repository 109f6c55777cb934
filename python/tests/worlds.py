"""A bus in three worlds, with one clock: in this process on memory, in this process on a data
directory, and through HTTP on a data directory. Each can be restarted and killed.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import uvloop

import tms
from tests.clocks import ManualClock
from tests.databases import crash_image
from tests.log_kit import KeptStore
from tests.waiting import PATIENCE_S, until
from tms.client.client import Bus
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.log.partition import LogLimits
from tms.runtime.clock import SystemClock
from tms.server.http.watchdog import ConnectionLimits
from tms.server.service import RequestLimits, Service
from tms.server.serving import Server
from tms.store.leveldb import LevelDBStore

# Small segments and caches, so that a few messages reach every case.
CONFIG = EngineConfig(
    cache_bytes=6_000,
    threads=2,
    log=LogLimits(segment_bytes=6_000, segment_ms=6 * 3_600_000, snapshot_bytes=2_500),
)
LIMITS = RequestLimits(threads=2)


class World(Protocol):
    """A bus that can be restarted."""

    name: str
    bus: Bus
    engine: Engine

    def restart(self) -> None:
        """Close everything and open it again."""
        ...

    def kill(self) -> None:
        """Continue with the files that a process killed now would leave."""
        ...

    def close(self) -> None: ...


class MemoryWorld:
    """An engine in this process on memory, which counts as shared."""

    name = "memory"

    def __init__(self, clock: ManualClock, config: EngineConfig = CONFIG) -> None:
        self._clock = clock
        self._config = config
        self._store = KeptStore(shared=True)
        self._open()

    def restart(self) -> None:
        self.bus.close()
        self._open()

    def kill(self) -> None:
        _quiet(self.engine)
        self.engine._threads.shutdown(wait=True)
        self._open()

    def close(self) -> None:
        self.bus.close()

    def _open(self) -> None:
        self.engine = Engine(self._store, self._clock, self._config)
        self.bus = Bus(self.engine)


class EmbeddedWorld:
    """The bus of `tms.open`, with another clock."""

    name = "embedded"

    def __init__(
        self,
        clock: ManualClock,
        directory: Path,
        config: EngineConfig = CONFIG,
        limits: RequestLimits = LIMITS,
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._config, self._limits = config, limits
        self._lives = 0
        self._open()

    def restart(self) -> None:
        self.close()
        self._open()

    def kill(self) -> None:
        _quiet(self.engine)
        self._lives += 1
        crash_image(self._path(self._lives - 1), self._path(self._lives))
        self.close()
        self._open()

    def close(self) -> None:
        self.bus.close()

    def _path(self, life: int) -> Path:
        return self._directory / str(life)

    def _open(self) -> None:
        store = LevelDBStore(self._path(self._lives), create=True)
        self.engine = Engine(store, self._clock, self._config)
        self.bus = self._bus()

    def _bus(self) -> Bus:
        return Bus(self.engine)


class HttpWorld(EmbeddedWorld):
    """The service of `tms serve`, with another clock, and a client of it."""

    name = "http"

    def close(self) -> None:
        self.bus.close()
        self._serving.close()
        self.engine.close()

    def _bus(self) -> Bus:
        self._serving = contextlib.ExitStack()
        return tms.connect(self._serving.enter_context(serving(self.engine, self._limits)))


@contextlib.contextmanager
def serving(engine: Engine, limits: RequestLimits = LIMITS) -> Iterator[str]:
    """The service over an engine, in a thread; its url."""
    listener = socket.create_server(("127.0.0.1", 0))
    started: Future[Server] = Future()

    async def run() -> None:
        server = Server(Service(engine, SystemClock(), limits, ConnectionLimits()), drain_s=5)
        started.set_result(server)
        await server.serve(listener)

    thread = threading.Thread(target=lambda: uvloop.run(run()), name="service")
    thread.start()
    server = started.result(PATIENCE_S)
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        server.ask_to_stop()
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive(), "the service did not stop"


def _quiet(engine: Engine) -> None:
    """Wait until no log is being maintained: memory goes on to the next engine, and a crash image
    needs a moment without writes."""
    until(lambda: not any(log.writer._maintaining for log in engine.topics.partitions.opened()))
