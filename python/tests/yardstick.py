"""A measure of CPU time that holds on any machine: the number of runs of a small piece of Python in
the same time, measured in turns with the measured work."""

import time
from collections.abc import Callable

ROUNDS = 7
TIMES = 1_000  # of each in a round
_WORDS = {str(number): number for number in range(100)}


def in_yardsticks(work: Callable[[int], object], fresh: Callable[[], object] = int) -> float:
    """The CPU time of `work`, which gets a number up to `TIMES`, in yardsticks: about a microsecond
    of a machine of 2024. `fresh` is called ahead of each round and not measured."""
    best_s = yardstick_s = 1e9
    for _ in range(ROUNDS):
        fresh()
        best_s = min(best_s, _seconds(work))
        yardstick_s = min(yardstick_s, _seconds(_yardstick))
    return best_s / yardstick_s


def _seconds(work: Callable[[int], object]) -> float:
    began_s = time.thread_time()
    for number in range(TIMES):
        work(number)
    return time.thread_time() - began_s


def _yardstick(number: int) -> int:
    words = _WORDS
    return words["1"] + words["5"] + words["7"] + len(str(number).encode().hex().upper()) + number
