"""The scheduler of delayed messages: its pauses after failures, its lateness, the blocks it makes,
and its thread."""

import logging
import threading
from itertools import accumulate, count, takewhile

import pytest

from tests.clocks import START_MS
from tests.delay_kit import PARTITIONS, A, World
from tests.log_kit import HOUR_MS
from tests.waiting import until
from tms.block import decode, encode
from tms.delayed import delayed, packing
from tms.delayed.changes import Addition, Cancellation, CheckedBlock
from tms.delayed.entries import HEAD, DelayedEntry, Moved, entry_key, entry_of, entry_value
from tms.delayed.packing import blocks_of
from tms.delayed.scheduler import SECONDS
from tms.delayed.stored_queue import RowWrites
from tms.errors import (
    Closed,
    Conflict,
    DataCorrupt,
    Invalid,
    StorageUnavailable,
    TimedOut,
    TooLarge,
    TopicNotFound,
)
from tms.log.pending import Pending
from tms.model import keys
from tms.model.delayed import Deferred, DelayedId, DelayedInfo, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.runtime.histogram import Histogram
from tms.store.memory import MemoryMap
from tms.topics.registry import TopicRecord

B = TopicName("default", "b")


@pytest.fixture
def world() -> World:
    return World()


def row_of(world: World, id: DelayedId) -> tuple[str, bytes]:
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    return name, entry_key(id)


# Failures


def test_a_topic_that_fails_rests_for_half_a_second_and_keeps_no_other_waiting(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.create_topic(B, TopicSettings(PARTITIONS))
    world.later(b"1", delay_ms=1)
    world.later(b"other", delay_ms=1, name=B)
    world.clock.pass_ms(1)
    world.store.fail_write(1, stored=False, prefix="t00000001/delayed")
    world.delayed._waiting[1].stored._unsynced = True  # so that it has to write before
    with caplog.at_level(logging.WARNING):
        assert world.delayed.move() == 1
    assert world.read() == [] and world.read(name=B) == [b"other"]
    assert [record.getMessage()[:33] for record in caplog.records] == [
        "moving_failed topic='a' error='Th"
    ]
    (warning,) = world.engine.warnings()
    assert warning.startswith("Delayed messages of a are not delivered: ")
    world.clock.pass_ms(499)
    assert world.delayed.move() == 0
    world.clock.pass_ms(1)
    assert world.delayed.move() == 1 and world.read() == [b"1"]
    assert world.engine.warnings() == []


def test_a_topic_with_a_damaged_message_rests_for_ten_seconds(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=1)
    world.store.corrupt_value(*row_of(world, id))
    world.clock.pass_ms(1)
    assert world.delayed.move() == 0
    world.store.corrupt.clear()
    world.clock.pass_ms(9_999)
    assert world.delayed.move() == 0
    assert len(world.engine.warnings()) == 1
    world.clock.pass_ms(1)
    assert world.delayed.move() == 1 and world.engine.warnings() == []


def test_a_damaged_message_comes_with_those_behind_it_once_it_is_mended(world: World) -> None:
    ids = [world.later(b"%d" % number, delay_ms=number + 1)[0] for number in range(4)]
    name, key = row_of(world, ids[1])
    rows = world.store.open(name, create=False)
    whole = rows.get(key)
    assert whole is not None
    rows.write([(key, whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])], Durability.SYNCED)
    world.clock.pass_ms(4)
    assert world.delayed.move() == 1 and world.read() == [b"0"]
    assert world.delayed.info(A) == DelayedInfo(3, START_MS + 2)
    assert world.delayed.cancel(A, ids[2]) and not world.delayed.cancel(A, ids[0])
    world.kill()
    rows = world.store.open(name, create=False)
    rows.write([(key, whole)], Durability.SYNCED)
    assert world.delayed.move() == 2 and world.read() == [b"0", b"1", b"3"]


def test_a_topic_that_fails_unexpectedly_is_named_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.later(b"1", delay_ms=1)
    world.clock.pass_ms(1)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("tms.delayed.scheduler.blocks_of", fail)
        assert world.delayed.move() == 0
    assert "moving_failed" in caplog.text and "ZeroDivisionError" in caplog.text
    assert world.engine.warnings() == ["Delayed messages of a are not delivered: ZeroDivisionError"]
    world.clock.pass_ms(500)
    assert world.delayed.move() == 1 and world.read() == [b"1"]


