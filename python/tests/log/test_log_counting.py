"""Producers whose sequences count messages: Kafka's rules, appends of several blocks, restarts."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.log_kit import (
    DAY_MS,
    EARLIEST,
    NAME,
    SYNCED,
    WRITTEN,
    Bench,
    Limits,
    block,
    small,
)
from tests.owners_kit import Processes
from tms.block import (
    MESSAGE_SEQUENCES,
    BlockHeader,
    Flags,
    count_messages,
    flags_of,
    place,
    read_header,
    thin,
)
from tms.cli.inspect import flags_text
from tms.errors import (
    Invalid,
    OutOfOrderSequence,
    Overloaded,
    SequenceReused,
    StaleEpoch,
    TMSError,
)
from tms.log import counting, producers
from tms.log.counting import APPEND_BLOCKS_MAX, APPENDS_REMEMBERED, BLOCKS_MAX
from tms.log.producers import COUNTING_S, REMEMBERED_S, ProducerWindow
from tms.log.records import ProducersRecord, RememberedBlock
from tms.log.staging import reference_to
from tms.model.message import KEY_BIT, Appended, NewBlock, StoredBlock
from tms.model.topic import TopicSettings
from tms.store.base import pages

FULL = 3  # messages of a full block, in tests of appends of several blocks


def _counted(*values: bytes, sequence: int, producer: int = 7, epoch: int = 0) -> bytearray:
    made = block(*values)
    count_messages(made, producer, epoch, sequence)
    return made


def _publish(bench: Bench, *blocks: bytearray, durability: object = None) -> list[Appended]:
    new = [NewBlock(0, one) for one in blocks]
    return bench.engine.append(NAME, new, durability, 10)  # type: ignore[arg-type]


def _split(values: Sequence[bytes], sequence: int, producer: int = 7) -> list[bytearray]:
    """The blocks of an append."""
    return [
        _counted(*values[at : at + FULL], sequence=(sequence + at) % MESSAGE_SEQUENCES)
        for at in range(0, len(values), FULL)
    ]


def _snapshot(bench: Bench) -> None:
    state = bench.engine.topics.partitions.opened()[-1].state
    with state.changing():
        state.load()
        state.snapshot()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of `FULL` messages are full."""
    monkeypatch.setattr(counting, "MESSAGES_MAX", FULL)


# -- Kafka's rules ---------------------------------------------------------------------------------


class Batch(NamedTuple):
    """A batch of records as a producer sends it."""

    producer: int
    epoch: int
    first: int
    count: int

    @property
    def last(self) -> int:
        return (self.first + self.count - 1) % MESSAGE_SEQUENCES


class Broker:
    """The rules of Kafka's `ProducerStateManager` and `ProducerAppendInfo`, for one partition."""

    def __init__(self) -> None:
        self.end = 0
        self.epochs: dict[int, int] = {}
        self.batches: dict[int, deque[tuple[Batch, int]]] = {}
        self.stored: set[tuple[int, int, int]] = set()  # producer, epoch, sequence

    def append(self, batch: Batch) -> int | str:
        """The offset of the batch, or the name of the error."""
        epoch = self.epochs.get(batch.producer)
        known = self.batches.get(batch.producer, deque())
        for other, offset in known:
            if other == batch:
                return offset
        if epoch is not None and batch.epoch < epoch:
            return "INVALID_PRODUCER_EPOCH"
        if epoch is not None and batch.epoch > epoch and batch.first != 0:
            return "OUT_OF_ORDER_SEQUENCE"
        if epoch == batch.epoch:
            last = known[-1][0].last
            follows = batch.first == last + 1 or (batch.first == 0 and last == 2**31 - 1)
            if not follows:
                return "OUT_OF_ORDER_SEQUENCE"
        else:
            known = self.batches[batch.producer] = deque(maxlen=APPENDS_REMEMBERED)
            self.epochs[batch.producer] = batch.epoch
        known.append((batch, self.end))
        self.end += batch.count
        self.stored |= {
            (batch.producer, batch.epoch, (batch.first + i) % MESSAGE_SEQUENCES)
            for i in range(batch.count)
        }
        return known[-1][1]


