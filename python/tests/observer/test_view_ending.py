"""The end of another owner's open segment: groups that it writes at once, holes in it, and owners
that follow each other."""

from collections.abc import Sequence

import pytest

from sim.faulty import FaultyStore
from tests.log_kit import NAME, Seen, block, seen
from tests.owners_kit import Later, Processes
from tms.block import encode, place
from tms.engine.observer import StoreObserver, partition
from tms.engine.observer.ending import open_end
from tms.errors import DataCorrupt, TMSError
from tms.log import writer
from tms.log.records import SegmentRecord
from tms.model import keys
from tms.model.message import NewBlock
from tms.model.topic import Durability
from tms.store.memory import MemoryMap

T = 1_700_000_000_000
BASE = 100
OPEN = SegmentRecord(number=3, epoch=7, created_ms=T, base_offset=BASE)


def rows(*blocks: tuple[int, int, int]) -> MemoryMap:
    """A segment of blocks: time after T in ms, base offset, count; the sequence follows offsets."""
    made = MemoryMap()
    for after_ms, base, count in blocks:
        value = encode([b"v"] * count)
        place(value, base)
        key = keys.block_key(T + after_ms, base - BASE + count - 1)
        made.write([(key, value)], Durability.SYNCED)
    return made


def end(of: MemoryMap, settled: bool = True) -> int:
    return open_end(of, OPEN, (T - 1, 5), settled).offset


def groups(*groups_: Sequence[int]) -> MemoryMap:
    """Groups of blocks of one message each, by their times after T."""
    times = [time for group in groups_ for time in group]
    return rows(*[(time, BASE + number, 1) for number, time in enumerate(times)])


def test_nothing_is_there_yet() -> None:
    found = open_end(rows(), OPEN, (T - 1, 5), True)
    assert found == (BASE, (T - 1, 6))
    assert open_end(rows(), OPEN, (T - 1, 5), False) == found


def test_what_continues_itself_up_to_the_newest_row_is_there() -> None:
    found = open_end(rows((0, 100, 2), (5, 102, 3), (9, 105, 1)), OPEN, (0, 0), True)
    assert found == (106, (T + 9, 6))


@pytest.mark.parametrize(("missing", "expected"), [(0, 100), (1, 101), (5, 105), (39, 139)])
def test_it_ends_before_a_hole_however_far_back_that_is(missing: int, expected: int) -> None:
    blocks = [(time, BASE + time, 1) for time in range(300)]  # one group may fill 300 ms
    del blocks[missing]
    assert end(rows(*blocks)) == expected


def test_it_ends_before_the_earliest_of_several_holes() -> None:
    assert end(rows((0, 100, 1), (50, 101, 1), (50, 103, 1), (51, 106, 1), (52, 107, 1))) == 102


def test_no_more_is_read_than_the_newest_group_and_what_is_too_near_to_it_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = groups(*[[10 * number] for number in range(1_000)])
    read = []
    scan = MemoryMap.scan

    def counted(*args: object, **kwargs: object) -> list[tuple[bytes, bytes]]:
        found = scan(*args, **kwargs)  # type: ignore[arg-type]
        read.append(sum(len(value) for _, value in found))
        return found

    monkeypatch.setattr(MemoryMap, "scan", counted)
    monkeypatch.setattr("tms.engine.observer.ending._LOOK_BYTES_FIRST", 1_000)
    assert end(made) == BASE + 1_000
    assert sum(read) < 2_000


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([[0], [10], [20], [30]], 102),
        ([[0], [10, 10], [20, 21, 21], [90]], 103),
        ([[0], [500], [1_000]], 101),  # however long a writer stood still between two groups
        ([[0], [10]], 100),
        ([[0]], 100),
        ([[0], [10], [11], [30]], 101),  # 10 and 11 may be one group
    ],
)
def test_while_somebody_takes_over_the_two_newest_groups_are_left_out(
    written: list[list[int]], expected: int
) -> None:
    assert end(groups(*written), settled=False) == expected


def test_while_somebody_takes_over_a_hole_ends_it_too() -> None:
    made = rows((0, 100, 1), (10, 101, 1), (20, 102, 1), (20, 104, 1), (21, 105, 1))
    assert end(made) == 103
    assert end(made, settled=False) == 101


