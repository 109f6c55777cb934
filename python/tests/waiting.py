"""Waiting in tests for other threads and processes.

A test that passes waits for an event, so that its deadline costs nothing: deadlines are long enough
for one processor with other work to do, and shorter than the time-out of a test.
"""

import os
import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.02
_BUSY = 4.0  # processes that want each processor
_PAUSES = 5  # at least as many during the wait so far: looking costs processor time


def until(
    holds: Callable[[], object], what: str = "the condition", timeout_s: float | None = None
) -> None:
    """Wait until the condition holds; fails when it does not within `timeout_s`, by default
    `PATIENCE_S`."""
    timeout_s = PATIENCE_S if timeout_s is None else timeout_s
    started_s = time.monotonic()
    pause = threading.Event()
    while not holds():
        waited_s = time.monotonic() - started_s
        assert waited_s < timeout_s, f"not within {timeout_s:g} s: {what}"
        pause.wait(min(max(waited_s / _PAUSES, _PAUSE_S), _PAUSE_S_MAX))


def busily(seconds: float) -> float:
    """A deadline for real processes that restart, in seconds: as given, and up to twice as long
    while more than four processes want each processor."""
    wanting = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return seconds * min(max(wanting / _BUSY, 1.0), 2.0)
