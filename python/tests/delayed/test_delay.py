"""Delayed messages on an engine: their due times, and their outcomes."""

import logging
import threading
from collections.abc import Sequence
from itertools import count, takewhile

import pytest

from tests.clocks import START_MS
from tests.delay_kit import PARTITIONS, A, AtStep, World
from tests.log_kit import HOUR_MS
from tests.waiting import until
from tms.block import encode
from tms.errors import (
    Conflict,
    Forbidden,
    IdempotencyKeyReused,
    Invalid,
    PartitionNotFound,
    StorageUnavailable,
    TooLarge,
    TopicNotFound,
)
from tms.model import keys
from tms.model.delayed import DelayedId, DelayedInfo, Due
from tms.model.ids import TIME_MS_MAX
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.topic import TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock, check_group


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


# Delivering


def test_a_message_is_delivered_when_it_is_due_and_not_before(world: World) -> None:
    world.later(b"1", delay_ms=1_000)
    world.clock.pass_ms(999)
    assert world.delayed.move() == 0 and world.read() == []
    world.clock.pass_ms(1)
    assert world.delayed.move() == 1 and world.read() == [b"1"]
    assert world.delayed.move() == 0 and world.read() == [b"1"]


def test_messages_come_in_the_order_in_which_they_are_due(world: World) -> None:
    for at in (3, 1, 2, 1):
        world.later(b"%d" % at, delay_ms=at * 1_000)
    world.clock.pass_ms(10_000)
    world.delayed.move()
    assert world.read() == [b"1", b"1", b"2", b"3"]


def test_what_is_due_at_once_keeps_its_order(world: World) -> None:
    for number in range(300):
        world.later(b"%d" % number, at_ms=START_MS + 5_000, partition=number % 2)
    world.clock.pass_ms(5_000)
    assert world.delayed.move() == 300
    for partition in range(PARTITIONS):
        assert world.read(partition) == [b"%d" % n for n in range(300) if n % 2 == partition]


def test_few_go_into_the_log_together(world: World) -> None:
    for number in range(300):
        world.later(b"%d" % number, delay_ms=1)
    blocks = world.engine.stats().blocks
    world.clock.pass_ms(1)
    world.delayed.move()
    assert world.engine.stats().blocks <= blocks + 4  # and journals


def test_what_is_past_already_is_due_at_once(world: World) -> None:
    (id,) = world.later(b"1", at_ms=0)
    assert id.due_ms == START_MS
    assert world.delayed.move() == 1 and world.read() == [b"1"]


def test_a_message_keeps_what_it_consists_of(world: World) -> None:
    block = encode([b"v", None], [b"k", b"k"], [{"h": b"x"}, None], producer_id=7)
    world.delayed.publish(A, [NewBlock(1, block)], Due(delay_ms=5))
    (first, second) = world.delayed.messages(A)
    assert (first.partition, first.key, first.value, first.headers) == (1, b"k", b"v", {"h": b"x"})
    world.clock.pass_ms(5)
    world.delayed.move()
    assert world.read(1) == [b"v", None] and second.value is None


def test_a_producer_of_delayed_blocks_is_not_taken_for_one_of_the_log(world: World) -> None:
    for sequence in (5, 3):
        block = encode([b"%d" % sequence], producer_id=7, producer_sequence=sequence)
        world.delayed.publish(A, [NewBlock(0, block)], Due(delay_ms=5))
    world.clock.pass_ms(5)
    assert world.delayed.move() == 2 and world.read() == [b"5", b"3"]


def test_many_are_moved_in_several_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tms.delayed.scheduler.BATCH_BYTES", 3_000)
    for number in range(40):
        world.later(b"%d" % number, delay_ms=1)
    world.clock.pass_ms(1)
    assert 0 < world.delayed._scheduler.move_some() < 40
    world.kill()
    world.delayed.move()
    assert world.read() == [b"%d" % number for number in range(40)]


def test_a_topic_with_much_to_do_does_not_keep_others_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.delayed.scheduler.BATCH_BYTES", 1_000)
    other = TopicName("default", "b")
    world.engine.create_topic(other, TopicSettings(PARTITIONS))
    for _ in range(40):
        world.later(bytes(100), delay_ms=1)
    world.later(b"other", delay_ms=1, name=other)
    world.clock.pass_ms(1)
    world.delayed._scheduler.move_some()
    assert world.read(name=other) == [b"other"] and len(world.read()) < 40


