"""Fetching: positions, sizes, and lower bounds."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import START_MS
from tests.log_kit import (
    EARLIEST,
    HOUR_MS,
    LATEST,
    MANY,
    NAME,
    Bench,
    Limits,
    Seen,
    block,
    seen,
    small,
)
from tests.model_log import ModelPartition
from tests.run_seed import drawn, examples
from tms.block import decode, encode, read_header
from tms.errors import DataCorrupt, OffsetOutOfRange
from tms.log.reader import ENDS_KEPT
from tms.model.ids import TIME_MS_MAX, MessageId
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position, PositionKind
from tms.model.snapshot import Isolation
from tms.model.topic import TopicSettings
from tms.model.transaction import Commit

CACHES = {"cached": 1 << 20, "uncached": 0, "half": 3_000}


def _ids_around(model: ModelPartition) -> st.SearchStrategy[MessageId]:
    """Ids of the model, their neighbours, and others."""
    others = st.builds(
        MessageId, st.integers(START_MS - 50, START_MS + 500), st.integers(0, 65_535)
    )
    if not model.ids:
        return others
    near = st.builds(
        lambda id, step: MessageId(id.time_ms, min(max(id.sequence + step, 0), 65_535)),
        st.sampled_from(model.ids),
        st.integers(-1, 1),
    )
    return st.one_of(near, others)


def _positions(model: ModelPartition) -> st.SearchStrategy[Position]:
    return st.one_of(
        st.just(EARLIEST),
        st.just(LATEST),
        st.builds(Position.at, _ids_around(model)),
        st.builds(Position.after, _ids_around(model)),
        st.builds(Position.time, st.integers(START_MS - 50, START_MS + 500)),
        st.builds(Position.offset, st.integers(0, model.end + 2)),
    )


def _in_model(bench: Bench, model: ModelPartition, position: Position, bytes_max: int) -> None:
    """Check that a read from this position returns the model's messages; those before it in its
    block are left for the reader to drop."""
    expected = model.readable(position)
    if position.kind is PositionKind.OFFSET and not model.start <= position.number <= model.end:
        with pytest.raises(OffsetOutOfRange) as refused:
            bench.read(position, bytes_max=bytes_max)
        assert refused.value.details == {"earliest": model.start, "end": model.end}
        return
    first = model.resolve(position)
    found = bench.read(position, bytes_max=bytes_max)
    assert [tuple(one) for one in found if one.offset >= first] == expected
    early = [one.offset for one in found if one.offset < first]
    assert all(model.start <= offset < first for offset in early), "unreadable messages came"


@pytest.mark.slow
@pytest.mark.parametrize("count", examples(20, 60))
def test_every_position_gives_what_the_model_says(count: int) -> None:
    settings(max_examples=count)(
        given(data=st.data(), cache=st.sampled_from([0, 2_000, 1 << 20]))(_agrees_with_the_model)
    )()


def _agrees_with_the_model(data: st.DataObject, cache: int) -> None:
    with Bench(limits=small(Limits(cache_bytes=cache), segment_bytes=4_000)) as bench:
        model = ModelPartition()
        for _ in range(data.draw(st.integers(0, 12), label="blocks")):
            bench.clock.jump_ms(data.draw(st.integers(-20, 40), label="step"))
            values: list[bytes | None] = [b"%d" % i for i in range(data.draw(st.integers(1, 5)))]
            model.published(bench.publish(*values), values, 0)
        if data.draw(st.booleans(), label="truncate"):
            before = data.draw(_positions(model), label="before")
            bench.engine.truncate_topic(NAME, before)
            model.truncate(before)
        info = bench.partition()
        assert (info.start_offset, info.end_offset) == (model.start, model.end)
        for _ in range(6):
            position = data.draw(_positions(model), label="position")
            bytes_max = data.draw(st.sampled_from([1, 1_000, MANY]))
            _in_model(bench, model, position, bytes_max)


# -- positions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_each_kind_of_position(cache_bytes: int) -> None:
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        bench.publish(b"0", b"1")
        bench.clock.pass_ms(10)
        bench.publish(b"2")
        bench.clock.pass_ms(10)
        bench.publish(b"3", b"4")
        ids = [one.id for one in bench.read()]

        def offsets(position: Position) -> list[int]:
            return [one.offset for one in bench.read(position)]

        assert offsets(EARLIEST) == [0, 1, 2, 3, 4]
        assert offsets(LATEST) == []
        assert offsets(Position.at(ids[2])) == [2, 3, 4]
        assert offsets(Position.after(ids[2])) == [3, 4]
        assert offsets(Position.after(ids[4])) == []
        assert offsets(Position.time(0)) == [0, 1, 2, 3, 4]
        assert offsets(Position.time(START_MS + 1)) == [2, 3, 4]
        assert offsets(Position.time(START_MS + 10)) == [2, 3, 4]
        assert offsets(Position.time(START_MS + 21)) == []
        assert offsets(Position.time(TIME_MS_MAX)) == []
        assert offsets(Position.offset(3)) == [3, 4]
        assert offsets(Position.offset(5)) == []


def test_a_block_that_begins_before_the_position_comes_whole() -> None:
    with Bench() as bench:
        place = bench.publish(b"0", b"1", b"2")
        for position in (Position.at(place.ids()[1]), Position.offset(1)):
            (stored,) = bench.fetch(position).blocks
            assert [one.offset for one in seen([stored])] == [0, 1, 2]


def test_the_ends_are_told_with_and_without_messages() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        assert bench.fetch(LATEST).ends == {0: 0}
        bench.publish(b"a", b"b")
        positions = [PartitionPosition(0, EARLIEST), PartitionPosition(1, LATEST)]
        assert bench.engine.fetch(NAME, positions, MANY).ends == {0: 2, 1: 0}


def test_headers_keys_and_absent_values_come_back_as_they_were_published() -> None:
    made = encode([None, b"", b"v"], [b"k", None, b""], [{"h": b"1"}, None, {}])
    with Bench(limits=Limits(cache_bytes=0)) as bench:
        bench.engine.append(NAME, [NewBlock(0, made)])
        columns = decode(bench.fetch(EARLIEST).blocks[0].block)
        assert columns.values() == [None, b"", b"v"]
        assert columns.keys() == [b"k", None, b""]
        assert columns.headers() == [{"h": b"1"}, {}, {}]


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_offsets_end_before_a_message_in_doubt_that_has_the_next_id(cache_bytes: int) -> None:
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        transactions = bench.engine.transactions
        bench.publish(b"decided")
        assert bench.engine.offsets(NAME, LATEST) == {0: 1}
        id = transactions.begin().transaction_id
        transactions.submit(NAME, [NewBlock(0, block(b"in doubt"))], id).result(5)
        assert bench.engine.offsets(NAME, LATEST) == {0: 1}
        transactions.commit(Commit(id))
        assert bench.engine.offsets(NAME, LATEST) == {0: 2}
        first, second = bench.read()
        assert second.id[:2] == (first.id.time_ms, first.id.sequence + 1)


def test_the_offset_at_a_position_is_that_of_the_first_message_from_there_on() -> None:
    with Bench() as bench:
        for i in range(3):
            bench.publish(b"%d" % i)
            bench.clock.pass_ms(10)
        bench.engine.truncate_topic(NAME, Position.offset(1))
        for position, expected in (
            (EARLIEST, 1),
            (LATEST, 3),
            (Position.time(START_MS + 11), 2),
            (Position.offset(0), 1),
            (Position.offset(2), 2),
            (Position.offset(9), 3),
        ):
            for isolation in (Isolation.COMMITTED, Isolation.UNCOMMITTED):
                assert bench.engine.offsets(NAME, position, isolation) == {0: expected}


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_offsets_do_not_end_before_a_message_in_doubt_that_has_expired(cache_bytes: int) -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS), Limits(cache_bytes=cache_bytes)) as bench:
        transactions = bench.engine.transactions
        id = transactions.begin(long=True).transaction_id
        transactions.submit(NAME, [NewBlock(0, block(b"in doubt"))], id).result(5)
        bench.clock.pass_ms(1)
        bench.publish(b"decided")
        assert bench.engine.offsets(NAME, LATEST) == {0: 0}
        bench.clock.pass_ms(HOUR_MS)
        assert bench.engine.offsets(NAME, LATEST) == {0: 2}
        assert bench.values() == [b"decided"]


def test_an_offset_that_cannot_be_read_is_told_from_one_that_is_not_there_yet() -> None:
    with Bench() as bench:
        for i in range(3):
            bench.publish(b"%d" % i)
        bench.engine.truncate_topic(NAME, Position.offset(1))
        with pytest.raises(OffsetOutOfRange, match="no longer kept"):
            bench.fetch(Position.offset(0))
        with pytest.raises(OffsetOutOfRange, match="not there yet"):
            bench.fetch(Position.offset(4))


# -- readers by offset that go on ------------------------------------------------------------------


def _gone_on(bench: Bench, offset: int, reads: int) -> tuple[list[Seen], int]:
    """The messages of so many reads, each from where the one before ended, and the last end."""
    found: list[Seen] = []
    for _ in range(reads):
        fetched = bench.fetch(Position.offset(offset), bytes_max=1)
        found += seen(fetched.blocks)
        offset = fetched.reached[0]
    return found, offset


def test_a_reader_by_offset_goes_on_without_a_search() -> None:
    with Bench(limits=Limits(cache_bytes=0)) as bench:
        for number in range(100):
            bench.publish(b"%d" % number, b"")
        _, offset = _gone_on(bench, 0, 30)
        operations: list[str] = []
        bench.store.before = lambda operation, _: operations.append(operation)
        found, _ = _gone_on(bench, offset, 10)
        assert [one.offset for one in found] == [*range(60, 80)]
        assert operations == ["scan"] * 10


def test_a_reader_by_offset_at_the_tail_takes_no_store_access() -> None:
    with Bench() as bench:
        bench.publish(b"before")
        _, offset = _gone_on(bench, 1, 1)  # it begins at the end
        operations: list[str] = []
        for number in range(5):
            bench.publish(b"%d" % number)
            bench.store.before = lambda operation, _: operations.append(operation)
            for expected in ([b"%d" % number], []):
                place = [PartitionPosition(0, Position.offset(offset))]
                cached = bench.engine.fetch_cached(NAME, place, MANY)
                if cached is None:  # the start of the messages was not known yet
                    assert number == 0
                    cached = bench.fetch(Position.offset(offset))
                    operations.clear()
                assert [one.value for one in seen(cached.blocks)] == expected
                offset = cached.reached[0]
            bench.store.before = lambda *_: None
        assert operations == []


def test_more_readers_by_offset_than_are_remembered_read_the_same() -> None:
    readers = ENDS_KEPT + 3
    with Bench(limits=Limits(cache_bytes=0)) as bench:
        for number in range(2 * readers):
            bench.publish(b"%d" % number)
        at = [*range(readers)]
        for _ in range(3):
            for reader, offset in enumerate(at):
                found, at[reader] = _gone_on(bench, offset, 1)
                assert [one.value for one in found] == [b"%d" % offset]
        log = bench.engine.topics.partitions.logs[1, 0]
        assert len(log.reader._read_to) == ENDS_KEPT


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_an_offset_at_which_a_read_ended_is_refused_once_its_messages_are_gone(
    cache_bytes: int,
) -> None:
    limits = Limits(cache_bytes=cache_bytes)
    with Bench(TopicSettings(retention_ms=HOUR_MS), limits) as bench:
        for number in range(6):
            bench.publish(b"%d" % number)
            bench.clock.pass_ms(10)
        for offset in (0, 1):
            _gone_on(bench, offset, 1)
        bench.engine.truncate_topic(NAME, Position.offset(2))
        with pytest.raises(OffsetOutOfRange):
            _gone_on(bench, 1, 1)
        found, _ = _gone_on(bench, 2, 1)
        assert [one.offset for one in found] == [2]
        bench.clock.pass_ms(HOUR_MS - 10)
        with pytest.raises(OffsetOutOfRange):
            _gone_on(bench, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", examples(20, 60))
def test_readers_by_offset_find_what_the_model_says_while_it_changes(count: int) -> None:
    settings(max_examples=count)(
        given(data=st.data(), cache=st.sampled_from([0, 2_000, 1 << 20]))(_readers_go_on)
    )()


def _readers_go_on(data: st.DataObject, cache: int) -> None:
    steps = st.sampled_from(["publish", "truncate", *["read"] * 4])
    with Bench(limits=small(Limits(cache_bytes=cache), segment_bytes=4_000)) as bench:
        model = ModelPartition()
        readers = [0, 0, 0]
        for step in data.draw(st.lists(steps, max_size=30), label="steps"):
            if step == "publish":
                bench.clock.jump_ms(data.draw(st.integers(-5, 20), label="passed"))
                values: list[bytes | None] = [b"v"] * data.draw(st.integers(1, 4), label="values")
                model.published(bench.publish(*values), values, 0)
            elif step == "truncate":
                before = Position.offset(data.draw(st.integers(0, model.end), label="before"))
                bench.engine.truncate_topic(NAME, before)
                model.truncate(before)
            else:
                reader = data.draw(st.integers(0, 2), label="reader")
                position = Position.offset(readers[reader])
                bytes_max = data.draw(st.sampled_from([1, 1_000]), label="bytes")
                _in_model(bench, model, position, MANY)
                if model.start <= position.number:
                    reached = bench.fetch(position, bytes_max=bytes_max).reached[0]
                    assert position.number < reached or reached == model.end
                    readers[reader] = reached
                else:
                    readers[reader] = model.start


# -- how much --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_a_fetch_is_bounded_in_bytes_but_brings_at_least_one_block(cache_bytes: int) -> None:
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        for _ in range(10):
            bench.publish(bytes(1_000))
        for bytes_max in (-1, 0, 1, 100):
            assert len(bench.fetch(EARLIEST, bytes_max=bytes_max).blocks) == 1
        assert 3 <= len(bench.fetch(EARLIEST, bytes_max=5_000).blocks) <= 4
        assert len(bench.fetch(EARLIEST).blocks) == 10


def test_partitions_share_the_bytes_of_a_fetch_and_none_is_lost() -> None:
    with Bench(TopicSettings(partitions=3)) as bench:
        for i in range(30):
            bench.publish(b"%d" % i + bytes(1_000), partition=i % 3)
        positions = [PartitionPosition(partition, EARLIEST) for partition in range(3)]
        found = 0
        while blocks := (fetched := bench.engine.fetch(NAME, positions, 4_000)).blocks:
            found += len(blocks)
            positions = [PartitionPosition(p, fetched.next[p]) for p, _ in positions]
        assert found == 30


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_latest_is_resolved_also_when_other_partitions_used_up_the_bytes(cache_bytes: int) -> None:
    with Bench(TopicSettings(partitions=2), Limits(cache_bytes=cache_bytes)) as bench:
        bench.publish(bytes(2_000))
        bench.publish(b"old", partition=1)
        positions = [PartitionPosition(0, EARLIEST), PartitionPosition(1, LATEST)]
        fetched = bench.engine.fetch(NAME, positions, 1)
        assert (fetched.ends, fetched.reached) == ({0: 1, 1: 1}, {0: 1, 1: 1})
        bench.publish(b"new", partition=1)
        assert [one.value for one in bench.read(fetched.next[1], partition=1)] == [b"new"]


# -- lower bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
def test_expired_messages_are_unreadable_at_once_from_every_position(cache_bytes: int) -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS), Limits(cache_bytes=cache_bytes)) as bench:
        old = bench.publish(b"old").ids()[0]
        bench.clock.pass_ms(HOUR_MS)
        assert bench.values() == [b"old"], "it has exactly its retention"
        bench.publish(b"new")
        bench.clock.pass_ms(1)
        for position in (EARLIEST, Position.at(old), Position.time(0)):
            assert bench.values(position) == [b"new"]
        with pytest.raises(OffsetOutOfRange):
            bench.read(Position.offset(0))
        info = bench.partition()
        assert (info.start_offset, info.end_offset) == (1, 2)


@pytest.mark.parametrize("cache_bytes", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("keep_from", range(6))
def test_truncation_within_a_block_is_exact_for_every_reader(
    keep_from: int, cache_bytes: int
) -> None:
    values: list[bytes | None] = [b"0", None, b"2", b"", b"4"]
    made = encode(values, [b"k%d" % i for i in range(5)], [{"n": b"%d" % i} for i in range(5)])
    with Bench(limits=Limits(cache_bytes=cache_bytes)) as bench:
        place = bench.engine.append(NAME, [NewBlock(0, made)])[0]
        bench.publish(b"5")
        before = (
            Position.offset(keep_from)
            if keep_from % 2
            else Position.at([*place.ids(), bench.read()[-1].id][keep_from])
        )
        bench.engine.truncate_topic(NAME, before)
        everything = [
            Seen(i, id, value)
            for i, (id, value) in enumerate(zip(place.ids(), values, strict=True))
        ]
        for _ in range(2):
            found = bench.read()
            assert found[:-1] == everything[keep_from:]
            assert found[-1].offset == 5
            assert bench.partition().start_offset == keep_from
            if keep_from < 5:
                columns = decode(bench.fetch(EARLIEST).blocks[0].block)
                assert columns.keys() == [b"k%d" % i for i in range(keep_from, 5)]
                assert columns.headers() == [{"n": b"%d" % i} for i in range(keep_from, 5)]
            bench.restart()


def test_who_has_just_become_the_owner_knows_what_was_truncated() -> None:
    with Bench() as bench:
        for value in (b"0", b"1", b"2"):
            bench.publish(value)
        bench.engine.truncate_topic(NAME, Position.offset(2))
        before = bench.engine.topics.fetcher.kept(NAME, [0])
        bench.restart()
        assert bench.engine.topics.fetcher.kept(NAME, [0])[0].floor == before[0].floor > (0, 0)


def test_what_truncation_leaves_of_a_block_still_says_who_published_it() -> None:
    with Bench() as bench:
        bench.publish(b"a", producer=7, sequence=0)
        bench.publish(b"b", b"c", producer=7, sequence=1)
        bench.engine.truncate_topic(NAME, Position.offset(2))
        (stored,) = bench.fetch(EARLIEST).blocks
        header = read_header(stored.block)
        assert (header.producer_id, header.producer_sequence) == (7, 1)


def test_truncating_again_further_back_or_out_of_range_changes_nothing_more() -> None:
    with Bench() as bench:
        for i in range(5):
            bench.publish(b"%d" % i)
        for offset, expected in ((3, 3), (1, 3), (3, 3), (0, 3), (4, 4), (99, 5)):
            bench.engine.truncate_topic(NAME, Position.offset(offset))
            info = bench.partition()
            assert (info.start_offset, info.end_offset) == (expected, 5)
        bench.engine.truncate_topic(NAME, EARLIEST)
        bench.publish(b"5")
        assert bench.values() == [b"5"]


def test_truncation_does_not_touch_what_comes_later_or_other_partitions() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        bench.publish(b"a")
        bench.publish(b"b", partition=1)
        info = bench.engine.truncate_topic(NAME, Position.at(bench.read()[0].id))
        assert [one.end_offset for one in info.partition_infos] == [1, 1]
        assert bench.values() == [b"a"]
        bench.engine.truncate_topic(NAME, LATEST)
        bench.publish(b"c")
        assert (bench.values(), bench.values(partition=1)) == ([b"c"], [])


SEGMENT_BYTES = (1, 2_000, 1 << 20)
DAMAGED = (
    *({0}, {7}, {38}, {0, 1, 2}, {20, 21, 22, 23}, {3, 5, 7, 9}),
    *(set(range(1, 39, 2)), {*range(39)}),
)


@pytest.mark.parametrize(
    "case", drawn("damaged blocks", product(DAMAGED, SEGMENT_BYTES), 8), ids=str
)
def test_every_offset_outside_of_damaged_blocks_is_found(case: tuple[set[int], int]) -> None:
    damaged, segment_bytes = case
    with Bench(limits=small(Limits(cache_bytes=0), segment_bytes=segment_bytes)) as bench:
        sizes = [1 + number % 3 for number in range(40)]
        for number, size in enumerate(sizes):
            bench.clock.pass_ms(number % 2)  # otherwise in the millisecond of the one before
            bench.publish(*[b"%d" % number] * size)
        bench.restart()
        bench.fetch(LATEST)  # its end is known now
        damage(bench, damaged)
        offset = 0
        for number, size in enumerate(sizes):
            for place in range(size):
                position = Position.offset(offset + place)
                if number in damaged:
                    with pytest.raises(DataCorrupt):
                        bench.fetch(position, bytes_max=1)
                else:
                    found = seen(bench.fetch(position, bytes_max=1).blocks)
                    assert {one.value for one in found} == {b"%d" % number}
                    assert found[-1].offset == offset + size - 1
            offset += size


def test_an_offset_is_looked_for_in_bounded_time_where_no_row_can_be_read() -> None:
    with Bench(limits=Limits(cache_bytes=0)) as bench:
        for number in range(2_000):
            bench.publish(b"%d" % number)
        bench.restart()
        bench.fetch(LATEST)  # its end is known now
        damage(bench, set(range(5, 1_999)))
        operations: list[str] = []
        bench.store.before = lambda operation, _: operations.append(operation)
        with pytest.raises(DataCorrupt):
            bench.fetch(Position.offset(1_000), bytes_max=1)
        assert len(operations) < 10_000
        assert bench.fetch(Position.offset(1_999), bytes_max=1).blocks
        assert bench.fetch(Position.offset(4), bytes_max=1).blocks


def damage(bench: Bench, numbers: set[int]) -> None:
    """Damage blocks, by their places in the partition."""
    rows = [
        (name, key)
        for name in bench.maps()
        for key, _ in bench.store.inner.open(name, create=False).scan(None, None, 1 << 30)
    ]
    for number in numbers:
        bench.store.corrupt_value(*rows[number])
