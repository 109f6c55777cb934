"""The delayed messages of one topic: publishing and cancelling, and lending what is due to the
scheduler.

    publish, cancel ─▶ queue ─▶ take all that wait ─▶ decide ─▶ write, once ─▶ answer
    take ─▶ (the scheduler commits) ─▶ done

Two locks: `writing` is held by whoever decides and writes; `state` guards what is lent, and is held
for microseconds only. Who takes both takes `writing` first.

Invariants

* While entries are lent, nobody decides whether messages of them are cancelled: either the move is
  committed, and it is too late, or it is not, and they can be.
* What comes in while entries are lent is not among them, whenever it is due.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tms.clock import Clock
from tms.delayed.changes import Addition, Cancellation, DelayedChange
from tms.delayed.entries import DelayedEntry, Moved, cancelled_key, entry_key
from tms.delayed.stored_queue import RowWrites, StoredDelayQueue
from tms.errors import Closed, StorageUnavailable, TimedOut, TMSError, again
from tms.journal.group_commit import GroupCommit, Lead
from tms.model.delayed import SEQUENCE_MAX, DelayedId, DelayedInfo
from tms.model.topic import Durability

GROUP_BYTES = 8 << 20
MARKS_KEPT_MS = 2 * 3_600_000  # after the message was due; a late write is not as late
CANCELLED_KEPT_S = 600.0  # that a cancelled message is known, if it is not due before
CANCELLED_MAX = 100_000
T = TypeVar("T")
_AT_ONCE = DelayedId(0, 0)  # as the next one: everything is to be read again soon
LOST_MS = 5_000  # so much too late, a topic's messages have lost their owner


class Taken(NamedTuple):
    """Entries that are due, lent to the scheduler: at least one. `moved` is where it stands once
    they are committed, `before` where it stands now."""

    entries: list[DelayedEntry]
    cancelled: set[DelayedId]
    moved: Moved
    before: Moved

    def first(self, count: int) -> "Taken":
        """So many of them only."""
        last = self.entries[count - 1].id
        moved = self.moved._replace(due_ms=last.due_ms, last=last.sequence)
        return self._replace(entries=self.entries[:count], moved=moved)


class DelayQueue:
    """The delayed messages of one topic. Thread-safe."""

    def __init__(
        self,
        stored: StoredDelayQueue,
        clock: Clock,
        now_ms: Callable[[], int],
        run_in_background: Callable[[Callable[[], None]], object],
        woken: Callable[[int], None],
    ) -> None:
        self.stored = stored
        self._clock = clock
        self._now_ms = now_ms
        self._woken = woken
        self.writing = threading.Lock()
        self._changes = GroupCommit(
            self.writing,
            self._write,
            run_in_background,
            size_of=lambda change: change.size,
            bytes_max=GROUP_BYTES,
        )
        self._state = threading.Condition(threading.Lock())  # guards what follows
        self._lent: Moved | None = None
        self._next: DelayedId | None = None  # nothing that waits is before
        self._new: DelayedId | None = None  # the earliest that came while something was lent
        self._cancelled: deque[tuple[float, DelayedId, bool]] = deque()
        self._known_s = 0.0  # since when how everything stands is known
        self.retired: TMSError | None = None

    # -- publishing and cancelling -----------------------------------------------------------------

    def submit(self, change: DelayedChange, may_wait: bool) -> None:
        """Take something, which then always gets an answer. The calling thread decides and writes
        if it may wait."""
        if self.retired is not None:
            change.fail(again(self.retired))
            return
        self._changes.submit(change, Lead.YES if may_wait else Lead.NO)

    def cancel(self, id: DelayedId, durability: Durability, timeout_s: float) -> bool:
        """Whether the message is cancelled; False when it is too late, or there is none."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            with self._state:
                done = self._state.wait_for(
                    lambda: self._lent is None or self._lent.due_ms < id.due_ms, timeout_s
                )
            left_s = deadline_s - self._clock.monotonic_s()
            if not done or left_s <= 0:
                raise TimedOut(f"Whether {id} can be cancelled is not known yet. Try again.")
            cancellation = Cancellation(id, durability)
            self.submit(cancellation, may_wait=True)
            (cancelled,) = cancellation.answer.result(left_s)[0]
            if cancelled is not None:
                return cancelled

    def wait_returned(self, id: DelayedId, timeout_s: float) -> None:
        """If the scheduler may have this entry, wait until it has moved it or returned it."""
        with self._state:
            if (lent := self._lent) is None or not lent.covers(id):
                return
            done = self._state.wait_for(lambda: self._lent is not lent, timeout_s)
        if not done:
            raise TimedOut(f"Delayed messages of {self.stored.name} are still being moved. Repeat.")

    def alone(self, do: Callable[[], T]) -> T:
        """Run `do` while nobody else changes what is stored; for a caller that has seen an
        entry."""
        with self.writing:
            if self.retired is not None:
                raise again(self.retired)
            self._ready(create=False)
            return do()

    def lends(self, id: DelayedId) -> bool:
        """Whether the scheduler has this entry. The caller holds `writing`."""
        return self._lent is not None and self._lent.covers(id)

    def note_cancelled(self, id: DelayedId, together: int) -> None:
        """Free the space of a cancelled message by and by, long before it would be due."""
        self._cancelled.append((self._clock.monotonic_s(), id, together == 1))
        if len(self._cancelled) > CANCELLED_MAX:
            self._cancelled.popleft()

    def _write(self, group: Sequence[DelayedChange]) -> None:
        answers: list[Callable[[], None]] = []
        try:
            answers = self._written(group)
        except BaseException as error:
            self._invalidate()
            for change in group:
                change.fail(_as_error(error))
            if not isinstance(error, Exception):
                raise
        for answer in answers:
            answer()

    def _written(self, group: Sequence[DelayedChange]) -> list[Callable[[], None]]:
        if self.retired is not None:
            raise again(self.retired)
        create = any(isinstance(change, Addition) for change in group)
        exists = self._ready(create)
        now_ms, writes = self._now_ms(), RowWrites()
        answers: list[Callable[[], None]] = []
        refused: list[tuple[DelayedChange, TMSError]] = []
        for change in group:
            if not exists:
                assert isinstance(change, Cancellation), "who adds makes the map"
                change.answer.settle(0, (False,))
                continue
            try:
                answers.append(change.decide(self, now_ms, writes))
            except TMSError as error:
                if not self.stored.trusted:
                    raise
                refused.append((change, error))
        if writes.rows:
            self.stored.put(writes)
            if writes.first is not None:
                self._note(writes.first)
        for change, why in refused:
            change.fail(why)
        return answers

    # -- the scheduler's ---------------------------------------------------------------------------

    def look(self) -> None:
        """Know how everything stands, if that is not known."""
        with self.writing:
            if self.retired is None:
                self._may_move(self._now_ms())

    @property
    def next_due_ms(self) -> int | None:
        """When to look again for what is due; None: when something comes."""
        with self._state:
            return None if self._next is None else self._next.due_ms

    def take(self, now_ms: int, bytes_max: int) -> Taken | None:
        """Borrow some entries that are due, the first ones; `done` or `release` must follow."""
        with self.writing:
            if self.retired is not None or not self._may_move(now_ms):
                return None
            with self._state:
                start = self._next
            if start is None or start.due_ms > now_ms:
                return None
            try:
                self.stored.make_durable()
            except BaseException:
                self._invalidate()
                raise
            before = self.stored.next_sequence
            with self._state:
                self._lent, self._new = Moved(now_ms, SEQUENCE_MAX, before), None
            moved_before = self.stored.moved
        try:
            entries_ = self.stored.scan(start, now_ms, bytes_max)
            entries = [entry for entry in entries_ if entry.id.sequence < before]
            if not entries:
                self._release(entries_[0].id if entries_ else self.stored.first(start))
                return None
            last = entries[-1].id
            moved = Moved(last.due_ms, last.sequence, before)
            with self._state:
                self._lent = moved
                self._state.notify_all()
            cancelled = self.stored.cancelled(entries[0].id, entries[-1].end)
            return Taken(entries, cancelled, moved, moved_before)
        except BaseException:
            self.release()
            raise

    def done(self, taken: Taken, messages: int, committed: bool = True) -> None:
        """What was taken is in the log; or, if nothing was to be committed, all of it was
        cancelled."""
        ids = [entry.id for entry in taken.entries]
        try:
            with self.writing:
                moved = taken.moved if committed else self.stored.moved
                self.stored.set_moved(moved, messages, ids)
            following = self.stored.first(ids[0])
            self._release(following)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Return the entries that were taken. The outcome of their move is unknown, so everything
        is read again first."""
        with self.writing:
            self._invalidate()
            self._release(None)

    def learn(self) -> bool:
        """Read a little of what publishers will ask for; whether there is more."""
        with self.writing:
            known = self.retired is None and self.stored.trusted
            return known and self.stored.requests.read_some()

    def tidy(self) -> None:
        """Delete what is remembered no longer."""
        with self.writing:
            if self.retired is not None or not self.stored.trusted:
                return
            stored, now_ms = self.stored, self._now_ms()
            with self._state:
                end_ms = now_ms if self._next is None else min(now_ms, self._next.due_ms)
            requests, entries = stored.requests.old(now_ms), list[bytes]()
            old_s = self._clock.monotonic_s() - CANCELLED_KEPT_S
            marks: list[bytes] = []
            if self._known_s <= old_s:  # else some may have been cancelled shortly before
                recent = {cancelled_key(id) for when_s, id, _ in self._cancelled if when_s > old_s}
                old_marks = stored.marks_before(max(0, end_ms - MARKS_KEPT_MS))
                marks = [mark for mark in old_marks if mark not in recent]
            while self._cancelled and self._cancelled[0][0] <= old_s:
                _, id, alone = self._cancelled.popleft()
                if alone and id.due_ms > now_ms:
                    entries.append(entry_key(id))
                    marks.append(cancelled_key(id))
            try:
                stored.delete(requests)
                stored.delete(entries)  # when no request that is remembered names them
                stored.delete(marks)  # when their messages are gone
            except BaseException:
                self._invalidate()
                raise
            stored.requests.dropped(len(requests))

    # -- looking -----------------------------------------------------------------------------------

    def info(self) -> DelayedInfo:
        """How many wait, and when the first is due."""
        with self.writing:
            if self.retired is not None:
                raise again(self.retired)
            if not self.stored.lost:
                self._ready(create=False)
            if self.stored.trusted:
                with self._state:
                    following = self._next
                return DelayedInfo(self.stored.waiting, following and following.due_ms)
            waiting, following = self.stored.peek()
            return DelayedInfo(waiting, following and following.due_ms)

    def retire(self, reason: TMSError) -> None:
        """Nothing more comes in or goes out."""
        with self.writing, self._state:
            self.retired = reason

    # -- parts -------------------------------------------------------------------------------------

    def _ready(self, create: bool) -> bool:
        """Read what is stored unless it is known; whether a map exists. Holds `writing`."""
        if self.stored.trusted:
            return True
        try:
            exists = self.stored.ready(create)
            following = self.stored.first(self.stored.begin) if exists else None
        except BaseException:
            self._invalidate()
            raise
        self._known_s = self._clock.monotonic_s()
        if following is None:
            self.stored.waiting = 0  # whatever was counted
        with self._state:
            self._next = self._new = following
        if following is not None:
            self._woken(following.due_ms)
        return exists

    def _invalidate(self) -> None:
        self.stored.trusted = False
        with self._state:
            self._next = _AT_ONCE

    def _may_move(self, now_ms: int) -> bool:
        """Whether this one is to move. Where another process took over, it is left to that, as
        long as it does."""
        if self.stored.lost:
            first = self.stored.peek()[1]
            again_ms = now_ms if first is None else min(first.due_ms, now_ms)
            if first is None or first.due_ms + LOST_MS > now_ms:
                with self._state:
                    self._next = DelayedId(again_ms + LOST_MS, 0)
                return False
        return self._ready(create=False)

    def _note(self, first: DelayedId) -> None:
        """Entries from this one on are stored."""
        with self._state:
            sooner = self._next is None or first < self._next
            if sooner:
                self._next = first
            if self._new is None or first < self._new:
                self._new = first
        if sooner:
            self._woken(first.due_ms)

    def _release(self, following: DelayedId | None) -> None:
        """Nothing is lent any more; what waits begins at `following`, or with what came
        meanwhile."""
        with self._state:
            self._lent = None
            starts = [start for start in (following, self._new) if start is not None]
            if self._next is not _AT_ONCE:
                self._next = min(starts, default=None)
            self._state.notify_all()


def _as_error(error: BaseException) -> TMSError:
    if isinstance(error, TMSError):
        return again(error)
    if isinstance(error, RuntimeError):
        return Closed("The engine is closed; open it again.")
    return StorageUnavailable(f"It failed unexpectedly ({type(error).__name__}).")
