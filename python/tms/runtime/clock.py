"""The clock: the only caller of `time.*` for decisions; all other code takes a `Clock`."""

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Wall time for ids and retention, monotonic time for waiting."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970-01-01T00:00Z. May jump in both directions."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back and do not follow the wall clock."""
        ...


# If the system has it, the clock that also counts the time during which the machine was suspended.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    monotonic_s = staticmethod(partial(time.clock_gettime, _MONOTONIC))

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
