"""The bytes of all appends that wait to be written, and their two bounds: one for each partition,
one for all together.
"""

import threading

from tms.errors import Overloaded


class InFlight:
    """Counts the waiting bytes of all partitions. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.lock = threading.Lock()

    def room(self, partition: int, bytes_max: int) -> "Room":
        """The counter of one partition, bounded by `bytes_max`."""
        return Room(self, partition, bytes_max)


class Room:
    """Counts the waiting bytes of one partition. Thread-safe."""

    __slots__ = ("_all", "_bytes", "_bytes_max", "_partition")

    def __init__(self, all: InFlight, partition: int, bytes_max: int) -> None:
        self._all = all
        self._partition = partition
        self._bytes = 0
        self._bytes_max = bytes_max

    def take(self, size: int) -> None:
        """Add `size` bytes; any size fits if no other bytes wait. Raises `Overloaded`."""
        everything = self._all
        with everything.lock:
            if self._bytes and self._bytes + size > self._bytes_max:
                raise _overloaded(f"Partition {self._partition}", self._bytes)
            if everything.bytes and everything.bytes + size > everything.bytes_max:
                raise _overloaded("This engine", everything.bytes)
            self._bytes += size
            everything.bytes += size

    def give(self, size: int) -> None:
        """Subtract `size` bytes."""
        everything = self._all
        with everything.lock:
            self._bytes -= size
            everything.bytes -= size


def _overloaded(what: str, size: int) -> Overloaded:
    return Overloaded(
        f"{what} has {size} bytes waiting to be written, its bound. Try again later.",
        retry_after_s=0.1,
    )
