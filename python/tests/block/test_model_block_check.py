"""Checking incoming blocks: for any bytes, the result is an error of TMS or a sound block."""

import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.block_kit import (
    LIMITS,
    batch_of,
    block_of,
    body_of,
    unpack,
    with_right_crc,
)
from tms.block import (
    HEADER_BYTES,
    HEADERS_MAX,
    MESSAGES_MAX,
    Compression,
    arrow,
    check,
    decode,
    encode,
    schema,
)
from tms.errors import (
    BadBlock,
    CrcMismatch,
    DecompressedTooLarge,
    Invalid,
    TMSError,
    TooLarge,
)
from tms.model.message import Headers

COMPRESSED = [Compression.LZ4, Compression.ZSTD]
# Checks of TMS and checks of pyarrow.
COUNTS = [1, 3, 50]


def block(count: int, compression: Compression = Compression.NONE) -> bytearray:
    """A block with nulls and headers."""
    values = [b"value %d" % i if i % 4 else None for i in range(1, count + 1)]
    return encode(values, None, [{"name": b"text"}] * count, compression=compression)


def sound_or_refused(candidate: bytearray) -> None:
    """Check the promise of `check`: an error of TMS, or every reader can read the block."""
    try:
        header = check(candidate, **LIMITS)
    except TMSError:
        return
    columns = decode(candidate)
    batch = columns.record_batch()
    batch.validate(full=True)
    assert batch.num_rows == header.count
    assert columns.keys() == batch.column(0).to_pylist()
    assert columns.values() == batch.column(1).to_pylist()
    assert columns.headers() == [dict(row or ()) for row in batch.column(2).to_pylist()]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("compression", Compression)
def test_a_sound_block_passes(count: int, compression: Compression) -> None:
    made = block(count, compression)
    assert check(made, **LIMITS).count == count
    assert check(bytes(made), **LIMITS) == check(memoryview(made), **LIMITS)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("compression", Compression)
def test_every_truncation_is_refused(count: int, compression: Compression) -> None:
    whole = block(count, compression)
    for length in range(len(whole)):
        with pytest.raises(BadBlock):
            check(whole[:length], **LIMITS)
        if length >= HEADER_BYTES:
            with pytest.raises(BadBlock):
                check(with_right_crc(whole[:length]), **LIMITS)


@pytest.mark.parametrize("extra", [b"\0", bytes(8), b"more!!!!"])
def test_bytes_after_the_record_batch_are_refused(extra: bytes) -> None:
    with pytest.raises(BadBlock, match="does not end where the block ends"):
        check(with_right_crc(block(3) + extra), **LIMITS)


@pytest.mark.parametrize("count", COUNTS)
def test_every_flipped_bit_is_refused(count: int) -> None:
    whole = block(count)
    placed_or_producer = {
        *range(16, 44)
    }  # base offset, write pointer, producer: any value is right
    for at in {*range(len(whole))} - placed_or_producer:
        for bit in range(8):
            flipped = whole.copy()
            flipped[at] ^= 1 << bit
            with pytest.raises(BadBlock):
                check(flipped, **LIMITS)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("compression", Compression)
def test_no_flipped_bit_with_a_right_crc_hurts_a_reader(
    count: int, compression: Compression
) -> None:
    flip_all(block(count, compression), count)


@pytest.mark.parametrize("count", COUNTS)
def test_no_flipped_bit_in_the_layout_of_another_writer_hurts_a_reader(count: int) -> None:
    batch = decode(block(count)).record_batch()
    flip_all(block_of(body_of(batch, None, {"another": "layout"}), count), count)


def flip_all(whole: bytearray, count: int) -> None:
    for at in range(HEADER_BYTES, len(whole)):
        for bit in range(8) if count < 10 else [at % 8]:
            flipped = whole.copy()
            flipped[at] ^= 1 << bit
            sound_or_refused(with_right_crc(flipped))


WORDS = [0, 1, 7, 8, 9, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]


@given(
    st.sampled_from(COUNTS),
    st.sampled_from(Compression),
    st.lists(
        st.tuples(st.integers(0, 62), st.sampled_from(WORDS) | st.integers(0, 2**64 - 1)),
        min_size=1,
        max_size=4,
    ),
)
def test_no_number_in_the_metadata_hurts_a_reader(
    count: int, compression: Compression, changes: list[tuple[int, int]]
) -> None:
    changed = block(count, compression)
    for word, number in changes:
        struct.pack_into("<Q", changed, HEADER_BYTES + 8 * word, number)
    sound_or_refused(with_right_crc(changed))


