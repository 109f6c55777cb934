"""The one timer that looks after all connections, their limits, and what they share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING

from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.server.http.heads import KnownHeads

if TYPE_CHECKING:
    from tms.server.http.protocol import ClientConnection

TICK_S = 0.5
_log = EventLog("tms.server")


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


class Watchdog:
    """Looks at every connection twice a second; gives requests their ids, answers their date;
    counts."""

    def __init__(self, limits: ConnectionLimits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self.connections: set[ClientConnection] = set()
        self.refused = 0
        self.cut_off = 0
        self.handshakes_failed = 0
        self._told = False  # of one since the last look
        self.short = False  # whether memory for answers was refused since the last look
        self.refusals: Callable[[], int] = lambda: 0  # how often it was refused so far
        self._refusals = 0
        # names of requests, unique over restarts as far as 32 random bits go
        self.request_ids = map(f"{token_hex(4)}-{{:x}}".format, count(1))
        self._timer: asyncio.TimerHandle | None = None
        self.head = b""  # lines that every answer has
        self.heads = KnownHeads()

    def handshake_failed(self, error: Exception) -> None:
        """Count a failed TLS handshake, and log at most one per look."""
        self.handshakes_failed += 1
        if not self._told:
            self._told = True
            _log.info("tls_handshake_failed", why=str(error)[:200], count=self.handshakes_failed)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin looking."""
        self._timer = loop.call_later(TICK_S, self.start, loop)
        now = loop.time()
        self._told = False
        self.head = f"date: {formatdate(self._clock.now_ms() / 1_000, usegmt=True)}\r\n".encode()
        refusals = self.refusals()
        self.short, self._refusals = refusals > self._refusals, refusals
        for connection in list(self.connections):
            connection.look(now)

    def stop(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
