"""Batches of producers become blocks with the records, in order, and the producer's sequence."""

import json
import tracemalloc
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compat.kafka.records_batches import (
    GZIP,
    LIMITS,
    LZ4,
    NONE,
    SNAPPY,
    TIME_MS,
    ZSTD,
    Record,
    batch,
    raw_snappy,
    record,
    records_of,
)
from tms.block import HEADER_VALUE_BYTES_MAX, HEADERS_MAX, MESSAGES_MAX, check, read_header
from tms.block import decode as unpack
from tms.compat.kafka.errors import BadRecords, ErrorCode
from tms.compat.kafka.records import RecordLimits, decode
from tms.model.ids import TIME_MS_MAX

LARGE = RecordLimits(16 << 20, 32 << 20, 8 << 20)
CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
CLIENTS = json.loads(Path(__file__).with_name("records_of_clients.json").read_text())
SENT = [  # by each client of the file
    Record(None, b"plain", []),
    Record(b"k", b"v" * 300, [("a", b"1"), ("a", b"2"), ("b", b"")]),
    Record(b"", b"", []),
    Record(b"gone", None, [("né", b"x" * 40)]),
    *(Record(b"key-%02d" % at, b"value %d " % at * 3, []) for at in range(20)),
]

cells = st.one_of(st.none(), st.binary(max_size=40), st.integers(60, 9_000).map(bytes))
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=100)), max_size=4)
record_lists = st.lists(st.builds(Record, cells, cells, headers), min_size=1, max_size=40)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("client", CLIENTS)
def test_the_batches_of_clients_are_read(client: str, codec: str) -> None:
    decoded = decode(bytes.fromhex(CLIENTS[client][codec]), LIMITS)
    (block,) = decoded.blocks
    assert records_of(block) == SENT
    assert decoded.record_count == len(SENT)
    assert decoded.base_timestamp_ms == TIME_MS
    header = check(block, LIMITS.message_bytes_max, LIMITS.block_bytes_max)
    assert header.producer_id == decoded.producer_id << 16 | decoded.producer_epoch
    assert header.producer_sequence == decoded.base_sequence


@given(record_lists, st.sampled_from(CODECS))
def test_a_block_has_the_records_of_its_batch(records: list[Record], codec: int) -> None:
    decoded = decode(memoryview(batch(records, codec)), LIMITS)
    (block,) = decoded.blocks
    check(block, LIMITS.message_bytes_max, LIMITS.block_bytes_max)
    assert records_of(block) == records


@given(record_lists)
def test_decoding_is_deterministic(records: list[Record]) -> None:
    plain, packed = (decode(batch(records, codec), LIMITS) for codec in (NONE, ZSTD))
    assert plain.blocks == packed.blocks


def test_raw_snappy_is_read_as_well_as_framed() -> None:
    records = [Record(b"k", b"value" * 100)] * 3
    payload = b"".join(record(one, at) for at, one in enumerate(records))
    raw = batch(records, payload=raw_snappy(payload), attributes=SNAPPY)
    assert records_of(decode(raw, LIMITS).blocks[0]) == [Record(b"k", b"value" * 100, [])] * 3


def test_a_producer_without_idempotence_leaves_no_trace_in_the_block() -> None:
    decoded = decode(batch([Record()]), LIMITS, producer_flags=32)
    assert (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence) == (-1, -1, -1)
    header = read_header(decoded.blocks[0])
    assert (header.producer_id, header.producer_sequence, header.flags) == (0, 0, 0)
    assert not decoded.transactional


def test_an_idempotent_producer_is_in_the_block() -> None:
    fields = {"producer_id": (1 << 47) - 1, "producer_epoch": 32_767, "base_sequence": 5}
    decoded = decode(batch([Record()], attributes=16, **fields), LIMITS, producer_flags=32)
    header = read_header(decoded.blocks[0])
    assert (header.producer_id, header.producer_sequence) == (((1 << 47) - 1 << 16) + 32_767, 5)
    assert header.flags == 32
    assert decoded.transactional
    assert decoded.max_timestamp_ms == TIME_MS + 2


def test_more_records_than_a_block_holds_become_blocks_whose_sequences_wrap() -> None:
    count = 2 * MESSAGES_MAX + 5
    fields = {"producer_id": 7, "producer_epoch": 1, "base_sequence": (1 << 31) - MESSAGES_MAX}
    records = [Record(b"%d" % at) for at in range(count)]
    decoded = decode(batch(records, **fields), LARGE)
    heads = [read_header(block) for block in decoded.blocks]
    assert [head.count for head in heads] == [MESSAGES_MAX, MESSAGES_MAX, 5]
    assert [head.producer_sequence for head in heads] == [
        (1 << 31) - MESSAGES_MAX,
        0,
        MESSAGES_MAX,
    ]
    read = [one for block in decoded.blocks for one in records_of(block)]
    assert [one.key for one in read] == [one.key for one in records]