def test_a_topic_that_is_replaced_while_its_messages_are_packed_gets_none(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.later(b"1", delay_ms=0)

    def replace(entries: list[DelayedEntry], cancelled: set[DelayedId]) -> object:
        world.engine.delete_topic(A)
        world.engine.create_topic(A, TopicSettings(PARTITIONS))
        return blocks_of(entries, cancelled)

    monkeypatch.setattr("tms.delayed.scheduler.blocks_of", replace)
    with caplog.at_level(logging.WARNING):
        assert world.delayed.move() == 0 and world.read() == []
    assert world.engine.warnings() == [record.getMessage() for record in caplog.records] == []


def test_of_a_deleted_topic_nobody_is_warned(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=1)
    world.store.corrupt_value(*row_of(world, id))
    world.clock.pass_ms(1)
    world.delayed.move()
    assert len(world.engine.warnings()) == 1
    world.engine.delete_topic(A)
    assert world.engine.warnings() == []


def test_a_topic_that_cannot_be_looked_into_or_tidied_keeps_no_other_from_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.create_topic(B, TopicSettings(PARTITIONS))
    world.later(b"1", delay_ms=HOUR_MS)
    world.later(b"2", delay_ms=HOUR_MS, name=B)
    first, second = world.delayed._waiting.values()

    def fail() -> None:
        raise StorageUnavailable("The disk refuses.")

    done = list[str]()
    for what in ("look", "tidy"):
        monkeypatch.setattr(first, what, fail)
        monkeypatch.setattr(second, what, lambda what=what: done.append(what))
    with caplog.at_level(logging.WARNING):
        world.delayed._scheduler.look()
        world.delayed.tidy()
    assert done == ["look", "tidy"]
    assert [record.getMessage() for record in caplog.records] == [
        "looking_failed topic='a' error='The disk refuses.'",
        "tidying_failed topic='a' error='The disk refuses.'",
    ]


def test_a_topic_that_could_not_be_looked_into_at_the_start_is_moved_later(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=1)
    name, _ = row_of(world, id)
    world.kill()
    world.clock.pass_ms(1)
    world.store.corrupt_value(name, HEAD)
    scheduler = world.delayed._scheduler
    scheduler.look()
    world.store.corrupt.clear()
    assert scheduler.move() == 1 and world.read() == [b"1"]


@pytest.mark.parametrize(
    ("error", "told", "said"),
    [
        (ZeroDivisionError(), StorageUnavailable, "It failed unexpectedly .ZeroDivisionError.."),
        (RuntimeError("no new threads"), Closed, "The engine is closed; open it again."),
        (Conflict("Another one has it."), Conflict, "Another one has it."),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_who_publishes_is_answered_whatever_fails(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    told: type[BaseException],
    said: str,
) -> None:
    world.later(b"1", delay_ms=1)

    stored, behind = world.delayed._of(A).stored, list[Pending[list[Deferred]]]()
    put = stored.put

    def fail(_: RowWrites) -> None:
        monkeypatch.setattr(stored, "put", put)
        block = NewBlock(0, encode([b"behind"]))
        behind.append(world.delayed.submit(A, [block], Due(delay_ms=1)))
        raise error

    monkeypatch.setattr(stored, "put", fail)
    with pytest.raises(told, match=f"^{said}$"):
        world.later(b"-", delay_ms=1)
    behind[0].result(5)
    world.later(b"2", delay_ms=1)
    world.clock.pass_ms(1)
    assert world.delayed.move() == 3 and world.read() == [b"1", b"behind", b"2"]


def test_who_has_hold_of_a_deleted_topic_is_told(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=0)
    waiting = world.delayed._of(A)
    world.engine.delete_topic(A)
    addition = Addition([CheckedBlock(0, 1, encode([b"2"]))], Due(delay_ms=1), Durability.SYNCED)
    waiting.submit(addition, may_wait=True)
    for call in (
        lambda: addition.answer.result(5),
        lambda: waiting.cancel(id, Durability.SYNCED, 5),
        lambda: waiting.alone(lambda: None),
        waiting.info,
    ):
        with pytest.raises(TopicNotFound, match="deleted"):
            call()
    waiting.look()
    waiting.tidy()
    assert waiting.take(world.clock.now_ms(), 1 << 20) is None and not waiting.learn()


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_published_is_as_durable_as_the_topic_or_the_publish_says(waits: bool) -> None:
    world = World(durability=Durability.WRITTEN)
    block = encode([b"v"])

    def publish(durability: Durability | None, token: str) -> list[Deferred]:
        blocks, due = [NewBlock(0, block)], Due(delay_ms=5)
        if waits:
            return world.delayed.publish(A, blocks, due, durability, token)
        return world.delayed.submit(A, blocks, due, durability, token).result(5)[0]

    kept = publish(Durability.SYNCED, "kept")
    lost = publish(None, "lost")
    assert publish(None, "lost") == lost
    world.lose_power()
    assert publish(Durability.SYNCED, "kept") == kept
    assert world.delayed.info(A).waiting == 1
    assert publish(None, "lost") != lost
    assert world.delayed.info(A).waiting == 2


@pytest.mark.parametrize("delays", [(1_000, 10, 500), (10, 500, 1_000), (500, 1_000, 10)])
def test_of_what_comes_together_the_first_that_is_due_counts(
    world: World, delays: tuple[int, ...]
) -> None:
    world.later(b"later", delay_ms=2_000)
    with world.delayed._of(A).writing:  # so that they wait, and are stored with one write
        writes = world.store.writes
        pending = [
            world.delayed.submit(A, [NewBlock(0, encode([b"%d" % delay]))], Due(delay_ms=delay))
            for delay in delays
        ]
    assert [one.result(5)[0][0].due_ms for one in pending] == [START_MS + one for one in delays]
    assert world.store.writes == writes + 1
    assert world.delayed.info(A) == DelayedInfo(4, START_MS + 10)
    for delay in sorted(delays):
        world.clock.pass_ms(START_MS + delay - world.clock.now_ms())
        assert world.delayed.move() == 1
    assert world.read() == [b"10", b"500", b"1000"]


@pytest.mark.parametrize(("more", "writes"), [(1, 6), (2, 3)])
def test_what_is_stored_with_one_write_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch, more: int, writes: int
) -> None:
    """A group takes at most its limit."""
    size = len(encode([b"1"]))
    monkeypatch.setattr("tms.delayed.topic_queue.GROUP_BYTES", more * size)
    world.later(b"0", delay_ms=1)
    before = world.store.writes
    with world.delayed._of(A).writing:
        pending = [
            world.delayed.submit(A, [NewBlock(0, encode([b"1"]))], Due(delay_ms=1))
            for _ in range(6)
        ]
    for one in pending:
        one.result(5)
    assert world.store.writes - before == writes


def test_what_comes_together_is_refused_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request too large for a row of the store is refused, and no other of its group."""
    world.later(b"0", delay_ms=1)
    sizes = {size: len(entry_value(0, encode([bytes(size)]))) for size in (96, 200)}
    monkeypatch.setattr(MemoryMap, "value_bytes_max", sizes[96])
    with world.delayed._of(A).writing:
        pending = [
            world.delayed.submit(A, [NewBlock(0, encode([bytes(size)]))], Due(delay_ms=1))
            for size in (96, 200, 96)
        ]
    for at in (0, 2):
        assert len(pending[at].result(5)[0]) == 1
    said = f"at most {sizes[96]} bytes together, these take {sizes[200]}"
    with pytest.raises(TooLarge, match=said):
        pending[1].result(5)
    assert world.delayed.info(A) == DelayedInfo(3, START_MS + 1)
    world.clock.pass_ms(1)
    assert world.delayed.move() == 3 and world.read() == [b"0", bytes(96), bytes(96)]


def test_a_message_that_is_cancelled_twice_at_once_is_counted_once(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=10)
    world.later(b"2", delay_ms=10)
    waiting = world.delayed._of(A)
    asked = [Cancellation(id, Durability.SYNCED) for _ in range(2)]
    with waiting.writing:  # so that both are decided before one is stored
        for one in asked:
            waiting.submit(one, may_wait=False)
    assert [one.answer.result(5) for one in asked] == [[(True,)]] * 2
    assert world.delayed.info(A).waiting == 1


def test_who_cancels_waits_for_a_move_and_is_told_when_it_does_not_end(world: World) -> None:
    (id,) = world.later(b"1", delay_ms=0)
    waiting = world.delayed._of(A)
    assert waiting.take(START_MS, 1 << 20) is not None
    with pytest.raises(TimedOut, match=f"Whether {id} can be cancelled is not known yet"):
        world.delayed.cancel(A, id, timeout_s=0.01)
    waiting.release()
    with waiting.writing:  # as by a store that does not answer
        other = world.delayed.submit(A, [NewBlock(0, encode([b"2"]))], Due(delay_ms=HOUR_MS))
        with pytest.raises(TimedOut):
            world.delayed.cancel(A, id, timeout_s=0.01)
    other.result(5)
    assert world.delayed.cancel(A, id, timeout_s=0.5)
    world.delayed.move()
    assert world.read() == []


def test_what_comes_while_others_are_taken_is_not_among_them(world: World) -> None:
    """Their move does not count entries that came later as moved."""
    ids = world.later(b"1", delay_ms=0)
    waiting = world.delayed._of(A)

    def publish(operation: str, name: str) -> None:
        if operation == "scan" and keys.is_delayed_map(name) and not waiting.writing.locked():
            world.store.before = lambda operation, name: None
            ids.extend(world.later(b"2", delay_ms=0))

    world.store.before = publish
    taken = waiting.take(START_MS, 1 << 20)
    assert taken is not None and len(ids) == 2
    assert [entry.id for entry in taken.entries] == ids[:1]
    assert world.delayed._scheduler._commit(waiting, taken) == 1
    assert waiting.next_due_ms == START_MS
    assert world.delayed.move() == 1 and world.read() == [b"1", b"2"]


@pytest.mark.parametrize("stood", [Moved(), Moved(START_MS, 1, 1)])
def test_nothing_is_moved_by_one_who_is_wrong_about_what_was_moved(
    world: World, stood: Moved
) -> None:
    world.later(b"1", delay_ms=0)
    assert world.delayed.move() == 1
    world.later(b"2", delay_ms=0)
    waiting = world.delayed._of(A)
    taken = waiting.take(START_MS, 1 << 20)
    assert taken is not None and taken.before != stood
    with pytest.raises(Conflict):
        world.delayed._scheduler._commit(waiting, taken._replace(before=stood))
    assert world.read() == [b"1"]
    assert world.delayed.move() == 1 and world.read() == [b"1", b"2"]


# Topics and engines that go


def test_a_topic_of_which_nothing_ever_waited_is_deleted(world: World) -> None:
    world.engine.create_topic(B, TopicSettings(PARTITIONS))
    world.later(b"1", delay_ms=1)
    world.engine.delete_topic(B)
    assert world.delayed.info(A).waiting == 1


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_topic_that_is_deleted_while_something_is_published_leaves_nothing(shared: bool) -> None:
    def deleted_at(step: int) -> bool:
        world, steps, deleted = World(shared), count(), list[TopicName]()
        registry = world.delayed._registry
        find = registry.find

        def found_and_deleted(name: TopicName) -> TopicRecord:
            found = find(name)
            if name == A and next(steps) == step:
                deleted.append(name)
                world.engine.delete_topic(name)
            return found

        registry.find = found_and_deleted  # type: ignore[method-assign]
        try:
            world.later(b"1", delay_ms=1)
            assert not deleted
        except TopicNotFound as error:
            assert deleted and error.details["topic"] == "a"
            assert not [name for name in world.store.names("t") if keys.is_delayed_map(name)]
        return bool(deleted)

    assert len(list(takewhile(deleted_at, count()))) > 2


def test_who_comes_after_the_end_is_told_what_to_do(world: World) -> None:
    world.engine.create_topic(B, TopicSettings(PARTITIONS))
    world.later(b"1", delay_ms=1)
    world.delayed.stop()
    for name in (A, B):
        with pytest.raises(Closed, match="closed; open it again"):
            world.later(b"2", delay_ms=1, name=name)


# The thread


def test_the_thread_rests_for_a_moment_when_everything_that_is_due_was_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that become due meanwhile are then moved together; while batches are full it does
    not rest."""
    monkeypatch.setattr("tms.delayed.scheduler.BATCH_BYTES", 1)
    rests = list[tuple[float | None, int]]()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append((timeout, len(world.read())))
            return super().wait(timeout)

    world.delayed._scheduler._stop = Stop()
    world.later(b"far", delay_ms=HOUR_MS)
    for number in range(5):
        world.later(b"%d" % number, delay_ms=0)
    world.delayed.start()
    until(lambda: bool(rests))
    world.engine.close()
    assert rests == [(0.02, 5)]


def test_the_thread_tidies_twice_a_minute_and_goes_on_after_whatever_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = world.delayed._scheduler
    rounds = list[int]()

    def tidy() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise StorageUnavailable("The disk refuses.")
        if len(rounds) == 2:
            raise ZeroDivisionError

    monkeypatch.setattr(scheduler, "_tidy", tidy)
    world.delayed.start()
    thread = scheduler._thread
    assert thread is not None and thread.name == "tms-delayed" and thread.daemon
    for number in range(1, 4):
        before = len(rounds)
        world.later(b"%d" % number, delay_ms=0)
        until(lambda number=number: len(world.read()) == number)
        assert len(rounds) == before, "it is early"
        world.clock.pass_ms(30_000)
        until(lambda before=before: len(rounds) == before + 1)
    world.engine.close()
    assert not thread.is_alive()


def test_what_is_due_wakes_the_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tms.delayed.scheduler._SLEEP_S_MAX", 3_600.0)
    scheduler, slept, woken = world.delayed._scheduler, list[float | None](), list[bool]()

    class Wake(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(timeout)
            return super().wait(timeout)

        def set(self) -> None:
            woken.append(True)
            super().set()

    scheduler._wake = Wake()
    world.delayed.start()
    until(lambda: slept == [3_600.0])
    world.later(b"as it wakes anyway", delay_ms=3_600_000)
    assert not woken
    world.later(b"far", delay_ms=3_599_999)
    until(lambda: slept == [3_600.0, 3_599.999])
    world.later(b"farther", delay_ms=3_599_999)
    world.later(b"1", delay_ms=0)
    until(lambda: world.read() == [b"1"])
    until(lambda: slept[2:] == [3_599.999])
    world.engine.close()


# How late


def test_lateness_is_counted_by_how_late_at_most() -> None:
    lateness = Histogram(SECONDS)
    for late_s, messages in ((0.0, 1), (0.005, 2), (0.0051, 3), (600.0, 4), (600.1, 5)):
        lateness.observe(late_s, messages)
    counts = {"0.005": 3, "0.01": 3, "600.0": 4, "+Inf": 5}
    bounds = [*map(str, SECONDS), "+Inf"]
    expected = [*zip(bounds, accumulate(counts.get(one, 0) for one in bounds), strict=True)]
    assert lateness.buckets() == expected
    assert lateness.sum == pytest.approx(0.01 + 3 * 0.0051 + 2_400.0 + 3_000.5)
    assert lateness.count == 15


def test_what_comes_as_a_clock_goes_back_is_not_early(world: World) -> None:
    world.later(b"1", delay_ms=1_000)
    world.clock.pass_ms(1_000)
    taken = world.delayed._of(A)
    now_ms = world.clock.now_ms
    world.clock.jump_ms(-400)
    found = taken.take(now_ms() + 400, 1 << 20)
    assert found is not None
    assert world.delayed._scheduler._commit(taken, found) == 1
    assert (world.delayed.lateness.sum, world.delayed.lateness.count) == (0.0, 1)


# Blocks


def entry(number: int, block: bytes | bytearray, partition: int = 0) -> DelayedEntry:
    id = DelayedId(START_MS, number)
    return entry_of(entry_key(id), entry_value(partition, block))


def unpacked(
    entries: list[DelayedEntry], cancelled: set[DelayedId] | None = None
) -> list[list[bytes]]:
    blocks, _ = blocks_of(entries, cancelled or set())
    return [[value or b"" for value in decode(block.block).values()] for block in blocks]


def test_few_messages_are_packed_together_and_many_stay_as_they_are() -> None:
    many = [b"m"] * packing.WHOLE_MESSAGES
    large = [b"l" * packing.WHOLE_BYTES]
    found = unpacked(
        [
            entry(1, encode([b"1"])),
            entry(2, encode([b"2", b"3"])),
            entry(4, encode(many)),
            entry(100, encode([*many[1:]])),
            entry(200, encode([b"4"], [b"k"])),
            entry(300, encode(large * 2)),
        ]
    )
    assert found == [[b"1", b"2", b"3"], many, [*many[1:], b"4"], large * 2]
    assert unpacked([entry(1, encode(large)), entry(2, encode(large))]) == [large * 2]


def test_messages_keep_their_keys_headers_and_partition() -> None:
    blocks, counts = blocks_of(
        [
            entry(1, encode([b"1"], [b"k"]), partition=3),
            entry(2, encode([b"2"], None, [{"h": b"x"}]), partition=3),
            entry(3, encode([None], [b"gone"]), partition=1),
        ],
        set(),
    )
    assert sorted(block.partition for block in blocks) == [1, 3]
    assert counts == [(START_MS, 1)] * 3
    found = {block.partition: decode(block.block) for block in blocks}
    assert found[3].keys() == [b"k", None] and found[3].headers() == [{}, {"h": b"x"}]
    assert found[1].values() == [None] and found[1].keys() == [b"gone"]


def test_a_block_is_not_made_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(10 * number, encode([b"%d" % number] * 3)) for number in range(5)]
    size = len(entries[0].block)
    monkeypatch.setattr(packing, "BLOCK_BYTES", 2 * size)
    assert [len(values) for values in unpacked(entries)] == [6, 6, 3]
    monkeypatch.setattr(packing, "BLOCK_BYTES", 2 * size - 1)
    assert [len(values) for values in unpacked(entries)] == [3] * 5
    monkeypatch.setattr(packing, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(packing, "MESSAGES_MAX", 9)
    assert [len(values) for values in unpacked(entries)] == [9, 6]
    monkeypatch.setattr(packing, "MESSAGES_MAX", 8)
    assert [len(values) for values in unpacked(entries)] == [6, 6, 3]


def test_what_is_behind_a_damaged_message_waits() -> None:
    broken = bytearray(encode([b"2", b"3"]))
    broken[-5] ^= 1
    entries = [entry(1, encode([b"1"])), entry(2, broken), entry(4, encode([b"4"]))]
    blocks, counts = blocks_of(entries, set())
    assert [decode(block.block).values() for block in blocks] == [[b"1"]]
    assert counts == [(START_MS, 1)]
    with pytest.raises(DataCorrupt):
        blocks_of(entries[1:], set())
    gone = {DelayedId(START_MS, 2), DelayedId(START_MS, 3)}
    blocks, counts = blocks_of(entries, gone)
    assert [decode(block.block).values() for block in blocks] == [[b"1", b"4"]]
    assert counts == [(START_MS, 1), (START_MS, 0), (START_MS, 1)]


# Lists


def test_a_list_has_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        world.later(b"%d" % number * 50, delay_ms=number + 1)
    for limit in (0, -1, delayed.LIST_MAX + 1):
        with pytest.raises(Invalid, match=f"1 to 10000, got {limit}") as caught:
            world.delayed.messages(A, limit=limit)
        assert caught.value.details["field"] == "limit"
    assert len(world.delayed.messages(A, limit=delayed.LIST_MAX)) == 30
    assert len(world.delayed.messages(A, limit=1)) == 1
    monkeypatch.setattr(delayed, "_SCAN_BYTES", 1)
    assert len(world.delayed.messages(A, limit=29)) == 29
    monkeypatch.setattr(delayed, "LIST_BYTES", 1)
    assert len(world.delayed.messages(A, limit=29)) == 1
