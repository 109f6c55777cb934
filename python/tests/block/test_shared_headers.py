"""Headers that all messages of a block share: packed once and checked without unpacking, with the
same bytes and the same errors as one by one."""

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.block_kit import LIMITS, block_of, body_of, with_right_crc
from tms.block import (
    HEADER_BYTES,
    HEADER_VALUE_BYTES_MAX,
    MESSAGES_MAX,
    Compression,
    SharedHeaders,
    arrow,
    check,
    checking,
    decode,
    encode,
    schema,
)
from tms.block.arrow import HEADER_VALUE, HEADERS, NAME
from tms.errors import Invalid, TMSError

PLACE = {"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
COUNT = 40  # more than can be checked without pyarrow

NAMES = st.sampled_from(["traceparent", "", "ä", "\ud800", "x" * 300]) | st.text(max_size=8)
TEXTS: st.SearchStrategy[Any] = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=8).map(bytearray),
    st.sampled_from(["text", None, 7, memoryview(b"x"), bytes(HEADER_VALUE_BYTES_MAX + 1)]),
)
ROWS = st.dictionaries(NAMES | st.just(7), TEXTS, min_size=1, max_size=2)


def outcome(call: Any) -> object:
    """Its result, or the error that it raises."""
    try:
        return call()
    except TMSError as error:
        return type(error), error.message, error.details


@given(ROWS, st.integers(1, 70), st.booleans(), st.sampled_from(Compression))
@example({"a": bytes(HEADER_VALUE_BYTES_MAX)}, MESSAGES_MAX, False, Compression.NONE)
def test_they_are_packed_like_headers_of_each_message(
    row: Any, count: int, has_keys: bool, compression: Compression
) -> None:
    values: list[bytes | None] = [b"%d" % n if n % 3 else None for n in range(count)]
    keys = values[::-1] if has_keys else None

    def packed(headers: Any) -> object:
        return outcome(lambda: encode(values, keys, headers, compression=compression))

    assert packed(SharedHeaders(row, count)) == packed([row] * count)


def test_they_are_a_sequence() -> None:
    shared = SharedHeaders(PLACE, 5)
    rows = [PLACE] * 5
    assert (len(shared), list(shared), shared[4], shared[-1]) == (5, rows, PLACE, PLACE)
    assert list(shared[1:3]) == rows[1:3]
    with pytest.raises(IndexError):
        shared[5]


def test_as_many_headers_as_messages_are_wanted() -> None:
    def packed(headers: Any) -> object:
        return outcome(lambda: encode([b"1", b"2"], None, headers))

    assert packed(SharedHeaders(PLACE, 3)) == packed([PLACE] * 3)
    assert isinstance(packed(SharedHeaders(PLACE, 3)), tuple)


def glance(block: bytearray) -> bool:
    """True if the ends alone show that the headers are allowed."""
    layout, body = arrow.read(block, HEADER_BYTES)
    return checking._is_one_header_each(block, body, layout)


def checked_one_by_one(block: bytearray) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "_is_one_header_each", lambda *_: False)
        return outcome(lambda: check(block, **LIMITS))


def test_a_block_in_which_they_are_shared_is_checked_at_a_glance() -> None:
    values = [b"value"] * COUNT
    assert glance(encode(values, None, SharedHeaders(PLACE, COUNT)))
    assert not glance(encode(values, None, [*[PLACE] * (COUNT - 1), {}]))
    assert not glance(encode(values, None, [*[PLACE] * (COUNT - 1), {"traceparent": b""}]))
    assert not glance(encode(values, None, SharedHeaders({**PLACE, "b": b"c"}, COUNT)))


@given(
    st.lists(st.integers(0, 2), min_size=COUNT, max_size=COUNT) | st.just([1] * COUNT),
    st.sampled_from([0, 1, HEADER_VALUE_BYTES_MAX]),
    st.sampled_from([HEADERS, NAME, HEADER_VALUE]),
    st.integers(0, COUNT),
    st.integers(-2, 2) | st.sampled_from([-(2**31), 2**31 - 1]),
)
def test_a_glance_lets_nothing_else_pass(
    sizes: list[int], text: int, column: int, at: int, added: int
) -> None:
    """Checked with ends of headers of which one was moved."""
    rows = [{"n" * (1 + size // 2): bytes(text)} if size else {} for size in sizes]
    block = encode([b"value"] * COUNT, None, rows)
    layout, body = arrow.read(block, HEADER_BYTES)
    place = body + layout.buffers[2 * column + 2] + 4 * at
    if place + 4 <= len(block):
        (end,) = struct.unpack_from("<i", block, place)
        struct.pack_into("<i", block, place, max(-(2**31), min(2**31 - 1, end + added)))
    block = with_right_crc(block)
    assert outcome(lambda: check(block, **LIMITS)) == checked_one_by_one(block)


Sent = list[list[tuple[str, bytes]]]
LONGEST = HEADER_VALUE_BYTES_MAX


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([[("name", b"")]] * COUNT, ""),
        ([[("name", bytes(LONGEST))]] * COUNT, ""),
        ([[("name", bytes(LONGEST + 1))]] * COUNT, "value has at most"),
        ([[("", b"text")]] * COUNT, "name is empty"),
        ([[("n", b"")], [("", b"")], [("nn", b"")], *[[("n", b"")]] * COUNT], "name is empty"),
        (
            [
                [("n", bytes(size))]
                for size in (LONGEST, LONGEST + 1, LONGEST - 1, *[LONGEST] * COUNT)
            ],
            "value has at most",
        ),
        ([[("n", b"")], [("n", b"")] * 1_001, *[[]] * 1_000], "at most 1000 headers"),
    ],
)
def test_what_no_block_may_hold_is_refused_at_a_glance_or_not(headers: Sent, why: str) -> None:
    """Another program may have packed headers that `encode` refuses, as many as messages."""
    columns = [[None] * len(headers), [b"v"] * len(headers), headers]
    arrays = [pa.array(cells, kind) for cells, kind in zip(columns, schema().types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema())
    block = block_of(body_of(batch), len(headers))
    limits = {"message_bytes_max": 8 << 20, "decompressed_bytes_max": 1 << 24}
    if why:
        with pytest.raises(Invalid, match=why):
            check(block, **limits)
    else:
        assert check(block, **limits).count == len(headers)


def test_a_large_first_header_of_many_is_not_taken_for_that_of_all() -> None:
    """If it were repeated for all, they would have more bytes than ends can say."""
    rows = [{"n": bytes(HEADER_VALUE_BYTES_MAX)}, *[{"n": b""}] * (MESSAGES_MAX - 1)]
    block = encode([b""] * MESSAGES_MAX, None, rows)
    assert check(block, **LIMITS).count == MESSAGES_MAX
    assert not glance(block)
    assert decode(block).slice(0, 2).headers() == rows[:2]