def _header(batch: Batch) -> BlockHeader:
    producer_id = batch.producer << 16 | batch.epoch
    return BlockHeader(Flags.COUNTS_MESSAGES, batch.count, 1, 0, 0, producer_id, batch.first)


def _stored(batch: Batch, offset: int) -> RememberedBlock:
    return RememberedBlock(batch.first, 1, 1_000 + offset, 0, batch.count, offset)


def _answer(window: ProducerWindow, broker: Broker, batch: Batch, end: int) -> int | str:
    """The answer of the window, in the words of Kafka."""
    try:
        known = window.find(_header(batch))
    except StaleEpoch as error:
        assert error.details["newest"] == broker.epochs[batch.producer]
        return "INVALID_PRODUCER_EPOCH"
    except OutOfOrderSequence:
        return "OUT_OF_ORDER_SEQUENCE"
    except SequenceReused:  # promises that nothing of the batch is missing
        for i in range(batch.count):
            place = (batch.first + i) % MESSAGE_SEQUENCES
            assert (batch.producer, batch.epoch, place) in broker.stored
        return "OUT_OF_ORDER_SEQUENCE"
    if known is not None:
        return known.base_offset
    window.remember(_header(batch), _stored(batch, end))
    return end


def _window(producers_max: int, clock: ManualClock | None = None) -> ProducerWindow:
    return ProducerWindow(producers_max, (clock or ManualClock()).monotonic_s)


def _restarted(
    window: ProducerWindow, producers_max: int, pages: dict[str, bytes]
) -> ProducerWindow:
    """A window that is loaded with the snapshot of another one. `pages` are those of the store."""
    stored = [kind.to_store(1) for kind in window.forgotten]
    pages.update(page for kind in stored for page in kind.new)
    names = [kind.names for kind in stored]
    record = ProducersRecord(
        (1, 1), 1, window.dump(), 1, names[0], window.dump_counting(), *names[1:]
    )
    loaded = _window(producers_max)
    loaded.load(record, pages)
    for name in (name for kind in stored for name in kind.gone):
        pages.pop(name, None)
    return loaded


SENT = st.tuples(
    st.integers(1, 4),  # producer
    st.integers(0, 2),  # epoch
    st.sampled_from(["next", "next", "next", "next", "again", "stale", "any"]),
    st.integers(0, 9),  # which one again, or the distance of any
    st.integers(1, 3),  # messages
)
BEGINNINGS = st.sampled_from([0, 0, 3, MESSAGE_SEQUENCES - 4, MESSAGE_SEQUENCES - 1])


@settings(max_examples=300)
@given(
    producers_max=st.integers(1, 4),
    page=st.integers(1, 4),
    begins=st.lists(BEGINNINGS, min_size=4, max_size=4),
    sent=st.lists(SENT, max_size=80),
    restarts=st.sets(st.integers(0, 80), max_size=3),
)
def test_a_window_answers_as_kafka_does(
    producers_max: int,
    page: int,
    begins: list[int],
    sent: list[tuple[int, int, str, int, int]],
    restarts: set[int],
) -> None:
    window, broker = _window(producers_max), Broker()
    taken: list[Batch] = []
    pages: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PAGE_PRODUCERS", page)
        for step, (producer, epoch, kind, number, count) in enumerate(sent):
            known = broker.batches.get(producer)
            if known and kind == "again":
                batch = known[number % len(known)][0]
            elif known and kind == "stale":  # as Flink does: sequences of an earlier epoch
                earlier = [one for one in taken if one.producer == producer]
                batch = earlier[-1 - number % len(earlier)]._replace(epoch=broker.epochs[producer])
            elif kind == "any" or not known or epoch != broker.epochs[producer]:
                fresh = begins[producer - 1] if not known or kind == "any" else 0
                batch = Batch(producer, epoch, (fresh + number) % MESSAGE_SEQUENCES, count)
                if kind == "next":
                    batch = batch._replace(first=fresh)
            else:
                after = (known[-1][0].last + 1) % MESSAGE_SEQUENCES
                batch = Batch(producer, epoch, after, count)
            end = broker.end
            assert _answer(window, broker, batch, end) == broker.append(batch)
            if broker.end > end:
                taken.append(batch)
            if step in restarts:
                window = _restarted(window, producers_max, pages)


