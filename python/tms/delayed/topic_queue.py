"""The delayed messages of one topic: publishing, cancelling, and handing due entries to the
scheduler.

    publish, cancel ─▶ queue ─▶ a group of changes ─▶ decide ─▶ write, once ─▶ answer
    take ─▶ (the scheduler commits) ─▶ done

Two locks: a thread holds `writing` while it decides and writes; `state` guards the taken entries,
and is held for microseconds only. A thread that takes both takes `writing` first.

Invariants

* While the scheduler has taken entries, cancellations of their messages are not decided: they are
  too late if the move commits, and possible if it does not.
* Entries that are stored while others are taken are not among them, whenever they are due.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tms.delayed.changes import Addition, Cancellation, DelayedChange
from tms.delayed.entries import DelayedEntry, Moved, cancelled_key, entry_key
from tms.delayed.stored_queue import RowWrites, StoredDelayQueue
from tms.errors import Closed, StorageUnavailable, TimedOut, TMSError, again
from tms.log.group_commit import GroupCommit, Lead
from tms.model.delayed import SEQUENCE_MAX, DelayedId, DelayedInfo
from tms.model.topic import Durability
from tms.runtime.clock import Clock

GROUP_BYTES = 8 << 20
MARK_RETENTION_MS = 2 * 3_600_000  # after the message was due; a late write is not as late
CANCELLED_RETENTION_S = 600.0  # a cancelled message is remembered, unless it is due before
CANCELLED_MAX = 100_000
T = TypeVar("T")
_AT_ONCE = DelayedId(0, 0)  # as `_next`: everything is read again soon
LOST_MS = 5_000  # messages later than this have lost their owner


class Taken(NamedTuple):
    """Due entries that the scheduler has taken, at least one. `before` is its position now, `moved`
    its position once they are committed."""

    entries: list[DelayedEntry]
    cancelled: set[DelayedId]
    moved: Moved
    before: Moved

    def first(self, count: int) -> "Taken":
        """The first `count` of them."""
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
        self._taken: Moved | None = None
        self._next: DelayedId | None = None  # no waiting message is before
        self._new: DelayedId | None = None  # the earliest that was stored while entries were taken
        self._cancelled: deque[tuple[float, DelayedId, bool]] = deque()
        self._known_s = 0.0  # when everything was loaded
        self._failure: TMSError | None = None  # of the last attempt to load that failed
        self.retired: TMSError | None = None

    # -- publishing and cancelling -----------------------------------------------------------------

    def submit(self, change: DelayedChange, may_wait: bool) -> None:
        """Queue a change, which always gets an answer. The calling thread decides and writes if it
        may wait."""
        if self.retired is not None:
            change.fail(again(self.retired))
            return
        self._changes.submit(change, Lead.YES if may_wait else Lead.NO)

    def cancel(self, id: DelayedId, durability: Durability, timeout_s: float) -> bool:
        """Cancel a message; True if it is never delivered, False if it is too late or does not
        exist."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            with self._state:
                done = self._state.wait_for(
                    lambda: self._taken is None or self._taken.due_ms < id.due_ms, timeout_s
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
        """Wait until the scheduler has moved or released an entry that it may have taken."""
        with self._state:
            if (taken := self._taken) is None or not taken.covers(id):
                return
            done = self._state.wait_for(lambda: self._taken is not taken, timeout_s)
        if not done:
            raise TimedOut(f"Delayed messages of {self.stored.name} are still being moved. Repeat.")

    def alone(self, do: Callable[[], T]) -> T:
        """Run `do` while no other thread changes the stored rows; for a caller that has seen an
        entry."""
        failure = self._failure
        with self.writing:
            if self.retired is not None:
                raise again(self.retired)
            self._ready_unless_failed_since(failure)
            return do()

    def is_taken(self, id: DelayedId) -> bool:
        """True if the scheduler has taken this entry. The caller holds `writing`."""
        return self._taken is not None and self._taken.covers(id)

    def note_cancelled(self, id: DelayedId, together: int) -> None:
        """Note a cancelled message, whose space `tidy` frees before it would be due."""
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
                assert isinstance(change, Cancellation), "an addition creates the map"
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
        """Load everything unless it is loaded."""
        with self.writing:
            if self.retired is None:
                self._may_move(self._now_ms())

    @property
    def next_due_ms(self) -> int | None:
        """The time at which the scheduler looks for due messages next; None until messages are
        stored."""
        with self._state:
            return None if self._next is None else self._next.due_ms

    def take(self, now_ms: int, bytes_max: int) -> Taken | None:
        """Take the first due entries, None if none is due; `done` or `release` must follow."""
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
                self._taken, self._new = Moved(now_ms, SEQUENCE_MAX, before), None
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
                self._taken = moved
                self._state.notify_all()
            cancelled = self.stored.cancelled(entries[0].id, entries[-1].end)
            return Taken(entries, cancelled, moved, moved_before)
        except BaseException:
            self.release()
            raise

    def done(self, taken: Taken, messages: int, committed: bool = True) -> None:
        """Delete entries that were committed to the log, or, if there was nothing to commit, were
        all cancelled."""
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
        """Return taken entries. The outcome of their move is unknown, so everything is read again
        first."""
        with self.writing:
            self._invalidate()
            self._release(None)

    def learn(self) -> bool:
        """Read some requests that publishers will look for; True if there are more."""
        with self.writing:
            known = self.retired is None and self.stored.trusted
            return known and self.stored.requests.read_some()

    def tidy(self) -> None:
        """Delete requests and marks that are remembered no longer."""
        with self.writing:
            if self.retired is not None or not self.stored.trusted:
                return
            stored, now_ms = self.stored, self._now_ms()
            with self._state:
                end_ms = now_ms if self._next is None else min(now_ms, self._next.due_ms)
            requests, entries = stored.requests.old(now_ms), list[bytes]()
            old_s = self._clock.monotonic_s() - CANCELLED_RETENTION_S
            marks: list[bytes] = []
            if self._known_s <= old_s:  # else some may have been cancelled shortly before
                recent = {cancelled_key(id) for when_s, id, _ in self._cancelled if when_s > old_s}
                old_marks = stored.marks_before(max(0, end_ms - MARK_RETENTION_MS))
                marks = [mark for mark in old_marks if mark not in recent]
            while self._cancelled and self._cancelled[0][0] <= old_s:
                _, id, alone = self._cancelled.popleft()
                if alone and id.due_ms > now_ms:
                    entries.append(entry_key(id))
                    marks.append(cancelled_key(id))
            try:
                stored.delete(requests)
                stored.delete(entries)  # no remembered request names them
                stored.delete(marks)  # when their messages are gone
            except BaseException:
                self._invalidate()
                raise
            stored.requests.dropped(len(requests))

    # -- looking -----------------------------------------------------------------------------------

    def info(self) -> DelayedInfo:
        """The number of waiting messages, and the time at which the first is due."""
        failure = self._failure
        with self.writing:
            if self.retired is not None:
                raise again(self.retired)
            if not self.stored.lost:
                self._ready_unless_failed_since(failure)
            if self.stored.trusted:
                with self._state:
                    following = self._next
                return DelayedInfo(self.stored.waiting, following and following.due_ms)
            waiting, following = self.stored.peek()
            return DelayedInfo(waiting, following and following.due_ms)

    def retire(self, reason: TMSError, timeout_s: float = -1) -> None:
        """Refuse all further changes and moves, and wait for those under way, at most `timeout_s`
        unless that is -1."""
        with self._state:
            self.retired = reason
        if self.writing.acquire(timeout=timeout_s):
            self.writing.release()

    # -- parts -------------------------------------------------------------------------------------

    def _ready(self, create: bool) -> bool:
        """Load everything unless it is loaded; True if there is a map. The caller holds
        `writing`."""
        if self.stored.trusted:
            return True
        try:
            exists = self.stored.ready(create)
            following = self.stored.first(self.stored.begin) if exists else None
        except BaseException as error:
            self._invalidate()
            self._failure = _as_error(error)
            raise
        self._known_s = self._clock.monotonic_s()
        if following is None:
            self.stored.waiting = 0  # the count may be stale
        with self._state:
            self._next = self._new = following
        if following is not None:
            self._woken(following.due_ms)
        return exists

    def _ready_unless_failed_since(self, failure: TMSError | None) -> None:
        """As `_ready`. If loading has failed after `_failure` was `failure`, raises that error: the
        threads that wait for `writing` would each wait as long for another attempt."""
        failed = self._failure
        if failed is not None and failed is not failure and not self.stored.trusted:
            raise again(failed)
        self._ready(create=False)

    def _invalidate(self) -> None:
        self.stored.trusted = False
        with self._state:
            self._next = _AT_ONCE

    def _may_move(self, now_ms: int) -> bool:
        """True if this process moves the topic's messages. While another process that took over
        moves them, it does not."""
        if self.stored.lost:
            first = self.stored.peek()[1]
            again_ms = now_ms if first is None else min(first.due_ms, now_ms)
            if first is None or first.due_ms + LOST_MS > now_ms:
                with self._state:
                    self._next = DelayedId(again_ms + LOST_MS, 0)
                return False
        return self._ready(create=False)

    def _note(self, first: DelayedId) -> None:
        """Note that entries from `first` on were stored."""
        with self._state:
            sooner = self._next is None or first < self._next
            if sooner:
                self._next = first
            if self._new is None or first < self._new:
                self._new = first
        if sooner:
            self._woken(first.due_ms)

    def _release(self, following: DelayedId | None) -> None:
        """End the taking: the waiting messages begin at `following`, or with the earliest that was
        stored meanwhile."""
        with self._state:
            self._taken = None
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
