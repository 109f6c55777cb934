"""Commits that come together are written together.

    submit ─▶ queue ─▶ take all that wait ─▶ decide ─▶ journal, once ─▶ apply ─▶ answer

Whoever finds the queue without a leader leads; one that must not wait lets a background thread do
it.

Invariants

* Of commits that are written together and changed the same key, the first one wins.
* What a commit moves is checked and moved at the moment at which it is decided and applied: no
  other commit comes in between.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tms.errors import TimedOut, TMSError, TransactionConflict
from tms.model.topic import Durability
from tms.tx.edits import Committed, Edit, Prepared, Stored
from tms.tx.journaled import JournaledState
from tms.tx.state import TransactionState
from tms.tx.watchers import Watchers


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Finish:
    """A commit that is to be written. `check` raises what keeps it from being done; `applied` is
    called when it is visible, `answer` at last, with the error if there was one."""

    id: int
    answer: Callable[[TMSError | None], None]
    changes: Iterable[bytes] | None = None
    blocks: Sequence[Stored] = ()
    durability: Durability = Durability.SYNCED
    check: Callable[[], None] = _nothing
    applied: Callable[[], None] = _nothing
    error: TMSError | None = None


class CommitQueue:
    """Commits on their way into the journal. Thread-safe."""

    def __init__(
        self,
        journal: JournaledState,
        watchers: Watchers,
        run_in_background: Callable[[Callable[[], None]], object],
    ) -> None:
        self._journal = journal
        self._watchers = watchers
        self._run_in_background = run_in_background
        self._queue: list[Finish] = []
        self._lock = threading.Lock()  # guards the queue
        self._leading = False
        self.done = 0  # since the start

    def submit(self, one: Finish, inline: Durability) -> None:
        """Take a commit, which then always gets an answer. The calling thread writes what needs at
        most the durability `inline`; with `synced` it may wait for others, else it never does."""
        with self._lock:
            self._queue.append(one)
            if self._leading:
                return
            self._leading = True
        may_wait = inline is Durability.SYNCED
        if one.durability.rank <= inline.rank and self._journal.writing.acquire(blocking=may_wait):
            try:
                self._round()
            finally:  # e.g. after a control-C
                if not self._resigned():
                    self._lead_in_background()
        else:
            self._lead_in_background()

    def _lead(self) -> None:
        while True:
            self._journal.writing.acquire()
            try:
                self._round()
            except BaseException:
                self._lead_in_background()
                raise
            if self._resigned():
                return

    def _lead_in_background(self) -> None:
        try:
            self._run_in_background(self._lead)
        except RuntimeError:  # the engine is closing: better here than never
            self._lead()

    def _resigned(self) -> bool:
        with self._lock:
            if self._queue:
                return False
            self._leading = False
            return True

    def _round(self) -> None:
        """Write all that wait, and answer. The caller has acquired `writing`; it is released."""
        with self._lock:
            group, self._queue = self._queue, []
        try:
            self._write(group)
        finally:
            self._journal.writing.release()
            self._watchers.wake([one.id for one in group])
            for one in group:
                one.answer(one.error)

    def _write(self, group: Sequence[Finish]) -> None:
        done: list[Finish] = []
        try:
            edits = self._decide(group, done)
            if edits:
                strongest = max((one.durability for one in done), key=_rank, default=_WRITTEN)
                self._journal.write(edits, strongest, lambda: _applied(done))
                self.done += len(done)
        except BaseException as error:
            for one in group:
                one.error = one.error or (
                    error
                    if isinstance(error, TMSError)
                    else TimedOut("The commit was interrupted; ask for its outcome.")
                )
            if not isinstance(error, Exception):
                raise

    def _decide(self, group: Iterable[Finish], done: list[Finish]) -> list[Edit]:
        """What to journal; those that can be committed go into `done`."""
        state = self._journal.ready()
        edits: list[Edit] = []
        taken: dict[bytes, str | None] = {}  # change → who changes it
        with self._journal.lock:
            for one in group:
                try:
                    one.check()
                    edit = state.commit(one.id, one.changes, one.blocks)
                    _require_free(state, edit, taken)
                except TMSError as error:
                    one.error = error
                    if isinstance(error, TransactionConflict):
                        edits.append(Prepared(one.id, ()))
                    continue
                taken.update(dict.fromkeys(edit.changes, state.find(one.id).began.client))
                edits.append(edit)
                done.append(one)
        return edits


_WRITTEN = Durability.WRITTEN


def _rank(durability: Durability) -> int:
    return durability.rank


def _applied(done: Iterable[Finish]) -> None:
    for one in done:
        one.applied()


def _require_free(
    state: TransactionState, edit: Committed, taken: Mapping[bytes, str | None]
) -> None:
    for change in edit.changes:
        if change in taken:
            raise state.conflict(edit.id, change, taken[change])
