"""Segments: rolling, dropping, reading across them, and the state after a crash."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

import tms
from sim.faulty import FaultyStore
from tests.clocks import START_MS
from tests.log_kit import (
    DAY_MS,
    EARLIEST,
    HOUR_MS,
    LATEST,
    MANY,
    NAME,
    SEGMENTS,
    SYNCED,
    WRITTEN,
    Bench,
    KeptStore,
    Limits,
    block,
    small,
)
from tests.waiting import until
from tms.block import Flags, decode, place, read_header
from tms.client.reading import FETCH_BYTES
from tms.errors import DataCorrupt, StorageUnavailable
from tms.log import partition, segments
from tms.log.partition_log import PartitionLog
from tms.log.records import FIRST_KEY, SegmentRecord, key_after
from tms.log.segments import KEY_END, SegmentChain
from tms.model.ids import MessageId
from tms.model.keys import block_key
from tms.model.message import NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import Isolation
from tms.model.topic import TopicSettings
from tms.store.leveldb import LevelDBStore


def _publish_until_segments(bench: Bench, segments: int, size: int = 1_000) -> int:
    """Publish numbered blocks until the partition has so many segments; returns the number of
    blocks."""
    count = 0
    while bench.partition().segments < segments:
        bench.publish(b"%d" % count + bytes(size))
        bench.clock.pass_ms(1)
        bench.engine.maintenance.clean()
        count += 1
        assert count < 1_000
    return count


def _log(bench: Bench) -> PartitionLog:
    engine = bench.engine
    return engine.topics.partitions.get(NAME, engine.topics.registry.find(NAME), 0)


def _chain(bench: Bench) -> SegmentChain:
    return _log(bench).state.chain


def _pages(bench: Bench) -> Iterator[list[StoredBlock]]:
    _log(bench).reader.load()
    chain = _chain(bench)
    for segment in chain.record.segments:
        yield chain.scan_segment(segment, FIRST_KEY, MANY)


def _numbers(bench: Bench, position: Position = EARLIEST) -> list[int]:
    return [int((value or b"").rstrip(b"\0")) for value in bench.values(position)]


# -- rolling ---------------------------------------------------------------------------------------


def test_a_partition_has_no_map_before_its_first_message() -> None:
    with Bench() as bench:
        bench.read()
        bench.engine.truncate_topic(NAME, LATEST)
        bench.engine.maintenance.clean()
        assert bench.maps() == []
        assert bench.partition().segments == 0
        bench.publish(b"v")
        assert len(bench.maps()) == 1


def test_a_segment_rolls_by_size_without_anybody_asking() -> None:
    with Bench(limits=small(segment_bytes=20_000)) as bench:
        for i in range(100):
            bench.publish(b"%d" % i + bytes(1_000))
            bench.keep_up()
        inspected = bench.engine.inspect(NAME, 0, 0).segments
        assert len(inspected) >= 3
        assert all(one.stored_bytes < 60_000 for one in inspected)
        assert [one.number for one in inspected] == list(range(len(inspected)))
        assert [one.sealed for one in inspected] == [True] * (len(inspected) - 1) + [False]
        for one, following in pairwise(inspected):
            assert one.end_offset == following.base_offset
        assert _numbers(bench) == list(range(100))


def test_a_segment_rolls_by_age_only_if_something_is_in_it() -> None:
    with Bench(limits=small(segment_ms=HOUR_MS)) as bench:
        bench.publish(b"0")
        for expected in (1, 2, 2, 2):
            bench.engine.maintenance.clean()
            assert bench.partition().segments == expected
            bench.clock.pass_ms(HOUR_MS)
        bench.publish(b"1")
        bench.engine.maintenance.clean()
        assert bench.partition().segments == 3
        assert _numbers(bench) == [0, 1]


def _lasts(segment_ms: int, settings: TopicSettings) -> None:
    """A segment takes messages for exactly this time."""
    with Bench(settings) as bench:
        bench.publish(b"0")
        bench.clock.pass_ms(segment_ms - 1)
        bench.engine.maintenance.clean()
        assert bench.partition().segments == 1
        bench.clock.pass_ms(1)
        bench.engine.maintenance.clean()
        assert bench.partition().segments == 2


def test_a_segment_lasts_a_day() -> None:
    _lasts(DAY_MS, TopicSettings())


@pytest.mark.parametrize(
    "retention_ms, segment_ms", [(8_000, 1_000), (8_007, 1_000), (80_000, 10_000)]
)
def test_eight_segments_last_as_long_as_the_retention(retention_ms: int, segment_ms: int) -> None:
    _lasts(segment_ms, TopicSettings(retention_ms=retention_ms))


def test_a_segment_takes_a_quarter_of_the_bytes_that_are_kept() -> None:
    with Bench(TopicSettings(retention_bytes=(8 << 20) + 3)) as bench:
        assert _log(bench).state.segment_bytes_max() == 2 << 20


def test_a_small_limit_in_bytes_makes_segments_of_a_mebibyte() -> None:
    with Bench(TopicSettings(retention_bytes=1 << 20)) as bench:
        for _ in range(9):
            bench.publish(bytes(100_000))
            bench.engine.maintenance.clean()
        assert bench.partition().segments == 1
        bench.publish(bytes(200_000))
        bench.engine.maintenance.clean()
        assert bench.partition().segments == 2


def test_each_sync_of_a_segment_that_is_sealed_is_counted() -> None:
    with Bench(limits=small(segment_ms=HOUR_MS)) as bench:
        for syncs in range(1, 4):
            bench.publish(b"v", durability=WRITTEN)
            bench.clock.pass_ms(HOUR_MS)
            bench.engine.maintenance.clean()
            assert bench.engine.stats().syncs == syncs


def test_what_is_synced_is_not_synced_again() -> None:
    with Bench() as bench:
        bench.publish(b"v", durability=WRITTEN)
        with _log(bench).state.changing():
            for _ in range(2):
                _log(bench).state.snapshot()
        assert bench.engine.stats().syncs == 1


def test_appending_goes_on_while_a_segment_is_rolled() -> None:
    with Bench(limits=small(segment_bytes=1)) as bench:
        places = [bench.publish(b"%d" % i) for i in range(50)]
        assert [one.base_offset for one in places] == list(range(50))
        assert _numbers(bench) == list(range(50))
        bench.restart()
        assert _numbers(bench) == list(range(50))


# -- reading across --------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [1, 1_500, 5_000, 1 << 20])
def test_reading_goes_across_segments_from_any_message(bytes_max: int) -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=3_000)) as bench:
        count = _publish_until_segments(bench, 5)
        everything = bench.read(bytes_max=bytes_max)
        assert [one.offset for one in everything] == list(range(count))
        for index, one in enumerate(everything):
            for position in (Position.at(one.id), Position.offset(index)):
                assert bench.read(position, bytes_max=bytes_max) == everything[index:]
            assert bench.read(Position.after(one.id)) == everything[index + 1 :]


def test_one_fetch_takes_blocks_of_several_segments() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        count = _publish_until_segments(bench, 5, size=1)
        assert len(bench.fetch(EARLIEST).blocks) == count


def test_a_fetch_is_bounded_in_bytes_over_all_segments_together() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 8, size=1_000)
        assert 2 <= len(bench.fetch(EARLIEST, bytes_max=3_000).blocks) <= 3


@pytest.mark.parametrize("bytes_max", [1, 100, 3_000, 5_000, 7_000, 30_000])
def test_a_scan_enters_a_segment_when_nothing_is_left_in_the_one_before(bytes_max: int) -> None:
    """Blocks are so small that their keys count."""
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=20_000)) as bench:
        count = _publish_until_segments(bench, 4, size=1)
        chain = _chain(bench)
        found: list[int] = []
        start = FIRST_KEY
        while blocks := chain.scan(start, KEY_END, bytes_max):
            found += [read_header(one.block).base_offset for one in blocks]
            start = key_after((blocks[-1].time_ms, blocks[-1].last_sequence))
        assert found == [*range(count)]


def test_a_transaction_is_rolled_back_in_all_the_segments_that_it_wrote_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "ROLL_BACK_BYTES", 7_000)
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=20_000)) as bench:
        transactions = bench.engine.transactions
        id, segments = transactions.begin().transaction_id, 0
        while segments < 4:
            transactions.submit(NAME, [NewBlock(0, block(b"v"))], id).result(5)
            bench.clock.pass_ms(1)
            bench.engine.maintenance.clean()
            segments = bench.partition().segments
        state = _log(bench).state
        with state.changing():
            marked = state.roll_back(FIRST_KEY, state.last, id, lambda _: None)
        stored = [one for found in _pages(bench) for one in found]
        assert marked == len(stored) == bench.partition().end_offset
        assert all(read_header(one.block).flags & Flags.ROLLED_BACK for one in stored)


def test_what_was_published_after_a_key_is_found_in_all_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "LOOK_BYTES", 7_000)
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=20_000)) as bench:
        count = _publish_until_segments(bench, 4, size=1)
        state = _log(bench).state
        with state.owner:
            found = [one for some in state.published_after(FIRST_KEY) for one in some]
        assert [read_header(one.block).base_offset for one in found] == [*range(count)]


@pytest.mark.slow
def test_single_messages_of_several_segments_are_replayed_by_default_settings(
    tmp_path: Path,
) -> None:
    count = 40_000
    with tms.open(tmp_path) as bus:
        bus.create_topic("t", retention_bytes=40 << 20, durability="written")
        for number in range(count):
            bus.publish("t", b"%d" % number + bytes(300))
        assert bus.describe_topic("t").partition_infos[0].segments > 1
    with tms.open(tmp_path) as bus:
        for fetch_bytes in (FETCH_BYTES, 64 << 10):
            with bus.consumer("t", stop_at_end=True, bytes_max=fetch_bytes) as consumer:
                offsets = [at for batch in consumer.batches() for at in batch.offsets()]
            assert offsets == [*range(count)]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_what_is_rolled_back_says_so_in_the_cache_and_after_a_loss_of_power(
    cache_bytes: int,
) -> None:
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        bench.publish(b"0")
        transactions = bench.engine.transactions
        id = transactions.begin().transaction_id
        transactions.submit(NAME, [NewBlock(0, block(b"rolled back"))], id).result(10)
        transactions.abort(id)
        for _ in range(2):
            at = [PartitionPosition(0, EARLIEST)]
            found = bench.engine.fetch(NAME, at, MANY, 0, Isolation.UNCOMMITTED).blocks
            flags = [read_header(one.block).flags for one in found]
            assert [bool(one & Flags.ROLLED_BACK) for one in flags] == [False, True]
            assert bench.values() == [b"0"]
            bench.lose_power()


def test_a_scan_of_a_segment_that_retention_drops_meanwhile_goes_on_after_it() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything = bench.read()

        def drop_now(operation: str, name: str) -> None:
            if operation == "scan" and name.startswith(SEGMENTS):
                bench.store.before = lambda operation, name: None
                bench.engine.truncate_topic(NAME, Position.at(everything[2].id))

        bench.store.before = drop_now
        assert bench.read() == everything[2:]


def test_what_is_asked_of_a_segment_that_was_dropped_meanwhile_is_nothing() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        chain = _chain(bench)
        first = chain.record.segments[0]
        bench.engine.truncate_topic(NAME, Position.offset(1))
        assert chain.scan_segment(first, FIRST_KEY, MANY) == []


# -- dropping --------------------------------------------------------------------------------------


def test_truncation_frees_whole_segments_and_keeps_the_rest_exactly() -> None:
    for keep_from in range(12):
        with Bench(limits=small(segment_bytes=2_500)) as bench:
            _publish_until_segments(bench, 5)
            everything = bench.read()
            before = len(bench.maps())
            bench.engine.truncate_topic(NAME, Position.offset(keep_from))
            assert bench.read() == everything[keep_from:]
            for again in (bench.restart, bench.lose_power):
                again()
                assert bench.read() == everything[keep_from:]
            assert len(bench.maps()) == bench.partition().segments
            if keep_from >= 6:
                assert len(bench.maps()) < before


@pytest.mark.parametrize("stored", [False, True])
def test_a_truncation_that_a_crash_ends_between_partitions_is_repeated(stored: bool) -> None:
    with Bench(TopicSettings(partitions=3)) as bench:
        for partition in range(3):
            for value in (b"0", b"1", b"2"):
                bench.publish(value, partition=partition)
        bench.store.fail_write(2, stored=stored, prefix="metadata")
        with pytest.raises(StorageUnavailable):
            bench.engine.truncate_topic(NAME, Position.offset(2))
        bench.kill()
        starts = [bench.partition(number).start_offset for number in range(3)]
        assert starts == [2, 2 if stored else 0, 0]
        bench.engine.truncate_topic(NAME, Position.offset(1), 2)
        bench.engine.truncate_topic(NAME, Position.offset(2))
        bench.lose_power()
        for number in range(3):
            assert bench.values(partition=number) == [b"2"]


def test_truncating_everything_frees_everything() -> None:
    with Bench(limits=small(segment_bytes=2_500)) as bench:
        count = _publish_until_segments(bench, 4)
        bench.engine.truncate_topic(NAME, LATEST)
        info = bench.partition()
        assert (info.segments, info.start_offset, info.end_offset) == (1, count, count)
        assert bench.store.inner.open(bench.maps()[0], create=False).stored_bytes() == 0
        assert bench.publish(b"next").base_offset == count


def test_truncating_up_to_a_time_to_come_hides_nothing_that_is_published_before_it() -> None:
    with Bench() as bench:
        bench.publish(b"0")
        bench.engine.truncate_topic(NAME, Position.time(START_MS + HOUR_MS))
        assert bench.values() == []
        bench.publish(b"1")
        for _ in range(2):
            assert bench.values() == [b"1"]
            bench.restart()


def test_dropping_a_segment_shows_nothing_again_that_was_made_unreadable() -> None:
    with Bench() as bench:
        bench.publish(b"0")
        log = _log(bench)
        chain, floor = log.state.chain, (START_MS + HOUR_MS, 0)
        with log.state.changing():
            chain.raise_floor(floor)
            log.state.roll(bench.clock.now_ms())
            chain.raise_floor(key_after(log.state.last))
        assert (len(bench.maps()), chain.record.floor) == (1, floor)


def test_truncating_again_at_the_same_place_writes_nothing() -> None:
    with Bench() as bench:
        bench.publish(b"a", b"b")
        bench.engine.truncate_topic(NAME, Position.offset(1))
        operations: list[str] = []
        bench.store.before = lambda operation, _: operations.append(operation)
        bench.engine.truncate_topic(NAME, Position.offset(1))
        assert "compare_and_set" not in operations
        assert bench.values() == [b"b"]


# -- after a crash ---------------------------------------------------------------------------------


@pytest.mark.parametrize("expired", [False, True])
def test_a_map_that_no_record_names_any_more_or_yet_is_swept_at_the_next_start(
    expired: bool,
) -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.engine.truncate_topic(NAME, LATEST)
        bench.publish(b"b")
        orphan = bench.maps()[0].replace("s00000001", "s00000000" if expired else "s00000002")
        made = bench.store.inner.open(orphan, create=True)
        if expired:
            made.write([(block_key(START_MS, 0), b"v")], SYNCED)
        bench.kill()
        assert bench.values() == [b"b"]
        assert orphan not in bench.maps()


def test_a_map_of_which_one_message_is_readable_still_is_damage_and_is_kept() -> None:
    """However many messages lie before the floor, and even if it is the very first one behind
    it."""
    with Bench() as bench:
        bench.publish(b"a")
        bench.engine.truncate_topic(NAME, LATEST)
        bench.publish(b"b")
        floor = _chain(bench).record.floor
        orphan = bench.maps()[0].replace("s00000001", "s00000000")
        rows = [(block_key(START_MS - 1, 0), b"v"), (block_key(*floor), b"v")]
        bench.store.inner.open(orphan, create=True).write(rows, SYNCED)
        with pytest.raises(DataCorrupt, match="record was lost"):
            bench.kill()
        assert orphan in bench.store.inner.names(SEGMENTS)
        bench.store.inner.drop(orphan)
        bench.kill()
        assert bench.values() == [b"b"]


@pytest.mark.parametrize("merged", [True, False])
def test_a_map_that_was_merged_into_an_earlier_one_is_swept_and_no_other(merged: bool) -> None:
    with Bench(limits=small(segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything, log = bench.read(), _log(bench)
        chain = log.state.chain
        first, second = chain.record.segments[:2]
        assert second.last is not None
        with log.state.changing():
            chain.merge(first, second)
        name = bench.maps()[0].replace("s00000000", "s00000001")
        last = second.last if merged else key_after(second.last)
        bench.store.inner.open(name, create=True).write([(block_key(*last), b"v")], SYNCED)
        if not merged:
            with pytest.raises(DataCorrupt, match="record was lost"):
                bench.kill()
            bench.store.inner.drop(name)
        bench.kill()
        assert bench.read() == everything
        assert name not in bench.maps()


def test_a_map_that_the_record_names_is_not_dropped_with_those_that_it_does_not() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 3, size=1)
        everything, chain = bench.read(), _chain(bench)
        for name in bench.maps():
            chain.drop_unnamed(name)
        assert bench.read() == everything


# -- merging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("merges", [1, 2])
def test_a_read_that_meets_a_merging_loses_nothing(merges: int) -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything, (_, *later, _) = bench.read(), _chain(bench).record.segments
        scanned: list[str] = []

        def merge_now(operation: str, name: str) -> None:
            if operation == "scan" and name.startswith(SEGMENTS):
                scanned.append(name)
                if len(scanned) == 2:  # the first segment was read
                    bench.store.before = lambda operation, name: None
                    for _ in range(merges):
                        _merge(bench)

        bench.store.before = merge_now
        assert bench.read() == everything
        left = [one.number for one in _chain(bench).record.segments]
        assert len(left) == 4 - merges
        assert sorted(_chain(bench)._maps) == left, "it holds on to maps that are gone"
        for gone in later[:merges]:  # its blocks do not count as dropped ones
            with pytest.raises(StorageUnavailable, match="merged"):
                _chain(bench).scan_segment(gone, FIRST_KEY, MANY)


@pytest.mark.parametrize("blocks", [1, 2])
def test_looking_for_the_block_before_a_key_or_the_newest_ones_meets_a_merging(blocks: int) -> None:
    for look in ("before", "newest"):
        with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
            _publish_until_segments(bench, 4, size=1)
            chain = _chain(bench)
            stored = chain.scan(FIRST_KEY, KEY_END, MANY)
            newest = [block for _, block in chain.newest(MANY)]
            seen = stored[blocks]

            def merge_now(operation: str, name: str, bench: Bench = bench) -> None:
                if operation == "scan" and name.startswith(SEGMENTS):
                    bench.store.before = lambda operation, name: None
                    _merge(bench)  # the last segment was read, then these two come

            bench.store.before = merge_now
            if look == "before":
                assert chain.before((seen.time_ms, seen.last_sequence)) == stored[blocks - 1]
            else:
                assert [block for _, block in chain.newest(MANY)] == newest
            assert len(chain.record.segments) == 3


def test_a_read_continues_in_a_segment_that_was_sealed_and_merged_meanwhile() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 3, size=1)
        bench.publish(b"in the open one")
        everything, log = bench.read(), _log(bench)
        chain = log.state.chain
        assert chain.active is not None
        opened = chain.active

        def seal_and_merge_now(operation: str, name: str) -> None:
            if operation == "scan" and name.startswith(SEGMENTS):
                bench.store.before = lambda operation, name: None
                with log.state.changing():
                    log.state.load()
                    log.state.roll(bench.clock.now_ms())
                _merge(bench, len(chain.record.segments) - 3)

        bench.store.before = seal_and_merge_now
        assert bench.read() == everything
        assert opened.number not in [one.number for one in chain.record.segments]
        assert chain.segment_stored_bytes(opened) == 0


def test_what_was_merged_outlives_a_loss_of_power() -> None:
    with Bench(limits=small(segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything = bench.read()
        _merge(bench)
        bench.lose_power()
        assert bench.read() == everything


def _emptied(log: PartitionLog) -> SegmentRecord:
    """The second segment, after its only message was erased."""
    chain = log.state.chain
    second = chain.record.segments[1]
    assert second.last is not None
    with log.state.changing():
        chain.note_gaps(second.last)
        chain.rewrite(second, [], [second.last])
    return second


def test_a_segment_that_was_emptied_meanwhile_is_not_taken_for_a_merged_one() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything, log = bench.read(), _log(bench)
        chain, emptied = log.state.chain, _emptied(log)
        with log.state.changing():
            chain.resize(emptied.number)
        assert len(bench.maps()) == 3
        assert chain.scan_segment(emptied, FIRST_KEY, MANY) == []
        assert bench.read() == everything[:1] + everything[2:]


def test_noting_again_that_messages_are_missing_writes_nothing() -> None:
    with Bench() as bench:
        bench.publish(b"v")
        chain = _chain(bench)
        for forgotten, writes in (((5, 0), 1), ((5, 0), 0), ((4, 9), 0), ((5, 1), 1)):
            before = bench.store.writes
            with _log(bench).state.changing():
                chain.note_gaps(forgotten)
            assert bench.store.writes - before == writes
        assert (chain.record.gaps, chain.record.forgotten) == (True, (5, 1))


def test_messages_erased_after_an_interrupted_merge_stay_gone_in_the_next_one() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything = bench.read()
        bench.store.fail_write(1, stored=False, prefix="metadata")
        with pytest.raises(StorageUnavailable):
            _merge(bench)
        bench.kill()
        log = _log(bench)
        log.reader.load()
        _emptied(log)
        assert bench.read() == everything[:1] + everything[2:]
        _merge(bench)
        assert bench.read() == everything[:1] + everything[2:]


def test_a_segment_is_rewritten_and_merged_after_that_has_failed() -> None:
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)
        everything, chain = bench.read(), _chain(bench)
        first = chain.record.segments[0]
        assert first.last is not None
        [stored] = chain.scan_segment(first, FIRST_KEY, MANY)
        changed = block(b"changed")
        place(changed, 0, 0, 0)

        def change() -> None:
            chain.rewrite(first, [structs.replace(stored, block=changed)], [], SYNCED)

        for attempt in (change, lambda: _merge(bench)):
            bench.store.fail_write(1, stored=False, prefix=SEGMENTS)
            with pytest.raises(StorageUnavailable):
                attempt()
            attempt()
            bench.lose_power()
            assert bench.values() == [b"changed", *(one.value for one in everything[1:])]
            _log(bench).reader.load()
            chain = _chain(bench)


def test_what_an_interrupted_merging_copied_is_not_carried_on_and_can_be_reclaimed() -> None:
    """Copies of messages behind the end of a segment would survive an erasing of them."""
    with Bench(limits=small(segment_bytes=1)) as bench:
        _publish_until_segments(bench, 5, size=1)
        everything = bench.read()
        rows = _rows_of_maps(bench)
        for merged in (1, 0):
            bench.store.fail_write(1, stored=False, prefix="metadata")
            with pytest.raises(StorageUnavailable):
                _merge(bench, merged)
            bench.kill()
            _log(bench).reader.load()
            assert _rows_of_maps(bench)[merged] == rows[merged] + rows[merged + 1], "nothing copied"
        _merge(bench)
        rows = [rows[0] + rows[1], *rows[2:]]
        assert _rows_of_maps(bench) == rows
        bench.store.fail_write(1, stored=False, prefix="metadata")
        with pytest.raises(StorageUnavailable):
            _merge(bench)
        bench.kill()
        _log(bench).reader.load()
        assert _rows_of_maps(bench) != rows
        _chain(bench).reclaim(_chain(bench).record.segments[0], lambda: None)
        assert _rows_of_maps(bench) == rows
        assert bench.read() == everything


def _merge(bench: Bench, at: int = 0) -> None:
    """Merge a segment with the one after it."""
    log = _log(bench)
    with log.state.changing():
        log.state.load()
        first, second = log.state.chain.record.segments[at : at + 2]
        log.state.chain.merge(first, second)


def _rows_of_maps(bench: Bench) -> list[list[bytes]]:
    """The keys in each segment's map."""
    maps = [bench.store.inner.open(name, create=False) for name in bench.maps()]
    return [[key for key, _ in one.scan(None, None, MANY)] for one in maps]


