"""Appending to a store that fails: nothing acknowledged is lost or doubled."""

import pytest

from tests.log_kit import (
    NAME,
    SEGMENTS,
    SYNCED,
    WRITTEN,
    Bench,
    Gate,
    block,
    small,
)
from tms.errors import (
    StorageFull,
    StorageUnavailable,
    TMSError,
    TopicNotFound,
)
from tms.model.message import NewBlock
from tms.model.snapshot import POINTERS_PER_MS
from tms.transactions.uncommitted import StoredRange


@pytest.mark.parametrize("stored", [False, True])
def test_a_failed_write_is_not_acknowledged_and_its_retry_leaves_one_copy(stored: bool) -> None:
    with Bench() as bench:
        bench.publish(b"a", producer=7, sequence=0)
        bench.store.fail_write(1, stored=stored, prefix=SEGMENTS)
        with pytest.raises(StorageUnavailable):
            bench.publish(b"b", producer=7, sequence=1)
        assert bench.values() == [b"a"], "what was not acknowledged is visible"
        retried = bench.publish(b"b", producer=7, sequence=1)
        assert (retried.base_offset, retried.duplicate) == (1, stored)
        assert bench.publish(b"c", producer=7, sequence=2).base_offset == 2
        assert bench.values() == [b"a", b"b", b"c"]
        bench.restart()
        assert bench.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("stored", [False, True])
def test_everybody_of_a_failed_group_is_told(stored: bool) -> None:
    with Bench() as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            leader = bench.submit(block(b"leader"))
            gate.wait_entered()
            waiting = [bench.submit(block(b"%d" % i, producer=i + 1, sequence=0)) for i in range(5)]
            bench.store.fail_write(2, stored=stored, prefix=SEGMENTS)
            gate.open()
            assert leader.result(10)
            for one in waiting:
                with pytest.raises(StorageUnavailable):
                    one.result(10)
        for i in range(5):
            assert bench.publish(b"%d" % i, producer=i + 1).duplicate is stored
        assert bench.values() == [b"first", b"leader", *(b"%d" % i for i in range(5))]


