"""The findings of an audit in the blocks of a range, without Spark."""

import pytest
from msgspec import structs

from tms.block import encode, place
from tms.model.message import StoredBlock
from tms.spark.jobs.audit_checking import NOTES_MAX, Checker, RangeAudit
from tms.spark.jobs.auditing import _joined

TIME_MS = 1_700_000_000_000


def stored(
    base: int, count: int = 10, time_ms: int = TIME_MS, last: int | None = None
) -> StoredBlock:
    """A block of messages whose sequences are their offsets, unless given."""
    block = encode([b"v%d" % i for i in range(count)])
    place(block, base)
    return StoredBlock(0, time_ms, base + count - 1 if last is None else last, block)


def checked(*blocks: StoredBlock, start: int = 0, stop: int = 30, dense: bool = True) -> RangeAudit:
    """The findings in a range, if each block comes alone."""
    checker = Checker("t", 0, start, stop, dense)
    for one in blocks:
        checker.add([one])
    return checker.ended()


def said(part: RangeAudit) -> list[tuple[int, int, str]]:
    """The findings, each by its first words."""
    return [(one.start, one.stop, " ".join(one.what.split()[:3])) for one in part.findings]


def test_blocks_that_follow_each_other_are_sound_together_and_alone() -> None:
    blocks = [stored(0), stored(10), stored(20)]
    together = Checker("t", 0, 0, 30, True)
    together.add(blocks)
    for part in (together.ended(), checked(*blocks)):
        assert (part.messages, part.blocks, part.wrong, part.gaps) == (30, 3, 0, 0)
        assert (part.first, part.last) == ((TIME_MS, 0), (TIME_MS, 29))


def test_a_block_belongs_to_the_range_in_which_it_begins() -> None:
    blocks = [stored(0), stored(10), stored(20)]
    first, second = checked(*blocks, stop=15), checked(*blocks[1:], start=15)
    assert (first.messages, second.messages) == (20, 10)
    assert first.wrong == second.wrong == 0


@pytest.mark.parametrize(
    ("blocks", "found"),
    [
        ([stored(0), stored(20)], (10, 20, "nothing is stored")),
        ([stored(0), stored(10)], (20, 30, "nothing is stored")),
        ([stored(0), stored(10), stored(15, 15)], (15, 30, "offsets go back:")),
        ([stored(0), stored(10), stored(20, last=15)], (20, 30, "ids go back:")),
        ([stored(0), stored(10), stored(20, time_ms=TIME_MS - 1)], (20, 30, "ids go back:")),
        ([stored(0), stored(10), stored(20, last=3)], (20, 30, "10 messages cannot")),
    ],
)
def test_what_is_wrong_with_places_is_found(
    blocks: list[StoredBlock], found: tuple[int, int, str]
) -> None:
    assert found in said(checked(*blocks))


def test_gaps_are_counted_where_they_are_allowed() -> None:
    part = checked(stored(0), stored(20), dense=False)
    assert (part.gaps, part.wrong) == (10, 0)


@pytest.mark.parametrize("at", [0, 8, 20, 60, -1])
def test_a_flipped_byte_is_found_and_the_blocks_beside_it_are_checked(at: int) -> None:
    bad = stored(10)
    raw = bytearray(bad.block)
    raw[at] ^= 0x40
    together = Checker("t", 0, 0, 30, True)
    together.add([stored(0), structs.replace(bad, block=raw), stored(20)])
    part = together.ended()
    assert part.wrong >= 1
    assert (10, 20) in [(one.start, one.stop) for one in part.findings]
    assert part.last == (TIME_MS, 29)


def test_notes_have_a_bound_and_their_number_has_none() -> None:
    part = checked(*(stored(20 * i) for i in range(150)), stop=3_000)
    assert (part.wrong, len(part.findings)) == (150, NOTES_MAX)


def test_ranges_of_a_partition_must_follow_each_other() -> None:
    first, second = checked(stored(0), stop=10), checked(stored(10, last=12), start=10, stop=20)
    assert first.wrong == 0
    audit = _joined([first, second])
    assert (second.wrong, audit.partitions[0].wrong) == (0, 1)
    assert "ids go back" in audit.findings[-1].what
