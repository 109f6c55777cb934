"""What else a commit changes, besides messages: the ports of those who keep it, and of those who
make commits of their own.

    verify ─▶ prepare: held, stored with the write pointer ─▶ the commit is journaled ─▶ committed
                                           └─ anything fails ─▶ ended

Invariants

* What `prepare` writes counts exactly if the transaction commits. Until its fate is known it is
  held: nobody else changes it, whatever becomes of the processes that keep it or the transaction.
* Whoever keeps it asks what became of the transaction; `committed` and `ended` only save the
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
from tms.model.transaction import Commit, CommitResult, Owner, PositionKey


class CommitShare(Protocol):
    """What a commit changes in one of the states that a shard has."""

    @property
    def journal_name(self) -> TopicName:
        """The topic of its journal."""
        ...

    @property
    def known(self) -> bool:
        """Whether asking needs no reading, and nobody else."""
        ...

    def keys(self) -> Iterable[bytes]:
        """What it changes: of two transactions at a time that change the same, one commits."""
        ...

    def verify(self) -> Durability:
        """How durable it has to be unless the commit says so. Raises what keeps it from being
        done."""
        ...

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        """Hold what changes, and write it without changing it; the calling thread writes what needs
        at most `inline`. Raises like `verify`."""
        ...

    def require_prepared(self, id: int) -> None:
        """Raise what keeps it from being committed although it was prepared."""
        ...

    def committed(self, id: int) -> None:
        """It is committed."""
        ...

    def ended(self, id: int) -> None:
        """It failed, as far as is known: its fate says how it ended."""
        ...

    def invalidate(self) -> None:
        """What `prepare` wrote failed: the journal may have it, or have another owner."""
        ...


Shares = Callable[[Commit], Sequence[CommitShare]]  # of a commit


class OwnCommits(Protocol):
    """Transactions, wherever they are kept, for those who make commits of their own."""

    def submit_own(self, request: Commit, begun: Callable[[], None]) -> Pending[CommitResult]:
        """Commit blocks that were made here, of messages that were checked when published. `begun`
        is called before anything is stored, and may raise what keeps it from being done. An error
        does not say that it is not, or will not be, committed."""
        ...

    def durable(self) -> AbstractContextManager[None]:
        """Every commit so far is durable. Where transactions are kept in this process, none is
        decided meanwhile."""
        ...


class OwnPositions(Protocol):
    """The positions of TMS's own groups, in the shard of what moves them."""

    def positions(self, topic: TopicName, group: str) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        ...

    def take(self, key: PositionKey) -> tuple[Owner, Position | None]:
        """From now on only who names this owner moves a position, which stands there: nothing that
        began to be moved before is moved any more."""
        ...
