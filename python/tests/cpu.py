"""The processor time of work, in units of a fixed piece of Python that is measured beside it.

Seconds of processor time depend on the machine and on its other processes: two threads that share a
core slow each other down to half. Work and unit slow down alike, so that their ratio stays. A unit
takes 0.3 ms of CPython 3.11 on a quiet core.
"""

import time
from collections.abc import Callable

ROUNDS = 9


def units(work: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """How many units the work takes: its best round, divided by the best round of a unit. `clock`
    is `time.process_time` if other threads take part."""

    def cost(task: Callable[[], object]) -> float:
        began_s = clock()
        task()
        return clock() - began_s

    rounds = [(cost(_unit), cost(work)) for _ in range(ROUNDS)]
    return min(taken for _, taken in rounds) / min(unit for unit, _ in rounds)


def _unit() -> None:
    table: dict[int, int] = {}
    for number in range(10_000):
        table[number & 255] = number
