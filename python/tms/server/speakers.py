"""Who asks: one client at a time, or several that take turns.

Two changes of threads take longer than a quick disk needs for a sync. So what a client asks alone,
if nobody else is at it, is written and synced by the event loop itself; where several ask, threads
share each sync.

Invariants

* Who asks alone is known by its second request in a row, and never while it has others under way.
* A slow disk keeps the event loop waiting for a twentieth of the time at most; during the rest
  threads wait for it.
"""

from collections.abc import Callable
from typing import TypeVar

from tms.clock import Clock
from tms.model.topic import Durability
from tms.server.http.exchange import Exchange
from tms.server.http.protocol import ClientConnection

SYNC_BYTES_MAX = 256 << 10  # of a request that the event loop syncs, and
SYNCS_MAX = 4  # of places that it writes to
SLOW_S = 0.01  # a request that takes longer was synced by a slow disk, which
REST_TIMES = 20  # is left to threads for so many times as long
T = TypeVar("T")


class Speakers:
    """The connections that ask, in their order. `immediate`: what the store gives at once."""

    def __init__(self, clock: Clock, immediate: Durability) -> None:
        self._clock = clock
        self._immediate = immediate
        self._newest: ClientConnection | None = None
        self._is_alone = False
        self._rests_until_s = 0.0

    def ask(self, connection: ClientConnection) -> None:
        """A connection has a request."""
        self._is_alone = connection is self._newest
        self._newest = connection

    def write(self, exchange: Exchange, syncs: int, do: Callable[[Durability], T]) -> T:
        """Let the event loop write a request, which takes so many syncs: `do` is told how much of
        it, and that is all if its client asks alone."""
        if not self.may_sync(exchange, syncs):
            return do(self._immediate)
        return self.sync(lambda: do(Durability.SYNCED))

    def sync(self, do: Callable[[], T]) -> T:
        """Let the event loop write and sync what it may."""
        began_s = self._clock.monotonic_s()
        try:
            return do()
        finally:
            now_s = self._clock.monotonic_s()
            took_s = now_s - began_s
            if took_s > SLOW_S:
                self._rests_until_s = now_s + REST_TIMES * took_s

    def may_sync(self, exchange: Exchange, syncs: int) -> bool:
        """Whether the event loop may do what takes so many syncs: its client asks alone."""
        connection = exchange.connection
        return (
            self._is_alone
            and connection is self._newest
            and not connection.has_queued
            and self._immediate is Durability.WRITTEN
            and exchange.received <= SYNC_BYTES_MAX
            and syncs <= SYNCS_MAX
            and self._clock.monotonic_s() >= self._rests_until_s
        )
