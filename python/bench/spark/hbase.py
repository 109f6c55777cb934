"""The cost of TMS on the way from HBase's Thrift servers into Spark.

    rows    `spark.read.format("tms")` with source=hbase: from splits to columns
    bare    the same rows by Thrift calls alone, 8 MiB each; a task counts them, and decodes nothing
    ready   bare, and for each block rows that were made ahead: the time of Spark for as many bytes

All are data sources in Python under one Spark, on two threads with a connection each, into the noop
sink: each includes Spark's start-up cost. Spark's CPU time counts, HBase's does not.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.report import Goal, Report, Sample, interleaved, measured, ratio
from bench.spark.common import MIB, THREADS, drain, pid, report_bytes, session
from bench.spark.filling import MESSAGE_BYTES, bulk, fill, ready
from bench.targets import Setup
from integration.cluster import Standalone
from integration.install import install
from tms.engine.observer import StoreObserver
from tms.model import keys
from tms.runtime.clock import SystemClock
from tms.spark.rows import WantedColumns, spark_ddl
from tms.store.hbase import HBasePlace, HBaseStore
from tms.store.hbase.connection import ThriftConnection, types
from tms.store.hbase.rows import BlockRows, rows_of
from tms.store.hbase.scanning import PAGE_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, BARE, READY = "rows", "bare", "ready"
BLOCK_BYTES = 256 << 10
GOAL = Goal(at_least=0.7)
TOPIC = "measured"
REGIONS = 4
_PARTITION_CHARS = 16  # of a row: salt, topic, partition
_CALL_S = 60.0
_WARM_UPS = 2  # Java compiles hot code


@dataclass(frozen=True, slots=True)
class Rows(InputPartition):
    """The rows of one partition of a topic."""

    place: HBasePlace
    table: bytes
    first: bytes
    stop: bytes


class Scans(DataSource):
    """The number of rows of a topic, found by reading them all."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "scans"

    def schema(self) -> str:
        """One row for each call, or for each message."""
        return spark_ddl(WantedColumns()) if self._kind == READY else "rows bigint"

    def reader(self, schema: object) -> DataSourceReader:
        """Options: `store`, `topic`, `as` bare or ready."""
        return ScansReader(self.options["store"], self.options["topic"], self._kind)

    @property
    def _kind(self) -> str:
        return self.options["as"]


class ScansReader(DataSourceReader):
    """Reads each partition of the topic in a task with one connection."""

    def __init__(self, store: str, topic: str, kind: str) -> None:
        self._store = store
        self._topic = topic
        self._kind = kind

    def partitions(self) -> list[InputPartition]:
        """A partition for each partition of the topic."""
        place = HBasePlace.parse(self._store)
        with closing(HBaseStore(self._store, watched=False)) as store:
            record = StoreObserver(store, SystemClock()).topic(self._topic).record
        found: list[InputPartition] = []
        for number in range(record.partitions):
            rows = rows_of(place.namespace, keys.segment_map(record.uid, number, 0))
            assert isinstance(rows, BlockRows)
            prefix = rows.prefix[:_PARTITION_CHARS]
            found.append(Rows(place, rows.table, prefix, prefix + b"g"))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A batch for each call, or for each block."""
        assert isinstance(partition, Rows)
        made = ready(BLOCK_BYTES)
        for count in _pages(partition):
            if self._kind == READY:
                yield from repeat(made, count)
                continue
            yield pa.record_batch({"rows": pa.array([count], pa.int64())})


def _pages(rows: Rows) -> Iterator[int]:
    """The number of rows of each call."""
    clock, page = SystemClock(), PAGE_BYTES // BLOCK_BYTES
    [(host, port)] = rows.place.servers
    start = rows.first
    with closing(
        ThriftConnection(host, port, clock, _CALL_S, clock.monotonic_s() + _CALL_S)
    ) as made:
        while True:
            scan = types().TScan(startRow=start, stopRow=rows.stop, caching=page, limit=page)
            arguments: tuple[Any, ...] = (rows.table, scan, page)
            found = made.call("getScannerResults", arguments, clock.monotonic_s() + _CALL_S)
            yield len(found)
            if len(found) < page:
                return
            start = found[-1].row + b"\0"


def run(setup: Setup, report: Report) -> None:
    """A topic as rows, beside the scans of its rows in HBase."""
    report.title("A topic in HBase read by Spark over Thrift, beside scans that decode nothing")
    blocks = (64 if setup.quick else 256) * MIB // BLOCK_BYTES
    with setup.directory() as directory, Standalone(directory / "hbase") as hbase:
        url = hbase.url("bench")
        install(url, regions=REGIONS)
        fill(url, TOPIC, THREADS, bulk(THREADS, blocks, BLOCK_BYTES))
        with session(directory) as spark:
            spark.dataSource.register(Scans)
            _compare(setup, report, spark, url, blocks)


def _compare(setup: Setup, report: Report, spark: "SparkSession", url: str, blocks: int) -> None:
    messages = blocks * THREADS * BLOCK_BYTES // MESSAGE_BYTES

    def read(kind: str) -> Sample:
        rows = _frame(spark, url, kind)
        sample = measured(lambda: drain(rows), pid(spark))
        return replace(sample, messages=messages)

    scanned = _frame(spark, url, BARE).agg({"rows": "sum"}).collect()
    assert [tuple(row) for row in scanned] == [(blocks * THREADS,)]
    for kind in (ROWS, READY):
        assert _frame(spark, url, kind).count() == messages
    variants = {kind: partial(read, kind) for kind in (ROWS, BARE, READY)}
    interleaved(variants, _WARM_UPS)
    samples = interleaved(variants, setup.runs)
    report_bytes(report, "spark_hbase", samples, MESSAGE_BYTES)
    share = ratio(samples, ROWS, BARE)
    report.line("spark_hbase", "rows ÷ bare", share, "×", GOAL, samples)
    report.line("spark_hbase", "ready ÷ bare", ratio(samples, READY, BARE), "×")
    report.line("spark_hbase", "rows ÷ ready", ratio(samples, ROWS, READY), "×")


def _frame(spark: "SparkSession", url: str, kind: str) -> "DataFrame":
    if kind == ROWS:
        found = spark.read.format("tms").option("source", "hbase").option("subscribe", TOPIC)
        return found.option("tms.store", url).load()
    return spark.read.format("scans").options(store=url, topic=TOPIC).option("as", kind).load()
