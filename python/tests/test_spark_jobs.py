"""Jobs on whole topics, in a real Spark, against a real service."""

from collections.abc import Iterator
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.spark_kit import spark
from tests.spark_topics_kit import Row, Topics, consumed, in_order, topics
from tms.errors import Invalid, NotFound, OffsetOutOfRange, TopicNotFound
from tms.spark import jobs
from tms.spark.jobs.archive import writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine


@pytest.fixture(scope="module")
def world() -> Iterator[Topics]:
    """A service."""
    with topics() as made:
        yield made


@pytest.fixture
def topic(world: Topics, request: pytest.FixtureRequest) -> str:
    """A topic of this test, with two partitions."""
    name = request.node.originalname[5:120]
    world.bus.create_topic(name, partitions=2)
    return str(name)


def rows_of(spark: "SparkSession", directory: Path) -> list[Row]:
    """The rows of an archive as a consumer's, in order; how often each is there is seen."""
    found = []
    for row in jobs.archived(spark, str(directory)).collect():
        cells = row.asDict(recursive=True)
        assert cells.pop("date") == cells["timestamp"].astimezone(UTC).date()
        cells["timestamp"] = cells["timestamp"].astimezone(UTC)
        for name in ("key", "value"):
            cells[name] = None if cells[name] is None else bytes(cells[name])
        for header in cells["headers"] or ():
            header["value"] = bytes(header["value"])
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
        world.publish(topic, partition, 600)
    monkeypatch.setattr(writing, "_LOOK_S", 0.01)

    def die(done: int, total: int) -> None:
        if done >= 200:
            raise _Killed

    small = {"rows_per_batch": 100, "rows_per_file": 50}
    with pytest.raises(_Killed):
        jobs.archive(spark, topic, str(tmp_path), world.url, progress=die, **small)
    part = len(rows_of(spark, tmp_path))
    assert 200 <= part < 1_200
    # What a batch had written when it died, and nobody counts.
    orphan = next(tmp_path.rglob("*.parquet"))
    orphan.with_name("part-00000-orphan.zstd.parquet").write_bytes(orphan.read_bytes())
    told: list[tuple[int, int]] = []
    jobs.archive(
        spark, topic, str(tmp_path), world.url, progress=lambda *at: told.append(at), **small
    )
    assert rows_of(spark, tmp_path) == consumed(world.bus, topic)
    assert told[-1][0] == told[-1][1] >= 1_200 - part - 100


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
        places = made.read(["partition", "offset"]).to_pylist()
        for one, other in pairwise((row["partition"], row["offset"]) for row in places):
            assert one < other


def test_an_archive_may_be_moved(
    spark: "SparkSession", world: Topics, topic: str, tmp_path: Path
) -> None:
    world.publish(topic, 1, 10)
    jobs.archive(spark, topic, str(tmp_path / "a"), world.url)
    (tmp_path / "a").rename(tmp_path / "b")
    assert rows_of(spark, tmp_path / "b") == consumed(world.bus, topic)


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
