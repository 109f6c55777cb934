"""A histogram of measured values: how many there were up to each of some bounds."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts values by upper bounds, which are in ascending order. Changed by one thread."""

    __slots__ = ("_bounds", "_counts", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that was measured so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.count += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds and cumulative counts, as Prometheus wants them."""
        return list(zip((*map(str, self._bounds), "+Inf"), accumulate(self._counts), strict=True))
