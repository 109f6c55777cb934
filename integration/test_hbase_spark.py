"""Jobs of Spark on topics in a real HBase, while no service runs."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.spark_kit import spark
from tests.spark_topics_kit import Row, consumed, in_order, topics
from tms.spark import jobs
from tms.store.hbase import HBaseStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

PARTITIONS = 3
pytestmark = pytest.mark.long  # `test_hbase_view` reads the same way, without a Spark


@pytest.fixture(scope="module")
def filled(installed: str) -> Iterator[list[Row]]:
    """The messages of the topic `flights` as a consumer gets them. Its service has ended."""
    with closing(HBaseStore(installed)) as store, topics(store) as found:
        found.bus.create_topic("flights", partitions=PARTITIONS, durability="written")
        found.fill(Random(5), "flights", PARTITIONS, 60)
        for pointer in found.open[:]:
            found.abort(pointer)
        rows = consumed(found.bus, "flights")
    assert len(rows) > 100
    yield rows


def test_an_archive_is_made_without_a_service_and_goes_on(
    spark: "SparkSession", installed: str, filled: list[Row], tmp_path: Path
) -> None:
    small = {"rows_per_batch": 150, "rows_per_file": 150}
    first = jobs.archive(spark, "flights", str(tmp_path), store=installed, **small)
    rows = jobs.archived(spark, str(tmp_path)).drop("date").collect()
    assert first.rows == len(rows) and first.batches > 1
    columns = [*filled[0]]
    found = in_order({name: row[name] for name in columns} for row in rows)
    assert [(row["partition"], row["offset"]) for row in found] == [
        (row["partition"], row["offset"]) for row in filled
    ]
    assert [row["value"] for row in found] == [row["value"] for row in filled]
    again = jobs.archive(spark, "flights", str(tmp_path), store=installed)
    assert again.rows == 0


def test_a_report_an_audit_and_a_query_need_no_service(
    spark: "SparkSession", installed: str, filled: list[Row]
) -> None:
    hours = jobs.report(spark, "flights", store=installed)
    assert sum(hour.messages for hour in hours) == len(filled)
    audit = jobs.compact_check(spark, "flights", store=installed)
    assert audit.is_sound and not audit.findings
    assert sum(one.messages for one in audit.partitions) == len(filled)
    query = "SELECT partition, count(*) AS n FROM flights GROUP BY partition"
    found = jobs.sql(spark, "flights", query, store=installed)
    assert found is not None
    assert {row.partition: row.n for row in found.collect()} == {
        number: sum(row["partition"] == number for row in filled) for number in range(PARTITIONS)
    }
