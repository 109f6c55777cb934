"""Writes that the event loop syncs itself, for a client that is alone.

Two changes of threads take longer than a quick disk needs for a sync. So the event loop writes and
syncs the requests of a sole client itself; where several clients send requests, threads share each
sync.

Invariants

* A client counts as alone from its second request in a row, and never with others under way.
* A slow disk blocks the event loop for a twentieth of the time at most; for the rest, threads wait
  for it.
"""

from collections.abc import Callable
from typing import TypeVar

from tms.model.topic import Durability
from tms.runtime.clock import Clock
from tms.server.http.exchange import Exchange
from tms.server.http.protocol import ClientConnection

SYNC_BYTES_MAX = 256 << 10  # of a request that the event loop syncs, and
SYNCS_MAX = 4  # of partitions and journals that it writes to
SLOW_S = 0.01  # a sync that takes longer is that of a slow disk, which
REST_TIMES = 20  # is left to threads for so many times as long
T = TypeVar("T")


class InlineSync:
    """Decides what the event loop syncs, from the order of requests. `immediate` is the durability
    that the store gives without a sync."""

    def __init__(self, clock: Clock, immediate: Durability) -> None:
        self._clock = clock
        self._immediate = immediate
        self._newest: ClientConnection | None = None
        self._is_alone = False
        self._rests_until_s = 0.0

    def note(self, connection: ClientConnection) -> None:
        """Note that a request has come over a connection."""
        self._is_alone = connection is self._newest
        self._newest = connection

    def write(self, exchange: Exchange, syncs: int, do: Callable[[Durability], T]) -> T:
        """Write a request that takes so many syncs. `do` gets the durability to wait for: synced if
        the client is alone, else what the store gives at once."""
        if not self.may_sync(exchange, syncs):
            return do(self._immediate)
        return self.sync(lambda: do(Durability.SYNCED))

    def sync(self, do: Callable[[], T]) -> T:
        """Write and sync here, and rest afterwards if the disk was slow."""
        began_s = self._clock.monotonic_s()
        try:
            return do()
        finally:
            now_s = self._clock.monotonic_s()
            took_s = now_s - began_s
            if took_s > SLOW_S:
                self._rests_until_s = now_s + REST_TIMES * took_s

    def may_sync(self, exchange: Exchange, syncs: int) -> bool:
        """True if the event loop may do what takes so many syncs: the client is alone, the request
        is small, and the disk was not slow."""
        connection = exchange.connection
        return (
            self._is_alone
            and connection is self._newest
            and not connection.queued
            and self._immediate is Durability.WRITTEN
            and exchange.received <= SYNC_BYTES_MAX
            and syncs <= SYNCS_MAX
            and self._clock.monotonic_s() >= self._rests_until_s
        )
