"""The data source `tms`, and its reader for batch queries.

driver     options ─▶ where topics begin and end ─▶ filters ─▶ splits
executor   split ─▶ blocks ─▶ Arrow record batches
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)

from tms.errors import Invalid
from tms.model.ids import TIME_MS_MAX
from tms.model.position import Position
from tms.runtime.clock import SystemClock
from tms.spark.rows import arrow_schema, batches, spark_ddl
from tms.spark.source.filters import Narrowing
from tms.spark.source.losses import LossRule
from tms.spark.source.offsets import OffsetRange
from tms.spark.source.options import ReadOptions, TopicPlace, read_options
from tms.spark.source.planning import latest, planned, resolved
from tms.spark.source.reading import SplitBlocks
from tms.spark.source.topics import Split, TopicReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class TmsDataSource(DataSource):
    """Topics as tables and streams: `spark.dataSource.register(TmsDataSource)`, then
    `spark.read.format("tms")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tms"

    def schema(self) -> str:
        """The columns, by the options, which are checked here so that `load()` tells what is
        wrong."""
        return spark_ddl(read_options(self.options).columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A reader for a batch query."""
        options = read_options(self.options, streaming=False)
        check_schema(schema, options)
        return PushingReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """A reader for a stream."""
        from tms.spark.source.stream import StreamReader

        options = read_options(self.options, streaming=True)
        check_schema(schema, options)
        return StreamReader(options, SystemClock())

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """A writer for a batch query."""
        from tms.spark.sink.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        """A writer for a stream."""
        from tms.spark.sink.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

    def __init__(self, split: Split) -> None:
        self.split = split


class BatchReader(DataSourceReader):
    """Reads everything between two bounds, which are found out when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each split."""
        with closing(open_topics(self._options.place)) as topics:
            ranges = self._ranges(topics)
            return [SplitPartition(split) for split in planned(topics, ranges, self._options)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of one split."""
        if not isinstance(partition, SplitPartition):
            return iter(())  # what Spark makes of no splits at all
        return read_split(self._options, partition.split)

    def _ranges(self, topics: TopicReader) -> list[OffsetRange]:
        options, narrowing = self._options, self._narrowing
        ends = latest(topics, options.subscription)
        starts = resolved(topics, options.starting, ends, options)
        stops = resolved(topics, options.ending, ends, options)
        ranges = []
        for topic in sorted(ends):
            times = _times(topics, topic.name, narrowing)
            for partition in sorted(ends[topic]):
                start, stop = starts[topic][partition], stops[topic][partition]
                if start > stop:
                    raise Invalid(
                        f"Partition {partition} of {topic.name} would be read from offset {start} "
                        f"back to {stop}: {options.starting.option} lies behind "
                        f"{options.ending.option}.",
                        field=options.ending.option,
                    )
                if not narrowing.reads(topic.name, partition):
                    continue
                start = max(start, narrowing.offset.low, times[0].get(partition, 0))
                stop = min(stop, times[1].get(partition, stop))
                if narrowing.offset.high is not None:
                    stop = min(stop, narrowing.offset.high)
                if start < stop:
                    ranges.append(OffsetRange(topic, partition, start, stop))
        return ranges


class PushingReader(BatchReader):
    """A reader that takes over filters, for queries that ask for it.

    Not every reader does, because Spark 4.2 keeps what was planned for the last scan of a loaded
    DataFrame for all its scans: with filters taken over, a second use of it, be it in the same
    query, would silently get the rows of another condition.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what narrows the reading; the rest is Spark's."""
        return self._narrowing.push(filters)


def _times(
    topics: TopicReader, topic: str, narrowing: Narrowing
) -> tuple[dict[int, int], dict[int, int]]:
    """By partition, the offsets at which the narrowed time begins and ends."""
    low, high = narrowing.time_ms.low, narrowing.time_ms.high
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    if low > 0:
        begin = dict(topics.offsets(topic, Position.time(min(low, TIME_MS_MAX))))
    if high is not None and high <= TIME_MS_MAX:
        end = dict(topics.offsets(topic, Position.time(max(0, high))))
    return begin, end


def open_topics(place: TopicPlace) -> TopicReader:
    """The reader of the topics at this place."""
    if place.store:
        from tms.spark.source.from_hbase import HBaseReader

        return HBaseReader(place.store, place.tls)
    from tms.spark.source.from_service import ServiceReader

    return ServiceReader(place.url, place.token, tls=place.tls, outage_s=place.outage_s)


def check_schema(schema: "StructType", options: ReadOptions) -> None:
    """Raises `Invalid` unless the schema is that of the options."""
    from pyspark.sql.pandas.types import to_arrow_schema

    expected = arrow_schema(options.columns)
    if not to_arrow_schema(schema, timezone="UTC").equals(expected):
        raise Invalid(
            f"A topic has the columns {', '.join(expected.names)}; the schema that was given has "
            f"others: {schema.simpleString()}. Leave out .schema(…), and use select.",
            field="schema",
        )


def read_split(options: ReadOptions, split: Split) -> Iterator["pa.RecordBatch"]:
    """The rows of one split, in a task."""
    rule = LossRule(options.fail_on_data_loss)
    with closing(open_topics(options.place)) as topics:
        blocks = SplitBlocks(topics, split, rule, SystemClock())
        yield from batches(blocks, split.topic, split.start, split.stop, options.columns)