@given(st.binary(max_size=600), st.integers(1, 5))
@example(b"", 1)
@example(b"\xff\xff\xff\xff\xf8\xff\xff\xff" + bytes(8), 1)
def test_no_bytes_at_all_hurt_a_reader(body: bytes, count: int) -> None:
    sound_or_refused(block_of(body, count))


@given(st.binary(min_size=8, max_size=400))
def test_no_flatbuffer_at_all_hurts_a_reader(metadata: bytes) -> None:
    metadata += bytes(-len(metadata) % 8)
    sound_or_refused(block_of(struct.pack("<II", 0xFFFFFFFF, len(metadata)) + metadata, 1))


def test_what_the_header_must_say() -> None:
    whole = block(1)
    for at, byte, says in [
        (0, 0x00, 'begins with "TMSB"'),
        (5, 0x01, "without flags"),
        (6, 0x01, "reserved"),
        (7, 0x01, "reserved"),
        (44, 0x01, "reserved"),
        (47, 0x01, "reserved"),
    ]:
        changed = whole.copy()
        changed[at] = byte
        with pytest.raises(BadBlock, match=says):
            check(changed, **LIMITS)
    for count in (0, MESSAGES_MAX + 1, 2**32 - 1):
        with pytest.raises(BadBlock, match="1 to 65536 messages"):
            check(block_of(bytes(whole[HEADER_BYTES:]), count), **LIMITS)
    with pytest.raises(BadBlock, match="says 2 messages, its body has 1"):
        check(block_of(bytes(whole[HEADER_BYTES:]), 2), **LIMITS)


def test_a_later_format_version_is_refused_by_name() -> None:
    later = block(1)
    later[4] = 7
    with pytest.raises(BadBlock, match="format version 7") as caught:
        check(later, **LIMITS)
    assert caught.value.details == {"version": 7}


def test_a_damaged_body_is_told_from_a_malformed_one() -> None:
    damaged = block(1)
    damaged[-1] ^= 1
    with pytest.raises(CrcMismatch, match="send it again"):
        check(damaged, **LIMITS)


def test_other_schemas_are_refused() -> None:
    for batch in (
        pa.record_batch({"key": pa.array([b"k"])}),
        pa.record_batch([*batch_of([b"v"]).columns, pa.array([1])], ["a", "b", "c", "d"]),
        pa.record_batch({"key": pa.array(["k"]), "value": pa.array(["v"]), "headers": [None]}),
    ):
        with pytest.raises(BadBlock, match="columns of a block"):
            check(block_of(body_of(batch), 1), **LIMITS)
    with pytest.raises(BadBlock, match="not an Arrow record batch"):
        check(block_of(schema().serialize().to_pybytes(), 1), **LIMITS)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_bomb_is_refused_before_memory_is_taken(compression: Compression) -> None:
    bomb = block_of(body_of(batch_of([bytes(16 << 20)]), compression.value), 1)
    assert len(bomb) < 1 << 20
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        with pytest.raises(DecompressedTooLarge, match="once decompressed"):
            check(bomb, message_bytes_max=1 << 30, decompressed_bytes_max=16 << 20)
        assert counting.max_memory() == 0
        assert check(bomb, message_bytes_max=1 << 30, decompressed_bytes_max=17 << 20).count == 1
        assert counting.max_memory() > 16 << 20
    finally:
        pa.set_memory_pool(usual)


def declared_lengths(compressed: bytearray) -> Iterator[int]:
    """The offsets at which the compressed buffers of a block state their decompressed length."""
    for at in range(HEADER_BYTES + 400, len(compressed) - 8, 8):
        if struct.unpack_from("<q", compressed, at)[0] in (-1, 2_000):
            yield at


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize(
    "lie", [0, 1, 1_999, 2_001, 1 << 23, 1 << 25, 1 << 40, 2**63 - 1, -2, -(2**63)]
)
def test_a_buffer_that_lies_about_its_length_is_refused(compression: Compression, lie: int) -> None:
    honest = encode([bytes(2_000)], compression=compression)
    places = list(declared_lengths(honest))
    assert len(places) > 3
    for at in places:
        liar = honest.copy()
        struct.pack_into("<q", liar, at, lie)
        with pytest.raises(DecompressedTooLarge if lie > 1 << 24 else BadBlock):
            check(with_right_crc(liar), **LIMITS)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("count", [1, 2, 50])
@pytest.mark.parametrize("size", [1_000, 9_001])
def test_a_message_may_have_exactly_the_limit(
    compression: Compression, count: int, size: int
) -> None:
    headers = [{"name": b"12", "é": b"1"}] * count  # 4 + 2 + 2 + 1
    values: list[bytes | None] = [*[b"v"] * (count - 1), bytes(size - 12)]
    made = encode(values, [b"key"] * count, headers, compression=compression)
    assert check(made, message_bytes_max=size, decompressed_bytes_max=1 << 20).count == count
    with pytest.raises(TooLarge, match=f"this one has {size}") as caught:
        check(made, message_bytes_max=size - 1, decompressed_bytes_max=1 << 20)
    assert caught.value.details == {"index": count - 1}


