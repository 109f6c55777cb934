"""Jobs on whole topics, in a real Spark, against a real service."""

import json
import math
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_kit import spark
from tests.spark_topics_kit import Row, Topics, consumed, in_order, topic, topics, world
from tms.cli.message_files import FileMessage, read
from tms.errors import Conflict, Invalid, NotFound, OffsetOutOfRange, TopicNotFound
from tms.model.message import Message
from tms.model.topic import Durability
from tms.spark import jobs
from tms.spark.jobs import archiving as writing
from tms.spark.jobs.views import view_name
from tms.store.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark", "topic", "world"]

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine


def rows_of(spark: "SparkSession", directory: Path) -> list[Row]:
    """The rows of an archive, as a consumer would get them, in order; duplicates show."""
    found = []
    for row in jobs.archived(spark, str(directory)).collect():
        cells = row.asDict(recursive=True)
        assert cells.pop("date") == cells["timestamp"].astimezone(UTC).date()
        cells["timestamp"] = cells["timestamp"].astimezone(UTC)
        if (time := cells.pop("event_time")) is not None:
            cells["event_time"] = time.astimezone(UTC)
        for name in ("key", "value"):
            cells[name] = None if cells[name] is None else bytes(cells[name])
        for header in cells["headers"] or ():
            header["value"] = None if header["value"] is None else bytes(header["value"])
        found.append(cells)
    return in_order(found)


# Archives


