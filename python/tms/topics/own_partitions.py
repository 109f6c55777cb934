"""The partitions that this process owns; implements the port `owners.PartitionsPort`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tms.block import BlockHeader, Flags
from tms.errors import DataCorrupt, NotFound, TopicNotFound, TransactionEnded
from tms.log.groups import Stamp
from tms.log.partition_log import PartitionLog
from tms.log.reader import FRESH_MS
from tms.log.records import FIRST_KEY, BlockKey
from tms.log.recovery import header_of
from tms.log.staging import is_reference
from tms.model.ids import MessageId
from tms.model.lag import TopicSize
from tms.model.message import Appended, NewBlock, Readable, Staged
from tms.model.position import Position
from tms.model.snapshot import Fate
from tms.model.topic import Durability, PartitionInfo, TopicName

if TYPE_CHECKING:
    from tms.topics.topics import Topics

READ_BYTES = 8 << 20
STORE_TIMEOUT_S = 30.0


class OwnPartitions:
    """The partitions that this process owns. Thread-safe."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.offsets = topics.fetcher.offsets_here

    def store(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability,
        flags: int = 0,
        write_pointer: int = 0,
        internal: bool = False,
    ) -> list[Appended]:
        """Append blocks, stamped by a transaction. With `internal` an instance made or
        checked them."""
        for new in blocks:
            self._log(name, new.partition)
        stamp, publisher = Stamp(flags, write_pointer), self._topics.publisher
        pending = publisher.submit(name, blocks, durability, Durability.SYNCED, stamp, internal)
        return pending.result(STORE_TIMEOUT_S)

    def count_stored(self, name: TopicName, blocks: Sequence[NewBlock]) -> int:
        """The number of these blocks that were stored before, by producer id and sequence."""
        for new in blocks:
            self._log(name, new.partition)
        return self._topics.publisher.count_stored(name, blocks)

    def stage(
        self, name: TopicName, blocks: Sequence[NewBlock], flags: int, write_pointer: int
    ) -> None:
        """Store blocks of a transaction invisibly."""
        checked = self._topics.publisher.check(name, blocks)
        for partition in dict.fromkeys(new.partition for new in blocks):
            some = [
                (new.block, header)
                for new, header in zip(blocks, checked, strict=True)
                if new.partition == partition
            ]
            log, now_ms = self._log(name, partition), self._topics.clock.now_ms()
            log.staged.add(some, write_pointer, now_ms, flags)

    def staged(self, name: TopicName, partition: int, write_pointer: int) -> list[Staged]:
        """The blocks that a transaction has staged, in order."""
        return self._log(name, partition).staged.of(write_pointer)

    def drop_staged(
        self,
        name: TopicName,
        partition: int,
        write_pointer: int,
        blocks: Sequence[Staged] | None = None,
    ) -> None:
        """Remove the blocks that a transaction has staged, or these ones of them."""
        self._log(name, partition).staged.drop(write_pointer, blocks)

    def referred(
        self,
        name: TopicName,
        partition: int,
        write_pointer: int,
        from_ms: int,
        elsewhere: bool = False,
    ) -> list[Appended]:
        """The places of references to blocks that a transaction staged, since a time. With
        `elsewhere`, the places of all blocks of a transaction that was begun elsewhere."""
        reader, ended = self._log(name, partition).reader, False
        position, places = Position.time(from_ms), []
        while not ended:
            read = reader.read(position, FIRST_KEY, READ_BYTES)
            position, ended = read.next, read.ended
            for stored in read.blocks:
                header = header_of(stored)
                if header.write_pointer != write_pointer or header.flags & Flags.ROLLED_BACK:
                    continue
                if is_reference(stored) if not elsewhere else not header.flags & Flags.ISSUED:
                    first = stored.last_sequence - header.count + 1
                    place = stored.time_ms, first, header.count, header.base_offset
                    places.append(Appended(partition, *place))
        return places

    def roll_back(
        self, name: TopicName, partition: int, write_pointer: int, first: BlockKey, last: BlockKey
    ) -> int:
        """Roll back the messages of a transaction in [first, last]; returns the number of their
        blocks. Raises `TransactionEnded` for a committed transaction, whose messages stay."""

        def require_uncommitted(header: BlockHeader) -> None:
            pointer, flags = header.write_pointer, header.flags
            shown = flags & Flags.ISSUED and not flags & Flags.ROLLED_BACK
            if shown and self._topics.fate(pointer, True) is Fate.VISIBLE:
                raise TransactionEnded(
                    f"The transaction {pointer} is committed; its messages cannot be taken back.",
                    transaction=pointer,
                    outcome="committed",
                )

        log = self._log(name, partition)
        return log.roll_back(first, last, write_pointer, require_uncommitted)

    def reaches(self, name: TopicName, partition: int, end_offset: int) -> bool:
        """True if the store has everything before an offset."""
        return self._log(name, partition).reaches(end_offset)

    def make_durable(self, name: TopicName, partition: int) -> None:
        """Sync all readable blocks."""
        self._log(name, partition).make_durable()

    def end(self, name: TopicName, partition: int) -> tuple[int, MessageId | None]:
        """The offset behind the last message, and its id."""
        return self._log(name, partition).end()

    def kept(self, name: TopicName, partitions: Sequence[int]) -> Mapping[int, Readable]:
        """The range of messages that is still readable, by partition, for readers that fetched
        before."""
        topic = self._topics.registry.find(name)
        floor = self._topics.retention.floor(topic.retention_ms)
        return {number: self._log(name, number).readable(floor) for number in partitions}

    def describe(self, name: TopicName, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Descriptions of partitions."""
        topic = self._topics.registry.find(name)
        floor = self._topics.retention.floor(topic.retention_ms)
        return [_info(self._log(name, number), floor) for number in partitions]

    def sizes(self, names: Sequence[TopicName]) -> list[TopicSize]:
        """The size of each topic's partitions that this process owns, up to `FRESH_MS` behind
        retention; seldom reads messages. A topic that is gone has size zero."""
        return [self._size(name) for name in names]

    def _size(self, name: TopicName) -> TopicSize:
        try:
            topic = self._topics.registry.find(name)
        except TopicNotFound:
            return TopicSize(str(name), 0)
        floor = self._topics.retention.floor(topic.retention_ms)
        owns = self._topics.partitions.owns
        owned = [number for number in range(topic.partitions) if owns(name, topic, number)]
        try:
            sizes = [_size(self._log(name, number), floor) for number in owned]
        except (NotFound, DataCorrupt):
            return TopicSize(str(name), len(owned))
        sums = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0, 0)
        return TopicSize(str(name), len(owned), *sums)

    def truncate(self, name: TopicName, partitions: Sequence[int], before: Position) -> None:
        """Make all messages before a position unreadable for good."""
        for number in partitions:
            self._log(name, number).reader.truncate(before, self._topics.clock.now_ms())

    def _log(self, name: TopicName, partition: int) -> PartitionLog:
        return self._topics.log(name, partition)


def _info(log: PartitionLog, floor: BlockKey) -> PartitionInfo:
    log.reader.load()
    state, record = log.state, log.state.chain.record
    start_offset, first_id = log.reader.start(floor), log.reader.first_id(floor)
    return PartitionInfo(
        partition=log.partition,
        epoch=record.epoch,
        segments=len(record.segments),
        stored_bytes=state.chain.stored_bytes(),
        start_offset=start_offset,
        end_offset=state.end_offset,
        first_id=None if first_id is None else str(first_id),
        last_id=None if first_id is None else str(MessageId(*state.last)),
    )


def _size(log: PartitionLog, floor: BlockKey) -> tuple[int, int, int]:
    """The number of readable messages, the number of messages ever published, and the bytes."""
    log.reader.load()
    state, record = log.state, log.state.chain.record
    if not record.segments:
        return 0, state.end_offset, 0
    first = record.segments[0]
    is_whole = record.floor == FIRST_KEY and floor <= (first.created_ms, 0) and not record.gaps
    start = first.base_offset if is_whole else log.reader.first(floor, FRESH_MS).offset
    return state.end_offset - start, state.end_offset, state.chain.stored_bytes()
