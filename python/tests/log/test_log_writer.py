"""Appending: ids, group commit, durability, and the writing thread."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log_kit import (
    EARLIEST,
    MANY,
    NAME,
    NONE,
    SEGMENTS,
    SYNCED,
    WRITTEN,
    Bench,
    Gate,
    Limits,
    block,
    small,
)
from tests.waiting import until
from tms.model.ids import SEQUENCES_PER_MS
from tms.model.message import Appended, NewBlock
from tms.model.topic import Durability, TopicSettings
from tms.store.base import MapRow
from tms.store.memory import MemoryMap

# -- ids and offsets -------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 400)), max_size=30))
def test_ids_grow_and_offsets_are_dense_however_the_clock_steps(
    steps: list[tuple[int, int]],
) -> None:
    with Bench() as bench:
        highest, end = 0, 0
        for step_ms, count in steps:
            bench.clock.jump_ms(step_ms)
            appended = bench.publish(*[b"v"] * count)
            highest = max(highest, bench.clock.now_ms())
            assert appended.time_ms == highest, "not the later of wall clock and last time"
            assert (appended.base_offset, appended.count) == (end, count)
            end += count
        seen = bench.read()
    assert [one.offset for one in seen] == list(range(end))
    assert all(a.id < b.id for a, b in pairwise(seen))


def test_a_millisecond_has_65536_ids_and_a_block_never_crosses_it() -> None:
    with Bench() as bench:
        now_ms = bench.clock.now_ms()
        places = [bench.publish(*[b""] * count) for count in (40_000, 25_536, 1, 65_535, 65_536, 2)]
    assert [(one.time_ms - now_ms, one.sequence) for one in places] == [
        (0, 0),
        (0, 40_000),
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
    ]
    assert places[1].sequence + places[1].count == SEQUENCES_PER_MS


def test_a_block_that_does_not_fit_into_the_millisecond_begins_the_next() -> None:
    with Bench() as bench:
        first, second = bench.publish(*[b""] * 40_000), bench.publish(*[b""] * 40_000)
    assert (second.time_ms, second.sequence) == (first.time_ms + 1, 0)


def test_ids_stay_above_those_of_before_a_restart_when_the_clock_went_back() -> None:
    with Bench() as bench:
        before = bench.publish(b"a")
        bench.clock.jump_ms(-86_400_000)
        bench.restart()
        after = bench.publish(b"b")
        assert (after.time_ms, after.sequence) > (before.time_ms, before.sequence)
        assert bench.engine.stats().clock_ahead_ms == 86_400_000


def test_ids_stay_above_those_of_messages_that_are_gone() -> None:
    with Bench() as bench:
        before = bench.publish(b"a")
        bench.engine.truncate_topic(NAME, EARLIEST.latest())
        bench.clock.jump_ms(-1_000)
        bench.restart()
        after = bench.publish(b"b")
        assert (after.time_ms, after.sequence) > (before.time_ms, before.sequence)
        assert after.base_offset == 1


def test_ids_stay_above_a_truncation_that_outlives_the_messages() -> None:
    with Bench(TopicSettings(durability=Durability.WRITTEN)) as bench:
        bench.publish(b"truncated")
        bench.clock.pass_ms(10)
        before = bench.publish(b"lost with the power")
        bench.engine.truncate_topic(NAME, EARLIEST.time(before.time_ms))  # seals no segment
        bench.lose_power()
        bench.clock.jump_ms(-1_000)
        after = bench.publish(b"acknowledged")
        assert (after.time_ms, after.sequence) >= (before.time_ms, 0)
        assert [one.value for one in bench.read()] == [b"acknowledged"]


@pytest.mark.parametrize("as_sent", [bytes, lambda made: memoryview(bytes(made))])
def test_a_block_that_cannot_be_written_to_is_stored_and_left_as_it_is(
    as_sent: Callable[[bytearray], bytes | memoryview],
) -> None:
    with Bench() as bench:
        made = block(b"v")
        new = NewBlock(0, as_sent(made))
        places = [bench.engine.append(NAME, [new])[0].base_offset for _ in range(2)]
        assert places == [0, 1]
        assert bytes(new.block) == made
        assert bench.values() == [b"v", b"v"]


# -- group commit ----------------------------------------------------------------------------------


def test_all_who_wait_while_one_writes_go_into_one_write_and_one_sync() -> None:
    with Bench() as bench:
        bench.publish(b"first")
        before = bench.engine.stats()
        with Gate(bench.store) as gate:
            leader = bench.submit(block(b"leader"))
            gate.wait_entered()
            waiting = [bench.submit(block(b"%d" % i)) for i in range(100)]
            assert not any(one.done() for one in waiting)
            gate.open()
            places = [one.result(10)[0] for one in (leader, *waiting)]
        after = bench.engine.stats()
        assert after.writes - before.writes == 2
        assert after.syncs - before.syncs == 2
        assert [one.base_offset for one in places] == list(range(1, 102))
        assert bench.values()[1:] == [b"leader", *(b"%d" % i for i in range(100))]


def test_a_group_is_bounded_in_bytes() -> None:
    limits = Limits(in_flight_bytes=MANY)
    with Bench(limits=small(limits, queue_bytes=MANY)) as bench:
        bench.publish(b"first")
        before = bench.engine.stats().writes
        with Gate(bench.store) as gate:
            pending = [bench.submit(block(bytes(1 << 20)))]
            gate.wait_entered()
            pending += [bench.submit(block(bytes(1 << 20))) for _ in range(18)]
            gate.open()
            for one in pending:
                one.result(10)
        assert bench.engine.stats().writes - before == 1 + 3  # 7 + 7 + 4: below 8 MiB each


def test_one_sync_serves_a_group_in_which_only_one_asked_for_it() -> None:
    with Bench() as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            leader = bench.submit(block(b"leader"))
            gate.wait_entered()
            waiting = [bench.submit(block(b"x"), durability=WRITTEN) for _ in range(5)]
            waiting.append(bench.submit(block(b"y"), durability=SYNCED))
            gate.open()
            for one in (leader, *waiting):
                one.result(10)
        bench.lose_power()
        assert len(bench.values()) == 8


def test_concurrent_publishers_keep_ids_offsets_and_contents_together() -> None:
    with Bench(TopicSettings(partitions=2), small(segment_bytes=20_000)) as bench:

        def publish(thread: int) -> list[tuple[int, int, bytes]]:
            found = []
            for i in range(40):
                value = b"%d/%d" % (thread, i)
                durability = (NONE, WRITTEN, SYNCED)[i % 3]
                partition = (thread + i) % 2
                place = bench.publish(value, partition=partition, durability=durability)
                if durability is not NONE:
                    found.append((partition, place.base_offset, value))
            return found

        with ThreadPoolExecutor(8) as pool:
            acknowledged = [one for result in pool.map(publish, range(8)) for one in result]
        bench.restart()
        for partition in (0, 1):
            stored = bench.read(partition=partition)
            assert [one.offset for one in stored] == list(range(160))
            at = {(partition, one.offset, one.value) for one in stored}
            assert at >= {one for one in acknowledged if one[0] == partition}


# -- durability ------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [NONE, WRITTEN, SYNCED])
@pytest.mark.parametrize("asked", [None, NONE, WRITTEN, SYNCED])
def test_the_store_is_asked_for_the_durability_of_the_publish_or_the_topic(
    default: Durability, asked: Durability | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Durability] = []
    write = MemoryMap.write

    def recording(self: MemoryMap, rows: Sequence[MapRow], durability: Durability) -> None:
        if rows and len(rows[0][0]) == 10:
            found.append(durability)
        write(self, rows, durability)

    monkeypatch.setattr(MemoryMap, "write", recording)
    with Bench(TopicSettings(durability=default)) as bench:
        bench.publish(b"v", durability=asked)
    assert found == [asked or default]


def test_synced_survives_power_loss_and_written_a_crash_of_the_process() -> None:
    with Bench() as bench:
        bench.publish(b"synced", durability=SYNCED)
        bench.publish(b"written", durability=WRITTEN)
        bench.kill()
        assert bench.values() == [b"synced", b"written"]
        bench.lose_power()
        assert bench.values() == [b"synced"]
        assert bench.publish(b"next").base_offset == 1


def test_a_synced_publish_makes_all_before_it_durable() -> None:
    with Bench() as bench:
        bench.publish(b"written", durability=WRITTEN)
        bench.publish(b"synced", durability=SYNCED)
        bench.lose_power()
        assert bench.values() == [b"written", b"synced"]


def test_none_is_answered_before_it_is_stored_and_without_a_place() -> None:
    with Bench() as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            answer = bench.submit(block(b"a", b"b"), durability=NONE)
            assert answer.result(0) == [Appended(0, -1, -1, 2, -1)]
            assert answer.result(0)[0].ids() == []
            gate.wait_entered()
            assert bench.values() == [b"first"]
        bench.restart()
        assert bench.values() == [b"first", b"a", b"b"]


def test_a_failure_after_none_was_answered_is_logged_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Bench() as bench:
        bench.publish(b"first")
        bench.store.fail_write(1, stored=False, prefix=SEGMENTS)
        bench.submit(block(b"lost"), durability=NONE).result(0)
        until(lambda: bool(caplog.messages))
        assert bench.publish(b"next").base_offset == 1
    assert [text.split()[0] for text in caplog.messages] == ["unacknowledged_append_failed"]


# -- the writing thread ----------------------------------------------------------------------------


@pytest.fixture
def writers() -> tuple[list[str], Callable[[str, str], None]]:
    """The names of the threads that change the store, and the hook that notes them."""
    found: list[str] = []

    def note(operation: str, name: str) -> None:
        if operation in ("write", "delete", "compare_and_set", "open", "drop"):
            found.append(threading.current_thread().name)

    return found, note


Writers = tuple[list[str], Callable[[str, str], None]]


def test_a_submit_writes_in_its_own_thread_what_needs_no_sync(writers: Writers) -> None:
    with Bench() as bench:
        bench.publish(b"first")
        bench.store.before = writers[1]
        pending = bench.submit(block(b"v"), durability=WRITTEN)
        assert pending.done()
        assert writers[0] == [threading.current_thread().name]


def test_a_submit_leaves_every_sync_to_another_thread(writers: Writers) -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        bench.publish(b"first")
        bench.read(partition=1)
        bench.store.before = writers[1]
        bench.submit(block(b"v")).result(10)
        bench.submit(block(b"first in its partition"), durability=WRITTEN, partition=1).result(10)
        assert threading.current_thread().name not in writers[0]
        assert len(writers[0]) > 2


def test_a_lone_append_never_changes_threads(writers: Writers) -> None:
    with Bench() as bench:
        bench.publish(b"first")
        bench.store.before = writers[1]
        bench.publish(b"v", durability=SYNCED)
        assert writers[0] == [threading.current_thread().name]
