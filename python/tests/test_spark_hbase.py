"""Splits of topics that are read without their service."""

import pickle
import random
from itertools import pairwise

import pytest

from tests.log_kit import MANY, NAME, KeptStore, Seen, block, seen, small
from tms.clock import SystemClock
from tms.engine import Engine
from tms.errors import OffsetOutOfRange, TopicNotFound
from tms.model.log import NewBlock
from tms.model.position import Position
from tms.model.topic import TopicSettings
from tms.spark.topics.base import Split
from tms.spark.topics.hbase import HBaseReader
from tms.store.base import Store

TOPIC = str(NAME)


class _Clock(SystemClock):
    """The machine's clock, and what passes between two messages."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000 + self.ahead_ms


class _Reader(HBaseReader):
    """Reads from memory."""

    def __init__(self, store: KeptStore) -> None:
        super().__init__("hbase://nowhere:1")
        self.store = store
        self.scanned = 0

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


def test_a_short_range_of_a_long_topic_reads_only_its_own_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = _Topic(3_000)
    [split] = topic.reader.splits(TOPIC, {0: (700, 720)}, 1)
    read = [(one.time_ms, one.last_sequence) for one in topic.reader.read(split)]
    assert 4 <= len(read) <= 21
    assert len(topic.read(split)) == 20


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
