"""Committed positions of groups, over the journal `system:_positions`: a participant of commits.

Invariants

* What is here is what the journal has of plain changes and of committed transactions.
* A change is checked, written and applied without another one in between.
* A change by a member of a group counts only while the partition is that member's.

What a transaction changes is written while it is open, under its write pointer, and is applied once
it has committed: the journal has it then, by the judge of its replay.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tms.groups.members import Members
from tms.groups.positions import Positions, decode_entry, encode_key
from tms.journal.journaled import Cells, Journaled, JournalEntry
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import SYSTEM_GROUPS, Commit, PositionChange, PositionKey
from tms.topics.internal_topic import InternalTopic
from tms.transactions.manager import TransactionManager

_Event = tuple[PositionKey, Position | None]


class _PositionsMachine:
    """The positions as they follow from the journal."""

    def replay(self, entries: Iterator[JournalEntry]) -> Positions:
        positions = Positions()
        for key, value, _ in entries:
            positions.apply(*decode_entry(key, value))
        return positions

    def apply(self, positions: Positions, event: _Event) -> None:
        positions.apply(*event)

    def encode(self, events: Sequence[_Event]) -> list[list[Cells]]:
        return [[(encode_key(key), None if at is None else str(at).encode()) for key, at in events]]


class GroupPositions:
    """Where groups stand. Thread-safe."""

    def __init__(
        self, journal: InternalTopic, manager: TransactionManager, members: Members
    ) -> None:
        self._journal = journal
        self._manager = manager
        self._members = members
        self._lock = threading.RLock()
        self._machine = _PositionsMachine()
        self._journaled = Journaled(journal, self._machine, self._lock)

    def load(self) -> Positions:
        """All positions, read from the journal unless they are known."""
        with self._lock:
            return self._journaled.load()

    def of(self, group: str, topic: TopicName) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        with self._lock:
            return self.load().of(group, topic)

    def groups(self) -> list[tuple[str, TopicName]]:
        """Which groups have positions in which topics, but for TMS's own."""
        with self._lock:
            return [
                group for group in self.load().groups() if not group[0].startswith(SYSTEM_GROUPS)
            ]

    # -- as a participant of commits ---------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        return self._journal.name

    @property
    def known(self) -> bool:
        return self._journaled.known and self._members.known

    def concerns(self, request: Commit) -> bool:
        return bool(request.positions)

    def durability_of(self, request: Commit) -> Durability:
        return Durability.SYNCED

    def keys_of(self, request: Commit) -> Iterable[bytes]:
        return (b"position/" + encode_key(change.key) for change in request.positions)

    def verify(self, request: Commit, id: int) -> None:
        self._check(request.positions)

    def store(
        self, request: Commit, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        (entries,) = self._machine.encode(_events(request.positions))
        return self._journal.append(entries, durability, stamp, inline)

    def committed(self, request: Commit, id: int) -> None:
        with self._lock:
            if self._journaled.known:
                for event in _events(request.positions):
                    self._journaled.state.apply(*event)

    def ended(self, request: Commit, id: int) -> None:
        pass  # nothing was changed

    def invalidate(self) -> None:
        self._journaled.invalidate()

    # -- outside of commits ------------------------------------------------------------------------

    def move(self, changes: Sequence[PositionChange], durability: Durability) -> None:
        """Move positions, all or none. Raises `Conflict`, `Fenced`."""
        with self._manager.alone(), self._lock:
            self._check(changes)
            if changes:
                self._journaled.write(_events(changes), durability)

    def forget(self, group: str, topic: TopicName) -> None:
        """Forget where a group stands in a topic: it begins anew."""
        with self._manager.alone(), self._lock:
            keys = [PositionKey(group, topic, partition) for partition in self.of(group, topic)]
            if keys:
                self._journaled.write([(key, None) for key in keys], Durability.SYNCED)

    def shorten(self, entries_max: int) -> None:
        """Let a start read the positions as they are now if it had more entries to read."""
        if self._journal.length > entries_max and not self._manager.is_committing:
            # the snapshot must not outlive the commits that it rests on
            with self._manager.alone(durable=True), self._lock:
                if not self._manager.is_committing:
                    self._journaled.snapshot(Positions.all)

    def _check(self, changes: Sequence[PositionChange]) -> None:
        """Raises `Conflict` when a position is not the expected one, `Fenced` when who moves it
        has lost the partition."""
        if changes:
            self._members.check(changes)
            self.load().check(changes)


def _events(changes: Iterable[PositionChange]) -> list[_Event]:
    return [(change.key, change.position) for change in changes]
