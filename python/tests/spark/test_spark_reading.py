"""The data source below Spark: splits, losses, and offsets that Spark hands back, on a real
service."""

import json
import pickle
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from tests.clocks import ManualClock
from tests.spark_topics_kit import Row, Topics, consumed, in_order, topic, world
from tms.errors import Invalid, OffsetOutOfRange, TMSError, TopicNotFound
from tms.spark.source.options import read_options
from tms.spark.source.reader import BatchReader, SplitPartition
from tms.spark.source.stream import StreamReader

__all__ = ["topic", "world"]

ALL = ReadAllAvailable()


def batch(world: Topics, **options: str) -> BatchReader:
    """A reader for a batch query, with all columns."""
    given = {"tms.url": world.url, "includeHeaders": "true", "includeMessageId": "true"}
    return BatchReader(read_options(given | options, streaming=False))


class Driver:
    """A stream's reader as Spark's driver uses it: everything goes through JSON, and tasks get a
    copy."""

    def __init__(self, world: Topics, clock: ManualClock | None = None, **options: str) -> None:
        given = {"tms.url": world.url, "includeHeaders": "true", "includeMessageId": "true"}
        found = read_options(given | options, streaming=True)
        self.reader = StreamReader(found, clock or ManualClock())

    def initial(self) -> dict[str, Any]:
        return self._json(self.reader.initialOffset())

    def latest(self, start: Mapping[str, Any], limit: Any = ALL) -> dict[str, Any]:
        return self._json(self.reader.latestOffset(self._json(start), limit))

    def rows(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Row]:
        partitions = self.reader.partitions(self._json(start), self._json(end))
        reader = pickle.loads(pickle.dumps(self.reader))
        return read_all(reader, pickle.loads(pickle.dumps(partitions)))

    @staticmethod
    def _json(said: Any) -> Any:
        return json.loads(json.dumps(said))


def read_all(reader: BatchReader | StreamReader, partitions: Any) -> list[Row]:
    """The rows of all splits."""
    return in_order(
        row for one in partitions for found in reader.read(one) for row in found.to_pylist()
    )


def values(rows: list[Row]) -> list[bytes]:
    return [row["value"] for row in rows]


def offsets(rows: list[Row], partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows if row["partition"] == partition]


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_has_what_a_consumer_gets(world: Topics, topic: str, seed: int) -> None:
    world.fill(Random(seed), topic, 2, 60)
    reader = batch(world, subscribe=topic, minPartitions=str(1 + seed * 3))
    partitions = reader.partitions()
    assert len(partitions) >= 1 + seed * 3
    assert read_all(reader, partitions) == consumed(world.bus, topic)


def test_a_batch_of_an_empty_topic_has_no_rows(world: Topics, topic: str) -> None:
    reader = batch(world, subscribe=topic)
    assert reader.partitions() == []


def test_splits_have_at_most_so_many_records(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 25)
    splits = batch(world, subscribe=topic, maxRecordsPerPartition="10").partitions()
    assert [(one.split.start, one.split.stop) for one in splits] == [(0, 8), (8, 16), (16, 25)]  # type: ignore[attr-defined]


def test_assigned_partitions_only_are_read(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 3, "a")
    world.publish(topic, 1, 3, "b")
    reader = batch(world, assign=json.dumps({topic: [1]}))
    assert values(read_all(reader, reader.partitions())) == [b"b0", b"b1", b"b2"]


def test_topics_are_found_by_a_pattern(world: Topics, topic: str) -> None:
    for name in (f"{topic}-x1", f"{topic}-x2", f"{topic}-y"):
        world.bus.create_topic(name)
        world.publish(name, 0, 1, name)
    world.bus.create_topic("elsewhere:z1")
    world.publish("elsewhere:z1", 0, 1, "z")
    for pattern, found in [
        (f"{topic}-x.", [f"{topic}-x1", f"{topic}-x2"]),
        (f"default:{topic}-y|never", [f"{topic}-y"]),
        ("elsewhere:z.", ["elsewhere:z1"]),
        ("none.of.them", []),
    ]:
        reader = batch(world, subscribePattern=pattern)
        assert [row["topic"] for row in read_all(reader, reader.partitions())] == found


