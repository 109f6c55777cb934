"""One transaction in progress, and what to say of one that is not."""

from msgspec import Struct

from tms.errors import TransactionEnded, TransactionNotFound, TransactionTimedOut
from tms.transactions.edits import Began, Outcome


class Open(Struct, eq=False):
    """A transaction in progress."""

    began: Began
    intended: bool  # its messages are being stored
    checkpoints: tuple[int, ...] = ()
    changes: tuple[bytes, ...] | None = None  # once prepared

    @property
    def pointers(self) -> tuple[int, ...]:
        """Its id and those of its checkpoints."""
        return (self.began.id, *self.checkpoints)

    @property
    def write_pointer(self) -> int:
        """What it writes with now."""
        return self.checkpoints[-1] if self.checkpoints else self.began.id


def unknown(id: int) -> TransactionNotFound:
    """The error for an id that nobody knows."""
    return TransactionNotFound(
        f"There is no transaction {id}. It never began, or ended too long ago to be known.",
        transaction=id,
    )


def not_open(id: int, outcome: Outcome) -> TransactionEnded:
    """The error for a transaction that has ended."""
    if outcome is Outcome.TIMED_OUT:
        return TransactionTimedOut(
            f"The transaction {id} was open for longer than its time-out. Do it again, and give "
            "it more time if it needs that.",
            transaction=id,
            outcome=outcome.value,
        )
    return TransactionEnded(
        f"The transaction {id} has ended: it is {outcome.value}.",
        transaction=id,
        outcome=outcome.value,
    )
