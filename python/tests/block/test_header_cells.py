"""Headers as cells: those of a name that occurs again are kept, wherever a block is packed anew."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.block_kit import LIMITS
from tms.block import Compression, HeaderCells, check, decode, encode, place, thin
from tms.errors import Invalid
from tms.log.trimming import trimmed
from tms.model.message import StoredBlock

Pairs = list[tuple[str, bytes | None]]
NAMES = st.sampled_from(["a", "b", "é"])
ROWS = st.lists(
    st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=9)), max_size=3),
    min_size=1,
    max_size=40,
)


def cells_of(rows: list[Pairs]) -> HeaderCells:
    """The rows one after the other."""
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    flat = [pair for row in rows for pair in row]
    return HeaderCells(ends, [name for name, _ in flat], [text for _, text in flat])


def pairs_of(cells: HeaderCells) -> list[Pairs]:
    """The headers of each message."""
    return [
        [*zip(cells.names[start:stop], cells.values[start:stop], strict=True)]
        for start, stop in zip(cells.ends[:-1], cells.ends[1:], strict=True)
    ]


def block_of(rows: list[Pairs], compression: Compression = Compression.NONE) -> bytearray:
    return encode([b"v"] * len(rows), headers=cells_of(rows), compression=compression)


@given(ROWS, st.sampled_from(Compression))
def test_cells_come_back_as_they_were_packed(rows: list[Pairs], compression: Compression) -> None:
    block = block_of(rows, compression)
    check(block, **LIMITS)
    columns = decode(block)
    assert pairs_of(columns.header_cells()) == rows
    assert columns.headers() == [dict(row) for row in rows]
    part = columns.slice(1, len(rows))
    assert pairs_of(part.header_cells()) == rows[1:]


@given(ROWS)
def test_cells_are_packed_as_mappings_are(rows: list[Pairs]) -> None:
    mappings = [dict(row) for row in rows]
    same = block_of([[*row.items()] for row in mappings])
    assert same == encode([b"v"] * len(rows), headers=mappings)


@given(ROWS, st.data(), st.sampled_from(Compression))
def test_a_block_keeps_them_when_messages_are_removed(
    rows: list[Pairs], data: st.DataObject, compression: Compression
) -> None:
    places = st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True).map(sorted)
    keep = data.draw(places)
    left = decode(thin(block_of(rows, compression), keep))
    assert pairs_of(left.header_cells()) == [rows[at] for at in keep]


def test_a_block_keeps_them_when_its_begin_is_truncated() -> None:
    rows: list[Pairs] = [[("a", b"0")], [("a", b"1"), ("a", b"2")], [], [("b", b"3")]]
    block = block_of(rows)
    place(block, 70)
    (left,) = trimmed([StoredBlock(0, 5_000, 13, block)], (5_000, 11))
    assert pairs_of(decode(left.block).header_cells()) == rows[1:]


@pytest.mark.parametrize(
    "cells",
    [
        HeaderCells([0, 1], ["a"], [b""]),
        HeaderCells([0, 1, 1, 1], ["a"], [b""]),
        HeaderCells([0, 1, 2], ["a"], [b""]),
        HeaderCells([0, 1, 1], ["a", "b"], [b"", b""]),
        HeaderCells([0, 1, 1], ["a"], [b"", b""]),
        HeaderCells([0, 2, 1], ["a"], [b""]),
        HeaderCells([1, 1, 1], ["a"], [b""]),
    ],
)
def test_cells_that_do_not_fit_the_messages_are_refused(cells: HeaderCells) -> None:
    with pytest.raises(Invalid, match="do not fit 2 messages"):
        encode([b"1", b"2"], headers=cells)


@pytest.mark.parametrize(
    ("name", "value"), [("", b""), ("a", "text"), (b"a", b""), ("\ud800", b"")]
)
def test_a_header_that_no_message_may_have_is_named(name: Any, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        encode([b"1", b"2"], headers=HeaderCells([0, 1, 2], ["a", name], [b"", value]))
    assert caught.value.details["index"] == 1
