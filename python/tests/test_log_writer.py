"""Appending: ids, group commit, durability, bounds, failures."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    until,
)
from tms.errors import (
    Closed,
    Overloaded,
    StorageFull,
    StorageUnavailable,
    TimedOut,
    TMSError,
    TooLarge,
)
from tms.log.pending import PendingAppend
from tms.model.ids import SEQUENCES_PER_MS
from tms.model.log import Appended, NewBlock
from tms.model.topic import Durability, TopicSettings
from tms.store.base import Row
from tms.store.memory import MemoryMap


def _submit(
    bench: Bench, *blocks: bytearray, durability: Durability | None = None, partition: int = 0
) -> PendingAppend:
    return bench.engine.submit(NAME, [NewBlock(partition, one) for one in blocks], durability)


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


# -- group commit ----------------------------------------------------------------------------------


def test_all_who_wait_while_one_writes_go_into_one_write_and_one_sync() -> None:
    with Bench() as bench:
        bench.publish(b"first")
        before = bench.engine.stats()
        with Gate(bench.store) as gate:
            leader = _submit(bench, block(b"leader"))
            gate.wait_entered()
            waiting = [_submit(bench, block(b"%d" % i)) for i in range(100)]
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
            pending = [_submit(bench, block(bytes(1 << 20)))]
            gate.wait_entered()
            pending += [_submit(bench, block(bytes(1 << 20))) for _ in range(18)]
            gate.open()
            for one in pending:
                one.result(10)
        assert bench.engine.stats().writes - before == 1 + 3  # 7 + 7 + 4: below 8 MiB each


def test_one_sync_serves_a_group_in_which_only_one_asked_for_it() -> None:
    with Bench() as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            leader = _submit(bench, block(b"leader"))
            gate.wait_entered()
            waiting = [_submit(bench, block(b"x"), durability=WRITTEN) for _ in range(5)]
            waiting.append(_submit(bench, block(b"y"), durability=SYNCED))
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

    def recording(self: MemoryMap, rows: Sequence[Row], durability: Durability) -> None:
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
            answer = _submit(bench, block(b"a", b"b"), durability=NONE)
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
        _submit(bench, block(b"lost"), durability=NONE).result(0)
        until(lambda: bool(caplog.messages))
        assert bench.publish(b"next").base_offset == 1
    assert [text.split()[0] for text in caplog.messages] == ["unacknowledged_append_failed"]


# -- who writes ------------------------------------------------------------------------------------


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
        pending = _submit(bench, block(b"v"), durability=WRITTEN)
        assert pending.done()
        assert writers[0] == [threading.current_thread().name]


def test_a_submit_leaves_every_sync_to_another_thread(writers: Writers) -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        bench.publish(b"first")
        bench.read(partition=1)
        bench.store.before = writers[1]
        _submit(bench, block(b"v")).result(10)
        _submit(bench, block(b"first in its partition"), durability=WRITTEN, partition=1).result(10)
        assert threading.current_thread().name not in writers[0]
        assert len(writers[0]) > 2


def test_a_lone_append_never_changes_threads(writers: Writers) -> None:
    with Bench() as bench:
        bench.publish(b"first")
        bench.store.before = writers[1]
        bench.publish(b"v", durability=SYNCED)
        assert writers[0] == [threading.current_thread().name]


# -- bounds ----------------------------------------------------------------------------------------


def _fill(bench: Bench, size: int, partition: int = 0) -> list[PendingAppend]:
    """Publish until it is refused."""
    pending = []
    while True:
        try:
            pending.append(_submit(bench, block(bytes(size)), partition=partition))
        except Overloaded as refused:
            assert refused.details["retry_after_s"] > 0
            return pending


def test_a_partition_refuses_more_than_its_bound_and_takes_it_again_afterwards() -> None:
    with Bench(TopicSettings(partitions=2), small(queue_bytes=100_000)) as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            pending = _fill(bench, 10_000)
            assert 8 <= len(pending) <= 10
            other = _submit(bench, block(b"another partition"), partition=1)
            gate.open()
            assert other.result(10)
            for one in pending:
                one.result(10)
        assert bench.engine.stats().in_flight_bytes == 0
        bench.publish(b"next")
        assert len(bench.values()) == len(pending) + 2


def test_all_partitions_together_refuse_more_than_the_bound_of_the_engine() -> None:
    with Bench(TopicSettings(partitions=2), Limits(in_flight_bytes=100_000)) as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            pending = _fill(bench, 10_000)
            with pytest.raises(Overloaded):
                _submit(bench, block(bytes(10_000)), partition=1)
            gate.open()
            for one in pending:
                one.result(10)
        bench.publish(b"next", partition=1)
        assert bench.engine.stats().in_flight_bytes == 0


def test_a_block_larger_than_every_bound_is_taken_when_nothing_else_waits() -> None:
    with Bench(limits=small(Limits(in_flight_bytes=1_000), queue_bytes=1_000)) as bench:
        bench.publish(bytes(50_000))
        bench.publish(bytes(50_000))


@pytest.mark.parametrize("durability", [NONE, WRITTEN, SYNCED])
def test_a_request_that_finds_one_partition_full_is_stored_in_none(durability: Durability) -> None:
    with Bench(TopicSettings(partitions=2), small(queue_bytes=50_000)) as bench:
        bench.publish(b"first", partition=1)
        with Gate(bench.store) as gate:
            pending = _fill(bench, 10_000, partition=1)
            for partitions in ((0, 1), (1, 0)):
                with pytest.raises(Overloaded):
                    bench.engine.submit(
                        NAME, [NewBlock(p, block(bytes(10_000))) for p in partitions], durability
                    )
            gate.open()
            for one in pending:
                one.result(10)
        assert bench.values(partition=0) == []
        assert len(bench.values(partition=1)) == len(pending) + 1
        assert bench.engine.stats().in_flight_bytes == 0


def test_room_is_free_when_the_answer_is_there() -> None:
    with Bench(limits=small(Limits(in_flight_bytes=30_000), queue_bytes=30_000)) as bench:
        for _ in range(200):
            _submit(bench, block(bytes(20_000))).result(10)


def test_a_block_with_one_message_too_large_stores_nothing_of_its_request() -> None:
    with Bench(TopicSettings(message_bytes_max=100, partitions=2)) as bench:
        with pytest.raises(TooLarge) as refused:
            bench.engine.append(
                NAME, [NewBlock(0, block(b"fine")), NewBlock(1, block(b"x", bytes(101)))]
            )
        assert refused.value.details["index"] == 1
        assert bench.values() == []
        assert bench.engine.stats().in_flight_bytes == 0


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_a_failed_write_is_not_acknowledged_and_its_retry_leaves_one_copy(stored: bool) -> None:
    with Bench() as bench:
        bench.publish(b"a", producer=7, sequence=0)
        bench.store.fail_write(1, stored=stored, prefix=SEGMENTS)
        with pytest.raises(StorageUnavailable):
            bench.publish(b"b", producer=7, sequence=1)
        assert bench.values() == [b"a"], "what was not acknowledged is visible"
        retried = bench.publish(b"b", producer=7, sequence=1)
        assert (retried.base_offset, retried.duplicate) == (1, stored)
        assert bench.publish(b"c", producer=7, sequence=2).base_offset == 2
        assert bench.values() == [b"a", b"b", b"c"]
        bench.restart()
        assert bench.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("stored", [False, True])
def test_everybody_of_a_failed_group_is_told(stored: bool) -> None:
    with Bench() as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            leader = _submit(bench, block(b"leader"))
            gate.wait_entered()
            waiting = [
                _submit(bench, block(b"%d" % i, producer=i + 1, sequence=0)) for i in range(5)
            ]
            bench.store.fail_write(2, stored=stored, prefix=SEGMENTS)
            gate.open()
            assert leader.result(10)
            for one in waiting:
                with pytest.raises(StorageUnavailable):
                    one.result(10)
        for i in range(5):
            assert bench.publish(b"%d" % i, producer=i + 1).duplicate is stored
        assert bench.values() == [b"first", b"leader", *(b"%d" % i for i in range(5))]


def test_a_map_that_does_not_recover_yet_keeps_refusing_and_reading_goes_on() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.store.fail_write(1, stored=False, prefix=SEGMENTS, refusals=2)
        for _ in range(3):
            with pytest.raises(StorageUnavailable):
                bench.publish(b"b")
            assert bench.values() == [b"a"]
        assert bench.publish(b"c").base_offset == 1


def test_a_full_disk_refuses_publishes_not_reads_and_heals_by_itself() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.store.fill()
        with pytest.raises(StorageFull):
            bench.publish(b"b")
        bench.engine.maintenance.recover()
        assert bench.engine.readiness() != []
        assert bench.values() == [b"a"]
        bench.store.release()
        bench.engine.maintenance.recover()
        assert bench.engine.readiness() == []
        assert bench.publish(b"b").base_offset == 1


def test_a_partition_that_failed_before_it_was_read_does_not_look_empty() -> None:
    with Bench() as bench:
        bench.publish(b"a", b"b")
        bench.kill()

        def unreadable(operation: str, name: str) -> None:
            if operation == "scan" and name.startswith(SEGMENTS):
                raise StorageUnavailable("The disk does not answer.")

        bench.store.before = unreadable
        for call in (lambda: bench.publish(b"c"), bench.read, bench.partition):
            with pytest.raises(StorageUnavailable):
                call()
        bench.store.before = lambda operation, name: None
        assert bench.publish(b"c").base_offset == 2
        assert bench.values() == [b"a", b"b", b"c"]


def test_a_repeated_block_is_acknowledged_as_synced_only_when_it_is() -> None:
    with Bench() as bench:
        bench.publish(b"first", durability=SYNCED)
        bench.publish(b"v", producer=7, durability=WRITTEN)
        bench.kill()
        assert bench.publish(b"v", producer=7, durability=SYNCED).duplicate
        bench.lose_power()
        assert bench.values() == [b"first", b"v"]


def test_a_repeated_block_after_a_failed_write_is_acknowledged_as_synced_only_when_it_is() -> None:
    with Bench() as bench:
        bench.publish(b"first", durability=SYNCED)
        bench.store.fail_write(1, stored=True, prefix=SEGMENTS)
        with pytest.raises(StorageUnavailable):
            bench.publish(b"v", producer=7, durability=SYNCED)
        assert bench.publish(b"v", producer=7, durability=SYNCED).duplicate
        bench.lose_power()
        assert bench.values() == [b"first", b"v"]


def _scenario(bench: Bench) -> list[tuple[int, bytes]]:
    """Publish with retries over rolls and snapshots; what was acknowledged."""
    acknowledged = []
    for sequence in range(12):
        value = b"%d" % sequence
        for attempt in range(5):
            try:
                place = bench.publish(value, producer=9, sequence=sequence)
            except TMSError as error:
                assert error.retriable and attempt < 4, error
                bench.engine.maintenance.recover()
                continue
            acknowledged.append((place.base_offset, value))
            break
        bench.clock.pass_ms(400)
        with suppress(StorageUnavailable):
            bench.engine.maintenance.clean()
    return acknowledged


@pytest.mark.parametrize("stored", [False, True])
def test_whichever_write_fails_nothing_acknowledged_is_lost_or_doubled(stored: bool) -> None:
    limits = small(segment_bytes=2_000, segment_ms=1_500, snapshot_bytes=1_000)
    failed, nth = True, 0
    while failed:
        nth += 1
        with Bench(limits=limits) as bench:
            bench.store.fail_write(nth, stored=stored)
            acknowledged = _scenario(bench)
            failed = bench.store.writes >= nth
            expected = [(i, b"%d" % i) for i in range(12)]
            assert acknowledged == expected, f"write {nth}"
            for again in (bench.restart, bench.lose_power):
                again()
                found = [(one.offset, one.value) for one in bench.read()]
                assert found == expected, f"write {nth} after {again.__name__}"
            assert bench.partition().segments > 2
    assert nth > 30, "the scenario writes too little to say anything"


# -- threads that go astray ------------------------------------------------------------------------


def test_a_leader_that_is_interrupted_leaves_a_partition_that_works() -> None:
    with Bench() as bench:
        bench.publish(b"a")

        def interrupted(operation: str, name: str) -> None:
            bench.store.before = lambda operation, name: None
            raise KeyboardInterrupt

        bench.store.before = interrupted
        with pytest.raises(KeyboardInterrupt):
            bench.publish(b"b")
        assert bench.publish(b"c").base_offset == 1
        assert bench.values() == [b"a", b"c"]


@pytest.mark.parametrize("durability", [WRITTEN, SYNCED])
def test_a_callback_that_raises_hurts_nobody(durability: Durability) -> None:
    with Bench() as bench:
        bench.publish(b"a")
        called = []

        def broken() -> None:
            called.append(True)
            raise RuntimeError("the loop is closed")

        with Gate(bench.store) as gate:
            _submit(bench, block(b"b")).add_done_callback(broken)
            gate.wait_entered()
            bench.engine.watch(NAME, [], broken)
            pending = _submit(bench, block(b"c"), durability=durability)
            pending.add_done_callback(broken)
            gate.open()
            assert pending.result(10)[0].base_offset == 2
        assert bench.publish(b"d").base_offset == 3
        assert len(called) == 2


def test_an_append_that_times_out_may_still_be_stored_and_is_found_by_its_retry() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        with Gate(bench.store) as gate:
            leader = _submit(bench, block(b"leader"))
            gate.wait_entered()
            with pytest.raises(TimedOut):
                _submit(bench, block(b"b", producer=3)).result(0.01)
            gate.open()
            leader.result(10)
        retried = bench.publish(b"b", producer=3)
        assert retried.duplicate
        assert bench.values() == [b"a", b"leader", b"b"]


def test_a_callback_added_when_all_is_done_is_called_at_once() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        pending = _submit(bench, block(b"b"), durability=WRITTEN)
        called: list[int] = []
        pending.add_done_callback(lambda: called.append(1))
        assert called == [1]


# -- closing ---------------------------------------------------------------------------------------


def test_closing_writes_what_is_queued_and_refuses_what_comes_later() -> None:
    bench = Bench()
    bench.publish(b"first")
    with Gate(bench.store) as gate:
        pending = [_submit(bench, block(b"leader"))]
        gate.wait_entered()
        pending += [_submit(bench, block(b"%d" % i)) for i in range(20)]
        closing = threading.Thread(target=bench.engine.close)
        closing.start()
        until(lambda: bool(bench.engine.readiness()))
        with pytest.raises(Closed):
            _submit(bench, block(b"late"))
        gate.open()
        closing.join(10)
        for one in pending:
            one.result(0)
    bench.engine = bench.open()
    assert bench.values() == [b"first", b"leader", *(b"%d" % i for i in range(20))]
    bench.engine.close()


def test_publishers_that_race_with_closing_are_all_answered_and_none_is_lost() -> None:
    for _ in range(10):
        bench = Bench(TopicSettings(partitions=3))
        acknowledged: list[list[bytes]] = [[], [], [], []]
        start = threading.Barrier(5)

        def publish(mine: int, bench: Bench = bench, start: threading.Barrier = start) -> None:
            start.wait()
            for i in range(1_000):
                value = b"%d/%d" % (mine, i)
                try:
                    bench.publish(value, partition=i % 3)
                except Closed:
                    return
                acknowledged[mine].append(value)  # noqa: B023

        threads = [threading.Thread(target=publish, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        bench.engine.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        bench.engine = bench.open()
        stored = {value for partition in range(3) for value in bench.values(partition=partition)}
        assert stored >= {value for mine in acknowledged for value in mine}
        bench.engine.close()
