"""Pruning: decisions about which transactions leave the invalid list.

Invariants

* Time only cuts the list behind everything that is in progress.
* An edit names at most `EDIT_IDS_MAX` transactions, so that the journal can hold it.
"""

from collections.abc import Iterable

from tms.errors import InvalidTruncateTime
from tms.model.snapshot import POINTERS_PER_MS
from tms.transactions.edits import Forgotten
from tms.transactions.state import TransactionState

EDIT_IDS_MAX = 100_000


def forget(state: TransactionState, ids: Iterable[int]) -> list[Forgotten]:
    """Take transactions off the invalid list; nothing when none is on it."""
    forgotten = sorted(state.invalid.intersection(ids))
    return [
        Forgotten(tuple(forgotten[start : start + EDIT_IDS_MAX]))
        for start in range(0, len(forgotten), EDIT_IDS_MAX)
    ]


def forget_before(state: TransactionState, time_ms: int) -> list[Forgotten]:
    """Take all from before a time off the invalid list. Raises `InvalidTruncateTime`."""
    bound = time_ms * POINTERS_PER_MS
    first = next(iter(state.in_progress), None)
    if first is not None and first < bound:
        raise InvalidTruncateTime(f"Transactions started earlier than {time_ms} are in-progress")
    return forget(state, [pointer for pointer in state.invalid if pointer < bound])


def checkpoints_of(state: TransactionState, id: int, claimed: Iterable[int]) -> tuple[int, ...]:
    """The pointers among these that are invalid and can be checkpoints of an invalid
    transaction."""
    return tuple(
        pointer
        for pointer in claimed
        if pointer > id and pointer in state.invalid and pointer not in state.ended
    )
