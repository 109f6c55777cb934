"""The engine as a whole: it checks its input, closes what it opens, and wakes waiting callers."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.log_kit import (
    EARLIEST,
    HOUR_MS,
    LATEST,
    MANY,
    NAME,
    SEGMENTS,
    WRITTEN,
    Bench,
    KeptStore,
    Limits,
    block,
    small,
)
from tests.waiting import until
from tms.block import Compression, encode
from tms.engine.engine import Engine
from tms.errors import (
    AlreadyRunning,
    BadBlock,
    Closed,
    CrcMismatch,
    DataCorrupt,
    DecompressedTooLarge,
    Invalid,
    StorageUnavailable,
    TMSError,
    TooLarge,
    TopicNotFound,
)
from tms.model.message import Fetched, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicSettings
from tms.store.leveldb import LevelDBStore
from tms.store.memory import MemoryStore


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(TopicSettings(partitions=2)) as made:
        yield made


def _watchers(bench: Bench) -> int:
    return sum(len(log.state._watchers) for log in bench.engine.topics.partitions.opened())


# -- input -----------------------------------------------------------------------------------------


def test_nothing_to_publish_is_refused(bench: Bench) -> None:
    with pytest.raises(Invalid):
        bench.engine.append(NAME, [])


def _flipped(at: int) -> bytearray:
    made = block(b"value")
    made[at] ^= 1
    return made


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (bytearray(), BadBlock),
        (block(b"v")[:47], BadBlock),
        (block(b"v")[:-8], CrcMismatch),
        (block(b"v") + bytes(8), CrcMismatch),
        (_flipped(0), BadBlock),
        (_flipped(4), BadBlock),
        (_flipped(5), BadBlock),
        (_flipped(11), BadBlock),
        (_flipped(12), CrcMismatch),
        (_flipped(300), CrcMismatch),
        (encode([bytes(100_000)], compression=Compression.ZSTD), TooLarge),
    ],
)
def test_a_bad_block_is_refused_with_everything_that_came_with_it(
    bench: Bench, made: bytearray, error: type[TMSError]
) -> None:
    bench.engine.update_topic(NAME, {"message_bytes_max": 1_000})
    with pytest.raises(error):
        bench.engine.append(NAME, [NewBlock(0, block(b"good")), NewBlock(1, made)])
    assert bench.values() == []
    assert bench.engine.stats().in_flight_bytes == 0


def test_a_block_that_would_be_too_large_once_decompressed_is_refused(bench: Bench) -> None:
    bomb = encode([bytes(8 << 20)] * 5, compression=Compression.ZSTD)
    assert len(bomb) < 100_000
    with pytest.raises(DecompressedTooLarge):
        bench.engine.append(NAME, [NewBlock(0, bomb)])


def test_the_largest_message_is_taken_and_one_byte_more_is_not(bench: Bench) -> None:
    bench.engine.update_topic(NAME, {"message_bytes_max": 5_000})
    bench.publish(bytes(5_000))
    with pytest.raises(TooLarge):
        bench.publish(bytes(5_001))


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda b: memoryview(bytes(b))])
def test_any_buffer_is_taken(bench: Bench, make: Callable[[bytearray], bytes]) -> None:
    bench.publish(b"first")
    place = bench.engine.append(NAME, [NewBlock(0, make(block(b"v")))])[0]
    assert place.base_offset == 1
    assert bench.values() == [b"first", b"v"]


def test_blocks_of_one_request_are_answered_in_the_order_given(bench: Bench) -> None:
    places = bench.engine.append(
        NAME, [NewBlock(p, block(*[b"v"] * n)) for p, n in ((1, 1), (0, 2), (1, 3), (0, 4))]
    )
    assert [(one.partition, one.count, one.base_offset) for one in places] == [
        (1, 1, 0),
        (0, 2, 0),
        (1, 3, 1),
        (0, 4, 2),
    ]


# -- waiting and closing ---------------------------------------------------------------------------


def _waiting(bench: Bench, pool: ThreadPoolExecutor) -> list[Future[Fetched]]:
    found = []
    for partition in (0, 1, 0):
        found.append(pool.submit(bench.fetch, LATEST, partition, MANY, 60))
        until(lambda found=found: _watchers(bench) == len(found))  # type: ignore[misc]
    return found


def test_closing_wakes_whoever_waits(bench: Bench) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = _waiting(bench, pool)
        bench.engine.close()
        for one in waiting:
            with pytest.raises(Closed):
                one.result(10)


def test_deleting_the_topic_wakes_whoever_waits(bench: Bench) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = _waiting(bench, pool)
        bench.engine.delete_topic(NAME)
        for one in waiting:
            with pytest.raises(TopicNotFound):
                one.result(10)


def test_a_watch_that_comes_after_the_end_is_called_at_once(bench: Bench) -> None:
    bench.publish(b"v")
    log = bench.engine.topics.log(NAME, 0)
    bench.engine.delete_topic(NAME)
    called: list[int] = []
    log.reader.watch(Position.latest(), lambda: called.append(1))
    assert called == [1]


def test_a_fetch_that_races_with_closing_always_ends() -> None:
    for _ in range(30):
        bench = Bench()
        bench.publish(b"v")
        with ThreadPoolExecutor(2) as pool:
            start = threading.Barrier(3)

            def wait(bench: Bench = bench, start: threading.Barrier = start) -> None:
                start.wait()
                with pytest.raises(Closed):
                    bench.fetch(LATEST, wait_s=60)

            waiting = [pool.submit(wait) for _ in range(2)]
            start.wait()
            bench.engine.close()
            for one in waiting:
                one.result(10)


def test_after_closing_every_call_says_closed_and_closing_again_does_nothing() -> None:
    bench = Bench(inner=MemoryStore())
    bench.publish(b"v")
    engine = bench.engine
    engine.close()
    engine.close()
    at = [PartitionPosition(0, EARLIEST)]
    calls: list[Callable[[], object]] = [
        lambda: engine.append(NAME, [NewBlock(0, block(b"v"))]),
        lambda: engine.submit(NAME, [NewBlock(0, block(b"v"))]),
        lambda: engine.fetch(NAME, at, 1),
        lambda: engine.watch(NAME, at, lambda: None),
        lambda: engine.describe_topic(NAME),
        lambda: engine.create_topic(NAME, TopicSettings(partitions=2)),
        lambda: engine.update_topic(NAME, {"partitions": 2}),
        lambda: engine.truncate_topic(NAME, EARLIEST),
        lambda: engine.delete_topic(NAME),
        lambda: engine.list_topics("default"),
        lambda: engine.inspect(NAME, 0, 1),
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    assert engine.fetch_cached(NAME, at, 1) is None
    assert engine.readiness() == ["The engine is closed."]
    assert engine.stats().messages == 1


def test_threads_end_with_the_engine() -> None:
    before = {thread.name for thread in threading.enumerate()}
    bench = Bench()
    bench.engine.start()
    bench.publish(b"v")
    assert {thread.name for thread in threading.enumerate()} > before
    bench.engine.close()
    assert {thread.name for thread in threading.enumerate()} <= before


# -- many at once ----------------------------------------------------------------------------------


def test_topics_are_created_published_to_and_deleted_by_many_threads_at_once(
    bench: Bench,
) -> None:
    def live(thread: int) -> None:
        for i in range(15):
            name = NAME._replace(topic=f"t{i % 3}")
            try:
                bench.engine.create_topic(name, TopicSettings())
                bench.engine.append(name, [NewBlock(0, block(b"%d" % thread))], WRITTEN)
                bench.engine.fetch(name, [PartitionPosition(0, EARLIEST)], MANY)
                bench.engine.delete_topic(name)
            except TopicNotFound:
                continue  # another one deleted it

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(live, range(6)))
    for info in bench.engine.list_topics("default"):
        bench.engine.delete_topic(info.name)
    assert bench.maps() == []
    metadata = bench.store.inner.open("metadata", create=False)
    assert metadata.scan(b"partition/", b"partition0", MANY) == []


def test_deleting_while_others_publish_and_read_leaves_nothing_behind() -> None:
    limits = small(Limits(cache_bytes=0), segment_bytes=1)
    for _ in range(5):
        with Bench(limits=limits) as bench, ThreadPoolExecutor(3) as pool:
            bench.publish(b"first")

            def use(bench: Bench = bench) -> None:
                with pytest.raises(TopicNotFound):
                    while True:
                        bench.publish(b"v", durability=WRITTEN)
                        bench.read()
                        bench.engine.maintenance.clean()

            users = [pool.submit(use) for _ in range(3)]
            until(lambda bench=bench: bench.partition().segments > 3)  # type: ignore[misc]
            bench.engine.delete_topic(NAME)
            for user in users:
                user.result(10)
            bench.engine.maintenance.clean()
            assert bench.maps() == []


# -- operating -------------------------------------------------------------------------------------


def test_counters_count_what_was_stored(bench: Bench) -> None:
    bench.publish(b"a", b"b")
    bench.publish(b"c", partition=1, durability=WRITTEN)
    stats = bench.engine.stats()
    assert (stats.messages, stats.blocks, stats.writes, stats.syncs) == (3, 2, 2, 1)
    assert stats.bytes == stats.cache_bytes == len(block(b"a", b"b")) + len(block(b"c"))
    assert stats.partitions_open == 2


def test_an_engine_that_can_write_is_ready(bench: Bench) -> None:
    assert bench.engine.readiness() == []
    bench.store.fill()
    assert bench.engine.readiness() != []


def test_the_background_work_cleans_and_recovers_by_itself() -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.publish(b"old")
        bench.store.fail_write(1, stored=False, prefix=SEGMENTS)
        with pytest.raises(StorageUnavailable):
            bench.publish(b"failed")
        bench.engine.start()
        log = bench.engine.topics.partitions.opened()[0]
        until(lambda: not log.state.failed)
        bench.publish(b"v")


def test_damage_is_told_and_never_delivered_and_other_partitions_go_on(bench: Bench) -> None:
    bench.publish(b"a")
    bench.publish(b"b", partition=1)
    bench.restart()
    damaged = next(name for name in bench.maps() if "p00000" in name)
    key = bench.store.inner.open(damaged, create=False).scan(None, None, 1)[0][0]
    bench.store.corrupt_value(damaged, key)
    for call in (bench.read, bench.partition, lambda: bench.publish(b"c")):
        with pytest.raises(DataCorrupt):
            call()
    bench.store.corrupt.clear()
    assert bench.values(partition=1) == [b"b"]
    assert bench.publish(b"d", partition=1).base_offset == 1


def test_one_store_is_used_by_one_engine(tmp_path: Path) -> None:
    first = LevelDBStore(tmp_path / "data", create=True)
    with pytest.raises(AlreadyRunning):
        LevelDBStore(tmp_path / "data", create=True)
    first.close()


def test_opening_a_store_again_finds_everything(tmp_path: Path) -> None:
    clock = ManualClock()
    for expected in range(3):
        engine = Engine(LevelDBStore(tmp_path / "data", create=True), clock)
        engine.create_topic(NAME, TopicSettings())
        fetched = engine.fetch(NAME, [PartitionPosition(0, EARLIEST)], MANY)
        assert fetched.ends == {0: expected}
        engine.append(NAME, [NewBlock(0, block(b"%d" % expected))])
        engine.close()


def test_cost_of_opening_does_not_grow_with_the_number_of_topics() -> None:
    """Calls to the store are counted, not time."""
    calls = []
    for topics in (1, 200):
        with Bench(inner=KeptStore()) as bench:
            for i in range(topics):
                bench.engine.create_topic(NAME._replace(topic=f"t{i}"), TopicSettings())
            bench.publish(b"v")
            operations: list[str] = []
            bench.store.before = lambda operation, name, o=operations: o.append(operation)  # type: ignore[misc]
            bench.restart()
            bench.publish(b"w")
            bench.read()
            calls.append(len(operations))
    assert calls[1] <= calls[0] + 2
