"""A user's own data in a transaction.

    start ─▶ the user writes ─▶ changes ─▶ persist ─▶ the messages, and the commit ─▶ post_commit
                   └──────────── anything fails ─▶ roll_back

Invariants

* Messages are the last to persist: they go with the commit itself.
* After a failure every participant is rolled back, the last one first; then the transaction is
  aborted, or made invalid if one could not be.
* What happens after the commit cannot undo it.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from tms.model.transaction import Commit

C_co = TypeVar("C_co", covariant=True)


class Transacted(Protocol):
    """The transaction, as participants know it."""

    @property
    def id(self) -> int:
        """Its id, which is also its write pointer; begins it."""
        ...


class Participant(Protocol[C_co]):
    """Data that commits with one transaction, or not at all. For one transaction only."""

    def start(self, transaction: Transacted) -> C_co:
        """The transaction begins here; what the user writes with."""
        ...

    def changes(self) -> Iterable[bytes]:
        """The keys that were changed: of two transactions at a time that changed the same one,
        only one commits."""
        ...

    def persist(self, request: Commit) -> Commit:
        """Store what was written, as durably as the commit will be. `request` is what follows;
        returns it, or what is to be sent in its place."""
        ...

    def post_commit(self) -> None:
        """The transaction is committed."""
        ...

    def roll_back(self) -> None:
        """Take back what was written and what was stored. May be called more than once."""
        ...