def test_a_segment_whose_first_row_is_missing_has_none() -> None:
    assert end(rows((0, 101, 1), (50, 102, 1))) == 103  # but groups that are apart were confirmed
    assert end(rows((0, 101, 1), (1, 102, 1))) == 100


def test_offsets_that_two_blocks_have_are_damage() -> None:
    with pytest.raises(DataCorrupt, match="same offsets"):
        end(rows((0, 100, 3), (5, 101, 1)))


# -- with real owners ------------------------------------------------------------------------------


def look(both: Processes) -> list[Seen]:
    one = StoreObserver(both.kept, both.clock).topic(str(NAME)).partition(0)
    return seen(list(one.blocks((0, 0), one.end().key)))


def test_writes_after_a_takeover_found_the_end_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old owner writes two groups, 100 ms apart, after the new one has looked for the end."""
    monkeypatch.setattr(writer, "GROUP_BYTES", 1)
    monkeypatch.setattr(partition, "_PAUSE_S", 0)
    both = Processes(2, Later)
    old, new = both.stores
    threads = both.engines[0]._threads
    assert isinstance(threads, Later)
    for value in (b"1", b"2"):
        pending = both.engines[0].submit(NAME, [NewBlock(0, block(value))], None)
        both.clock.pass_ms(50)
        threads.run()
        pending.result(0)
    looks: list[list[Seen]] = []
    changes = 0

    def before_old(operation: str, name: str) -> None:
        if operation == "write" and name.startswith("t"):
            both.clock.pass_ms(100)
        looks.append(look(both))

    def before_new(operation: str, name: str) -> None:
        nonlocal changes
        changes += operation == "compare_and_set" and name == "metadata"
        if changes == 2:  # it has raised the epoch and found the end, and is about to seal
            changes += 1
            sent = [
                both.engines[0].submit(NAME, [NewBlock(0, block(value))], None)
                for value in (b"3", b"4")
            ]
            old.before = before_old
            threads.run()
            old.before = lambda operation, name: None
            looks.append(look(both))
            assert all(isinstance(_error(one), TMSError) for one in sent)

    new.before = before_new
    both.engines[1].describe_topic(NAME)
    new.before = lambda operation, name: None
    assert changes > 2
    assert len(looks) > 3
    final = both.read(1)
    assert [one.value for one in final] == [b"1", b"2"]
    for found in looks:
        assert found == final[: len(found)]
    assert look(both) == final


def _error(pending: object) -> object:
    try:
        pending.result(0)  # type: ignore[attr-defined]
    except TMSError as error:
        return error
    return None


def test_writes_after_a_takeover_during_a_read_are_not_shown() -> None:
    both = Processes(2)
    both.publish(0, b"1")
    both.stores[0].delays = lambda name: name.startswith("t")
    with pytest.raises(TMSError):
        both.publish(0, b"2")  # the write is in flight
    way = FaultyStore(both.kept)

    def take_over(operation: str, name: str) -> None:
        if operation == "scan" and name.startswith("t"):
            way.before = lambda operation, name: None
            both.engines[1].describe_topic(NAME)
            both.stores[0].land()

    way.before = take_over
    one = StoreObserver(way, both.clock).topic(str(NAME)).partition(0)
    found = seen(list(one.blocks((0, 0), one.end().key)))
    assert [m.value for m in found] == [b"1"]
    assert found == both.read(1)


def test_a_taker_over_that_died_hides_what_was_written_last_until_one_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "_PAUSE_S", 0)
    both = Processes(2)
    for number in range(5):
        both.clock.pass_ms(50)
        both.publish(0, b"%d" % number)
    assert len(look(both)) == 5
    changes = 0

    def dies(operation: str, name: str) -> None:
        nonlocal changes
        changes += operation == "compare_and_set" and name == "metadata"
        if changes == 1 and operation == "scan":
            both.stores[1].crashed = True

    both.stores[1].before = dies
    with pytest.raises(TMSError):
        both.engines[1].describe_topic(NAME)
    assert both.record().epoch > both.record().segments[-1].epoch
    assert [one.value for one in look(both)] == [b"0", b"1", b"2"]
    both.start_anew(1)
    both.engines[1].describe_topic(NAME)
    assert [one.value for one in look(both)] == [b"0", b"1", b"2", b"3", b"4"]
