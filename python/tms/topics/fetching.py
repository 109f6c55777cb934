"""Fetching over several partitions of a topic, with waiting.

Invariants

* A fetch that finds nothing resolves `latest` once, so that what comes between two
  polls is not missed.
* What others own they are asked for, in the order in which partitions were named.
* Waiting is bounded and ends when something may be there; nobody polls.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from tms.clock import Clock
from tms.errors import Invalid, TMSError, again
from tms.log.reader import FRESH_MS, PartitionReader, Read, ReadableStart
from tms.log.records import FIRST_KEY, BlockKey
from tms.log.staging import is_reference
from tms.log.visibility import FateOf, Unheard, are_plain, pointers_of, visible_blocks
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import Fetched, Holder, PartitionPosition, Readable
from tms.model.position import Position
from tms.model.snapshot import Fate, Isolation, Snapshot
from tms.model.topic import TopicName
from tms.topics.filtering import FetchBounds, Selection
from tms.topics.owners import Owners, Peer
from tms.topics.partitions import Partitions
from tms.topics.registry import Registry, TopicRecord
from tms.topics.retention import RetentionClock


class Decisions(Protocol):
    """The outcomes of transactions."""

    def fate(self, pointer: int, issued: bool) -> Fate:
        """What becomes of a message that was written with this pointer; `issued` by this engine."""
        ...

    def fate_at_once(self, pointer: int, issued: bool) -> Fate:
        """The same without waiting. Raises `Unheard`."""
        ...

    def learn(self, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        """What becomes of the messages of these transactions, asked for now: who has seen a commit
        acknowledged is told of it. It may wait for the journal of transactions. Raises
        `Unavailable`, `StorageUnavailable`."""
        ...

    def confirm(self) -> None:
        """Make sure that what is known of transactions is the truth. Raises
        `StorageUnavailable`."""
        ...

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction that was begun here ends, at once if it has.
        Returns a cancel."""
        ...

    def undecided_since_ms(self, now_ms: int, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided; `foreign`
        ones may have written."""
        ...


class Fetcher:
    """The way out. Thread-safe."""

    decisions: Decisions  # once `Topics.decide_by` has said it

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        retention: RetentionClock,
        clock: Clock,
        owners: Owners | None,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._retention = retention
        self._clock = clock
        self._owners = owners
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
        if self._owners is not None:
            self._owners.confirm()
        bytes_max = max(1, bytes_max)
        deadline_s = self._clock.monotonic_s() + wait_s
        in_time = True
        while True:
            fetched: Fetched | None = None
            if where is None:
                fetched = self.fetch_cached(name, positions, bytes_max, isolation)
            if fetched is None:
                fetched = self._read(name, positions, bytes_max, isolation, where)
            if fetched.blocks or not fetched.ended or not in_time:
                return fetched
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return fetched
            woken = threading.Event()
            positions = [PartitionPosition(p, fetched.next[p]) for p, _ in positions]
            cancel = self.watch(name, positions, woken.set, fetched.held, isolation)
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
        fate_of = self._fate_of(isolation)
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

    def _fate_of(self, isolation: Isolation | Snapshot) -> FateOf | None:
        if isolation is Isolation.COMMITTED:
            return self.decisions.fate_at_once
        if isinstance(isolation, Snapshot):
            return lambda pointer, _: isolation.fate(pointer)
        if isolation is Isolation.UNCOMMITTED:
            return None
        raise Invalid("The isolation `snapshot` needs a snapshot.", field="isolation")

    def _read(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: Isolation | Snapshot,
        where: Filter | None,
    ) -> Fetched:
        if self._closed is not None:
            raise again(self._closed)
        self.misses += 1
        topic = self._registry.find(name)
        fetched = Fetched([], {}, {}, {})
        selection: Selection | None = None
        if where is not None:
            selection = Selection(where, self.bounds, self._clock, len(positions))

        def owner(place: PartitionPosition) -> Peer | None:
            return self._partitions.peer_of(name, topic, place.partition)

        for peer, some in groupby(positions, owner):
            if peer is None:
                bytes_max = self._read_here(
                    fetched, (name, topic), [*some], bytes_max, isolation, selection
                )
                continue
            answer = peer.fetch(name, [*some], max(1, bytes_max), 0, isolation, where)
            fetched.blocks.extend(answer.blocks)
            for mine, theirs in zip(_maps_of(fetched), _maps_of(answer), strict=True):
                mine.update(theirs)
            bytes_max -= sum(len(stored.block) for stored in answer.blocks)
        return fetched

    def _read_here(
        self,
        fetched: Fetched,
        topic: tuple[TopicName, TopicRecord],
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: Isolation | Snapshot,
        selection: Selection | None,
    ) -> int:
        """Add what partitions of this process show; how much room is left."""
        fate_of = self._fate_of(isolation)
        floor = self._retention.floor(topic[1].retention_ms)
        for partition, position in positions:
            reader = self._partitions.get(*topic, partition).reader
            if bytes_max <= 0:
                read = reader.skip(position)
            elif selection is None:
                read = _shown(reader, position, bytes_max, floor, fate_of)
            else:
                show = partial(_shown, reader, floor=floor, fate_of=fate_of)
                read = selection.of(show, position, bytes_max)
            bytes_max -= _add(fetched, partition, read)
        return bytes_max

    def offsets(
        self, name: TopicName, at: Position, isolation: Isolation | Snapshot = Isolation.COMMITTED
    ) -> dict[int, int]:
        """By partition, the offset of the first message at or after a position, or of the next one
        where there is none. Of committed messages, never beyond the first that is not decided:
        what lies before will always be read as it is now, until its retention ends. Raises
        `TopicNotFound`, `Invalid` for a snapshot."""
        if isinstance(isolation, Snapshot):
            raise Invalid("Offsets are of committed or uncommitted messages.", field="isolation")
        if self._owners is not None:
            self._owners.confirm()
        topic = self._registry.find(name)
        offsets: dict[int, int] = {}
        for peer, some in self._partitions.by_owner(name, topic).items():
            if peer is None:
                offsets |= self.offsets_here(name, some, at, isolation)
            else:
                offsets |= peer.partitions.offsets(name, some, at, isolation)
        return dict(sorted(offsets.items()))

    def offsets_here(
        self,
        name: TopicName,
        partitions: Iterable[int],
        at: Position,
        isolation: Isolation | Snapshot,
    ) -> dict[int, int]:
        """The same for some partitions of this process."""
        if self._closed is not None:
            raise again(self._closed)
        fate_of = None if isolation is Isolation.UNCOMMITTED else self.decisions.fate
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        since_ms = self.decisions.undecided_since_ms(self._clock.now_ms(), topic.has_foreign)
        offsets = {}
        for partition in partitions:
            reader = self._partitions.get(name, topic, partition).reader
            if fate_of is not None:
                end = reader.decided_end(fate_of, since_ms, floor)
            offset = reader.offset_at(at, floor)
            offsets[partition] = min(offset, end) if fate_of else offset
        return offsets

    def first_here(self, name: TopicName, partition: int) -> ReadableStart:
        """Where the readable messages of a partition of this process begin, up to `FRESH_MS` behind
        retention; it seldom reads from the store. Raises `NotOwner`."""
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        return self._partitions.get(name, topic, partition).reader.first(floor, FRESH_MS)

    def end(self, name: TopicName, partition: int) -> tuple[int, MessageId | None]:
        """The offset behind the last message of a partition, committed or not, and its id. Reads
        nothing but the partition's end. Raises `DataCorrupt`."""
        topic = self._registry.find(name)
        peer = self._partitions.peer_of(name, topic, partition)
        if peer is not None:
            return peer.partitions.end(name, partition)
        end, last = self._partitions.get(name, topic, partition).end()
        return end, None if last == FIRST_KEY else MessageId(*last)

    def kept(self, name: TopicName, partitions: Iterable[int]) -> dict[int, Readable]:
        """What may still be shown of messages that were fetched before, by partition; cheaply.
        Raises `TopicNotFound`."""
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        readable: dict[int, Readable] = {}
        for peer, some in self._partitions.by_owner(name, topic, partitions).items():
            if peer is not None:
                readable |= peer.partitions.kept(name, some)
                continue
            for partition in some:
                readable[partition] = self._partitions.get(name, topic, partition).readable(floor)
        return readable

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        held: Mapping[int, Holder] | None = None,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> Callable[[], None]:
        """Call `callback`, from any thread and at least once, when something may be there after
        these positions (`Fetched.next`), or when a transaction that holds one back has ended
        (`Fetched.held`). Returns a function that ends the watch."""
        if self._closed is not None:
            raise again(self._closed)
        topic = self._registry.find(name)
        elsewhere: dict[Peer, list[PartitionPosition]] = {}
        with ExitStack() as watches:
            for place in positions:
                peer = self._partitions.peer_of(name, topic, place.partition)
                if peer is not None:
                    elsewhere.setdefault(peer, []).append(place)
                    continue
                log = self._partitions.get(name, topic, place.partition)
                holder = held.get(place.partition) if held else None
                if holder is None:
                    watches.callback(log.reader.watch(place.position, callback))
                    continue
                watches.callback(log.state.watch_roll_backs(holder.roll_backs, callback))
                if holder.issued and not isinstance(isolation, Snapshot):  # that shows no more then
                    watches.callback(self.decisions.watch_end(holder.pointer, callback))
            for peer, some in elsewhere.items():
                watches.callback(peer.watch(name, some, callback, isolation))
            return watches.pop_all().close


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
        try:
            read = _visible_at_once(cached, fate_of)
        except Unheard:
            return None
        if any(map(is_reference, read.blocks)):
            return None
        if read.blocks or read.ended:
            return read
        position = read.next
    return None


def _visible(read: Read, fate_of: FateOf | None) -> Read:
    """What is shown of what was read."""
    try:
        return _visible_at_once(read, fate_of)
    except Unheard as unheard:
        return _visible_at_once(read, unheard.learn(pointers_of(read.blocks)))


def _visible_at_once(read: Read, fate_of: FateOf | None) -> Read:
    """The same. Raises `Unheard`."""
    if fate_of is None or not read.blocks:
        return read
    shown, stop, end_offset, held_by = visible_blocks(read.blocks, fate_of)
    if stop is not None:  # for this reader, the partition ends here
        if held_by is not None:
            held_by = held_by._replace(roll_backs=read.roll_backs)
        return Read(shown, stop, end_offset, end_offset, read.start, held_by)
    return read if shown is read.blocks else read._replace(blocks=shown)


def _maps_of(fetched: Fetched) -> tuple[dict[int, Any], ...]:
    return fetched.next, fetched.ends, fetched.reached, fetched.held


def _add(fetched: Fetched, partition: int, read: Read) -> int:
    fetched.blocks.extend(read.blocks)
    if read.held_by is not None:
        fetched.held[partition] = read.held_by
    fetched.next[partition] = read.next
    fetched.ends[partition] = read.end
    fetched.reached[partition] = read.reached
    size = 0
    for stored in read.blocks:
        size += len(stored.block)
    return size
