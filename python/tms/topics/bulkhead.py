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
        self._running = 0  # threads that work, or will
        self._unbegun: set[object] = set()  # of these
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None]) -> None:
        """Run work in the background. Raises `RuntimeError` if no thread can be started and none
        runs that would take it; then it never runs."""
        with self._lock:
            self._waiting.append(work)
            if self._running >= self._running_max:
                return
            self._running += 1
            turn = object()
            self._unbegun.add(turn)
        try:
            self._executor.submit(self._begin, turn)
        except RuntimeError:
            if self._withdraw(turn, work):
                raise

    def _withdraw(self, turn: object, work: Callable[[], None]) -> bool:
        """End a turn that the executor has refused, which it may begin nevertheless; True if the
        work does not run."""
        with self._lock:
            if turn not in self._unbegun:
                return False
            self._unbegun.discard(turn)
            if self._running > 1:
                self._running -= 1
                return False
            is_left = work in self._waiting
            if is_left:
                self._waiting.remove(work)
        self._work()  # for others, which have submitted theirs meanwhile
        return is_left

    def _begin(self, turn: object) -> None:
        with self._lock:
            if turn not in self._unbegun:
                return
            self._unbegun.discard(turn)
        self._work()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                _log.exception("background_work_failed")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None
