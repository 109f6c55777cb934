"""Recent blocks in memory, shared by all consumers and bounded in bytes over all partitions.

A partition's tail is a contiguous run of blocks that ends with its newest one; blocks leave at the
old end, over all partitions in the order in which they came. Replays from the store do not enter
the cache.
"""

import threading
from bisect import bisect_left
from collections import deque

from tms.log.records import BlockKey
from tms.model.message import StoredBlock


class Tail:
    """The cached newest blocks of one partition: every block whose key is after `covered_after`."""

    __slots__ = ("_blocks", "_head", "_keys", "covered_after")

    def __init__(self, covered_after: BlockKey) -> None:
        self.covered_after = covered_after
        self._keys: list[BlockKey] = []
        self._blocks: list[StoredBlock] = []
        self._head = 0

    def evict(self) -> int:
        """Drop the oldest block; returns its bytes."""
        block = self._blocks[self._head]
        self.covered_after = self._keys[self._head]
        self._blocks[self._head] = _GONE
        self._head += 1
        if self._head > 64 and self._head * 2 > len(self._keys):
            del self._keys[: self._head], self._blocks[: self._head]
            self._head = 0
        return len(block.block)

    def evict_before(self, key: BlockKey) -> tuple[int, int]:
        """Drop the blocks before a key; returns their number and their bytes."""
        count = bisect_left(self._keys, key, self._head) - self._head
        return count, sum(self.evict() for _ in range(count))

    def replace(self, blocks: dict[BlockKey, StoredBlock]) -> None:
        """Replace cached blocks by these, which have the same keys and sizes."""
        for index in range(self._head, len(self._keys)):
            block = blocks.get(self._keys[index])
            if block is not None:
                self._blocks[index] = block

    def read(self, start: BlockKey, bytes_max: int) -> list[StoredBlock] | None:
        """Blocks whose last message is at or after `start`, at least one if there is one; None if
        some of them are not cached."""
        if start <= self.covered_after:
            return None
        index = bisect_left(self._keys, start, self._head)
        blocks_: list[StoredBlock] = []
        room = bytes_max
        for block in self._blocks[index : index + 4096]:
            room -= len(block.block)
            if room < 0 and blocks_:
                break
            blocks_.append(block)
        return blocks_

    def __len__(self) -> int:
        return len(self._keys) - self._head


_GONE = StoredBlock(0, 0, 0, b"")


class BlockCache:
    """Owns the byte bound. All tails are read and changed under their partition's lock; eviction
    takes the lock of the partition that it evicts from without waiting, and tries again later if
    the lock is busy."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._order: deque[tuple[Tail, threading.Lock]] = deque()
        self._lock = threading.Lock()

    def add(self, tail: Tail, lock: threading.Lock, key: BlockKey, block: StoredBlock) -> None:
        """Cache a block as its partition's newest. The caller holds `lock`."""
        tail._keys.append(key)
        tail._blocks.append(block)
        with self._lock:
            self.bytes += len(block.block)
            self._order.append((tail, lock))
            while self.bytes > self.bytes_max:
                oldest, its_lock = self._order[0]
                mine = its_lock is lock
                if not mine and not its_lock.acquire(blocking=False):
                    return
                self._order.popleft()
                try:
                    self.bytes -= oldest.evict()
                finally:
                    if not mine:
                        its_lock.release()

    def drop_before(self, tail: Tail, key: BlockKey) -> None:
        """Drop a tail's blocks before a key, because the stored ones have changed. The caller holds
        the partition's lock."""
        with self._lock:
            count, size = tail.evict_before(key)
            self.bytes -= size
            remaining = []
            for entry in self._order:
                if count and entry[0] is tail:
                    count -= 1
                else:
                    remaining.append(entry)
            self._order = deque(remaining)

    def drop(self, tail: Tail) -> None:
        """Drop all of a tail's blocks, e.g. before its partition is read again. The caller holds
        the partition's lock."""
        with self._lock:
            while len(tail):
                self.bytes -= tail.evict()
            self._order = deque(entry for entry in self._order if entry[0] is not tail)
