"""Fetching at the tail: next positions, the cache, and waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clocks import START_MS
from tests.log_kit import (
    DAY_MS,
    EARLIEST,
    LATEST,
    MANY,
    NAME,
    NONE,
    WRITTEN,
    Bench,
    Gate,
    Limits,
    block,
    seen,
    small,
)
from tests.waiting import until
from tms.block import read_header
from tms.errors import OffsetOutOfRange
from tms.model.ids import MessageId
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position, PositionKind
from tms.model.topic import TopicSettings

CACHES = {"cached": 1 << 20, "uncached": 0, "half": 3_000}


# -- where to go on --------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_latest_is_resolved_once(cache_bytes: int) -> None:
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        for expected in (b"first", b"second"):
            position = bench.fetch(LATEST).next[0]
            assert position.kind is PositionKind.AFTER
            bench.publish(expected)
            assert bench.values(position) == [expected]


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_going_on_gives_each_message_once(cache_bytes: int) -> None:
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        position, found = EARLIEST, []
        for i in range(30):
            bench.publish(b"%d" % i)
            if i % 3 == 0:
                fetched = bench.fetch(position, bytes_max=1_500)
                found += [one.value for one in seen(fetched.blocks)]
                position = fetched.next[0]
        assert found + bench.values(position) == [b"%d" % i for i in range(30)]


def test_going_on_waits_only_for_what_is_new_when_all_before_is_unreadable() -> None:
    with Bench(TopicSettings(retention_ms=DAY_MS)) as bench:
        first = bench.publish(b"a").ids()[0]
        last = bench.publish(b"b").ids()[0]
        bench.clock.pass_ms(2 * DAY_MS)
        positions = (EARLIEST, Position.after(first), Position.at(last), Position.time(START_MS))
        for position in positions:
            following = bench.fetch(position).next[0]
            woken: list[int] = []
            at = [PartitionPosition(0, following)]
            bench.engine.watch(NAME, at, lambda woken=woken: woken.append(1))  # type: ignore[misc]
            assert woken == [], f"{position} waits for what nobody can read"


def test_a_position_in_the_future_stays_until_it_is_reached() -> None:
    with Bench() as bench:
        for position in (
            Position.time(START_MS + 50),
            Position.at(MessageId(START_MS + 50, 0)),
        ):
            assert bench.fetch(position).next[0] == position
        bench.publish(b"early")
        bench.clock.pass_ms(50)
        bench.publish(b"late")
        assert bench.values(Position.time(START_MS + 50)) == [b"late"]


# -- the cache -------------------------------------------------------------------------------------


def test_a_reader_at_the_tail_does_not_touch_the_store() -> None:
    with Bench() as bench:
        position = bench.fetch(LATEST).next[0]
        bench.publish(b"v")
        operations: list[str] = []
        bench.store.before = lambda operation, name: operations.append(operation)
        at = [PartitionPosition(0, position)]
        cached = bench.engine.fetch_cached(NAME, at, MANY)
        assert cached is not None
        assert [one.value for one in seen(cached.blocks)] == [b"v"]
        nothing = bench.engine.fetch_cached(NAME, [PartitionPosition(0, cached.next[0])], MANY)
        assert nothing is not None
        assert nothing.blocks == []
        assert operations == []


def test_what_is_not_cached_is_never_answered_from_the_cache() -> None:
    with Bench(limits=Limits(cache_bytes=3_000)) as bench:
        at = [PartitionPosition(0, EARLIEST)]
        operations: list[str] = []
        bench.kill()
        bench.store.before = lambda operation, name: operations.append(operation)
        assert bench.engine.fetch_cached(NAME, at, MANY) is None, "the topic is not known yet"
        bench.engine.describe_topic(NAME)
        bench.store.before = lambda operation, name: operations.append(operation)
        for i in range(10):
            bench.publish(b"%d" % i + bytes(1_000))
        operations.clear()
        assert bench.engine.fetch_cached(NAME, at, MANY) is None
        assert (
            bench.engine.fetch_cached(NAME, [PartitionPosition(0, Position.offset(9))], 1) is None
        )
        assert operations == []
        assert len(bench.values()) == 10


def test_a_partition_that_is_not_open_is_not_opened_for_a_cached_fetch() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        bench.publish(b"v")
        operations: list[str] = []
        bench.store.before = lambda operation, name: operations.append(operation)
        assert bench.engine.fetch_cached(NAME, [PartitionPosition(1, EARLIEST)], MANY) is None
        assert operations == []


# -- waiting ---------------------------------------------------------------------------------------


def test_a_waiting_fetch_returns_as_soon_as_something_is_there() -> None:
    with Bench(TopicSettings(partitions=2)) as bench, ThreadPoolExecutor(1) as pool:
        positions = [PartitionPosition(0, LATEST), PartitionPosition(1, LATEST)]
        waiting = pool.submit(bench.engine.fetch, NAME, positions, MANY, 30)
        _until_watched(bench, 1)
        bench.publish(b"v", partition=1)
        fetched = waiting.result(10)
        assert [one.value for one in seen(fetched.blocks)] == [b"v"]
        assert set(fetched.next) == {0, 1}


def test_a_wait_that_is_over_answers_with_nothing_and_where_to_go_on() -> None:
    with Bench() as bench:
        fetched = bench.fetch(LATEST, wait_s=0.01)
        assert fetched.blocks == []
        bench.publish(b"v")
        assert bench.values(fetched.next[0]) == [b"v"]


def test_a_fetch_that_waits_for_the_next_offset_gets_it_when_it_is_there() -> None:
    with Bench() as bench, ThreadPoolExecutor(1) as pool:
        bench.publish(b"0")
        waiting = pool.submit(bench.fetch, Position.offset(1), 0, MANY, 30)
        _until_watched(bench, 0)
        bench.publish(b"1")
        assert [one.offset for one in seen(waiting.result(10).blocks)] == [1]


def test_a_fetch_from_beyond_the_end_is_refused_not_made_to_wait() -> None:
    with Bench() as bench:
        for end in range(3):
            assert bench.fetch(Position.offset(end)).blocks == []
            for beyond in (end + 1, 2**63 - 1):
                with pytest.raises(OffsetOutOfRange) as refused:
                    bench.fetch(Position.offset(beyond), wait_s=30)
                assert refused.value.details == {"earliest": 0, "end": end}
            bench.publish(b"v")


def _until_watched(bench: Bench, partition: int) -> None:
    log = bench.engine.topics.log(NAME, partition)
    until(lambda: bool(log.state._watchers))


def test_a_watch_calls_once_at_once_or_never_after_it_was_cancelled() -> None:
    with Bench() as bench:
        calls: list[str] = []
        start = bench.fetch(LATEST).next[0]

        def watch(name: str, position: Position) -> None:
            at = [PartitionPosition(0, position)]
            cancel = bench.engine.watch(NAME, at, lambda: calls.append(name))
            if name == "cancelled":
                cancel()
                cancel()

        watch("waiting", start)
        watch("cancelled", start)
        assert calls == []
        bench.publish(b"v")
        assert calls == ["waiting"]
        bench.publish(b"w")
        assert calls == ["waiting"]
        watch("at once", start)
        watch("offset", Position.offset(0))
        watch("later", Position.offset(2))
        assert calls == ["waiting", "at once", "offset"]


def test_a_watch_is_woken_by_what_a_failed_write_left() -> None:
    with Bench() as bench:
        position = bench.fetch(LATEST).next[0]
        bench.publish(b"a")
        position = bench.fetch(position).next[0]
        calls: list[int] = []
        bench.engine.watch(NAME, [PartitionPosition(0, position)], lambda: calls.append(1))
        bench.store.fail_write(1, stored=True)
        with pytest.raises(Exception, match="disk"):
            bench.publish(b"b")
        assert calls == []
        bench.engine.maintenance.recover()
        assert calls == [1]
        assert bench.values(position) == [b"b"]


@pytest.mark.parametrize("durability", [NONE, WRITTEN])
def test_no_wake_up_is_ever_lost(durability: object) -> None:
    """A consumer that slept through one message would stop the ping-pong."""
    with Bench(TopicSettings(partitions=2)) as bench, ThreadPoolExecutor(1) as pool:

        def consume() -> list[bytes | None]:
            position, found = EARLIEST, list[bytes | None]()
            while len(found) < 300:
                fetched = bench.fetch(position, wait_s=20)
                assert fetched.blocks, "20 s without a wake-up"
                found += [one.value for one in seen(fetched.blocks)]
                position = fetched.next[0]
                for value in found[-1:]:
                    bench.publish(value, partition=1, durability=WRITTEN)
            return found

        consumer = pool.submit(consume)
        answers = EARLIEST
        for i in range(300):
            bench.engine.submit(
                NAME,
                [NewBlock(0, block(b"%d" % i))],
                durability,  # type: ignore[arg-type]
            )
            if i % 10 == 0:
                fetched = bench.fetch(answers, partition=1, wait_s=20)
                assert fetched.blocks, "20 s without a wake-up"
                answers = fetched.next[1]
        assert consumer.result(30) == [b"%d" % i for i in range(300)]


def test_reading_the_tail_never_waits_for_a_write() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        with Gate(bench.store) as gate:
            pending = bench.engine.submit(NAME, [NewBlock(0, block(b"b"))])
            gate.wait_entered()
            assert bench.values() == [b"a"]
            assert bench.partition().end_offset == 1
            gate.open()
            pending.result(10)
        assert bench.values() == [b"a", b"b"]


def test_readers_and_a_writer_at_once_see_every_prefix_in_order() -> None:
    limits = small(Limits(cache_bytes=4_000), segment_bytes=6_000)
    with Bench(limits=limits) as bench, ThreadPoolExecutor(3) as pool:
        done = threading.Event()

        def follow() -> int:
            rounds = 0
            while not done.is_set() or rounds == 0:
                found = bench.read(bytes_max=3_000)
                assert [one.offset for one in found] == list(range(len(found)))
                rounds += 1
            return rounds

        readers = [pool.submit(follow) for _ in range(3)]
        for i in range(300):
            header = read_header(block(b"%d" % i))
            assert bench.publish(b"%d" % i).count == header.count
        done.set()
        assert all(reader.result(30) for reader in readers)
        assert len(bench.read()) == 300
