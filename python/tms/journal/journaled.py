"""A state machine over a journal: the journal has what happened, the state is what follows from it.

    load: replay ─▶ decide ─▶ write: append ─▶ apply ─▶ answer
      ▲                 │        └─ fails ─▶ invalidate ─┐
      │                 └─▶ note: apply, append with the next write
      └──────────────────────────────────────────────────┘

The room that has the state has a *turn*, a lock of its own, and holds it while it loads, decides,
writes and takes snapshots. `lock` is held for a moment only, whenever the state changes.

Invariants

* While the state is known, it is what a replay of the journal gives, and what was noted since the
  last write on top of it.
* Nothing is applied before the journal has it. What is noted may be lost: nothing may rest on it
  until a write has succeeded.
* After a write that failed nothing is decided, written or noted until the journal was read again.
* A snapshot can be cut anywhere: nothing is lost.

Proof. By induction over what is done with the turn. *Load*: the state is the replay, by definition;
an invalidation that comes meanwhile ends the term that was read, so the state stays unknown.
*Write*: the journal gets what was noted and what was decided, in this order, and the state follows
only if it got everything; in every other case, whatever is stored, the term ends, and the first
invariant says nothing of a state that is not known. *Snapshot*: what was noted is written first, so
the snapshot repeats what the journal has. Until the journal begins at the snapshot, a replay gives
the state before it, and the beginning of a snapshot, or all of it, changes nothing of that. From
then on a replay gives the snapshot, which is the state. After a failure the term ends.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

from tms.errors import StorageUnavailable
from tms.model.topic import Durability

LOADS_MAX = 3  # before who asks is told to come again
SNAPSHOT_BYTES = 1 << 20  # of a snapshot are written together
S = TypeVar("S")
E = TypeVar("E")
Event = TypeVar("Event", contravariant=True)
Cells = tuple[bytes | None, bytes | None]  # key and value of an entry


class JournalEntry(NamedTuple):
    """A value with its key, and the transaction that wrote it (0: none)."""

    key: bytes | None
    value: bytes | None
    write_pointer: int


class Journal(Protocol):
    """Where entries are kept in order; see `topics.internal_topic`."""

    def write(self, entries: Sequence[Cells], durability: Durability) -> object:
        """Store entries, all or none, behind all before. After an error they may be there, or
        not, but will not come later than the next replay."""
        ...

    def replay(self) -> Iterator[JournalEntry]:
        """The entries from where it begins."""
        ...

    def snapshot(self, entries: Iterable[Sequence[Cells]], before_ms: int | None) -> None:
        """Store entries, synced, each sequence all or none, and begin with the first of them. What
        was before may be forgotten, with `before_ms` only what is older than that."""
        ...


class StateMachine(Protocol[S, Event]):
    """What a room says of its state. An event is what was decided."""

    def replay(self, entries: Iterator[JournalEntry]) -> S:
        """The state that follows from these entries."""
        ...

    def apply(self, state: S, event: Event) -> None:
        """An event has happened."""
        ...

    def encode(self, events: Sequence[Event]) -> Iterable[Sequence[Cells]]:
        """Events as entries, each sequence to be stored all or none."""
        ...


class Journaled(Generic[S, E]):
    """A state, and the journal that it follows from. `known`, `term`, `state` and `invalidate` are
    for everybody, `note` for who holds the lock, the rest for who holds the turn."""

    state: S  # as it was known last; there is none before it was loaded

    def __init__(
        self,
        journal: Journal,
        machine: StateMachine[S, E],
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._journal = journal
        self._machine = machine
        self._lock = threading.Lock() if lock is None else lock
        self._unwritten: list[E] = []  # noted
        self.term = object()  # until it is invalidated
        self._loaded: object = None  # the term whose entries the state has

    @property
    def known(self) -> bool:
        """Whether the state is what the journal says: else `load` reads."""
        return self._loaded is self.term

    def invalidate(self) -> None:
        """Let the journal be read again before anything else is decided."""
        self.term = object()

    def load(self) -> S:
        """The state, read from the journal unless it is known. Raises `StorageUnavailable`."""
        for _ in range(LOADS_MAX):
            if self.known:
                return self.state
            term = self.term
            state = self._machine.replay(self._journal.replay())
            with self._lock:
                self.state, self._unwritten, self._loaded = state, [], term
        self.require_known()
        return self.state

    def require_known(self) -> None:
        """Raises `StorageUnavailable` if the journal has to be read."""
        if not self.known:
            raise unreadable()

    def note(self, event: E) -> None:
        """Apply now, and journal with the next write."""
        if self._loaded is not self.term:
            raise unreadable()
        self._machine.apply(self.state, event)
        self._unwritten.append(event)

    def write(
        self,
        events: Sequence[E],
        durability: Durability,
        applied: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Journal and apply; each of `applied` is called at the same moment."""
        if self._loaded is not self.term:
            raise unreadable()
        try:
            with self._lock:
                noted, self._unwritten = self._unwritten, []
            self._append([*noted, *events] if noted else events, durability)
            with self._lock:
                for event in events:
                    self._machine.apply(self.state, event)
                for callback in applied:
                    callback()
        except BaseException:  # it may have been stored all the same
            self.invalidate()
            raise

    def snapshot(self, events_of: Callable[[S], Iterable[E]], before_ms: int | None = None) -> None:
        """Let a replay begin with the state as it is now: with events that lead to it from nothing,
        and from itself. See `Journal.snapshot`."""
        self.load()
        try:
            with self._lock:
                events = list(events_of(self.state))
                noted, self._unwritten = self._unwritten, []
            if noted:
                self._append(noted, Durability.WRITTEN)
            encode = self._machine.encode
            entries = (entry for event in events for batch in encode([event]) for entry in batch)
            self._journal.snapshot(together(entries), before_ms)
        except BaseException:
            self.invalidate()
            raise

    def _append(self, events: Sequence[E], durability: Durability) -> None:
        for entries in self._machine.encode(events):
            self._journal.write(entries, durability)


def together(entries: Iterable[Cells]) -> Iterator[list[Cells]]:
    """Entries of a snapshot, as many together as may be written together."""
    batch: list[Cells] = []
    size = 0
    for key, value in entries:
        size += len(key or b"") + len(value or b"")
        if batch and size > SNAPSHOT_BYTES:
            yield batch
            batch, size = [], len(key or b"") + len(value or b"")
        batch.append((key, value))
    if batch:
        yield batch


def unreadable() -> StorageUnavailable:
    """The error while a journal has to be read."""
    return StorageUnavailable("A write of the journal failed, and it has to be read again.")
