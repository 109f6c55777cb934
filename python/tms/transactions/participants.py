"""The participants of a commit: the states that it changes besides messages. Also the ports for
commits and positions of TMS's own.

    verify ─▶ prepare: held, stored with the write pointer ─▶ the commit is journaled ─▶ committed
                                           └─ anything fails ─▶ ended

Invariants

* A prepared change counts exactly if its transaction commits. Until the fate of the transaction is
  known the change is held: no other change replaces it, even if the owner of the state or the
  coordinator dies.
* The owner of the state asks for the fate of the transaction; `committed` and `ended` only save the
  question.
* `require_prepared` and `committed` are called while nothing else commits, and must not wait for a
  commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tms.log.groups import Stamp
from tms.log.pending import Pending, PendingAppend
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import (
    Commit,
    CommitResult,
    CommittedPosition,
    Owner,
    PositionKey,
)


class CommitParticipant(Protocol):
    """The change of a commit in one of the states of a shard."""

    @property
    def journal_name(self) -> TopicName:
        """The topic of its journal."""
        ...

    @property
    def known(self) -> bool:
        """True if `verify` reads nothing and asks no other instance."""
        ...

    def keys(self) -> Iterable[bytes]:
        """The keys that it changes: of two concurrent transactions that change one key, one
        commits."""
        ...

    def verify(self) -> Durability:
        """The durability that the change needs unless the commit gives one. Raises the error that
        prevents the change."""
        ...

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        """Hold the change, and write it without applying it; the calling thread writes what takes
        at most the durability `inline`. Raises like `verify`."""
        ...

    def require_prepared(self, id: int) -> None:
        """Raise the error that prevents a prepared change from being committed."""
        ...

    def committed(self, id: int) -> None:
        """Apply the change: the transaction is committed."""
        ...

    def ended(self, id: int) -> None:
        """Find out the outcome: the commit failed, as far as is known."""
        ...

    def invalidate(self) -> None:
        """Read the journal again: the write of `prepare` failed, so the journal may have it, or
        another owner."""
        ...


CommitParticipants = Callable[[Commit], Sequence[CommitParticipant]]  # of a commit


class InternalCommits(Protocol):
    """Transactions, at whichever instance coordinates them, for commits that TMS makes itself."""

    def submit_internal(self, request: Commit, begun: Callable[[], None]) -> Pending[CommitResult]:
        """Begin a commit of blocks that were made here, of messages that were checked when they
        were published. `begun` is called before anything is stored, and may raise. An error of the
        answer does not say that the commit has failed, or will."""
        ...

    def durable(self) -> AbstractContextManager[None]:
        """Make every commit so far durable. If this process coordinates, no transaction is decided
        within the context."""
        ...


class InternalPositions(Protocol):
    """The positions of TMS's own groups, in the shard of the queue or topic that moves them."""

    def positions(self, topic: TopicName, group: str) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        ...

    def committed_in(self, topic: TopicName, group: str) -> Mapping[int, CommittedPosition]:
        """A group's positions in a topic, with their metadata."""
        ...

    def take(self, key: PositionKey) -> tuple[Owner, Position | None]:
        """Make a new owner of a position, and return it with the position. From then on only
        changes that name this owner move it; no change that began before is applied later."""
        ...
