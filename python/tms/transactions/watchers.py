"""Callers that wait until a transaction has ended. Thread-safe.

Invariants

* Each callback is called once, or not at all after its cancel; never while this lock is held.
"""

import threading
from collections.abc import Callable, Iterable

Callback = Callable[[], None]


class Watchers:
    """Callbacks by transaction."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Callback]] = {}
        self._lock = threading.Lock()

    def add(self, id: int, callback: Callback) -> Callback:
        """Call `callback` when this transaction ends. Returns a cancel."""
        with self._lock:
            self._waiting.setdefault(id, []).append(callback)
        return lambda: self._cancel(id, callback)

    def wake(self, ids: Iterable[int]) -> None:
        """These have ended."""
        if not self._waiting:
            return
        with self._lock:
            due = [callback for id in ids for callback in self._waiting.pop(id, ())]
        for callback in due:
            callback()

    def wake_if(self, has_ended: Callable[[int], bool]) -> None:
        """Wake the callers that wait for the transactions for which this holds."""
        self.wake([id for id in list(self._waiting) if has_ended(id)])

    def _cancel(self, id: int, callback: Callback) -> None:
        with self._lock:
            waiting = self._waiting.get(id)
            if waiting is not None and callback in waiting:
                waiting.remove(callback)
                if not waiting:
                    del self._waiting[id]