@pytest.mark.parametrize(
    "options, read",
    [
        ({"startingOffsets": '{"%s": {"0": 3, "1": -2}}'}, ([3, 4, 5, 6, 7], [0, 1, 2])),
        ({"endingOffsets": '{"%s": {"0": 3, "1": -1}}'}, ([0, 1, 2], [0, 1, 2])),
        (
            {
                "startingOffsets": '{"%s": {"0": 3, "1": 1}}',
                "endingOffsets": '{"%s": {"0": 5, "1": 1}}',
            },
            ([3, 4], []),
        ),
        ({"startingTimestamp": "1"}, ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2])),
        ({"endingTimestamp": "1"}, ([], [])),
        ({"endingTimestamp": "99999999999999"}, ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2])),
        (
            {"startingOffsetsByTimestamp": '{"%s": {"0": TIME, "1": 0}}'},
            ([5, 6, 7], [0, 1, 2]),
        ),
        ({"endingOffsetsByTimestamp": '{"%s": {"0": TIME, "1": 0}}'}, ([0, 1, 2, 3, 4], [])),
        (
            {
                "startingTimestamp": "TIME",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            ([5, 6, 7], []),
        ),
    ],
)
def test_a_batch_reads_between_its_bounds(
    world: Topics, topic: str, options: dict[str, str], read: tuple[list[int], list[int]]
) -> None:
    world.publish(topic, 0, 5)
    world.publish(topic, 1, 3)
    first = world.bus.fetch(topic, {1: "offset:2"}).batches[0].timestamp_ms  # the last of these
    while world.engine.topics.clock.now_ms() <= first:
        pass  # the next millisecond
    world.publish(topic, 0, 3)
    time_ms = world.bus.fetch(topic, {0: "offset:5"}).batches[0].timestamp_ms
    given = {
        name: text.replace("%s", topic).replace("TIME", str(time_ms))
        for name, text in options.items()
    }
    reader = batch(world, subscribe=topic, **given)
    rows = read_all(reader, reader.partitions())
    assert (offsets(rows, 0), offsets(rows, 1)) == read


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"subscribe": "nowhere"}, "nowhere"),
    ({"assign": '{"%s": [0, 7]}'}, "has partitions 0 to 1"),
    ({"startingOffsets": '{"%s": {"0": 1}}'}, "no place for partition 1"),
    ({"startingOffsets": "{}"}, "no place for partition 0"),
    ({"startingOffsets": '{"other": {"0": 1}}'}, "the topic other, which is not read"),
    (
        {"assign": '{"%s": [0, 1]}', "startingOffsets": '{"%s": {"0": 1}}'},
        "no place for partition 1",
    ),
    (
        {"assign": '{"%s": [0]}', "startingOffsets": '{"%s": {"0": 1, "1": 1}}'},
        "names partition 1 of %s",
    ),
    ({"startingOffsets": '{"%s": {"0": 1, "1": 1, "2": 1}}'}, "names partition 2"),
    ({"startingOffsets": '{"%s": {"0": 9, "1": 0}}'}, "ends at 5"),
    ({"endingOffsets": '{"%s": {"0": 9, "1": 0}}'}, "ends at 5"),
    ({"startingOffsets": '{"%s#2": {"0": 1, "1": 0}}'}, "generation 2"),
    ({"startingTimestamp": "99999999999999"}, "startingOffsetsByTimestampStrategy=latest"),
    (
        {
            "startingOffsets": '{"%s": {"0": 4, "1": 0}}',
            "endingOffsets": '{"%s": {"0": 2, "1": 0}}',
        },
        "back to 2",
    ),
]


@pytest.mark.parametrize("options, said", MISTAKES)
def test_what_does_not_fit_the_topics_is_an_error(
    world: Topics, topic: str, options: dict[str, str], said: str
) -> None:
    world.publish(topic, 0, 5)
    given = {name: text.replace("%s", topic) for name, text in options.items()}
    if not {"subscribe", "assign"} & set(given):
        given["subscribe"] = topic
    with pytest.raises(TMSError, match=said.replace("%s", topic)):
        batch(world, **given).partitions()


def test_a_batch_from_an_offset_that_is_gone_is_an_error_or_begins_later(
    world: Topics, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(topic, 0, 10)
    world.bus.truncate_topic(topic, "offset:4")
    there = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1, "1": 0}})}
    with pytest.raises(OffsetOutOfRange, match=f"offsets 1 to 3 of partition 0 of topic {topic}"):
        batch(world, **there).partitions()
    reader = batch(world, failOnDataLoss="false", **there)
    assert offsets(read_all(reader, reader.partitions())) == [4, 5, 6, 7, 8, 9]
    (record,) = caplog.records
    assert "offsets=3" in record.getMessage()


