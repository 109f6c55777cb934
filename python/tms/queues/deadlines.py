"""When leases and delays end: offsets in buckets of 100 ms.

Invariants

* Nothing comes out early; it comes out up to 100 ms late.
* An entry costs 8 bytes. One that no longer holds stays until its bucket is due, or `clear`: who
  takes it out compares it with what is so now.
"""

import heapq
from array import array
from collections.abc import Iterable

BUCKET_MS = 100


class Dues:
    """Offsets by the time at which they are to be looked at again."""

    __slots__ = ("_buckets", "_order", "size")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []  # a heap of the buckets' numbers
        self.size = 0

    def add(self, time_ms: int, offsets: Iterable[int], count: int) -> None:
        """These, `count` of them, are due at this time."""
        number = time_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("q")
            heapq.heappush(self._order, number)
        bucket.extend(offsets)
        self.size += count

    def next_ms(self) -> int | None:
        """When something is due."""
        return (self._order[0] + 1) * BUCKET_MS if self._order else None

    def take(self, now_ms: int, limit: int) -> "array[int]":
        """Up to `limit` that are due, of one bucket; none when nothing is."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return array("q")
        bucket = self._buckets[self._order[0]]
        if len(bucket) > limit:
            taken = bucket[-limit:]
            del bucket[-limit:]
        else:
            taken = self._buckets.pop(heapq.heappop(self._order))
        self.size -= len(taken)
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._order.clear()
        self.size = 0
