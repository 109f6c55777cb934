"""The writes of transactions in progress before their commit, and the turn to end one.

    enter ─▶ stored ─▶ leave        any number of times, until a caller ends the transaction
    ending ─▶ commit, or take the ranges back ─▶ settled

Invariants

* One caller at a time ends a transaction. It waits for the appends under way; from then on nothing
  more is stored under that transaction, unless it did not end after all.
* `sure` is false if messages may be stored that are not known here: from before the engine was
  started, from a failed append, or beyond the bounds.
* A transaction with a `failed` append must not commit.
* At most `REMEMBERED` transactions and `RANGES_MAX` ranges are remembered.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from tms.errors import Conflict, TimedOut
from tms.transactions.edits import Stored

REMEMBERED = 100_000
RANGES_MAX = 200_000
ENDING_TIMEOUT_S = 30.0
_T = TypeVar("_T")


class Writes(Generic[_T]):
    """The writes of one transaction: ranges to take back, and the offset that each partition's log
    has to reach for a commit."""

    __slots__ = ("_ends", "ending", "failed", "ranges", "settled", "sure", "under_way")

    def __init__(self, sure: bool) -> None:
        self.sure = sure
        self.failed = False
        self.ranges: list[_T] = []
        self.under_way = 0
        self.ending = False
        self.settled = False
        self._ends: dict[tuple[int, int], int] = {}

    def add(self, stored: Sequence[Stored]) -> None:
        """More was stored, up to there."""
        for block in stored:
            place = (block.uid, block.partition)
            self._ends[place] = max(self._ends.get(place, 0), block.end_offset)

    @property
    def stored(self) -> list[Stored]:
        """The offset that each partition's log has to reach."""
        return [Stored(uid, partition, end) for (uid, partition), end in self._ends.items()]

    def places(self) -> list[tuple[int, int]]:
        """Topic uid and partition of what was stored."""
        return list(self._ends)

    def settle(self) -> None:
        """The transaction has ended, and nothing needs to be known of it any more."""
        self.settled = True


class UncommittedWrites(Generic[_T]):
    """The writes of all transactions in progress. Thread-safe."""

    def __init__(self, first: int) -> None:
        self._first = first  # what began before may have stored more
        self._changed = threading.Condition()
        self._writes: dict[int, Writes[_T]] = {}
        self._ranges = 0

    def enter(self, id: int) -> None:
        """Something is about to be stored; `leave` follows. Raises `Conflict`."""
        with self._changed:
            writes = self._find(id)
            if writes.ending:
                raise Conflict(
                    f"The transaction {id} is being committed or aborted; nothing more can be "
                    "published in it."
                )
            writes.under_way += 1

    def leave(self, id: int, ranges: Sequence[_T], stored: Sequence[Stored], sure: bool) -> None:
        """It was stored there; not `sure`: the append has failed."""
        with self._changed:
            writes = self._find(id)
            writes.add(stored)
            writes.failed |= not sure
            writes.sure &= sure
            if writes.sure:
                writes.ranges += ranges
                self._ranges += len(ranges)
            if not writes.sure or self._ranges > RANGES_MAX:
                self._ranges -= len(writes.ranges)
                writes.ranges, writes.sure = [], False
            writes.under_way -= 1
            self._tidy(id, writes)

    @contextlib.contextmanager
    def ending(self, id: int) -> Iterator[Writes[_T]]:
        """End a transaction, alone. Raises `TimedOut`."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_ending(id), ENDING_TIMEOUT_S):
                raise TimedOut(f"The transaction {id} is being ended; ask for its outcome.")
            writes = self._find(id)
            writes.ending = True
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not writes.under_way, ENDING_TIMEOUT_S):
                    raise TimedOut(f"The transaction {id} is still being published in. Try again.")
            yield writes
        finally:
            with self._changed:
                writes.ending = False
                self._tidy(id, writes)

    def places(self) -> int:
        """In how many partitions of a topic messages wait for the end of their transaction."""
        with self._changed:
            return len({place for writes in self._writes.values() for place in writes.places()})

    def _is_ending(self, id: int) -> bool:
        writes = self._writes.get(id)
        return writes is not None and writes.ending

    def _find(self, id: int) -> Writes[_T]:
        writes = self._writes.get(id)
        if writes is None:
            if len(self._writes) >= REMEMBERED:
                self._forget_oldest()
            writes = self._writes[id] = Writes(id >= self._first)
        return writes

    def _tidy(self, id: int, writes: Writes[_T]) -> None:
        self._changed.notify_all()
        if writes.under_way or writes.ending:
            return
        known = writes.sure is (id >= self._first) and not writes.failed
        if writes.settled or (known and not writes.ranges and not writes.stored):
            self._ranges -= len(writes.ranges)
            del self._writes[id]

    def _forget_oldest(self) -> None:
        for id, writes in self._writes.items():
            if not (writes.ending or writes.under_way):
                self._ranges -= len(writes.ranges)
                self._first = max(self._first, id + 1)
                del self._writes[id]
                return