def test_a_task_whose_messages_expired_after_planning_fails_or_tells_how_many(
    world: Topics, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(topic, 0, 10)
    for fails in (True, False):
        reader = batch(world, subscribe=topic, failOnDataLoss=str(fails))
        partitions = reader.partitions()
        world.bus.truncate_topic(topic, "offset:4" if fails else "offset:7")
        if fails:
            with pytest.raises(OffsetOutOfRange, match="offsets 0 to 3 of partition 0"):
                read_all(reader, partitions)
        else:
            assert offsets(read_all(reader, partitions)) == [7, 8, 9]
            (record,) = caplog.records
            assert "start=4 stop=7 offsets=3" in record.getMessage()


def test_a_task_of_a_recreated_topic_delivers_none_of_its_messages(
    world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 5, "old")
    reader = batch(world, subscribe=topic, failOnDataLoss="false")
    partitions = reader.partitions()
    world.bus.delete_topic(topic)
    world.bus.create_topic(topic, partitions=2)
    world.publish(topic, 0, 9, "new")
    with pytest.raises(TopicNotFound, match="created anew"):
        read_all(reader, partitions)


def test_a_task_finds_out_that_the_log_is_shorter_than_it_was(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 5)
    reader = batch(world, subscribe=topic)
    (one,) = reader.partitions()
    assert isinstance(one, SplitPartition)
    longer = SplitPartition(one.split._replace(stop=9))
    with pytest.raises(OffsetOutOfRange, match=r"offsets 5 to 8 .* the log ends before them"):
        read_all(reader, [longer])


def test_gaps_that_nobody_may_see_are_no_loss(world: Topics, topic: str) -> None:
    world.leave_gap(topic, 0, 4)
    world.publish(topic, 0, 2)
    world.leave_gap(topic, 0, 4)
    world.publish(topic, 0, 2)
    world.leave_gap(topic, 0, 4)
    reader = batch(world, subscribe=topic, minPartitions="7")
    assert offsets(read_all(reader, reader.partitions())) == [4, 5, 10, 11]


# --- streams --------------------------------------------------------------------------------------


def _begun(world: Topics, topic: str) -> tuple[Driver, Any, dict[str, str]]:
    """A stream of three messages, where it begins, and its options."""
    world.publish(topic, 0, 3)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    driver = Driver(world, **options)
    return driver, driver.initial(), options


def test_a_stream_goes_on_from_batch_to_batch(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 3, "a")
    driver = Driver(world, subscribe=topic, startingOffsets="earliest")
    start = driver.initial()
    assert start == {topic: {"0": 0, "1": 0}}
    end = driver.latest(start)
    assert values(driver.rows(start, end)) == [b"a0", b"a1", b"a2"]
    assert driver.latest(end) == end
    world.publish(topic, 1, 2, "b")
    again = driver.latest(end)
    assert again == {topic: {"0": 3, "1": 2}}
    assert values(driver.rows(end, again)) == [b"b0", b"b1"]
    assert driver.reader.reportLatestOffset() == again


def test_a_stream_reads_no_further_than_what_is_decided(world: Topics, topic: str) -> None:
    driver = Driver(world, subscribe=topic, startingOffsets="earliest")
    start = driver.initial()
    pointer = world.begin()
    world.publish(topic, 0, 1, "a")
    world.publish_in(pointer, topic, 0, b"rolled back")
    world.publish(topic, 0, 1, "b")
    end = driver.latest(start)
    assert values(driver.rows(start, end)) == [b"a0"]
    world.abort(pointer)
    assert values(driver.rows(end, driver.latest(end))) == [b"b0"]
    assert values(driver.rows(start, end)) == [b"a0"]


def test_a_repeated_batch_has_the_same_rows(world: Topics, topic: str) -> None:
    world.fill(Random(5), topic, 2, 40)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    driver = Driver(world, **options)
    start = driver.initial()
    middle = driver.latest(start, ReadMaxRows(17))
    end = driver.latest(middle, ReadMaxRows(30))
    once = [driver.rows(start, middle), driver.rows(middle, end)]
    world.fill(Random(6), topic, 2, 40)
    other = Driver(world, minPartitions="9", **options)
    assert [other.rows(start, middle), other.rows(middle, end)] == once


def test_the_first_batch_of_a_stream_from_latest_is_repeated_after_a_crash(
    world: Topics, topic: str
) -> None:
    world.publish(topic, 0, 3, "old")
    driver = Driver(world, subscribe=topic)
    start = driver.initial()
    world.publish(topic, 0, 2, "new")
    assert driver.initial() == start, "Spark asks again before it plans"
    end = driver.latest(start)
    assert end == {topic: {"0": 5, "1": 0}, f"{topic}#from": {"0": 3}}
    world.publish(topic, 0, 2, "later")
    restarted = Driver(world, subscribe=topic)
    there = restarted.initial()
    assert there[topic]["0"] == 7
    assert values(restarted.rows(there, end)) == [b"new0", b"new1"]
    assert values(restarted.rows(end, restarted.latest(end))) == [b"later0", b"later1"]


def test_where_a_query_began_is_not_repeated_when_the_checkpoint_has_it(
    world: Topics, topic: str
) -> None:
    driver = Driver(world, subscribe=topic)
    start = driver.initial()
    assert driver.latest(start) == start
    assert driver.rows(start, start) == []
    world.publish(topic, 0, 2)
    assert driver.latest(start) == {topic: {"0": 2, "1": 0}}


def test_new_partitions_are_read_from_their_beginning(world: Topics, topic: str) -> None:
    driver = Driver(world, subscribe=topic)
    start = driver.initial()
    assert driver.rows(start, driver.latest(start)) == []
    world.bus.update_topic(topic, partitions=3)
    world.publish(topic, 2, 3, "new")
    end = driver.latest(start)
    assert end == {topic: {"0": 0, "1": 0, "2": 3}, f"{topic}#from": {"2": 0}}
    assert values(driver.rows(start, end)) == [b"new0", b"new1", b"new2"]
    assert driver.latest(end) == end
    assert driver.rows(end, end) == []


def test_new_topics_that_a_pattern_matches_are_read_from_their_beginning(
    world: Topics, topic: str
) -> None:
    driver = Driver(world, subscribePattern=f"{topic}.*")
    start = driver.initial()
    world.bus.create_topic(f"{topic}-b")
    world.publish(f"{topic}-b", 0, 2, "b")
    end = driver.latest(start)
    assert values(driver.rows(start, end)) == [b"b0", b"b1"]


def test_a_query_that_ends_reads_what_was_there_when_it_began(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 5)
    driver = Driver(world, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="4")
    driver.reader.prepareForTriggerAvailableNow()
    world.publish(topic, 0, 5)
    world.bus.update_topic(topic, partitions=3)
    world.publish(topic, 2, 5)
    at, read = driver.initial(), []
    while (end := driver.latest(at, ReadMaxRows(2))) != at:
        read += offsets(driver.rows(at, end))
        at = end
    assert read == [0, 1, 2, 3, 4]


def test_a_limit_counts_only_offsets_that_can_be_read(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 100)
    driver = Driver(world, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    start = driver.initial()
    world.bus.truncate_topic(topic, "latest")
    world.publish(topic, 0, 5)
    end = driver.latest(start, ReadMaxRows(3))
    assert offsets(driver.rows(start, end)) == [100, 101, 102]


def test_a_batch_waits_until_enough_offsets_can_be_read(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 100)
    driver = Driver(world, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="50")
    end = driver.latest(driver.initial(), ReadMinRows(50))
    world.publish(topic, 0, 60)
    world.bus.truncate_topic(topic, "latest")
    world.publish(topic, 0, 5)
    assert driver.latest(end, ReadMinRows(50)) == end


def test_the_limit_of_a_batch_is_what_the_options_say(world: Topics, topic: str) -> None:
    for options, limit in [
        ({}, ALL),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3"}, ReadMaxRows(5)),
    ]:
        driver = Driver(world, subscribe=topic, **options)
        assert driver.reader.getDefaultReadLimit() == limit


def test_a_batch_waits_for_enough_messages_but_not_for_ever(world: Topics, topic: str) -> None:
    clock = ManualClock()
    more = {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "6", "maxTriggerDelay": "10s"}
    driver = Driver(world, clock, subscribe=topic, startingOffsets="earliest", **more)
    limit = driver.reader.getDefaultReadLimit()
    start = driver.initial()
    world.publish(topic, 0, 2)
    first = driver.latest(start, limit)
    assert offsets(driver.rows(start, first)) == [0, 1], "the first one does not wait"
    world.publish(topic, 0, 4)
    clock.pass_ms(9_999)
    assert driver.latest(first, limit) == first
    clock.pass_ms(1)
    late = driver.latest(first, limit)
    assert offsets(driver.rows(first, late)) == [2, 3, 4, 5]
    world.publish(topic, 0, 9)
    enough = driver.latest(late, limit)
    assert offsets(driver.rows(late, enough)) == [6, 7, 8, 9, 10, 11]
    world.publish(topic, 0, 1)
    assert driver.latest(enough, limit) == enough
    assert driver.latest(enough, ALL) != enough, "a trigger that reads everything does not wait"


def _truncated(world: Topics, topic: str) -> None:
    world.publish(topic, 0, 10)
    world.bus.truncate_topic(topic, "offset:7")


def _anew(world: Topics, topic: str) -> None:
    world.bus.delete_topic(topic)
    world.bus.create_topic(topic, partitions=2)
    world.publish(topic, 0, 9, "new")


LOSSES: list[tuple[Callable[[Topics, str], None], str, str, list[bytes]]] = [
    (
        _truncated,
        "offsets 3 to 6 of partition 0",
        "start=3 stop=7 offsets=4",
        [b"v4", b"v5", b"v6", b"v7", b"v8", b"v9"],
    ),
    (
        _anew,
        "offset 3 of partition 0 .* created anew",
        "start=3",
        [b"new%d" % i for i in range(9)],
    ),
]


@pytest.mark.parametrize("change, said, told, left", LOSSES, ids=["truncated", "anew"])
def test_what_is_lost_under_a_stream_is_an_error_that_names_it_or_is_counted(
    world: Topics,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Topics, str], None],
    said: str,
    told: str,
    left: list[bytes],
) -> None:
    driver, start, options = _begun(world, topic)
    end = driver.latest(start)
    driver.rows(start, end)
    change(world, topic)
    with pytest.raises(OffsetOutOfRange, match=said):
        driver.rows(end, driver.latest(end))
    with pytest.raises(OffsetOutOfRange, match=said):
        driver.rows(end, driver.latest(end))
    caplog.clear()
    tolerant = Driver(world, failOnDataLoss="false", **options)
    after = tolerant.latest(end)
    assert values(tolerant.rows(end, after)) == left
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "partition=0" in line] == lines[:1]
    assert told in lines[0]
    assert topic in lines[0]
    caplog.clear()
    assert tolerant.rows(after, tolerant.latest(after)) == []
    assert caplog.records == []


