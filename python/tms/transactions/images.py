"""The state of all transactions as one value, for those who are not in this process."""

from dataclasses import replace

from tms.model.transaction_image import InProgress, TransactionImage
from tms.transactions.state import TransactionState


def image_of(state: TransactionState, now_ms: int) -> TransactionImage:
    """Everything that stands, as Tephra shows it."""
    in_progress = []
    for pointer, id in state.in_progress.items():
        found = state.open[id]
        own = pointer == id
        in_progress.append(
            InProgress(
                pointer,
                found.began.expires_ms,
                found.began.bound,
                found.began.type if own else None,
                found.checkpoints if own else (),
            )
        )
    return TransactionImage(
        time_ms=now_ms,
        read_pointer=state.read_pointer,
        write_pointer=state.last_pointer,
        invalid=tuple(sorted(state.invalid)),
        in_progress=tuple(in_progress),
        committing={id: one.changes for id, one in state.open.items() if one.changes},
        committed={pointer: tuple(changes) for pointer, changes in state.committed.items()},
    )


def fates_of(state: TransactionState, now_ms: int) -> TransactionImage:
    """What decides over messages that are stored: everything that will never be seen is named, also
    what snapshots name no more; changes are left out."""
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
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found
