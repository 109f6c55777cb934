"""Owners of a partition in a store that others write to: taking over, sealing, and everything that
an owner which was paused, or a write whose answer was lost, may still do."""

import random
from collections.abc import Callable, Sequence

import pytest

from tests.clocks import ManualClock
from tests.log_kit import EARLIEST, MANY, NAME, KeptStore, Seen, block, seen, small
from tms.engine import Engine
from tms.errors import StorageUnavailable, TMSError
from tms.log.records import PartitionRecord, decode
from tms.model import keys
from tms.model.log import Appended, NewBlock, PartitionPosition
from tms.model.topic import Durability, TopicSettings
from tms.store.base import Map, Row
from tms.store.faulty import FaultyMap, FaultyStore


class _LateMap(FaultyMap):
    """A map whose writes may be answered with an error and take effect later."""

    late: "_LateStore"
    target: Map
    name: str

    def write(self, rows: Sequence[Row], durability: Durability) -> None:
        if not (rows and self.late.delays(self.name)):
            super().write(rows, durability)
            return
        kept = [(key, bytes(value)) for key, value in rows]
        self.late.flying.append((self.target, kept))
        raise StorageUnavailable("No answer came; was it written? Unknown.")


class _LateStore(FaultyStore):
    """A process's way to the store that all share."""

    def __init__(self, inner: KeptStore) -> None:
        super().__init__(inner)
        self.flying: list[tuple[Map, list[Row]]] = []
        self.delays: Callable[[str], bool] = lambda name: False

    def open(self, name: str, create: bool) -> _LateMap:
        found = _LateMap(self, name, self.inner.open(name, create))
        found.late, found.target, found.name = self, self.inner.open(name, False), name
        return found

    def land(self, pick: Callable[[list[Row]], list[Row]] = lambda rows: rows) -> None:
        """Let what is flying take effect, or some of its rows."""
        for target, rows in self.flying:
            target.write(pick(rows), Durability.SYNCED)
        self.flying.clear()


class Processes:
    """Engines that share one store, each as if in a process of its own."""

    def __init__(self, count: int = 2, **log: int) -> None:
        self.clock = ManualClock()
        self.kept = KeptStore(shared=True)
        self.log = log
        self.stores = [_LateStore(self.kept) for _ in range(count)]
        self.engines = [self._open(0)]
        self.engines[0].create_topic(NAME, TopicSettings())
        self.engines += [self._open(number) for number in range(1, count)]

    def _open(self, number: int) -> Engine:
        return Engine(self.stores[number], self.clock, small(**self.log).config())

    def start_anew(self, number: int) -> None:
        """Kill a process and start another one in its place; what it wrote last may still land."""
        old = self.stores[number]
        old.crashed = True
        self.stores[number] = _LateStore(self.kept)
        self.stores[number].flying = old.flying
        self.engines[number] = self._open(number)

    def publish(self, number: int, *values: bytes, **producer: int) -> Appended:
        self.clock.pass_ms(1)
        made = NewBlock(0, block(*values, **producer))
        return self.engines[number].append(NAME, [made], None, 10)[0]

    def read(self, number: int) -> list[Seen]:
        found: list[Seen] = []
        position = EARLIEST
        while True:
            fetched = self.engines[number].fetch(NAME, [PartitionPosition(0, position)], MANY)
            if not fetched.blocks:
                return found
            found += seen(fetched.blocks)
            position = fetched.next[0]

    def values(self, number: int) -> list[bytes | None]:
        return [one.value for one in self.read(number)]

    def record(self) -> PartitionRecord:
        key = keys.partition_key(self.engines[0]._registry.find(NAME).uid, 0)
        raw = self.kept.open("metadata", False).get(key)
        assert raw is not None
        return decode(raw, PartitionRecord, key)


# -- taking over -----------------------------------------------------------------------------------


def test_each_owner_writes_to_a_segment_of_its_own_and_seals_the_one_before() -> None:
    both = Processes()
    both.publish(0, b"a")
    first = both.record()
    both.publish(1, b"b")
    second = both.record()
    assert second.epoch > first.epoch
    assert [one.sealed for one in second.segments] == [True, False]
    assert second.segments[0].end_offset == second.segments[1].base_offset == 1
    assert both.values(1) == [b"a", b"b"]


def test_an_owner_that_lost_the_partition_is_not_acknowledged() -> None:
    both = Processes()
    both.publish(0, b"a")
    both.publish(1, b"b")
    with pytest.raises(StorageUnavailable, match="taken over"):
        both.publish(0, b"late")
    assert both.values(1) == [b"a", b"b"]


