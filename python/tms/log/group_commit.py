"""Group commit: concurrent requests are written together, by the thread of one of their callers.

    submit ─▶ queue ─┬─ there is a leader ─▶ it takes the request along
                     └─ there is none     ─▶ lead: take the turn ─▶ write all that wait ─▶ …

The leader holds the *turn*, a lock that the room shares with every other writer of the same log. A
caller that finds no leader leads one group itself if it may, so a lone request never changes
threads. Requests that arrive meanwhile are left to a background thread, so no caller works for
others without end.

Invariants

* Requests are taken in the order in which they were submitted, each once.
* While a request waits, there is a leader. A request is queued and finds its leader in one step
  under the lock, and a leader resigns in one step in which it finds the queue empty. If anything
  ends a leader in between (a control-C, an error of `write`), another one is started first. Only a
  caller of `join` promises to lead itself.
* While `answer` runs, no lock is held but those that its caller holds.
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

ROUNDS_MAX = 64  # of a background thread, before it hands over to another one
T = TypeVar("T")


class Lead(Enum):
    """Permission of the submitting thread to write its request itself."""

    NO = auto()
    IF_FREE = auto()  # if the turn is free
    YES = auto()  # also after waiting for it


def _no() -> bool:
    return False


class GroupCommit(Generic[T]):
    """The queue of requests to one log. Thread-safe.

    `write` is called with the turn held. It gets all waiting requests, or as many as have at most
    `bytes_max` bytes by `size_of`, but at least one. `answer` gets the same requests after the turn
    was released, also if `write` raised. Both have to handle every error that concerns a request:
    an error that they raise ends their thread. A `write` that continues with the next group takes
    that group itself.
    """

    def __init__(
        self,
        turn: threading.Lock,
        write: Callable[[Sequence[T]], None],
        run_in_background: Callable[[Callable[[], None]], object],
        answer: Callable[[Sequence[T]], None] | None = None,
        size_of: Callable[[T], int] | None = None,
        bytes_max: int = 0,
    ) -> None:
        self._turn = turn
        self._write = write
        self._run_in_background = run_in_background
        self._answer = answer
        self._size_of = size_of
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # guards what follows
        self._queue: list[T] = []  # a deque takes ten times the memory, for each idle partition
        self._leading = False
        self._closed = False

    def __len__(self) -> int:
        """Number of requests that wait to be taken."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """True if there is a leader."""
        return self._leading

    def submit(self, request: T, lead: Lead) -> bool:
        """Queue a request, which will be written. False if the queue is closed."""
        with self._lock:
            if self._closed:
                return False
            self._queue.append(request)
            if self._leading:
                return True
            self._leading = True
        if lead is not Lead.NO and self._turn.acquire(lead is Lead.YES):
            try:
                self._round()
            finally:
                with self._lock:
                    left = self._leading = bool(self._queue)
                if left:
                    self._lead_in_background()
        else:
            self._lead_in_background()
        return True

    def try_lead(self) -> bool:
        """Take the lead and the turn if both are free. A caller writes a request that never waited
        between this call and `led`."""
        with self._lock:
            if self._leading or self._closed or not self._turn.acquire(blocking=False):
                return False
            self._leading = True
            return True

    def led(self) -> None:
        """Return the turn, and pass the lead to the next thread."""
        self._turn.release()
        with self._lock:
            left = self._leading = bool(self._queue)
        if left:
            self._lead_in_background()

    def take(self) -> Sequence[T]:
        """Take the next requests to write off the queue. The caller has the turn."""
        with self._lock:
            queue, count = self._queue, len(self._queue)
            if self._size_of is not None and count > 1:
                size = count = 0
                for request in queue:
                    size += self._size_of(request)
                    if count and size > self._bytes_max:
                        break
                    count += 1
            self._queue = queue[count:]
            del queue[count:]
            return queue

    def join(self, request: T) -> None:
        """Queue a request of a caller that holds a lock under which nothing may be written. That
        caller calls `write_what_waits` after it has released the lock."""
        with self._lock:
            self._queue.append(request)

    def write_what_waits(self, timeout_s: float, is_done: Callable[[], bool] = _no) -> bool:
        """Write a group in this thread, unless `is_done` once it has the turn. True if the turn
        came in time. For a caller that must not depend on a free thread; the leader then finds an
        empty queue."""
        if not self._turn.acquire(timeout=timeout_s):
            return False
        if is_done():
            self._turn.release()
        else:
            self._round()
        return True

    def close(self) -> None:
        """Refuse further requests. Those that wait are written nevertheless."""
        with self._lock:
            self._closed = True

    def _lead(self) -> None:
        for _ in range(ROUNDS_MAX):
            self._turn.acquire()
            try:
                self._round()
            except BaseException:
                self._lead_in_background()
                raise
            if self._resign():
                return
        self._lead_in_background()

    def _lead_in_background(self) -> None:
        try:
            self._run_in_background(self._lead)
        except RuntimeError:  # no thread can be started, or the engine is closing: write here
            self._lead()

    def _resign(self) -> bool:
        with self._lock:
            self._leading = bool(self._queue)
            return not self._leading

    def _round(self) -> None:
        """Write a group. The caller has the turn, which this call releases."""
        group: Sequence[T] = ()
        try:
            group = self.take()
            if group:
                self._write(group)
        finally:
            self._turn.release()
            if self._answer is not None:
                self._answer(group)
