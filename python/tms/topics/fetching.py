"""Fetching over several partitions of a topic, with waiting.

Invariants

* A fetch that finds nothing resolves `latest` once, so that what comes between two
  polls is not missed.
* Waiting is bounded and ends when something may be there; nobody polls.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tms.clock import Clock
from tms.errors import Invalid, TMSError
from tms.log.partition import again
from tms.log.reader import PartitionReader, Read
from tms.log.records import FIRST_KEY, BlockKey
from tms.log.staging import is_reference
from tms.log.visibility import FateOf, are_plain, visible_blocks
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import Fetched, PartitionPosition, Readable
from tms.model.position import Position
from tms.model.snapshot import Fate, Isolation, Snapshot
from tms.model.topic import TopicName
from tms.topics.filtering import FetchBounds, Selection
from tms.topics.partitions import Partitions
from tms.topics.registry import Registry
from tms.topics.retention import RetentionClock


class Decisions(Protocol):
    """The outcomes of transactions."""

    def fate(self, pointer: int, issued: bool) -> Fate:
        """What becomes of a message that was written with this pointer; `issued` by this engine."""
        ...

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction ends, at once if it has. Returns a cancel."""
        ...

    def undecided_since_ms(self, now_ms: int, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided; `foreign`
        ones may have written."""
        ...


class Fetcher:
    """The way out. Thread-safe. `require_owner` raises `NotOwner` if another process owns the
    store."""

    decisions: Decisions  # once `Topics.decide_by` has said it

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        retention: RetentionClock,
        clock: Clock,
        require_owner: Callable[[], None] | None,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._retention = retention
        self._clock = clock
        self._require_owner = require_owner
        self._closed: TMSError | None = None
        self.hits = 0
        self.misses = 0
        self.bounds = FetchBounds()  # of fetches with a filter

    def close(self, reason: TMSError) -> None:
        """Refuse everything from now on, for this reason."""
        self._closed = reason

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0.0,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Fetched:
        """Blocks from these positions on, about `bytes_max` bytes of them but at least one if there
        is one; waits up to `wait_s` for the first. `isolation` says what is shown of transactions.
        With a filter only what matches, and what was looked at is bounded; where nothing more is
        there `Fetched.reached` tells.
        Raises `TopicNotFound`, `PartitionNotFound`, `OffsetOutOfRange`."""
        if self._require_owner is not None:
            self._require_owner()
        fate_of = self._fate_of(isolation)
        bytes_max = max(1, bytes_max)
        deadline_s = self._clock.monotonic_s() + wait_s
        in_time = True
        while True:
            fetched: Fetched | None = None
            if where is None:
                fetched = self._read_cached(name, positions, bytes_max, fate_of)
            if fetched is None:
                fetched = self._read(name, positions, bytes_max, fate_of, where)
            if fetched.blocks or not fetched.ended or not in_time:
                return fetched
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return fetched
            woken = threading.Event()
            positions = [PartitionPosition(p, fetched.next[p]) for p, _ in positions]
            cancel = self.watch(name, positions, woken.set, fetched.held)
            in_time = woken.wait(left_s)
            cancel()

    def fetch_cached(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> Fetched | None:
        """Like `fetch` without waiting and without touching the store; None when that is not
        possible."""
        return self._read_cached(name, positions, bytes_max, self._fate_of(isolation))

    def _fate_of(self, isolation: Isolation | Snapshot) -> FateOf | None:
        if isolation is Isolation.COMMITTED:
            return self.decisions.fate
        if isinstance(isolation, Snapshot):
            return lambda pointer, _: isolation.fate(pointer)
        if isolation is Isolation.UNCOMMITTED:
            return None
        raise Invalid("The isolation `snapshot` needs a snapshot.", field="isolation")

    def _read_cached(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        fate_of: FateOf | None,
    ) -> Fetched | None:
        topic = self._registry.known.get(name)
        if topic is None or self._closed is not None:
            return None
        floor = self._retention.floor(topic.retention_ms)
        fetched = Fetched([], {}, {}, {})
        for partition, position in positions:
            log = self._partitions.logs.get((topic.uid, partition))
            if log is None or not log.state.known:
                return None
            if bytes_max <= 0:
                read = log.reader.skip(position)
            else:
                cached = _shown_cached(log.reader, position, bytes_max, floor, fate_of)
                if cached is None:
                    return None
                read = cached
            bytes_max -= _add(fetched, partition, read)
        self.hits += 1
        return fetched

    def _read(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        fate_of: FateOf | None,
        where: Filter | None,
    ) -> Fetched:
        if self._closed is not None:
            raise again(self._closed)
        self.misses += 1
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        fetched = Fetched([], {}, {}, {})
        selection: Selection | None = None
        if where is not None:
            selection = Selection(where, self.bounds, self._clock, len(positions))
        for partition, position in positions:
            reader = self._partitions.get(name, topic, partition).reader
            if bytes_max <= 0:
                read = reader.skip(position)
            elif selection is None:
                read = _shown(reader, position, bytes_max, floor, fate_of)
            else:
                show = partial(_shown, reader, floor=floor, fate_of=fate_of)
                read = selection.of(show, position, bytes_max)
            bytes_max -= _add(fetched, partition, read)
        return fetched

    def offsets(
        self, name: TopicName, at: Position, isolation: Isolation | Snapshot = Isolation.COMMITTED
    ) -> dict[int, int]:
        """By partition, the offset of the first message at or after a position, or of the next one
        where there is none. Of committed messages, never beyond the first that is not decided:
        what lies before will always be read as it is now, until its retention ends. Raises
        `TopicNotFound`, `Invalid` for a snapshot."""
        if isinstance(isolation, Snapshot):
            raise Invalid("Offsets are of committed or uncommitted messages.", field="isolation")
        if self._require_owner is not None:
            self._require_owner()
        fate_of = self._fate_of(isolation)
        if self._closed is not None:
            raise again(self._closed)
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        since_ms = self.decisions.undecided_since_ms(self._clock.now_ms(), topic.has_foreign)
        offsets = {}
        for partition in range(topic.partitions):
            reader = self._partitions.get(name, topic, partition).reader
            if fate_of is not None:
                end = reader.decided_end(fate_of, since_ms, floor)
            offset = reader.offset_at(at, floor)
            offsets[partition] = min(offset, end) if fate_of else offset
        return offsets

    def end(self, name: TopicName, partition: int) -> tuple[int, MessageId | None]:
        """The offset behind the last message of a partition, committed or not, and its id. Reads
        nothing but the partition's end. Raises `DataCorrupt`."""
        log = self._partitions.get(name, self._registry.find(name), partition)
        end, last = log.end()
        return end, None if last == FIRST_KEY else MessageId(*last)

    def kept(self, name: TopicName, partitions: Iterable[int]) -> dict[int, Readable]:
        """What may still be shown of messages that were fetched before, by partition; cheaply.
        Raises `TopicNotFound`."""
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        readable = {}
        for partition in partitions:
            readable[partition] = self._partitions.get(name, topic, partition).readable(floor)
        return readable

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        held: Mapping[int, int] | None = None,
    ) -> Callable[[], None]:
        """Call `callback`, from any thread and at least once, when something may be there after
        these positions (`Fetched.next`), or when a transaction that holds one back has ended
        (`Fetched.held`). Returns a function that ends the watch."""
        if self._closed is not None:
            raise again(self._closed)
        topic = self._registry.find(name)
        readers = [
            self._partitions.get(name, topic, partition).reader for partition, _ in positions
        ]
        cancels = [
            self.decisions.watch_end(held[partition], callback)
            if held and partition in held
            else reader.watch(position, callback)
            for reader, (partition, position) in zip(readers, positions, strict=True)
        ]

        def cancel() -> None:
            for each in cancels:
                each()

        return cancel


