"""Commits that come together are written together (`log.group_commit`).

    submit ─▶ queue ─▶ take all that wait ─▶ decide ─▶ journal, once ─▶ apply ─▶ answer

Invariants

* Of commits that are written together and changed the same key, the first one wins.
* The positions of a commit are checked when it is decided, and moved when it is applied; no other
  commit comes in between.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from tms.errors import TimedOut, TMSError, TransactionConflict
from tms.log.group_commit import GroupCommit, Lead
from tms.model.topic import Durability
from tms.transactions.edits import Committed, Edit, Prepared, Stored
from tms.transactions.journal import TransactionJournal
from tms.transactions.state import TransactionState
from tms.transactions.watchers import Watchers


class Finish(Struct, eq=False):
    """A commit that is to be written. `check` raises the error that prevents it; `applied` is
    called when it is visible, `answer` at last, with the error if there was one."""

    id: int
    answer: Callable[[TMSError | None], None]
    changes: Iterable[bytes] | None = None
    blocks: Sequence[Stored] = ()
    durability: Durability = Durability.SYNCED
    check: Callable[[], None] | None = None
    applied: Callable[[], None] | None = None
    error: TMSError | None = None


class CommitQueue:
    """Commits on their way into the journal. Thread-safe."""

    def __init__(
        self,
        journal: TransactionJournal,
        watchers: Watchers,
        run_in_background: Callable[[Callable[[], None]], object],
    ) -> None:
        self._journal = journal
        self._watchers = watchers
        self._commits = GroupCommit(journal.writing, self._write, run_in_background, self._answer)
        self.done = 0  # since the start

    def __len__(self) -> int:
        """The number of commits that wait for a writer."""
        return len(self._commits)

    def submit(self, finish: Finish, lead: Lead) -> None:
        """Take a commit, which then always gets an answer."""
        self._commits.submit(finish, lead)

    def _answer(self, group: Sequence[Finish]) -> None:
        ids: list[int] = []
        for finish in group:
            ids.append(finish.id)
        self._watchers.wake(ids)
        for finish in group:
            finish.answer(finish.error)

    def _write(self, group: Sequence[Finish]) -> None:
        done: list[Finish] = []
        try:
            edits = self._decide(group, done)
            if edits:
                strongest = Durability.WRITTEN
                applied: list[Callable[[], None]] = []
                for finish in done:
                    if finish.durability is Durability.SYNCED:
                        strongest = Durability.SYNCED
                    if finish.applied is not None:
                        applied.append(finish.applied)
                self._journal.write(edits, strongest, applied)
                self.done += len(done)
        except BaseException as error:
            interrupted = TimedOut("The commit was interrupted; ask for its outcome.")
            for finish in group:
                finish.error = finish.error or (
                    error if isinstance(error, TMSError) else interrupted
                )
            if not isinstance(error, Exception):
                raise

    def _decide(self, group: Iterable[Finish], done: list[Finish]) -> list[Edit]:
        """The edits to journal; commits that succeed are added to `done`."""
        state = self._journal.ready()
        edits: list[Edit] = []
        taken: dict[bytes, str | None] = {}  # change → who changes it
        with self._journal.lock:
            for finish in group:
                try:
                    if finish.check is not None:
                        finish.check()
                    edit = state.commit(finish.id, finish.changes, finish.blocks)
                    if edit.changes:
                        _require_free(state, edit, taken)
                except TMSError as error:
                    finish.error = error
                    if isinstance(error, TransactionConflict):
                        edits.append(Prepared(finish.id, ()))
                    continue
                if edit.changes:
                    taken.update(dict.fromkeys(edit.changes, state.find(finish.id).began.client))
                edits.append(edit)
                done.append(finish)
        return edits


def _require_free(
    state: TransactionState, edit: Committed, taken: Mapping[bytes, str | None]
) -> None:
    for change in edit.changes:
        if change in taken:
            raise state.conflict(edit.id, change, taken[change])
