"""A state machine over a journal: the journal holds the events, the state follows from them.

    load: replay ─▶ decide ─▶ write: append ─▶ apply ─▶ answer
      ▲                 │        └─ fails ─▶ invalidate ─┐
      │                 └─▶ note: apply, append with the next write
      └──────────────────────────────────────────────────┘

The room that owns the state has a *turn*, a lock of its own, and holds it while it loads, decides,
writes and takes snapshots. `lock` is held for a moment only, whenever the state changes.

Invariants

* While the state is known, it is the replay of the journal, with the events noted since the last
  write applied on top.
* No event is applied before the journal has it, except noted ones, and those of an owner of a
  `Replayed`, which writes itself. They may be lost: nothing may depend on them until a write has
  succeeded.
* After a failed write, nothing is decided, written or noted until the journal was read again.
* A snapshot can be cut anywhere: nothing is lost.

Proof. By induction over the steps taken with the turn held. *Load*: the state is the replay, by
definition; an invalidation during the replay ends the term that was read, so the state stays
unknown. *Write*: the journal gets the noted and the decided events, in this order, and the state
follows only if the journal got all of them; in every other case, whatever is stored, the term ends,
and the first invariant says nothing of a state that is not known. *Snapshot*: noted events are
written first, so the snapshot repeats the content of the journal. Until the journal begins at the
snapshot, a replay gives the state before it, and the beginning of a snapshot, or all of it, changes
nothing of that. From then on a replay gives the snapshot, which is the state. After a failure the
term ends.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

from tms.errors import StorageUnavailable
from tms.model.topic import Durability

LOADS_MAX = 3  # before `load` raises
SNAPSHOT_BYTES = 1 << 20  # of a snapshot, in one write
S = TypeVar("S")
E = TypeVar("E")
Event = TypeVar("Event", contravariant=True)
Cells = tuple[bytes | None, bytes | None]  # key and value of an entry


class JournalEntry(NamedTuple):
    """A value with its key, and the write pointer of the transaction that wrote it (0: none)."""

    key: bytes | None
    value: bytes | None
    write_pointer: int


class Journal(Protocol):
    """The port of a journal: entries in order. `topics.internal_topic` implements it."""

    def write(self, entries: Sequence[Cells], durability: Durability) -> object:
        """Append entries, all or none. After an error they may be stored or not, but they will not
        appear after the next replay has begun."""
        ...

    def replay(self) -> Iterator[JournalEntry]:
        """The entries from the beginning of the journal."""
        ...

    def snapshot(self, entries: Iterable[Sequence[Cells]], before_ms: int | None) -> None:
        """Store entries, synced, each sequence all or none, and let the journal begin with the
        first of them. Earlier entries may be dropped; with `before_ms`, only those older than
        it."""
        ...


class StateMachine(Protocol[S, Event]):
    """The room's definition of its state. An event is a decision."""

    def replay(self, entries: Iterator[JournalEntry]) -> S:
        """The state that follows from these entries."""
        ...

    def apply(self, state: S, event: Event) -> None:
        """Change the state by an event."""
        ...

    def encode(self, events: Sequence[Event]) -> Iterable[Sequence[Cells]]:
        """Events as entries; each sequence is to be stored all or none."""
        ...


class Replayed(Generic[S]):
    """A state that a replay of its journal gives. Its owner writes the journal only in a term that
    is loaded, and invalidates it if a write fails. Any thread may use `known`, `loaded`, `term`,
    `state` and `invalidate`; the other methods require the turn."""

    state: S  # as of the last load; unset before the first one

    def __init__(
        self,
        journal: Journal,
        replay: Callable[[Iterator[JournalEntry]], S],
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._journal = journal
        self._replay = replay
        self._lock = threading.Lock() if lock is None else lock
        self.term = object()  # until it is invalidated
        self.loaded: object = None  # the term whose entries the state has

    @property
    def known(self) -> bool:
        """True if the state follows from the journal; else `load` has to read it."""
        return self.loaded is self.term

    def invalidate(self) -> None:
        """Require that the journal is read again before anything else is decided."""
        self.term = object()

    def load(self) -> S:
        """The state, read from the journal unless it is known. Raises `StorageUnavailable`."""
        for _ in range(LOADS_MAX):
            if self.known:
                return self.state
            term = self.term
            state = self._replay(self._journal.replay())
            with self._lock:
                self._take(state)
                self.loaded = term
        self.require_known()
        return self.state

    def require_known(self) -> None:
        """Raises `StorageUnavailable` if the journal has to be read."""
        if not self.known:
            raise unreadable()

    def _take(self, state: S) -> None:
        """Take a state that was read. The caller holds the lock."""
        self.state = state


class Journaled(Replayed[S], Generic[S, E]):
    """A state machine that applies an event once the journal has it. `note` requires the lock."""

    def __init__(
        self,
        journal: Journal,
        machine: StateMachine[S, E],
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(journal, machine.replay, lock)
        self._machine = machine
        self._unwritten: list[E] = []  # noted

    def _take(self, state: S) -> None:
        super()._take(state)
        self._unwritten = []

    def note(self, event: E) -> None:
        """Apply an event now, and journal it with the next write."""
        if self.loaded is not self.term:
            raise unreadable()
        self._machine.apply(self.state, event)
        self._unwritten.append(event)

    def write(
        self,
        events: Sequence[E],
        durability: Durability,
        applied: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Journal the events and apply them; each of `applied` is called under the same lock."""
        if self.loaded is not self.term:
            raise unreadable()
        try:
            with self._lock:
                noted, self._unwritten = self._unwritten, []
            for entries in self._machine.encode([*noted, *events] if noted else events):
                self._journal.write(entries, durability)
            with self._lock:
                for event in events:
                    self._machine.apply(self.state, event)
                for callback in applied:
                    callback()
        except BaseException:  # it may have been stored all the same
            self.invalidate()
            raise

    def snapshot(self, events_of: Callable[[S], Iterable[E]], before_ms: int | None = None) -> None:
        """Let a replay begin with the present state. `events_of` gives events that lead to the
        state from nothing, and from the state itself. `Journal.snapshot` defines `before_ms`."""
        self.load()
        try:
            with self._lock:
                events = list(events_of(self.state))
                noted, self._unwritten = self._unwritten, []
            encode = self._machine.encode
            for written in encode(noted) if noted else ():
                self._journal.write(written, Durability.WRITTEN)
            entries = (entry for event in events for batch in encode([event]) for entry in batch)
            self._journal.snapshot(together(entries), before_ms)
        except BaseException:
            self.invalidate()
            raise


def together(entries: Iterable[Cells]) -> Iterator[list[Cells]]:
    """Batches of a snapshot's entries, each of at most `SNAPSHOT_BYTES` or one entry."""
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
