"""Long polls at other instances, all of them in one thread.

    begin ──▶ a task of the event loop in the thread ──▶ its connection ──▶ callback, or cancelled

* Whoever begins or ends a watch waits for nothing: connections are made in the thread.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine

from tms.runtime import forks


class Watches:
    """Runs watches; its thread begins with the first. Thread-safe."""

    def __init__(self) -> None:
        self._begin()
        forks.in_child(self._begin)  # the thread is the parent's

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, watch: Coroutine[None, None, None]) -> Callable[[], None]:
        """Run a watch; what is returned ends it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="tms-watches", daemon=True).start()
        running = asyncio.run_coroutine_threadsafe(watch, self._loop)

        def cancel() -> None:
            running.cancel()

        return cancel

    def soon(self, do: Callable[[], None]) -> None:
        """Do something in the thread of the watches, if any was ever begun. Never waits."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(do)


WATCHES = Watches()  # of this process
