"""Spark itself takes the rows: their schema is Spark's, and their cells arrive unchanged."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.spark.test_spark_rows import stored
from tests.spark_kit import spark
from tms.block import Compression, encode
from tms.spark.rows import WantedColumns, arrow_schema, batches, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine
ALL = WantedColumns(headers=True, message_id=True)


@pytest.mark.parametrize(
    "columns", [WantedColumns(), WantedColumns(True), WantedColumns(message_id=True), ALL]
)
def test_sparks_schema_is_the_one_of_the_batches(
    spark: "SparkSession", columns: WantedColumns
) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    meant = to_arrow_schema(StructType.fromDDL(spark_ddl(columns)), timezone="UTC")
    assert meant.equals(arrow_schema(columns), check_metadata=True)


def test_a_data_source_may_yield_the_batches(spark: "SparkSession") -> None:
    """Checked with blocks of few messages, of many, compressed, cut, some without keys, values or
    headers."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    keys = [None if i % 5 == 0 else b"k%d" % i for i in range(400)]
    values = [None if i % 7 == 0 else b"v%d" % i for i in range(400)]
    headers = [{"h": b"%d" % i} if i % 3 else {} for i in range(400)]
    blocks = [stored(encode(values[:3], keys[:3], headers[:3]), 0)]
    blocks += [stored(encode(values[3:100], keys[3:100], headers[3:100]), 3)]
    blocks += [
        stored(encode(values[100:], keys[100:], headers[100:], compression=Compression.ZSTD), 100)
    ]

    class Literal(DataSource):
        @classmethod
        def name(cls) -> str:
            return "literal"

        def schema(self) -> str:
            return spark_ddl(ALL)

        def reader(self, schema: object) -> DataSourceReader:
            return LiteralReader()

    class LiteralReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition((0, 50)), InputPartition((50, 399))]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            yield from batches(blocks, "t", *partition.value, ALL)

    spark.dataSource.register(Literal)
    rows = spark.read.format("literal").load().orderBy("offset").collect()
    assert [row.offset for row in rows] == [*range(399)]
    assert [row.key for row in rows] == keys[:-1]
    assert [row.value for row in rows] == values[:-1]
    assert [row.headers and dict(row.headers) for row in rows] == [
        one or None for one in headers[:-1]
    ]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {("t", 0, 1)}
    published = datetime.fromtimestamp(1_700_000_000, UTC)
    assert {row.timestamp.astimezone(UTC) for row in rows} == {published}
    assert len({row.id for row in rows}) == 300


def test_a_session_is_what_tms_says(spark: "SparkSession") -> None:
    from pyspark.errors import AnalysisException

    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    with pytest.raises(AnalysisException, match="subscribe"):
        spark.read.format("tms").load()
