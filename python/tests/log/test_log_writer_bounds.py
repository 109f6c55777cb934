"""Appending: bounds of waiting requests, misbehaving threads, and closing."""

import threading

import pytest

from tests.log_kit import NAME, NONE, SYNCED, WRITTEN, Bench, Gate, Limits, block, small
from tests.waiting import until
from tms.errors import Closed, Overloaded, TimedOut, TooLarge
from tms.log.pending import PendingAppend
from tms.log.writer import PartitionWriter, WriteGroup
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicSettings

# -- bounds ----------------------------------------------------------------------------------------


def _fill(bench: Bench, size: int, partition: int = 0) -> list[PendingAppend]:
    """Publish until a request is refused."""
    pending = []
    while True:
        try:
            pending.append(bench.submit(block(bytes(size)), partition=partition))
        except Overloaded as refused:
            assert refused.details["retry_after_s"] > 0
            return pending


def test_a_partition_refuses_more_than_its_bound_and_takes_it_again_afterwards() -> None:
    with Bench(TopicSettings(partitions=2), small(queue_bytes=100_000)) as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            pending = _fill(bench, 10_000)
            assert 8 <= len(pending) <= 10
            other = bench.submit(block(b"another partition"), partition=1)
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
                bench.submit(block(bytes(10_000)), partition=1)
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
            bench.submit(block(bytes(20_000))).result(10)


def test_a_block_with_one_message_too_large_stores_nothing_of_its_request() -> None:
    with Bench(TopicSettings(message_bytes_max=100, partitions=2)) as bench:
        with pytest.raises(TooLarge) as refused:
            bench.engine.append(
                NAME, [NewBlock(0, block(b"fine")), NewBlock(1, block(b"x", bytes(101)))]
            )
        assert refused.value.details["index"] == 1
        assert bench.values() == []
        assert bench.engine.stats().in_flight_bytes == 0


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


def test_an_interrupted_leader_without_other_threads_leaves_a_working_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Bench() as bench:
        bench.publish(b"a", durability=SYNCED)

        def no_thread(do: object) -> None:
            raise RuntimeError("can't start new thread")

        def interrupted(operation: str, name: str) -> None:
            bench.store.before = lambda operation, name: None
            raise KeyboardInterrupt

        (log,) = bench.engine.topics.partitions.opened()
        with monkeypatch.context() as patched:
            patched.setattr(log.writer._tickets, "_run_in_background", no_thread)
            bench.store.before = interrupted
            with pytest.raises(KeyboardInterrupt):
                bench.submit(block(b"b"), durability=SYNCED)
        assert bench.publish(b"c", durability=SYNCED).base_offset == 1
        assert bench.values() == [b"a", b"c"]


def test_a_leader_that_is_interrupted_while_it_answers_believes_the_store_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(writer: PartitionWriter, group: WriteGroup) -> bool:
        raise KeyboardInterrupt

    with Bench() as bench:
        bench.publish(b"a")
        (log,) = bench.engine.topics.partitions.opened()
        with monkeypatch.context() as patched, log.state.owner:
            patched.setattr(PartitionWriter, "_join", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.writer._join_last(WriteGroup([], 0, (0, 0)))
        assert not log.state.loaded, "the group may be in the store"
        assert bench.publish(b"b").base_offset == 1


@pytest.mark.parametrize("durability", [WRITTEN, SYNCED])
def test_a_callback_that_raises_hurts_nobody(durability: Durability) -> None:
    with Bench() as bench:
        bench.publish(b"a")
        called = []

        def broken() -> None:
            called.append(True)
            raise RuntimeError("the loop is closed")

        with Gate(bench.store) as gate:
            bench.submit(block(b"b")).add_done_callback(broken)
            gate.wait_entered()
            bench.engine.watch(NAME, [], broken)
            pending = bench.submit(block(b"c"), durability=durability)
            pending.add_done_callback(broken)
            gate.open()
            assert pending.result(10)[0].base_offset == 2
        assert bench.publish(b"d").base_offset == 3
        assert len(called) == 2


def test_an_append_that_times_out_may_still_be_stored_and_is_found_by_its_retry() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        with Gate(bench.store) as gate:
            leader = bench.submit(block(b"leader"))
            gate.wait_entered()
            with pytest.raises(TimedOut):
                bench.submit(block(b"b", producer=3)).result(0.01)
            gate.open()
            leader.result(10)
        retried = bench.publish(b"b", producer=3)
        assert retried.duplicate
        assert bench.values() == [b"a", b"leader", b"b"]


def test_a_callback_added_when_all_is_done_is_called_at_once() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        pending = bench.submit(block(b"b"), durability=WRITTEN)
        called: list[int] = []
        pending.add_done_callback(lambda: called.append(1))
        assert called == [1]


# -- closing ---------------------------------------------------------------------------------------


def test_closing_writes_what_is_queued_and_refuses_what_comes_later() -> None:
    bench = Bench()
    bench.publish(b"first")
    with Gate(bench.store) as gate:
        pending = [bench.submit(block(b"leader"))]
        gate.wait_entered()
        pending += [bench.submit(block(b"%d" % i)) for i in range(20)]
        closing = threading.Thread(target=bench.engine.close)
        closing.start()
        until(lambda: bool(bench.engine.readiness()))
        with pytest.raises(Closed):
            bench.submit(block(b"late"))
        gate.open()
        closing.join(10)
        for one in pending:
            one.result(0)
    bench.engine = bench.open()
    assert bench.values() == [b"first", b"leader", *(b"%d" % i for i in range(20))]
    bench.engine.close()


def test_what_comes_to_a_partition_that_was_just_closed_is_answered_with_the_reason() -> None:
    with Bench() as bench:
        bench.publish(b"first")
        (log,) = [one for one in bench.engine.topics.partitions.opened() if one.state.known]
        log.writer.close(1, Closed("The partition is gone."))
        for durability in (WRITTEN, SYNCED):
            with pytest.raises(Closed, match="gone"):
                bench.submit(block(b"late"), durability=durability).result(0)
        assert bench.values() == [b"first"]
        assert bench.engine.stats().in_flight_bytes == 0


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