def test_a_batch_of_a_life_that_has_ended_is_repeated_as_a_loss(
    world: Topics, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver, start, options = _begun(world, topic)
    end = driver.latest(start)
    _anew(world, topic)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to 2 .* created anew"):
        driver.rows(start, end)
    assert Driver(world, failOnDataLoss="false", **options).rows(start, end) == []
    assert "offsets=3" in caplog.records[-1].getMessage()


def test_a_topic_that_is_deleted_under_a_stream_is_a_loss(world: Topics, topic: str) -> None:
    driver, start, options = _begun(world, topic)
    world.bus.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        driver.latest(start)
    tolerant = Driver(world, failOnDataLoss="false", **options)
    assert tolerant.latest(start) == {}
    with pytest.raises(TopicNotFound):
        Driver(world, failOnDataLoss="false", **options).initial()
    ending = Driver(world, failOnDataLoss="false", **options)
    ending.reader.prepareForTriggerAvailableNow()
    assert ending.latest(start) == {}
    world.bus.create_topic(topic)
    world.publish(topic, 0, 2, "new")
    end = tolerant.latest({})
    assert end == {f"{topic}#2": {"0": 2}, f"{topic}#2#from": {"0": 0}}
    assert values(tolerant.rows({}, end)) == [b"new0", b"new1"]


def test_the_checkpoint_of_another_source_is_an_error(world: Topics, topic: str) -> None:
    with pytest.raises(Invalid, match="checkpoint location of its own"):
        Driver(world, subscribe=topic).latest({"logOffset": 5})


def test_nothing_of_a_stream_moves_a_position_at_the_service(world: Topics, topic: str) -> None:
    driver = Driver(world, subscribe=topic, startingOffsets="earliest")
    start = driver.initial()
    world.publish(topic, 0, 3)
    driver.reader.commit(driver.latest(start))
    driver.reader.stop()
    assert offsets(driver.rows(start, driver.latest(start))) == [0, 1, 2], "it connects again"
