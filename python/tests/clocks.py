"""A clock that tests move by hand."""

from tms.clock import Clock

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


_: Clock = ManualClock()
