"""Splits of topics that are read without their service."""

import pickle
import random
import threading
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest

from sim.faulty import FaultyStore
from tests.log_kit import MANY, NAME, KeptStore, Seen, block, seen, small
from tms.engine.engine import Engine
from tms.engine.observer import StoreObserver
from tms.errors import OffsetOutOfRange, TopicNotFound
from tms.log.records import key_after
from tms.model import keys
from tms.model.message import NewBlock, StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicSettings
from tms.runtime.clock import SystemClock
from tms.spark.connector import OffsetBounds, TopicPlan
from tms.spark.source.from_hbase import HBaseReader
from tms.spark.source.splitting import cut
from tms.spark.source.topics import Split
from tms.store.base import Store
from tms.store.hbase.rows import rows_of
from tms.store.memory import MemoryMap

TOPIC = str(NAME)


class _Clock(SystemClock):
    """The machine's clock, and the time that passes between two messages."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000 + self.ahead_ms


class _Reader(HBaseReader):
    """Reads from memory."""

    def __init__(self, store: KeptStore) -> None:
        super().__init__("hbase://nowhere:1")
        self.store = FaultyStore(store)

    def open_store(self) -> Store:
        return self.store


class _Topic:
    """A topic with two partitions in a store in memory."""

    def __init__(self, messages: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        self.clock = _Clock()
        self.store = KeptStore(shared=True)
        self.engine = Engine(self.store, self.clock, small(segment_bytes=6_000).config())
        self.engine.create_topic(NAME, TopicSettings(2))
        while messages > 0:
            self.clock.ahead_ms += chance.choice([0, 1, 30])
            count = min(messages, chance.randint(1, 5))
            values = [b"%d" % (messages - i) + bytes(chance.randint(0, 99)) for i in range(count)]
            self.engine.append(NAME, [NewBlock(messages % 2, block(*values))])
            messages -= count
        self.reader = _Reader(self.store)

    def wanted(self, partition: int, start: int, stop: int) -> list[Seen]:
        found = self.engine.fetch(NAME, [(partition, Position.earliest())], MANY)  # type: ignore[list-item]
        return [one for one in seen(found.blocks) if start <= one.offset < stop]

    def read(self, split: Split) -> list[Seen]:
        found = seen(list(self.reader.read(split)))
        return [one for one in found if split.start <= one.offset < split.stop]


@pytest.mark.parametrize("seed", range(8))
def test_splits_are_the_whole_range_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    topic = _Topic(600, seed)
    ends = topic.reader.offsets(TOPIC, Position.latest())
    for parts in (1, 2, 7, 40):
        ranges = {}
        for partition, end in ends.items():
            start = chance.randint(0, end)
            ranges[partition] = (start, chance.randint(start, end))
        splits = topic.reader.splits(TOPIC, ranges, parts)
        if parts >= 7 and min(stop - start for start, stop in ranges.values()) > 100:
            assert len(splits) > 3
        for partition, (start, stop) in ranges.items():
            mine = [one for one in splits if one.partition == partition]
            assert [one for split in mine for one in topic.read(split)] == topic.wanted(
                partition, start, stop
            )
            bounds = [(one.start, one.stop) for one in mine]
            assert all(a[1] == b[0] for a, b in pairwise(bounds))


def test_a_short_range_of_a_long_topic_reads_only_its_own_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = _Topic(3_000)
    [split] = topic.reader.splits(TOPIC, {0: (700, 720)}, 1)
    scans: list[tuple[bytes | None, bytes | None, int]] = []
    scan = MemoryMap.scan

    def noted(
        self: MemoryMap,
        start: bytes | None,
        stop: bytes | None,
        bytes_max: int,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        found = scan(self, start, stop, bytes_max, reverse)
        scans.append((start, stop, len(found)))
        return found

    monkeypatch.setattr(MemoryMap, "scan", noted)
    read = [keys.block_key(one.time_ms, one.last_sequence) for one in topic.reader.read(split)]
    assert 4 <= len(read) <= 21
    many = [one for one in scans if one[2] > 1]
    assert sum(rows for _, _, rows in many) == len(read)
    for start, stop, _ in many:
        assert start is not None and stop is not None
        assert start > keys.block_key(*_earlier(read[0]))
        assert stop <= _next(read[-1])
    assert len(scans) - len(many) < 40  # probes, of one row each
    assert len(topic.read(split)) == 20


def test_a_task_does_not_look_for_what_the_driver_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has met the blocks at the beginning and the end of a range by time."""
    topic = _Topic(3_000)
    messages = topic.wanted(0, 0, MANY)
    times = [messages[number].id.time_ms for number in (900, 940)]
    start, stop = (topic.reader.offsets(TOPIC, Position.time(one))[0] for one in times)
    assert start < stop
    [split] = pickle.loads(pickle.dumps(topic.reader.splits(TOPIC, {0: (start, stop)}, 1)))
    counts: list[int] = []
    scan = MemoryMap.scan

    def counted(*args: Any, **kwargs: Any) -> list[tuple[bytes, bytes]]:
        found = scan(*args, **kwargs)
        counts.append(len(found))
        return found

    monkeypatch.setattr(MemoryMap, "scan", counted)
    blocks = list(_Reader(topic.store).read(split))
    assert [one.offset for one in seen(blocks)] == list(range(start, stop))
    assert sum(counts) == len(blocks) + 1  # plus the first block that is kept
    assert topic.read(split) == messages[start:stop]


