"""The port through which topics learn the outcomes of transactions.

Invariants

* Topics ask one `Decisions` at a time, which is known before anything of a transaction is stored or
  read. It changes when this process begins or ceases to coordinate transactions.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from tms.model.snapshot import Fate


class Decisions(Protocol):
    """The outcomes of transactions."""

    def fate(self, pointer: int, issued: bool) -> Fate:
        """The outcome of the transaction with this write pointer; `issued`: by this engine."""
        ...

    def fate_at_once(self, pointer: int, issued: bool) -> Fate:
        """As `fate`, without waiting. Raises `UnknownOutcome`."""
        ...

    def learn(self, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        """Ask now for the outcomes of these transactions, so that a caller that saw a commit
        acknowledged sees its messages. May wait for the journal of transactions. Raises
        `Unavailable`, `StorageUnavailable`."""
        ...

    def confirm(self) -> None:
        """Make sure that the known outcomes are up to date. Raises `StorageUnavailable`."""
        ...

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction that was begun here ends, at once if it has.
        Returns a cancel."""
        ...

    def undecided_since_ms(self, now_ms: int, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided; `foreign`
        ones may have written."""
        ...


class DecisionSource:
    """The decisions that topics ask now; `Topics.decide_by` changes them."""

    current: Decisions

    def switch(self, decisions: Decisions) -> None:
        """Ask these decisions from now on."""
        self.current = decisions
