"""Waiting in tests for other threads and processes.

A test that passes waits for an event, so that its deadline costs nothing: deadlines are long enough
for one processor with other work to do, and shorter than the time-out of a test.
"""

import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
_EVERY_S = 0.002


def until(
    holds: Callable[[], object], what: str = "the condition", timeout_s: float | None = None
) -> None:
    """Wait until the condition holds; fails when it does not within `timeout_s`, by default
    `PATIENCE_S`."""
    timeout_s = PATIENCE_S if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        pause.wait(_EVERY_S)
