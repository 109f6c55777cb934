"""Drives the state of transactions over a journal.

    decide (state) ─▶ journal ─▶ apply ─▶ wake who waits

Invariants

* Nothing is true before the journal has it; who reads meanwhile sees the state before.
* Pointers are given only below what a synced `Reserved` covers, so none is ever given twice,
  whatever a power loss takes.
* Commits that come together share one write of the journal, and its sync.
* After a failed write of the journal the state is not trusted: it is read from the journal again
  before anything else is decided.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from tms.clock import Clock
from tms.errors import TimedOut, TMSError, TransactionConflict, TransactionEnded
from tms.events import EventLog
from tms.model.snapshot import POINTERS_PER_MS, Fate, Snapshot, TransactionType
from tms.model.topic import Durability
from tms.tx.edits import (
    Aborted,
    Began,
    Committed,
    Edit,
    Intended,
    Invalidated,
    Outcome,
    Prepared,
    Reserved,
    Reset,
    Revoked,
    Stored,
    decode_edit,
    encode_edit,
)
from tms.tx.state import TransactionState

RESERVE_MS = 10_000
WRITE_TIMEOUT_S = 30.0
LIFETIME_MS = 25 * 3_600_000  # of a foreign transaction
_log = EventLog(__name__)
_T = TypeVar("_T")


class EditLog(Protocol):
    """Where edits are kept."""

    def write(self, edits: Sequence[bytes], durability: Durability) -> None:
        """Append together, and wait until they are stored."""
        ...

    def read(self) -> Iterator[bytes]:
        """All of them, in order."""
        ...


class _Finish:
    """A commit that waits to be written."""

    __slots__ = ("blocks", "changes", "done", "durability", "error", "id")

    def __init__(
        self, id: int, changes: Iterable[bytes] | None, blocks: Sequence[Stored], how: Durability
    ) -> None:
        self.id = id
        self.changes = changes
        self.blocks = blocks
        self.durability = how
        self.error: TMSError | None = None
        self.done = threading.Event()


class TransactionManager:
    """All transactions of one engine. Thread-safe."""

    def __init__(self, log: EditLog, clock: Clock, is_stored: Callable[[Stored], bool]) -> None:
        self._log = log
        self._clock = clock
        self._is_stored = is_stored
        self._lock = threading.Lock()  # guards the state and the journal's order
        self._trusted = False
        self._used = False  # whether anything was ever journaled
        self._finishing: list[_Finish] = []
        self._finishing_lock = threading.Lock()
        self._watchers: dict[int, list[Callable[[], None]]] = {}
        self.state = TransactionState()
        self.load()

    # -- the journal -----------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything from the journal; what ended without a word is settled."""
        edits = [decode_edit(raw) for raw in self._log.read()]
        revoked = {id for edit in edits if isinstance(edit, Revoked) for id in edit.ids}
        torn = self._torn(edits) - revoked
        state = TransactionState()
        for edit in edits:
            if isinstance(edit, Committed) and edit.id in revoked | torn:
                state.apply(Invalidated((edit.id,)))
            else:
                state.apply(edit)
        self._used = bool(edits)
        if edits:
            new: list[Edit] = [Revoked(tuple(sorted(torn)))] if torn else []
            new += state.recovered(self._clock.now_ms())
            for edit in new:
                state.apply(edit)
            if new:
                self._log.write([encode_edit(edit) for edit in new], Durability.SYNCED)
        self.state, self._trusted = state, True
        if torn:
            _log.warning("transactions_lost_with_the_power", transactions=len(torn))

    def _torn(self, edits: Iterable[Edit]) -> set[int]:
        """Commits whose blocks are not all there: the power went before they were stored."""
        commits = [edit for edit in edits if isinstance(edit, Committed)]
        ends: dict[tuple[int, int], int] = {}
        for commit in commits:
            for block in commit.blocks:
                place = (block.uid, block.partition)
                ends[place] = max(ends.get(place, 0), block.end_offset)
        short = {place for place, end in ends.items() if not self._is_stored(Stored(*place, end))}
        return {
            commit.id
            for commit in commits
            if any(
                (block.uid, block.partition) in short and not self._is_stored(block)
                for block in commit.blocks
            )
        }

    def _write(self, edits: Sequence[Edit], durability: Durability) -> None:
        """Journal and apply. The caller holds the lock."""
        try:
            self._log.write([encode_edit(edit) for edit in edits], durability)
        except BaseException:
            self._trusted = False
            raise
        self._used = True
        for edit in edits:
            self.state.apply(edit)

    def _ready(self) -> TransactionState:
        if not self._trusted:
            self.load()
        return self.state

    def _reserved(self, now_ms: int) -> TransactionState:
        """The state, with room for pointers. The caller holds the lock."""
        state = self._ready()
        pointer = state.next_pointer(now_ms)
        if pointer + POINTERS_PER_MS >= state.reserved:
            upto = pointer + RESERVE_MS * POINTERS_PER_MS
            self._write([Reserved(upto)], Durability.SYNCED)
        return state

    # -- transactions ----------------------------------------------------------------------------

    def begin(
        self,
        *,
        type: TransactionType = TransactionType.SHORT,
        timeout_s: float | None = None,
        client: str | None = None,
        token: str = "",
    ) -> Began:
        """Begin a transaction; see `TransactionState.begin`."""
        now_ms = self._clock.now_ms()
        with self._lock:
            state = self._reserved(now_ms)
            edit = state.begin(now_ms, type=type, timeout_s=timeout_s, client=client, token=token)
            if edit.id not in state.open:
                self._write([edit], Durability.WRITTEN)
            return edit

    def snapshot(self, id: int) -> Snapshot:
        """What a transaction in progress sees if it looks now."""
        with self._lock:
            return self._ready().snapshot(id)

    def change(
        self,
        decide: Callable[[TransactionState, int], Iterable[Edit]],
        answer: Callable[[TransactionState], _T],
        durability: Durability = Durability.WRITTEN,
    ) -> _T:
        """Do what `decide` says of the state at this time (ms); what `answer` says of the state
        then. Nobody else changes it in between."""
        now_ms = self._clock.now_ms()
        with self._lock:
            edits = list(decide(self._reserved(now_ms), now_ms))
            if edits:
                self._write(edits, durability)
            found = answer(self.state)
        if any(isinstance(edit, Aborted | Invalidated | Reset) for edit in edits):
            self._wake([key for key in list(self._watchers) if self.knows(key)])
        return found

    def intend(self, id: int, token: str, changes: Sequence[bytes]) -> int:
        """The messages of a transaction are about to be stored; its id, a new one for 0. Raises
        `TransactionConflict`, `TransactionEnded`."""
        now_ms = self._clock.now_ms()
        with self._lock:
            edits: list[Edit] = []
            if id:
                state = self._ready()
                state.prepare(id, changes)
            else:
                state = self._reserved(now_ms)
                began = state.begin(now_ms, token=token)
                id = began.id
                edits.append(began)
            edits.append(Intended(id))
            self._write(edits, Durability.WRITTEN)
            return id

    def commit(
        self,
        id: int,
        changes: Iterable[bytes] | None = None,
        blocks: Sequence[Stored] = (),
        durability: Durability = Durability.SYNCED,
    ) -> None:
        """Commit. Those that come together are written together."""
        mine = _Finish(id, changes, blocks, durability)
        with self._finishing_lock:
            self._finishing.append(mine)
            leads = len(self._finishing) == 1
        if leads:
            with self._lock:
                with self._finishing_lock:
                    group, self._finishing = self._finishing, []
                self._finish(group)
        elif not mine.done.wait(WRITE_TIMEOUT_S):
            raise TimedOut(f"The commit of {id} takes too long; ask for its outcome.")
        if mine.error is not None:
            raise mine.error

    def _finish(self, group: list[_Finish]) -> None:
        edits: list[Edit] = []
        try:
            state = self._ready()
            taken: dict[bytes, str | None] = {}  # change → client
            for one in group:
                try:
                    edit = state.commit(one.id, one.changes, one.blocks)
                    if (change := next(filter(taken.__contains__, edit.changes), None)) is not None:
                        raise state.conflict(one.id, change, taken[change])
                    taken.update(dict.fromkeys(edit.changes, state.find(one.id).began.client))
                    edits.append(edit)
                except TMSError as error:
                    one.error = error
                    if isinstance(error, TransactionConflict):
                        edits.append(Prepared(one.id, ()))
            if edits:
                strongest = max((one.durability for one in group), key=lambda each: each.rank)
                self._write(edits, strongest)
        except BaseException as error:
            for one in group:
                one.error = one.error or (
                    error
                    if isinstance(error, TMSError)
                    else TimedOut("The commit was interrupted.")
                )
            if not isinstance(error, Exception):
                raise
        finally:
            for one in group:
                one.done.set()
            self._wake([one.id for one in group])

    def abort(self, id: int) -> None:
        """Abort; see `TransactionState.abort`. The caller took its data back before."""
        with self._lock:
            edit = self._ready().abort(id)
            if edit is not None:
                self._write([edit], Durability.WRITTEN)
        self._wake([id])

    def invalidate(self, id: int) -> bool:
        """Make a transaction in progress invalid; whether it was in progress."""
        with self._lock:
            edit = self._ready().invalidate(id)
            if edit is not None:
                self._write([edit], Durability.SYNCED)
        self._wake([id])
        return edit is not None

    def expire(self) -> int:
        """Make invalid what has been open for too long; how many."""
        if not self._used:
            return 0
        with self._lock:
            edit = self._ready().expired(self._clock.now_ms())
            if edit is not None:
                self._write([edit], Durability.SYNCED)
        if edit is None:
            return 0
        self._wake(edit.ids)
        return len(edit.ids)

    def outcome(self, id: int) -> Outcome:
        """How a transaction stands. Raises `TransactionNotFound`."""
        with self._lock:
            return self._ready().outcome(id)

    def of_token(self, token: str) -> tuple[int, Outcome] | None:
        """The transaction that began with this token."""
        with self._lock:
            state = self._ready()
            id = state.tokens.get(token)
            return None if id is None else (id, state.outcome(id))

    # -- readers ---------------------------------------------------------------------------------

    def fate(self, pointer: int, issued: bool) -> Fate:
        """What becomes of a message, for a reader of committed ones. A foreign pointer is open
        until it is rolled back or too old."""
        if issued:
            return self.state.fate(pointer)
        late = pointer // POINTERS_PER_MS + LIFETIME_MS < self._clock.now_ms()
        return Fate.SKIPPED if late else Fate.OPEN

    def is_open(self, pointer: int) -> bool:
        """Whether it was given here and has not ended."""
        return pointer in self.state.in_progress

    def transaction_of(self, pointer: int) -> int | None:
        """The transaction in progress that this pointer was given to."""
        return self.state.in_progress.get(pointer)

    def is_intended(self, id: int) -> bool:
        """Whether its commit is under way."""
        found = self.state.open.get(id)
        return found is not None and found.intended

    def knows(self, pointer: int) -> bool:
        """Whether it was given here and has ended, as far as is remembered."""
        return pointer in self.state.ended or self.state.is_invalid(pointer)

    def why_not_open(self, id: int) -> TMSError:
        """The error for a transaction that has ended."""
        try:
            self.state.find(id)
        except TMSError as error:
            return error
        return TransactionEnded(f"The transaction {id} is open.", transaction=id)

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction ends, at once if it has. Returns a cancel."""
        with self._lock:
            id = self.state.in_progress.get(pointer)
            if id is not None or not self.knows(pointer):
                key = pointer if id is None else id  # a foreign one ends by being rolled back
                self._watchers.setdefault(key, []).append(callback)
                return lambda: self._unwatch(key, callback)
        callback()
        return lambda: None

    def _unwatch(self, key: int, callback: Callable[[], None]) -> None:
        with self._lock:
            waiting = self._watchers.get(key)
            if waiting is not None and callback in waiting:
                waiting.remove(callback)
                if not waiting:
                    del self._watchers[key]

    def _wake(self, ids: Iterable[int]) -> None:
        if not self._watchers:
            return
        waiting: list[Callable[[], None]] = []
        for id in ids:
            waiting += self._watchers.pop(id, ())
        for callback in waiting:
            callback()

    def rolled_back(self, pointer: int) -> None:
        """Messages of a transaction were rolled back: who waits for it looks again."""
        self._wake([self.state.in_progress.get(pointer, pointer)])
