"""A role that this process can hold: coordinating transactions, or one shard.

    absent ──open──▶ opening ──────▶ held
      ▲                 │ close        │ close
      ├── the opening ◀─ lost          │
      └────────────────────────────────┘

Invariants

* A role is held as a whole or not at all. `held` and `get` never return a role that is only partly
  open.
* `close` never waits for an opening, which may read the store for long. It marks the opening as
  lost and ends the parts that are open by then. The opening ends the rest and raises `Unavailable`.
* One thread opens at a time: an opening that finds another one under way, also a lost one, raises
  `Unavailable`. So an opening never ends the parts of a later one.
* When `close` returns, in whichever thread, every part has been ended. Of two threads that close at
  once the second waits for the first. A caller may therefore release the journal of a role as soon
  as it has closed the role.
* A request keeps the parts that it got before `close`. These refuse, or their journal does, because
  it belongs to another term by then.
* Reading `held` and `failure` takes no lock. The lock is held while parts are ended, which asks no
  store, and waits only for a bounded time for threads that do (`DelayedMessages.close`); the thread
  that ends them may call `close` again.
"""

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Generic, TypeVar

from tms.errors import TMSError, Unavailable

T = TypeVar("T")


class RoleState(Enum):
    ABSENT = auto()
    OPENING = auto()
    LOST = auto()  # closed while it was opened; the opening has not ended yet
    HELD = auto()


class Role(Generic[T]):
    """A role with open parts of type T. Thread-safe. `begin` opens the parts; `end` closes them, or
    what an unfinished `begin` left open if it gets None. `missing` makes the error that says who
    holds the role."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], T],
        end: Callable[[T | None], None],
        missing: Callable[[], TMSError],
    ) -> None:
        self.name = name
        self.held: T | None = None  # the parts; only this class assigns it
        # of the last opening, until the role is held or closed
        self.failure: TMSError | None = None
        self._begin = begin
        self._end = end
        self._missing = missing
        self._lock = threading.RLock()  # guards the state, and what is above
        self._state = RoleState.ABSENT

    def get(self) -> T:
        """The open parts. Raises `NotOwner`, or `Unavailable` while nobody can say who holds the
        role."""
        held = self.held
        if held is None:
            raise self._missing()
        return held

    def open(self) -> None:
        """Hold the role; does nothing if it is held. Raises the error of `begin`, and `Unavailable`
        if the role was lost meanwhile or another thread is opening it."""
        with self._lock:
            if self._state is RoleState.HELD:
                return
            if self._state is not RoleState.ABSENT:
                raise Unavailable(f"Another thread is opening this role: {self.name}. Try again.")
            self._state = RoleState.OPENING
        parts: T | None = None
        try:
            parts = self._begin()
            self._hold(parts)
        except BaseException as error:
            self._give_up(parts, error)
            raise

    def close(self) -> None:
        """Hold the role no more, and forget why it could not be opened. Asks no store."""
        with self._lock:
            self.failure = None
            parts = self.held
            self.held = None
            if self._state is RoleState.ABSENT:
                return
            self._state = RoleState.ABSENT if self._state is RoleState.HELD else RoleState.LOST
            self._end(parts)

    def _hold(self, parts: T) -> None:
        with self._lock:
            if self._state is RoleState.LOST:
                raise self._lost()
            self.held = parts
            self.failure = None
            self._state = RoleState.HELD

    def _give_up(self, parts: T | None, error: BaseException) -> None:
        """End what was opened. Raises `Unavailable` in place of an error that the loss caused."""
        with self._lock:
            lost = self._state is RoleState.LOST and isinstance(error, TMSError)
            reason = self._lost() if lost else error
            self.failure = reason if isinstance(reason, TMSError) else None
            self.held = None
            self._state = RoleState.ABSENT
            self._end(parts)
        if reason is not error:
            raise reason from error

    def _lost(self) -> Unavailable:
        return Unavailable(f"A role was lost while it was opened: {self.name}. Try again.")