def test_a_moment_in_the_past_is_found_without_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = _Topic(3_000)
    topic.reader.offsets(TOPIC, Position.latest())
    looks: list[object] = []
    monkeypatch.setattr("tms.engine.observer.partition.open_end", lambda *args: looks.append(args))
    first = topic.wanted(0, 0, 1)[0].id.time_ms
    assert topic.reader.offsets(TOPIC, Position.time(first + 500))[0] > 0
    assert topic.reader.offsets(TOPIC, Position.earliest())[0] == 0
    assert looks == []


def _earlier(key: bytes) -> tuple[int, int]:
    """The position before the messages of the block with this key."""
    time_ms, _ = keys.split_block_key(key)
    return time_ms - 1, 0


def _next(key: bytes) -> bytes:
    return keys.block_key(*key_after(keys.split_block_key(key)))


def test_the_connector_is_asked_for_the_rows_of_a_short_range_only() -> None:
    topic = _Topic(3_000)
    view = StoreObserver(topic.store, topic.clock).topic(TOPIC)
    [(low, high)] = TopicPlan.of(
        view, "hbase://nowhere:1", [(view.partition(0), OffsetBounds(700, 720))]
    ).ranges
    read: list[Seen] = []
    for segment in view.partition(0).segments:
        name = keys.segment_map(view.record.uid, 0, segment.number)
        where = rows_of("tms", name)
        for key, value in topic.store.open(name, create=False).scan(None, None, MANY):
            if low <= where.row(key).decode() < high:
                read += seen([StoredBlock(0, *keys.split_block_key(key), value)])
    assert [one.offset for one in read if 700 <= one.offset < 720] == list(range(700, 720))
    assert len(read) <= 20 + 2 * 4, "more than the blocks that overlap"


def test_parts_of_a_split_read_only_their_own_rows() -> None:
    """A limit of messages for each task cuts planned splits."""
    topic = _Topic(2_000)
    end = topic.reader.offsets(TOPIC, Position.latest())[0]
    [whole] = topic.reader.splits(TOPIC, {0: (0, end)}, 1)
    parts = cut([whole], 100)
    assert len(parts) > 5
    blocks = [len(list(topic.reader.read(part))) for part in parts]
    assert max(blocks) < 102
    assert sum(blocks) <= len(list(topic.reader.read(whole))) + len(parts)
    assert [one for part in parts for one in topic.read(part)] == topic.wanted(0, 0, end)


def test_splits_take_about_the_same_bytes() -> None:
    topic = _Topic(0)
    for size, count in ((10, 400), (2_000, 100)):
        for number in range(count):
            topic.clock.ahead_ms += 5
            topic.engine.append(NAME, [NewBlock(0, block(b"%d" % number + bytes(size)))])
    splits = topic.reader.splits(TOPIC, {0: (0, 500)}, 4)
    assert len(splits) == 4
    sizes = [sum(len(one.block) for one in topic.reader.read(split)) for split in splits]
    assert max(sizes) < 1.5 * min(sizes)
    assert splits[0].stop - splits[0].start > 100  # small messages


