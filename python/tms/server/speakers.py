"""Who asks: one client at a time, or several that take turns.

Two changes of threads take longer than a quick disk needs for a sync. So what a client publishes
that asks alone is synced by the event loop itself; where several ask, threads share each sync.

Invariants

* Who asks alone is known by its second request in a row, and never while it has others under way.
* A slow disk keeps the event loop waiting once; threads wait for it during the next seconds.
"""

from tms.clock import Clock
from tms.model.topic import Durability
from tms.server.http.exchange import Exchange
from tms.server.http.protocol import ClientConnection

SYNC_BYTES_MAX = 256 << 10  # of a request that the event loop syncs, and
SYNCS_MAX = 4  # of places that it writes to
SLOW_S = 0.01  # a request that takes longer was synced by a slow disk, which
REST_S = 5.0  # is left to threads for so long


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

    def inline(self, exchange: Exchange, size: int, syncs: int) -> Durability:
        """What the event loop may write of a request of so many bytes, which takes so many syncs:
        all of it if its client asks alone."""
        connection = exchange.connection
        if (
            self._is_alone
            and connection is self._newest
            and not connection.has_queued
            and self._immediate is Durability.WRITTEN
            and size <= SYNC_BYTES_MAX
            and syncs <= SYNCS_MAX
            and self._clock.monotonic_s() >= self._rests_until_s
        ):
            return Durability.SYNCED
        return self._immediate

    def took(self, seconds: float) -> None:
        """The event loop has written what it might sync."""
        if seconds > SLOW_S:
            self._rests_until_s = self._clock.monotonic_s() + REST_S
