"""How long messages stay: a clock that cannot be tricked into expiring everything, and the
cleaner's decisions.

Invariants

* Retention time never runs faster than real time: it follows the wall clock, but beyond what has
  really passed (by the monotonic clock) it moves at most `JUMP_MS_MAX` ahead. A wall clock that
  jumps ten days forward expires nothing early by more than that; after `confirm` the wall clock is
  believed again.
* The same holds over a restart: the last retention time is stored, and a larger leap than
  `ABSENCE_MS_MAX` waits for `confirm`.
"""

import threading

from tms.clock import Clock
from tms.log.records import FIRST_KEY, BlockKey

JUMP_MS_MAX = 3_600_000
ABSENCE_MS_MAX = 7 * 86_400_000


class RetentionClock:
    """The time by which retention is judged."""

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
        """How far the wall clock is ahead of what retention believes; 0 normally."""
        return max(0, self._clock.now_ms() - self.now_ms())

    def confirm(self) -> None:
        """Believe the wall clock as it is now."""
        with self._lock:
            self._base_ms, self._base_s = self._clock.now_ms(), self._clock.monotonic_s()


def floor_by_time(now_ms: int, retention_ms: int | None) -> BlockKey:
    """The smallest key that is not expired."""
    if retention_ms is None:
        return FIRST_KEY
    return (max(0, now_ms - retention_ms), 0)
