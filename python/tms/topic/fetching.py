"""Fetching over several partitions of a topic, with waiting.

Invariants

* A fetch that finds nothing resolves `latest` once, so that what comes between two
  polls is not missed.
* Waiting is bounded and ends when something may be there; nobody polls.
"""

import threading
from collections.abc import Callable, Sequence

from tms.clock import Clock
from tms.errors import Closed
from tms.model.log import Fetched, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.topic.partitions import Partitions
from tms.topic.registry import Registry
from tms.topic.retention import RetentionClock, floor_by_time


class Fetcher:
    """The way out. Thread-safe."""

    def __init__(
        self, registry: Registry, partitions: Partitions, retention: RetentionClock, clock: Clock
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._retention = retention
        self._clock = clock
        self._closed = False
        self.hits = 0
        self.misses = 0

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0.0,
    ) -> Fetched:
        """See `Engine.fetch`."""
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            fetched = self._fetch(name, positions, bytes_max)
            left_s = deadline_s - self._clock.monotonic_s()
            if fetched.blocks or left_s <= 0:
                return fetched
            woken = threading.Event()
            positions = [PartitionPosition(p, fetched.next[p]) for p, _ in positions]
            cancel = self.watch(name, positions, woken.set)
            woken.wait(left_s)
            cancel()

    def fetch_cached(
        self, name: TopicName, positions: Sequence[PartitionPosition], bytes_max: int
    ) -> Fetched | None:
        """See `Engine.fetch_cached`."""
        topic = self._registry.peek(name)
        if topic is None or self._closed:
            return None
        floor = floor_by_time(self._retention.now_ms(), topic.retention_ms)
        fetched = Fetched([], {}, {})
        for partition, position in positions:
            log = self._partitions.get(name, topic, partition)
            read = log.reader.read_cached(position, floor, max(1, bytes_max))
            if read is None:
                return None
            if bytes_max <= 0:
                read = read._replace(blocks=[], next=position)
            bytes_max -= _add(fetched, partition, read.blocks, read.next, read.end)
        self.hits += 1
        return fetched

    def _fetch(
        self, name: TopicName, positions: Sequence[PartitionPosition], bytes_max: int
    ) -> Fetched:
        cached = self.fetch_cached(name, positions, bytes_max)
        if cached is not None:
            return cached
        if self._closed:
            raise Closed("The engine is closed.")
        self.misses += 1
        topic = self._registry.find(name)
        floor = floor_by_time(self._retention.now_ms(), topic.retention_ms)
        fetched = Fetched([], {}, {})
        for partition, position in positions:
            reader = self._partitions.get(name, topic, partition).reader
            if bytes_max > 0:
                read = reader.read(position, floor, bytes_max)
                bytes_max -= _add(fetched, partition, read.blocks, read.next, read.end)
            else:
                reader.load()
                _add(fetched, partition, [], position, reader.end_offset)
        return fetched

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
    ) -> Callable[[], None]:
        """See `Engine.watch`."""
        topic = self._registry.find(name)
        cancels = [
            self._partitions.get(name, topic, partition).reader.watch(position, callback)
            for partition, position in positions
        ]

        def cancel() -> None:
            for each in cancels:
                each()

        return cancel


def _add(
    fetched: Fetched, partition: int, blocks: list[StoredBlock], next: Position, end: int
) -> int:
    fetched.blocks.extend(blocks)
    fetched.next[partition] = next
    fetched.ends[partition] = end
    return sum(len(block.block) for block in blocks)