def test_a_batch_is_repeated_by_its_sequence_and_count_whatever_its_bytes() -> None:
    with Bench() as bench:
        [first] = _publish(bench, _counted(b"a", b"b", sequence=0))
        [again] = _publish(bench, _counted(b"A", b"B", sequence=0))
        assert again.duplicate and again.ids() == first.ids()
        assert bench.values() == [b"a", b"b"]


def test_messages_that_are_stored_in_other_blocks_are_not_stored_again() -> None:
    with Bench() as bench:
        _publish(bench, _counted(b"0", b"1", sequence=0))
        _publish(bench, _counted(b"2", b"3", sequence=2))
        for values, sequence in (((b"0",), 0), ((b"1", b"2"), 1), ((b"3",), 3)):
            with pytest.raises(SequenceReused) as refused:
                _publish(bench, _counted(*values, sequence=sequence))
            assert refused.value.details["expected"] == 4
        for values, sequence in (((b"3", b"4"), 3), ((b"0",), MESSAGE_SEQUENCES - 1)):
            with pytest.raises(OutOfOrderSequence) as out:
                _publish(bench, _counted(*values, sequence=sequence))
            assert out.value.details["expected"] == 4
        assert bench.values() == [b"0", b"1", b"2", b"3"]


def test_a_late_block_of_which_nothing_is_certain_is_out_of_order_and_not_called_stored() -> None:
    """The service refused the first of two blocks, knew nothing of their producer, and took the
    second one: the first one, sent again, is not stored."""
    with Bench() as bench:
        _publish(bench, _counted(b"10", sequence=10))
        with pytest.raises(OutOfOrderSequence):
            _publish(bench, _counted(b"9", sequence=9))


def test_a_block_from_before_the_remembered_ones_is_out_of_order() -> None:
    with Bench() as bench:
        for sequence in range(APPENDS_REMEMBERED + 1):
            _publish(bench, _counted(b"%d" % sequence, sequence=sequence))
        assert _publish(bench, _counted(b"1", sequence=1))[0].duplicate
        with pytest.raises(OutOfOrderSequence):
            _publish(bench, _counted(b"0", sequence=0))


def test_an_earlier_epoch_is_fenced_also_after_a_restart_and_in_its_own_partition_only() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        _publish(bench, _counted(b"old", sequence=0, epoch=3))
        _publish(bench, _counted(b"new", sequence=0, epoch=4))
        for begin_again in (lambda: None, bench.kill, lambda: _snapshot(bench), bench.restart):
            begin_again()
            for sequence in (0, 1):  # a repetition, and the next one
                with pytest.raises(StaleEpoch) as refused:
                    _publish(bench, _counted(b"late", sequence=sequence, epoch=3))
                assert refused.value.details["newest"] == 4
                assert not refused.value.retriable
        other = [NewBlock(1, _counted(b"late", sequence=0, epoch=3))]
        assert not bench.engine.append(NAME, other)[0].duplicate
        assert bench.values() == [b"old", b"new"]