def test_an_archive_holds_what_a_consumer_gets_and_a_run_adds_what_is_new(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    random = Random(5)
    world.fill(random, topic, 2, 40)
    jobs.archive(spark, topic, str(tmp_path), world.url)
    before = consumed(world.bus, topic)
    assert rows_of(spark, tmp_path) == before
    assert jobs.archive(spark, topic, str(tmp_path), world.url).rows == 0
    for pointer in [*world.open]:
        world.abort(pointer)
    world.fill(random, topic, 2, 10)
    after = consumed(world.bus, topic)
    done = jobs.archive(spark, topic, str(tmp_path), world.url)
    assert rows_of(spark, tmp_path) == after
    assert done.rows == len(after) - len(before)
    for pointer in [*world.open]:
        world.abort(pointer)


class _Killed(Exception):
    pass


def test_an_archive_that_was_killed_in_the_midst_goes_on_exactly_once(
    spark: "SparkSession",
    world: Topics,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for partition in (0, 1):
        world.publish(topic, partition, 400)
    monkeypatch.setattr(writing, "_LOOK_S", 0.01)

    def die(done: int, total: int) -> None:
        if done >= 200:
            raise _Killed

    small = {"rows_per_batch": 100, "rows_per_file": 50}
    with pytest.raises(_Killed):
        jobs.archive(spark, topic, str(tmp_path), world.url, progress=die, **small)
    part = len(rows_of(spark, tmp_path))
    assert 200 <= part < 800
    # Files that a batch had written when it died, and that do not count.
    orphan = next(tmp_path.rglob("*.parquet"))
    orphan.with_name("part-00000-orphan.zstd.parquet").write_bytes(orphan.read_bytes())
    told: list[tuple[int, int]] = []
    jobs.archive(
        spark, topic, str(tmp_path), world.url, progress=lambda *at: told.append(at), **small
    )
    assert rows_of(spark, tmp_path) == consumed(world.bus, topic)
    assert told[-1][0] == told[-1][1] >= 800 - part - 100


def test_an_archive_that_follows_goes_on_with_what_is_published(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    world.publish(topic, 0, 10)
    stages = [25, 40]

    def publish_more(done: int, total: int) -> None:
        if done == 40:
            (query,) = spark.streams.active
            query.stop()
        elif stages:
            world.publish(topic, 1, stages.pop(0) - done)

    done = jobs.archive(
        spark,
        topic,
        str(tmp_path),
        world.url,
        follow=True,
        every="200 milliseconds",
        progress=publish_more,
    )
    assert done.rows == 40 and done.batches == 3
    assert rows_of(spark, tmp_path) == consumed(world.bus, topic)


def test_files_are_of_one_topic_and_day_bounded_few_and_in_order(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    world.bus.update_topic(topic, partitions=8)
    for partition in range(8):
        world.publish(topic, partition, 100)
    jobs.archive(spark, topic, str(tmp_path), world.url, rows_per_batch=800, rows_per_file=300)
    files = sorted(tmp_path.rglob("*.parquet"))
    assert 3 <= len(files) <= 6
    for file in files:
        assert file.parent.parent.name == f"topic={topic}"
        assert file.parent.name.startswith("date=20")
        made = pq.ParquetFile(file)
        assert made.metadata.num_rows <= 300
        assert made.metadata.row_group(0).column(0).compression == "ZSTD"
        with file.open("rb") as archived:
            imported = [message for _, message in read("parquet", archived)]
        assert [message.value for message in imported if isinstance(message, FileMessage)] == [
            row["value"] for row in made.read(["value"]).to_pylist()
        ]
        places = made.read(["partition", "offset"]).to_pylist()
        for one, other in pairwise((row["partition"], row["offset"]) for row in places):
            assert one < other


def test_an_archive_may_be_moved(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    other = f"shop:{topic}"
    world.bus.create_topic(other)
    world.publish(topic, 1, 10)
    world.publish(other, 0, 10)
    jobs.archive(spark, [topic, other], str(tmp_path / "a b"), world.url)
    (tmp_path / "a b").rename(tmp_path / "c")
    assert rows_of(spark, tmp_path / "c") == consumed(world.bus, topic, other)


def test_what_expired_before_it_was_archived_is_an_error_or_allowed(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    world.publish(topic, 0, 10)
    jobs.archive(spark, topic, str(tmp_path), world.url)
    world.publish(topic, 0, 10, "lost")
    world.bus.truncate_topic(topic)
    world.publish(topic, 0, 5, "new")
    with pytest.raises(OffsetOutOfRange, match=rf"10 to 19 of partition 0 .*{topic}.*allow-loss"):
        jobs.archive(spark, topic, str(tmp_path), world.url)
    jobs.archive(spark, topic, str(tmp_path), world.url, allow_loss=True)
    assert [row["offset"] for row in rows_of(spark, tmp_path)] == [*range(10), *range(20, 25)]


def test_an_archive_refuses_what_would_spoil_it(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    world.publish(topic, 0, 1)
    jobs.archive(spark, topic, str(tmp_path), world.url)
    other = f"{topic}-b"
    world.bus.create_topic(other)
    with pytest.raises(Invalid, match=f"also has {topic}"):
        jobs.archive(spark, other, str(tmp_path), world.url)
    world.publish(other, 0, 2)
    jobs.archive(spark, [topic, other], str(tmp_path), world.url)
    assert rows_of(spark, tmp_path) == consumed(world.bus, topic, other)
    (tmp_path / "_checkpoint").rename(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="without _checkpoint"):
        jobs.archive(spark, [topic, other], str(tmp_path), world.url)
    with pytest.raises(NotFound, match="no archive"):
        jobs.archived(spark, str(tmp_path / "nowhere"))
    with pytest.raises(TopicNotFound):
        jobs.archive(spark, "missing", str(tmp_path / "new"), world.url)
    with pytest.raises(Invalid, match="one of url and store"):
        jobs.archive(spark, topic, str(tmp_path / "new"))


# Restoring


def by_partition(messages: list[Row]) -> dict[int, list[Any]]:
    """Keys, values and headers in order."""
    found: dict[int, list[Any]] = {}
    for one in messages:
        place = found.setdefault(one["partition"], [])
        place.append((one["key"], one["value"], one["headers"], one.get("event_time")))
    return found


def test_what_is_restored_has_its_partitions_order_keys_headers_and_times(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    world.fill(Random(9), topic, 2, 30)
    world.bus.publish(topic, b"timed", headers={"null": None}, event_time_ms=1_000)
    jobs.archive(spark, topic, str(tmp_path), world.url, rows_per_batch=100, rows_per_file=25)
    archived = rows_of(spark, tmp_path)
    done = jobs.restore(spark, str(tmp_path), f"{topic}-b", world.url, source=topic)
    assert done == (len(archived), 2, True)
    restored = consumed(world.bus, f"{topic}-b")
    assert by_partition(restored) == by_partition(archived)
    with pytest.raises(Conflict, match="has messages already"):
        jobs.restore(spark, str(tmp_path), f"{topic}-b", world.url, source=topic)
    with pytest.raises(NotFound, match=f"It has: {topic}"):
        jobs.restore(spark, str(tmp_path), "another", world.url)
    for pointer in [*world.open]:
        world.abort(pointer)


def test_what_is_restored_to_other_partitions_keeps_the_order_of_each_key(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    keys = [None if i % 5 == 0 else b"k%d" % (i % 7) for i in range(200)]
    world.bus.publish_many(topic, [b"%d" % i for i in range(200)], keys=keys)
    jobs.archive(spark, topic, str(tmp_path), world.url)
    target = f"{topic}-b"
    world.bus.create_topic(target, partitions=3)
    done = jobs.restore(spark, str(tmp_path), target, world.url, source=topic)
    assert done == (200, 3, False)
    restored, published = consumed(world.bus, target), consumed(world.bus, topic)
    for key in {*keys}:
        mine = [
            [row["value"] for row in rows if row["key"] == key] for rows in (restored, published)
        ]
        assert mine[0] == mine[1]
    direct = {one.key: one.partition for one in _sent(world, f"{topic}-c", [k for k in keys if k])}
    assert {row["key"]: row["partition"] for row in restored if row["key"]} == direct


def _sent(world: Topics, topic: str, keys: list[bytes]) -> list[Message]:
    world.bus.create_topic(topic, partitions=3)
    world.bus.publish_many(topic, [b""] * len(keys), keys=keys)
    return [*world.bus.consumer(topic, stop_at_end=True)]


# Reports


def expected(messages: list[Message]) -> list[jobs.Hour]:
    """A report as plain Python computes it."""
    found = []
    hours: dict[tuple[str, datetime], list[tuple[Message, Message | None]]] = {}
    before: dict[tuple[str, int], Message] = {}
    for one in sorted(messages, key=lambda one: (one.topic, one.partition, one.offset)):
        hour = one.timestamp.replace(minute=0, second=0, microsecond=0)
        last = before.get((one.topic, one.partition))
        hours.setdefault((one.topic, hour), []).append((one, last))
        before[one.topic, one.partition] = one
    for (name, hour), some in sorted(hours.items()):
        sizes = [len(one.key or b"") + len(one.value or b"") for one, _ in some]
        pairs = [(one, last) for one, last in some if last is not None]
        gaps = [(one.timestamp - last.timestamp).total_seconds() for one, last in pairs]
        found.append(
            jobs.Hour(
                name,
                hour,
                len(some),
                sum(sizes),
                len({one.key for one, _ in some} - {None}),
                *(rank(sizes, share) for share in (0.5, 0.9, 0.99)),
                max(sizes),
                *(rank(gaps, share) if gaps else None for share in (0.5, 0.99)),
                max(gaps, default=None),
                sum(one.offset - last.offset - 1 for one, last in pairs),
            )
        )
    return found


def rank(numbers: list[Any], share: float) -> Any:
    """The smallest number that is not smaller than this share of them."""
    return sorted(numbers)[max(0, math.ceil(share * len(numbers)) - 1)]


def test_a_report_has_the_numbers_that_plain_python_computes(
    spark: "SparkSession", world: Topics, topic: str
) -> None:
    other = f"{topic}-b"
    world.bus.create_topic(other)
    random = Random(11)
    world.fill(random, topic, 2, 60)
    for pointer in [*world.open]:
        world.abort(pointer)
    for size in (0, 1, 5_000):
        world.bus.publish(other, bytes(size), key=b"k")
        world.leave_gap(other, 0, 3)
    world.bus.publish(other, b"")
    messages = [
        one for name in (topic, other) for one in world.bus.consumer(name, stop_at_end=True)
    ]
    found = jobs.report(spark, [topic, other], world.url)
    assert found == expected(messages)
    assert [one.unseen for one in found if one.topic == other] == [9]
    middle = sorted(messages, key=lambda one: one.timestamp)[len(messages) // 2].timestamp
    since = [one for one in messages if one.timestamp >= middle]
    counts = Counter(one.topic for one in since)
    found = jobs.report(spark, [topic, other], world.url, since=middle)
    assert {one.topic: one.messages for one in found} == counts
    until = jobs.report(spark, [topic, other], world.url, until=middle)
    assert sum(one.messages for one in [*found, *until]) == len(messages)


# Audits


def test_a_sound_topic_is_found_sound_whatever_became_of_its_transactions(
    spark: "SparkSession", world: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tms.spark.jobs import auditing as running

    monkeypatch.setattr(running, "_SPLIT_OFFSETS_MIN", 20)  # ranges that cut blocks
    world.fill(Random(3), topic, 2, 60)
    world.leave_gap(topic, 0, 4)
    audit = jobs.compact_check(spark, topic, world.url)
    assert audit.is_sound
    assert audit.findings == []
    ends = world.bus.offsets(topic, isolation="uncommitted")
    assert {one.partition: one.messages for one in audit.partitions} == dict(ends)
    assert sum(one.rolled_back for one in audit.partitions) >= 4
    for pointer in [*world.open]:
        world.abort(pointer)


class _Disk(MemoryStore):
    """A store that keeps everything when it is closed."""

    def close(self) -> None:
        """Do nothing."""

    def damage(self, part: bytes, at: int | None) -> None:
        """Flip a byte of the block that contains `part`, or with None remove it."""
        for one in self._maps.values():
            for key, value in [*one._rows.items()]:
                if part in value and at is None:
                    one.delete([key])
                elif part in value and at is not None:
                    raw = bytearray(value)
                    raw[at] ^= 1
                    one.overwrite([(key, raw)], Durability.SYNCED)


def test_damage_is_found_with_its_place_and_the_rest_is_checked(spark: "SparkSession") -> None:
    disk = _Disk()
    with topics(disk) as world:
        world.bus.create_topic("t")
        for number in range(8):
            world.publish("t", 0, 10, f"block {number} ")
        world.leave_gap("t", 0, 2)
    with topics(disk) as world:  # without a cache
        assert world.bus.describe_topic("t").partition_infos[0].end_offset == 82
        disk.damage(b"block 2 ", -100)
        disk.damage(b"block 4 ", None)
        disk.damage(b"block 6 ", 0)  # where a block says that it is one
        audit = jobs.compact_check(spark, "t", world.url)
        lenient = jobs.compact_check(spark, "t", world.url, allow_gaps=True)
    assert not audit.is_sound
    [one] = audit.partitions
    places = [(one.start, one.stop) for one in audit.findings]
    assert places == [(20, 30), (40, 50), (60, 70)], audit.findings
    assert (one.messages, one.rolled_back, one.wrong) == (62, 2, 3)
    assert (one.unreadable, one.gaps) == (20, 10)
    said = [one.what for one in audit.findings]
    assert "CRC" in said[0]
    assert said[1] == "nothing is stored here"
    assert [one.start for one in lenient.findings] == [20, 60]


# Names of topics


def test_topics_with_names_of_kafka_are_archived_restored_and_queried(
    spark: "SparkSession", world: Topics, tmp_path: Path
) -> None:
    """Also names that look like numbers, which must stay text in the name of a directory."""
    names = ["shop.orders-v1", "1.10", "2026.11.01", "__x", "far:a.b", "t" * 249]
    for name in names:
        world.bus.create_topic(name)
        world.bus.publish(name, name.encode())
    jobs.archive(spark, names, str(tmp_path), world.url)
    assert rows_of(spark, tmp_path) == consumed(world.bus, *names)
    assert sorted(row["topic"] for row in rows_of(spark, tmp_path)) == sorted(names)
    for number, name in enumerate(names):
        jobs.restore(spark, str(tmp_path), f"restored.{number}", world.url, source=name)
    again = consumed(world.bus, *(f"restored.{number}" for number in range(len(names))))
    assert [row["value"].decode() for row in again] == names
    jobs.sql(spark, names, None, world.url)
    for name in names:
        [row] = spark.sql(f"select text from `{view_name(name)}`").collect()
        assert row.text == name
    spark.sql("select `shop.orders-v1`.text from `shop.orders-v1`").collect()


def test_a_topic_whose_directory_would_have_too_long_a_name_is_refused(
    spark: "SparkSession", world: Topics, tmp_path: Path
) -> None:
    name = "far:" + "t" * 244  # %3A in the name of the directory: 256 bytes
    for one in (name, name[:-1]):
        world.bus.create_topic(one)
        world.publish(one, 0, 1)
    with pytest.raises(Invalid, match=r"topic=far%3At+ is a directory .* has 256 bytes"):
        jobs.archive(spark, name, str(tmp_path), world.url)
    assert not [*tmp_path.iterdir()]
    assert jobs.archive(spark, name[:-1], str(tmp_path), world.url).rows == 1


def test_topics_that_would_be_one_view_are_refused(spark: "SparkSession", world: Topics) -> None:
    for one, other in (("one__t.a", "one:t.a"), ("Case", "case")):
        for name in (one, other):
            world.bus.create_topic(name)
        with pytest.raises(Invalid, match=f"2 of the topics would be the table {one.lower()}"):
            jobs.sql(spark, [one, other], None, world.url)
        jobs.sql(spark, other, None, world.url)


# SQL


def test_topics_are_views_and_their_json_has_columns(
    spark: "SparkSession", world: Topics, topic: str
) -> None:
    other = f"shop:{topic}"
    world.bus.create_topic(other)
    lines = [json.dumps({"carrier": c, "delay": i, "offset": "x"}) for i, c in enumerate("aab")]
    world.bus.publish_many(topic, [*(line.encode() for line in lines), b"no JSON", None])
    world.publish(other, 0, 2)
    query = f"select carrier, sum(delay) as delay from {topic} group by 1 order by 1 nulls last"
    for schema in ("infer", "carrier STRING, delay INT"):
        found = jobs.sql(spark, [topic, other], query, world.url, json_schema=schema)
        assert found is not None
        assert [tuple(row) for row in found.collect()] == [("a", 1), ("b", 2), (None, None)]
    assert [row.text for row in spark.sql(f"select text from shop__{topic}").collect()] == [
        "v0",
        "v1",
    ]
    jobs.sql(spark, topic, None, world.url, json_schema="infer")
    names = spark.table(topic).columns
    assert {"json_offset", "offset", "headers", "id", "text"} <= {*names}
    world.publish(topic, 0, 1)
    found = jobs.sql(spark, topic, f"select * from {topic}", world.url)
    assert found is not None
    assert found.count() == 6, "it is looked at anew"
    with pytest.raises(Invalid, match="infer"):
        jobs.sql(spark, topic, None, world.url, json_schema="carrier OF")
    with pytest.raises(TopicNotFound):
        jobs.sql(spark, "missing", "select * from missing", world.url)
