"""A result that may be still pending: of an append, or of a commit.

Invariants

* It is finished exactly once, when all of its parts have an outcome; the first error wins.
* Every wait ends: by a time-out, or by the engine's close, which finishes everything.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tms.errors import TimedOut, TMSError
from tms.model.message import Appended
from tms.runtime.events import EventLog

T = TypeVar("T")
_log = EventLog(__name__)


class Pending(Generic[T]):
    """A request to the engine, in one part or several."""

    __slots__ = ("_callbacks", "_error", "_gate", "_left", "_lock", "_results")

    def __init__(self, parts: int) -> None:
        self._results: list[T | None] = [None] * parts
        self._left = parts
        self._error: TMSError | None = None
        self._gate: threading.Lock | None = None  # locked until there is an answer
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def done(self) -> bool:
        """True if `result` returns without waiting."""
        return self._left == 0

    def result(self, timeout_s: float | None = None) -> list[T]:
        """The outcome of each part, in the order given. Raises the first error, or `TimedOut`."""
        if self._left:
            with self._lock:
                if self._left and self._gate is None:
                    self._gate = threading.Lock()
                    self._gate.acquire()
                gate = self._gate
            if gate is not None and not _passes(gate, timeout_s):
                raise TimedOut(
                    f"It was not finished after {timeout_s} s and may or may not be stored. Repeat "
                    "it with the same producer sequence, transaction or token."
                )
        if self._error is not None:
            raise self._error
        return self._results  # type: ignore[return-value]  # all parts have one

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when finished, from any thread; at once if it is finished
        already."""
        with self._lock:
            if self._left:
                self._callbacks.append(callback)
                return
        callback()

    def settle(self, index: int, result: T) -> None:
        """Finish part `index`: it is stored as durably as was requested. Called by the engine."""
        self._results[index] = result
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if self._gate is not None or self._callbacks:
            self._tell()

    def fail(self, parts: int, error: TMSError) -> None:
        """Finish this number of parts with an error: they were not acknowledged. Called by the
        engine."""
        if self._error is None:
            self._error = error
        with self._lock:
            self._left -= parts
            if self._left:
                return
        self._tell()

    def _tell(self) -> None:
        if self._gate is not None:
            self._gate.release()
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                _log.exception("callback_failed")


class PendingAppend(Pending[Appended]):
    """Blocks on their way into the log."""

    __slots__ = ()


def _passes(gate: threading.Lock, timeout_s: float | None) -> bool:
    """Wait until the gate is open, and leave it open for other waiters."""
    if not gate.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
        return False
    gate.release()
    return True