def test_ids_of_other_producers_do_not_meet_those_that_count_messages() -> None:
    """A producer that counts blocks may have any id, also that of one that counts messages."""
    with Bench() as bench:
        for sequence in range(3):
            bench.publish(b"block", producer=7 << 16, sequence=sequence)
            _publish(bench, _counted(b"a", b"b", sequence=2 * sequence))
            assert not bench.publish(b"key", producer=KEY_BIT | sequence).duplicate
        with pytest.raises(OutOfOrderSequence):
            bench.publish(b"block", producer=7 << 16, sequence=6)
        assert len(bench.values()) == 12


def test_a_number_an_epoch_and_a_sequence_are_in_their_ranges() -> None:
    for number, epoch, sequence in (
        (0, 0, 0),
        (2**47, 0, 0),
        (1, -1, 0),
        (1, 2**16, 0),
        (1, 0, -1),
        (1, 0, 2**31),
    ):
        with pytest.raises(Invalid):
            count_messages(block(b"v"), number, epoch, sequence)
    made = _counted(b"v", sequence=2**31 - 1, producer=2**47 - 1, epoch=2**16 - 1)
    header = read_header(made)
    assert (header.flags, header.producer_id) == (Flags.COUNTS_MESSAGES, 2**63 - 1)
    with Bench() as bench:
        assert not _publish(bench, made)[0].duplicate
        [last] = _publish(bench, _counted(b"w", sequence=0, producer=2**47 - 1, epoch=2**16 - 1))
        assert last.base_offset == 1


# -- appends of several blocks ---------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_an_append_of_several_blocks_is_stored_once_and_answered_like_the_first_time() -> None:
    values = [b"%d" % i for i in range(8)]
    with Bench() as bench:
        first = _publish(bench, *_split(values, 5))
        for begin_again in (lambda: None, bench.kill, lambda: _snapshot(bench), bench.kill):
            begin_again()
            again = _publish(bench, *_split(values, 5))
            assert [one.base_offset for one in again] == [0, 3, 6]
            assert all(one.duplicate for one in again)
            assert [one.ids() for one in again] == [one.ids() for one in first]
        assert bench.values() == values


@pytest.mark.usefixtures("small_blocks")
def test_five_appends_of_the_largest_kind_are_remembered() -> None:
    count = FULL * APPEND_BLOCKS_MAX
    with Bench() as bench:
        for number in range(8):
            values = [b"%d/%d" % (number, i) for i in range(count)]
            _publish(bench, *_split(values, number * count))
        bench.kill()
        for number in range(3, 8):
            values = [b"%d/%d" % (number, i) for i in range(count)]
            assert all(one.duplicate for one in _publish(bench, *_split(values, number * count)))
        [known] = bench.engine.topics.log(NAME, 0).state.producers.dump_counting().values()
        assert len(known) <= BLOCKS_MAX
        assert len(bench.values()) == 8 * count


@pytest.mark.usefixtures("small_blocks")
def test_blocks_that_are_no_append_are_refused_before_any_of_them_is_stored() -> None:
    with Bench() as bench:
        full = _counted(b"0", b"1", b"2", sequence=0)
        for other in (
            _counted(b"4", sequence=4),  # a gap
            _counted(b"0", b"1", b"2", sequence=0),  # the same once more
            _counted(b"3", sequence=3, epoch=1),
        ):
            with pytest.raises(Invalid, match="one append"):
                _publish(bench, bytearray(full), other)
        with pytest.raises(Invalid, match="one append"):
            _publish(bench, _counted(b"0", sequence=0), _counted(b"1", sequence=1))
        with pytest.raises(Invalid, match="at most"):
            _publish(bench, *_split([b"v"] * (FULL * APPEND_BLOCKS_MAX + 1), 0))
        assert bench.values() == []
        _publish(bench, *_split([b"v"] * (FULL * APPEND_BLOCKS_MAX), 0))


