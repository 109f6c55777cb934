"""The blocks that are read for one hour of a topic, counted as HBase delivers them.

    the hour    blocks that were written in it
    planning    blocks that the driver reads: the end of the topic, the begin of the hour
    reading     blocks that tasks get: those of their splits, and those read to find them

All of these are rows of `messages` that Thrift delivered with their values, counted where answers
arrive. The source is called as Spark calls it, without Spark. The ranges of rows that the connector
of Spark 3.5 gets are counted by scanning them.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from bench.report import Goal, Report
from bench.spark.filling import DAY_MS, HOUR_MS, MESSAGE_BYTES, Append, different, fill, now_ms
from bench.targets import Setup
from integration.cluster import Standalone
from integration.install import install
from tms.engine.observer import StoreObserver
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.runtime.clock import SystemClock
from tms.spark.connector import OffsetBounds, TopicPlan
from tms.spark.source.options import read_options
from tms.spark.source.reader import BatchReader
from tms.store.hbase import HBasePlace, HBaseStore
from tms.store.hbase.connection import ThriftConnection
from tms.store.hbase.pool import Limits, Pool
from tms.store.hbase.rows import MESSAGES, table_name
from tms.store.hbase.scanning import LENGTHS, lengths

GOAL = Goal(at_most=1.2)
TOPIC = "measured"
PARTITIONS = 1
BLOCK_BYTES = 1 << 10
BLOCKS_PER_HOUR = 240  # of each partition
REGIONS = 4
_STEP_MS = 3 * 60_000
_BLOCKS_PER_STEP = BLOCKS_PER_HOUR * _STEP_MS // HOUR_MS


def run(setup: Setup, report: Report) -> None:
    """One hour in the middle of a topic, through both ways into Spark."""
    days = 3 if setup.quick else 30
    report.title(f"One hour of a topic of {days} days in HBase: blocks that are read for it")
    with setup.directory() as directory, Standalone(directory) as hbase:
        url = hbase.url("bench")
        install(url, regions=REGIONS)
        last_ms = now_ms() - HOUR_MS
        fill(url, TOPIC, PARTITIONS, _appends(last_ms - days * DAY_MS, last_ms))
        start_ms = last_ms - days * DAY_MS // 2 - HOUR_MS // 2
        _source(report, url, start_ms)
        _connector(report, url, start_ms)


def _appends(start_ms: int, stop_ms: int) -> Iterator[Append]:
    made = different(BLOCK_BYTES)
    for time_ms in range(start_ms, stop_ms, _STEP_MS):
        count = PARTITIONS * _BLOCKS_PER_STEP
        yield time_ms, [NewBlock(number % PARTITIONS, next(made)) for number in range(count)]


def _source(report: Report, url: str, start_ms: int) -> None:
    """The data source with source=hbase."""
    given = {"source": "hbase", "tms.store": url, "subscribe": TOPIC}
    times = {"startingTimestamp": str(start_ms), "endingTimestamp": str(start_ms + HOUR_MS)}
    reader = BatchReader(read_options(given | times, streaming=False))
    with _delivered() as planning:
        splits = reader.partitions()
    with _delivered() as reading:
        messages = sum(batch.num_rows for split in splits for batch in reader.read(split))
    wanted = PARTITIONS * BLOCKS_PER_HOUR
    assert messages == wanted * BLOCK_BYTES // MESSAGE_BYTES
    _told(report, "source", wanted, {"planning": sum(planning), "reading": sum(reading)})


def _connector(report: Report, url: str, start_ms: int) -> None:
    """The ranges that the connector reads, and the blocks read to find them."""
    start, stop = Position.time(start_ms), Position.time(start_ms + HOUR_MS)
    with closing(HBaseStore(url, watched=False)) as store, _delivered() as planning:
        view = StoreObserver(store, SystemClock()).topic(TOPIC)
        each = [view.partition(number) for number in range(PARTITIONS)]
        wanted = [(one, OffsetBounds(one.offset_at(start), one.offset_at(stop))) for one in each]
        topic = TopicPlan.of(view, url, wanted)
    assert all(len(one.segments) > 1 for one in each)
    place = HBasePlace.parse(url)
    table = table_name(place.namespace, MESSAGES)
    with closing(Pool(place, SystemClock(), Limits())) as pool:
        ranges = [(low.encode(), high.encode()) for low, high in topic.ranges]
        rows = sum(len(list(lengths(pool, table, *one))) for one in ranges)
    blocks = PARTITIONS * BLOCKS_PER_HOUR
    _told(report, "connector", blocks, {"planning": sum(planning), "reading": rows})


def _told(report: Report, lane: str, wanted: int, blocks: dict[str, int]) -> None:
    for what, count in blocks.items():
        report.line("spark_hour", f"{lane}, {what}", count, "blocks")
    report.line(
        "spark_hour", f"{lane}, reading ÷ the hour's", blocks["reading"] / wanted, "×", GOAL
    )
    whole = sum(blocks.values()) / wanted
    report.line("spark_hour", f"{lane}, planning and reading ÷ the hour's", whole, "×", GOAL)


@contextmanager
def _delivered() -> Iterator[list[int]]:
    """The number of rows of messages, with their values, that each call brings meanwhile."""
    call, counts = ThriftConnection.call, list[int]()

    def noted(
        self: ThriftConnection, method: str, arguments: tuple[Any, ...], until_s: float
    ) -> Any:
        answer = call(self, method, arguments, until_s)
        if method in ("getScannerResults", "get") and arguments[0].endswith(MESSAGES.encode()):
            found = answer if isinstance(answer, list) else [answer]
            whole = getattr(arguments[1], "filterString", None) != LENGTHS
            counts.append(sum(1 for row in found if row.columnValues) if whole else 0)
        return answer

    ThriftConnection.call = noted  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        ThriftConnection.call = call  # type: ignore[method-assign]
