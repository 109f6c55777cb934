"""Fetching over several partitions of a topic, with waiting.

Invariants

* A fetch that finds nothing resolves `latest` once, so that no message between two polls is missed.
* Partitions of other instances are fetched from their owners, in the order of the request.
* A wait is bounded and ends when a message may be there; nothing polls.
* `held` has the partitions of this process in which a reader of committed messages met a
  transaction that was begun elsewhere, until `look_again` finds that readers go on there.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import groupby
from typing import Any

from tms.block import Flags
from tms.errors import Invalid, TMSError, TopicNotFound, again
from tms.log.reader import FRESH_MS, PartitionReader, Read, ReadableStart
from tms.log.records import BlockKey
from tms.log.recovery import header_of
from tms.log.staging import is_reference
from tms.log.visibility import FateOf, UnknownOutcome, are_plain, pointers_of, visible_blocks
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import Fetched, Holder, PartitionPosition, Readable
from tms.model.position import LATEST, Position
from tms.model.snapshot import Isolation, Snapshot
from tms.model.topic import TopicName
from tms.model.transaction import HeldPartition
from tms.topics.decisions import DecisionSource
from tms.topics.filtering import FetchBounds, Selection
from tms.topics.owners import Peer, split
from tms.topics.partitions import Partitions
from tms.topics.registry import TopicRecord
from tms.topics.retention import RetentionClock

WARNINGS_MAX = 10
_ENDS = Flags.TRANSACTIONAL | Flags.ISSUED | Flags.ROLLED_BACK


class Fetcher:
    """Fetches from all topics. Thread-safe."""

    def __init__(
        self, partitions: Partitions, retention: RetentionClock, source: DecisionSource
    ) -> None:
        self._registry = partitions.registry
        self._partitions = partitions
        self._retention = retention
        self._clock = partitions.registry.clock
        self._owners = partitions.owners
        self._source = source
        self._closed: TMSError | None = None
        self.hits = 0
        self.misses = 0
        self.bounds = FetchBounds()  # of fetches with a filter
        self.held: dict[tuple[TopicName, int], HeldPartition] = {}

    def close(self, reason: TMSError) -> None:
        """Refuse every fetch from now on, for this reason."""
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
        """Blocks from these positions on, about `bytes_max` bytes but at least one block if there
        is one; waits up to `wait_s` for the first. `isolation` selects the messages of
        transactions. With a filter only matching messages are returned, and the bytes read are
        bounded; `Fetched.reached` says how far each partition was read. Raises `TopicNotFound`,
        `PartitionNotFound`, `OffsetOutOfRange`."""
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
                if fetched.held:
                    self._note_held(name, fetched, isolation)
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
        """Like `fetch` without waiting and without touching the store; None if that is not
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
        if fetched.held:
            self._note_held(name, fetched, isolation)
        self.hits += 1
        return fetched

    def _fate_of(self, isolation: Isolation | Snapshot) -> FateOf | None:
        if isolation is Isolation.COMMITTED:
            return self._source.current.fate_at_once
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
        for peer, some in groupby(positions, partial(self._owner, name, topic)):
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

    def _owner(self, name: TopicName, topic: TopicRecord, place: PartitionPosition) -> Peer | None:
        return self._partitions.peer_of(name, topic, place.partition)

    def _read_here(
        self,
        fetched: Fetched,
        topic: tuple[TopicName, TopicRecord],
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: Isolation | Snapshot,
        selection: Selection | None,
    ) -> int:
        """Add the blocks of this process's partitions; returns the room that is left, in bytes."""
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
        self,
        name: TopicName,
        at: Position = LATEST,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> dict[int, int]:
        """By partition, the offset of the first message at or after a position, or of the next
        message to come. For committed messages, never beyond the first undecided one: messages
        before it will always be read as they are now, until their retention ends. Raises
        `TopicNotFound`, and `Invalid` for a snapshot."""
        if isinstance(isolation, Snapshot):
            raise Invalid("Give `committed` or `uncommitted`, not a snapshot.", field="isolation")
        if self._owners is not None:
            self._owners.confirm()
        topic = self._registry.find(name)
        parts = self._partitions.split(name, topic)
        offsets = self.offsets_here(name, parts.here, at, isolation) if parts.here else {}
        for peer, some in parts.elsewhere.items():
            offsets |= peer.partitions.offsets(name, some, at, isolation)
        return dict(sorted(offsets.items()))

    def offsets_here(
        self,
        name: TopicName,
        partitions: Iterable[int],
        at: Position = LATEST,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> dict[int, int]:
        """As `offsets`, for some partitions of this process."""
        if self._closed is not None:
            raise again(self._closed)
        fate_of = None if isolation is Isolation.UNCOMMITTED else self._source.current.fate
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        since_ms = self._source.current.undecided_since_ms(self._clock.now_ms(), topic.has_foreign)
        offsets = {}
        for partition in partitions:
            reader = self._partitions.get(name, topic, partition).reader
            if fate_of is not None:
                end = reader.decided_end(fate_of, since_ms, floor)
            offset = reader.offset_at(at, floor)
            offsets[partition] = min(offset, end) if fate_of else offset
        return offsets

    def find_held(self, name: TopicName) -> list[HeldPartition]:
        """The partitions of a topic in which readers of committed messages wait for a transaction
        that was begun elsewhere. Raises `TopicNotFound`."""
        held = []
        for partition, offset in self.offsets(name, Position.latest()).items():
            at = [PartitionPosition(partition, Position.offset(offset))]
            for stored in self.fetch(name, at, 1, isolation=Isolation.UNCOMMITTED).blocks[:1]:
                header = header_of(stored)
                if header.flags & _ENDS == Flags.TRANSACTIONAL:
                    holder = header.write_pointer
                    held.append(HeldPartition(str(name), partition, holder, stored.time_ms))
        return held

    def look_again(self) -> None:
        """Remove the partitions from `held` in which readers go on."""
        places = [*self.held]  # other threads add partitions meanwhile
        for name in dict.fromkeys(name for name, _ in places):
            found: dict[int, HeldPartition] = {}
            with suppress(TopicNotFound):
                found = {one.partition: one for one in self.find_held(name)}
            for place in (place for place in places if place[0] == name):
                if place[1] in found and self._owns(*place):
                    self.held[place] = found[place[1]]
                else:
                    self.held.pop(place, None)

    def warnings(self) -> list[str]:
        """A sentence for each partition in which readers wait for a transaction begun elsewhere."""
        return [
            f"Readers of committed messages wait in partition {one.partition} of {one.topic} for "
            f"the transaction {one.pointer}, which was begun elsewhere. End it there, or run "
            f"`tms tx invalidate {one.pointer}`."
            for one in [*self.held.values()][:WARNINGS_MAX]
        ]

    def _note_held(
        self, name: TopicName, fetched: Fetched, isolation: Isolation | Snapshot
    ) -> None:
        if isolation is not Isolation.COMMITTED:
            return
        for partition, holder in fetched.held.items():
            first = fetched.next[partition].id
            if first is not None and not holder.issued and self._owns(name, partition):
                found = HeldPartition(str(name), partition, holder.pointer, first.time_ms)
                self.held[name, partition] = found

    def _owns(self, name: TopicName, partition: int) -> bool:
        return self._partitions.owns(name, self._registry.find(name), partition)

    def first_here(self, name: TopicName, partition: int) -> ReadableStart:
        """The start of the readable messages of a partition of this process, up to `FRESH_MS`
        behind retention; seldom reads from the store. Raises `NotOwner`."""
        topic = self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        return self._partitions.get(name, topic, partition).reader.first(floor, FRESH_MS)

    def end(self, name: TopicName, partition: int) -> tuple[int, MessageId | None]:
        """The offset behind the last message of a partition, committed or not, and its id. Reads
        only the partition's end. Raises `DataCorrupt`."""
        topic = self._registry.find(name)
        peer = self._partitions.peer_of(name, topic, partition)
        if peer is not None:
            return peer.partitions.end(name, partition)
        return self._partitions.get(name, topic, partition).end()

    def kept(self, name: TopicName, partitions: Iterable[int]) -> dict[int, Readable]:
        """The range of messages that is still readable, by partition, for readers that fetched
        before; cheap. Raises `TopicNotFound`."""
        topic = self._registry.known.get(name) or self._registry.find(name)
        floor = self._retention.floor(topic.retention_ms)
        readable: dict[int, Readable] = {}
        if self._partitions.are_of_several:
            parts = self._partitions.split(name, topic, partitions)
            partitions = parts.here
            for peer, some in parts.elsewhere.items():
                readable |= peer.partitions.kept(name, some)
        for partition in partitions:
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
        """Call `callback`, from any thread and at least once, when there may be a message after
        these positions (`Fetched.next`), or when a transaction that holds one back has ended
        (`Fetched.held`). Returns a function that ends the watch."""
        if self._closed is not None:
            raise again(self._closed)
        topic = self._registry.find(name)
        parts = split(positions, partial(self._owner, name, topic))
        with ExitStack() as watches:
            for place in parts.here:
                log = self._partitions.get(name, topic, place.partition)
                holder = held.get(place.partition) if held else None
                if holder is None:
                    watches.callback(log.reader.watch(place.position, callback))
                    continue
                watches.callback(log.state.watch_roll_backs(holder.roll_backs, callback))
                if holder.issued and not isinstance(isolation, Snapshot):  # that shows no more then
                    watches.callback(self._source.current.watch_end(holder.pointer, callback))
            for peer, some in parts.elsewhere.items():
                watches.callback(peer.watch(name, some, callback, isolation))
            return watches.pop_all().close


def _shown(
    reader: PartitionReader,
    position: Position,
    bytes_max: int,
    floor: BlockKey,
    fate_of: FateOf | None,
) -> Read:
    """The visible messages of a partition from `position` on, staged ones included; reads on while
    every message has to be skipped."""
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
    """As `_shown`; None if that needs the store."""
    while (cached := reader.read_cached(position, floor, bytes_max)) is not None:
        if cached.blocks and are_plain(cached.blocks):
            return cached
        try:
            read = _visible_at_once(cached, fate_of)
        except UnknownOutcome:
            return None
        if any(map(is_reference, read.blocks)):
            return None
        if read.blocks or read.ended:
            return read
        position = read.next
    return None


def _visible(read: Read, fate_of: FateOf | None) -> Read:
    """The visible part of a read."""
    try:
        return _visible_at_once(read, fate_of)
    except UnknownOutcome as unknown:
        return _visible_at_once(read, unknown.learn(pointers_of(read.blocks)))


def _visible_at_once(read: Read, fate_of: FateOf | None) -> Read:
    """As `_visible`, without waiting. Raises `UnknownOutcome`."""
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