@given(
    st.lists(st.builds(Record, st.none(), st.integers(0, 3_000).map(bytes), headers), min_size=1),
    st.integers(8_192, 20_000),
)
def test_blocks_keep_within_their_bytes(records: list[Record], block_bytes: int) -> None:
    limits = LIMITS._replace(block_bytes_max=block_bytes)
    fields = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 10}
    decoded = decode(batch(records, **fields), limits)
    heads = [check(block, limits.message_bytes_max, block_bytes) for block in decoded.blocks]
    assert [one for block in decoded.blocks for one in records_of(block)] == records
    starts = accumulate((head.count for head in heads[:-1]), initial=10)
    assert [head.producer_sequence for head in heads] == [*starts]
    assert max(map(len, decoded.blocks)) <= block_bytes


def refused(records: bytes, code: ErrorCode, limits: RecordLimits = LIMITS) -> BadRecords:
    with pytest.raises(BadRecords) as caught:
        decode(records, limits)
    assert caught.value.code is code, caught.value.message
    assert caught.value.message.endswith(".") or ": " in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"magic": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": 1 << 30}, ErrorCode.CORRUPT_MESSAGE),
        ({"crc": 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 8}, ErrorCode.INVALID_TIMESTAMP),
        ({"attributes": 16}, ErrorCode.INVALID_RECORD),
        ({"attributes": 32}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD),
        ({"record_count": 1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 1, "last_offset_delta": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": 3, "last_offset_delta": 2}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 2}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 0, "producer_epoch": 0, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1 << 47, "producer_epoch": 0, "base_sequence": 0},
         ErrorCode.INVALID_RECORD),
        ({"producer_id": 7, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 7, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
    ],
)  # fmt: skip
def test_a_header_that_no_producer_may_send_is_refused(
    fields: dict[str, int], code: ErrorCode
) -> None:
    refused(batch([Record(), Record()], **fields), code)


def test_a_producer_sends_exactly_one_batch() -> None:
    refused(b"", ErrorCode.INVALID_RECORD)
    refused(batch([Record()]) * 2, ErrorCode.INVALID_RECORD)


def timed(times: list[int]) -> bytes:
    """A batch of records with these times."""
    base = times[0]
    payload = b"".join(record(Record(), at, time - base) for at, time in enumerate(times))
    fields = {"payload": payload, "base_timestamp": base, "max_timestamp": max(times)}
    return batch([Record()] * len(times), **fields)


@given(st.lists(st.integers(-1, TIME_MS_MAX), min_size=1, max_size=40))
@example([-1, -1])
@example([5, 3, -1, 4])
def test_the_times_of_a_producer_are_event_times(times: list[int]) -> None:
    decoded = decode(timed(times), LIMITS)
    (block,) = decoded.blocks
    check(block, LIMITS.message_bytes_max, LIMITS.block_bytes_max)
    assert unpack(block).event_times() == [None if time == -1 else time for time in times]
    known = any(time >= 0 for time in times)
    assert read_header(block).has_times is decoded.has_times is known


@pytest.mark.parametrize("time", [-2, -(2**62), TIME_MS_MAX + 1, 2**62])
def test_a_time_that_is_none_is_refused_by_number(time: int) -> None:
    for times in ([time], [7, time], [time, 7], [-1, time], [time, time]):
        error = refused(timed(times), ErrorCode.INVALID_TIMESTAMP)
        assert error.index == times.index(time)
        assert str(time) in error.message


def test_each_block_of_a_batch_has_its_times() -> None:
    times = [*range(MESSAGES_MAX), -1]
    first, second = decode(timed(times), LARGE).blocks
    assert unpack(first).event_times() == times[:-1]
    assert unpack(second).event_times() == [None]


def test_offset_deltas_count_from_zero() -> None:
    for deltas in ([1, 2], [0, 0], [0, 2], [1, 0]):
        payload = b"".join(record(Record(), delta) for delta in deltas)
        error = refused(batch([Record()] * 2, payload=payload), ErrorCode.INVALID_RECORD)
        assert error.index == (0 if deltas[0] else 1)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([("", b"1")], "without a name"),
        ([("a", bytes(HEADER_VALUE_BYTES_MAX + 1))], "at most 65536 bytes"),
        ([("a", b"")] * (HEADERS_MAX + 1), "at most 1000 headers"),
    ],
)
def test_headers_that_tms_cannot_store_are_refused(
    pairs: list[tuple[str, bytes | None]], why: str
) -> None:
    error = refused(batch([Record(), Record(headers=pairs)]), ErrorCode.INVALID_RECORD, LARGE)
    assert why in error.message
    assert error.index == 1