@pytest.mark.parametrize("compression", Compression)
def test_a_body_may_have_exactly_the_limit(compression: Compression) -> None:
    made = block_of(body_of(batch_of([bytes(10_000)] * 9)), 9)
    size = len(made) - HEADER_BYTES - 432
    if compression is not Compression.NONE:
        made = encode([bytes(10_000)] * 9, compression=compression)
        size = 2 + 40 + 40 + 90_000 + 40 + 4 + 4  # buffers without padding
    check(made, message_bytes_max=1 << 20, decompressed_bytes_max=size)
    with pytest.raises(DecompressedTooLarge, match=f"{size} bytes"):
        check(made, message_bytes_max=1 << 20, decompressed_bytes_max=size - 1)


def foreign_headers(
    names: list[bytes], ends: list[int], count: int, nulls: list[bool] | None = None
) -> bytearray:
    """A block whose headers pyarrow would not build: any names, with any ends."""
    kind = schema().field("headers").type
    raw = pa.array(names, pa.binary())
    keys = pa.Array.from_buffers(pa.utf8(), len(names), raw.buffers())
    texts = pa.array([b"text"] * len(names), pa.binary())
    entries = pa.StructArray.from_arrays([keys, texts], fields=[kind.key_field, kind.item_field])
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    validity = None if nulls is None else pa.array([not null for null in nulls]).buffers()[1]
    null_count = sum(nulls or [])
    maps = pa.Array.from_buffers(kind, count, [validity, offsets], null_count, 0, [entries])
    columns = [pa.nulls(count, pa.binary()), pa.nulls(count, pa.binary()), maps]
    return block_of(body_of(pa.RecordBatch.from_arrays(columns, schema=schema())), count)


@pytest.mark.parametrize("extra", [0, 60])
def test_names_of_headers_are_utf_8_and_not_empty(extra: int) -> None:
    names = [b"a", b"b", *[b"c"] * extra]
    ends = [0, 1, 2 + extra]
    assert len(unpack(foreign_headers(names, ends, 2)).headers) == 2
    with pytest.raises(Invalid, match="name is empty") as caught:
        check(foreign_headers([b"a", b"", *names[2:]], ends, 2), **LIMITS)
    assert caught.value.details == {"index": 1}
    for wrong in ([b"\xff", b"b"], [b"\xc3", b"\xa9"]):  # é, cut in two
        with pytest.raises(BadBlock, match=r"UTF-8|UTF8"):
            check(foreign_headers([*wrong, *names[2:]], ends, 2), **LIMITS)


def test_a_message_has_at_most_so_many_headers() -> None:
    names = [b"n"] * (HEADERS_MAX + 1)
    with pytest.raises(Invalid, match="at most 1000 headers") as caught:
        check(foreign_headers(names, [0, 0, HEADERS_MAX + 1], 2), **LIMITS)
    assert caught.value.details == {"index": 1}


@pytest.mark.parametrize("extra", [0, 60])
def test_a_null_map_of_headers_holds_nothing(extra: int) -> None:
    names = [b"n"] * (2 + extra)
    ends = [0, 1, 2 + extra]
    with pytest.raises(BadBlock, match="null map"):
        check(foreign_headers(names, ends, 2, [True, False]), **LIMITS)
    check(foreign_headers(names, [0, 0, 2 + extra], 2, [True, False]), **LIMITS)


@pytest.mark.parametrize("count", [1, 40])
def test_the_value_of_a_header_may_be_null(count: int) -> None:
    headers: list[Headers] = [{"name": None, "other": b"", "third": b"x"}] * count
    batch = batch_of([b"v"] * count, None, headers)
    assert unpack(block_of(body_of(batch), count)).headers == headers
    assert encode([b"v"] * count, headers=headers)[HEADER_BYTES:] == body_of(batch)


@pytest.mark.parametrize("count", [1, 40])
def test_null_values_of_headers_are_as_many_as_the_block_says(count: int) -> None:
    headers: list[Headers] = [{"name": None}] * count
    whole = encode([b"v"] * count, headers=headers)
    layout, body = arrow.read(whole, HEADER_BYTES)
    whole[body + layout.buffers[2 * arrow.HEADER_VALUE]] |= 1
    with pytest.raises(BadBlock):
        check(with_right_crc(whole), **LIMITS)
