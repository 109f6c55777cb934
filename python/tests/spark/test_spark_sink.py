"""Writing to topics from a real Spark, to a real service: the topics have each of the rows once,
whatever fails on the way."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_kit import spark
from tests.spark_topics_kit import Topics, topic, world
from tms.model.position import Position
from tms.spark.sink.fence import FENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["spark", "topic", "world"]

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine
WAIT_S = 120
PARTITIONS = 3  # of a topic


def values(world: Topics, topic: str) -> list[bytes | None]:
    """All visible messages; their offsets have no gap."""
    found = list(world.bus.consumer(topic, stop_at_end=True))
    for partition in {one.partition for one in found}:
        offsets = [one.offset for one in found if one.partition == partition]
        assert offsets == list(range(len(offsets)))
    return sorted((one.value for one in found), key=lambda value: value or b"")


def numbers(count: int, start: int = 0) -> list[bytes]:
    return sorted(b"%d" % number for number in range(start, start + count))


def save(world: Topics, frame: "DataFrame", mode: str = "append", **options: str) -> None:
    writer = frame.write.format("tms").option("tms.url", world.url)
    writer.options(**options).mode(mode).save()


# Batch queries


def test_a_batch_query_writes_every_row_once(
    spark: "SparkSession", world: Topics, topic: str
) -> None:
    rows = spark.range(30_000, numPartitions=4).selectExpr(
        "if(id % 3 = 0, null, cast(id % 100 as string)) AS key",
        "cast(id as string) AS value",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) AS headers",
    )
    save(world, rows, topic=topic)
    assert values(world, topic) == numbers(30_000)
    found = list(world.bus.consumer(topic, stop_at_end=True))
    assert all(one.headers == {"n": one.value} for one in found)
    by_key: dict[bytes, set[int]] = {}
    for one in found:
        assert one.value is not None
        key = b"%d" % (int(one.value) % 100) if int(one.value) % 3 else None
        assert one.key == key
        if key is not None:
            by_key.setdefault(key, set()).add(one.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    world.bus.publish(topic, b"by a client", key=b"7")
    last = [one for one in world.bus.consumer(topic, stop_at_end=True) if one.key == b"7"][-1]
    assert {last.partition} == by_key[b"7"]
    assert world.bus._transport.transactions.open() == []


def test_columns_say_which_topic_and_partition(
    spark: "SparkSession", world: Topics, topic: str
) -> None:
    world.bus.create_topic(f"{topic}-2", partitions=2)
    rows = spark.range(100).selectExpr(
        "cast(cast(id as string) as binary) AS value",
        f"if(id < 50, '{topic}', 'default:{topic}-2') AS topic",
        "if(id < 50, cast(id % 3 as int), null) AS partition",
    )
    save(world, rows)
    assert values(world, topic) == numbers(50)
    assert values(world, f"{topic}-2") == numbers(50, start=50)
    for one in world.bus.consumer(topic, stop_at_end=True):
        assert one.value is not None and one.partition == int(one.value) % 3


def test_rows_that_were_read_are_copied_to_another_topic(
    spark: "SparkSession", world: Topics, topic: str
) -> None:
    world.bus.create_topic(f"{topic}-2", partitions=3)
    world.bus.publish_many(topic, [b"1", None, b"3"], keys=[b"a", b"b", None], partition=2)
    reader = spark.read.format("tms").option("tms.url", world.url).option("subscribe", topic)
    save(world, reader.option("includeHeaders", "true").load(), topic=f"{topic}-2")
    copied = world.bus.consumer(f"{topic}-2", stop_at_end=True)
    assert [(one.partition, one.key, one.value) for one in copied] == [
        (2, b"a", b"1"),
        (2, b"b", None),
        (2, None, b"3"),
    ]


def test_a_row_that_is_refused_leaves_nothing_of_its_query(
    spark: "SparkSession", world: Topics, topic: str
) -> None:
    world.bus.update_topic(topic, message_bytes_max=1_000)
    rows = spark.range(2_000, numPartitions=2).selectExpr(
        "repeat('x', cast(if(id = 1999, 1001, 900) as int)) AS value"
    )
    with pytest.raises(Exception, match=f"for the topic {topic} has 1001 bytes in its columns"):
        save(world, rows, topic=topic)
    assert values(world, topic) == []
    assert world.bus._transport.transactions.open() == []


@pytest.mark.parametrize(
    ("columns", "mode", "options", "said"),
    [
        ("cast(id as string) AS value", "overwrite", {}, r"use mode\('append'\)"),
        ("cast(id as string) AS value", "append", {"topci": "a"}, "Did you mean 'topic'"),
        ("cast(id as string) AS text", "append", {}, "The column 'text' has no place"),
        ("id AS value", "append", {}, "The column value is binary or string, not bigint"),
        ("cast(id as string) AS key", "append", {}, "needs a column `value`"),
        ("cast(id as string) AS value", "append", {"topic": "none"}, "none"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: "SparkSession",
    world: Topics,
    topic: str,
    columns: str,
    mode: str,
    options: dict[str, str],
    said: str,
) -> None:
    with pytest.raises(Exception, match=said):
        save(world, spark.range(3).selectExpr(columns), mode, **{"topic": topic} | options)
    assert values(world, topic) == []


def test_an_attempt_that_fails_after_it_staged_rows_leaves_none_of_them(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    flag = tmp_path / "failed"

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 40 and not flag.exists():
                flag.touch()
                raise RuntimeError("the first attempt")
            yield batch

    wide = "concat(cast(id as string), ' ', repeat('x', 1000)) AS value"
    rows = spark.range(30_000, numPartitions=1).selectExpr(wide)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        save(world, rows.mapInArrow(fail_once, "value string"), topic=topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert flag.exists()
    found = [value.split()[0] for value in values(world, topic) if value]
    assert sorted(found) == numbers(30_000)


# Streams


class Query:
    """A query that writes files as they come, one file in a batch, and can be started again."""

    def __init__(self, spark: "SparkSession", url: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._topic = topic
        self._folder = folder
        self._files = 0
        self._count = 0
        self.id = ""
        (folder / "in").mkdir()

    def add(self, count: int) -> None:
        """Add a file with so many rows, whose numbers continue."""
        lines = [b"%d" % number for number in range(self._count, self._count + count)]
        whole = self._folder / "whole"
        whole.write_bytes(b"\n".join(lines))
        whole.rename(self._folder / "in" / f"{self._files:03d}.txt")
        self._files += 1
        self._count += count

    @property
    def expected(self) -> list[bytes]:
        return numbers(self._count)

    def start(self, format: str = "tms") -> "StreamingQuery":
        reader = self._spark.readStream.option("maxFilesPerTrigger", "1")
        writer = reader.text(str(self._folder / "in")).writeStream.format(format)
        writer = writer.option("tms.url", self._url).option("topic", self._topic)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        self.id = str(query.id)
        return query

    def run(self, format: str = "tms") -> None:
        """Run until all files are written. Raises the error that ended it before."""
        assert self.start(format).awaitTermination(WAIT_S)

    def forget_last_commit(self) -> None:
        """Restore the checkpoint that a driver leaves if it dies between its commit and Spark's own
        note of it."""
        notes = [p for p in (self._folder / "checkpoint" / "commits").iterdir() if p.name.isdigit()]
        last = max(notes, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark: "SparkSession", world: Topics, topic: str, tmp_path: Path) -> Query:
    return Query(spark, world.url, topic, tmp_path)


def position(world: Topics, query: Query) -> Position:
    return world.bus._transport.groups.positions(FENCE, f"spark-{query.id}")[0]


def test_a_stream_that_is_started_again_writes_every_row_once(
    world: Topics, topic: str, query: Query
) -> None:
    query.add(1_000)
    query.add(2_000)
    query.run()
    assert values(world, topic) == query.expected
    assert position(world, query) == Position.offset(2)
    query.add(500)
    query.run()
    assert values(world, topic) == query.expected
    assert position(world, query) == Position.offset(3)
    assert world.bus._transport.transactions.open() == []


def test_a_driver_that_dies_behind_its_commit_writes_nothing_twice(
    world: Topics, topic: str, query: Query
) -> None:
    query.add(1_000)
    query.run()
    query.forget_last_commit()
    query.add(1_000)
    query.run()
    assert values(world, topic) == query.expected
    assert position(world, query) == Position.offset(2)


def failing(flag: Path, before: bool) -> type:
    """The data source with a commit that fails once, before or after it took effect."""
    from tms.spark.sink.writer import StreamWriter
    from tms.spark.source.reader import TmsDataSource

    class FailingWriter(StreamWriter):
        def commit(self, messages: list[Any], batchId: int) -> None:
            failed = flag.exists()
            flag.touch()
            if before and not failed:
                raise RuntimeError("the commit fails")
            super().commit(messages, batchId)
            if not failed:
                raise RuntimeError("the commit fails")

        def abort(self, messages: list[Any], batchId: int) -> None:
            super().abort(messages, batchId)
            flag.with_name("aborted").touch()

    class Failing(TmsDataSource):
        @classmethod
        def name(cls) -> str:
            return "tms_failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> FailingWriter:
            return FailingWriter(self.options, schema, overwrite)

    return Failing


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_commit_that_fails_is_done_once(
    spark: "SparkSession",
    world: Topics,
    topic: str,
    query: Query,
    tmp_path: Path,
    before: bool,
) -> None:
    flag = tmp_path / "failed"
    spark.dataSource.register(failing(flag, before))
    query.add(1_000)
    with pytest.raises(Exception, match="the commit fails"):
        query.run("tms_failing")
    assert flag.exists() and flag.with_name("aborted").exists()
    assert values(world, topic) == ([] if before else query.expected)
    assert world.bus._transport.transactions.open() == []
    query.add(1_000)
    query.run("tms_failing")
    assert values(world, topic) == query.expected
    assert position(world, query) == Position.offset(2)


def test_fault_32_every_message_is_once_there_although_a_worker_is_killed(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    world.bus.create_topic(f"{topic}-in", partitions=2)
    flag = tmp_path / "killed"

    def kill_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if flag.exists():
                flag.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)  # a Python worker, in its task
            yield batch

    def run() -> "StreamingQuery":
        reader = spark.readStream.format("tms").option("tms.url", world.url)
        rows = reader.option("subscribe", f"{topic}-in").option("maxOffsetsPerTrigger", "300")
        writer = rows.option("startingOffsets", "earliest").load().select("key", "value")
        mapped = writer.mapInArrow(kill_once, "key binary, value binary")
        stream = mapped.writeStream.format("tms").option("tms.url", world.url)
        stream = stream.option("topic", topic).option("checkpointLocation", str(tmp_path / "c"))
        started = stream.trigger(availableNow=True).start()
        assert started.awaitTermination(WAIT_S)
        return started

    for start in (0, 700):
        world.bus.publish_many(f"{topic}-in", [b"%d" % n for n in range(start, start + 700)])
        flag.touch()
        run()
        assert not flag.exists()
        assert values(world, topic) == numbers(start + 700)


@pytest.mark.parametrize(
    ("mode", "said"), [("complete", r"outputMode\('append'\)"), ("update", "does not support")]
)
def test_a_stream_only_appends(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path, mode: str, said: str
) -> None:
    rates = spark.readStream.format("rate").load().groupBy("timestamp").count()
    writer = rates.selectExpr("cast(count as string) AS value").writeStream.format("tms")
    writer = writer.option("tms.url", world.url).option("topic", topic).outputMode(mode)
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match=said):
        writer.start().awaitTermination(WAIT_S)
