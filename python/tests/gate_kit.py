"""A gate in a store: the first operation that reaches it waits until the test opens it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from tests.waiting import PATIENCE_S

T = TypeVar("T")


class StoreGate:
    """The `before` of a `FaultyStore`."""

    def __init__(self) -> None:
        self._wanted: tuple[str, str, str] | None = None
        self._lock = threading.Lock()
        self._reached, self._opened = threading.Event(), threading.Event()
        self.held = ""  # the name of the thread that waits here, or did

    def __call__(self, operation: str, name: str) -> None:
        with self._lock:
            wanted = self._wanted
            thread = threading.current_thread().name
            if wanted is None or operation != wanted[0]:
                return
            if not name.startswith(wanted[1]) or not thread.startswith(wanted[2]):
                return
            self._wanted = None
        self.held = thread
        self._reached.set()
        assert self._opened.wait(PATIENCE_S), "nobody opened the gate"

    @contextmanager
    def holding(self, operation: str, prefix: str = "", thread: str = "") -> Iterator[None]:
        """The next such operation on a map named `prefix…`, by a thread named `thread…`, waits for
        the end of the block."""
        self._reached.clear()
        self._opened.clear()
        self._wanted = operation, prefix, thread
        try:
            yield
        finally:
            self._wanted = None
            self._opened.set()

    def wait_reached(self) -> None:
        """Wait until an operation waits at the gate."""
        assert self._reached.wait(PATIENCE_S), "nobody came to the gate"


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """Run work in a thread of its own; the future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