def test_it_is_delivered_in_the_background_without_asking(world: World) -> None:
    world.delayed.start()
    world.later(b"far", delay_ms=HOUR_MS)
    world.later(b"1", delay_ms=0)
    until(lambda: world.read() == [b"1"])
    world.clock.pass_ms(HOUR_MS)
    until(lambda: world.read() == [b"1", b"far"])
    world.engine.close()


# Clocks


def test_a_clock_that_goes_back_delivers_nothing_early_and_delays_nothing_new(
    world: World,
) -> None:
    world.later(b"1", delay_ms=10)
    world.clock.pass_ms(10)
    world.delayed.move()
    world.later(b"waits", delay_ms=1_000)
    world.clock.jump_ms(-2 * HOUR_MS)
    world.later(b"2", delay_ms=1_000)
    assert world.delayed.move() == 0
    world.clock.pass_ms(1_000)
    assert world.delayed.move() == 1 and world.read() == [b"1", b"2"]
    world.kill()
    world.clock.pass_ms(2 * HOUR_MS)
    world.delayed.move()
    assert world.read() == [b"1", b"2", b"waits"]


def test_a_leaping_clock_delivers_at_most_an_hour_early_until_confirmed(
    world: World,
) -> None:
    world.later(b"1", delay_ms=HOUR_MS)
    world.later(b"2", delay_ms=HOUR_MS + 1_000)
    world.clock.jump_ms(240 * HOUR_MS)
    world.delayed.move()
    assert world.read() == [b"1"]
    world.engine.confirm_clock()
    world.delayed.move()
    assert world.read() == [b"1", b"2"]


def test_what_became_due_while_nothing_ran_comes_at_the_start(world: World) -> None:
    world.later(b"1", delay_ms=1_000)
    world.clock.pass_ms(100 * 24 * HOUR_MS)
    world.kill()
    world.delayed.move()
    assert world.read() == [b"1"]


# Cancelling


def test_a_cancelled_message_is_never_delivered(world: World) -> None:
    (one,), (two,) = world.later(b"1", delay_ms=10), world.later(b"2", delay_ms=10)
    assert world.delayed.cancel(A, one)
    world.kill()
    world.clock.pass_ms(10)
    world.delayed.move()
    assert world.read() == [b"2"]
    assert not world.delayed.cancel(A, two)


def test_one_of_several_that_came_together_can_be_cancelled(world: World) -> None:
    ids = world.later(*(b"%d" % number for number in range(100)), delay_ms=10)
    for number in (0, 50, 99):
        assert world.delayed.cancel(A, ids[number])
    assert world.delayed.info(A).waiting == 97
    world.clock.pass_ms(10)
    assert world.delayed.move() == 97
    assert world.read() == [b"%d" % n for n in range(100) if n not in (0, 50, 99)]


def test_what_is_cancelled_as_a_whole_leaves_nothing(world: World) -> None:
    ids = world.later(b"1", b"2", delay_ms=10)
    assert all(world.delayed.cancel(A, id) for id in ids)
    assert world.delayed.messages(A) == []
    world.clock.pass_ms(10)
    world.delayed.move()
    assert world.read() == [] and world.delayed.info(A) == DelayedInfo(0, None)
    world.later(b"3", delay_ms=0)
    assert world.delayed.move() == 1 and world.read() == [b"3"]


def test_a_repeated_cancel_gets_the_same_answer_before_and_after_it_would_be_due(
    world: World,
) -> None:
    (one,), (two,) = world.later(b"1", delay_ms=10), world.later(b"2", delay_ms=10)
    assert world.delayed.cancel(A, one) and world.delayed.cancel(A, one)
    assert world.delayed.info(A).waiting == 1
    world.restart()
    world.clock.pass_ms(10)
    world.delayed.move()
    assert not world.delayed.cancel(A, two)
    if not world.store.shared:
        assert world.delayed.cancel(A, one)
        return
    with pytest.raises(Conflict):  # an earlier owner has decided it, perhaps too late
        world.delayed.cancel(A, one)