def test_a_map_with_messages_that_no_record_names_is_damage_and_is_kept() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.publish(b"b")
        metadata = bench.store.inner.open("metadata", create=False)
        record = metadata.get(b"partition/00000001/00000")
        assert record is not None
        metadata.delete([b"partition/00000001/00000"])
        with pytest.raises(DataCorrupt, match="record was lost"):
            bench.kill()
        metadata.write([(b"partition/00000001/00000", record)], SYNCED)
        bench.kill()
        assert bench.values() == [b"a", b"b"]


def test_a_store_whose_metadata_is_gone_is_refused_not_begun_anew() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.store.inner.drop("metadata")
        with pytest.raises(DataCorrupt, match="metadata is missing"):
            bench.open()
        assert len(bench.maps()) == 1


def test_a_map_that_was_made_but_not_recorded_does_not_stop_the_next_roll() -> None:
    with Bench(limits=small(segment_bytes=1)) as bench:
        bench.publish(b"a")
        until(lambda: bench.partition().segments == 2)
        orphan = bench.maps()[-1].replace("s00000001", "s00000002")
        bench.store.inner.open(orphan, create=True).write([(block_key(1, 1), b"v")], SYNCED)
        bench.publish(b"b")
        until(lambda: bench.partition().segments == 3)
        assert bench.values() == [b"a", b"b"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_roll_whose_record_failed_loses_nothing_that_is_acknowledged_after_it(
    stored: bool,
) -> None:
    for by_cleaner in (False, True):
        with Bench(limits=small(segment_ms=HOUR_MS)) as bench:
            bench.publish(b"a")
            bench.clock.pass_ms(2 * HOUR_MS)

            def fail_now(operation: str, name: str, bench: Bench = bench) -> None:
                if operation == "compare_and_set":
                    bench.store.before = lambda operation, name: None
                    bench.store.fail_write(1, stored=stored)

            bench.store.before = fail_now
            if by_cleaner:
                bench.engine.maintenance.clean()
            else:
                with pytest.raises(StorageUnavailable):
                    bench.engine.truncate_topic(NAME, LATEST)
            assert bench.publish(b"b").base_offset == 1
            bench.restart()
            assert bench.values() == [b"a", b"b"][bench.partition().start_offset :]
            assert len(bench.maps()) == bench.partition().segments


def test_a_drop_that_failed_is_made_up_for_at_the_next_start() -> None:
    with Bench(limits=small(segment_bytes=1)) as bench:
        _publish_until_segments(bench, 4, size=1)

        def stuck(operation: str, name: str) -> None:
            if operation == "drop":
                raise StorageUnavailable("Reads do not end.")

        bench.store.before = stuck
        with suppress(StorageUnavailable):
            bench.engine.truncate_topic(NAME, LATEST)
        bench.store.before = lambda operation, name: None
        assert bench.values() == []
        bench.publish(b"next")
        bench.restart()
        assert bench.values() == [b"next"]
        assert len(bench.maps()) == bench.partition().segments


# -- the end after power loss ----------------------------------------------------------------------


def test_sealing_makes_everything_in_the_segment_durable() -> None:
    with Bench(limits=small(segment_ms=HOUR_MS)) as bench:
        bench.publish(b"a", durability=WRITTEN)
        bench.clock.pass_ms(HOUR_MS)
        bench.engine.maintenance.clean()
        assert bench.partition().segments == 2
        bench.publish(b"b", durability=SYNCED)
        bench.lose_power()
        assert bench.values() == [b"a", b"b"]
        assert bench.publish(b"c").base_offset == 2


def test_blocks_of_a_dead_owner_are_durable_once_the_next_one_seals() -> None:
    with Bench(inner=KeptStore(shared=True)) as bench:
        bench.publish(b"v", durability=WRITTEN)
        bench.kill()
        assert bench.values() == [b"v"]
        assert all(one.sealed for one in _chain(bench).record.segments)
        bench.lose_power()
        assert bench.values() == [b"v"]


def test_what_readers_can_see_is_made_durable_by_somebody_who_owns_nothing() -> None:
    with Bench() as bench:
        bench.publish(b"a", durability=WRITTEN)
        state = _log(bench).state
        with state.owner:
            state.make_durable()
        bench.lose_power()
        assert bench.values() == [b"a"]


def test_the_key_after_the_last_of_a_millisecond_is_the_first_of_the_next() -> None:
    assert key_after((7, 65_534)) == (7, 65_535)
    assert key_after((7, 65_535)) == (8, 0)


def test_a_gap_ends_the_partition_and_what_lies_behind_it_is_cut() -> None:
    with Bench() as bench:
        for i in range(10):
            bench.publish(b"%d" % i)
            bench.clock.pass_ms(1)
        keys = [block_key(one.id.time_ms, one.id.sequence) for one in bench.read()]
        bench.engine.close()
        segment = bench.store.inner.open(bench.maps()[0], create=False)
        segment.delete([keys[6], keys[8]])
        bench.engine = bench.open()
        assert _numbers(bench) == list(range(6))
        assert bench.publish(b"6").base_offset == 6
        bench.restart()
        assert _numbers(bench) == list(range(7))
        assert len(segment.scan(None, None, 1 << 30)) == 7


def test_the_id_of_a_block_that_was_cut_off_is_not_given_out_again() -> None:
    with Bench() as bench:
        for i in range(4):
            bench.publish(b"%d" % i)
            bench.clock.pass_ms(1)
        ids = [one.id for one in bench.read()]
        bench.engine.close()
        segment = bench.store.inner.open(bench.maps()[0], create=False)
        segment.delete([block_key(ids[2].time_ms, ids[2].sequence)])
        bench.clock.jump_ms(-10)
        bench.engine = bench.open()
        assert _numbers(bench) == [0, 1]
        assert bench.publish(b"2").ids()[0] > ids[3]


def test_two_blocks_with_the_same_offset_are_damage_and_nothing_is_cut() -> None:
    with Bench() as bench:
        for i in range(3):
            bench.publish(b"%d" % i)
            bench.clock.pass_ms(1)
        last = bench.read()[-1].id
        bench.engine.close()
        segment = bench.store.inner.open(bench.maps()[0], create=False)
        twin = segment.get(block_key(last.time_ms, last.sequence))
        assert twin is not None
        segment.write([(block_key(last.time_ms + 1, 0), twin)], SYNCED)
        bench.engine = bench.open()
        with pytest.raises(DataCorrupt, match="offset 2"):
            bench.read()
        assert len(segment.scan(None, None, 1 << 30)) == 4


def test_a_recorded_segment_whose_map_is_gone_is_damage_not_an_empty_partition() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.engine.close()
        bench.store.inner.drop(bench.maps()[0])
        bench.engine = bench.open()
        for call in (bench.read, bench.partition, lambda: bench.publish(b"b")):
            with pytest.raises(DataCorrupt, match="fsck"):
                call()


def test_a_damaged_partition_record_is_damage_not_an_empty_partition() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        bench.publish(b"a")
        bench.publish(b"b", partition=1)
        metadata = bench.store.inner.open("metadata", create=False)
        metadata.write([(b"partition/00000001/00000", b'{"epoch":')], SYNCED)
        bench.engine.topics.partitions.logs.clear()
        with pytest.raises(DataCorrupt, match="partition/00000001/00000"):
            bench.read()
        assert bench.values(partition=1) == [b"b"]


# -- inspecting ------------------------------------------------------------------------------------


def test_inspecting_shows_segments_and_the_newest_blocks() -> None:
    with Bench(limits=small(segment_bytes=2_500)) as bench:
        count = _publish_until_segments(bench, 4)
        bench.publish(b"last but one")
        bench.publish(b"x", b"y", producer=9)
        count += 1
        inspected = bench.engine.inspect(NAME, 0, 5)
        assert len(inspected.segments) == 4
        newest = inspected.blocks[0]
        assert (newest.base_offset, newest.count, newest.producer_id) == (count, 2, 9)
        assert MessageId.parse(newest.last_id) == bench.read()[-1].id
        assert MessageId.parse(newest.first_id) == bench.read()[-2].id
        (stored,) = bench.fetch(Position.offset(count)).blocks
        assert newest.bytes == len(stored.block)
        assert newest.segment == inspected.segments[-1].number
        assert inspected.segments[-1].last_id == newest.last_id
        assert [one.base_offset for one in inspected.blocks] == [count - i for i in range(5)]
        assert inspected.segments[-1].end_offset == count + 2
        everything = bench.engine.inspect(NAME, 0, 1_000)
        assert len(everything.blocks) == count + 1
        assert everything.epoch == 1


@pytest.mark.parametrize(("blocks", "scans"), [(0, 0), (1, 1), (2, 2)])
def test_looking_at_the_newest_blocks_reads_no_older_ones(
    monkeypatch: pytest.MonkeyPatch, blocks: int, scans: int
) -> None:
    monkeypatch.setattr(segments, "NEWEST_BYTES", 1)
    with Bench() as bench:
        for number in range(10):
            bench.publish(b"%d" % number)
        operations: list[str] = []
        bench.store.before = lambda operation, _: operations.append(operation)
        found = [stored.block for _, stored in _chain(bench).newest(blocks)]
        assert operations.count("scan") == scans
        assert [decode(one).values() for one in found] == [[b"9"], [b"8"]][:blocks]


def test_inspecting_shows_from_where_on_messages_are_readable() -> None:
    with Bench(TopicSettings(retention_ms=DAY_MS)) as bench:
        bench.publish(b"gone")
        bench.engine.truncate_topic(NAME, LATEST)
        floor = bench.engine.inspect(NAME, 0, 1).floor_id
        assert floor == str(MessageId(*_chain(bench).record.floor)) > str(MessageId(START_MS, 0))
        bench.clock.pass_ms(HOUR_MS)
        assert bench.engine.inspect(NAME, 0, 1).floor_id == floor
        bench.clock.pass_ms(DAY_MS)  # before any cleaning
        now_ms = bench.clock.now_ms()
        assert bench.engine.inspect(NAME, 0, 1).floor_id == str(MessageId(now_ms - DAY_MS, 0))


def test_inspecting_shows_of_which_transaction_a_block_is() -> None:
    with Bench() as bench:
        id = bench.engine.transactions.begin().transaction_id
        for sequence in range(2):
            new = NewBlock(0, block(b"v", producer=9, sequence=sequence))
            bench.engine.transactions.submit(NAME, [new], id).result(5)
        (shown,) = bench.engine.inspect(NAME, 0, 1).blocks
        assert (shown.write_pointer, shown.producer_id, shown.producer_sequence) == (id, 9, 1)
        assert shown.flags == Flags.TRANSACTIONAL | Flags.ISSUED


def test_inspecting_an_empty_partition_shows_nothing() -> None:
    with Bench() as bench:
        inspected = bench.engine.inspect(NAME, 0, 5)
        assert (inspected.segments, inspected.blocks) == ((), ())


# -- on a disk -------------------------------------------------------------------------------------


def test_all_of_it_holds_on_leveldb(tmp_path: Path) -> None:
    def opened() -> LevelDBStore:
        return LevelDBStore(tmp_path / "data", create=True)

    with Bench(limits=small(segment_bytes=30_000, snapshot_bytes=5_000), inner=opened()) as bench:
        for i in range(60):
            bench.publish(b"%d" % i + bytes(1_000), producer=7, sequence=i)
            bench.keep_up()
        bench.clock.pass_ms(DAY_MS)
        bench.engine.maintenance.clean()
        bench.engine.close()
        bench.store = FaultyStore(opened())
        bench.engine = bench.open()
        assert bench.partition().segments >= 3
        assert _numbers(bench) == list(range(60))
        assert bench.publish(b"59" + bytes(1_000), producer=7, sequence=59).duplicate
        assert read_header(bench.fetch(Position.offset(30)).blocks[0].block).base_offset == 30
        bench.engine.truncate_topic(NAME, Position.offset(59))
        assert _numbers(bench) == [59]
        bench.engine.delete_topic(NAME)
        assert bench.maps() == []
