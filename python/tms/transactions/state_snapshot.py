"""The state of transactions as the journal keeps it now and then, so that a start reads no more
than what came since.

Invariants

* `restore` of all parts of `parts` gives the same state, in everything that decides or answers.
* Parts are small enough for a message of the journal.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tms.model.snapshot import TransactionType
from tms.transactions.edits import Kept, KeptOpen, Outcome
from tms.transactions.in_progress import Open
from tms.transactions.state import TransactionState

PART_ITEMS = 20_000
PART_BYTES = 2 << 20  # of keys, which may be long
T = TypeVar("T")


def parts(state: TransactionState) -> Iterator[Kept]:
    """The state in parts; the last one says so."""
    for some in _chunks(sorted(state.invalid)):
        yield Kept(invalid=some)
    for some in _chunks(sorted(state.forgotten)):
        yield Kept(forgotten=some)
    for ended in _chunks([(id, how.value, at) for id, (how, at) in state.ended.items()]):
        yield Kept(ended=ended)
    for tokens in _chunks(list(state.tokens.items())):
        yield Kept(tokens=tokens)
    changes = [(change, at, who) for change, (at, who) in state.winner.items()]
    for some_changes in _chunks(changes, lambda one: len(one[0])):
        yield Kept(changes=some_changes)
    for one in state.open.values():
        yield Kept(open=KeptOpen(one.began, one.checkpoints, one.changes, one.intended))
    yield Kept(
        pointers=(state.read_pointer, state.last_pointer, state.reserved),
        lost=tuple(state.lost),
        last=True,
    )


def restore(state: TransactionState, part: Kept) -> None:
    """Take a part into a state that is being read."""
    state.invalid.update(part.invalid)
    state.forgotten.update(part.forgotten)
    for id, how, at in part.ended:
        state.ended[id] = (Outcome(how), at)
    state.tokens.update(part.tokens)
    for change, at, who in part.changes:
        state.winner[change] = (at, who)
    if part.open is not None:
        _restore_open(state, part.open)
    if part.last:
        state.read_pointer, state.last_pointer, state.reserved = part.pointers
        state.lost = list(part.lost)
        _finish(state)


def _restore_open(state: TransactionState, kept: KeptOpen) -> None:
    one = Open(kept.began, kept.began.intended)
    one.checkpoints, one.changes, one.intended = kept.checkpoints, kept.changes, kept.intended
    state.open[kept.began.id] = one


def _finish(state: TransactionState) -> None:
    """Work out what follows from what was kept."""
    pointers = {pointer: id for id, one in state.open.items() for pointer in one.pointers}
    state.in_progress = dict(sorted(pointers.items()))
    for id, one in state.open.items():
        if one.began.type is TransactionType.SHORT:
            state.shorts[id] = None
    for change, (pointer, _) in sorted(state.winner.items(), key=lambda item: item[1][0]):
        state.committed.setdefault(pointer, set()).add(change)
    state.sorted_invalid = None


def _chunks(
    items: Sequence[T], bytes_of: Callable[[T], int] = lambda _: 0
) -> Iterator[tuple[T, ...]]:
    some: list[T] = []
    size = 0
    for item in items:
        if some and (len(some) >= PART_ITEMS or size + bytes_of(item) > PART_BYTES):
            yield tuple(some)
            some, size = [], 0
        some.append(item)
        size += bytes_of(item)
    if some:
        yield tuple(some)
