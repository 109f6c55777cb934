"""Threads of the benchmarks: clients measured together."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_threads(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all works, each in a thread of its own; their results."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [each.result() for each in [threads.submit(work) for work in works]]
