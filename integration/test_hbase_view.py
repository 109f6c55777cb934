"""Topics in a real HBase, read without the service that wrote them: the visible messages, the rows
that are read, and reading beside owners that follow each other."""

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.log_kit import Seen, block, seen
from tms.block import Compression, encode
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.errors import StorageUnavailable, TopicNotFound
from tms.log.partition import LogLimits
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Cleanup, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock, TopicStaged
from tms.runtime.clock import SystemClock
from tms.spark.source.from_hbase import HBaseReader
from tms.spark.source.topics import Split
from tms.store.hbase import HBaseStore
from tms.store.hbase.scanning import Pages

LATEST, EARLIEST = Position.latest(), Position.earliest()
LIMITS = LogLimits(segment_bytes=256 << 10, snapshot_bytes=64 << 10)


@contextmanager
def engine(url: str) -> Iterator[Engine]:
    """The engine of a service, on a connection of its own."""
    with closing(Engine(HBaseStore(url), SystemClock(), EngineConfig(log=LIMITS))) as opened:
        yield opened


@pytest.fixture
def reader(installed: str) -> Iterator[HBaseReader]:
    with closing(HBaseReader(installed)) as reader:
        yield reader


def publish(to: Engine, topic: TopicName, *values: bytes, partition: int = 0) -> None:
    to.append(topic, [NewBlock(partition, block(*values))])


def read(reader: HBaseReader, splits: list[Split]) -> list[Seen]:
    """The messages that tasks read, each with a reader that was pickled as for a network."""
    found = []
    for split in splits:
        with closing(pickle.loads(pickle.dumps(reader))) as task:
            messages = seen(list(task.read(pickle.loads(pickle.dumps(split)))))
        found += [one for one in messages if split.start <= one.offset < split.stop]
    return found


def whole(reader: HBaseReader, topic: str, at_least: int = 1) -> dict[int, list[bytes | None]]:
    """All visible messages of a topic, by partition."""
    first, ends = reader.offsets(topic, EARLIEST), reader.offsets(topic, LATEST)
    splits = reader.splits(topic, {p: (first[p], end) for p, end in ends.items()}, at_least)
    found = {}
    for partition in ends:
        mine = [one for one in splits if one.partition == partition]
        found[partition] = [one.value for one in read(reader, mine)]
    return found


def test_what_a_service_published_is_read_when_it_is_away(
    installed: str, reader: HBaseReader
) -> None:
    topic = TopicName.parse("flights")
    large = bytes(3 << 20)
    with engine(installed) as service:
        service.create_topic(topic, TopicSettings(2, message_bytes_max=8 << 20))
        tx = service.transactions
        publish(service, topic, b"plain 0", b"plain 1")
        committed, rolled_back, left = (tx.begin(long=True).transaction_id for _ in range(3))
        tx.submit(topic, [NewBlock(0, block(b"committed"))], committed).result(20)
        tx.submit(topic, [NewBlock(0, block(b"rolled back"))], rolled_back).result(20)
        tx.stage(topic, [NewBlock(1, block(b"staged 0", b"staged 1"))], committed)
        packed = encode([large], compression=Compression.ZSTD)
        with_them = TopicBlock(topic, NewBlock(1, packed))
        tx.commit(Commit(committed, "", (with_them,), staged=(TopicStaged(topic, 1, 1),)))
        tx.abort(rolled_back)
        publish(service, topic, *[b"%d" % number for number in range(1_000)])
        tx.submit(topic, [NewBlock(1, block(b"undecided"))], left).result(20)
        publish(service, topic, b"behind it", partition=1)
    decided = [b"plain 0", b"plain 1", b"committed", *[b"%d" % n for n in range(1_000)]]
    for at_least in (1, 5):
        found = whole(reader, "flights", at_least)
        assert found[0] == decided
        assert sorted(value or b"" for value in found[1]) == sorted(
            [b"staged 0", b"staged 1", large]
        )
    assert [str(name) for name in reader.names("default")] == ["flights"]
    with engine(installed) as service:
        service.transactions.abort(left)
    assert whole(reader, "flights")[1][-1] == b"behind it"