def test_a_task_looks_for_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction that holds readers back may have begun hours ago, and each task would read
    all blocks since."""
    topic = _Topic(0)
    topic.engine.transactions.begin(long=True)
    for number in range(500):
        topic.clock.ahead_ms += 5
        topic.engine.append(NAME, [NewBlock(0, block(b"%d" % number))])
    splits = topic.reader.splits(TOPIC, {0: (0, 500)}, 10)
    read = 0
    scan = MemoryMap.scan

    def counted(*args: Any, **kwargs: Any) -> list[tuple[bytes, bytes]]:
        nonlocal read
        found = scan(*args, **kwargs)
        read += len(found)
        return found

    monkeypatch.setattr(MemoryMap, "scan", counted)
    for split in splits:
        read = 0
        blocks = len(list(_Reader(topic.store).read(split)))
        assert 40 < blocks < 62
        assert read < blocks + 40


def test_a_driver_looks_at_new_messages_only() -> None:
    topic = _Topic(500)
    ends = topic.reader.offsets(TOPIC, Position.latest())
    topic.clock.ahead_ms += 50
    topic.engine.append(NAME, [NewBlock(0, block(b"new"))])
    assert topic.reader.offsets(TOPIC, Position.latest())[0] == ends[0] + 1
    known = topic.reader._view._known
    assert {number: one.end.offset for (_, number), one in known.items()} == {
        0: ends[0] + 1,
        1: ends[1],
    }


def test_what_is_not_decided_is_no_split() -> None:
    topic = _Topic(50)
    end = topic.reader.offsets(TOPIC, Position.latest())[0]
    with pytest.raises(OffsetOutOfRange) as raised:
        topic.reader.splits(TOPIC, {0: (0, end + 1)}, 1)
    assert raised.value.details["end"] == end


def test_a_split_that_was_planned_is_read_while_the_partition_changes_hands() -> None:
    topic = _Topic(300)
    end = topic.reader.offsets(TOPIC, Position.latest())[0]
    [split] = topic.reader.splits(TOPIC, {0: (0, end)}, 1)
    wanted = topic.wanted(0, 0, end)
    Engine(topic.store, topic.clock, small().config()).describe_topic(NAME)
    assert topic.read(split) == wanted


def test_a_topic_that_goes_while_a_task_reads_fails_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.engine.observer.partition.READ_BYTES", 1_000)
    topic = _Topic(500)
    end = topic.reader.offsets(TOPIC, Position.latest())[0]
    [split] = topic.reader.splits(TOPIC, {0: (0, end)}, 1)
    reading = topic.reader.read(split)
    next(reading)
    topic.engine.delete_topic(NAME)
    topic.engine.create_topic(NAME, TopicSettings(2))
    with pytest.raises(TopicNotFound, match="anew"):
        list(reading)


def test_a_task_that_is_not_read_to_its_end_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.engine.observer.partition.READ_BYTES", 1_000)
    topic = _Topic(500)
    [split] = topic.reader.splits(TOPIC, {0: (0, 200)}, 1)
    reading = topic.reader.read(split)
    assert isinstance(reading, Generator)
    next(reading)
    reading.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("tms-read")]


def test_a_reader_is_pickled_without_its_connections() -> None:
    topic = _Topic(10)
    topic.reader.offsets(TOPIC, Position.latest())
    assert topic.reader.__getstate__()["_opened"] is None
    assert pickle.loads(pickle.dumps(HBaseReader("hbase://a:1"))).__dict__["_url"] == "hbase://a:1"


def test_what_is_no_longer_kept_and_another_life_are_errors() -> None:
    topic = _Topic(200)
    [split] = topic.reader.splits(TOPIC, {0: (0, 20)}, 1)
    topic.engine.truncate_topic(NAME, Position.offset(10))
    with pytest.raises(OffsetOutOfRange) as raised:
        topic.read(split)
    assert raised.value.details["earliest"] == 10
    topic.engine.delete_topic(NAME)
    with pytest.raises(TopicNotFound):
        topic.read(split)
    topic.engine.create_topic(NAME, TopicSettings(2))
    with pytest.raises(TopicNotFound, match="anew"):
        topic.read(split)
