"""Retention: expiry by time and by bytes, and clocks that jump."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import START_MS, ManualClock
from tests.log_kit import DAY_MS, HOUR_MS, NAME, Bench, Limits, block, small
from tests.waiting import until
from tms.log.partition_log import floor_by_bytes
from tms.log.records import FIRST_KEY
from tms.model import keys
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicStaged
from tms.topics import upkeep as maintenance
from tms.topics.registry import Registry
from tms.topics.retention import (
    ABSENCE_MS_MAX,
    JUMP_MS_MAX,
    RetentionClock,
    floor_by_time,
)
from tms.topics.upkeep import TRANSACTION_MS_MAX

# -- the clock -------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def retention(clock: ManualClock) -> RetentionClock:
    return RetentionClock(clock, None)


def test_retention_time_follows_the_wall_clock(
    clock: ManualClock, retention: RetentionClock
) -> None:
    for _ in range(50):
        clock.pass_ms(DAY_MS)
        assert retention.now_ms() == clock.now_ms()
        assert retention.held_back_ms() == 0


def test_a_jump_moves_retention_time_by_at_most_an_hour_until_confirmed(
    clock: ManualClock, retention: RetentionClock
) -> None:
    clock.jump_ms(10 * DAY_MS)
    assert retention.now_ms() == START_MS + JUMP_MS_MAX
    assert retention.held_back_ms() == 10 * DAY_MS - JUMP_MS_MAX
    clock.pass_ms(HOUR_MS)
    assert retention.now_ms() == START_MS + JUMP_MS_MAX + HOUR_MS
    retention.confirm()
    assert retention.now_ms() == clock.now_ms()
    assert retention.held_back_ms() == 0


def test_a_jump_that_is_taken_back_leaves_nothing_behind(
    clock: ManualClock, retention: RetentionClock
) -> None:
    clock.jump_ms(10 * DAY_MS)
    clock.jump_ms(-10 * DAY_MS)
    assert (retention.now_ms(), retention.held_back_ms()) == (clock.now_ms(), 0)


def test_a_jump_back_is_followed_at_once(clock: ManualClock, retention: RetentionClock) -> None:
    clock.jump_ms(-2 * HOUR_MS)
    assert retention.now_ms() == clock.now_ms()


def test_a_small_step_forward_is_followed_at_once(
    clock: ManualClock, retention: RetentionClock
) -> None:
    clock.jump_ms(JUMP_MS_MAX)
    assert (retention.now_ms(), retention.held_back_ms()) == (clock.now_ms(), 0)


def test_a_restart_believes_an_absence_of_a_week_and_no_more() -> None:
    for absence_ms, believed in ((6 * DAY_MS, True), (30 * DAY_MS, False)):
        clock = ManualClock(START_MS + absence_ms)
        retention = RetentionClock(clock, START_MS)
        if believed:
            assert retention.now_ms() == clock.now_ms()
        else:
            assert retention.now_ms() == START_MS + ABSENCE_MS_MAX + JUMP_MS_MAX
            assert retention.held_back_ms() > 0


@given(st.lists(st.tuples(st.sampled_from(["pass", "jump"]), st.integers(-(10**9), 10**9))))
def test_retention_time_is_at_most_an_hour_ahead_of_the_elapsed_time(
    steps: list[tuple[str, int]],
) -> None:
    clock = ManualClock()
    retention = RetentionClock(clock, None)
    passed = 0
    for kind, ms in steps:
        if kind == "pass":
            clock.pass_ms(abs(ms))
            passed += abs(ms)
        else:
            clock.jump_ms(ms)
        now_ms = retention.now_ms()
        assert now_ms <= START_MS + passed + JUMP_MS_MAX
        assert now_ms <= clock.now_ms()
        assert retention.held_back_ms() == clock.now_ms() - now_ms


# -- decisions -------------------------------------------------------------------------------------


def test_the_floor_by_time_is_now_minus_retention() -> None:
    assert floor_by_time(1_000, None) == FIRST_KEY
    assert floor_by_time(1_000, 400) == (600, 0)
    assert floor_by_time(1_000, 5_000) == (0, 0)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=12),
    open_bytes=st.integers(0, 50),
    limit=st.integers(0, 300),
)
def test_by_bytes_as_many_whole_segments_go_as_leave_the_limit(
    sizes: list[int], open_bytes: int, limit: int
) -> None:
    sealed = [((i + 1, 0), size) for i, size in enumerate(sizes)]
    floor = floor_by_bytes(sealed, open_bytes, limit)
    kept = [size for last, size in sealed if last >= floor]
    total = open_bytes + sum(sizes)
    assert open_bytes + sum(kept) >= min(limit, total)
    if kept:
        assert open_bytes + sum(kept) - kept[0] < limit
    assert floor_by_bytes(sealed, open_bytes, None) == FIRST_KEY


# -- by time ---------------------------------------------------------------------------------------


def test_the_cleaner_frees_what_is_expired_and_nothing_else() -> None:
    with Bench(TopicSettings(retention_ms=10 * HOUR_MS)) as bench:
        for i in range(40):
            bench.publish(b"%d" % i)
            bench.clock.pass_ms(HOUR_MS)
            bench.engine.maintenance.clean()
            readable = [int(value or b"") for value in bench.values()]
            assert readable == list(range(max(0, i - 9), i + 1))
            assert len(bench.maps()) <= 13
        bench.clock.pass_ms(11 * HOUR_MS)
        bench.engine.maintenance.clean()
        assert bench.values() == []
        assert len(bench.maps()) == 1
        assert bench.partition().end_offset == 40


def test_an_expired_partition_that_nobody_opens_is_cleaned_too() -> None:
    with Bench(TopicSettings(partitions=2, retention_ms=HOUR_MS)) as bench:
        bench.publish(b"old" * 1_000)
        bench.restart()
        bench.engine.maintenance.clean()
        assert bench.engine.stats().partitions_open == 0, "the cleaner opened what is not due"
        bench.clock.pass_ms(2 * HOUR_MS)
        bench.engine.maintenance.clean()
        (left,) = bench.maps()
        assert bench.store.inner.open(left, create=False).stored_bytes() == 0
        bench.publish(b"young")
        bench.clock.pass_ms(HOUR_MS // 8)
        bench.engine.maintenance.clean()
        segments = bench.engine.inspect(NAME, 0, 0).segments
        assert [one.number for one in segments] == [1, 2], "segments do not go by the retention"


@pytest.mark.parametrize(
    ("segments", "retention_bytes", "opened"),
    [(1, None, 0), (2, None, 0), (1, 1 << 20, 0), (2, 1 << 20, 1)],
)
def test_the_cleaner_opens_a_partition_for_its_bytes_when_a_segment_can_go(
    segments: int, retention_bytes: int | None, opened: int
) -> None:
    settings = TopicSettings(retention_ms=HOUR_MS, retention_bytes=retention_bytes)
    with Bench(settings, small(segment_bytes=1_000)) as bench:
        for size in (1_000, 10)[-segments:]:
            bench.publish(bytes(size))
        until(lambda: len(bench.maps()) == segments)
        bench.restart()
        bench.engine.maintenance.clean()
        assert bench.engine.stats().partitions_open == opened


def test_a_young_segment_goes_when_its_last_message_expires_and_not_before() -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.publish(b"old")
        bench.clock.pass_ms(25 * HOUR_MS)
        bench.engine.maintenance.clean()
        bench.clock.jump_ms(-2 * HOUR_MS)  # behind the beginning of the open segment
        bench.publish(b"v")
        for ms, values, number in ((HOUR_MS, [b"v"], 1), (1, [], 2)):
            bench.clock.pass_ms(ms)
            bench.engine.maintenance.clean()
            assert bench.values() == values
            assert [one.number for one in bench.engine.inspect(NAME, 0, 0).segments] == [number]


def test_a_partition_that_was_cleaned_whole_is_opened_again_and_goes_on() -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.publish(b"old")
        bench.clock.pass_ms(2 * HOUR_MS)
        bench.engine.maintenance.clean()
        bench.restart()
        assert bench.values() == []
        assert bench.publish(b"new").base_offset == 1
        assert bench.values() == [b"new"]


def test_the_cleaner_comes_back_after_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_RECOVERY_S", 0.001)
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.publish(b"old")
        bench.engine.maintenance._interval_s = 0.01
        bench.engine.maintenance.start()
        for segments in (2, 3):
            bench.clock.pass_ms(2 * HOUR_MS)
            until(lambda: bench.engine.inspect(NAME, 0, 0).segments[-1].number == segments - 1)  # noqa: B023
            bench.publish(b"old")


def test_it_recovers_each_time_and_cleans_once_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench() as bench:
        cleaner, done = bench.engine.maintenance, list[str]()
        monkeypatch.setattr(cleaner, "_interval_s", 4 * maintenance._RECOVERY_S)
        monkeypatch.setattr(cleaner, "recover", lambda: done.append("r"))
        monkeypatch.setattr(cleaner, "clean", lambda: done.append("c"))
        monkeypatch.setattr(cleaner._stop, "wait", lambda _: done.count("r") == 10)
        cleaner._run()
        assert "".join(done) == "rrrrcrrrrcrr"


def test_a_process_need_not_wait_for_the_cleaner_to_end() -> None:
    with Bench() as bench:
        bench.engine.maintenance.start()
        running = [one for one in threading.enumerate() if one.name == "tms-maintenance"]
        assert running and all(one.daemon for one in running)


def test_a_damaged_record_keeps_no_other_partition_from_being_cleaned() -> None:
    with Bench(TopicSettings(partitions=2, retention_ms=HOUR_MS)) as bench:
        for partition in range(2):
            bench.publish(b"old", partition=partition)
        bench.clock.pass_ms(2 * HOUR_MS)
        metadata = bench.store.inner.open("metadata", create=False)
        bench.restart()
        metadata.write([(b"partition/00000001/00000", b'{"epoch":')], Durability.WRITTEN)
        bench.engine.maintenance.clean()
        segments = bench.engine.inspect(NAME, 1, 0).segments
        assert [one.number for one in segments] == [1]


def test_without_retention_nothing_ever_goes() -> None:
    with Bench(TopicSettings(retention_ms=None)) as bench:
        bench.publish(b"v")
        bench.clock.pass_ms(36_525 * DAY_MS)
        bench.engine.maintenance.clean()
        bench.restart()
        assert bench.values() == [b"v"]


def test_a_shorter_retention_works_at_once() -> None:
    with Bench(TopicSettings(retention_ms=30 * DAY_MS)) as bench:
        bench.publish(b"a")
        bench.clock.pass_ms(2 * DAY_MS)
        bench.publish(b"b")
        bench.engine.update_topic(NAME, {"retention": "1d"})
        assert bench.values() == [b"b"]


def test_messages_of_a_clock_that_was_ahead_expire_by_their_own_time() -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.clock.jump_ms(5 * HOUR_MS)
        bench.publish(b"from the future")
        bench.clock.jump_ms(-5 * HOUR_MS)
        bench.clock.pass_ms(2 * HOUR_MS)
        bench.engine.maintenance.clean()
        assert bench.values() == [b"from the future"]
        bench.clock.pass_ms(5 * HOUR_MS)
        assert bench.values() == []


# -- staged blocks ---------------------------------------------------------------------------------


def _stage(bench: Bench, name: TopicName = NAME, partition: int = 0) -> None:
    transactions = bench.engine.transactions
    id = transactions.begin().transaction_id
    transactions.stage(name, [NewBlock(partition, block(b"staged"))], id)
    transactions.commit(Commit(id, staged=(TopicStaged(name, partition, 1),)))


def _staged(bench: Bench) -> list[tuple[int, int]]:
    return [keys.payload_place(name) for name in bench.maps() if keys.is_payload_map(name)]


@pytest.mark.parametrize("changed", [False, True])
def test_what_was_staged_goes_by_the_day_when_no_reference_to_it_is_readable(
    changed: bool,
) -> None:
    with Bench(TopicSettings(partitions=2, retention_ms=HOUR_MS)) as bench:
        forever, begun_ms = TopicName.parse("forever"), bench.clock.now_ms()
        bench.engine.create_topic(forever, TopicSettings(retention_ms=None))
        _stage(bench, forever)
        _stage(bench, partition=1)
        day_ms = DAY_MS - begun_ms % DAY_MS
        bench.clock.pass_ms(day_ms)
        _stage(bench, partition=1)
        assert _staged(bench) == [(1, 1), (1, 1), (2, 0)]
        bench.clock.pass_ms(HOUR_MS + TRANSACTION_MS_MAX - 1)
        if changed:
            metadata = bench.store.open("metadata", create=False)
            another = Registry(bench.store, metadata, bench.clock, 10)
            another.update(NAME, {"durability": "written"})
        for left in ([(1, 1), (1, 1), (2, 0)], [(1, 1), (2, 0)]):
            bench.engine.maintenance.clean()
            assert _staged(bench) == left
            bench.clock.pass_ms(1)


# -- by bytes --------------------------------------------------------------------------------------


def test_a_limit_in_bytes_keeps_the_newest_and_at_least_that_much() -> None:
    limit = 1 << 20
    with Bench(TopicSettings(retention_bytes=limit), small(segment_bytes=100_000)) as bench:
        for i in range(300):
            bench.publish(b"%d" % i + bytes(10_000))
            bench.engine.maintenance.clean()
        stored = bench.partition().stored_bytes
        assert limit <= stored < limit + 300_000
        numbers = [int((value or b"").rstrip(b"\0")) for value in bench.values()]
        assert numbers == list(range(300 - len(numbers), 300))
        bench.restart()
        assert len(bench.values()) == len(numbers)


def test_the_limit_in_bytes_is_per_partition_and_can_be_set_later() -> None:
    with Bench(TopicSettings(partitions=2), small(segment_bytes=50_000)) as bench:
        for i in range(200):
            bench.publish(bytes(10_000), partition=i % 2)
            bench.engine.maintenance.clean()
        bench.publish(b"small", partition=1)
        before = bench.partition(0).stored_bytes
        bench.engine.update_topic(NAME, {"retention_bytes": 1 << 20})
        bench.engine.maintenance.clean()
        assert bench.partition(0).stored_bytes == before, "below the limit, and it went"
        for _ in range(100):
            bench.publish(bytes(10_000))
        bench.engine.maintenance.clean()
        assert bench.partition(0).stored_bytes < (1 << 20) + 400_000
        assert len(bench.values(partition=1)) == 101


# -- clocks that jump ------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_ten_days_ahead_expires_nothing_that_is_younger_than_its_bound(
    restarted: bool,
) -> None:
    with Bench(TopicSettings(retention_ms=14 * DAY_MS)) as bench:
        bench.publish(b"old")
        bench.clock.pass_ms(6 * DAY_MS)
        bench.publish(b"young")
        bench.engine.maintenance.clean()
        bench.clock.jump_ms(10 * DAY_MS)
        if restarted:
            bench.restart()
        bench.engine.maintenance.clean()
        assert bench.values() == [b"old", b"young"]
        assert bench.engine.stats().retention_held_back_ms > 0
        bench.publish(b"ahead")
        bench.clock.jump_ms(-10 * DAY_MS)
        bench.engine.maintenance.clean()
        assert bench.values() == [b"old", b"young", b"ahead"]
        assert bench.engine.stats().retention_held_back_ms == 0


def test_after_confirming_the_clock_is_believed() -> None:
    with Bench(TopicSettings(retention_ms=5 * DAY_MS)) as bench:
        bench.publish(b"old")
        bench.clock.jump_ms(10 * DAY_MS)
        assert bench.values() == [b"old"]
        bench.engine.confirm_clock()
        assert bench.values() == []
        bench.engine.maintenance.clean()
        bench.restart()
        assert bench.values() == []


def test_a_clock_that_goes_back_expires_nothing_early_and_publishing_goes_on() -> None:
    with Bench(TopicSettings(retention_ms=DAY_MS)) as bench:
        bench.publish(b"a")
        bench.clock.jump_ms(-2 * HOUR_MS)
        bench.publish(b"b")
        bench.engine.maintenance.clean()
        bench.restart()
        bench.publish(b"c")
        assert bench.values() == [b"a", b"b", b"c"]
        bench.clock.pass_ms(DAY_MS + 2 * HOUR_MS + 1)
        assert bench.values() == []


def test_messages_published_at_a_time_before_the_last_cleaning_are_readable() -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.publish(b"old")
        bench.clock.pass_ms(25 * HOUR_MS)
        bench.engine.maintenance.clean()
        bench.clock.jump_ms(-2 * HOUR_MS)
        bench.publish(b"new")
        assert bench.values() == [b"new"]
        bench.restart()
        assert bench.values() == [b"new"]


def test_the_metric_says_how_far_ids_are_ahead_of_the_clock() -> None:
    with Bench(limits=Limits()) as bench:
        bench.publish(b"a")
        assert bench.engine.stats().clock_ahead_ms == 0
        bench.clock.pass_ms(5)
        assert bench.engine.stats().clock_ahead_ms == 0
        bench.clock.jump_ms(-105)
        assert bench.engine.stats().clock_ahead_ms == 100