def test_a_small_part_of_a_large_topic_is_read_by_its_own_rows(
    installed: str, reader: HBaseReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TopicName.parse("large")
    with engine(installed) as service:
        service.create_topic(topic, TopicSettings(2))
        for number in range(300):
            value = b"%d" % number + bytes(8 << 10)
            publish(service, topic, value, partition=number % 2)
    end = reader.offsets("large", LATEST)[0]
    assert end == 150
    [split] = reader.splits("large", {0: (70, 80)}, 1)
    pages: list[tuple[bytes, bytes, int]] = []
    ask = Pages.next

    def noted(self: Pages, rows: int, size: int = 0) -> list[Any]:
        first, stop = self.start, self.stop
        found = ask(self, rows, size)
        pages.append((first, stop, len(found) if self.filter is None else 0))
        return found

    monkeypatch.setattr(Pages, "next", noted)
    with closing(pickle.loads(pickle.dumps(reader))) as task:
        blocks = list(task.read(split))
    assert [one.offset for one in seen(blocks)] == list(range(70, 80))
    rows = [page for page in pages if page[2]]
    assert sum(count for *_, count in rows) < 10 + 40  # and probes, of one row each
    salted = {first[:16] for first, _, _ in rows}
    assert len(salted) == 1  # one partition of one topic
    times = [int(first[24:40] or b"0", 16) for first, _, count in rows if count > 1]
    assert all(blocks[0].time_ms <= time_ms <= blocks[-1].time_ms for time_ms in times)
    ends = [stop for _, stop, count in rows if count > 1]
    assert all(int(stop[24:40], 16) <= blocks[-1].time_ms for stop in ends)


def test_a_compacted_topic_is_read_as_it_is_left_and_nothing_counts_as_lost(
    installed: str, reader: HBaseReader
) -> None:
    topic = TopicName.parse("prices")
    names = [b"key %d" % number for number in range(50)]

    def seal(service: Engine) -> None:
        log = service.topics.partitions.get(topic, service.topics.registry.find(topic), 0)
        with log.state.changing():
            log.state.load()
            log.state.roll(SystemClock().now_ms())

    with engine(installed) as service:
        service.create_topic(topic, TopicSettings(cleanup=Cleanup.COMPACT))
        for number in range(4):
            values = [b"%d of %d" % (number, at) for at in range(50)]
            service.append(topic, [NewBlock(0, encode(values[:30], names[:30]))])
            id = service.transactions.begin(long=True).transaction_id
            service.transactions.stage(topic, [NewBlock(0, encode(values[30:], names[30:]))], id)
            staged = (TopicStaged(topic, 0, 1),)
            service.transactions.commit(Commit(id, staged=staged))
        service.append(topic, [NewBlock(0, encode([b"newer"], names[:1]))])
        seal(service)
        service.compaction.run()
        assert service.stats().compaction_removed == 151
        assert service.erase(topic, key=names[1]) == 1
    expected = [*[b"3 of %d" % at for at in range(2, 50)], b"newer"]
    assert whole(reader, "prices")[0] == expected
    assert reader.offsets("prices", EARLIEST) == {0: 0}
    with engine(installed) as service:
        at = [PartitionPosition(0, EARLIEST)]
        assert [one.value for one in seen(service.fetch(topic, at, 1 << 20).blocks)] == expected


def test_services_that_follow_each_other_are_read_as_one_log(
    installed: str, reader: HBaseReader
) -> None:
    topic = TopicName.parse("followed")
    with engine(installed) as first:
        first.create_topic(topic, TopicSettings(1))
        publish(first, topic, b"0", b"1")
        assert whole(reader, "followed")[0] == [b"0", b"1"]  # from the open segment
        with engine(installed) as second:
            publish(second, topic, b"2")
            assert whole(reader, "followed")[0] == [b"0", b"1", b"2"]
            publish(second, topic, b"3")
        with pytest.raises(StorageUnavailable):
            publish(first, topic, b"behind the seal")
        assert whole(reader, "followed")[0] == [b"0", b"1", b"2", b"3"]
        publish(first, topic, b"4")
    assert whole(reader, "followed")[0] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_that_was_created_anew_is_not_taken_for_the_old_one(
    installed: str, reader: HBaseReader
) -> None:
    topic = TopicName.parse("renewed")
    with engine(installed) as service:
        service.create_topic(topic, TopicSettings(1))
        publish(service, topic, b"old 0", b"old 1")
        [split] = reader.splits("renewed", {0: (0, 2)}, 1)
        service.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            read(reader, [split])
        service.create_topic(topic, TopicSettings(1))
        publish(service, topic, b"new 0", b"new 1")
    with pytest.raises(TopicNotFound, match="anew"):
        read(reader, [split])
    assert whole(reader, "renewed")[0] == [b"new 0", b"new 1"]
