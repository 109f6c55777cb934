"""The share of time that background work takes, so that publishers keep the rest.

Elapsed time counts: if publishers occupy a processor or the disk, the same work takes longer, and
so does the pause after it.
"""

import threading

from tms.errors import Closed
from tms.runtime.clock import Clock

PAUSE_S_MIN = 0.005  # shorter pauses add up first
PAUSE_S_MAX = 5.0


class Throttle:
    """Pauses between pieces of work that take `share` of the time, 0 … 1. For one thread."""

    def __init__(self, clock: Clock, share: float, stop: threading.Event) -> None:
        self._clock = clock
        self._pause_per_s = 1 / share - 1
        self._stop = stop
        self._since_s = clock.monotonic_s()
        self._owed_s = 0.0

    def begin(self) -> None:
        """Work begins now."""
        self._since_s = self._clock.monotonic_s()

    def pause(self) -> None:
        """Pause in proportion to the work since the last pause. Raises `Closed` when it is to
        end."""
        if self._stop.is_set():
            raise Closed("The engine is closing.")
        self._owed_s += (self._clock.monotonic_s() - self._since_s) * self._pause_per_s
        if self._owed_s >= PAUSE_S_MIN:
            if self._stop.wait(min(self._owed_s, PAUSE_S_MAX)):
                raise Closed("The engine is closing.")
            self._owed_s = 0.0
        self._since_s = self._clock.monotonic_s()
