"""The clock of tests: wall time stands still until a test moves it.

Invariants

* `advance` moves wall time and monotonic time alike, as if that much time had really passed: leases
  end, retention ends, delayed messages become due.
* Monotonic time also runs by itself, so a wait with a time-out ends.
* All watchers of the clock have done their due work when `advance` returns.
"""

import threading
from collections.abc import Callable
from datetime import datetime

from tms.model.ids import utc
from tms.model.quantity import Duration, seconds
from tms.runtime.clock import Clock, SystemClock


class MovableClock:
    """A `Clock` whose wall time begins at the machine's and moves by `advance`. Thread-safe."""

    def __init__(self) -> None:
        self._machine: Clock = SystemClock()
        self._lock = threading.Lock()
        self._wall_ms = self._machine.now_ms()
        self._ahead_s = 0.0
        self._watchers: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Wall time, in ms since 1970-01-01T00:00Z."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """Seconds that run as the machine's, plus all that was advanced."""
        return self._machine.monotonic_s() + self._ahead_s

    def now(self) -> datetime:
        """Wall time, in UTC."""
        return utc(self._wall_ms)

    def advance(self, duration: Duration) -> None:
        """Let time pass: seconds, a `timedelta` or text such as `"2h"`. All work that falls due has
        happened when this returns. Raises `Invalid`."""
        passed_ms = round(seconds("duration", duration) * 1_000)
        with self._lock:
            self._wall_ms += passed_ms
            self._ahead_s += passed_ms / 1_000
        for due in list(self._watchers):
            due()

    def watch(self, due: Callable[[], None]) -> None:
        """Call `due` after each `advance`, in the thread that advances."""
        self._watchers.append(due)


class ClientClock:
    """The clock of a bus under test: follows another one, and skips what its client would spend on
    retries, so that a fault costs a test no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._skipped_s = 0.0

    def now_ms(self) -> int:
        """Wall time of the other clock."""
        return self._clock.now_ms()

    def monotonic_s(self) -> float:
        """Monotonic time of the other clock, plus what was skipped."""
        return self._clock.monotonic_s() + self._skipped_s

    def skip(self, skipped_s: float) -> None:
        """Let every time-out that is shorter than this have passed."""
        self._skipped_s += skipped_s
