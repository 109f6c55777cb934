"""Packing and unpacking blocks: unpacked messages equal the packed ones, and pyarrow reads the
same."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.block_kit import Messages, batch_of, block_of, body_of, unpack
from tms.block import (
    HEADER_BYTES,
    HEADERS_ADDED_MAX,
    HEADERS_MAX,
    MESSAGES_MAX,
    BlockHeader,
    Compression,
    check,
    decode,
    encode,
    encode_batch,
    place,
    read_header,
)
from tms.errors import DataCorrupt, Invalid, TooLarge

CELLS = st.none() | st.binary(max_size=40)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
MESSAGES = st.lists(
    st.tuples(CELLS, CELLS, st.dictionaries(NAMES, st.none() | st.binary(max_size=10), max_size=3)),
    min_size=1,
    max_size=45,  # on both sides of what is unpacked without pyarrow
).map(lambda rows: Messages(*map(list, zip(*rows, strict=True))))
SIZES = [1, 2, 8, 9, 31, 32, 33, 300]


def some(count: int) -> Messages:
    """`count` messages, some with nulls and headers."""
    return Messages(
        [None if i % 7 == 6 else b"value %d" % i for i in range(count)],
        [None if i % 3 == 2 else b"key %d" % i for i in range(count)],
        [{"näme": b"%d" % i, "b": b"", "c": None} if i % 5 == 0 else {} for i in range(count)],
    )


@given(MESSAGES, st.sampled_from(Compression))
def test_messages_come_out_as_they_went_in(messages: Messages, compression: Compression) -> None:
    assert unpack(encode(*messages, compression=compression)) == messages


@given(MESSAGES)
def test_the_body_is_byte_for_byte_what_pyarrow_makes(messages: Messages) -> None:
    block = encode(*messages)
    assert block[HEADER_BYTES:] == body_of(batch_of(*messages))


@given(MESSAGES, st.integers(0, 44), st.integers(1, 45))
def test_a_block_of_columns_is_one_of_their_messages(
    messages: Messages, start: int, count: int
) -> None:
    part = batch_of(*messages).slice(min(start, len(messages.values) - 1), count)
    block = encode_batch(part, producer_id=7, producer_sequence=3)
    header = check(block, message_bytes_max=1_000, decompressed_bytes_max=100_000)
    assert (header.producer_id, header.producer_sequence) == (7, 3)
    stop = min(start, len(messages.values) - 1)
    assert unpack(block) == Messages(*(column[stop : stop + count] for column in messages))


def test_only_columns_of_a_block_become_one() -> None:
    batch = batch_of(*some(9))
    for wrong in (batch.slice(0, 0), batch.select(["key", "value"])):
        with pytest.raises(Invalid):
            encode_batch(wrong)
    with pytest.raises(TooLarge):
        encode_batch(batch_of([b""] * (MESSAGES_MAX + 1)))


@pytest.mark.parametrize("count", SIZES)
def test_values_alone_are_byte_for_byte_what_pyarrow_makes(count: int) -> None:
    values = [b"%d" % i for i in range(count)]
    assert encode(values)[HEADER_BYTES:] == body_of(batch_of(values))


@given(MESSAGES, st.sampled_from(Compression))
def test_pyarrow_reads_the_same_messages(messages: Messages, compression: Compression) -> None:
    batch = decode(encode(*messages, compression=compression)).record_batch()
    batch.validate(full=True)
    assert batch.equals(batch_of(*messages))


@given(MESSAGES, st.sampled_from([None, "lz4", "zstd"]), st.booleans())
def test_what_pyarrow_wrote_is_read(
    messages: Messages, compression: str | None, custom: bool
) -> None:
    batch = batch_of(*messages)
    body = body_of(batch, compression, {"another": "layout"} if custom else None)
    assert unpack(block_of(body, len(messages.values))) == messages


@pytest.mark.parametrize("count", SIZES)
def test_a_null_map_of_headers_reads_as_empty(count: int) -> None:
    values, keys, headers = some(count)
    maps = [row or None for row in headers]
    assert unpack(block_of(body_of(batch_of(values, keys, maps)), count)).headers == headers


def test_none_and_empty_bytes_are_different() -> None:
    assert unpack(encode([None, b""], [b"", None])) == ([None, b""], [b"", None], [{}, {}])


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("count", SIZES)
def test_a_slice_has_the_messages_of_its_range(count: int, compression: Compression) -> None:
    columns = decode(encode(*some(count), compression=compression))
    whole = some(count)
    for start, stop in [(0, count), (1, count), (count // 2, count - 1), (count, count), (0, 9999)]:
        part = columns.slice(start, stop)
        found = Messages(part.values(), part.keys(), part.headers())
        assert found == tuple(column[start:stop] for column in whole)
        assert part.count == len(found.values) == part.record_batch().num_rows
        again = part.slice(1, 3)
        assert again.values() == found.values[1:3]


@pytest.mark.parametrize("count", SIZES)
def test_a_block_may_lie_anywhere_in_memory(count: int) -> None:
    block = encode(*some(count))
    for shift in range(9):
        body = bytes(shift) + block + b"more"
        assert unpack(memoryview(body)[shift : shift + len(block)]) == some(count)


def test_the_header_says_what_was_asked_for() -> None:
    block = encode([b"a", b"b"], producer_id=2**63 + 1, producer_sequence=2**32 - 1)
    header = read_header(block)
    assert header == BlockHeader(0, 2, header.crc, 0, 0, 2**63 + 1, 2**32 - 1)


def test_place_fills_in_the_service_part_and_nothing_else() -> None:
    block = encode([b"value"], producer_id=7, producer_sequence=8)
    before, body = read_header(block), bytes(block[HEADER_BYTES:])
    block[0:4], block[5:8] = b"\xff" * 4, b"\xff" * 3
    place(memoryview(block), 2**40)
    assert read_header(block) == replace(before, flags=0, base_offset=2**40)
    assert block[HEADER_BYTES:] == body
    assert block[:8] == b"TMSB\x01\x00\x00\x00"


def test_a_block_holds_as_many_messages_as_it_may() -> None:
    values = [b"v"] * MESSAGES_MAX
    assert decode(encode(values)).values() == values


def test_bytes_like_cells_are_copied() -> None:
    value = bytearray(b"value")
    block = encode([value, memoryview(b"view")])  # type: ignore[list-item]
    value[:] = b"other"
    assert decode(block).values() == [b"value", b"view"]


def test_compression_makes_blocks_smaller_and_never_much_larger() -> None:
    plain = len(encode([b"again and again"] * 1_000))
    for compression in (Compression.LZ4, Compression.ZSTD):
        assert len(encode([b"again and again"] * 1_000, compression=compression)) < plain / 4
        assert len(encode([b"x"], compression=compression)) < len(encode([b"x"])) + 15 * 8


@pytest.mark.parametrize(
    ("values", "keys", "index"),
    [
        (["text"], None, 0),
        ([b"a", "text"], None, 1),
        ([b"a", 1, b"c"], None, 1),
        ([None, b"a", 1.5], None, 2),
        ([b"a", [b"b"]], None, 1),
        ([b"a", memoryview(b"12345678").cast("i")], None, 1),
        ([b"a", b"b"], [None, "key"], 1),
        ([b"a"], [7], 0),
    ],
)
def test_cells_of_another_type_are_refused_by_index(values: Any, keys: Any, index: int) -> None:
    with pytest.raises(Invalid, match="bytes or None") as caught:
        encode(values, keys)
    assert caught.value.details == {"index": index}


@pytest.mark.parametrize(
    "row",
    [
        {"": b"v"},
        {b"name": b"v"},
        {"name": "v"},
        {"\ud800": b"v"},
        {f"h{i}": b"" for i in range(HEADERS_MAX + HEADERS_ADDED_MAX + 1)},
        [("name", b"v")],
        "name",
    ],
)
def test_headers_that_no_block_holds_are_refused_by_index(row: Any) -> None:
    with pytest.raises(Invalid, match="Headers are a mapping of str to bytes or None: ") as caught:
        encode([b"a", b"b"], headers=[{"fine": b""}, row])
    assert caught.value.details == {"index": 1}


def test_a_message_may_have_as_many_headers_as_the_limit() -> None:
    headers = [{f"h{i}": b"%d" % i for i in range(HEADERS_MAX)}]
    assert unpack(encode([b"v"], headers=headers)).headers == headers


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(Invalid, match="1 keys"):
        encode([b"a", b"b"], [None])
    with pytest.raises(Invalid, match="3 headers"):
        encode([b"a", b"b"], headers=[None] * 3)


def test_a_block_of_no_message_or_of_too_many_is_refused() -> None:
    with pytest.raises(Invalid, match="at least one"):
        encode([])
    with pytest.raises(TooLarge, match="65536"):
        encode([b""] * (MESSAGES_MAX + 1))


def test_more_bytes_than_arrow_can_count_are_refused() -> None:
    half = bytes(2**30)
    with pytest.raises(TooLarge, match="2 GiB"):
        encode([half, half])


@pytest.mark.parametrize("count", SIZES)
def test_damaged_stored_bytes_are_never_delivered(count: int) -> None:
    stored = bytes(encode(*some(count)))
    for at in (0, 4, 6, 8, 11, 12, 44, HEADER_BYTES, HEADER_BYTES + 100, len(stored) - 1):
        damaged = bytearray(stored)
        damaged[at] ^= 1
        with pytest.raises(DataCorrupt, match="tms fsck"):
            decode(damaged)
    for length in (0, 47, 48, 49, len(stored) - 1):
        with pytest.raises(DataCorrupt, match="tms fsck"):
            decode(stored[:length])


def test_a_few_messages_need_no_pyarrow() -> None:
    program = """
import sys
from tms.block import check, decode, encode
columns = [b"value"] * 8, [b"key"] * 8, [{"name": b"text"}] * 8
block = encode(*columns)
check(block, message_bytes_max=100, decompressed_bytes_max=10_000)
unpacked = decode(block)
assert (unpacked.values(), unpacked.keys(), unpacked.headers()) == columns
encode([b"value"] * 10_000)
assert "pyarrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_larger_block_is_unpacked_alike_with_and_without_pyarrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 500
    values = [None if i % 7 == 0 else b"%d" % i for i in range(count)]
    keys = [b"k%d" % i if i % 3 else None for i in range(count)]
    headers = [{"n": b"%d" % i} if i % 5 == 0 else None for i in range(count)]
    block = encode(values, keys, headers)
    with_pyarrow = decode(block)
    found = (with_pyarrow.values(), with_pyarrow.keys(), with_pyarrow.headers())
    monkeypatch.delitem(sys.modules, "pyarrow")
    without = decode(block)
    assert (without.values(), without.keys(), without.headers()) == found
    part = without.slice(3, 90)
    assert part.values() == values[3:90]
    assert "pyarrow" not in sys.modules
