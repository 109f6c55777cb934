"""Topics through the Apache HBase Spark connector, for pyspark 3.5: Spark reads the rows of
`tms:messages` from the region servers, and Python unpacks them where they arrive.

    view on the driver ─▶ ranges of rows ─▶ connector, region by region ─▶ mapInArrow ─▶ rows

    row   salt 4 · uid 8 · partition 4 · segment 8 · time 16 · sequence 4     hexadecimal
    b, b01, b02, …                                                            the pieces of a block

Invariants

* The connector sees one condition only: a union of ranges of rows, none of them empty, because it
  turns a contradictory one into a scan of everything. Filters of users are applied to messages.
* Rows are judged by one image and one set of seals, both of the moment at which the DataFrame was
  made. So it shows the same whenever it is computed, as long as its messages are kept; those that
  are not any more are missing.
* A row that is not of this generation of the topic, lies behind its segment's seal, or has a key
  that is none, is not shown.
* Staged blocks of a transaction are fetched from HBase's Thrift server, by the task that meets
  them.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tms.engine.observer import ObservedPartition, ObservedTopic, StoreObserver, shown
from tms.errors import ConfigError, Invalid
from tms.log.records import BlockKey
from tms.log.staging import StagedBlocks
from tms.model import keys
from tms.model.message import Buffer, StoredBlock
from tms.model.position import Position
from tms.model.transaction_image import Fates
from tms.runtime.clock import SystemClock
from tms.spark.rows import WantedColumns, batches, spark_ddl
from tms.spark.runtime import Runtime, SparkLine
from tms.store.hbase import HBasePlace, HBaseStore
from tms.store.hbase.rows import BLOCK, MESSAGES, MORE, PREFIX_CHARS, BlockRows, rows_of, table_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "org.apache.hadoop.hbase.spark"
_LOOKS_AT_ONCE = 8  # at partitions
_QUORUM = "spark.hadoop.hbase.zookeeper.quorum"
_UID_AT, _PARTITION_AT, _SEGMENT_AT = 4, 12, 16
_SEQUENCE_AT = 40
_ROW_CHARS = 44


class OffsetBounds(NamedTuple):
    """The offsets to read of a partition, half open."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The visible part of a partition: offsets, the first key, and the end of each segment."""

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
        """The offsets to read of these partitions."""
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


def read(
    spark: "SparkSession",
    topic: str,
    store: str,
    *,
    start: str = "earliest",
    stop: str = "latest",
    partitions: list[int] | None = None,
    headers: bool = False,
    message_id: bool = False,
    event_time: bool = False,
) -> "DataFrame":
    """The committed messages of a topic, as they are now; see docs/spark.md for the columns.

    `store` is `hbase://HOST:PORT`: a Thrift server, which is asked for what is where; the messages
    come from the region servers. `start` and `stop` are positions as everywhere: `earliest`,
    `latest`, `time:MS`, `offset:N` or an id. Raises `TopicNotFound`, `ConfigError`, `Invalid`, and
    `StorageUnavailable` when HBase is away.
    """
    if Runtime().lane() is not SparkLine.SPARK35:
        raise ConfigError(
            "The HBase connector runs with pyspark 3.5 only. With this one, read the format tms "
            "with the options source=hbase and tms.store."
        )
    if not spark.conf.get(_QUORUM, ""):
        raise ConfigError(
            "The session does not know HBase's ZooKeeper. Make it with tms.spark.session(zookeeper="
            f"'HOST:PORT'), or set {_QUORUM}."
        )
    columns = WantedColumns(headers, message_id, event_time)
    with closing(HBaseStore(store, watched=False)) as opened:
        view = StoreObserver(opened, SystemClock()).topic(topic)
        wanted = _wanted(view, Position.parse(start), Position.parse(stop), partitions)
        plan = TopicPlan.of(view, store, wanted)
        namespace = opened.place.namespace
    if not plan.ranges:
        return spark.createDataFrame([], spark_ddl(columns))
    frame = _rows(spark, table_name(namespace, MESSAGES).decode(), plan)

    def messages(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        return unpack(batches, plan, columns)

    return frame.mapInArrow(messages, spark_ddl(columns))


def _rows(spark: "SparkSession", table: str, topic: TopicPlan) -> "DataFrame":
    """The rows of HBase's table in the topic's ranges: their keys and cells."""
    cells = [one.decode() for one in (BLOCK, *MORE)]
    mapping = ["row STRING :key", *(f"{cell} BINARY m:{cell}" for cell in cells)]
    frame = (
        spark.read.format(FORMAT)
        .option("hbase.table", table)
        .option("hbase.columns.mapping", ", ".join(mapping))
        .option("hbase.spark.use.hbasecontext", "false")
        .option("hbase.spark.pushdown.columnfilter", "false")  # needs protobuf 3 in HBase
        .load()
    )
    condition = " OR ".join(f"(row >= '{low}' AND row < '{high}')" for low, high in topic.ranges)
    return frame.filter(condition).select("row", *cells)  # the connector has an order of its own


def _wanted(
    view: ObservedTopic, start: Position, stop: Position, partitions: list[int] | None
) -> list[tuple[ObservedPartition, OffsetBounds]]:
    """The partitions that have something of this, and what."""

    def look(number: int) -> tuple[ObservedPartition, OffsetBounds]:
        one = view.partition(number)
        return one, OffsetBounds(one.offset_at(start), one.offset_at(stop))

    numbers = range(view.record.partitions) if partitions is None else sorted(set(partitions))
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, "tms-look") as threads:
        looked = list(threads.map(look, numbers))
    for one, bounds in looked:
        if bounds.start > bounds.stop:
            raise Invalid(
                f"Partition {one.partition} of {view.name} would be read from offset "
                f"{bounds.start} to {bounds.stop}: the end lies before the start.",
                field="stop",
            )
    return [(one, bounds) for one, bounds in looked if bounds.start < bounds.stop]


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
