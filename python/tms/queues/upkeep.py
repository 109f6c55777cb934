"""The background thread of queues: it ends leases and moves dead letters.

Invariants

* One thread moves messages at a time, and it is its own thread: it waits for commits, which threads
  of the engine finish. Failures are tried again after a pause.
* Each step is also a method, which tests call with a clock of their own.
"""

import threading
from collections.abc import Callable, Iterable

from tms.errors import Closed, TMSError
from tms.queues.dead_letters import DeadLetters
from tms.queues.queue import OpenQueue
from tms.runtime.background import BackgroundThread
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

TICK_S = 0.5
PAUSE_S = 5.0  # after a failure
_log = EventLog(__name__)


class QueueUpkeep(BackgroundThread):
    """Looks after all queues of an engine."""

    def __init__(
        self,
        dead: DeadLetters,
        queues: Callable[[], Iterable[OpenQueue]],
        clock: Clock,
    ) -> None:
        super().__init__("tms-queues")
        self._dead = dead
        self._queues = queues
        self._clock = clock
        self._passing = threading.Lock()
        self._paused_until_s = 0.0

    def kick(self) -> None:
        """Wake the thread: a message is dying. Never waits."""
        self._wake.set()

    def tidy(self) -> int:
        """One pass over all queues; returns how many messages went to the dead letters."""
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
            self._wake.wait(TICK_S)
            self._wake.clear()
            if self._stop.is_set():
                return
            if self._clock.monotonic_s() >= self._paused_until_s:
                self._pass()
