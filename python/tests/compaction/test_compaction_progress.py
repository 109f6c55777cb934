"""The times and the share of compaction: due partitions, recorded passes, and failures that leave
other partitions alone."""

import logging
import threading
from itertools import count

import pytest

from tests.compaction_kit import NAME, World, compacted
from tests.waiting import until
from tms.block import encode
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.errors import Closed, StorageUnavailable
from tms.log.records import FIRST_KEY
from tms.model import keys
from tms.model.message import NewBlock
from tms.model.topic import Cleanup, Durability, TopicName, TopicSettings
from tms.runtime.clock import SystemClock
from tms.runtime.throttle import PAUSE_S_MAX, PAUSE_S_MIN, Throttle
from tms.store.base import Map
from tms.store.memory import MemoryStore
from tms.topics.compaction.compaction import CompactionLimits
from tms.topics.compaction.progress import PASSES_MAX, Progress

A, B = b"a", b"b"


# Due partitions


def test_a_partition_is_compacted_once_enough_of_it_is_new() -> None:
    world = World(dirty_ratio=0.5)
    passes = iter(range(1, 100))

    def compacts() -> bool:
        before = world.engine.stats().compaction_passes
        world.compact()
        return world.engine.stats().compaction_passes == before + 1

    def publish(key: bytes, size: int) -> None:
        world.publish((key, bytes([next(passes)]) * size))

    assert not compacts()
    publish(A, 6_000)
    assert not compacts(), "nothing is sealed"
    world.seal()
    assert compacts() and not compacts()
    publish(B, 2_000)
    world.seal()
    assert not compacts(), "a quarter is new"
    publish(A, 9_000)
    world.seal()
    assert compacts() and not compacts()
    assert world.offsets() == [1, 2]


def test_what_is_due_is_told_by_what_is_left() -> None:
    """Half of a clean part is less after that part has shrunk."""
    world = World(dirty_ratio=0.5)
    for number in range(10):
        world.publish((A, b"%d" % number * 1_000))
    world.seal()
    world.compact()
    assert world.offsets() == [9]
    world.publish((B, b"v" * 2_000))
    world.seal()
    world.publish((B, b"w" * 2_000))
    world.seal()
    world.compact()
    assert world.offsets() == [9, 11]


