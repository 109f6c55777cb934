"""The manager of all transactions of one engine: questions about them, and their changes.

Invariants

* Everything is decided by the pure state and journaled before it is true; see `journal`.
* Commits that come together share one write of the journal, and its sync; see `commit_queue`.
* Callers that wait for a transaction are called when it has ended.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tms.errors import StorageUnavailable, TimedOut, TMSError, TransactionNotFound
from tms.log.group_commit import Lead
from tms.log.pending import Pending
from tms.model.snapshot import POINTERS_PER_MS, Fate, Snapshot, TransactionType
from tms.model.topic import Durability
from tms.topics.internal_topic import InternalTopic
from tms.topics.topics import Topics
from tms.transactions.commit_queue import CommitQueue, Finish
from tms.transactions.edits import (
    Aborted,
    Barred,
    Began,
    Checkpointed,
    Edit,
    Intended,
    Invalidated,
    Outcome,
    Reserved,
    Reset,
    Stored,
)
from tms.transactions.journal import RESERVE_MS, CommitPlaces, TransactionJournal
from tms.transactions.state import LONG_TIMEOUT_S, TransactionState
from tms.transactions.watchers import Watchers

WRITE_TIMEOUT_S = 30.0
LATE_MS = 3_600_000  # a write may take so long after its transaction has ended
T = TypeVar("T")
_SYNCED, _WRITTEN = Durability.SYNCED, Durability.WRITTEN


class TransactionManager:
    """All transactions of one engine. Thread-safe."""

    def __init__(
        self,
        topics: Topics,
        journal: InternalTopic,
        reloaded: Callable[[], None],
        lifetime_ms: int,
    ) -> None:
        self._clock = topics.clock
        self._lifetime_ms = lifetime_ms  # of a foreign transaction
        self._elsewhere = topics.store.shared  # others may have begun what is unknown here
        self._watchers = Watchers()
        self._run_in_background = topics.run_in_background
        self._reloaded = reloaded
        places = CommitPlaces(topics)
        self._journal = TransactionJournal(journal, topics.clock, places, self._on_reload)
        self.commits = CommitQueue(self._journal, self._watchers, topics.run_in_background)
        self._committing: set[int] = set()  # intended, and not ended yet

    @property
    def state(self) -> TransactionState:
        """The state as it is now, for reading."""
        return self._journal.state

    @property
    def known(self) -> bool:
        """True if the state is known; otherwise a question waits until the journal was read
        again."""
        return self._journal.known

    # -- transactions ----------------------------------------------------------------------------

    def _on_reload(self) -> None:
        """The journal was read again, and may say that transactions have ended."""
        self._reloaded()
        self._run_in_background(lambda: self._watchers.wake_if(self._has_ended))  # without a lock

    def begin(
        self,
        *,
        type: TransactionType = TransactionType.SHORT,
        timeout_s: float | None = None,
        client: str | None = None,
        token: str = "",
    ) -> Began:
        """Begin a transaction; see `TransactionState.begin`. Raises `Overloaded` for a client that
        has too many; see `ClientCounts`."""
        journal, now_ms = self._journal, self._clock.now_ms()
        with journal.writing:
            state = journal.reserve(now_ms)
            with journal.lock:
                edit = state.begin(
                    now_ms, type=type, timeout_s=timeout_s, client=client, token=token
                )
                known = edit.id in state.open
                if not known:
                    if client is not None:
                        state.clients.require_room(client, now_ms)
                    journal.note(edit)
            if not known:
                journal.write([], _WRITTEN)
            return edit

    def snapshot(self, id: int) -> Snapshot:
        """The snapshot of a transaction in progress as of now."""
        state = self._journal.settled()
        with self._journal.lock:
            return state.snapshot(id)

    def change(
        self,
        decide: Callable[[TransactionState, int], Iterable[Edit]],
        answer: Callable[[TransactionState], T],
        durability: Durability = _WRITTEN,
    ) -> T:
        """Journal the edits that `decide` returns for the state at this time (ms); returns what
        `answer` makes of the state then. No other writer of the journal comes in between."""
        journal, now_ms = self._journal, self._clock.now_ms()
        with journal.writing:
            state = journal.reserve(now_ms)
            with journal.lock:
                edits = list(decide(state, now_ms))
                pointers = all(isinstance(edit, Began | Checkpointed) for edit in edits)
                for edit in edits if pointers else ():  # given away at once, or another gets it too
                    journal.note(edit)
            if edits:
                journal.write([] if pointers else edits, durability)
            with journal.lock:
                answered = answer(journal.state)
        if any(isinstance(edit, Aborted | Invalidated | Reset) for edit in edits):
            self._watchers.wake_if(self._has_ended)
        return answered

    def intend(self, id: int, changes: Sequence[bytes]) -> None:
        """Note that the messages of a transaction that began before are about to be stored. A
        second attempt after a crash would store them twice, so it must find this note; it is synced
        because the messages may be synced by others. `finished` must follow. Raises
        `TransactionConflict`, `TransactionEnded`."""
        journal = self._journal
        with journal.writing:
            journal.ready().prepare(id, changes)
            self._committing.add(id)
            try:
                journal.write([Intended(id)], _SYNCED)
            except BaseException:
                self._committing.discard(id)  # nothing is stored: `expire` ends it
                raise

    def begin_intended(self, token: str) -> int:
        """A transaction begins, and its messages are about to be stored; its id. `finished` must
        follow. Raises `TimedOut` when one with this token has begun meanwhile."""
        journal, now_ms = self._journal, self._clock.now_ms()
        while True:
            with journal.lock:
                state = journal.state
                began = state.begin(now_ms, token=token, intended=True)
                if began.id in state.open:  # what it stored so far, its own commit has to name
                    raise TimedOut(f"The transaction {began.id} began with this token. Try again.")
                if journal.known and began.id < state.reserved:
                    journal.note(began)
                    self._committing.add(began.id)
                    return began.id
            with journal.writing:
                journal.reserve(now_ms)

    def commit_and_wait(self, id: int, blocks: Sequence[Stored]) -> None:
        """Commit, synced, with the changes that were prepared; `blocks` have to be there. Raises
        `TransactionConflict`, `TransactionEnded`."""
        pending: Pending[None] = Pending(1)

        def answer(error: TMSError | None) -> None:
            if error is None:
                pending.settle(0, None)
            else:
                pending.fail(1, error)

        self.commits.submit(Finish(id, answer, None, blocks), Lead.YES)
        pending.result(WRITE_TIMEOUT_S)

    def finished(self, id: int) -> None:
        """A commit came to its end, whichever: if it is still open, it is given up."""
        self._committing.discard(id)

    @contextmanager
    def alone(self, durable: bool = False) -> Iterator[None]:
        """Meanwhile nothing is committed; what was committed before is `durable` if that is
        asked."""
        with self._journal.writing:
            self._journal.ready()
            if durable:
                self._journal.settle()
            yield

    def abort(self, id: int) -> None:
        """Abort; see `TransactionState.abort`. The caller took its data back before."""
        with self._journal.writing:
            edit = self._journal.ready().abort(id)
            if edit is not None:
                self._journal.write([edit], _WRITTEN)
        self._watchers.wake([id])

    def invalidate(self, id: int) -> bool:
        """Make a transaction in progress invalid; returns True if it was in progress."""
        with self._journal.writing:
            edit = self._journal.ready().invalidate(id)
            if edit is not None:
                self._journal.write([edit], _SYNCED)
        self._watchers.wake([id])
        return edit is not None

    def bar(self, pointer: int) -> None:
        """Let nothing more be stored under a pointer that was given elsewhere."""
        with self._journal.writing:
            if pointer not in self._journal.ready().barred:
                self._journal.write([Barred((pointer,))], _SYNCED)

    def is_barred(self, pointer: int) -> bool:
        """True if a pointer was given elsewhere and its transaction was invalidated here."""
        return pointer in self._journal.settled().barred

    def look(self, see: Callable[[TransactionState], T]) -> T:
        """The result of `see` for the state, which does not change meanwhile."""
        state = self._journal.settled()
        with self._journal.lock:
            return see(state)

    def confirm(self) -> None:
        """Make sure that the journal is still this one's: what it knows is then the truth."""
        self.change(lambda state, _: [Reserved(state.reserved)], lambda _: None, _SYNCED)

    def expire(self) -> int:
        """Invalidate the transactions that have been open for too long; returns how many. While
        transactions come, this also reserves pointers, so that `begin` need not."""
        journal, now_ms = self._journal, self._clock.now_ms()
        last_ms = journal.state.last_pointer // POINTERS_PER_MS  # 0: never, and there is no journal
        busy = last_ms > 0 and now_ms - last_ms < RESERVE_MS
        short_of_room = busy and not journal.has_room(now_ms, RESERVE_MS // 2)
        if not journal.state.open and not short_of_room:
            return 0
        with journal.writing:
            state = journal.reserve(now_ms, RESERVE_MS // 2) if busy else journal.ready()
            with journal.lock:
                edit = state.expired(now_ms, self._committing)
            if edit is not None:
                journal.write([edit], _SYNCED)
        if edit is None:
            return 0
        self._watchers.wake(edit.ids)
        return len(edit.ids)

    def shorten(self, edits_max: int) -> None:
        """Keep the state in the journal if a start would have more than so many edits to read."""
        if self._journal.is_long(edits_max):
            self._journal.shorten()

    def outcome(self, id: int) -> Outcome:
        """The outcome of a transaction; the journal has outcomes for a day. Raises
        `TransactionNotFound`."""
        state = self._journal.settled()
        try:
            with self._journal.lock:
                return state.outcome(id)
        except TransactionNotFound:
            if not 0 < id <= state.last_pointer:
                raise
            ended = self._journal.search(id, LONG_TIMEOUT_S * 1_000)
            if ended.outcome is None:
                raise
            return ended.outcome

    def committed_blocks(self, id: int) -> tuple[Stored, ...]:
        """The places of the blocks of a commit, which the journal has for a day; none after
        that."""
        return self._journal.search(id, LONG_TIMEOUT_S * 1_000).blocks

    def of_token(self, token: str) -> int:
        """The last transaction that began with this token, 0 when there is none that is committed
        or may be."""
        journal = self._journal
        state = journal.state if journal.known else journal.settled()
        with journal.lock:
            id = state.tokens.get(token, 0)
        return id if id and self.outcome(id) in (Outcome.OPEN, Outcome.COMMITTED) else 0

    # -- readers ---------------------------------------------------------------------------------

    def fate(self, pointer: int, issued: bool) -> Fate:
        """The fate of a message, for a reader of committed messages. A foreign pointer is open
        until it is rolled back or too old. Raises `StorageUnavailable`."""
        if issued:
            return self._fate(self.state, pointer)
        late = pointer // POINTERS_PER_MS + self._lifetime_ms < self._clock.now_ms()
        return Fate.SKIPPED if late else Fate.OPEN

    fate_at_once = fate

    def learn(self, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        """The fates of these transactions, asked for now; as in `Decisions`."""
        self._journal.settled()
        return self.fate

    def fates(self, pointers: Iterable[int]) -> dict[int, Fate]:
        """The fates of transactions that were begun here, as the journal has them. Raises
        `StorageUnavailable`."""
        state = self._journal.settled()
        with self._journal.lock:
            return {pointer: self._fate(state, pointer) for pointer in pointers}

    def _fate(self, state: TransactionState, pointer: int) -> Fate:
        if self._elsewhere and pointer > state.last_pointer:
            raise StorageUnavailable(
                f"The transaction {pointer} was begun at another instance, which coordinates by "
                "now. Try again.",
                transaction=pointer,
            )
        return state.fate(pointer)

    def bound(self) -> int:
        """A pointer up to which everything is decided for every transaction in progress."""
        with self._journal.lock:
            state = self._journal.state
            bounds = [transaction.began.bound for transaction in state.open.values()]
            return min(bounds, default=state.last_pointer)

    def is_intended(self, id: int) -> bool:
        """True if the commit of a transaction is under way."""
        transaction = self.state.open.get(id)
        return transaction is not None and transaction.intended

    def knows(self, pointer: int) -> bool:
        """True if a pointer was issued here and its transaction has ended, as far as is
        remembered."""
        state = self.state
        return pointer in state.ended or state.is_invalid(pointer) or state.is_lost(pointer)

    def _has_ended(self, id: int) -> bool:
        return id not in self.state.in_progress

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction that was begun here ends, at once if it has.
        Returns a cancel."""
        with self._journal.lock:
            id = self.state.in_progress.get(pointer)
            if id is not None:
                return self._watchers.add(id, callback)
        callback()
        return lambda: None

    def undecided_since_ms(self, now_ms: int, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided, unless
        the clock went back by more than an hour meanwhile."""
        oldest = next(iter(self.state.in_progress), None)
        since_ms = now_ms if oldest is None else min(now_ms, oldest // POINTERS_PER_MS)
        if foreign:
            since_ms = min(since_ms, now_ms - self._lifetime_ms)
        return since_ms - LATE_MS

    def wake_all(self) -> None:
        """Let every caller that waits for the end of a transaction look again."""
        self._watchers.wake_if(lambda id: True)