def test_what_never_was_cannot_be_cancelled(world: World) -> None:
    assert not world.delayed.cancel(A, DelayedId(START_MS, 1))
    (id,) = world.later(b"1", delay_ms=10)
    for other in (DelayedId(id.due_ms, id.sequence + 1), DelayedId(id.due_ms + 1, id.sequence)):
        assert not world.delayed.cancel(A, other)
    assert world.delayed.info(A).waiting == 1


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_what_is_being_moved_is_either_cancelled_or_delivered(shared: bool) -> None:
    def cancel_at(step: int) -> bool:
        world = World(shared)
        world.later(b"before", delay_ms=0)
        world.delayed.move()
        (id,) = world.later(b"1", delay_ms=1)
        world.clock.pass_ms(1)
        found: list[bool] = []
        with AtStep(world.store, step, lambda: found.append(world.delayed.cancel(A, id))) as at:
            world.delayed.move()
        world.delayed.move()
        assert not at.came or found == [b"1" not in world.read()], step
        return at.came

    assert len(list(takewhile(cancel_at, count()))) > 7


def test_a_cancelled_message_takes_no_room_for_long(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=100 * HOUR_MS)
    rows = len(_rows(world))
    world.delayed.cancel(A, id)
    world.clock.pass_ms(HOUR_MS)
    world.delayed.tidy()
    assert len(_rows(world)) < rows
    assert not world.delayed.cancel(A, id)


def test_of_cancelled_messages_no_more_are_kept_in_mind_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.delayed.topic_queue.CANCELLED_MAX", 2)
    ids = [world.later(b"1", delay_ms=HOUR_MS)[0] for _ in range(5)]
    assert all(world.delayed.cancel(A, id) for id in ids)
    assert [id for _, id, _ in world.delayed._of(A)._cancelled] == ids[3:]
    world.clock.pass_ms(HOUR_MS)
    world.delayed.move()
    assert world.read() == []


def _rows(world: World) -> list[bytes]:
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    return [key for key, _ in world.store.open(name, create=False).scan(None, None, 1 << 20)]


