"""Who waits for messages of a queue, first come, first woken.

Invariants

* A waiter is woken once. One that was woken and goes away without looking passes it on.
* Waking never waits: callbacks only tell.
"""

import threading
from collections import deque
from collections.abc import Callable

from msgspec import Struct


class Waiter(Struct, eq=False):
    """One that waits."""

    callback: Callable[[], None]
    woken: bool = False


class Waiters:
    """All that wait for one queue. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, callback: Callable[[], None]) -> Waiter:
        """Call back, from any thread, when something may be there."""
        waiter = Waiter(callback)
        with self._lock:
            self._waiting.append(waiter)
        return waiter

    def wake(self) -> None:
        """Something may be there: the first one looks."""
        with self._lock:
            if not self._waiting:
                return
            waiter = self._waiting.popleft()
            waiter.woken = True
        waiter.callback()

    def wake_all(self) -> None:
        """Everything may be different: everybody looks."""
        for _ in range(len(self._waiting)):
            self.wake()

    def remove(self, waiter: Waiter, looked: bool) -> None:
        """It waits no longer; `looked`: and looks, or has looked, itself."""
        with self._lock:
            if not waiter.woken:
                self._waiting.remove(waiter)
                return
        if not looked:
            self.wake()
