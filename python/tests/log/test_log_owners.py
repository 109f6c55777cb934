"""Owners of a partition in a store that others write to: takeover, sealing, and late actions of a
paused owner, or of a write whose answer was lost."""

import pytest

from tests.log_kit import NAME, block
from tests.owners_kit import Processes
from tms.errors import NotOwner, StorageUnavailable
from tms.log.segments import SegmentChain
from tms.model import keys
from tms.model.message import NewBlock
from tms.model.topic import Durability
from tms.store.base import Map

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
    uid = both.engines[0].topics.registry.find(NAME).uid
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


def test_an_owner_that_lost_the_partition_finds_the_end_that_the_other_made() -> None:
    both = Processes()
    both.publish(0, b"a")
    log = both.engines[0].topics.partitions.opened()[-1]
    both.publish(1, b"b", b"c")
    assert log.state.end_offset == 1, "it was told, so this shows nothing"
    assert log.state.find_end() == log.state.end_offset == 3


def test_an_owner_that_lost_the_whole_store_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Processes(1)
    one.publish(0, b"a")
    chain = one.engines[0].topics.partitions.opened()[-1].state.chain

    def lost() -> None:
        raise NotOwner("Another process owns the store.")

    with monkeypatch.context() as patch:
        patch.setattr(type(chain._owner_check), "require_owner", lambda _: lost())
        with pytest.raises(NotOwner):
            one.publish(0, b"late")
    one.start_anew(0)
    assert one.publish(0, b"b").base_offset == 2  # late writes may be there
    assert one.values(0) == [b"a", b"late", b"b"]


def test_an_owner_that_lost_the_partition_takes_no_messages_out_of_it() -> None:
    both = Processes()
    both.publish(0, b"a")
    chain = both.engines[0].topics.partitions.opened()[-1].state.chain
    both.publish(1, b"b")
    sealed = both.record().segments[0]
    assert sealed.last is not None
    with pytest.raises(StorageUnavailable, match="taken over"):
        chain.rewrite(sealed, [], [sealed.last])
    both.start_anew(1)
    assert both.values(1) == [b"a", b"b"]


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
    uid = both.engines[0].topics.registry.find(NAME).uid
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


def test_of_a_write_that_is_there_in_part_only_what_follows_without_a_gap_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    (told,) = [text for text in caplog.messages if text.startswith("partition_end_cut")]
    assert "blocks=0" in told, "nothing is cut in a store that others may write to"
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


def test_producers_are_known_when_what_an_owner_that_died_left_was_cleaned_away() -> None:
    one = Processes(1)
    for sequence in range(2):
        one.publish(0, b"%d" % sequence, producer=7, sequence=sequence)
    one.start_anew(0)
    assert one.values(0) == [b"0", b"1"]  # and they are sealed
    uid = one.engines[0].topics.registry.find(NAME).uid
    sealed = one.kept.open(keys.segment_map(uid, 0, 0), False)
    sealed.delete([key for key, _ in sealed.scan(None, None, 1 << 20)])
    one.start_anew(0)
    assert one.publish(0, b"1", producer=7, sequence=1).duplicate


def test_producers_that_a_paused_owner_noted_late_are_read_on_from_there() -> None:
    both = Processes()
    both.publish(0, b"0", producer=7, sequence=0)
    key = keys.producers_key(both.engines[0].topics.registry.find(NAME).uid, 0)
    metadata = both.kept.open("metadata", False)
    log = both.engines[0].topics.partitions.opened()[-1]
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


def _note_of_producers(both: Processes) -> tuple[Map, bytes]:
    """The key of the note about them."""
    uid = both.engines[0].topics.registry.find(NAME).uid
    return both.kept.open("metadata", False), keys.producers_key(uid, 0)


