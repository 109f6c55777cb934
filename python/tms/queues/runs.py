"""Runs of offsets: neighbours written as one.

A list of runs is flat: first offset, count, first offset, count, …

Invariants

* Runs are not empty and hold no offset twice; they stand in the order in which they were made.
"""

from collections.abc import Iterable, Iterator

Runs = list[int]


def runs_of(offsets: Iterable[int]) -> Runs:
    """The runs of these offsets, in the order given."""
    runs: Runs = []
    stop = -1
    for offset in offsets:
        if offset == stop:
            runs[-1] += 1
        else:
            runs += (offset, 1)
        stop = offset + 1
    return runs


def ranges(runs: Runs) -> Iterator[range]:
    """Each run as a range."""
    numbers = iter(runs)
    for first, count in zip(numbers, numbers, strict=True):
        yield range(first, first + count)


def offsets_in(runs: Runs) -> Iterator[int]:
    """Every offset."""
    for run in ranges(runs):
        yield from run


def add_range(runs: Runs, first: int, count: int) -> None:
    """Add a range behind the others."""
    if count <= 0:
        return
    if runs and runs[-2] + runs[-1] == first:
        runs[-1] += count
    else:
        runs += (first, count)
