"""What queues do by themselves: leases end, dead letters move.

Invariants

* One thread moves at a time, and one of its own: it waits for commits, which threads of the engine
  finish, so it must take none of those. What fails is tried again after a while, not at once.
* Everything can also be called directly, which is what tests do with a clock of their own.
"""

import threading
from collections.abc import Callable, Iterable

from tms.clock import Clock
from tms.errors import Closed, TMSError
from tms.events import EventLog
from tms.queues.dead_letters import DeadLetters
from tms.queues.queue import OpenQueue

TICK_S = 0.5
PAUSE_S = 5.0  # after a failure
_log = EventLog(__name__)


class QueueUpkeep:
    """Looks after all queues of an engine."""

    def __init__(
        self,
        dead: DeadLetters,
        queues: Callable[[], Iterable[OpenQueue]],
        clock: Clock,
    ) -> None:
        self._dead = dead
        self._queues = queues
        self._clock = clock
        self._stop = threading.Event()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._passing = threading.Lock()
        self._paused_until_s = 0.0

    def start(self) -> None:
        """Begin working in the background."""
        self._thread = threading.Thread(target=self._run, name="tms-queues", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for its current pass."""
        self._stop.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def kick(self) -> None:
        """Something is dying: move it soon. Never waits."""
        self._news.set()

    def tidy(self) -> int:
        """One pass over all queues; how many messages went to the dead letters."""
        moved = 0
        with self._passing:
            for queue in self._queues():
                if queue.expire():
                    moved += self._dead.move(queue)
        return moved

    def _pass(self) -> None:
        try:
            self.tidy()
        except Closed:
            return
        except TMSError as error:
            self._paused_until_s = self._clock.monotonic_s() + PAUSE_S
            _log.warning("queues_not_tidied", error=error.message)
        except Exception:
            self._paused_until_s = self._clock.monotonic_s() + PAUSE_S
            _log.exception("queues_not_tidied")

    def _run(self) -> None:
        while True:
            self._news.wait(TICK_S)
            self._news.clear()
            if self._stop.is_set():
                return
            if self._clock.monotonic_s() >= self._paused_until_s:
                self._pass()