@pytest.mark.usefixtures("small_blocks")
def test_an_append_that_is_refused_is_not_stored_in_part() -> None:
    with Bench() as bench:
        _publish(bench, *_split([b"0", b"1", b"2", b"3"], 0))
        for sequence in (5, 9):
            with pytest.raises(OutOfOrderSequence):
                _publish(bench, *_split([b"x"] * 8, sequence))
        with pytest.raises(OutOfOrderSequence):  # its first block is stored, its second is longer
            _publish(bench, *_split([b"0", b"1", b"2", b"3", b"4"], 0))
        assert bench.values() == [b"0", b"1", b"2", b"3"]


def test_a_block_that_counts_messages_takes_no_precondition() -> None:
    with Bench() as bench:
        [first] = _publish(bench, _counted(b"0", sequence=0))
        new = NewBlock(0, _counted(b"1", sequence=1), expect=first.ids()[0])
        with pytest.raises(Invalid, match="precondition"):
            bench.engine.append(NAME, [new])
        assert bench.values() == [b"0"]


def _cut(bench: Bench, blocks: int) -> None:
    """Remove the newest blocks of the open segment, as a crash in the middle of a write to HBase
    does; then start again."""
    segment = bench.engine.topics.log(NAME, 0).state.chain.active
    assert segment is not None
    bench.engine._threads.shutdown(wait=True)
    map_ = bench.store.inner.open(bench.maps()[-1], create=False)
    rows = [key for page in pages(map_, None, None, 1 << 20) for key, _ in page]
    map_.delete(rows[len(rows) - blocks :])
    bench.kill()


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(1, 11), st.integers(0, 4), st.booleans()), max_size=12),
    begin=st.sampled_from([0, MESSAGE_SEQUENCES - 7]),
)
def test_an_append_of_which_a_crash_left_the_first_blocks_is_completed_by_its_repetition(
    plan: list[tuple[int, int, bool]], begin: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, Bench() as bench:
        patch.setattr(counting, "MESSAGES_MAX", FULL)
        sequence, sent = begin, list[bytes]()
        for count, lost, others in plan:
            values = [b"%d" % (len(sent) + i) for i in range(count)]
            blocks = _split(values, sequence)
            stored = _publish(bench, *blocks)
            if 0 < lost < len(blocks):  # it was not acknowledged
                _cut(bench, lost)
                if others:
                    bench.publish(b"other")
                again = _publish(bench, *_split(values, sequence))
                assert [one.duplicate for one in again] == [
                    number < len(blocks) - lost for number in range(len(blocks))
                ]
                assert again[0].ids() == stored[0].ids()
            sent += values
            sequence = (sequence + count) % MESSAGE_SEQUENCES
        assert [value for value in bench.values() if value != b"other"] == sent


# -- over restarts, owners and time ----------------------------------------------------------------

SNAPSHOTS = {
    "no snapshot": Limits(),
    "a snapshot now and then": small(snapshot_bytes=2_500),
    "a snapshot after each block": small(snapshot_bytes=1),
    "several segments": small(segment_bytes=2_000),
    "few producers": small(producers=1, snapshot_bytes=2_500),
}


@pytest.mark.parametrize("limits", SNAPSHOTS.values(), ids=SNAPSHOTS)
@pytest.mark.parametrize("how", ["restart", "kill", "lose_power"])
def test_after_a_restart_batches_are_still_recognised(how: str, limits: Limits) -> None:
    begins = {7: MESSAGE_SEQUENCES - 13, 8: 0}
    with Bench(limits=limits) as bench:
        places = {}
        for number in range(20):
            for producer, begin in begins.items():
                sequence = (begin + 2 * number) % MESSAGE_SEQUENCES
                made = _counted(b"a", b"b", sequence=sequence, producer=producer, epoch=1)
                [places[producer, number]] = _publish(bench, made, durability=SYNCED)
        getattr(bench, how)()
        for (producer, number), first in places.items():
            if number < 20 - APPENDS_REMEMBERED:
                continue
            sequence = (begins[producer] + 2 * number) % MESSAGE_SEQUENCES
            made = _counted(b"a", b"b", sequence=sequence, producer=producer, epoch=1)
            [again] = _publish(bench, made)
            assert again.duplicate and again.ids() == first.ids()
        for producer, begin in begins.items():
            after = (begin + 40) % MESSAGE_SEQUENCES
            with pytest.raises(OutOfOrderSequence):
                gap = (after + 1) % MESSAGE_SEQUENCES
                _publish(bench, _counted(b"v", sequence=gap, producer=producer, epoch=1))
            with pytest.raises(StaleEpoch):
                _publish(bench, _counted(b"v", sequence=after, producer=producer, epoch=0))
            assert not _publish(bench, _counted(b"v", sequence=after, producer=producer, epoch=1))[
                0
            ].duplicate
        assert len(bench.values()) == 82


def test_after_a_power_loss_a_producer_goes_on_with_the_lost_messages() -> None:
    with Bench() as bench:
        for sequence in range(6):
            made = _counted(b"%d" % sequence, sequence=sequence)
            _publish(bench, made, durability=SYNCED if sequence < 3 else WRITTEN)
        bench.lose_power()
        with pytest.raises(OutOfOrderSequence) as refused:
            _publish(bench, _counted(b"6", sequence=6))
        assert refused.value.details["expected"] == 3
        for sequence in range(3, 7):
            assert not _publish(bench, _counted(b"%d" % sequence, sequence=sequence))[0].duplicate
        assert bench.values() == [b"%d" % sequence for sequence in range(7)]


def test_truncated_messages_stay_known() -> None:
    with Bench() as bench:
        _publish(bench, _counted(b"0", sequence=0))
        _publish(bench, _counted(b"1", sequence=1))
        bench.engine.topics.log(NAME, 0).seal(bench.clock.now_ms())
        bench.clock.pass_ms(10)
        bench.engine.truncate_topic(NAME, EARLIEST.time(bench.clock.now_ms()))
        for begin_again in (lambda: None, bench.kill, bench.restart):
            begin_again()
            assert bench.values() == []
            assert _publish(bench, _counted(b"1", sequence=1))[0].duplicate
            with pytest.raises(OutOfOrderSequence):
                _publish(bench, _counted(b"3", sequence=3))
        assert not _publish(bench, _counted(b"2", sequence=2))[0].duplicate
        assert bench.values() == [b"2"]


def test_a_block_that_is_cut_by_a_truncation_begins_with_the_sequence_of_what_is_left() -> None:
    with Bench() as bench:
        last = MESSAGE_SEQUENCES - 1
        [stored] = _publish(bench, _counted(b"a", b"b", b"c", sequence=last))
        bench.engine.truncate_topic(NAME, EARLIEST.at(stored.ids()[1]))
        header = read_header(bench.fetch(EARLIEST).blocks[0].block)
        assert (header.producer_sequence, header.count) == (0, 2)
        assert header.flags == Flags.COUNTS_MESSAGES
        assert _publish(bench, _counted(b"a", b"b", b"c", sequence=last))[0].duplicate


def test_the_next_owner_of_a_partition_knows_the_producers_and_their_epochs() -> None:
    both = Processes()
    new = [NewBlock(0, _counted(b"a", b"b", sequence=4, epoch=2))]
    both.engines[0].append(NAME, new)
    again = [NewBlock(0, _counted(b"a", b"b", sequence=4, epoch=2))]
    assert both.engines[1].append(NAME, again)[0].duplicate
    with pytest.raises(StaleEpoch):
        both.engines[1].append(NAME, [NewBlock(0, _counted(b"c", sequence=6, epoch=1))])
    both.engines[1].append(NAME, [NewBlock(0, _counted(b"c", sequence=6, epoch=2))])
    assert both.values(1) == [b"a", b"b", b"c"]


def test_a_stored_block_says_that_its_sequence_counts_messages() -> None:
    """Also one of a transaction, one that lacks messages, and a staged one that is committed."""
    with Bench() as bench:
        _publish(bench, _counted(b"a", b"b", sequence=0))
        log = bench.engine.topics.log(NAME, 0)
        bench.engine.append(NAME, [NewBlock(0, _counted(b"c", sequence=2))], WRITTEN, 10)
        [inspected, _] = bench.engine.inspect(NAME, 0, 5).blocks
        assert inspected.flags == Flags.COUNTS_MESSAGES
        assert flags_text(inspected.flags) == "counts messages"
        stored = bytes(bench.fetch(EARLIEST).blocks[0].block)
        assert flags_of(thin(stored, [1])) == Flags.COUNTS_MESSAGES | Flags.SPARSE
        staged = _counted(b"d", sequence=3)
        log.staged.add([(staged, read_header(staged))], 1 << 60, 1)
        [one] = log.staged.of(1 << 60)
        reference = reference_to(one)
        place(reference, 3, Flags.STAGED | Flags.TRANSACTIONAL, 1 << 60)
        resolved = log.staged.resolve(StoredBlock(0, 1, 0, reference)).block
        flags = Flags.STAGED | Flags.TRANSACTIONAL | Flags.COUNTS_MESSAGES
        assert read_header(resolved).flags == flags


def test_a_forgotten_producer_goes_on_with_any_sequence() -> None:
    with Bench(limits=small(producers=1)) as bench:
        for producer in (7, 8):
            _publish(bench, _counted(b"v", sequence=0, producer=producer))
        _snapshot(bench)
        bench.clock.pass_ms(round(COUNTING_S * 1_000))
        _snapshot(bench)
        [first] = _publish(bench, _counted(b"w", sequence=5))
        assert not first.duplicate
        assert _publish(bench, _counted(b"w", sequence=5))[0].duplicate


def test_producers_are_remembered_for_a_day_of_the_partitions_own_time() -> None:
    clock = ManualClock()
    window = _window(1, clock)
    for producer in (1, 2, 3):
        window.remember(_header(Batch(producer, 0, 0, 1)), _stored(Batch(producer, 0, 0, 1), 0))
    window.forgotten[1].to_store(1)
    clock.jump_ms(10 * DAY_MS)
    clock.pass_ms(round(COUNTING_S * 1_000) - 1)
    window.forgotten[1].to_store(1)
    assert window.forgotten[1].find(1 << 16)[1] == [_stored(Batch(1, 0, 0, 1), 0)]
    clock.pass_ms(1)
    assert window.forgotten[1].to_store(1).names == ()
    assert window.find(_header(Batch(2, 0, 9, 1))) is None


def test_a_full_memory_drops_the_oldest_producers_but_none_of_the_last_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "COUNTING_ROWS_MAX", 3)
    monkeypatch.setattr(producers, "PAGE_PRODUCERS", 1)
    clock = ManualClock()
    window = _window(1, clock)
    for producer in range(1, 5):
        batch = Batch(producer, 0, 0, 1)
        assert window.find(_header(batch)) is None
        window.remember(_header(batch), _stored(batch, producer))
    with pytest.raises(Overloaded, match="limit"):
        window.find(_header(Batch(9, 0, 0, 1)))
    clock.pass_ms(round(REMEMBERED_S * 1_000))
    assert window.find(_header(Batch(9, 0, 0, 1))) is None
    assert window.find(_header(Batch(1, 0, 7, 1))) is None, "the oldest one is not forgotten"