def test_what_a_paused_owner_writes_behind_the_seal_is_never_read() -> None:
    both = Processes()
    both.publish(0, b"a")
    segment = both.record().segments[-1].number
    both.publish(1, b"b")
    with pytest.raises(StorageUnavailable):
        both.publish(0, b"late")
    uid = both.engines[0]._registry.find(NAME).uid
    rows = both.kept.open(keys.segment_map(uid, 0, segment), False).scan(None, None, 1 << 20)
    assert len(rows) == 2, "the late write is not in the store, so this shows nothing"
    for number in (0, 1):
        both.start_anew(number)
        assert both.values(number) == [b"a", b"b"]


def test_an_owner_that_takes_the_partition_back_goes_on_where_the_other_ended() -> None:
    both = Processes()
    both.publish(0, b"a")
    both.publish(1, b"b")
    with pytest.raises(StorageUnavailable):
        both.publish(0, b"late")
    assert both.publish(0, b"c").base_offset == 2
    assert both.values(0) == [b"a", b"b", b"c"]


def test_starting_again_and_again_without_publishing_makes_no_segments() -> None:
    both = Processes()
    both.publish(0, b"a")
    for _ in range(5):
        both.start_anew(0)
        assert both.values(0) == [b"a"]
    assert len(both.record().segments) == 1


def test_a_segment_that_was_made_but_not_recorded_is_used_by_the_next_owner() -> None:
    both = Processes()
    both.publish(0, b"a")
    uid = both.engines[0]._registry.find(NAME).uid
    both.kept.open(keys.segment_map(uid, 0, 1), create=True)
    both.publish(1, b"b")
    assert both.values(1) == [b"a", b"b"]


def test_offsets_go_on_when_everything_before_was_truncated_and_the_owner_changes() -> None:
    from tms.model.position import Position

    both = Processes()
    both.publish(0, b"a", b"b")
    both.engines[0].truncate_topic(NAME, Position.latest())
    both.start_anew(0)
    both.engines[0].truncate_topic(NAME, Position.latest())
    both.start_anew(0)
    assert both.publish(0, b"c").base_offset == 2
    assert both.values(0) == [b"c"]


# -- writes without an answer ----------------------------------------------------------------------


def test_a_write_that_lands_after_its_owner_gave_it_up_is_never_read() -> None:
    one = Processes(1)
    one.publish(0, b"a")
    one.stores[0].delays = lambda name: name.startswith("t")
    with pytest.raises(StorageUnavailable):
        one.publish(0, b"lost")
    one.stores[0].delays = lambda name: False
    one.publish(0, b"b")
    one.stores[0].land()
    one.publish(0, b"c")
    assert one.values(0) == [b"a", b"b", b"c"]
    one.start_anew(0)
    assert one.values(0) == [b"a", b"b", b"c"]


def test_of_a_write_that_is_there_in_part_only_what_follows_without_a_gap_is_read() -> None:
    one = Processes(1)
    one.publish(0, b"a")
    one.stores[0].delays = lambda name: name.startswith("t")
    engine = one.engines[0]
    request = [NewBlock(0, block(value)) for value in (b"1", b"2", b"3")]
    pending = engine.submit(NAME, request, Durability.SYNCED)
    with pytest.raises(StorageUnavailable):
        pending.result(10)
    one.stores[0].delays = lambda name: False
    one.stores[0].land(lambda rows: [rows[0], rows[2]])
    one.start_anew(0)
    assert one.values(0) == [b"a", b"1"]
    assert one.publish(0, b"b").base_offset == 2
    assert one.values(0) == [b"a", b"1", b"b"]


def test_a_block_that_is_sent_again_after_its_owner_died_is_stored_once() -> None:
    one = Processes(1)
    one.publish(0, b"a", producer=7, sequence=0)
    one.stores[0].delays = lambda name: name.startswith("t")
    with pytest.raises(StorageUnavailable):
        one.publish(0, b"b", producer=7, sequence=1)
    one.stores[0].land()
    one.start_anew(0)
    appended = one.publish(0, b"b", producer=7, sequence=1)
    assert appended.duplicate
    assert one.values(0) == [b"a", b"b"]


def test_producers_are_known_over_owners_that_died_before_they_noted_them() -> None:
    one = Processes(1)
    for sequence in range(5):
        one.publish(0, b"%d" % sequence, producer=7, sequence=sequence)
        one.start_anew(0)
    assert one.publish(0, b"4", producer=7, sequence=4).duplicate


