"""The data source `tms` in a real Spark, on a real service: tables, streams, and repetitions after
a failure."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark_kit import spark
from tests.spark_topics_kit import Row, Topics, consumed, in_order, topic, world
from tms.model.transaction import Commit

__all__ = ["spark", "topic", "world"]

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine
WAIT_S = 120
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def table(spark: SparkSession, world: Topics, **options: str) -> DataFrame:
    """A topic as a table."""
    return spark.read.format("tms").option("tms.url", world.url).options(**options).load()


def rows(frame: DataFrame) -> list[Row]:
    """The rows, in order of topic, partition and offset."""
    return in_order(frame.toArrow().to_pylist())


class Query:
    """A query that writes its rows into a list of batches; it can be made to fail."""

    def __init__(self, spark: SparkSession, world: Topics, checkpoint: Path) -> None:
        self._spark = spark
        self._url = world.url
        self._checkpoint = checkpoint
        self.batches: list[tuple[int, list[Row]]] = []
        self.fail_in: int | None = None

    def start(self, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("tms").option("tms.url", self._url)
        frame = reader.options(**{"startingOffsets": "earliest"} | options).load()
        return (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, **options: str) -> StreamingQuery:
        """Run until all messages that are there now are read."""
        query = self.start(**options)
        assert query.awaitTermination(WAIT_S)
        return query

    @property
    def rows(self) -> list[Row]:
        return in_order(row for _, batch in self.batches for row in batch)

    @property
    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows]

    def _take(self, batch: DataFrame, number: int) -> None:
        self.batches.append((number, rows(batch)))
        if self.fail_in == number:
            raise RuntimeError("the batch was read, but not used")


@pytest.fixture
def query(spark: SparkSession, world: Topics, tmp_path: Path) -> Query:
    return Query(spark, world, tmp_path / "checkpoint")


# --- tables ---------------------------------------------------------------------------------------


def test_a_topic_has_the_columns_of_kafka(spark: SparkSession, world: Topics, topic: str) -> None:
    frame = table(spark, world, subscribe=topic)
    assert frame.columns == COLUMNS
    assert [kind for _, kind in frame.dtypes] == (
        ["binary", "binary", "string", "int", "bigint", "timestamp", "int"]
    )
    more = table(spark, world, subscribe=topic, includeHeaders="true", includeMessageId="true")
    assert more.columns == [*COLUMNS, "headers", "id"]
    headers = "array<struct<key:string,value:binary>>"
    assert more.dtypes[-2:] == [("headers", headers), ("id", "string")]
    timed = table(spark, world, subscribe=topic, includeEventTime="true")
    assert timed.dtypes[-1] == ("event_time", "timestamp")
    world.bus.publish(topic, b"timed", event_time_ms=1_000)
    last = timed.where("value = 'timed'").selectExpr("unix_millis(event_time)").collect()
    assert last == [(1_000,)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_table_has_what_a_consumer_gets(
    spark: SparkSession, world: Topics, topic: str, seed: int
) -> None:
    other = f"{topic}-other"
    world.bus.create_topic(other, durability="written")
    for name, partitions in ((topic, 2), (other, 1)):
        world.fill(Random(seed), name, partitions, 80)
    frame = table(
        spark,
        world,
        subscribe=f"{topic},{other}",
        includeHeaders="true",
        includeMessageId="true",
        minPartitions=str(seed * 4),
    )
    assert rows(frame) == consumed(world.bus, topic, other)
    assert frame.rdd.getNumPartitions() >= seed * 4


def test_a_table_between_times(spark: SparkSession, world: Topics, topic: str) -> None:
    times = []
    for number in range(3):
        id = world.bus.publish(topic, b"%d" % number, partition=number % 2)
        assert id is not None
        times.append(id.time_ms)
        while world.engine.topics.clock.now_ms() <= id.time_ms:
            pass  # the next millisecond
    between = {"startingTimestamp": str(times[0]), "endingTimestamp": str(times[2])}
    frame = table(spark, world, subscribe=topic, **between)
    assert [row["value"] for row in rows(frame)] == [b"0", b"1"]


CONDITIONS: list[tuple[str, Callable[[Row], bool]]] = [
    ("partition IN (0, 2, NULL)", lambda row: row["partition"] in (0, 2)),
    ("partition <> 1 AND offset > 5", lambda row: row["partition"] != 1 and row["offset"] > 5),
    ("partition <=> 2", lambda row: row["partition"] == 2),
    ("offset IN (2, 7)", lambda row: row["offset"] in (2, 7)),
    ("offset < 4 OR partition = 2", lambda row: row["offset"] < 4 or row["partition"] == 2),
    ("topic = 'nothing'", lambda row: False),
    ("topic IS NOT NULL AND key IS NULL", lambda row: row["key"] is None),
    ("key = X'6B31' AND partition < 2", lambda row: row["key"] == b"k1" and row["partition"] < 2),
]


def test_a_condition_leaves_the_same_rows_whoever_applies_it(
    spark: SparkSession, world: Topics, topic: str
) -> None:
    world.bus.update_topic(topic, partitions=3)
    for partition in range(3):
        for number in range(6):
            world.bus.publish_many(
                topic, [b"v"] * 2, keys=[b"k%d" % number, None], partition=partition
            )
            while number == 2 and world.engine.topics.clock.now_ms() % 2 == 0:
                pass  # so that not all have one time
    everything = consumed(world.bus, topic)
    moments = sorted({row["timestamp"] for row in everything})
    middle = moments[len(moments) // 2]
    written = f"TIMESTAMP '{middle:%Y-%m-%d %H:%M:%S.%f}+00:00'"
    conditions = [
        *CONDITIONS,
        (f"timestamp >= {written}", lambda row: row["timestamp"] >= middle),
        (f"timestamp < {written}", lambda row: row["timestamp"] < middle),
    ]
    for condition, holds_for in conditions:
        expected = [_plain(row) for row in everything if holds_for(row)]
        frame = table(spark, world, subscribe=topic, pushFilters="true")
        assert rows(frame.filter(condition)) == expected, condition


def test_a_table_may_be_used_again_with_another_condition(
    spark: SparkSession, world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 10)
    world.publish(topic, 1, 5)
    frame = table(spark, world, subscribe=topic)
    one, other = frame.filter("partition = 1"), frame.filter("partition = 0 AND offset < 2")
    assert [len(rows(some)) for some in (one, frame, other, one)] == [5, 15, 2, 5]
    assert len(rows(one.union(frame).union(other))) == 22


def test_filters_are_not_pushed_in_a_session_that_forbids_it(
    spark: SparkSession, world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 3)
    allowed = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(allowed, "false")  # a new session would not find the format
    try:
        assert len(rows(table(spark, world, subscribe=topic).filter("offset > 0"))) == 2
        with pytest.raises(PySparkException, match=allowed):
            table(spark, world, subscribe=topic, pushFilters="true").collect()
    finally:
        spark.conf.set(allowed, "true")


def _plain(row: Row) -> Row:
    return {name: row[name] for name in COLUMNS}


@pytest.mark.parametrize(
    "condition, tasks",
    [
        ("partition IN (1, 3)", 2),
        ("partition = 2 AND offset >= 4", 1),
        ("offset < 3", 4),
        ("timestamp >= TIMESTAMP '2001-01-01 00:00:00'", 4),
        ("timestamp < TIMESTAMP '2001-01-01 00:00:00'", 1),  # Spark turns no task into one
    ],
)
def test_a_condition_on_places_decides_what_is_read(
    spark: SparkSession, world: Topics, topic: str, condition: str, tasks: int
) -> None:
    world.bus.update_topic(topic, partitions=4)
    for partition in range(4):
        world.publish(topic, partition, 10)
    frame = table(spark, world, subscribe=topic, pushFilters="true").filter(condition)
    assert frame.rdd.getNumPartitions() == tasks
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, "Spark applies it once more"


def test_sql_over_topics(spark: SparkSession, world: Topics, topic: str) -> None:
    world.bus.publish_many(topic, [b"1", b"2", b"3"], keys=[b"a", b"b", b"a"])
    table(spark, world, subscribe=topic).createOrReplaceTempView("numbers")
    found = spark.sql(
        "SELECT string(key) AS key, sum(int(string(value))) AS total FROM numbers "
        "GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in found.collect()] == [("a", 4), ("b", 2)]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"subscribe": "t", "startingOffset": "latest"}, "Did you mean 'startingOffsets'"),
        ({}, "Exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "t", "failOnDataLoss": "perhaps"}, "The option failOnDataLoss takes"),
        ({"subscribe": "t", "tms.url": "data/"}, "start `tms serve`"),
    ],
)
def test_a_mistake_in_the_options_is_an_error_of_load(
    spark: SparkSession, world: Topics, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        table(spark, world, **options)
    with pytest.raises(AnalysisException, match=said):
        reader = spark.readStream.format("tms").option("tms.url", world.url)
        reader.options(**options).load()


def test_another_schema_is_refused(spark: SparkSession, world: Topics, topic: str) -> None:
    reader = spark.read.format("tms").option("tms.url", world.url).option("subscribe", topic)
    with pytest.raises(PySparkException, match=r"Leave out \.schema"):
        reader.schema("value STRING").load().collect()


def test_a_topic_that_is_not_there_is_an_error_that_names_it(
    spark: SparkSession, world: Topics
) -> None:
    with pytest.raises(PySparkException, match="There is no topic nowhere"):
        table(spark, world, subscribe="nowhere").collect()


@pytest.mark.long  # it takes at least the shortest allowed wait
def test_a_service_that_is_away_is_an_error_that_says_so(
    spark: SparkSession, world: Topics
) -> None:
    frame = table(spark, world, subscribe="flights", **{"tms.url": "http://127.0.0.1:9"})
    with pytest.raises(PySparkException, match=r"Nothing listens at http://127\.0\.0\.1:9"):
        frame.collect()


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_its_checkpoint_stands(
    query: Query, world: Topics, topic: str
) -> None:
    for seed in range(3):
        world.fill(Random(seed), topic, 2, 40)
        query.run(subscribe=topic, includeHeaders="true", includeMessageId="true")
        assert query.rows == consumed(world.bus, topic)
        if seed == 0:
            world.bus.update_topic(topic, partitions=3)
            world.publish(topic, 2, 7, "new partition")
    for pointer in list(world.open):
        world.engine.transactions.commit(Commit(pointer))
        world.open.remove(pointer)
    query.run(subscribe=topic, includeHeaders="true", includeMessageId="true")
    assert query.rows == consumed(world.bus, topic)


def test_a_batch_that_failed_is_repeated_with_the_same_rows(
    query: Query, world: Topics, topic: str
) -> None:
    world.fill(Random(7), topic, 2, 60)
    options = {"subscribe": topic, "includeHeaders": "true", "includeMessageId": "true"}
    for number in range(3):
        query.fail_in = number
        with pytest.raises(StreamingQueryException, match="the batch was read, but not used"):
            query.run(maxOffsetsPerTrigger="20", **options)
        world.fill(Random(8 + number), topic, 2, 10)
    query.fail_in = None
    query.run(**options)
    by_number: dict[int, list[list[Row]]] = {}
    for number, read in query.batches:
        by_number.setdefault(number, []).append(read)
    assert [len(by_number[number]) for number in range(3)] == [2, 2, 2]
    assert all(again == once for once, *more in by_number.values() for again in more)
    assert in_order(row for once, *_ in by_number.values() for row in once) == (
        consumed(world.bus, topic)
    )


def test_a_stream_that_ends_reads_in_batches_of_the_limit(
    query: Query, world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 90)
    world.publish(topic, 1, 10)
    done = query.run(subscribe=topic, maxOffsetsPerTrigger="30")
    assert [len(batch) for _, batch in query.batches] == [30, 30, 30, 10]
    assert query.rows == [_plain(row) for row in consumed(world.bus, topic)]
    source = done.recentProgress[-1]["sources"][0]
    assert json.loads(source["endOffset"]) == {topic: {"0": 90, "1": 10}}
    assert json.loads(source["latestOffset"]) == {topic: {"0": 90, "1": 10}}
    query.run(subscribe=topic)
    assert len(query.batches) == 4, "nothing is read twice"


def test_a_running_stream_sees_what_comes(spark: SparkSession, world: Topics, topic: str) -> None:
    world.publish(topic, 0, 5, "before")
    reader = spark.readStream.format("tms").option("tms.url", world.url)
    writer = reader.option("subscribe", topic).load().writeStream.format("memory")
    query = writer.queryName("seen").start()
    try:
        query.processAllAvailable()
        for number in range(3):
            world.bus.publish(topic, b"%d" % number)
            query.processAllAvailable()
        found = spark.sql("SELECT value FROM seen ORDER BY value").collect()
        assert [bytes(row.value) for row in found] == [b"0", b"1", b"2"]
    finally:
        query.stop()


def test_what_is_lost_under_a_stream_ends_it_or_is_left_out(
    query: Query, world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 5, "a")
    query.run(subscribe=topic)
    world.publish(topic, 0, 5, "b")
    world.bus.truncate_topic(topic, "offset:8")
    with pytest.raises(StreamingQueryException) as caught:
        query.run(subscribe=topic)
    assert f"offsets 5 to 7 of partition 0 of topic {topic} is lost" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    query.run(subscribe=topic, failOnDataLoss="false")
    assert query.values[5:] == [b"b3", b"b4"]
    query.run(subscribe=topic)
    assert len(query.values) == 7


def test_a_topic_created_anew_under_a_stream_is_never_taken_for_the_old_one(
    query: Query, world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 3, "old")
    query.run(subscribe=topic)
    world.bus.delete_topic(topic)
    world.bus.create_topic(topic, partitions=2)
    world.publish(topic, 0, 6, "new")
    with pytest.raises(StreamingQueryException, match="deleted and created anew"):
        query.run(subscribe=topic)
    query.run(subscribe=topic, failOnDataLoss="false")
    read = [b"old0", b"old1", b"old2", *(b"new%d" % i for i in range(6))]
    assert sorted(query.values) == sorted(read)
    query.run(subscribe=topic)
    assert len(query.values) == 9


def test_a_checkpoint_of_another_source_is_refused(
    query: Query, world: Topics, topic: str, tmp_path: Path
) -> None:
    world.publish(topic, 0, 3)
    query.run(subscribe=topic)
    (logged,) = [path for path in (tmp_path / "checkpoint/offsets").iterdir() if path.name == "0"]
    logged.write_text(logged.read_text().replace(f'"{topic}"', '"log offset"'))
    os.remove(logged.with_name(".0.crc"))
    os.remove(tmp_path / "checkpoint/commits/0")
    with pytest.raises(StreamingQueryException, match="checkpoint location of its own"):
        query.run(subscribe=topic)


def test_two_streams_of_one_topic_do_not_disturb_each_other(
    spark: SparkSession, world: Topics, topic: str, tmp_path: Path
) -> None:
    queries: list[Any] = [Query(spark, world, tmp_path / str(number)) for number in range(2)]
    world.publish(topic, 0, 5)
    started = [query.start(subscribe=topic) for query in queries]
    assert all(one.awaitTermination(WAIT_S) for one in started)
    assert [len(query.values) for query in queries] == [5, 5]
