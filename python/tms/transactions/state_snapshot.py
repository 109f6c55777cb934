"""Snapshots of the state of transactions in the journal, so that a start reads only the edits since
the newest one.

Invariants

* `restore` of all parts of `parts` gives the same state, in everything that decides or answers, but
  for the clients of invalid transactions, of which only those of the last day are counted anyway.
* Parts are small enough for a message of the journal.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tms.model.snapshot import TransactionType
from tms.transactions.edits import Outcome, SnapshotPart
from tms.transactions.state import TransactionState

PART_ITEMS = 20_000
PART_BYTES = 2 << 20  # of keys, which may be long
T = TypeVar("T")


def parts(state: TransactionState) -> Iterator[SnapshotPart]:
    """The state in parts; the last one says so."""
    for chunk in _chunks(sorted(state.invalid)):
        yield SnapshotPart(invalid=chunk)
    for chunk in _chunks(sorted(state.forgotten)):
        yield SnapshotPart(forgotten=chunk)
    for pointers in _chunks(list(state.barred)):
        yield SnapshotPart(barred=pointers)
    for ended in _chunks([(id, how.value, at) for id, (how, at) in state.ended.items()]):
        yield SnapshotPart(ended=ended)
    for tokens in _chunks(list(state.tokens.items())):
        yield SnapshotPart(tokens=tokens)
    changes = [(change, at, who) for change, (at, who) in state.winner.items()]
    for some_changes in _chunks(changes, lambda transaction: len(transaction[0])):
        yield SnapshotPart(changes=some_changes)
    for transaction in state.open.values():
        yield SnapshotPart(open=replace(transaction))  # a copy: encoded later, it is as it was now
    yield SnapshotPart(
        pointers=(state.read_pointer, state.last_pointer, state.reserved),
        lost=tuple(state.lost),
        last=True,
    )


def restore(state: TransactionState, part: SnapshotPart) -> None:
    """Take a part into a state that is being read."""
    state.invalid.update(part.invalid)
    state.forgotten.update(part.forgotten)
    state.barred |= dict.fromkeys(part.barred)
    for id, how, at in part.ended:
        state.ended[id] = (Outcome(how), at)
    state.tokens.update(part.tokens)
    for change, at, who in part.changes:
        state.winner[change] = (at, who)
    if part.open is not None:
        state.open[part.open.began.id] = part.open
    if part.last:
        state.read_pointer, state.last_pointer, state.reserved = part.pointers
        state.lost = list(part.lost)
        _finish(state)


def _finish(state: TransactionState) -> None:
    """Derive the rest of the state from the parts of the snapshot."""
    pointers = {
        pointer: id for id, transaction in state.open.items() for pointer in transaction.pointers
    }
    state.in_progress = OrderedDict(sorted(pointers.items()))
    for id, transaction in state.open.items():
        if transaction.began.client:
            state.clients.began(transaction.began.client)
        if transaction.began.type is TransactionType.SHORT:
            state.shorts[id] = None
    for change, (pointer, _) in sorted(state.winner.items(), key=lambda item: item[1][0]):
        state.committed.setdefault(pointer, set()).add(change)
    state.sorted_invalid = None


def _chunks(
    items: Sequence[T], bytes_of: Callable[[T], int] = lambda _: 0
) -> Iterator[tuple[T, ...]]:
    chunk: list[T] = []
    size = 0
    for item in items:
        if chunk and (len(chunk) >= PART_ITEMS or size + bytes_of(item) > PART_BYTES):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(item)
        size += bytes_of(item)
    if chunk:
        yield tuple(chunk)
