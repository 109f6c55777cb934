"""Topics read from a service, split by split; and lost parts of a split."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tms
from tests.client.test_surviving import BEFORE, Restarted, away
from tests.clocks import ManualClock
from tests.gate_kit import in_thread
from tests.proxy import Fault, Proxy
from tests.spark_topics_kit import Topics, consumed, in_order, world
from tests.waiting import PATIENCE_S, until
from tms.api.operations import OPERATIONS
from tms.block import encode, place, read_header
from tms.client.http.channel import HttpChannel
from tms.client.http.exchange import Calls
from tms.client.transport import FetchRequest
from tms.errors import Closed, Invalid, OffsetOutOfRange, TopicNotFound, Unavailable
from tms.model.message import StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.spark.rows import WantedColumns, batches
from tms.spark.source.from_service import FETCH_BYTES, FIRST_FETCH_BYTES, ServiceReader
from tms.spark.source.losses import LossRule
from tms.spark.source.options import read_options
from tms.spark.source.reading import SplitBlocks
from tms.spark.source.topics import Split

__all__ = ["world"]

ALL = WantedColumns(headers=True, message_id=True)


def rows(reader: ServiceReader, splits: Sequence[Split]) -> list[dict[str, object]]:
    """The rows of these splits."""
    return in_order(
        row
        for split in splits
        for batch in batches(reader.read(split), split.topic, split.start, split.stop, ALL)
        for row in batch.to_pylist()
    )


def test_splits_anywhere_together_have_what_a_consumer_gets(world: Topics) -> None:
    random = Random(1)
    world.bus.create_topic("anywhere", partitions=3, durability="written")
    world.fill(random, "anywhere", 3, 120)
    reader = ServiceReader(world.url)
    ends = reader.offsets("anywhere", Position.latest())
    expected = consumed(world.bus, "anywhere")
    for at_least in (1, 2, 7, 50, 5_000):
        ranges = {partition: (0, end) for partition, end in ends.items()}
        assert rows(reader, reader.splits("anywhere", ranges, at_least)) == expected
    for _ in range(30):
        cut = {p: tuple(sorted(random.choices(range(end + 1), k=2))) for p, end in ends.items()}
        splits = reader.splits("anywhere", cut, 3)  # type: ignore[arg-type]
        assert rows(reader, splits) == [
            row for row in expected if row["offset"] in range(*cut[row["partition"]])
        ]


def test_a_reader_travels_without_its_connections(world: Topics) -> None:
    world.bus.create_topic("travels")
    world.publish("travels", 0, 3)
    reader = ServiceReader(world.url, "token")
    splits = reader.splits("travels", {0: (0, 3)}, 1)
    copy = pickle.loads(pickle.dumps(reader))
    assert len(rows(copy, pickle.loads(pickle.dumps(splits)))) == 3
    reader.close()
    copy.close()
    assert len(rows(copy, splits)) == 3, "a closed reader connects again"


@pytest.mark.parametrize(
    "fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.HALF_ANSWER, Fault.TRICKLE]
)
def test_a_connection_that_breaks_while_a_split_is_read_costs_no_message(
    world: Topics, fault: Fault
) -> None:
    name = f"breaks-{fault.name}"
    world.bus.create_topic(name, durability="none")
    size = 100 if fault is Fault.TRICKLE else 250_000
    for number in range(16):
        world.bus.publish(name, number.to_bytes(4) * size, durability="written")
    with Proxy(world.url, b"GET") as proxy:
        reader = ServiceReader(proxy.url)
        (split,) = reader.splits(name, {0: (0, 16)}, 1)
        proxy.script(fault, fault)
        found = rows(reader, [split])
    assert [row["offset"] for row in found] == list(range(16))


def test_a_short_split_does_not_fetch_a_long_one(
    world: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.bus.create_topic("short", durability="none")
    for _ in range(24):
        world.bus.publish("short", bytes(1_000_000), durability="written")
    asked: list[int] = []
    begin = HttpChannel.begin_fetch

    def counted(self: HttpChannel, request: FetchRequest) -> object:
        asked.append(request.bytes_max)
        return begin(self, request)

    monkeypatch.setattr(HttpChannel, "begin_fetch", counted)
    reader = ServiceReader(world.url)
    assert len(rows(reader, reader.splits("short", {0: (3, 5)}, 1))) == 2
    assert sum(asked) <= 3 * FIRST_FETCH_BYTES
    asked.clear()
    assert len(rows(reader, reader.splits("short", {0: (0, 24)}, 1))) == 24
    assert max(asked) == FETCH_BYTES
    assert len(asked) <= 6


def test_a_task_leaves_no_connection_open(world: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    world.bus.create_topic("leaves")
    world.publish("leaves", 0, 3)
    channels: list[HttpChannel] = []
    made = HttpChannel.__init__

    def noted(self: HttpChannel, *place: Any) -> None:
        channels.append(self)
        made(self, *place)

    monkeypatch.setattr(HttpChannel, "__init__", noted)
    reader = ServiceReader(world.url)
    (split,) = reader.splits("leaves", {0: (0, 3)}, 1)
    next(reader.read(split))  # and no more: the rest is discarded
    assert [channel._closed for channel in channels] == [True]


def test_a_beginning_that_is_gone_and_an_end_that_is_not_there_are_errors(world: Topics) -> None:
    world.bus.create_topic("gone")
    world.publish("gone", 0, 9)
    reader = ServiceReader(world.url)
    (split,) = reader.splits("gone", {0: (1, 9)}, 1)
    with pytest.raises(OffsetOutOfRange, match="ends at offset 9, but it reached 12"):
        list(reader.read(split._replace(stop=12)))
    world.bus.truncate_topic("gone", "offset:3")
    with pytest.raises(OffsetOutOfRange) as caught:
        list(reader.read(split))
    assert caught.value.details["earliest"] == 3


def test_a_topic_that_was_created_anew_is_another_one(world: Topics) -> None:
    world.bus.create_topic("anew")
    world.publish("anew", 0, 3)
    reader = ServiceReader(world.url)
    assert reader.generation("anew") == 1
    (split,) = reader.splits("anew", {0: (0, 3)}, 1)
    world.bus.delete_topic("anew")
    world.bus.create_topic("anew")
    world.publish("anew", 0, 3)
    with pytest.raises(TopicNotFound, match="created anew while it was read"):
        list(reader.read(split))
    assert reader.generation("anew") == 2


def test_a_service_that_is_away_is_an_error_that_names_it() -> None:
    reader = ServiceReader("http://127.0.0.1:9", timeout_s=0.2, outage_s=0.2)
    with pytest.raises(Unavailable, match=r"Nothing listens at http://127.0.0.1:9\. Start"):
        reader.offsets("flights", Position.latest())
    with pytest.raises(Unavailable, match="Nothing listens"):
        list(reader.read(Split("flights", 0, 0, 5)))


def test_a_token_goes_with_every_request(world: Topics) -> None:
    describe = OPERATIONS["topics.describe_topic"]
    calls, name = Calls("here:7070", "http://here:7070", "s3cret"), TopicName.parse("t")
    for call in (
        calls.of(describe, {"name": name}),
        calls.fetch(FetchRequest(name, [], 1, 0)),
        calls.append(name, [], None),
    ):
        assert b"\r\nAuthorization: Bearer s3cret\r\n" in b"".join(map(bytes, call.chunks))
    plain = Calls("here:7070", "http://here:7070").of(describe, {"name": name})
    assert b"Authorization" not in b"".join(map(bytes, plain.chunks))


# --- losses of a split ----------------------------------------------------------------------------


class Kept:
    """A topic with missing parts: blocks of five messages from `first` on, except those in gaps.
    Messages that expire during a read begin with `drops` blocks."""

    def __init__(self, earliest: int, end: int, gaps: Sequence[int] = (), clock: object = None):
        self.earliest = earliest
        self.end = end
        self.gaps = gaps
        self.asked = 0
        self.leaps: dict[int, int] = {}  # when this block is reached, the topic begins later
        self.clock = clock

    def names(self, namespace: str) -> list[TopicName]:
        return [TopicName(namespace, "t")]

    def generation(self, topic: str) -> int:
        return 1

    def offsets(self, topic: str, at: Position) -> Mapping[int, int]:
        self.asked += 1
        return {0: self.earliest}

    def splits(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int
    ) -> list[Split]:
        return [Split(topic, p, *both) for p, both in ranges.items()]

    def read(self, split: Split) -> Iterator[StoredBlock]:
        if split.start < self.earliest:
            raise OffsetOutOfRange("gone", earliest=self.earliest, end=self.end)
        for base in range(split.start // 5 * 5, min(split.stop, self.end), 5):
            self.earliest = max(self.earliest, self.leaps.get(base, 0))
            if base < self.earliest or base in self.gaps:
                continue
            if isinstance(self.clock, ManualClock):
                self.clock.pass_ms(600)
            block = encode([b""] * 5)
            place(block, base)
            yield StoredBlock(0, 1, base, block)
        if split.stop > self.end:
            raise OffsetOutOfRange("short", earliest=self.end, end=self.end)

    def close(self) -> None:
        pass


def _read(topic: Kept, start: int, stop: int, fails: bool = True) -> list[int]:
    clock = topic.clock if isinstance(topic.clock, ManualClock) else ManualClock()
    blocks = SplitBlocks(topic, Split("t", 0, start, stop), LossRule(fails), clock)
    return [read_header(one.block).base_offset for one in blocks]


def test_what_is_whole_is_not_looked_into() -> None:
    topic = Kept(0, 100)
    assert _read(topic, 7, 33) == [5, 10, 15, 20, 25, 30]
    assert topic.asked == 0


def test_a_gap_is_no_loss_while_the_topic_begins_before_it() -> None:
    topic = Kept(5, 100, gaps=[10, 30])
    assert _read(topic, 5, 35) == [5, 15, 20, 25]
    assert topic.asked == 1


def test_gaps_are_looked_into_while_a_long_split_is_read() -> None:
    topic = Kept(0, 1_000, gaps=[10], clock=ManualClock())
    topic.leaps = {500: 400}
    assert len(_read(topic, 0, 1_000)) == 199, "what came to be gone later had been read"


def test_what_expires_under_a_split_is_an_error_that_names_it() -> None:
    topic = Kept(0, 100)
    topic.leaps = {10: 25}
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 24 of partition 0 of topic t"):
        _read(topic, 0, 40)


def test_what_expires_under_a_split_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    topic = Kept(7, 100, clock=ManualClock())
    topic.leaps = {10: 25, 40: 60}
    assert _read(topic, 0, 80, fails=False) == [25, 30, 35, 60, 65, 70, 75]
    (record,) = caplog.records
    said = "offsets lost topic='t' partition=0 start=0 stop=60 offsets=45 because="
    assert record.getMessage().startswith(said)


def test_a_split_of_which_nothing_is_left_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    assert _read(Kept(50, 100), 0, 40, fails=False) == []
    (record,) = caplog.records
    assert "start=0 stop=40 offsets=40" in record.getMessage()


def test_an_end_that_is_not_there_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OffsetOutOfRange, match=r"offsets 20 to 39 .* the log ends before them"):
        _read(Kept(0, 20), 0, 40)
    assert _read(Kept(0, 20), 0, 40, fails=False) == [0, 5, 10, 15]
    assert "start=20 stop=40 offsets=20" in caplog.records[-1].getMessage()


# --- outages --------------------------------------------------------------------------------------


def test_a_stream_waits_for_a_service_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Restarted(tmp_path / "data") as service:
        with tms.connect(service.url) as bus:
            bus.create_topic("t")
        service.publish(BEFORE)
        reader = ServiceReader(service.url, timeout_s=0.3, outage_s=inf)
        (split,) = reader.splits("t", {0: (0, 20)}, 1)
        service.stop()
        ends = in_thread(lambda: reader.offsets("t", Position.latest()))
        read = in_thread(lambda: rows(pickle.loads(pickle.dumps(reader)), [split]))
        until(lambda: away(caplog) and not ends.done() and not read.done())
        service.start()
        assert ends.result(PATIENCE_S) == {0: 20}
        assert [row["value"] for row in read.result(PATIENCE_S)] == BEFORE
        service.stop()
        bounded = ServiceReader(service.url, timeout_s=0.2, outage_s=0.5)
        with pytest.raises(Unavailable, match="Nothing listens"):
            bounded.generation("t")
        stopped = in_thread(lambda: reader.generation("t"))
        until(lambda: away(caplog))
        reader.close()  # the query ends
        with pytest.raises((Unavailable, Closed)):
            stopped.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("given", "streaming", "outage_s"),
    [
        ({}, True, inf),
        ({}, False, 30.0),
        ({"tms.outage": "10 min"}, True, 600.0),
        ({"tms.outage": "forever"}, False, inf),
        ({"tms.outage": "0"}, True, 0.0),
    ],
)
def test_an_option_says_how_long_a_service_may_be_away(
    given: dict[str, str], streaming: bool, outage_s: float
) -> None:
    options = {"subscribe": "t", "tms.url": "http://localhost:7070", **given}
    assert read_options(options, streaming).place.outage_s == outage_s


@pytest.mark.parametrize(
    "options",
    [
        {"tms.url": "http://localhost:7070", "tms.outage": "a while"},
        {"source": "hbase", "tms.store": "hbase://localhost:9090", "tms.outage": "1h"},
    ],
)
def test_an_outage_that_makes_no_sense_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refused:
        read_options({"subscribe": "t", **options}, True)
    assert refused.value.details["field"] == "tms.outage"
