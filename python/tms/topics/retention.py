"""Retention: a clock that cannot be tricked into expiring everything, and the cleaner's decisions.

Invariants

* Retention time never runs faster than real time: it follows the wall clock, but is at most
  `JUMP_MS_MAX` ahead of the time that has passed by the monotonic clock. A wall clock that jumps
  ten days forward expires nothing early by more than that; after `confirm` the wall clock is
  trusted again.
* This holds over a restart as well: the last retention time is stored, and a larger leap than
  `ABSENCE_MS_MAX` waits for `confirm`.
"""

import threading

from tms.log.records import FIRST_KEY, BlockKey
from tms.runtime.clock import Clock

JUMP_MS_MAX = 3_600_000
ABSENCE_MS_MAX = 7 * 86_400_000


class RetentionClock:
    """The clock of retention."""

    def __init__(self, clock: Clock, last_ms: int | None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        wall = clock.now_ms()
        allowed = wall if last_ms is None else last_ms + ABSENCE_MS_MAX
        self._base_ms = min(wall, allowed)
        self._base_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """Milliseconds since 1970, never further ahead than is certain."""
        now_ms = self._clock.now_ms()
        with self._lock:
            passed = int((self._clock.monotonic_s() - self._base_s) * 1000)
            return min(now_ms, self._base_ms + passed + JUMP_MS_MAX)

    def floor(self, retention_ms: int | None) -> BlockKey:
        """The smallest key that is not expired now."""
        return FIRST_KEY if retention_ms is None else (max(0, self.now_ms() - retention_ms), 0)

    def held_back_ms(self) -> int:
        """Milliseconds by which the wall clock is ahead of retention time; 0 normally."""
        return max(0, self._clock.now_ms() - self.now_ms())

    def confirm(self) -> None:
        """Trust the present wall clock."""
        with self._lock:
            self._base_ms = self._clock.now_ms()
            self._base_s = self._clock.monotonic_s()


def floor_by_time(now_ms: int, retention_ms: int | None) -> BlockKey:
    """The smallest key that is not expired."""
    if retention_ms is None:
        return FIRST_KEY
    return (max(0, now_ms - retention_ms), 0)
