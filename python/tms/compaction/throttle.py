"""How much of the time work in the background takes, so that publishers keep the rest.

The time that counts is the one that passes: where publishers keep a processor or the disk busy, the
same work takes longer, and so does the pause after it.
"""

import threading

from tms.clock import Clock
from tms.errors import Closed

PAUSE_S_MIN = 0.005  # shorter ones are saved up
PAUSE_S_MAX = 5.0


class Throttle:
    """Pauses between pieces of work that take `share` of the time, 0 … 1. One thread's."""

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
        """Wait as long as the work since the last pause asks for. Raises `Closed` when it is to
        end."""
        if self._stop.is_set():
            raise Closed("The engine is closing.")
        self._owed_s += (self._clock.monotonic_s() - self._since_s) * self._pause_per_s
        if self._owed_s >= PAUSE_S_MIN:
            if self._stop.wait(min(self._owed_s, PAUSE_S_MAX)):
                raise Closed("The engine is closing.")
            self._owed_s = 0.0
        self._since_s = self._clock.monotonic_s()
