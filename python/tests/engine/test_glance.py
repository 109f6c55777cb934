"""Topics with sizes, groups with lag and queues with counts, of an engine; and their cost."""

import time
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tms.block import encode
from tms.engine.engine import Engine
from tms.errors import NotFound, TopicNotFound
from tms.groups.groups import LogGroups
from tms.log.segments import SegmentChain
from tms.model import keys
from tms.model.delayed import DelayedSummary, Due
from tms.model.group import GroupKind, GroupSummary
from tms.model.ids import MessageId
from tms.model.lag import (
    GroupOrder,
    LagPlace,
    QueueOrder,
    TopicOrder,
    TopicSize,
    in_order,
)
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import QueueSettings, QueueSummary
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import PositionChange, PositionKey
from tms.queues import Queues
from tms.store.memory import MemoryStore
from tms.topics.lag import Lags

GROUPS = 10_000
GROUPS_CPU_S = 1.0
A, B, FAR = TopicName("default", "a"), TopicName("default", "a-b"), TopicName("far", "a")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    engine = Engine(MemoryStore(), clock)
    for name in (A, B, FAR):
        engine.create_topic(name, TopicSettings(2, durability=Durability.WRITTEN))
    return engine


def publish(engine: Engine, name: TopicName, count: int, partition: int = 0) -> None:
    engine.append(name, [NewBlock(partition, encode([b"x"] * count))])


def move(engine: Engine, name: TopicName, group: str, *positions: Position) -> None:
    engine.groups.move(
        [PositionChange(PositionKey(group, name, p), at) for p, at in enumerate(positions)]
    )


def test_a_topic_has_the_messages_and_bytes_that_describing_it_tells(
    engine: Engine, clock: ManualClock
) -> None:
    assert engine.glance.topics("default") == [TopicSize(str(n), 2, 0, 0, 0) for n in (A, B)]
    for partition in (0, 0, 1):
        publish(engine, A, 5, partition)
        clock.pass_ms(10_000)
    engine.update_topic(A, {"retention_ms": 25_000})
    for expected in (10, 3):
        infos = engine.describe_topic(A).partition_infos
        messages = sum(info.end_offset - info.start_offset for info in infos)
        stored = sum(info.stored_bytes for info in infos)
        size = engine.glance.topics("default")[0]
        assert size == TopicSize("a", 2, messages, 15, stored)
        assert messages == expected
        engine.truncate_topic(A, Position.offset(7))
    assert engine.glance.topics("default", "a") == [TopicSize("a-b", 2, 0, 0, 0)]
    assert engine.glance.topics("default", None, 1)[0].topic == "a"


