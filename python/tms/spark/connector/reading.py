"""A topic as a DataFrame of pyspark 3.5.

Invariants

* The connector sees one condition only: a union of ranges of rows, none of them empty, because of a
  contradictory one it makes a scan of everything. What users filter by is applied to messages.
* Rows are judged by one image and one set of seals, both of the moment at which the DataFrame was
  made. So it shows the same whenever it is computed, as long as its messages are kept; those that
  are not any more are missing.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

from tms.clock import SystemClock
from tms.errors import ConfigError, Invalid
from tms.model.position import Position
from tms.observer import ObservedPartition, ObservedTopic, StoreObserver
from tms.spark.connector.plans import OffsetBounds, TopicPlan, unpack
from tms.spark.rows import WantedColumns, spark_ddl
from tms.spark.runtime import Runtime, SparkLine
from tms.store.hbase import HBaseStore
from tms.store.hbase.rows import BLOCK, MESSAGES, MORE, table_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "org.apache.hadoop.hbase.spark"
_LOOKS_AT_ONCE = 8  # at partitions
_QUORUM = "spark.hadoop.hbase.zookeeper.quorum"


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
    columns = WantedColumns(headers, message_id)
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
