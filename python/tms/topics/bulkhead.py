"""A bulkhead: work that waits for a failing store takes only some of an executor's threads, so that
partitions which can be written find the others.

Invariants

* At most `running_max` pieces of work run at a time; the others wait, in the order in which they
  were submitted. All of them run, also if the executor is shut down meanwhile.
* The queue is bounded by its users: a partition submits one leader at a time, an append that fails
  one invalidation.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from tms.runtime.events import EventLog

_log = EventLog(__name__)


class Bulkhead:
    """Runs work in some of the threads of an executor. Thread-safe."""

    def __init__(self, executor: Executor, running_max: int) -> None:
        self._executor = executor
        self._running_max = running_max
        self._lock = threading.Lock()  # guards what follows
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None]) -> None:
        """Run work in the background. Raises `RuntimeError` if no thread can be started and none
        runs that would take it."""
        with self._lock:
            if self._running >= self._running_max:
                self._waiting.append(work)
                return
            self._running += 1
        try:
            self._executor.submit(self._run, work)
        except RuntimeError:
            self._run(self._next())  # work that has come meanwhile
            raise

    def _run(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            try:
                work()
            except Exception:
                _log.exception("background_work_failed")
            work = self._next()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None