def test_a_new_epoch_of_a_forgotten_producer_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an earlier epoch may be in an older page."""
    monkeypatch.setattr(producers, "PAGE_PRODUCERS", 1)
    window = _window(1)

    def publish(batch: Batch, offset: int) -> None:
        assert window.find(_header(batch)) is None
        window.remember(_header(batch), _stored(batch, offset))

    publish(Batch(1, 0, 50, 1), 0)
    publish(Batch(2, 0, 0, 1), 1)  # pushes 1 out
    publish(Batch(1, 1, 0, 1), 2)
    publish(Batch(2, 0, 1, 1), 3)
    assert window.find(_header(Batch(1, 1, 0, 1))) == _stored(Batch(1, 1, 0, 1), 2)
    with pytest.raises(StaleEpoch):
        window.find(_header(Batch(1, 0, 51, 1)))
    with pytest.raises(OutOfOrderSequence):
        window.find(_header(Batch(1, 1, 50, 1)))
    assert window.find(_header(Batch(1, 1, 1, 1))) is None


def test_sequences_of_an_earlier_epoch_are_no_repetitions_under_a_later_one() -> None:
    with Bench() as bench:
        for sequence in range(5):
            _publish(bench, _counted(b"old", sequence=sequence))
        _publish(bench, _counted(b"0", sequence=0, epoch=1))
        with pytest.raises(OutOfOrderSequence):
            _publish(bench, _counted(b"3", sequence=3, epoch=1))
        assert not _publish(bench, _counted(b"1", sequence=1, epoch=1))[0].duplicate


def test_pages_of_forgotten_producers_of_all_kinds_are_stored_side_by_side() -> None:
    with Bench(limits=small(producers=1)) as bench:

        def publish() -> list[bool]:
            places = [bench.publish(b"v", producer=producer) for producer in (1, 2, KEY_BIT | 3)]
            for producer in (7, 8):
                places += _publish(bench, _counted(b"v", sequence=5, producer=producer))
            return [place.duplicate for place in places]

        assert publish() == [False] * 5
        for begin_again in (bench.kill, bench.restart, bench.kill):
            _snapshot(bench)
            begin_again()
            assert publish() == [True] * 5


def _rows_of(window: ProducerWindow) -> Iterator[int]:
    return (kind.rows for kind in window.forgotten)


def test_rows_are_counted_whatever_epochs_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    window = _window(1)
    for epoch in range(4):
        for producer in (1, 2):
            for sequence in range(epoch + 1):
                batch = Batch(producer, epoch, sequence, 1)
                window.remember(_header(batch), _stored(batch, 100 * epoch + sequence))
    assert [*_rows_of(window)] == [0, 3 + 4]


# -- two at once -----------------------------------------------------------------------------------


def test_two_threads_that_send_the_same_batches_store_each_once() -> None:
    answers: list[list[int]] = [[], []]
    with Bench() as bench:
        barrier = threading.Barrier(2)

        def send(mine: list[int]) -> None:
            barrier.wait(10)
            for number in range(200):
                made = _counted(b"%d" % number, b"%d'" % number, sequence=2 * number)
                while True:
                    try:
                        mine.append(_publish(bench, bytearray(made))[0].base_offset)
                        break
                    except TMSError as error:  # the other one is ahead by more than is remembered
                        assert isinstance(error, OutOfOrderSequence)
                        assert error.details["expected"] > 2 * number
                        mine.append(-1)
                        break

        threads = [threading.Thread(target=send, args=(mine,)) for mine in answers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert bench.values() == [
            value for number in range(200) for value in (b"%d" % number, b"%d'" % number)
        ]
    for mine in answers:
        assert all(offset in (-1, 2 * number) for number, offset in enumerate(mine))
        assert len(mine) == 200


def test_threads_with_different_epochs_leave_a_prefix_of_the_older_one() -> None:
    with Bench() as bench:
        barrier = threading.Barrier(2)
        fenced: list[int] = []

        def send(epoch: int) -> None:
            barrier.wait(10)
            for number in range(100):
                try:
                    made = _counted(b"%d/%d" % (epoch, number), sequence=number, epoch=epoch)
                    _publish(bench, made)
                except StaleEpoch:
                    fenced.append(number)

        threads = [threading.Thread(target=send, args=(epoch,)) for epoch in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        count = 100 - len(fenced)
        assert fenced == [*range(count, 100)]
        old = [b"0/%d" % number for number in range(count)]
        assert bench.values() == old + [b"1/%d" % number for number in range(100)]
