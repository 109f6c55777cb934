"""Idempotent producers: recognised blocks, refused blocks, and restarts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.log_kit import DAY_MS, EARLIEST, NAME, SYNCED, WRITTEN, Bench, Limits, block, small
from tms.block import BlockHeader
from tms.errors import DataCorrupt, OutOfOrderSequence, Overloaded, SequenceReused
from tms.log import partition, producers, recovery
from tms.log.producers import (
    BLOCKS_REMEMBERED,
    REMEMBERED_S,
    SEQUENCE_LIMIT,
    ProducerWindow,
)
from tms.log.records import ProducersRecord, RememberedBlock
from tms.model import keys
from tms.model.message import KEY_BIT, NewBlock, StoredBlock
from tms.model.topic import TopicSettings


def _publish_many(bench: Bench, count: int, producer: int = 7, start: int = 0) -> None:
    for sequence in range(start, start + count):
        bench.publish(b"%d" % sequence, producer=producer, sequence=sequence)


def _snapshot(bench: Bench) -> None:
    state = bench.engine.topics.partitions.opened()[-1].state
    with state.changing():
        state.load()
        state.snapshot()


# -- the window itself -----------------------------------------------------------------------------


def _header(sequence: int, crc: int = 1, producer: int = 7) -> BlockHeader:
    return BlockHeader(0, 1, crc, 0, 0, producer, sequence)


def _stored(sequence: int, crc: int = 1) -> RememberedBlock:
    return RememberedBlock(sequence, crc, 1_000 + sequence, 0, 1, sequence)


def _window(producers_max: int, clock: ManualClock | None = None) -> ProducerWindow:
    return ProducerWindow(producers_max, (clock or ManualClock()).monotonic_s)


def _known(window: ProducerWindow, producer: int) -> list[RememberedBlock]:
    """The remembered blocks of a producer; the window stays unchanged."""
    known = window.dump().get(str(producer)) or window.forgotten[0].find(producer)[1]
    return [*known[-BLOCKS_REMEMBERED:]]


def _remember(window: ProducerWindow, producer: int, block: RememberedBlock) -> None:
    window.remember(_header(0, producer=producer), block)


def _loaded(window: ProducerWindow, loading: ProducerWindow) -> ProducerWindow:
    """The second window, loaded with the snapshot of the first."""
    [pages] = (kind.to_store(1) for kind in window.forgotten)
    loading.load(ProducersRecord((1, 1), 1, window.dump(), 1, pages.names), dict(pages.new))
    return loading


def test_sequences_wrap_around_at_two_to_the_32() -> None:
    window = _window(10)
    for sequence in range(SEQUENCE_LIMIT - 3, SEQUENCE_LIMIT):
        _remember(window, 7, _stored(sequence))
    assert window.find(_header(0)) is None
    _remember(window, 7, _stored(0))
    assert window.find(_header(1)) is None
    assert window.find(_header(SEQUENCE_LIMIT - 1)) == _stored(SEQUENCE_LIMIT - 1)
    with pytest.raises(SequenceReused):
        window.find(_header(SEQUENCE_LIMIT - 4))
    for ahead in (2, 1 + SEQUENCE_LIMIT // 2):
        with pytest.raises(OutOfOrderSequence):
            window.find(_header(ahead))
    with pytest.raises(SequenceReused):
        window.find(_header(2 + SEQUENCE_LIMIT // 2))


def test_the_window_is_bounded_in_blocks_and_in_producers() -> None:
    window = _window(3)
    for sequence in range(100):
        _remember(window, 1, _stored(sequence))
    for producer in (2, 3, 1, 4):
        _remember(window, producer, _stored(100 if producer == 1 else 0))
    dumped = window.dump()
    assert len(window) == 3
    assert list(dumped) == ["3", "1", "4"], "not the longest silent one was forgotten"
    assert len(dumped["1"]) == BLOCKS_REMEMBERED


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), max_size=80))
def test_a_dumped_window_is_the_same_when_loaded(published: list[tuple[int, int]]) -> None:
    window, sequences = _window(3), dict.fromkeys(range(6), 0)
    for producer, crc in published:
        window.replay(_header(0, producer=producer), _stored(sequences[producer], crc))
        sequences[producer] += 1
    loaded = _loaded(window, _window(3))
    assert loaded.dump() == window.dump()
    assert list(loaded.dump()) == list(window.dump())
    for producer in range(1, 6):
        assert _known(loaded, producer) == _known(window, producer)


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=80),
)
def test_a_small_window_answers_like_an_endless_one(
    producers_max: int, page: int, published: list[tuple[int, bool, bool]]
) -> None:
    small, endless, last = _window(producers_max), _window(1_000), dict[int, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PAGE_PRODUCERS", page)
        for producer, keyed, stores in published:
            producer += KEY_BIT + 10 if keyed else 0
            for window in (small, endless):
                assert window.find(_header(last.get(producer, -1) + 1, producer=producer)) is None
                _remember(window, producer, _stored(last.get(producer, -1) + 1))
            last[producer] = last.get(producer, -1) + 1
            if stores:
                stored = small.forgotten[0].to_store(1)
                assert len({*stored.names}) == len(stored.names)
                small.forgotten[0].stored()
            for other in last:
                assert _known(small, other) == _known(endless, other)


def test_idempotency_keys_do_not_push_producers_out() -> None:
    window = _window(3)
    for producer in (1, 2, 3, *(KEY_BIT | key for key in range(100))):
        _remember(window, producer, _stored(0))
    assert [*map(int, window.dump())] == [1, 2, 3, *(KEY_BIT | key for key in (97, 98, 99))]


def test_a_producer_that_was_pushed_out_is_forgotten_after_its_time() -> None:
    clock = ManualClock()
    window = _window(1, clock)
    for producer in (1, 2, 3):
        _remember(window, producer, _stored(0))
    window.forgotten[0].to_store(1)
    clock.jump_ms(10 * DAY_MS)
    clock.pass_ms(round(REMEMBERED_S * 1_000) - 1)
    window.forgotten[0].to_store(1)
    assert _known(window, 1) == [_stored(0)]
    window.forgotten[0].to_store(1)
    clock.pass_ms(round(REMEMBERED_S * 1_000))
    pages = window.forgotten[0].to_store(1)
    assert pages.names == () and len(pages.gone) >= 1
    assert _known(window, 2) == []
    with pytest.raises(OutOfOrderSequence) as refused:
        window.find(_header(1, producer=2))
    assert refused.value.details["expected"] == 0


def test_a_full_memory_refuses_producers_that_it_may_have_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "ROWS_MAX", 3)
    clock = ManualClock()
    window = _window(1, clock)
    for producer in range(4):
        assert window.find(_header(0, producer=producer)) is None
        _remember(window, producer, _stored(0))
    for producer in (0, 9):
        with pytest.raises(Overloaded, match="limit") as refused:
            window.find(_header(0, producer=producer))
        assert refused.value.details["retry_after_s"] > 0
    assert window.find(_header(0, producer=3)) == _stored(0)
    window.forgotten[0].to_store(1)
    clock.pass_ms(round(REMEMBERED_S * 1_000))
    assert window.find(_header(0, producer=9)) is None


def test_reading_the_log_drops_the_oldest_rows_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "ROWS_MAX", 3)
    monkeypatch.setattr(producers, "PAGE_PRODUCERS", 1)
    window = _window(1)
    for producer in range(10):
        window.replay(_header(0, producer=producer), _stored(0))
    assert [producer for producer in range(9) if _known(window, producer)] == [6, 7, 8]


def test_a_key_of_the_previous_release_is_recognised() -> None:
    window = _window(3)
    _remember(window, 77, _stored(0))
    assert window.find(_header(0, producer=77 | KEY_BIT)) == _stored(0)
    with pytest.raises(SequenceReused):
        window.find(_header(0, crc=9, producer=77 | KEY_BIT))


# -- in the log ------------------------------------------------------------------------------------


def test_a_repeated_block_gets_the_place_of_the_first_one() -> None:
    with Bench() as bench:
        first = [bench.publish(b"a", b"b", producer=7, sequence=i) for i in range(3)]
        again = [bench.publish(b"a", b"b", producer=7, sequence=i) for i in range(3)]
        for one, other in zip(first, again, strict=True):
            assert not one.duplicate
            assert other.duplicate
            assert other.ids() == one.ids()
            assert other.base_offset == one.base_offset
        assert len(bench.values()) == 6


def test_a_block_repeated_within_one_request_or_group_is_stored_once() -> None:
    with Bench() as bench:
        blocks = [NewBlock(0, block(b"a", producer=7)) for _ in range(3)]
        places = bench.engine.append(NAME, blocks)
        assert [one.duplicate for one in places] == [False, True, True]
        assert {one.base_offset for one in places} == {0}
        assert bench.values() == [b"a"]


def test_producers_do_not_disturb_each_other_nor_blocks_without_one() -> None:
    with Bench() as bench:
        for sequence in range(3):
            for producer in (1, 2, 2**64 - 1):
                assert not bench.publish(b"v", producer=producer, sequence=sequence).duplicate
            assert not bench.publish(b"v").duplicate
        assert len(bench.values()) == 12


def test_a_producer_has_a_sequence_of_its_own_in_each_partition() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        for partition in (0, 1):
            for sequence in (0, 1):
                place = bench.publish(b"v", partition=partition, producer=7, sequence=sequence)
                assert not place.duplicate


def test_a_gap_is_refused_names_what_is_expected_and_can_be_left() -> None:
    with Bench() as bench:
        bench.publish(b"0", producer=7, sequence=0)
        with pytest.raises(OutOfOrderSequence) as refused:
            bench.publish(b"2", producer=7, sequence=2)
        assert refused.value.details["expected"] == 1
        assert refused.value.retriable
        bench.publish(b"1", producer=7, sequence=1)
        assert not bench.publish(b"2", producer=7, sequence=2).duplicate
        assert bench.values() == [b"0", b"1", b"2"]


def test_what_follows_a_gap_in_the_same_request_is_not_stored() -> None:
    with Bench() as bench:
        requests = [
            NewBlock(0, block(b"%d" % sequence, producer=7, sequence=sequence))
            for sequence in (0, 2, 3)
        ]
        with pytest.raises(OutOfOrderSequence):
            bench.engine.append(NAME, requests)
        assert bench.values() == [b"0"]
        _publish_many(bench, 3, start=1)
        assert bench.values() == [b"0", b"1", b"2", b"3"]


def test_a_new_producer_begins_at_zero() -> None:
    with Bench() as bench:
        with pytest.raises(OutOfOrderSequence) as refused:
            bench.publish(b"v", producer=7, sequence=1)
        assert refused.value.details["expected"] == 0
        assert bench.values() == []


@pytest.mark.parametrize("values", [(b"other",), (b"0", b"0")])
def test_another_block_under_a_used_sequence_is_refused(values: tuple[bytes, ...]) -> None:
    with Bench() as bench:
        _publish_many(bench, 2)
        with pytest.raises(SequenceReused) as refused:
            bench.publish(*values, producer=7, sequence=0)
        assert not refused.value.retriable
        bench.publish(b"2", producer=7, sequence=2)
        assert bench.values() == [b"0", b"1", b"2"]


def test_a_repetition_from_long_ago_is_refused_not_stored_again() -> None:
    with Bench() as bench:
        _publish_many(bench, BLOCKS_REMEMBERED + 1)
        with pytest.raises(SequenceReused):
            bench.publish(b"0", producer=7, sequence=0)
        assert bench.publish(b"1", producer=7, sequence=1).duplicate


def test_a_forgotten_producer_is_refused_and_begins_anew_under_another_id() -> None:
    with Bench(limits=small(producers=2)) as bench:
        for producer in (1, 2, 3):
            bench.publish(b"v", producer=producer)
        _snapshot(bench)
        bench.clock.pass_ms(round(REMEMBERED_S * 1_000))
        _snapshot(bench)
        with pytest.raises(OutOfOrderSequence):
            bench.publish(b"v", producer=1, sequence=1)
        assert not bench.publish(b"v", producer=4).duplicate


# -- over restarts ---------------------------------------------------------------------------------

SNAPSHOTS = {
    "no snapshot": Limits(),
    "a snapshot now and then": small(snapshot_bytes=2_500),
    "a snapshot after each block": small(snapshot_bytes=1),
    "several segments": small(segment_bytes=2_000),
}


@pytest.mark.parametrize("limits", SNAPSHOTS.values(), ids=SNAPSHOTS)
@pytest.mark.parametrize("how", ["restart", "kill", "lose_power"])
def test_after_a_restart_repetitions_are_still_recognised(how: str, limits: Limits) -> None:
    with Bench(limits=limits) as bench:
        places = {}
        for sequence in range(20):
            for producer in (7, 8):
                places[producer, sequence] = bench.publish(
                    b"%d" % sequence, producer=producer, sequence=sequence
                )
        getattr(bench, how)()
        for (producer, sequence), first in places.items():
            if sequence < 20 - BLOCKS_REMEMBERED:
                continue
            again = bench.publish(b"%d" % sequence, producer=producer, sequence=sequence)
            assert again.duplicate
            assert again.ids() == first.ids()
        with pytest.raises(SequenceReused):
            bench.publish(b"other", producer=7, sequence=19)
        with pytest.raises(OutOfOrderSequence):
            bench.publish(b"v", producer=7, sequence=21)
        assert bench.publish(b"20", producer=7, sequence=20).base_offset == 40
        assert len(bench.values()) == 41


@settings(max_examples=25)
@given(
    plan=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([WRITTEN, SYNCED]), st.booleans()),
        max_size=30,
    ),
    snapshot_bytes=st.sampled_from([1, 1_500, 1 << 20]),
)
def test_after_any_crash_a_producer_that_repeats_everything_leaves_one_copy(
    plan: list[tuple[int, object, bool]], snapshot_bytes: int
) -> None:
    with Bench(limits=small(snapshot_bytes=snapshot_bytes, segment_bytes=6_000)) as bench:
        sent: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
        for producer, durability, crash in plan:
            value = b"%d/%d" % (producer, len(sent[producer]))
            sent[producer].append(value)
            bench.publish(
                value,
                producer=producer,
                sequence=len(sent[producer]) - 1,
                durability=durability,  # type: ignore[arg-type]
            )
            if crash:
                bench.kill()
        bench.kill()
        for producer, values in sent.items():
            newest = list(enumerate(values))[-BLOCKS_REMEMBERED:]
            for sequence, value in newest:
                assert bench.publish(value, producer=producer, sequence=sequence).duplicate
        stored = bench.values()
        assert len(stored) == len(set(stored)) == len(plan)


def test_a_producer_goes_on_after_power_loss_with_what_was_lost() -> None:
    with Bench() as bench:
        for sequence in range(6):
            bench.publish(
                b"%d" % sequence,
                producer=7,
                sequence=sequence,
                durability=SYNCED if sequence < 3 else WRITTEN,
            )
        bench.lose_power()
        for sequence in range(6):
            again = bench.publish(b"%d" % sequence, producer=7, sequence=sequence)
            assert again.duplicate is (sequence < 3)
        assert bench.values() == [b"%d" % i for i in range(6)]


def test_a_snapshot_that_names_a_lost_block_is_not_believed() -> None:
    with Bench(limits=small(snapshot_bytes=1)) as bench:
        _publish_many(bench, 3)
        bench.clock.pass_ms(1)
        _publish_many(bench, 1, start=3)
        bench.engine.maintenance.clean()
        bench.engine.close()
        (segment,) = bench.maps()
        lost = bench.store.inner.open(segment, create=False)
        newest = lost.scan(None, None, 1, reverse=True)[0][0]
        assert bench.store.inner.open("metadata", create=False).get(keys.producers_key(1, 0))
        lost.delete([newest])
        bench.engine = bench.open()
        assert bench.publish(b"2", producer=7, sequence=2).duplicate
        assert not bench.publish(b"3", producer=7, sequence=3).duplicate
        assert bench.values() == [b"0", b"1", b"2", b"3"]


def test_a_snapshot_behind_a_truncation_that_outlived_the_messages_is_believed() -> None:
    """It names no block: the last ids are those that the truncation reached."""
    with Bench(TopicSettings(durability=WRITTEN)) as bench:
        bench.publish(b"7", producer=7, sequence=0)
        bench.engine.topics.log(NAME, 0).seal(bench.clock.now_ms())
        bench.publish(b"8", producer=8, sequence=0)
        bench.clock.pass_ms(10)
        lost = bench.publish(b"lost with the power")
        bench.engine.truncate_topic(NAME, EARLIEST.time(lost.time_ms))
        bench.lose_power()
        bench.engine.topics.log(NAME, 0)
        _snapshot(bench)  # as closing takes one
        bench.restart()
        assert bench.publish(b"7", producer=7, sequence=0).duplicate
        assert not bench.publish(b"8", producer=8, sequence=0).duplicate
        assert bench.values() == [b"8"]


def test_opening_reads_only_what_came_after_the_snapshot() -> None:
    with Bench(limits=small(snapshot_bytes=40_000)) as bench:
        for i in range(200):
            bench.publish(bytes(1_000), producer=7, sequence=i)
        bench.kill()
        read: list[int] = []
        inner_scan = type(bench.store.inner.open(bench.maps()[0], create=False)).scan

        def counting(self: object, *arguments: object) -> list[tuple[bytes, bytes]]:
            rows: list[tuple[bytes, bytes]] = inner_scan(self, *arguments)  # type: ignore[arg-type]
            read.extend(len(value) for _, value in rows if value.startswith(b"TMSB"))
            return rows

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tms.store.memory.MemoryMap.scan", counting)
            assert bench.publish(bytes(1_000), producer=7, sequence=199).duplicate
        assert sum(read) < 50_000


def test_opening_reads_no_more_than_so_many_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "SNAPSHOT_BLOCKS", 50)
    with Bench() as bench:
        for i in range(180):
            bench.publish(b"x", producer=7, sequence=i)
            bench.keep_up()
        bench.kill()
        read: list[StoredBlock] = []
        header_of = recovery.header_of

        def counting(stored: StoredBlock) -> BlockHeader:
            read.append(stored)
            return header_of(stored)

        monkeypatch.setattr(recovery, "header_of", counting)
        assert bench.publish(b"x", producer=7, sequence=179).duplicate
    assert 0 < len(read) <= 60


@pytest.mark.parametrize(("size", "blocks"), [(1_000, 16_384), (1, 20)])
def test_many_restarts_do_not_make_opening_slower(
    monkeypatch: pytest.MonkeyPatch, size: int, blocks: int
) -> None:
    monkeypatch.setattr(partition, "SNAPSHOT_BLOCKS", blocks)
    with Bench(limits=small(snapshot_bytes=50_000)) as bench:
        for i in range(60):
            bench.publish(bytes(size), producer=7, sequence=i)
            bench.engine.maintenance.clean()
            bench.kill()
        metadata = bench.store.inner.open("metadata", create=False)
        assert metadata.get(keys.producers_key(1, 0)) is not None, "no snapshot was ever taken"


def test_closing_leaves_little_to_read_for_the_next_start() -> None:
    with Bench() as bench:
        for i in range(20):
            bench.publish(bytes(100_000), producer=7, sequence=i)
        bench.restart()
        metadata = bench.store.inner.open("metadata", create=False)
        assert metadata.get(keys.producers_key(1, 0)) is not None
        assert bench.publish(bytes(100_000), producer=7, sequence=19).duplicate


def test_a_producer_that_was_silent_over_a_roll_is_still_known() -> None:
    with Bench(limits=small(segment_ms=1_000)) as bench:
        bench.publish(b"v", producer=7)
        for _ in range(3):
            bench.clock.pass_ms(DAY_MS // 24)
            bench.publish(b"other")
            bench.engine.maintenance.clean()
        assert bench.partition().segments > 1
        bench.restart()
        assert bench.publish(b"v", producer=7).duplicate


# -- producers that were pushed out ----------------------------------------------------------------


def _crowd(bench: Bench, first: int, count: int = 20) -> None:
    """Publish by other producers; each pushes one out."""
    for producer in range(first, first + count):
        bench.publish(b"other", producer=producer)


@pytest.mark.parametrize("snapshot_bytes", [1, 2_500, 1 << 20])
@pytest.mark.parametrize("then", ["nothing", "kill", "restart", "lose_power"])
def test_a_producer_that_was_pushed_out_is_known_whatever_happens(
    then: str, snapshot_bytes: int
) -> None:
    with Bench(limits=small(producers=2, snapshot_bytes=snapshot_bytes)) as bench:
        first = [bench.publish(b"%d" % i, producer=7, sequence=i) for i in range(3)]
        for around in (100, 200):
            _crowd(bench, around)
            bench.engine.maintenance.clean()
            getattr(bench, then, lambda: None)()
            again = [bench.publish(b"%d" % i, producer=7, sequence=i) for i in range(3)]
            assert [one.duplicate for one in again] == [True] * 3
            assert [one.ids() for one in again] == [one.ids() for one in first]
        _crowd(bench, 300)
        assert not bench.publish(b"3", producer=7, sequence=3).duplicate
        assert bench.publish(b"other", producer=100).duplicate


def test_pages_of_forgotten_producers_go_with_their_time_and_their_topic() -> None:
    with Bench(limits=small(producers=2, snapshot_bytes=1)) as bench:
        pages = bench.store.inner.open("metadata", create=False)

        def names() -> list[bytes]:
            return [key for key, _ in pages.scan(b"forgotten/", b"forgotten0", 1 << 20)]

        _crowd(bench, 100)
        _snapshot(bench)
        bench.restart()
        _crowd(bench, 200)
        _snapshot(bench)
        bench.restart()
        assert 1 <= len(names()) <= 2
        bench.publish(b"v")
        _snapshot(bench)
        bench.clock.pass_ms(round(REMEMBERED_S * 1_000))
        _snapshot(bench)
        assert names() == []
        _crowd(bench, 300)
        _snapshot(bench)
        bench.restart()
        assert names()
        bench.engine.delete_topic(NAME)
        bench.engine.maintenance.clean()
        assert names() == []


def test_a_page_that_is_damaged_is_told() -> None:
    with Bench(limits=small(producers=2, snapshot_bytes=1)) as bench:
        _crowd(bench, 100)
        _snapshot(bench)
        bench.engine.close()
        metadata = bench.store.inner.open("metadata", create=False)
        [(key, _)] = metadata.scan(b"forgotten/", b"forgotten0", 1 << 20)
        metadata.write([(key, b'{"rows":"AAAA"}')], WRITTEN)
        bench.engine = bench.open()
        with pytest.raises(DataCorrupt, match="fsck"):
            bench.publish(b"v")
