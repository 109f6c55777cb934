"""Runs of offsets: neighbours written as one.

A list of runs is flat: first offset, count, first offset, count, …

Invariants

* Runs are not empty and hold no offset twice; they stand in the order in which they were made.
"""

from collections.abc import Iterable
from itertools import chain
from operator import add

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


def ranges(runs: Runs) -> list[range]:
    """Each run as a range. Raises `ValueError` if the count of the last run is missing."""
    firsts, counts = runs[::2], runs[1::2]
    if len(firsts) != len(counts):
        raise ValueError(f"A list of runs has {len(runs)} numbers.")
    return list(map(range, firsts, map(add, firsts, counts)))


def offsets_in(runs: Runs) -> Iterable[int]:
    """Every offset, in the order of the runs."""
    return chain.from_iterable(ranges(runs))


def add_range(runs: Runs, first: int, count: int) -> None:
    """Append a range, joined to the last run if it follows it."""
    if count <= 0:
        return
    if runs and runs[-2] + runs[-1] == first:
        runs[-1] += count
    else:
        runs += (first, count)
