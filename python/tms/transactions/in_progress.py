"""The error for a transaction that is not in progress any more."""

from tms.errors import TransactionEnded, TransactionTimedOut
from tms.transactions.edits import Outcome


def not_open(id: int, outcome: Outcome) -> TransactionEnded:
    """The error for a transaction that has ended."""
    if outcome is Outcome.TIMED_OUT:
        return TransactionTimedOut(
            f"The transaction {id} was open for longer than its time-out. Do it again, and give "
            "it more time if it needs that.",
            transaction=id,
            outcome=outcome.value,
        )
    advice = "" if outcome is Outcome.COMMITTED else " Do it again."
    return TransactionEnded(
        f"The transaction {id} has ended: it is {outcome.value}.{advice}",
        transaction=id,
        outcome=outcome.value,
    )
