"""What the driver plans to read of a topic, and which rows an executor shows of those that come.

    row   salt 4 · uid 8 · partition 4 · segment 8 · time 16 · sequence 4     hexadecimal
    b, b01, b02, …                                                            the pieces of a block

Invariants

* A row that is not of this generation of the topic, lies behind its segment's seal, or has a key
  that is none, is not shown.
* What a transaction staged is fetched from HBase's Thrift server, by the task that meets it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tms.log.records import BlockKey
from tms.log.staging import StagedBlocks
from tms.model import keys
from tms.model.message import Buffer, StoredBlock
from tms.model.transaction_image import Fates
from tms.observer import ObservedPartition, ObservedTopic, shown
from tms.spark.rows import WantedColumns, batches
from tms.store.hbase import HBasePlace, HBaseStore
from tms.store.hbase.rows import PREFIX_CHARS, BlockRows, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

_UID_AT, _PARTITION_AT, _SEGMENT_AT = 4, 12, 16
_SEQUENCE_AT = 40
_ROW_CHARS = 44


class OffsetBounds(NamedTuple):
    """What is read of a partition: offsets, half open."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What is shown of a partition: offsets, from which key on, and up to where each segment's rows
    count."""

    bounds: OffsetBounds
    floor: BlockKey
    seals: Mapping[int, BlockKey]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as the driver saw it."""

    name: str
    uid: int
    store: str
    fates: Fates
    partitions: Mapping[int, PartitionPlan]
    ranges: tuple[tuple[str, str], ...]  # of rows, half open, none of them empty

    @classmethod
    def of(
        cls,
        view: ObservedTopic,
        store: str,
        wanted: Iterable[tuple[ObservedPartition, OffsetBounds]],
    ) -> "TopicPlan":
        """What is read of these partitions."""
        plans, ranges = {}, []
        namespace = HBasePlace.parse(store).namespace
        for one, bounds in wanted:
            seals = {
                segment.number: segment.last for segment in one.segments if segment.last is not None
            }
            plans[one.partition] = PartitionPlan(bounds, one.floor, seals)
            row = partial(_row, namespace, one)
            low, high = map(row, one.span(*bounds))
            if low < high:
                ranges.append((low, high))
        return cls(str(view.name), view.record.uid, store, view.fates, plans, tuple(ranges))


def _row(namespace: str, partition: ObservedPartition, key: BlockKey) -> str:
    """The first row that a block with this key, or a greater one, can have."""
    within = [s.number for s in partition.segments if s.last is not None and key <= s.last]
    number = within[0] if within else partition.segments[-1].number
    where = rows_of(namespace, keys.segment_map(partition.uid, partition.partition, number))
    assert isinstance(where, BlockRows)
    return where.row(keys.block_key(*key)).decode()


def unpack(
    answers: Iterator["pa.RecordBatch"], topic: TopicPlan, columns: WantedColumns
) -> Iterator["pa.RecordBatch"]:
    """The messages in the rows. Raises `DataCorrupt`, `StorageUnavailable`."""
    with ExitStack() as opened:

        @cache
        def store() -> HBaseStore:  # when the first staged block is met
            return opened.enter_context(closing(HBaseStore(topic.store, watched=False)))

        @cache
        def staged(partition: int) -> StagedBlocks:
            return StagedBlocks(store(), topic.uid, partition)

        def resolve(reference: StoredBlock) -> StoredBlock:
            return staged(reference.partition).resolve(reference)

        for batch in answers:
            stored = filter(None, map(partial(_block, topic), *_cells(batch)))
            for number, blocks in groupby(stored, key=_partition):
                plan = topic.partitions[number]
                messages = shown(list(blocks), plan.floor, topic.fates, resolve)
                yield from batches(messages, topic.name, *plan.bounds, columns)


def _cells(batch: "pa.RecordBatch") -> tuple[list[str], list[Buffer]]:
    """Rows, and their blocks: nearly all are one cell, which is not copied."""
    names: list[str] = batch.column(0).to_pylist()
    first, *more = batch.columns[1:]
    blocks: list[Buffer] = []
    for at, cell in enumerate(first):
        block: Buffer = memoryview(cell.as_buffer()) if cell.is_valid else b""
        pieces = [column[at].as_buffer() for column in more if column[at].is_valid]
        blocks.append(b"".join([block, *pieces]) if pieces and block else block)
    return names, blocks


def _block(topic: TopicPlan, row: str, block: Buffer) -> StoredBlock | None:
    """The block in a row; None for a row that is not to be shown."""
    try:
        uid = int(row[_UID_AT:_PARTITION_AT], 16)
        number = int(row[_PARTITION_AT:_SEGMENT_AT], 16)
        segment = int(row[_SEGMENT_AT:PREFIX_CHARS], 16)
        key = (int(row[PREFIX_CHARS:_SEQUENCE_AT], 16), int(row[_SEQUENCE_AT:], 16))
    except ValueError:
        return None
    plan = topic.partitions.get(number)
    if plan is None or uid != topic.uid or len(row) != _ROW_CHARS or not block:
        return None
    seal = plan.seals.get(segment)
    if seal is None or not plan.floor <= key <= seal:
        return None
    return StoredBlock(number, *key, block)


def _partition(stored: StoredBlock) -> int:
    return stored.partition