def _shown(
    reader: PartitionReader,
    position: Position,
    bytes_max: int,
    floor: BlockKey,
    fate_of: FateOf | None,
) -> Read:
    """What a partition shows from `position` on, with what transactions staged; reads on while
    everything is to be skipped."""
    while True:
        read = _visible(reader.read(position, floor, bytes_max), fate_of)
        if any(map(is_reference, read.blocks)):
            read = reader.resolved(read, bytes_max)
        if read.blocks or read.ended:
            return read
        position = read.next


def _shown_cached(
    reader: PartitionReader,
    position: Position,
    bytes_max: int,
    floor: BlockKey,
    fate_of: FateOf | None,
) -> Read | None:
    """The same, None when that takes the store."""
    while (cached := reader.read_cached(position, floor, bytes_max)) is not None:
        if cached.blocks and are_plain(cached.blocks):
            return cached
        read = _visible(cached, fate_of)
        if any(map(is_reference, read.blocks)):
            return None
        if read.blocks or read.ended:
            return read
        position = read.next
    return None


def _visible(read: Read, fate_of: FateOf | None) -> Read:
    """What is shown of what was read."""
    if fate_of is None or not read.blocks:
        return read
    shown, stop, end_offset, held_by = visible_blocks(read.blocks, fate_of)
    if stop is not None:  # for this reader, the partition ends here
        return Read(shown, stop, end_offset, end_offset, read.start, held_by)
    return read if shown is read.blocks else read._replace(blocks=shown)


def _add(fetched: Fetched, partition: int, read: Read) -> int:
    fetched.blocks.extend(read.blocks)
    if read.held_by:
        fetched.held[partition] = read.held_by
    fetched.next[partition] = read.next
    fetched.ends[partition] = read.end
    fetched.reached[partition] = read.reached
    size = 0
    for stored in read.blocks:
        size += len(stored.block)
    return size
