"""Stored blocks become batches that clients read: offsets, append time, every byte of a message."""

import struct

import google_crc32c
import pytest
from aiokafka.record._crecords import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.kafka.records_batches import HEADER, LIMITS, TIME_MS, Record, batch, time_of
from tests.compat.kafka.test_records import record_lists
from tms.block import HeaderCells, place, thin
from tms.block import encode as pack
from tms.block.arrow import Compression
from tms.compat.kafka import records
from tms.compat.kafka.records import OFFSETS_MAX, decode, encode, gap
from tms.compat.kafka.records_cache import ENTRY_BYTES, EncodedBatches, identity
from tms.errors import DataCorrupt, TooLarge
from tms.model.ids import TIME_MS_MAX
from tms.model.message import MESSAGES_MAX, Buffer, StoredBlock


def stored(block: bytearray, base_offset: int = 1_000, sequence: int = 99) -> StoredBlock:
    place(block, base_offset, 0)
    return StoredBlock(0, TIME_MS, sequence, bytes(block))


def read(encoded: Buffer) -> list[tuple[int, Record]]:
    """Offsets and records, as a client's own parser finds them."""
    parsed = DefaultRecordBatch(encoded)
    assert parsed.validate_crc()
    return [(one.offset, Record(one.key, one.value, one.headers), one.timestamp) for one in parsed]  # type: ignore[return-value]


@given(record_lists, st.integers(0, 1 << 62))
def test_a_client_reads_what_was_published(records: list[Record], base_offset: int) -> None:
    (block,) = decode(batch(records), LIMITS).blocks
    encoded = encode(stored(block, base_offset), leader_epoch=4)
    expected = [(base_offset + at, one, time_of(at)) for at, one in enumerate(records)]
    assert read(encoded) == expected
    assert DefaultRecordBatch(encoded).timestamp_type == 0
    assert struct.unpack_from(">i", encoded, 12) == (4,)


@given(record_lists)
def test_encoding_is_a_function_of_the_block(records: list[Record]) -> None:
    (block,) = decode(batch(records), LIMITS).blocks
    first, second = stored(block), stored(bytearray(block))
    assert encode(first) == encode(second)
    placed = bytearray(first.block)
    elsewhere = encode(stored(placed, 5))
    assert encode(first)[8:] == elsewhere[8:]


def test_the_header_says_who_and_when() -> None:
    (block,) = decode(batch([Record(), Record()]), LIMITS).blocks
    encoded = encode(stored(block, 70))
    crc = google_crc32c.value(bytes(encoded[21:]))
    assert HEADER.unpack_from(encoded) == (
        *(70, len(encoded) - 12, -1, 2, crc, 0, 1, TIME_MS, TIME_MS + 1, -1, -1, -1, 2),
    )


def test_a_block_without_event_times_has_the_append_time() -> None:
    encoded = encode(stored(pack([b"1", b"2"]), 70))
    assert HEADER.unpack_from(encoded)[5:9] == (8, 1, TIME_MS, TIME_MS)
    assert [one[2] for one in read(encoded)] == [TIME_MS, TIME_MS]


@given(st.lists(st.none() | st.integers(0, TIME_MS_MAX), min_size=1, max_size=40))
def test_a_message_without_an_event_time_has_the_append_time(times: list[int | None]) -> None:
    encoded = encode(stored(pack([b""] * len(times), event_times=times)))
    shown = [TIME_MS if time is None else time for time in times]
    assert [one[2] for one in read(encoded)] == shown
    assert HEADER.unpack_from(encoded)[8] == max(shown)
    assert DefaultRecordBatch(encoded).timestamp_type == (set(times) == {None})


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_compressed_block_is_encoded_as_a_plain_one(compression: Compression) -> None:
    values: list[bytes | None] = [b"v" * 200, None, b""] * 50
    plain, packed = (
        encode(stored(pack(values, headers=[{"a": b"b"}] * 150, compression=one)))
        for one in (Compression.NONE, compression)
    )
    assert plain == packed


def test_offset_deltas_and_lengths_of_every_size_are_encoded() -> None:
    values: list[bytes | None] = [b"x" * (at % 70) for at in range(MESSAGES_MAX)]
    values[3] = bytes((1 << 20) + 1)
    found = read(encode(stored(pack(values))))
    assert [one[0] - 1_000 for one in found] == [*range(MESSAGES_MAX)]
    assert [one[1].value for one in found] == values