def test_a_cancel_counts_until_the_message_would_be_due_however_long_that_is(
    world: World,
) -> None:
    (one, *_) = world.later(b"1", b"2", delay_ms=HOUR_MS)
    assert world.delayed.cancel(A, one)
    for _ in range(6):
        world.clock.pass_ms(HOUR_MS // 6)
        world.delayed.tidy()
    world.delayed.move()
    assert world.read() == [b"2"]


# Repetitions


def test_a_repeated_request_is_stored_once_even_after_a_crash_or_delivery(
    world: World,
) -> None:
    def publish() -> object:
        return world.together({0: [b"1", b"2"], 1: [b"3"]}, Due(delay_ms=1_000), "t")

    first = publish()
    world.clock.pass_ms(100)
    assert publish() == first
    world.kill()
    assert publish() == first
    world.clock.pass_ms(1_000)
    world.delayed.move()
    assert publish() == first
    world.kill()
    assert publish() == first
    world.delayed.move()
    assert world.read() == [b"1", b"2", b"3"]


def test_a_key_stands_for_one_request(world: World) -> None:
    world.later(b"1", delay_ms=1_000, token="t")
    for values, delay_ms, partition in ((b"2", 1_000, 0), (b"1", 999, 0), (b"1", 1_000, 1)):
        with pytest.raises(IdempotencyKeyReused):
            world.later(values, delay_ms=delay_ms, partition=partition, token="t")
    assert world.delayed.info(A).waiting == 1


def test_without_a_key_the_same_is_stored_twice(world: World) -> None:
    assert world.later(b"1", delay_ms=1_000) != world.later(b"1", delay_ms=1_000)
    assert world.delayed.info(A).waiting == 2


def test_requests_are_remembered_for_ten_minutes(world: World) -> None:
    world.later(b"1", delay_ms=HOUR_MS, token="t")
    world.clock.pass_ms(599_000)
    world.delayed.tidy()
    world.later(b"1", delay_ms=HOUR_MS, token="t")
    world.clock.pass_ms(2_000)
    world.delayed.tidy()
    assert not [key for key in _rows(world) if key[:1] == b"a"]
    world.later(b"1", delay_ms=HOUR_MS, token="t")
    assert world.delayed.info(A).waiting == 2


def test_no_more_requests_are_remembered_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.delayed.repetitions.REQUESTS_MAX", 10)
    for number in range(30):
        world.later(b"1", delay_ms=HOUR_MS, token=str(number))
    world.delayed.tidy()
    assert len([key for key in _rows(world) if key[:1] == b"a"]) == 10
    world.later(b"1", delay_ms=HOUR_MS, token="29")
    assert world.delayed.info(A).waiting == 30


def test_of_requests_that_were_pushed_out_no_row_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.delayed.repetitions.REQUESTS_MAX", 3)
    monkeypatch.setattr("tms.delayed.repetitions._DROPPED_MAX", 2)
    for number in range(10):
        world.later(b"1", delay_ms=HOUR_MS, token=str(number))
    for left in (8, 6, 4, 3, 3):
        world.delayed.tidy()
        assert len([key for key in _rows(world) if key[:1] == b"a"]) == left


def _with_requests(monkeypatch: pytest.MonkeyPatch) -> tuple[World, list[list[DelayedId]]]:
    """Start an engine after twenty requests, which are read one by one."""
    monkeypatch.setattr("tms.delayed.stored_queue.REQUEST_BYTES", 1)
    world = World()
    ids = [world.later(b"1", delay_ms=1_000, token=str(number)) for number in range(20)]
    world.restart()
    return world, ids


def test_what_is_due_does_not_wait_for_the_requests_of_an_earlier_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = _with_requests(monkeypatch)
    world.clock.pass_ms(1_000)
    assert world.delayed.move() == 20
    requests = world.delayed._of(A).stored.requests
    assert not requests._known
    assert [world.delayed._of(A).learn() for _ in range(21)] == [True] * 20 + [False]
    assert len(requests._known) == 20


def test_the_thread_reads_the_requests_of_an_earlier_life(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = _with_requests(monkeypatch)
    world.delayed.start()
    until(lambda: len(world.delayed._of(A).stored.requests._known) == 20)
    world.engine.close()


@pytest.mark.parametrize("learned", [0, 7, 30])
def test_a_request_of_an_earlier_life_is_found(
    monkeypatch: pytest.MonkeyPatch, learned: int
) -> None:
    world, ids = _with_requests(monkeypatch)
    world.delayed.info(A)
    for _ in range(learned):
        world.delayed._of(A).learn()
    world.later(b"1", delay_ms=1_000, token="new")
    assert [world.later(b"1", delay_ms=1_000, token=str(n)) for n in range(20)] == ids
    assert world.delayed.info(A).waiting == 21


def test_requests_that_could_not_be_read_are_not_taken_for_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, ids = _with_requests(monkeypatch)
    world.delayed.info(A)
    right, reads = world.delayed._of(A).stored.requests._stored, count()

    def failing(after: bytes) -> Sequence[tuple[bytes, bytes]]:
        if next(reads) == 3:
            raise StorageUnavailable("The disk is away.")
        return right(after)

    world.delayed._of(A).stored.requests._stored = failing
    with pytest.raises(StorageUnavailable):
        world.later(b"1", delay_ms=1_000, token="19")
    assert world.later(b"1", delay_ms=1_000, token="19") == ids[19]
    assert world.delayed.info(A).waiting == 20


def _cancel_what_is_long_overdue(world: World) -> DelayedId:
    """The scheduler was paused for hours; the message is cancelled before it moves."""
    (id,) = world.later(b"1", delay_ms=0)
    world.clock.pass_ms(3 * HOUR_MS)
    assert world.delayed.cancel(A, id)
    return id


def _remembered_for_ten_minutes(world: World, id: DelayedId) -> None:
    world.delayed.move()
    world.clock.pass_ms(599_000)
    world.delayed.tidy()
    assert world.delayed.cancel(A, id)
    world.clock.pass_ms(2_000)
    world.delayed.tidy()
    assert not world.delayed.cancel(A, id)
    assert world.read() == []


def test_a_cancel_is_remembered_for_ten_minutes_though_the_message_is_long_overdue(
    world: World,
) -> None:
    world.restart()
    world.clock.pass_ms(700_000)
    _remembered_for_ten_minutes(world, _cancel_what_is_long_overdue(world))


def test_a_cancel_counts_as_long_as_the_message_waits_though_it_is_long_overdue() -> None:
    world = World()
    (one, _) = world.later(b"1", b"2", delay_ms=0)
    assert world.delayed.cancel(A, one)
    world.clock.pass_ms(3 * HOUR_MS)
    world.delayed.tidy()
    world.delayed.move()
    assert world.read() == [b"2"]


def test_a_cancel_of_what_is_long_overdue_is_remembered_over_a_restart() -> None:
    world = World()
    id = _cancel_what_is_long_overdue(world)
    world.restart()
    _remembered_for_ten_minutes(world, id)


def test_what_is_remembered_no_longer_goes_though_something_is_due_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, tidied = World(), threading.Event()
    mover = world.delayed._scheduler
    monkeypatch.setattr(mover, "_tidy", tidied.set)
    monkeypatch.setattr(mover, "move_some", lambda: 1)
    world.clock.pass_ms(31_000)
    mover.start()
    try:
        assert tidied.wait(5)
    finally:
        mover.stop()


# Looking


def test_what_waits_is_counted_and_listed_in_order(world: World) -> None:
    assert world.delayed.info(A) == DelayedInfo(0, None)
    assert world.delayed.messages(A) == []
    ids = world.later(b"2", b"3", delay_ms=2_000) + world.later(b"1", delay_ms=1_000)
    world.restart()
    assert world.delayed.info(A) == DelayedInfo(3, START_MS + 1_000)
    found = world.delayed.messages(A)
    assert [one.value for one in found] == [b"1", b"2", b"3"]
    assert [one.id for one in found] == [ids[2], ids[0], ids[1]]
    assert found[0].due.timestamp() * 1000 == START_MS + 1_000


def test_a_list_goes_on_after_any_message(world: World) -> None:
    for at in range(5):
        world.later(*(b"%d" % (at * 10 + n) for n in range(10)), delay_ms=at + 1)
    listed, after = [], None
    while found := world.delayed.messages(A, after, limit=3):
        listed += [one.value for one in found]
        after = found[-1].id
    assert listed == [b"%d" % number for number in range(50)]


def test_the_count_is_right_after_moves_cancels_and_crashes(world: World) -> None:
    ids = [world.later(b"1", delay_ms=at)[0] for at in range(1, 11)]
    world.clock.pass_ms(4)
    world.delayed.move()
    world.kill()
    world.delayed.cancel(A, ids[9])
    assert world.delayed.info(A) == DelayedInfo(5, START_MS + 5)
    world.kill()
    assert world.delayed.info(A) == DelayedInfo(5, START_MS + 5)
    world.clock.pass_ms(100)
    world.delayed.move()
    assert world.delayed.info(A) == DelayedInfo(0, None)
    assert world.engine.stats().delayed_delivered == 5


def test_lateness_is_measured(world: World) -> None:
    world.later(b"1", b"2", delay_ms=1_000)
    world.clock.pass_ms(1_600)
    world.delayed.move()
    lateness = world.delayed.lateness
    assert (lateness.count, lateness.sum) == (2, 1.2)


# Topics


def test_a_deleted_topic_delivers_nothing_to_a_new_one_of_its_name(world: World) -> None:
    world.later(b"moved", delay_ms=1)
    world.clock.pass_ms(1)
    world.delayed.move()
    (id,) = world.later(b"old", delay_ms=1_000)
    world.engine.delete_topic(A)
    with pytest.raises(TopicNotFound):
        world.later(b"x", delay_ms=1)
    assert not [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    world.engine.create_topic(A, TopicSettings(PARTITIONS))
    assert not world.delayed.cancel(A, id)
    world.clock.jump_ms(-500)
    (new,) = world.later(b"new", delay_ms=500)
    assert new.due_ms == START_MS + 1  # a message with that name was moved before
    world.kill()
    world.clock.pass_ms(5_000)
    world.delayed.move()
    assert world.read() == [b"new"]
    world.kill()
    world.delayed.move()
    assert world.read() == [b"new"]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_topic_that_is_deleted_while_its_messages_are_moved_gets_none(
    shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def replace_at(step: int) -> bool:
        world = World(shared)
        world.later(b"before", delay_ms=0)
        world.delayed.move()
        world.later(b"old", delay_ms=1)
        world.clock.pass_ms(1)

        def replace() -> None:
            world.engine.delete_topic(A)
            world.engine.create_topic(A, TopicSettings(PARTITIONS))

        with AtStep(world.store, step, replace) as at:
            world.delayed.move()
        world.delayed.move()
        assert not at.came or world.read() == [], step
        assert world.engine.warnings() == [], step
        return at.came

    assert len(list(takewhile(replace_at, count()))) > 7
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_messages_wait_through_truncation_retention_and_growth() -> None:
    world = World()
    world.engine.update_topic(A, {"retention_ms": HOUR_MS})
    world.later(b"1", delay_ms=10 * HOUR_MS)
    world.engine.truncate_topic(A, Position.latest())
    world.engine.update_topic(A, {"partitions": 3, "message_bytes_max": 1})
    world.later(b"2", delay_ms=10 * HOUR_MS, partition=2)
    world.clock.pass_ms(10 * HOUR_MS)
    world.engine.maintenance.clean()
    assert world.delayed.move() == 2
    assert world.read(0) == [b"1"] and world.read(2) == [b"2"]
    world.clock.pass_ms(HOUR_MS // 2)
    world.engine.maintenance.clean()
    assert world.read(0) == [b"1"]  # its age counts from its delivery


def test_a_limit_that_was_lowered_meanwhile_keeps_nothing_back(world: World) -> None:
    world.later(b"longer than that", delay_ms=1)
    world.engine.update_topic(A, {"message_bytes_max": 3})
    world.later(b"2", delay_ms=1)
    world.clock.pass_ms(1)
    assert world.delayed.move() == 2
    assert world.read() == [b"longer than that", b"2"]


# Bad input


def test_what_cannot_be_is_refused(world: World) -> None:
    for wrong in (
        {},
        {"at_ms": 1, "delay_ms": 1},
        {"delay_ms": -1},
        {"at_ms": -1},
        {"at_ms": TIME_MS_MAX + 1},
        {"delay_ms": 1.5},
        {"delay_ms": True},
        {"at_ms": "1"},
        {"delay_ms": TIME_MS_MAX},
    ):
        with pytest.raises(Invalid):
            world.later(b"1", **wrong)
    world.later(b"last", at_ms=TIME_MS_MAX)
    with pytest.raises(TopicNotFound):
        world.later(b"1", delay_ms=1, name=TopicName("default", "none"))
    with pytest.raises(PartitionNotFound):
        world.later(b"1", delay_ms=1, partition=PARTITIONS)
    with pytest.raises(Forbidden):
        world.later(b"1", delay_ms=1, name=TopicName("system", "x"))
    with pytest.raises(Invalid):
        world.delayed.publish(A, [], Due(delay_ms=1))
    world.engine.update_topic(A, {"message_bytes_max": 3})
    with pytest.raises(TooLarge):
        world.later(b"1234", delay_ms=1)
    assert world.delayed.info(A).waiting == 1


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "1-2-3", " 1-2", "1-2 ", "٣-1", "1" * 16 + "-1"]
)
def test_an_id_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        DelayedId.parse(text)


def test_an_id_is_read_as_it_is_written() -> None:
    id = DelayedId(START_MS, 4_711)
    assert DelayedId.parse(str(id)) == id
    with pytest.raises(Invalid):
        DelayedId.parse(f"{TIME_MS_MAX + 1}-1")


def test_a_group_of_tms_cannot_be_moved_by_others() -> None:
    with pytest.raises(Forbidden):
        check_group("system:delayed")


def test_other_transactions_go_on_beside(world: World) -> None:
    world.later(b"1", delay_ms=1)
    world.clock.pass_ms(1)
    world.engine.transactions.commit(Commit(blocks=(TopicBlock(A, NewBlock(0, encode([b"tx"]))),)))
    world.delayed.move()
    assert world.read() == [b"tx", b"1"]
