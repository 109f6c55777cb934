"""Spark 3.5 takes the rows: blocks go through `mapInArrow`, as they will come out of HBase."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tms.block import Compression, encode, place
from tms.errors import ConfigError
from tms.model.message import StoredBlock
from tms.spark import register
from tms.spark.rows import WantedColumns, batches, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine
ALL = WantedColumns(headers=True, message_id=True)
TIME_MS = 1_700_000_000_123
COUNT = 1_000


def cells() -> tuple[list[bytes | None], list[bytes | None], list[dict[str, bytes]]]:
    """Keys, values and headers of messages, some without each."""
    keys = [None if i % 5 == 0 else b"k%d" % i for i in range(COUNT)]
    values = [None if i % 7 == 0 else b"v%d" % i for i in range(COUNT)]
    return keys, values, [{"h": b"%d" % i} if i % 3 else {} for i in range(COUNT)]


def blocks(spark: "SparkSession", compression: Compression) -> "DataFrame":
    """The messages as rows of blocks: some with a few messages, some with many."""
    keys, values, headers = cells()
    rows = []
    for start, stop in ((0, 3), (3, 20), (20, 400), (400, COUNT)):
        block = encode(
            values[start:stop], keys[start:stop], headers[start:stop], compression=compression
        )
        place(block, start)
        rows.append((block, TIME_MS, stop - 1))
    return spark.createDataFrame(rows, "block binary, time_ms bigint, last int")


def unpacked(found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What `mapInArrow` calls."""
    stored = (
        StoredBlock(2, time_ms, last, block.as_buffer())
        for batch in found
        for block, time_ms, last in zip(
            batch["block"], *(batch[name].to_pylist() for name in ("time_ms", "last")), strict=True
        )
    )
    yield from batches(stored, "t", 1, COUNT - 1, ALL)


@pytest.mark.parametrize("compression", [*Compression])
def test_blocks_become_rows(spark: "SparkSession", compression: Compression) -> None:
    keys, values, headers = cells()
    rows = blocks(spark, compression).mapInArrow(unpacked, spark_ddl(ALL)).collect()
    rows.sort(key=lambda row: row.offset)
    inner = slice(1, COUNT - 1)
    assert [row.offset for row in rows] == [*range(COUNT)][inner]
    assert [row.key for row in rows] == keys[inner]
    assert [row.value for row in rows] == values[inner]
    assert [row.headers and dict(row.headers) for row in rows] == [
        one or None for one in headers[inner]
    ]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {("t", 2, 1)}
    published = datetime.fromtimestamp(TIME_MS / 1000, UTC)
    assert {row.timestamp.astimezone(UTC) for row in rows} == {published}
    assert [row.id for row in rows] == [
        f"{TIME_MS:016x}{offset:04x}{0:020x}" for offset in range(1, COUNT - 1)
    ]


def test_spark_counts_few_rows_for_a_batch_because_they_are_blocks(spark: "SparkSession") -> None:
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "64"


def test_the_data_source_says_that_it_needs_spark_4(spark: "SparkSession") -> None:
    with pytest.raises(ConfigError, match=r"3\.5 has no data sources in Python"):
        register(spark)


def test_the_connector_to_hbase_is_there(spark: "SparkSession") -> None:
    java = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    loader = java.Thread.currentThread().getContextClassLoader()
    for name in ("spark.DefaultSource", "mapreduce.TableInputFormat"):
        found = java.Class.forName(f"org.apache.hadoop.hbase.{name}", True, loader)
        assert found.getSimpleName() == name.partition(".")[2]