def test_a_pass_tells_operators_of_which_topic_it_removed_how_much(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.publish((A, b"1"), (A, b"2"))
    world.seal()
    with caplog.at_level(logging.INFO, "tms.topics.compaction.compaction"):
        world.compact()
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert told.startswith("compacted topic='t' partition=0 messages=1 ")


def test_what_was_removed_and_given_back_is_summed() -> None:
    world = World()
    for number in range(1, 4):
        for _ in range(number):
            world.publish((A, bytes(5_000)))
        world.seal()
        world.compact()
        stats = world.engine.stats()
        assert stats.compaction_passes == number
        assert stats.compaction_removed == sum(range(1, number + 1)) - 1
        assert stats.compaction_reclaimed_bytes >= 5_000 * stats.compaction_removed


def test_only_what_still_has_space_to_give_back_is_looked_into_besides() -> None:
    world = World()
    world.publish((A, b"1"), (A, b"2"))
    world.seal()
    world.compact()
    assert world.offsets() == [1]
    assert world.engine.compaction._noted() == set()
    world.engine.update_topic(NAME, {"cleanup": "delete"})
    asked = list[str]()
    world.store.before = lambda operation, name: asked.append(name)
    world.compact()
    assert set(asked) == {keys.METADATA_MAP}
    Progress(world.store.open(keys.METADATA_MAP, create=False), 1, 0).begin(["t00000001/x"])
    assert world.engine.compaction._noted() == {keys.compaction_key(1, 0)}


def test_a_partition_that_is_not_due_keeps_no_other_from_being_compacted() -> None:
    world = World()
    other = TopicName.parse("u")
    world.engine.create_topic(other, TopicSettings(3, cleanup=Cleanup.COMPACT))
    world.engine.append(other, [NewBlock(1, encode([b"1", b"2"], [A, A]))])
    log = world.engine.topics.partitions.get(other, world.engine.topics.registry.find(other), 1)
    with log.state.changing():
        log.state.roll(world.clock.now_ms())
    world.compact()
    assert world.engine.stats().compaction_removed == 1
    assert world.engine.stats().compaction_passes == 1


def test_a_partition_that_fails_keeps_no_other_from_being_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    other = TopicName.parse("u")
    world.engine.create_topic(other, compacted())
    block = encode([b"1", b"2"], [A, A])
    for name in (NAME, other):
        world.engine.append(name, [NewBlock(0, block)])
    world.seal()
    second = world.engine.topics.partitions.get(other, world.engine.topics.registry.find(other), 0)
    with second.state.changing():
        second.state.roll(world.clock.now_ms())
    (segment,) = world.log.state.chain.record.segments[:1]
    map_name = keys.segment_map(world.log.uid, 0, segment.number)
    assert segment.last is not None
    world.store.corrupt_value(map_name, keys.block_key(*segment.last))
    with caplog.at_level(logging.WARNING):
        world.compact()
    assert world.engine.stats().compaction_removed == 1
    (failed,) = [record.getMessage() for record in caplog.records]
    assert failed.startswith("compaction_failed topic='t' partition=0 ")


def test_a_damaged_record_is_told_and_keeps_no_other_partition_from_being_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With every cleanup of the topic: space may still have to be reclaimed there."""
    world = World(compacted(Cleanup.DELETE))
    other = TopicName.parse("u")
    world.engine.create_topic(other, compacted())
    world.engine.append(other, [NewBlock(0, encode([b"1", b"2"], [A, A]))])
    second = world.engine.topics.partitions.get(other, world.engine.topics.registry.find(other), 0)
    with second.state.changing():
        second.state.roll(world.clock.now_ms())
    metadata = world.store.open(keys.METADATA_MAP, create=False)
    metadata.write([(keys.compaction_key(1, 0), b"damaged")], Durability.SYNCED)
    with caplog.at_level(logging.WARNING):
        world.compact()
    assert world.engine.stats().compaction_removed == 1
    (failed,) = [record.getMessage() for record in caplog.records]
    assert failed.startswith("compaction_failed topic='t' partition=0 ")


# Records


class Conflicts:
    """A map in which others change a record so many times before it is set."""

    def __init__(self, inner: Map, times: int) -> None:
        self._inner, self.times = inner, times

    def get(self, key: bytes) -> bytes | None:
        return self._inner.get(key)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        if self.times:
            self.times -= 1
            Progress(self._inner, 1, 0).begin([f"other{self.times}"])
        return self._inner.compare_and_set(key, expected, value)


@pytest.fixture
def metadata() -> Map:
    return MemoryStore().open("metadata", create=True)


def test_tombstones_stay_until_a_pass_behind_them_is_old_enough(
    metadata: Map,
) -> None:
    progress = Progress(metadata, 1, 0)
    assert progress.horizon(10_000, 0) == FIRST_KEY
    for end, done_ms in (((10, 3), 1_000), ((20, 0), 2_000), ((30, 7), 3_000)):
        progress.done(end, done_ms, FIRST_KEY)
    progress = Progress(metadata, 1, 0)
    assert progress.record.clean == (30, 7)
    assert progress.horizon(10_000, None) == FIRST_KEY
    assert progress.horizon(2_499, 500) == (10, 3)
    assert progress.horizon(2_500, 500) == (20, 0)
    assert progress.horizon(1_499, 500) == FIRST_KEY


def test_a_pass_is_forgotten_once_its_tombstones_are_gone_or_the_clock_was_set_back(
    metadata: Map,
) -> None:
    progress = Progress(metadata, 1, 0)
    for end, done_ms in (((10, 0), 1_000), ((20, 0), 2_000), ((30, 0), 9_000)):
        progress.done(end, done_ms, FIRST_KEY)
    progress.done((25, 0), 8_999, (20, 0))
    assert progress.record.passes == (((20, 0), 2_000), ((25, 0), 8_999))
    assert progress.record.clean == (30, 0), "what is compacted stays so"
    progress.done((40, 0), 8_999, (20, 1))
    assert progress.record.passes == (((25, 0), 8_999), ((40, 0), 8_999))


def test_of_many_passes_every_second_is_remembered_and_the_newest(metadata: Map) -> None:
    progress = Progress(metadata, 1, 0)
    for number in range(1, PASSES_MAX + 1):
        progress.done((number, 0), number, FIRST_KEY)
    assert len(progress.record.passes) == PASSES_MAX
    progress.done((PASSES_MAX + 1, 0), PASSES_MAX + 1, FIRST_KEY)
    assert [done_ms for _, done_ms in progress.record.passes] == [*range(1, PASSES_MAX + 2, 2)]


def test_maps_to_reclaim_are_noted_until_their_space_has_come_back(metadata: Map) -> None:
    first, second = Progress(metadata, 1, 0), Progress(metadata, 1, 0)
    first.begin(["b", "a"])
    second.begin(["c"])
    assert Progress(metadata, 1, 0).record.reclaim == ("a", "b", "c")
    first.reclaimed("b")
    second.begin(["a"])
    second.done((5, 0), 1, FIRST_KEY)
    found = Progress(metadata, 1, 0).record
    assert found.reclaim == ("a", "c") and found.clean == (5, 0)
    assert Progress(metadata, 1, 1).record.reclaim == ()
    assert Progress(metadata, 2, 0).record.reclaim == ()


def test_a_record_that_others_change_is_changed_all_the_same_and_not_for_ever(
    metadata: Map,
) -> None:
    often = Conflicts(metadata, times=15)
    progress = Progress(often, 1, 0)  # type: ignore[arg-type]
    progress.begin(["mine"])
    assert len(progress.record.reclaim) == 16 and "mine" in progress.record.reclaim
    assert Progress(metadata, 1, 0).record == progress.record
    often.times = 100
    with pytest.raises(StorageUnavailable, match="partition 0"):
        progress.reclaimed("mine")
    assert "mine" in Progress(metadata, 1, 0).record.reclaim


# The share of the time


class Clock(SystemClock):
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Stop(threading.Event):
    """Notes the lengths of waits; `ends` during one."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []
        self.ends = False

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        return self.ends


def test_short_pauses_are_saved_up_and_long_ones_are_bounded() -> None:
    clock, stop = Clock(), Stop()
    throttle = Throttle(clock, 0.25, stop)
    clock.now_s += 1_000.0
    throttle.begin()  # nothing was done in the meantime
    throttle.pause()
    clock.now_s += PAUSE_S_MIN / 4
    throttle.pause()
    assert stop.waited == []
    clock.now_s += PAUSE_S_MIN / 4
    throttle.pause()
    assert stop.waited == [pytest.approx(PAUSE_S_MIN * 6 / 4)]
    clock.now_s += 1.0
    throttle.pause()
    clock.now_s += 1_000.0
    throttle.pause()
    throttle.pause()
    assert stop.waited[1:] == [pytest.approx(3.0), PAUSE_S_MAX]


def test_a_pause_ends_when_the_engine_does() -> None:
    clock, stop = Clock(), Stop()
    throttle = Throttle(clock, 0.5, stop)
    clock.now_s += 1.0
    stop.ends = True
    with pytest.raises(Closed):
        throttle.pause()
    assert stop.waited == [pytest.approx(1.0)]


# Failures


def test_the_thread_goes_on_after_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = CompactionLimits(interval_s=0.001)
    engine = Engine(MemoryStore(), SystemClock(), EngineConfig(compaction=limits))
    rounds = count(1)
    done = list[int]()

    def run(*_: object) -> None:
        done.append(next(rounds))
        if done[-1] == 1:
            raise StorageUnavailable("The disk refuses.")
        if done[-1] == 2:
            raise RuntimeError("a bug")

    monkeypatch.setattr(engine.compaction, "run", run)
    engine.compaction.start()
    thread = engine.compaction._thread
    assert thread is not None and thread.name == "tms-compaction" and thread.daemon
    until(lambda: len(done) > 3)
    engine.close()
    assert not thread.is_alive()