def test_the_largest_headers_are_stored() -> None:
    pairs = [("a", bytes(HEADER_VALUE_BYTES_MAX)), *[("b", b"")] * (HEADERS_MAX - 1)]
    (block,) = decode(batch([Record(headers=pairs)]), LARGE).blocks
    check(block, LARGE.message_bytes_max, LARGE.block_bytes_max)
    assert records_of(block) == [Record(headers=pairs)]


def test_a_name_of_a_header_is_utf_8() -> None:
    payload = record(Record(headers=[("xx", b"")]), 0).replace(b"xx", b"\xff\xfe")
    refused(batch([Record()], payload=payload), ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_it_takes_memory(codec: int) -> None:
    bomb = batch([Record(value=bytes(16 << 20))], codec)
    tracemalloc.start()
    try:
        refused(bomb, ErrorCode.MESSAGE_TOO_LARGE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_raw_snappy_block_is_refused_by_the_length_that_it_declares() -> None:
    for declared in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f"):
        lying = batch([Record()], payload=declared + b"x" * 20, attributes=SNAPPY)
        refused(lying, ErrorCode.MESSAGE_TOO_LARGE)
    for endless in (b"", b"\xff" * 30):
        lying = batch([Record()], payload=endless, attributes=SNAPPY)
        refused(lying, ErrorCode.INVALID_RECORD)


def test_blocks_of_snappy_are_bounded_together() -> None:
    one = raw_snappy(bytes(LIMITS.batch_bytes_max // 2))
    framed = b"\x82SNAPPY\0" + bytes(8) + (len(one).to_bytes(4, "big") + one) * 3
    refused(batch([Record()], payload=framed, attributes=SNAPPY), ErrorCode.MESSAGE_TOO_LARGE)


def test_a_count_larger_than_its_records_is_refused_before_it_takes_memory() -> None:
    count = (1 << 31) - 1
    tracemalloc.start()
    try:
        refused(
            batch([Record()], record_count=count, last_offset_delta=count - 1),
            ErrorCode.INVALID_RECORD,
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_headers_of_a_large_record_are_counted_before_they_become_objects(codec: int) -> None:
    """The second record alone would take 700 MB."""
    pairs = 8 << 20
    body = b"\0" + b"\0" + b"\x02" + b"\x01\x01" + bytes([0x80, 0x80, 0x80, 0x08])
    large = body + b"\x00\x01" * pairs
    size = bytearray()
    left = 2 * len(large)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    payload = record(Record(), 0) + bytes([*size, left]) + large
    limits = RecordLimits(32 << 20, 64 << 20, 32 << 20)
    bomb = batch([Record()] * 2, codec, payload=payload)
    tracemalloc.start()
    try:
        error = refused(bomb, ErrorCode.INVALID_RECORD, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.index == 1
    assert str(pairs) in error.message
    assert peak < 3 * len(payload)


def test_headers_of_many_records_are_bounded_together() -> None:
    """Each has as many as are allowed, of three bytes."""
    records = [Record(headers=[("a", b"")] * HEADERS_MAX)] * 30
    error = refused(batch(records), ErrorCode.MESSAGE_TOO_LARGE)
    assert error.index == 9


def test_a_message_larger_than_the_topic_allows_is_named() -> None:
    limits = LIMITS._replace(message_bytes_max=100)
    fits = Record(b"k" * 10, b"v" * 80, [("ab", b"c" * 8)])
    decode(batch([fits] * 3), limits)
    over = Record(b"k" * 10, b"v" * 80, [("ab", b"c" * 9)])
    error = refused(batch([fits, over]), ErrorCode.MESSAGE_TOO_LARGE, limits)
    assert error.index == 1


def test_a_message_larger_than_a_block_is_named() -> None:
    limits = LIMITS._replace(block_bytes_max=10_000)
    error = refused(
        batch([Record(), Record(value=bytes(10_000))]), ErrorCode.MESSAGE_TOO_LARGE, limits
    )
    assert error.index == 1
