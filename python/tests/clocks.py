"""Clocks of tests: one that tests set, and one that is late."""

from tms.runtime.clock import Clock, SystemClock

START_MS = 1_700_000_000_000


class ManualClock:
    """Wall and monotonic time as last set; a `Clock`."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._wall_ms = now_ms
        self._monotonic_s = 1_000.0

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def pass_ms(self, ms: int) -> None:
        """Let real time pass: both clocks move."""
        self._wall_ms += ms
        self._monotonic_s += ms / 1000

    def jump_ms(self, ms: int) -> None:
        """Set the wall clock forward or, with a negative number, back; no real time passes."""
        self._wall_ms += ms


class LateClock(SystemClock):
    """The machine's clock, late by a constant time."""

    def __init__(self, behind_ms: int) -> None:
        self._behind_ms = behind_ms

    def now_ms(self) -> int:
        return super().now_ms() - self._behind_ms


_: Clock = ManualClock()
