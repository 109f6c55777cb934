"""Producer numbers: unique over threads, processes and crashes."""

import threading

import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import Bench, KeptStore
from tests.owners_kit import Processes
from tms.errors import Closed, DataCorrupt, StorageUnavailable
from tms.model.keys import METADATA_MAP, PRODUCER_COUNTER
from tms.store.base import Map
from tms.store.memory import MemoryMap
from tms.topics import producer_numbers
from tms.topics.producer_numbers import CLOCK_MAX, RESERVED, ProducerNumbers


def _metadata(store: FaultyStore | KeptStore) -> Map:
    return store.open(METADATA_MAP, create=True)


def _some(numbers: ProducerNumbers, count: int) -> list[int]:
    return [numbers.next() for _ in range(count)]


def test_numbers_are_unique_after_crashes_closes_and_power_losses() -> None:
    with Bench() as bench:
        seen = [bench.engine.new_producer() for _ in range(3)]
        for how in ("kill", "restart", "lose_power", "kill"):
            getattr(bench, how)()
            seen += [bench.engine.new_producer() for _ in range(3)]
        assert len({*seen}) == len(seen)
        assert seen == sorted(seen) and seen[0] > 0 and seen[-1] < 2**47


def test_processes_on_one_store_never_hand_out_the_same_number() -> None:
    both = Processes()
    seen = [both.engines[number % 2].new_producer() for number in range(2 * RESERVED + 10)]
    assert len({*seen}) == len(seen)


def test_a_process_that_reserves_in_between_keeps_its_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata, seen = _metadata(KeptStore()), list[int]()
    read = type(metadata).get

    def get(self: MemoryMap, key: bytes) -> bytes | None:
        raw = read(self, key)
        if not seen:
            monkeypatch.undo()
            seen.append(ProducerNumbers(metadata, ManualClock()).next())
        return raw

    monkeypatch.setattr(MemoryMap, "get", get)
    seen.append(ProducerNumbers(metadata, ManualClock()).next())
    assert len(seen) == len({*seen}) == 2


def test_threads_never_get_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_numbers, "RESERVED", 3)
    numbers = ProducerNumbers(_metadata(KeptStore()), ManualClock())
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.extend(_some(numbers, 300))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({*seen}) == len(seen) == 1_200


@pytest.mark.parametrize("stored", [True, False])
def test_a_failed_reservation_hands_out_nothing_twice(stored: bool) -> None:
    store = FaultyStore(KeptStore())
    metadata = _metadata(store)
    numbers = ProducerNumbers(metadata, ManualClock())
    seen = _some(numbers, RESERVED)
    store.fail_write(1, stored=stored)
    with pytest.raises(StorageUnavailable):
        numbers.next()
    metadata.recover()
    seen += _some(numbers, RESERVED + 1)
    seen += _some(ProducerNumbers(metadata, ManualClock()), 2)
    assert len({*seen}) == len(seen)


def test_a_store_that_was_restored_from_a_backup_hands_out_later_numbers() -> None:
    clock, metadata = ManualClock(), _metadata(KeptStore())
    numbers = ProducerNumbers(metadata, clock)
    _some(numbers, 10)
    backup = metadata.get(PRODUCER_COUNTER)
    seen = _some(numbers, 3 * RESERVED)
    clock.pass_ms(1_000)
    metadata.compare_and_set(PRODUCER_COUNTER, metadata.get(PRODUCER_COUNTER), backup)
    assert ProducerNumbers(metadata, clock).next() > max(seen)


def test_a_clock_that_is_wrong_uses_no_numbers_up() -> None:
    metadata = _metadata(KeptStore())
    clock = ManualClock()
    clock.jump_ms(10**15)
    assert ProducerNumbers(metadata, clock).next() == CLOCK_MAX
    clock.jump_ms(-(10**16))
    assert ProducerNumbers(metadata, clock).next() == CLOCK_MAX + RESERVED
    assert ProducerNumbers(_metadata(KeptStore()), clock).next() == 1


@pytest.mark.parametrize("raw", [b"", b"-1", b"x", b"%d" % 2**47])
def test_a_damaged_record_is_refused(raw: bytes) -> None:
    metadata = _metadata(KeptStore())
    metadata.compare_and_set(PRODUCER_COUNTER, None, raw)
    with pytest.raises(DataCorrupt, match="counter/producer"):
        ProducerNumbers(metadata, ManualClock()).next()


def test_a_closed_engine_hands_out_no_number() -> None:
    bench = Bench()
    bench.engine.close()
    with pytest.raises(Closed):
        bench.engine.new_producer()
