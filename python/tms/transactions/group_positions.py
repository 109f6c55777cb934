"""The positions of groups, kept in the journal `system:_positions`.

Invariants

* What is here is what the journal has of plain changes and of committed transactions.
* A change is checked, written and applied without another one in between.
* A change by a member of a group counts only while the partition is that member's.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, PositionChange, PositionKey
from tms.topics.internal_topic import InternalTopic
from tms.transactions.positions import Positions, decode_entry, encode_key

CHUNK = 1_000


class MemberFence(Protocol):
    """Who knows the members of groups. They do not change while something is committed."""

    @property
    def known(self) -> bool:
        """Whether `check` needs no reading."""
        ...

    def check(self, changes: Sequence[PositionChange]) -> None:
        """Raises `Fenced` for a change by a member that has not the partition now."""
        ...


class GroupPositions:
    """Where groups stand. Thread-safe."""

    def __init__(self, journal: InternalTopic) -> None:
        self._journal = journal
        self.fence: MemberFence | None = None
        self._known: Positions | None = None
        self.length = 0  # of the journal, in entries
        self._lock = threading.RLock()

    @property
    def known(self) -> bool:
        """Whether asking needs no reading."""
        return self._known is not None and (self.fence is None or self.fence.known)

    def load(self) -> Positions:
        """All positions, read from the journal unless they are known. The caller holds the lock,
        or is alone."""
        if self._known is None:
            found, length = Positions(), 0
            for entry in self._journal.replay():
                found.apply(*decode_entry(entry.key, entry.value))
                length += 1
            self._known, self.length = found, length
        return self._known

    def distrust(self) -> None:
        """What became of a commit was looked up: the positions that it moved are looked up too."""
        self._known = None

    def of(self, group: str, topic: TopicName) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        with self._lock:
            return self.load().of(group, topic)

    def groups(self) -> list[tuple[str, TopicName]]:
        """Which groups have positions in which topics."""
        with self._lock:
            return self.load().groups()

    def check(self, changes: Sequence[PositionChange]) -> None:
        """Raises `Conflict` when a position is not the expected one, `Fenced` when who moves it
        has lost the partition."""
        if changes:
            if self.fence is not None:
                self.fence.check(changes)
            with self._lock:
                self.load().check(changes)

    def apply(self, changes: Sequence[PositionChange]) -> None:
        """These changes were committed."""
        with self._lock:
            if self._known is not None:
                for change in changes:
                    self._known.apply(change.key, change.position)

    def submit(
        self,
        changes: Sequence[PositionChange],
        durability: Durability,
        stamp: Stamp,
        inline: Durability = Durability.SYNCED,
    ) -> PendingAppend:
        """Write changes, without applying them; the calling thread writes what needs at most
        `inline`."""
        entries = [(encode_key(one.key), str(one.position).encode()) for one in changes]
        self.length += len(changes)
        return self._journal.append(entries, durability, stamp, inline)

    # -- as a part of commits ----------------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        return self._journal.name

    def concerns(self, request: Commit) -> bool:
        return bool(request.positions)

    def durability_of(self, request: Commit) -> Durability:
        return Durability.SYNCED

    def keys_of(self, request: Commit) -> Iterable[bytes]:
        return (b"position/" + encode_key(one.key) for one in request.positions)

    def verify(self, request: Commit, id: int) -> None:
        self.check(request.positions)

    def store(
        self, request: Commit, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        return self.submit(request.positions, durability, stamp, inline)

    def committed(self, request: Commit, id: int) -> None:
        self.apply(request.positions)

    def ended(self, request: Commit, id: int) -> None:
        pass  # nothing was changed

    # -- outside of commits ------------------------------------------------------------------------

    def shorten(self) -> None:
        """Keep all positions in the journal, so that a start reads it from here. No commit is under
        way."""
        with self._lock:
            known = list(self.load().all())
            chunks = [known[at : at + CHUNK] for at in range(0, len(known), CHUNK)]
            self._journal.snapshot(
                [[(encode_key(key), str(at).encode()) for key, at in chunk] for chunk in chunks]
            )
            self.length = 0

    def move(self, changes: Sequence[PositionChange], durability: Durability) -> None:
        """Write and apply changes outside of a transaction, all or none. Raises `Conflict`."""

        def write() -> None:
            entries = [(encode_key(one.key), str(one.position).encode()) for one in changes]
            self._journal.write(entries, durability)
            self.apply(changes)

        with self._lock:
            self.check(changes)
            if changes:
                self._sure(write)

    def forget(self, keys: Sequence[PositionKey]) -> None:
        """Forget positions."""

        def write() -> None:
            self._journal.write([(encode_key(key), None) for key in keys], Durability.SYNCED)
            for key in keys:
                self.load().apply(key, None)

        with self._lock:
            if keys:
                self._sure(write)

    def _sure(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException:  # it may have been stored all the same
            self.distrust()
            raise
