"""Callers that wait for messages of a queue, first come, first woken.

Invariants

* A waiter is woken once. A woken waiter that leaves without looking wakes the next one.
* Waking never waits: callbacks only signal.
"""

import threading
from collections import deque
from collections.abc import Callable

from msgspec import Struct


class Waiter(Struct, eq=False):
    """A caller that waits for messages."""

    callback: Callable[[], None]
    woken: bool = False


class Waiters:
    """The waiters of one queue. Thread-safe."""

    def __init__(self) -> None:
        self.waiting: deque[Waiter] = deque()  # read without the lock to learn that it is empty
        self._lock = threading.Lock()

    def add(self, callback: Callable[[], None]) -> Waiter:
        """Call back, from any thread, when a message may be there."""
        waiter = Waiter(callback)
        with self._lock:
            self.waiting.append(waiter)
        return waiter

    def wake(self) -> None:
        """Wake the first waiter: a message may be there."""
        with self._lock:
            if not self.waiting:
                return
            waiter = self.waiting.popleft()
            waiter.woken = True
        waiter.callback()

    def wake_all(self) -> None:
        """Wake every waiter: the queue may have changed."""
        for _ in range(len(self.waiting)):
            self.wake()

    def remove(self, waiter: Waiter, looked: bool) -> None:
        """Remove a waiter; `looked` is True if it looks, or has looked, itself."""
        with self._lock:
            if not waiter.woken:
                self.waiting.remove(waiter)
                return
        if not looked:
            self.wake()
