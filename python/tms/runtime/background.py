"""Work in a thread of its own: of a component, from `start` to `stop`, or during a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Work in a thread until the end of the block, which sets the event and waits for the work."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class BackgroundThread:
    """A subclass works in `_run` until `_stop` is set. `stop` then sets `_wake`, for a subclass
    that waits for this event."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for its current piece of work."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