@given(record_lists, st.data())
def test_a_sparse_block_covers_the_offsets_of_removed_messages(
    records: list[Record], data: st.DataObject
) -> None:
    keep = data.draw(
        st.lists(st.integers(0, len(records) - 1), min_size=1, unique=True).map(sorted)
    )
    (block,) = decode(batch(records), LIMITS).blocks
    whole = stored(block)
    left = StoredBlock(0, TIME_MS, 99, thin(whole.block, keep))
    encoded = encode(left)
    assert read(encoded) == [(1_000 + at, records[at], time_of(at)) for at in keep]
    assert DefaultRecordBatch(encoded).next_offset == 1_000 + len(records)


def test_headers_of_tms_reach_kafka() -> None:
    block = pack([b"1", b"2", b"3"], [b"k", None, b""], [{"é": b"x", "b": b""}, None, {}])
    assert [one[1] for one in read(encode(stored(block)))] == [
        Record(b"k", b"1", [("é", b"x"), ("b", b"")]),
        Record(None, b"2", []),
        Record(b"", b"3", []),
    ]


def test_a_damaged_block_is_not_encoded() -> None:
    block = bytearray(stored(pack([b"value"])).block)
    block[-1] ^= 1
    with pytest.raises(DataCorrupt, match="fsck"):
        encode(StoredBlock(0, TIME_MS, 0, block))


def test_a_block_is_never_encoded_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 500)
    assert len(read(encode(stored(pack([b"x" * 100] * 3))))) == 3
    with pytest.raises(TooLarge, match="500 bytes"):
        encode(stored(pack([b"x" * 100] * 5)))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 8), (1 << 40, (1 << 40) + OFFSETS_MAX)])
def test_a_gap_moves_a_position_and_has_no_records(start: int, stop: int) -> None:
    parsed = DefaultRecordBatch(gap(start, stop, leader_epoch=3))
    assert parsed.validate_crc()
    assert (parsed.base_offset, parsed.next_offset) == (start, stop)
    assert [*parsed] == []
    assert HEADER.unpack_from(gap(start, stop, 3))[2:4] == (3, 2)
    assert HEADER.unpack_from(gap(start, stop))[7:] == (-1, -1, -1, -1, -1, 0)


def test_a_gap_longer_than_a_batch_ends_where_it_must() -> None:
    parsed = DefaultRecordBatch(gap(10, 1 << 50))
    assert parsed.next_offset == 1 << 50
    assert parsed.last_offset_delta == OFFSETS_MAX - 1


@pytest.mark.parametrize(("start", "stop"), [(5, 5), (6, 5), (-1, 5)])
def test_a_gap_without_offsets_is_a_defect_of_the_caller(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="at least one offset"):
        gap(start, stop)


def test_batches_are_found_by_what_they_were_made_of() -> None:
    batches = EncodedBatches(1 << 20)
    block = stored(pack([b"1", b"2"]))
    key = identity(7, block, 0)
    assert batches.find(key) is None
    batches.add(key, b"encoded")
    assert batches.find(identity(7, block, 0)) == b"encoded"
    for other in (
        identity(8, block, 0),
        identity(7, block, 1),
        identity(7, StoredBlock(1, TIME_MS, 99, block.block), 0),
        identity(7, StoredBlock(0, TIME_MS + 1, 99, block.block), 0),
        identity(7, StoredBlock(0, TIME_MS, 100, block.block), 0),
        identity(7, StoredBlock(0, TIME_MS, 99, thin(block.block, [1])), 0),
        identity(7, stored(pack([b"1", b"3"])), 0),
        identity(7, stored(pack([b"1", b"2"]), 1_001), 0),
    ):
        assert batches.find(other) is None


def test_the_batches_that_were_read_least_recently_go() -> None:
    blocks = [stored(pack([b"x"]), at) for at in range(5)]
    keys = [identity(1, block, 0) for block in blocks]
    size = ENTRY_BYTES + 100
    batches = EncodedBatches(3 * size)
    for key in keys[:3]:
        batches.add(key, bytes(100))
    batches.find(keys[0])
    batches.add(keys[3], bytes(100))
    assert [batches.find(key) is not None for key in keys] == [True, False, True, True, False]
    assert batches.bytes == 3 * size
    batches.add(keys[3], bytes(100))  # a second reader encoded it, too
    assert batches.bytes == 3 * size
    batches.add(keys[4], bytes(3 * size))  # larger than all may be
    assert batches.find(keys[4]) is None
    assert batches.bytes == 3 * size


def test_a_name_may_occur_twice_in_the_headers_of_a_block() -> None:
    cells = HeaderCells([0, 2, 2, 3], ["a", "a", "b"], [b"1", b"2", b""])
    block = stored(pack([b"x"] * 3, headers=cells))
    assert [one[1].headers for one in read(encode(block))] == [
        [("a", b"1"), ("a", b"2")],
        [],
        [("b", b"")],
    ]