def test_sizes_are_counted_and_read_no_messages(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in (0, 1):
        publish(engine, A, 5, partition)
    scans, scan = [], SegmentChain.scan

    def counting(chain: SegmentChain, *given: Any) -> Any:
        scans.append(chain.partition)
        return scan(chain, *given)

    monkeypatch.setattr(SegmentChain, "scan", counting)
    assert engine.glance.topics("default")[0].messages == 10 and scans == []
    engine.truncate_topic(A, Position.offset(2))
    scans.clear()
    assert engine.glance.topics("default")[0].messages == 6
    assert len(scans) <= 2, "one look in each partition that is cut within a segment"


def test_the_size_of_a_topic_whose_partition_is_damaged_is_unknown(clock: ManualClock) -> None:
    store = KeptStore()
    engine = Engine(store, clock)
    engine.create_topic(A, TopicSettings(2, durability=Durability.WRITTEN))
    engine.create_topic(B, TopicSettings(1, durability=Durability.WRITTEN))
    publish(engine, A, 5)
    record = next(key for key, _ in engine.topics.metadata.scan(b"partition/", b"partition0", 1))
    engine.close()
    again = Engine(store, clock)
    again.topics.metadata.write([(record, b"{")], Durability.SYNCED)
    assert again.glance.topics("default") == [TopicSize("a", 2), TopicSize("a-b", 1, 0, 0, 0)]
    move(again, A, "g", Position.offset(2))
    assert again.glance.groups("default") == [GroupSummary("g", "a", 0, None, None)]


def test_groups_of_all_topics_of_a_namespace_come_by_topic_and_name(
    engine: Engine, clock: ManualClock
) -> None:
    publish(engine, A, 4)
    clock.pass_ms(3_000)
    publish(engine, B, 2, 1)
    clock.pass_ms(1_000)
    move(engine, B, "g", Position.earliest())
    move(engine, A, "h", Position.offset(1))
    move(engine, A, "g", Position.offset(4))
    move(engine, FAR, "g", Position.offset(0))
    engine.groups.poll(A, "m", "one")
    groups = engine.glance.groups("default")
    assert groups == [
        GroupSummary("g", "a", 0, 0, 0),
        GroupSummary("h", "a", 0, 3, 4_000),
        GroupSummary("m", "a", 1, 4, 4_000, GroupKind.TMS),
        GroupSummary("g", "a-b", 0, 2, 1_000),
    ]
    assert [one.topic for one in engine.glance.groups("far")] == ["far:a"]
    assert engine.glance.groups("nowhere") == []
    pages = [engine.glance.groups("default", after, 1) for after in (None, "a/g", "a/m", "a-b/g")]
    assert [one for page in pages for one in page] == [groups[0], groups[1], groups[3]]
    engine.delete_topic(A)  # where they stand is not forgotten yet
    assert [one.topic for one in engine.glance.groups("default")] == ["a-b"]


@pytest.mark.parametrize("kind", ["groups", "queues"])
def test_a_page_is_full_though_a_topic_is_deleted_while_it_is_made(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A shorter page is the last one: its reader would miss all that stands behind."""
    for name in (A, B):
        for group in ("v", "w", "x"):
            move(engine, name, group, Position.earliest())
            engine.queues.declare(name, group, QueueSettings())
    part, method = (LogGroups, "lags") if kind == "groups" else (Queues, "_summaries")
    summarize = getattr(part, method)

    def deleting(self: Any, places: Any) -> Any:
        some = list(places)
        with suppress(TopicNotFound):
            engine.delete_topic(A)
        return summarize(self, some)

    monkeypatch.setattr(part, method, deleting)
    page = getattr(engine.glance, kind)("default", None, 2)
    assert [(one.topic, one.group) for one in page] == [("a-b", "v"), ("a-b", "w")]
    [last] = getattr(engine.glance, kind)("default", "a-b/w", 2)
    assert (last.topic, last.group) == ("a-b", "x")


def test_a_page_looks_for_the_topics_of_its_own_groups_only(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [TopicName("default", f"t{number:02}") for number in range(50)]
    for name in names:
        engine.create_topic(name, TopicSettings(1, durability=Durability.WRITTEN))
        move(engine, name, "g", Position.earliest())
    registry = engine.topics.registry
    registry.known.clear()
    looked: list[bytes] = []
    get = registry.metadata.get
    monkeypatch.setattr(registry.metadata, "get", lambda key: [looked.append(key), get(key)][1])
    assert [one.topic for one in engine.glance.groups("default", None, 3)] == ["t00", "t01", "t02"]
    topics = {keys.topic_key(*name) for name in names}
    assert topics & {*looked} == {keys.topic_key(*name) for name in names[:3]}


def test_a_list_leaves_out_a_queue_that_is_deleted_meanwhile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("v", "w"):
        engine.queues.declare(A, group, QueueSettings())
    describe = engine.queues.describe

    def deleting(topic: TopicName, group: str) -> Any:
        if group == "v":
            engine.queues.delete(topic, group)
        return describe(topic, group)

    monkeypatch.setattr(engine.queues, "describe", deleting)
    assert [one.group for one in engine.queues.list_queues(A)] == ["w"]


def test_queues_of_all_topics_of_a_namespace_tell_what_waits_and_how_old_it_is(
    engine: Engine, clock: ManualClock
) -> None:
    for name, group in ((B, "w"), (A, "w"), (A, "v"), (FAR, "w")):
        engine.queues.declare(name, group, QueueSettings(lease_s=60, deliveries_max=1))
    assert engine.glance.queues("default") == [
        QueueSummary(group, topic, 0, 0, 0, 0)
        for topic, group in (("a", "v"), ("a", "w"), ("a-b", "w"))
    ]
    publish(engine, A, 3)
    clock.pass_ms(2_000)
    publish(engine, A, 2, 1)
    clock.pass_ms(500)
    received = engine.queues.receive(A, "v", 5)
    v, w = engine.glance.queues("default")[:2]
    assert v == QueueSummary("v", "a", 0, 5, 0, 2_500)
    assert w == QueueSummary("w", "a", 5, 0, 0, 2_500)
    tokens: dict[int, list[str]] = {0: [], 1: []}
    for message in received.messages("a"):
        tokens[message.partition].append(message.token)
    engine.queues.ack(A, "v", tokens[0])
    assert engine.glance.queues("default", None, 1) == [QueueSummary("v", "a", 0, 2, 0, 500)]
    [left] = engine.glance.queues("default", "a/w")
    assert (left.topic, left.group) == ("a-b", "w")
    engine.queues.reject(A, "v", tokens[1])
    assert engine.glance.queues("default")[0].dead == 2


def test_lags_of_many_places_are_those_of_each(engine: Engine, clock: ManualClock) -> None:
    for count in (3, 1, 4, 2):
        publish(engine, A, count)
        clock.pass_ms(1_000)
    ids = [
        MessageId(block.time_ms, block.last_sequence)
        for block in engine.topics.log(A, 0)
        .reader.read(Position.earliest(), (0, 0), 1 << 20)
        .blocks
    ]
    positions = [
        *(Position.offset(n) for n in range(11)),
        *(place(id) for id in ids[:3] for place in (Position.at, Position.after)),
        Position.time(ids[1].time_ms),
        Position.earliest(),
        Position.latest(),
    ]
    for number, at in enumerate(positions):
        move(engine, A, f"g{number:02}", at, Position.latest())
    together = {one.group: (one.lag, one.lag_ms) for one in engine.glance.groups("default")}
    ages = [4_000] * 3 + [3_000] + [2_000] * 4 + [1_000] * 2 + [0]
    expected = [
        *((10 - n, ages[n]) for n in range(11)),
        *((8, 4_000), (7, 3_000), (7, 3_000), (6, 2_000), (3, 2_000), (2, 1_000)),
        *((7, 3_000), (10, 4_000), (0, 0)),
    ]
    assert [together[f"g{number:02}"] for number in range(len(positions))] == expected
    for number, wanted in enumerate(expected):
        part = engine.groups.describe(A, f"g{number:02}").partitions[0]
        assert (part.lag, part.lag_ms) == wanted
    for pair in permutations(zip(positions, expected, strict=True), 2):
        topics = engine.topics
        lags = Lags(topics.fetcher, clock, topics.owner_of)  # without a cache
        found = lags.of(LagPlace(A, 0, at) for at, _ in pair)
        assert [found[LagPlace(A, 0, at)] for at, _ in pair] == [wanted for _, wanted in pair]


@pytest.mark.parametrize("go", ["truncate", "expire"])
def test_what_cannot_be_read_is_neither_lag_nor_backlog(
    engine: Engine, clock: ManualClock, go: str
) -> None:
    engine.update_topic(A, {"retention_ms": 60_000})
    engine.queues.declare(A, "q", QueueSettings(lease_s=10))
    engine.queues.declare(A, "leasing", QueueSettings(lease_s=3_600))
    publish(engine, A, 100)
    ahead = engine.queues.receive(A, "q", 10).messages("a")
    engine.queues.nack(A, "q", [one.token for one in ahead], 0)
    engine.queues.receive(A, "leasing", 10)
    positions = (Position.earliest(), Position.offset(40), Position.time(clock.now_ms()))
    for number, at in enumerate(positions):
        move(engine, A, f"g{number}", at)
    assert [one.lag for one in engine.glance.groups("default")] == [100, 60, 100]
    if go == "truncate":
        engine.truncate_topic(A, Position.latest())
    else:
        clock.pass_ms(61_000)
    nothing = [(0, 0)] * 3
    for _ in range(2):
        assert [(one.lag, one.lag_ms) for one in engine.glance.groups("default")] == nothing
        assert engine.glance.queues("default") == [
            QueueSummary("leasing", "a", 0, 10, 0, 0),
            QueueSummary("q", "a", 0, 0, 0, 0),
        ]
        info = engine.queues.describe(A, "q")
        assert (info.backlog, info.ready, info.delayed, info.leased) == (0, 0, 0, 0)
        assert [one.ready for one in engine.queues.stats()] == [0, 0]
        assert engine.glance.topics("default")[0].messages == 0
    publish(engine, A, 5)
    clock.pass_ms(1_000)
    assert [(one.lag, one.lag_ms) for one in engine.glance.groups("default")] == [(5, 1_000)] * 3
    waiting = engine.glance.queues("default")
    assert [(one.waiting, one.leased) for one in waiting] == [(5, 10), (5, 0)]
    assert waiting[1].oldest_ms == 1_000


def test_numbers_follow_a_retention_within_ten_seconds_and_read_the_store_no_oftener(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.update_topic(A, {"retention_ms": 60_000})
    move(engine, A, "g", Position.earliest())
    for _ in range(100):
        publish(engine, A, 1)
        clock.pass_ms(1_000)
    scans, scan = [], SegmentChain.scan

    def counting(chain: SegmentChain, *given: Any) -> Any:
        scans.append(chain.partition)
        return scan(chain, *given)

    monkeypatch.setattr(SegmentChain, "scan", counting)
    for _ in range(30):
        messages = engine.glance.topics("default")[0].messages
        lag = engine.glance.groups("default")[0].lag
        start = engine.describe_topic(A).partition_infos[0].start_offset
        assert messages is not None and 0 <= messages - (100 - start) <= 10
        assert lag is not None and 0 <= lag - (100 - start) <= 10
        clock.pass_ms(1_000)
    scans.clear()
    for _ in range(30):
        engine.glance.topics("default")
        engine.glance.groups("default")
        clock.pass_ms(1_000)
    assert 3 <= len(scans) <= 10, "once in ten seconds for the start, once for a place"


def test_ten_thousand_groups_are_listed_within_a_second_of_cpu() -> None:
    """Groups of 100 topics, each at a position of its own before unread messages."""
    engine, names = Engine(MemoryStore(), ManualClock()), []
    for number in range(100):
        names.append(TopicName("default", f"t{number}"))
        engine.create_topic(names[-1], TopicSettings(1, durability=Durability.WRITTEN))
        for _ in range(10):
            publish(engine, names[-1], 10)
    changes = []
    for number in range(GROUPS):
        key = PositionKey(f"g{number}", names[number % 100], 0)
        changes.append(PositionChange(key, Position.offset(number // 100)))
    engine.groups.move(changes)
    taken: list[float] = []
    for _ in range(3):
        began = time.process_time()
        first = engine.glance.groups("default", None, 5_000)
        last = f"{first[-1].topic}/{first[-1].group}"
        both = [*first, *engine.glance.groups("default", last, 5_000)]
        taken.append(time.process_time() - began)
        assert len({(one.topic, one.group) for one in both}) == GROUPS
        assert sum(one.lag or 0 for one in both) == 100 * sum(range(1, 101))
    assert min(taken) <= GROUPS_CPU_S, taken


def test_names_are_searched_before_numbers_are_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[TopicName] = []
    sizes = engine.topics.own.sizes
    monkeypatch.setattr(
        engine.topics.own, "sizes", lambda names: read.extend(names) or sizes(names)
    )
    assert [one.topic for one in engine.glance.topics("default", search="-B")] == ["a-b"]
    assert read == [B]
    for group in ("x", "Xy", "z"):
        move(engine, A, group, Position.offset(0))
        engine.queues.declare(A, group, QueueSettings())
    for listed in (engine.glance.groups, engine.glance.queues):
        assert [one.group for one in listed("default", search="A/x")] == ["Xy", "x"]
        assert listed("default", "a/Xy", search="/X")[0].group == "x"
        assert listed("default", search="b/x") == []


def test_unknown_numbers_come_last_and_equal_ones_by_name() -> None:
    sizes = [TopicSize(name, 1, count) for name, count in zip("dcba", (1, None, 5, 1), strict=True)]
    for order in TopicOrder.MESSAGES, TopicOrder.PUBLISHED:
        ranked = in_order(sizes, order, lambda one: one.topic, None)
        names = "".join(one.topic for one in ranked)
        assert names == ("badc" if order is TopicOrder.MESSAGES else "abcd")
    behind = in_order(sizes, TopicOrder.MESSAGES, lambda one: one.topic, "a")
    assert [one.topic for one in behind] == ["d", "c"]
    with pytest.raises(NotFound):
        in_order(sizes, TopicOrder.MESSAGES, lambda one: one.topic, "gone")


def test_an_engine_lists_in_the_order_of_numbers(engine: Engine) -> None:
    publish(engine, B, 3)
    publish(engine, A, 2)
    move(engine, A, "g", Position.offset(2))
    move(engine, B, "g", Position.offset(1))
    glance = engine.glance
    assert [one.topic for one in glance.topics("default", order=TopicOrder.MESSAGES)] == [
        "a-b",
        "a",
    ]
    assert [one.lag for one in glance.groups("default", order=GroupOrder.LAG)] == [2, 0]
    assert [one.lag for one in glance.groups("default", "a-b/g", order=GroupOrder.LAG)] == [0]
    for topic in (A, B):
        engine.queues.declare(topic, "q", QueueSettings())
    publish(engine, A, 9)
    waiting = [one.waiting for one in glance.queues("default", order=QueueOrder.WAITING)]
    assert waiting == [11, 3]


def test_namespaces_are_those_that_have_topics(engine: Engine) -> None:
    for namespace in ("defaul", "default2", "f"):
        engine.create_topic(TopicName(namespace, "t"), TopicSettings())
    expected = ["defaul", "default", "default2", "f", "far"]
    found = [one for one in engine.glance.namespaces() if one != "system"]
    assert found == expected
    assert engine.glance.namespaces("default", 2) == ["default2", "f"]
    engine.delete_topic(TopicName("f", "t"))
    assert engine.glance.namespaces("default2", 1) == ["far"]


def test_topics_with_delayed_messages_are_listed(engine: Engine, clock: ManualClock) -> None:
    def defer(name: TopicName, delay_ms: int) -> None:
        engine.delayed.publish(name, [NewBlock(0, encode([b"x"] * 2))], Due(None, delay_ms))

    assert engine.glance.delayed("default") == []
    defer(B, 60_000)
    defer(A, 90_000)
    defer(A, 30_000)
    defer(FAR, 1)
    now_ms = clock.now_ms()
    a, b = DelayedSummary("a", 4, now_ms + 30_000), DelayedSummary("a-b", 2, now_ms + 60_000)
    assert engine.glance.delayed("default") == [a, b]
    assert engine.glance.delayed("default", None, 1) == [a]
    assert engine.glance.delayed("default", "a") == [b]
    number = engine.topics.shards.of_delayed(B)
    others = [one for one in range(engine.topics.shards.count) if one != number]
    assert engine.glance.delayed("default", shards=[number])[-1] == b
    assert b not in engine.glance.delayed("default", shards=others)
    clock.pass_ms(61_000)
    engine.delayed.move()
    assert engine.glance.delayed("default") == [DelayedSummary("a", 2, now_ms + 90_000)]
    engine.delete_topic(A)
    assert engine.glance.delayed("default") == []
