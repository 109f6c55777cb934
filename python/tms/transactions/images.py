"""The state of all transactions as one value, for readers in other processes."""

from dataclasses import replace

from tms.model.transaction_image import InProgress, TransactionImage
from tms.transactions.state import TransactionState


def image_of(state: TransactionState, now_ms: int) -> TransactionImage:
    """Everything that stands, as Tephra shows it."""
    in_progress = []
    for pointer, id in state.in_progress.items():
        transaction = state.open[id]
        own = pointer == id
        in_progress.append(
            InProgress(
                pointer,
                transaction.began.expires_ms,
                transaction.began.bound,
                transaction.began.type if own else None,
                transaction.checkpoints if own else (),
            )
        )
    return TransactionImage(
        time_ms=now_ms,
        read_pointer=state.read_pointer,
        write_pointer=state.last_pointer,
        invalid=tuple(sorted(state.invalid)),
        in_progress=tuple(in_progress),
        committing={id: open_.changes for id, open_ in state.open.items() if open_.changes},
        committed={pointer: tuple(changes) for pointer, changes in state.committed.items()},
    )


def fates_of(state: TransactionState, now_ms: int) -> TransactionImage:
    """The part of the state that decides over stored messages: every transaction that will never be
    seen, also those that snapshots name no more; without changes."""
    image = image_of(state, now_ms)
    return replace(
        image,
        invalid=tuple(sorted(state.invalid | state.forgotten)),
        committing=None,
        committed=None,
        lost=tuple(_merged(state.lost)),
    )


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges with gaps between them."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif start < stop:
            merged.append((start, stop))
    return merged