def test_a_replaced_owner_does_not_overwrite_the_note_of_producers() -> None:
    both = Processes()
    both.publish(0, b"0")
    lost = both.engines[0].topics.partitions.opened()[-1].state
    erased = both.publish(1, b"1", producer=7, sequence=0)
    assert both.engines[1].erase(NAME, id=erased.ids()[0], partition=0) == 1
    metadata, key = _note_of_producers(both)
    noted = metadata.get(key)
    with pytest.raises(StorageUnavailable, match="taken over"), lost.changing():
        lost.snapshot()
    assert metadata.get(key) == noted is not None
    both.start_anew(1)
    assert both.publish(1, b"1", producer=7, sequence=0).duplicate


def test_an_owner_that_is_paused_before_it_notes_its_producers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Processes()
    both.publish(0, b"0", producer=7, sequence=0)
    paused = both.engines[0].topics.partitions.opened()[-1].state
    metadata, key = _note_of_producers(both)
    notes: list[bytes | None] = []
    check = SegmentChain.require_owned

    def pause(chain: SegmentChain) -> None:
        check(chain)
        if chain is paused.chain:
            both.publish(1, b"a", producer=8, sequence=0)
            notes.append(metadata.get(key))

    with monkeypatch.context() as patch:
        patch.setattr(SegmentChain, "require_owned", pause)
        with pytest.raises(StorageUnavailable, match="taken over"), paused.changing():
            paused.snapshot()
    assert [metadata.get(key)] == notes != [None]
    assert both.publish(0, b"a", producer=8, sequence=0).duplicate


def test_a_stale_note_of_producers_and_a_cleaned_segment_lose_nothing_that_follows() -> None:
    both = Processes()
    both.publish(0, b"0", producer=7, sequence=0)
    log = both.engines[0].topics.partitions.opened()[-1]
    with log.state.changing():
        log.state.snapshot()
    for sequence in range(1, 4):
        both.publish(0, b"%d" % sequence, producer=7, sequence=sequence)
    uid = both.engines[0].topics.registry.find(NAME).uid
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


def test_the_next_owner_knows_producers_that_were_pushed_out_before_it_came() -> None:
    both = Processes(producers=2)
    both.publish(0, b"0", producer=7, sequence=0)
    for producer in range(100, 110):
        both.publish(0, b"v", producer=producer)
    log = both.engines[0].topics.partitions.opened()[-1]
    with log.state.changing():
        log.state.snapshot()
    for producer in range(200, 210):
        both.publish(0, b"v", producer=producer)
    for producer in (7, *range(100, 110), *range(200, 210)):
        value = b"0" if producer == 7 else b"v"
        assert both.publish(1, value, producer=producer, sequence=0).duplicate
    assert not both.publish(1, b"1", producer=7, sequence=1).duplicate
    both.start_anew(0)
    assert both.publish(0, b"1", producer=7, sequence=1).duplicate


def test_pages_that_only_a_lost_owner_wrote_are_deleted_by_the_next_one() -> None:
    both = Processes(producers=2)
    for producer in range(1, 10):
        both.publish(0, b"v", producer=producer)
    lost = both.engines[0].topics.partitions.opened()[-1].state
    both.publish(1, b"v", producer=50)
    with pytest.raises(StorageUnavailable, match="taken over"), lost.changing():
        lost.snapshot()
    metadata, _ = _note_of_producers(both)
    uid = both.engines[0].topics.registry.find(NAME).uid
    prefix = keys.forgotten_key(uid, 0, "")

    def names() -> list[bytes]:
        return [key for key, _ in metadata.scan(prefix, keys.prefix_stop(prefix), 1 << 20)]

    left = names()
    assert len(left) == 2, "the lost owner wrote none"
    both.start_anew(1)
    both.publish(1, b"v", producer=51)
    log = both.engines[1].topics.partitions.opened()[-1]
    with log.state.changing():
        log.state.snapshot()
    assert len(names()) == 1 and not {*names()} & {*left}
    for producer in range(1, 10):
        assert both.publish(1, b"v", producer=producer).duplicate
