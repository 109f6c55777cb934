"""Group commit: requests that come together are written together, by one of those who brought them.

    submit ─▶ queue ─┬─ somebody leads ─▶ the leader takes it along
                     └─ nobody leads ─▶ lead: take the turn ─▶ write all that wait ─▶ …

Who leads holds the *turn*, a lock that the room shares with whoever else writes to the same place.
A caller that finds no leader leads one group itself if it may, so a lone request never changes
threads; what has gathered meanwhile is left to a background thread, so no caller works for others
for ever.

Invariants

* Requests are taken in the order in which they were submitted, each once.
* While a request waits, somebody leads. A request is queued and finds its leader in one step under
  the lock, and a leader resigns in one step in which it finds the queue empty. Whatever ends a
  leader in between (a control-C, an error of `write`) starts another one first. Only who calls
  `join` promises to lead himself.
* No lock is held while `answer` runs but those that its caller holds.
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

ROUNDS_MAX = 64  # of a thread, before it makes room for another one
T = TypeVar("T")


class Lead(Enum):
    """Whether the thread that submits a request may write it."""

    NO = auto()
    IF_FREE = auto()  # when nobody has the turn
    YES = auto()  # also after waiting for it


def _nothing(_: object) -> None:
    return None


def _no() -> bool:
    return False


class GroupCommit(Generic[T]):
    """Requests on their way to one place. Thread-safe.

    `write` is called with the turn held, and gets all that wait, or as many as take by `size_of`
    together at most `bytes_max`, but at least one; `answer` gets the same after the turn was
    released, also when `write` raised. Both have to deal with every error that concerns a request:
    what they raise ends their thread. A `write` that goes on with the next group takes it itself.
    """

    def __init__(
        self,
        turn: threading.Lock,
        write: Callable[[Sequence[T]], None],
        run_in_background: Callable[[Callable[[], None]], object],
        answer: Callable[[Sequence[T]], None] = _nothing,
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
        """How many wait for a leader to take them."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether there is a leader."""
        return self._leading

    def submit(self, request: T, lead: Lead) -> bool:
        """Take a request, which will be written; False once closed."""
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
        """Take the lead and the turn if nobody has either: who writes a request that never waited
        does so between this and `led`."""
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
        """What is written next, taken off the queue. The caller has the turn."""
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
        """Take a request from a caller that holds a lock under which nothing may be written: it
        calls `write_what_waits` after it has released that lock."""
        with self._lock:
            self._queue.append(request)

    def write_what_waits(self, timeout_s: float, is_done: Callable[[], bool] = _no) -> bool:
        """Write a group in this thread, unless `is_done` by its turn; whether the turn came in
        time. For a caller that must not depend on a free thread. The leader then finds nothing to
        do."""
        if not self._turn.acquire(timeout=timeout_s):
            return False
        if is_done():
            self._turn.release()
        else:
            self._round()
        return True

    def close(self) -> None:
        """Take no more requests. What waits is written nevertheless."""
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
        except RuntimeError:  # no thread is left, or the engine is closing: better here than never
            self._lead()

    def _resign(self) -> bool:
        with self._lock:
            self._leading = bool(self._queue)
            return not self._leading

    def _round(self) -> None:
        """Write a group. The caller has the turn, which is released."""
        group: Sequence[T] = ()
        try:
            group = self.take()
            if group:
                self._write(group)
        finally:
            self._turn.release()
            self._answer(group)
