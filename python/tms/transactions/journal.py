"""The journaled state of transactions, over the internal topic `system:_transactions`.

Two locks: a thread that decides something for the journal holds `writing` until it is applied;
`lock` guards the state and is held for microseconds only, never during I/O. `writing` is taken
before `lock`.

Invariants, besides those of `log.journaled`

* Only the begin of a transaction is noted without being written. It holds readers back and no more:
  if no write follows, its pointer counts as lost.
* Only pointers below a synced `Reserved` are issued, so none is ever issued twice, whatever a power
  loss takes.
* After a failed write the journal is read again behind a write that succeeded. So the outcome of
  the failed write is known, and the journal still belongs to this process.
* A replay settles in the journal what a crash left open, before anything is decided.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tms.log.journaled import Cells, Journaled, JournalEntry
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import Durability
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.topics.internal_topic import InternalTopic
from tms.topics.topics import Topics
from tms.transactions.edits import (
    Aborted,
    Began,
    Committed,
    Edit,
    Invalidated,
    Outcome,
    Reserved,
    Revoked,
    SnapshotPart,
    Stored,
    decode_edits,
    encode_edits,
)
from tms.transactions.state import TransactionState
from tms.transactions.state_snapshot import parts, restore

RESERVE_MS = 10_000
SLACK_MS = 60_000  # the clock of the journal may be behind that of the pointers
KEPT_MS = 49 * 3_600_000  # of the journal: a day of asking, after a day of being open
ENTRY_BYTES = 4 << 20  # more is written as several entries
_log = EventLog(__name__)


class Ended(NamedTuple):
    """The outcome of a transaction, None if it is unknown, and the places of the blocks of its
    commit."""

    outcome: Outcome | None
    blocks: tuple[Stored, ...] = ()


class CommitPlaces:
    """The partitions that commits have stored blocks in."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def is_stored(self, block: Stored) -> bool:
        """True if the log reaches as far as the block, or its topic is gone."""
        name = self._topics.registry.name_of(block.uid)
        if name is None:
            return True
        port = self._topics.port(name, block.partition)
        return port.reaches(name, block.partition, block.end_offset)

    def make_durable(self, places: Iterable[tuple[int, int]]) -> None:
        """Sync these partitions, by topic uid. The caller owns none of them: the owner of a
        partition may wait for the journal that the caller holds."""
        for uid, partition in places:
            name = self._topics.registry.name_of(uid)
            if name is not None:
                self._topics.port(name, partition).make_durable(name, partition)


class TransactionsMachine:
    """The state as it follows from the journal."""

    def __init__(self, topic: InternalTopic, clock: Clock, places: CommitPlaces) -> None:
        self._topic = topic
        self._clock = clock
        self._is_stored = places.is_stored
        self.length = 0  # of the journal, in edits
        self.places: set[tuple[int, int]] = set()  # that its commits stored blocks in

    def replay(self, entries: Iterator[JournalEntry]) -> TransactionState:
        edits = [edit for entry in entries for edit in decode_edits(entry.value or b"")]
        revoked = {id for edit in edits if isinstance(edit, Revoked) for id in edit.ids}
        torn = self._torn(edits) - revoked
        state = TransactionState()
        begins = bool(edits) and isinstance(edits[0], SnapshotPart)
        gone = revoked | torn
        self.length, self.places = 0, set()
        for edit in edits:
            if isinstance(edit, SnapshotPart):
                if begins:  # another one repeats what is here
                    restore(state, edit)
                    begins = not edit.last
            elif isinstance(edit, Committed) and edit.id in gone:
                self.apply(state, Invalidated((edit.id,)))
            else:
                self.apply(state, edit)
        if edits:
            self._settle(state, torn)
        return state

    def _settle(self, state: TransactionState, torn: set[int]) -> None:
        """Journal what a start finds out."""
        new: list[Edit] = [Revoked(tuple(sorted(torn)))] if torn else []
        new += state.recovered(self._clock.now_ms())
        for edit in new:
            self.apply(state, edit)
        if new:
            for entries in self.encode(new):
                self._topic.write(entries, Durability.SYNCED)
        if torn:
            _log.warning("transactions_lost_with_the_power", transactions=len(torn))

    def apply(self, state: TransactionState, edit: Edit) -> None:
        state.apply(edit)
        self.length += 1
        if isinstance(edit, Committed):
            for block in edit.blocks:
                self.places.add((block.uid, block.partition))

    def encode(self, edits: Sequence[Edit]) -> list[list[Cells]]:
        """The entries of these edits, as few as possible. Each is stored only after those before
        it."""
        entry = encode_edits(edits)
        if len(entry) <= ENTRY_BYTES or len(edits) < 2:
            return [[(None, entry)]]
        half = len(edits) // 2
        return [*self.encode(edits[:half]), *self.encode(edits[half:])]

    def _torn(self, edits: Iterable[Edit]) -> set[int]:
        """The commits whose blocks are not all stored, because the power failed before."""
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


