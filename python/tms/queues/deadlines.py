"""Offsets by the time at which their lease or delay ends.

Invariants

* Times are rounded up to buckets of 100 ms, so nothing ends early, and everything ends at most that
  much late.
* A deadline is removed only by reaching it: the user must expect stale ones.
* `next_ms` is the end of the earliest bucket, None if there is none.
"""

import heapq
from array import array
from collections.abc import Iterable

BUCKET_MS = 100


class Deadlines:
    """Offsets in buckets of time. Not thread-safe."""

    __slots__ = ("_buckets", "_order", "next_ms", "size")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []  # a heap of the buckets' numbers
        self.next_ms: int | None = None
        self.size = 0

    def add(self, time_ms: int, offsets: Iterable[int], count: int) -> None:
        """Add `count` offsets with one deadline."""
        number = time_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("q")
            heapq.heappush(self._order, number)
            self.next_ms = (self._order[0] + 1) * BUCKET_MS
        bucket.extend(offsets)
        self.size += count

    def take(self, now_ms: int, limit: int) -> "array[int]":
        """Remove and return up to `limit` offsets of the earliest bucket; none before its end."""
        if self.next_ms is None or self.next_ms > now_ms:
            return array("q")
        bucket = self._buckets[self._order[0]]
        if len(bucket) > limit:
            taken = bucket[-limit:]
            del bucket[-limit:]
        else:
            taken = self._buckets.pop(heapq.heappop(self._order))
            self.next_ms = (self._order[0] + 1) * BUCKET_MS if self._order else None
        self.size -= len(taken)
        return taken

    def clear(self) -> None:
        """Remove all deadlines."""
        self._buckets.clear()
        self._order.clear()
        self.next_ms = None
        self.size = 0
