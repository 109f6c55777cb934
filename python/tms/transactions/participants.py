"""What else a commit changes, besides messages: the port of those who keep it.

    verify ─▶ store, with the write pointer ─▶ verify ─▶ the commit is journaled ─▶ committed
                                  └─ anything fails ─▶ ended

Invariants

* What `store` writes counts exactly if the transaction commits.
* After `store` one of `committed` and `ended` follows, also if it has raised. `ended` may come
  while the transaction is still open, or although it is committed: its fate says how it ended.
* `verify` for the second time and `committed` are called while nothing else commits, and must not
  wait for a commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, PositionChange


class CommitParticipant(Protocol):
    """A state that commits change, kept in a journal of its own. Thread-safe."""

    @property
    def journal_name(self) -> TopicName:
        """The topic of its journal."""
        ...

    @property
    def known(self) -> bool:
        """Whether asking needs no reading."""
        ...

    def concerns(self, request: Commit) -> bool:
        """Whether a commit changes something here; nothing else is asked if not."""
        ...

    def durability_of(self, request: Commit) -> Durability:
        """How durable its changes are unless the request says so."""
        ...

    def keys_of(self, request: Commit) -> Iterable[bytes]:
        """What it changes: of two transactions at a time that change the same, one commits."""
        ...

    def verify(self, request: Commit, id: int) -> None:
        """Raises what keeps it from being done; `id` is 0 before it is stored."""
        ...

    def store(
        self, request: Commit, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        """Write what changes, without changing it; the calling thread writes what needs at most
        `inline`."""
        ...

    def committed(self, request: Commit, id: int) -> None:
        """It is committed."""
        ...

    def ended(self, request: Commit, id: int) -> None:
        """It failed, as far as is known."""
        ...

    def invalidate(self) -> None:
        """The outcome of a commit was looked up in its journal, or what `store` wrote failed: the
        journal here may have what is not known, or have another owner. Read it again."""
        ...


class PositionsParticipant(CommitParticipant, Protocol):
    """Who keeps the positions of groups, which commits move, and others as well."""

    def of(self, group: str, topic: TopicName) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        ...

    def groups(self) -> list[tuple[str, TopicName]]:
        """Which groups have positions in which topics, but for TMS's own."""
        ...

    def move(self, changes: Sequence[PositionChange], durability: Durability) -> None:
        """Move positions, all or none, while nothing is committed. Raises `Conflict`, `Fenced`."""
        ...

    def forget(self, group: str, topic: TopicName) -> None:
        """Forget where a group stands in a topic, while nothing is committed."""
        ...

    def shorten(self, entries_max: int) -> None:
        """Shorten the journal if a start would have more entries to read."""
        ...
