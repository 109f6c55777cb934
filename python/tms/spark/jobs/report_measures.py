"""What was published to topics, by hour: one pass over the messages, without their values.

    rows ─▶ time, key, size ─▶ by partition in order of offsets: what lies before each ─▶ by hour

Invariants

* Hours are of UTC, whatever the time zone of the session.
* A percentile is a size, or a gap, that occurs: the smallest that at least so many are not larger
  than. Up to 10,000 of them it is exact, beyond that within 0.01 percent of the ranks.
* A gap, between messages as between offsets, lies between two messages of a partition, and belongs
  to the hour of the second.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tms.spark.jobs.place import Subject, Topics, errors_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HOUR_US = 3_600_000_000
_MEASURED = (
    "topic",
    "partition",
    "offset",
    "key",
    "unix_micros(timestamp) AS at_us",
    "CAST(coalesce(length(key), 0) + coalesce(length(value), 0) AS BIGINT) AS size",
)
_BEFORE = "lag({0}) OVER (PARTITION BY topic, partition ORDER BY offset)"
_PERCENTILES = "percentile_approx({0}, array(0.5D, 0.9D, 0.99D), 10000)"


class Hour(NamedTuple):
    """What was published to a topic in one hour. Sizes are of key and value, gaps between messages
    of the same partition; `unseen` are offsets between them whose messages nobody may see."""

    topic: str
    hour: datetime
    messages: int
    bytes: int
    keys: int
    size_p50: int
    size_p90: int
    size_p99: int
    size_max: int
    gap_p50_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None
    unseen: int


def report(
    spark: "SparkSession",
    topics: Topics,
    url: str | None = None,
    *,
    token: str | None = None,
    store: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Hour]:
    """What was published to each topic in each hour that had messages, in order of topic and hour;
    only what was published at or after `since` and before `until`, where they are given.

    Raises `TopicNotFound`, `Invalid`.
    """
    subject = Subject.of(topics, url, token, store)
    more = {"startingOffsetsByTimestampStrategy": "latest"}
    if since is not None:
        more["startingTimestamp"] = str(_ms(since))
    if until is not None:
        more["endingTimestamp"] = str(_ms(until))
    with errors_told():
        return [_hour(row.asDict()) for row in _by_hour(subject.rows(spark, more)).collect()]


def _ms(moment: datetime) -> int:
    """The first millisecond that is not before it."""
    return -int(-moment.timestamp() * 1_000 // 1)


def _by_hour(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    in_order = rows.selectExpr(*_MEASURED).selectExpr(
        "*",
        f"at_us - {_BEFORE.format('at_us')} AS gap_us",
        f"offset - {_BEFORE.format('offset')} - 1 AS unseen",
    )
    return (
        in_order.groupBy("topic", F.expr(f"at_us DIV {_HOUR_US}").alias("hour"))
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.count_distinct("key").alias("keys"),
            F.expr(_PERCENTILES.format("size")).alias("sizes"),
            F.max("size").alias("size_max"),
            F.expr(_PERCENTILES.format("gap_us")).alias("gaps"),
            F.max("gap_us").alias("gap_max"),
            F.sum("unseen").alias("unseen"),
        )
        .orderBy("topic", "hour")
    )


def _hour(row: dict[str, Any]) -> Hour:
    p50, p90, p99 = row["sizes"]
    gap_p50, _, gap_p99 = row["gaps"] or (None, None, None)
    return Hour(
        row["topic"],
        datetime.fromtimestamp(row["hour"] * 3_600, UTC),
        row["messages"],
        row["bytes"],
        row["keys"],
        p50,
        p90,
        p99,
        row["size_max"],
        _seconds(gap_p50),
        _seconds(gap_p99),
        _seconds(row["gap_max"]),
        row["unseen"] or 0,
    )


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1_000_000
