"""The cache of recent blocks: its bound, its evictions, and blocks that never enter it."""

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from tests.log_kit import EARLIEST, LATEST, MANY, NAME, Bench, Limits, seen
from tms.log.cache import BlockCache, Tail
from tms.model.message import PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicSettings


@given(
    blocks=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=200),
    forget=st.sets(st.integers(0, 199), max_size=5),
)
def test_the_bytes_of_all_partitions_together_are_bounded_and_the_newest_stay(
    blocks: list[tuple[int, int]], forget: set[int]
) -> None:
    cache, lock = BlockCache(100), threading.Lock()
    tails = [Tail((0, 0)) for _ in range(4)]
    kept: list[tuple[int, int, int]] = []  # partition, key, size; oldest first
    for key, (partition, size) in enumerate(blocks, 1):
        cache.add(tails[partition], lock, (key, 0), StoredBlock(partition, key, 0, bytes(size)))
        kept.append((partition, key, size))
        while sum(size for _, _, size in kept) > 100:
            kept.pop(0)
        if key in forget:
            cache.drop(tails[partition])
            kept = [one for one in kept if one[0] != partition]
        assert cache.bytes == sum(size for _, _, size in kept) <= 100
        for number, tail in enumerate(tails):
            mine = [key for partition, key, _ in kept if partition == number]
            start = (tail.covered_after[0], 1)
            found = tail.read(start, MANY)
            assert found is not None
            assert [block.time_ms for block in found] == mine
            assert tail.read(tail.covered_after, MANY) is None


def test_a_read_of_the_cache_is_bounded_in_blocks_and_goes_on_where_it_ended() -> None:
    cache, lock, tail = BlockCache(1 << 20), threading.Lock(), Tail((0, 0))
    for key in range(1, 5_001):
        cache.add(tail, lock, (key, 0), StoredBlock(0, key, 0, b"v"))
    first = tail.read((1, 0), MANY)
    assert first is not None
    assert [block.time_ms for block in first] == [*range(1, 4_097)]
    second = tail.read((4_096, 1), MANY)
    assert second is not None
    assert [block.time_ms for block in second] == [*range(4_097, 5_001)]


def test_blocks_before_a_key_are_dropped_and_new_blocks_evict_the_oldest() -> None:
    cache, lock = BlockCache(100), threading.Lock()
    first, second = Tail((0, 0)), Tail((0, 0))
    for key in range(1, 6):
        cache.add(first, lock, (key, 0), StoredBlock(0, key, 0, bytes(10)))
        cache.add(second, lock, (key, 0), StoredBlock(1, key, 0, bytes(10)))
    cache.drop_before(first, (4, 0))
    assert (cache.bytes, len(first), len(second)) == (70, 2, 5)
    for key in range(6, 11):
        cache.add(second, lock, (key, 0), StoredBlock(1, key, 0, bytes(10)))
    assert (cache.bytes, len(first), len(second)) == (100, 2, 8)
    assert second.covered_after == (2, 0)
    for key in range(11, 14):
        cache.add(second, lock, (key, 0), StoredBlock(1, key, 0, bytes(10)))
    assert (cache.bytes, len(first), len(second)) == (100, 1, 9)
    assert first.covered_after == (4, 0)


def test_a_block_larger_than_the_cache_passes_by_and_is_read_from_the_store() -> None:
    with Bench(limits=Limits(cache_bytes=1_000)) as bench:
        bench.publish(bytes(5_000))
        assert bench.engine.stats().cache_bytes == 0
        assert bench.values() == [bytes(5_000)]


def test_the_bound_holds_over_partitions_that_are_written_at_once() -> None:
    limits = Limits(cache_bytes=20_000)
    with Bench(TopicSettings(partitions=4), limits) as bench, ThreadPoolExecutor(4) as pool:

        def publish(partition: int) -> None:
            for i in range(100):
                bench.publish(b"%d" % i + bytes(500), partition=partition)

        list(pool.map(publish, range(4)))
        bench.publish(b"v")
        assert bench.engine.stats().cache_bytes <= 20_000
        for partition in range(4):
            assert len(bench.read(partition=partition)) == 100 + (partition == 0)


def test_replays_do_not_push_the_newest_out() -> None:
    with Bench(TopicSettings(partitions=2), Limits(cache_bytes=20_000)) as bench:
        for _ in range(100):
            bench.publish(bytes(1_000))
        position = bench.fetch(LATEST, 1).next[1]
        bench.publish(b"newest", partition=1)
        held = bench.engine.stats().cache_bytes
        for _ in range(3):
            assert len(bench.read(EARLIEST)) == 100
        assert bench.engine.stats().cache_bytes == held
        cached = bench.engine.fetch_cached(NAME, [PartitionPosition(1, position)], MANY)
        assert cached is not None
        assert [one.value for one in seen(cached.blocks)] == [b"newest"]


def test_hits_and_misses_are_counted() -> None:
    with Bench(limits=Limits(cache_bytes=3_000)) as bench:
        for i in range(10):
            bench.publish(b"%d" % i + bytes(1_000))
        before = bench.engine.stats()
        bench.fetch(EARLIEST)
        bench.fetch(LATEST)
        after = bench.engine.stats()
        assert after.cache_hits - before.cache_hits == 1
        assert after.cache_misses - before.cache_misses == 1


def test_cached_and_uncached_answers_are_equal() -> None:
    found = []
    for cache_bytes in (0, 4_000, 1 << 20):
        with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
            places = [bench.publish(b"%d" % i + bytes(i * 40), b"x") for i in range(20)]
            positions = [EARLIEST, LATEST, Position.time(0)]
            positions += [Position.at(place.ids()[1]) for place in places]
            positions += [Position.after(place.ids()[0]) for place in places]
            positions += [Position.offset(offset) for offset in range(41)]
            answers = [bench.fetch(position) for position in positions]
            found.append([(seen(one.blocks), one.next, one.ends) for one in answers])
    assert found[0] == found[1] == found[2]