def test_what_is_published_while_its_topic_is_deleted_fails_because_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is so slow that deleting does not wait for the write."""
    monkeypatch.setattr("tms.topics.upkeep.CLOSE_TIMEOUT_S", 0.05)
    with Bench() as bench:
        bench.publish(b"first")
        with Gate(bench.store) as gate:
            late = bench.submit(block(b"late"))
            gate.wait_entered()
            bench.engine.delete_topic(NAME)
            gate.open()
            with pytest.raises(TopicNotFound):
                late.result(10)


def test_a_map_that_does_not_recover_yet_keeps_refusing_and_reading_goes_on() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.store.fail_write(1, stored=False, prefix=SEGMENTS, refusals=2)
        for _ in range(3):
            with pytest.raises(StorageUnavailable):
                bench.publish(b"b")
            assert bench.values() == [b"a"]
        assert bench.publish(b"c").base_offset == 1


def test_a_full_disk_refuses_publishes_not_reads_and_heals_by_itself() -> None:
    with Bench() as bench:
        bench.publish(b"a")
        bench.store.fill()
        with pytest.raises(StorageFull):
            bench.publish(b"b")
        bench.engine.maintenance.recover()
        assert bench.engine.readiness() != []
        assert bench.values() == [b"a"]
        bench.store.release()
        bench.engine.maintenance.recover()
        assert bench.engine.readiness() == []
        assert bench.publish(b"b").base_offset == 1


def test_a_partition_that_failed_before_it_was_read_does_not_look_empty() -> None:
    with Bench() as bench:
        bench.publish(b"a", b"b")
        bench.kill()

        def unreadable(operation: str, name: str) -> None:
            if operation == "scan" and name.startswith(SEGMENTS):
                raise StorageUnavailable("The disk does not answer.")

        bench.store.before = unreadable
        for call in (lambda: bench.publish(b"c"), bench.read, bench.partition):
            with pytest.raises(StorageUnavailable):
                call()
        bench.store.before = lambda operation, name: None
        assert bench.publish(b"c").base_offset == 2
        assert bench.values() == [b"a", b"b", b"c"]


def test_a_repeated_block_is_acknowledged_as_synced_only_when_it_is() -> None:
    with Bench() as bench:
        bench.publish(b"first", durability=SYNCED)
        bench.publish(b"v", producer=7, durability=WRITTEN)
        bench.kill()
        assert bench.publish(b"v", producer=7, durability=SYNCED).duplicate
        bench.lose_power()
        assert bench.values() == [b"first", b"v"]


def test_a_block_repeated_after_a_failed_write_is_acked_as_synced_only_if_synced() -> None:
    with Bench() as bench:
        bench.publish(b"first", durability=SYNCED)
        bench.store.fail_write(1, stored=True, prefix=SEGMENTS)
        with pytest.raises(StorageUnavailable):
            bench.publish(b"v", producer=7, durability=SYNCED)
        assert bench.publish(b"v", producer=7, durability=SYNCED).duplicate
        bench.lose_power()
        assert bench.values() == [b"first", b"v"]


def _scenario(bench: Bench) -> list[tuple[int, bytes]]:
    """Publish with retries over rolls and snapshots; returns the acknowledged messages."""
    acknowledged = []
    for sequence in range(12):
        value = b"%d" % sequence
        for attempt in range(5):
            try:
                place = bench.publish(value, producer=9, sequence=sequence)
            except TMSError as error:
                assert error.retriable and attempt < 4, error
                bench.engine.maintenance.recover()
                continue
            acknowledged.append((place.base_offset, value))
            break
        bench.clock.pass_ms(400)
        try:
            bench.engine.maintenance.clean()
        except StorageUnavailable:  # or a snapshot in the background failed
            bench.engine.maintenance.recover()
    return acknowledged


@pytest.mark.parametrize("stored", [False, True])
def test_whichever_write_fails_nothing_acknowledged_is_lost_or_doubled(stored: bool) -> None:
    limits = small(segment_bytes=2_000, segment_ms=1_500, snapshot_bytes=1_000)
    failed, nth = True, 0
    while failed:
        nth += 1
        with Bench(limits=limits) as bench:
            bench.store.fail_write(nth, stored=stored)
            acknowledged = _scenario(bench)
            failed = bench.store.writes >= nth
            expected = [(i, b"%d" % i) for i in range(12)]
            assert acknowledged == expected, f"write {nth}"
            for again in (bench.restart, bench.lose_power):
                again()
                found = [(one.offset, one.value) for one in bench.read()]
                assert found == expected, f"write {nth} after {again.__name__}"
            assert bench.partition().segments > 2
    assert nth > 30, "the scenario writes too little to say anything"


@pytest.mark.parametrize("stored", [False, True])
def test_a_failed_roll_back_shows_the_same_from_the_cache_and_from_the_store(stored: bool) -> None:
    with Bench() as bench:
        transactions = bench.engine.transactions
        pointer = bench.clock.now_ms() * POINTERS_PER_MS + 7  # of a manager elsewhere
        [place] = transactions.submit(NAME, [NewBlock(0, block(b"x"))], pointer).result(5)
        bench.publish(b"1")
        assert bench.values() == []
        bench.store.fail_write(1, stored=stored, prefix=SEGMENTS)
        with pytest.raises(StorageUnavailable):
            transactions.roll_back(StoredRange.of(NAME, place, pointer))
        shown = bench.values()
        bench.kill()
        assert shown == bench.values() == ([b"1"] if stored else [])
        assert bench.engine.transactions.roll_back(StoredRange.of(NAME, place, pointer)) == 1
        assert bench.values() == [b"1"]
