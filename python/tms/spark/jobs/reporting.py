"""Numbers of the messages of topics by hour, in one pass that does not read their values.

    rows ─▶ time, key, size ─▶ by partition in order of offsets: what lies before each ─▶ by hour

Invariants

* Hours are of UTC, whatever the time zone of the session.
* A percentile is a size, or a gap, that occurs. It is exact for up to 10,000 values, and beyond
  that within 0.01 percent of the ranks.
* A gap, between messages as between offsets, lies between two messages of a partition, and belongs
  to the hour of the second.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tms.spark.jobs.place import Names, Subject, errors_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HOUR_S = 3_600
_HOUR_US = 1_000_000 * _HOUR_S
_MEASURED = (
    "topic",
    "partition",
    "offset",
    "key",
    "unix_micros(timestamp) AS at_us",
    "CAST(coalesce(length(key), 0) + coalesce(length(value), 0) AS BIGINT) AS size",
)
_BEFORE = "lag({0}) OVER (PARTITION BY topic, partition ORDER BY offset)"
_NUMBERS = {  # of an hour, by the fields of `Hour`
    "messages": "count(*)",
    "bytes": "sum(size)",
    "keys": "count(DISTINCT key)",
    "size_p50": "percentile_approx(size, 0.5D, 10000)",
    "size_p90": "percentile_approx(size, 0.9D, 10000)",
    "size_p99": "percentile_approx(size, 0.99D, 10000)",
    "size_max": "max(size)",
    "gap_p50_s": "percentile_approx(gap_us, 0.5D, 10000) / 1e6D",
    "gap_p99_s": "percentile_approx(gap_us, 0.99D, 10000) / 1e6D",
    "gap_max_s": "max(gap_us) / 1e6D",
    "unseen": "coalesce(sum(unseen), 0)",
}


class Hour(NamedTuple):
    """The numbers of one topic in one hour. Sizes are in bytes of key and value; gaps lie between
    messages of the same partition. `unseen` counts the offsets between messages that hold no
    readable message."""

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
    topics: Names,
    url: str | None = None,
    *,
    token: str | None = None,
    store: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Hour]:
    """The numbers of each topic and each hour that had messages, in order of topic and hour. Only
    messages published at or after `since` and before `until` count, where these are given.

    Raises `TopicNotFound`, `Invalid`.
    """
    subject = Subject.of(topics, url, token, store)
    more = {"startingOffsetsByTimestampStrategy": "latest"}
    if since is not None:
        more["startingTimestamp"] = str(_ms(since))
    if until is not None:
        more["endingTimestamp"] = str(_ms(until))
    with errors_told():
        rows = _by_hour(subject.rows(spark, more)).collect()
    return [Hour(**row.asDict() | {"hour": _moment(row.hour)}) for row in rows]


def _ms(moment: datetime) -> int:
    """The first millisecond that is not before `moment`, since 1970."""
    return -int(-moment.timestamp() * 1_000 // 1)


def _moment(hours: int) -> datetime:
    return datetime.fromtimestamp(hours * _HOUR_S, UTC)


def _by_hour(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    in_order = rows.selectExpr(*_MEASURED).selectExpr(
        "*",
        f"at_us - {_BEFORE.format('at_us')} AS gap_us",
        f"offset - {_BEFORE.format('offset')} - 1 AS unseen",
    )
    by_hour = in_order.groupBy("topic", F.expr(f"at_us DIV {_HOUR_US}").alias("hour"))
    numbers = (F.expr(text).alias(name) for name, text in _NUMBERS.items())
    return by_hour.agg(*numbers).orderBy("topic", "hour")
