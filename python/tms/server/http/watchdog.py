"""The one timer that looks after all connections, their limits, and what they share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import Protocol

TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection and of their number."""

    connections_max: int = 10_000
    url_bytes_max: int = 8 << 10
    header_bytes_max: int = 64 << 10
    headers_max: int = 100
    head_timeout_s: float = 10.0
    body_timeout_s: float = 10.0  # without progress
    body_bytes_per_s_min: int = 4 << 10  # over `body_timeout_s`
    write_timeout_s: float = 10.0  # without progress
    keep_alive_s: float = 75.0


class Watched(Protocol):
    """A connection."""

    def look(self, now: float) -> None:
        """End this connection if it has kept the service waiting for too long."""
        ...


class Watchdog:
    """Looks at every connection twice a second; gives requests their ids; counts."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.connections: set[Watched] = set()
        self.refused = 0
        self.cut_off = 0
        self.short = False  # whether memory for answers was refused since the last look
        self.refusals: Callable[[], int] = lambda: 0  # how often it was refused so far
        self._refusals = 0
        self._ids = count(1)
        self._run_id = token_hex(4)
        self._timer: asyncio.TimerHandle | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head = b""

    def default_head(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's default headers, a new list each second, as lines."""
        if headers is not self._headers:
            self._headers = headers
            self._head = b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._head

    def request_id(self) -> str:
        """A name for a request, unique over restarts as far as 32 random bits go."""
        return f"{self._run_id}-{next(self._ids):x}"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin looking."""
        self._timer = loop.call_later(TICK_S, self.start, loop)
        now = loop.time()
        refusals = self.refusals()
        self.short, self._refusals = refusals > self._refusals, refusals
        for connection in list(self.connections):
            connection.look(now)

    def stop(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
