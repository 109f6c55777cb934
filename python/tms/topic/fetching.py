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
from tms.log.reader import Read
from tms.model.log import Fetched, PartitionPosition
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
        bytes_max = max(1, bytes_max)
        deadline_s = self._clock.monotonic_s() + wait_s
        in_time = True
        while True:
            fetched = self._fetch(name, positions, bytes_max)
            left_s = deadline_s - self._clock.monotonic_s()
            if fetched.blocks or left_s <= 0 or not in_time:
                return fetched
            woken = threading.Event()
            positions = [PartitionPosition(p, fetched.next[p]) for p, _ in positions]
            cancel = self.watch(name, positions, woken.set)
            in_time = woken.wait(left_s)
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
            log = self._partitions.peek(topic, partition)
            if log is None or not log.state.known:
                return None
            if bytes_max <= 0:
                read = log.reader.skip(position)
            elif (cached := log.reader.read_cached(position, floor, bytes_max)) is None:
                return None
            else:
                read = cached
            bytes_max -= _add(fetched, partition, read)
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
            else:
                read = reader.skip(position)
            bytes_max -= _add(fetched, partition, read)
        return fetched

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
    ) -> Callable[[], None]:
        """See `Engine.watch`."""
        if self._closed:
            raise Closed("The engine is closed.")
        topic = self._registry.find(name)
        readers = [
            self._partitions.get(name, topic, partition).reader for partition, _ in positions
        ]
        cancels = [
            reader.watch(position, callback)
            for reader, (_, position) in zip(readers, positions, strict=True)
        ]

        def cancel() -> None:
            for each in cancels:
                each()

        return cancel


def _add(fetched: Fetched, partition: int, read: Read) -> int:
    fetched.blocks.extend(read.blocks)
    fetched.next[partition] = read.next
    fetched.ends[partition] = read.end
    return sum(len(block.block) for block in read.blocks)
