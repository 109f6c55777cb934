"""The part of `bench.spark.connector` that runs with pyspark 3.5: reads, and writes samples."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.report import Sample, interleaved, measured
from bench.spark.common import drain, pid, session
from bench.spark.connector import BLOCK_BYTES, RAW, READY, ROWS
from bench.spark.filling import ready
from integration.cluster.runtime import resolve_connector
from tms.engine.observer import StoreObserver
from tms.runtime.clock import SystemClock
from tms.spark.connector import FORMAT, OffsetBounds, TopicPlan, read
from tms.spark.rows import WantedColumns, spark_ddl
from tms.store.hbase import HBaseStore
from tms.store.hbase.rows import BLOCK, MESSAGES, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Reads:
    """The ways to read the topic."""

    def __init__(self, spark: "SparkSession", store: str, topic: str, messages: int) -> None:
        self._spark = spark
        self._store = store
        self._topic = topic
        self._messages = messages
        with closing(HBaseStore(store, watched=False)) as opened:
            view = StoreObserver(opened, SystemClock()).topic(topic)
            each = map(view.partition, range(view.record.partitions))
            wanted = [(one, OffsetBounds(one.start(), one.end().offset)) for one in each]
            self._ranges = TopicPlan.of(view, store, wanted).ranges
            self._table = table_name(opened.place.namespace, MESSAGES).decode()

    def rows(self) -> "DataFrame":
        """Messages."""
        return read(self._spark, self._topic, self._store)

    def raw(self) -> "DataFrame":
        """Blocks, each in one cell."""
        frame = (
            self._spark.read.format(FORMAT)
            .option("hbase.table", self._table)
            .option("hbase.columns.mapping", f"row STRING :key, block BINARY m:{BLOCK.decode()}")
            .option("hbase.spark.use.hbasecontext", "false")
            .option("hbase.spark.pushdown.columnfilter", "false")
            .load()
        )
        ranges = (f"(row >= '{low}' AND row < '{high}')" for low, high in self._ranges)
        return frame.filter(" OR ".join(ranges)).select("row", "block")

    def ready(self) -> "DataFrame":
        """Rows that were made ahead, as many as the topic has messages."""
        return self.raw().mapInArrow(_ready, spark_ddl(WantedColumns()))

    def sample(self, kind: str) -> Sample:
        """Read everything in one way, planned anew."""
        make = {ROWS: self.rows, RAW: self.raw, READY: self.ready}[kind]
        sample = measured(lambda: drain(make()), pid(self._spark))
        return replace(sample, messages=self._messages)


def _ready(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    made = ready(BLOCK_BYTES)
    for batch in found:
        yield from repeat(made, batch.num_rows)


def main() -> None:
    """Measure as the first argument says, and write the samples into the file that the second
    names."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    jars = ",".join(map(str, resolve_connector().glob("*.jar")))
    directory = Path(told["directory"])
    with session(directory, told["zookeeper"], **{"spark.jars": jars}) as spark:
        reads = Reads(spark, told["store"], told["topic"], told["messages"])
        assert reads.raw().count() == told["blocks"]
        assert reads.rows().count() == told["messages"]
        variants = {kind: partial(reads.sample, kind) for kind in (ROWS, RAW, READY)}
        for kind in variants:  # Java compiles hot code
            reads.sample(kind)
        samples = interleaved(variants, told["runs"])
    found = {name: [asdict(one) for one in its] for name, its in samples.items()}
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