class TransactionJournal(Journaled[TransactionState, Edit]):
    """The state, its journal, and their locks."""

    def __init__(
        self,
        topic: InternalTopic,
        clock: Clock,
        places: CommitPlaces,
        reloaded: Callable[[], None],
    ) -> None:
        self.writing = threading.Lock()
        self.lock = threading.Lock()
        self._topic = topic
        self._clock = clock
        self._transactions = TransactionsMachine(topic, clock, places)
        self._make_durable = places.make_durable
        self._reloaded = reloaded
        super().__init__(topic, self._transactions, self.lock)
        self.load()

    def is_long(self, edits_max: int) -> bool:
        """True if a start would read more edits than that, and a snapshot is worth it."""
        return self._transactions.length > edits_max and self._topic.is_worth_a_snapshot

    def settled(self) -> TransactionState:
        """The state, for reading."""
        if not self.known:
            with self.writing:
                self.ready()
        return self.state

    def ready(self) -> TransactionState:
        """The state, for deciding. The caller holds `writing`."""
        if not self.known:
            barrier = encode_edits([Reserved(self.state.reserved)])
            self._topic.renew([(None, barrier)])
            self.load()
            self._reloaded()
        return self.state

    def has_room(self, now_ms: int, room_ms: int = 1) -> bool:
        """True if pointers can be issued for so long without writing the journal."""
        last = self.state.next_pointer(now_ms) + room_ms * POINTERS_PER_MS
        return self.known and last < self.state.reserved

    def reserve(self, now_ms: int, room_ms: int = 1) -> TransactionState:
        """The state, with room for pointers. The caller holds `writing`."""
        state = self.ready()
        if not self.has_room(now_ms, room_ms):
            upto = state.next_pointer(now_ms) + RESERVE_MS * POINTERS_PER_MS
            self.write([Reserved(upto)], Durability.SYNCED)
        return state

    def shorten(self) -> None:
        """Let a start read the state as it is now."""
        with self.writing:
            self.ready()
            self._make_durable(self._transactions.places)  # nothing before can be torn any more
            self.snapshot(parts, max(0, self._clock.now_ms() - KEPT_MS))
            self._transactions.length, self._transactions.places = 0, set()

    def settle(self) -> None:
        """Make every commit so far durable. The caller holds `writing`."""
        self._make_durable(self._transactions.places)
        self.write([], Durability.SYNCED)

    def search(self, id: int, long_ms: int) -> Ended:
        """The outcome of a transaction that committed or was aborted, as far as the journal has it.
        The state has all invalid ones."""
        began_ms = id // POINTERS_PER_MS
        ended = Ended(None)
        for entry in self._topic.since(Position.time(max(0, began_ms - SLACK_MS))):
            for edit in decode_edits(entry.value or b""):
                match edit:
                    case Committed() if edit.id == id:
                        ended = Ended(Outcome.COMMITTED, edit.blocks)
                    case Aborted() if edit.id == id:
                        ended = Ended(Outcome.ABORTED)
                    case Began() if edit.id > (began_ms + long_ms) * POINTERS_PER_MS:
                        return ended
        return ended