def test_producers_that_a_paused_owner_noted_late_are_read_on_from_there() -> None:
    both = Processes()
    both.publish(0, b"0", producer=7, sequence=0)
    key = keys.producers_key(both.engines[0]._registry.find(NAME).uid, 0)
    metadata = both.kept.open("metadata", False)
    log = both.engines[0]._partitions.opened()[-1]
    with log.state.changing():
        log.state.snapshot()
    stale = metadata.get(key)
    assert stale is not None
    for sequence in range(1, 4):
        both.publish(1, b"%d" % sequence, producer=7, sequence=sequence)
        both.start_anew(1)
    metadata.write([(key, stale)], Durability.WRITTEN)
    both.start_anew(1)
    assert both.publish(1, b"3", producer=7, sequence=3).duplicate
    assert both.publish(1, b"4", producer=7, sequence=4).base_offset == 4
    assert both.values(1) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_stale_note_of_producers_and_a_cleaned_segment_lose_nothing_that_follows() -> None:
    both = Processes()
    both.publish(0, b"0", producer=7, sequence=0)
    log = both.engines[0]._partitions.opened()[-1]
    with log.state.changing():
        log.state.snapshot()
    for sequence in range(1, 4):
        both.publish(0, b"%d" % sequence, producer=7, sequence=sequence)
    uid = both.engines[0]._registry.find(NAME).uid
    metadata, key = both.kept.open("metadata", False), keys.producers_key(uid, 0)
    stale = metadata.get(key)
    assert stale is not None
    both.publish(1, b"4", producer=7, sequence=4)
    sealed = both.kept.open(keys.segment_map(uid, 0, 0), False)
    sealed.delete([sealed.scan(None, None, 1, reverse=True)[0][0]])
    metadata.write([(key, stale)], Durability.WRITTEN)
    both.start_anew(1)
    assert both.values(1) == [b"0", b"1", b"2", b"4"]
    assert both.publish(1, b"5", producer=7, sequence=5).base_offset == 5


# -- anything at any time --------------------------------------------------------------------------


class _Fight:
    """Two owners that interrupt each other before any operation on the store, lose answers, die and
    come back; what was acknowledged is kept in mind."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.both = Processes(2, segment_bytes=4_000)
        self.acknowledged: dict[int, bytes] = {}
        self.reads: list[list[Seen]] = []
        self.depth = 0
        self.next = 0
        for store in self.both.stores:
            self._arm(store)

    def _arm(self, store: _LateStore) -> None:
        store.before = self._before
        store.delays = lambda name: name.startswith("t") and self.random.random() < 0.1

    def _before(self, operation: str, name: str) -> None:
        if self.depth == 1 and self.random.random() < 0.15:
            self.step(1 - self.busy)

    def step(self, number: int) -> None:
        self.depth += 1
        self.busy = number if self.depth == 1 else self.busy
        try:
            self._act(number)
        except TMSError:
            pass
        finally:
            self.depth -= 1

    def _act(self, number: int) -> None:
        what = self.random.random()
        if what < 0.6:
            value = b"%d" % self.next
            self.next += 1
            appended = self.both.publish(number, value)
            assert appended.base_offset not in self.acknowledged, "one offset, two messages"
            self.acknowledged[appended.base_offset] = value
        elif what < 0.8:
            self.reads.append(self.both.read(number))
        elif what < 0.9:
            self.both.stores[number].land(
                lambda rows: [r for r in rows if self.random.random() < 0.7]
            )
        elif self.depth == 1:
            self.both.start_anew(number)
            self._arm(self.both.stores[number])


@pytest.mark.parametrize("seed", range(60))
def test_nothing_acknowledged_is_lost_or_moved_whatever_two_owners_do(seed: int) -> None:
    fight = _Fight(seed)
    for _ in range(60):
        fight.step(fight.random.randrange(2))
    for store in fight.both.stores:
        store.before = lambda operation, name: None
        store.delays = lambda name: False
        store.land()
    fight.both.start_anew(0)
    final = fight.both.read(0)
    found = {one.offset: one.value for one in final}
    assert [one.offset for one in final] == list(range(len(final)))
    assert {offset: found.get(offset) for offset in fight.acknowledged} == fight.acknowledged
    assert len(set(found.values())) == len(found), "a message is there twice"
    assert [one.id for one in final] == sorted(one.id for one in final)
    for read in fight.reads:
        assert read == final[: len(read)], "a reader saw something else"
