"""The state of transactions over its journal.

    decide (state) ─▶ journal ─▶ apply

Two locks: `writing` is held by whoever decides something that goes into the journal, until it is
applied; `lock` guards the state and is held for microseconds only, never during I/O. Who takes both
takes `writing` first.

Invariants

* Nothing is true before the journal has it; who reads meanwhile sees the state before. Only that
  a commit in one request began, which holds readers back and no more, is journaled with the next
  write: if there is none, its pointer counts as lost.
* Pointers are given only below what a synced `Reserved` covers, so none is ever given twice,
  whatever a power loss takes.
* After a failed write of the journal the state is not trusted: it is read from the journal again
  before anything else is decided, behind a write that succeeded, so that whatever became of the
  failed one is settled.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tms.clock import Clock
from tms.events import EventLog
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import Durability
from tms.transactions.edits import (
    Aborted,
    Began,
    Committed,
    Edit,
    Invalidated,
    Kept,
    Outcome,
    Reserved,
    Revoked,
    Stored,
    decode_edits,
    encode_edits,
)
from tms.transactions.state import TransactionState
from tms.transactions.state_snapshot import parts, restore

RESERVE_MS = 10_000
SLACK_MS = 60_000  # the clock of the journal may be behind that of the pointers
ENTRY_BYTES = 4 << 20  # more is written as several entries
_log = EventLog(__name__)


class EditLog(Protocol):
    """Where edits are kept."""

    def write(self, entries: Sequence[bytes], durability: Durability) -> None:
        """Append entries, and wait until they are stored."""
        ...

    def read(self) -> Iterator[bytes]:
        """All entries since the last `keep`, in order."""
        ...

    def keep(self, entries: Sequence[bytes]) -> None:
        """Append entries, synced, from which `read` begins from now on."""
        ...

    def since(self, time_ms: int) -> Iterator[bytes]:
        """All entries that are still there and were written at or after a time."""
        ...


class Ended(NamedTuple):
    """How a transaction ended, None where nobody knows, and where the blocks of its commit are."""

    outcome: Outcome | None
    blocks: tuple[Stored, ...] = ()


class JournaledState:
    """The state, its journal, and their locks."""

    def __init__(
        self,
        log: EditLog,
        clock: Clock,
        is_stored: Callable[[Stored], bool],
        make_durable: Callable[[Iterable[tuple[int, int]]], None],
        reloaded: Callable[[], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._is_stored = is_stored
        self._make_durable = make_durable
        self._reloaded = reloaded
        self.writing = threading.Lock()
        self.lock = threading.Lock()
        self.state = TransactionState()
        self.trusted = False
        self.used = False  # whether anything was ever journaled
        self._unwritten: list[Edit]  # applied; the next write takes them along
        self.length = 0  # of the journal, in edits
        self._places: set[tuple[int, int]] = set()  # that its commits stored blocks in
        self._load()

    def settled(self) -> TransactionState:
        """The state, for asking."""
        if not self.trusted:
            with self.writing:
                self.ready()
        return self.state

    def ready(self) -> TransactionState:
        """The state, for deciding. The caller holds `writing`."""
        if not self.trusted:
            barrier = [Reserved(self.state.reserved)]
            self._log.write([encode_edits(barrier)], Durability.SYNCED)
            self._load()
            self._reloaded()
        return self.state

    def has_room(self, now_ms: int, room_ms: int = 1) -> bool:
        """Whether pointers can be given for so long without asking the journal."""
        last = self.state.next_pointer(now_ms) + room_ms * POINTERS_PER_MS
        return self.trusted and last < self.state.reserved

    def reserve(self, now_ms: int, room_ms: int = 1) -> TransactionState:
        """The state, with room for pointers. The caller holds `writing`."""
        state = self.ready()
        if not self.has_room(now_ms, room_ms):
            upto = state.next_pointer(now_ms) + RESERVE_MS * POINTERS_PER_MS
            self.write([Reserved(upto)], Durability.SYNCED)
        return state

    def note(self, edit: Edit) -> None:
        """Apply, and journal with the next write. The caller holds `lock`."""
        self.state.apply(edit)
        self._unwritten.append(edit)

    def write(
        self,
        edits: Sequence[Edit],
        durability: Durability,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        """Journal and apply; `applied` is called at the same moment. The caller holds `writing`."""
        with self.lock:
            along, self._unwritten = self._unwritten, []
        try:
            self._log.write(list(_entries([*along, *edits])), durability)
        except BaseException:
            self.trusted = False
            raise
        self.used = True
        self.length += len(along) + len(edits)
        self._note_places(edits)
        with self.lock:
            for edit in edits:
                self.state.apply(edit)
            applied()

    def shorten(self) -> None:
        """Keep the state in the journal, so that a start reads it from here."""
        with self.writing:
            state = self.ready()
            self._make_durable(self._places)  # nothing before can be torn any more
            with self.lock:
                entries = [encode_edits([part]) for part in parts(state)]
                self._unwritten.clear()
            try:
                self._log.keep(entries)
            except BaseException:
                self.trusted = False  # what began and was not written yet is in no journal now
                raise
            self.length, self._places = 0, set()

    def settle(self) -> None:
        """Make every commit so far durable. The caller holds `writing`."""
        self._make_durable(self._places)
        self.write([], Durability.SYNCED)

    def search(self, id: int, long_ms: int) -> Ended:
        """Whether a transaction committed or was aborted, as far as the journal says it. What is
        invalid, the state knows for ever."""
        began_ms = id // POINTERS_PER_MS
        found = Ended(None)
        for entry in self._log.since(began_ms - SLACK_MS):
            for edit in decode_edits(entry):
                match edit:
                    case Committed() if edit.id == id:
                        found = Ended(Outcome.COMMITTED, edit.blocks)
                    case Aborted() if edit.id == id:
                        found = Ended(Outcome.ABORTED)
                    case Began() if edit.id > (began_ms + long_ms) * POINTERS_PER_MS:
                        return found
        return found

    def _note_places(self, edits: Iterable[Edit]) -> None:
        for edit in edits:
            if isinstance(edit, Committed):
                self._places.update((block.uid, block.partition) for block in edit.blocks)

    def _load(self) -> None:
        """Read everything from the journal; what ended without a word is settled."""
        edits = [edit for entry in self._log.read() for edit in decode_edits(entry)]
        self.length, self._places = len(edits), set()
        self._note_places(edits)
        revoked = {id for edit in edits if isinstance(edit, Revoked) for id in edit.ids}
        torn = self._torn(edits) - revoked
        state = TransactionState()
        begins = bool(edits) and isinstance(edits[0], Kept)
        gone = revoked | torn
        for edit in edits:
            if isinstance(edit, Kept):
                if begins:  # another one repeats what is here
                    restore(state, edit)
                    begins = not edit.last
            elif isinstance(edit, Committed) and edit.id in gone:
                state.apply(Invalidated((edit.id,)))
            else:
                state.apply(edit)
        self.used = bool(edits)
        if edits:
            new: list[Edit] = [Revoked(tuple(sorted(torn)))] if torn else []
            new += state.recovered(self._clock.now_ms())
            for edit in new:
                state.apply(edit)
            if new:
                self._log.write(list(_entries(new)), Durability.SYNCED)
        with self.lock:
            self.state, self.trusted, self._unwritten = state, True, []
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


def _entries(edits: list[Edit]) -> Iterator[bytes]:
    """The edits as entries of the journal, as few as can be."""
    entry = encode_edits(edits)
    if len(entry) <= ENTRY_BYTES or len(edits) < 2:
        yield entry
        return
    half = len(edits) // 2
    yield from _entries(edits[:half])
    yield from _entries(edits[half:])
