"""Damaged batches: each is refused with an error of Kafka's, or reads as the batch that it is."""

import random
import time

import pytest

from tests.compat.kafka.records_batches import (
    GZIP,
    HEADER,
    LIMITS,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Record,
    batch,
    record,
    records_of,
    resealed,
    varint,
)
from tms.block import check
from tms.compat.kafka.errors import BadRecords
from tms.compat.kafka.records import RecordLimits, decode

CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
RECORDS = [
    Record(b"key", b"value", [("name", b"text"), ("name", b"")]),
    Record(None, b"x" * 70),
    Record(b"", None, [("né", b"")]),
]
ABSURD = [
    *(varint(number) for number in (-(1 << 63), -1, -2, 1 << 31, 1 << 32, 1 << 40, 1 << 62)),
    *(varint((1 << 63) - number) for number in (1, 20, 33, 34, 60, 100, 200, 1_000)),
    b"\x80" * 9,
    b"\xff" * 12,
    b"\x80" * 40,
]


def read(records: bytes, limits: RecordLimits = LIMITS) -> list[Record] | None:
    """The records; None if they are refused. Accepted blocks are those that the engine accepts."""
    try:
        decoded = decode(records, limits)
    except BadRecords as exc:
        assert exc.message
        return None
    for block in decoded.blocks:
        check(block, limits.message_bytes_max, limits.block_bytes_max)
    return [one for block in decoded.blocks for one in records_of(block)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_cut_anywhere_is_refused(codec: int) -> None:
    whole = batch(RECORDS, codec)
    for size in range(len(whole)):
        assert read(whole[:size]) is None
    for size in range(HEADER.size, len(whole)):
        assert read(resealed(whole[:size])) is None


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_bit_is_refused_or_means_nothing(codec: int) -> None:
    whole = batch(RECORDS, codec)
    expected = read(whole)
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            if at < 8 or 12 <= at < 16:  # base offset and leader epoch are the broker's to write
                assert read(bytes(flipped)) == expected
            else:
                assert read(bytes(flipped)) is None
            read(resealed(bytes(flipped)))


def test_a_damaged_record_is_refused_whose_checksum_is_right() -> None:
    """Every place of a small batch gets every absurd number: no other exception, no hang."""
    whole = batch(RECORDS)
    for at in range(HEADER.size, len(whole) + 1):
        for absurd in ABSURD:
            for kept in (at, at + 1, at + 2):
                read(resealed(whole[:at] + absurd + whole[kept:]))


def test_random_damage_is_refused_or_read() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    seeds = [batch(RECORDS[:count], codec) for count in (1, 3) for codec in CODECS]
    outcomes = set()
    for _ in range(20_000):
        damaged = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(57 if draw.random() < 0.2 else HEADER.size, len(damaged) + 1)
            damaged[at : at + draw.randint(0, 2)] = draw.choice([*ABSURD, draw.randbytes(2)])
        outcomes.add(read(resealed(bytes(damaged))) is None)
    assert outcomes == {True, False}


def test_a_record_ends_where_its_length_says() -> None:
    for size in (0, 7, 9, 1_000):
        payload = bytearray(record(Record(b"a", b"b"), 0))
        payload[:1] = varint(size)
        assert read(batch([Record()], payload=bytes(payload))) is None
    assert read(batch([Record()], payload=record(Record(b"a", b"b"), 0) + b"\0")) is None


def test_a_number_without_end_in_a_large_batch_takes_no_time() -> None:
    """The lengths of a large batch are read before it is parsed; a number of megabytes would take
    minutes."""
    limits = RecordLimits(16 << 20, 32 << 20, 16 << 20)
    large = Record(value=bytes(2 << 20))
    for payload in (
        b"\xff" * (4 << 20),
        record(large, 0) + b"\xff" * (4 << 20),
        varint(3 << 20) + b"\xff" * (4 << 20),
        varint(3 << 20) + b"\0\0\0\x01" + b"\xff" * (4 << 20),
        varint(-5) + bytes(4 << 20),
    ):
        begin = time.process_time()
        assert read(batch([Record()] * 2, payload=payload), limits) is None
        assert time.process_time() - begin < 2


def test_a_large_batch_reads_as_a_small_one() -> None:
    limits = RecordLimits(16 << 20, 32 << 20, 8 << 20)
    records = [
        Record(None, bytes(2 << 20), [("a", b"b")] * 3),
        Record(bytes(2 << 20), None, [("a", b"b")] * 1_000),
        *RECORDS,
    ]
    expected = [one._replace(headers=[*one.headers]) for one in records]
    whole = batch(records)
    assert read(whole, limits) == expected
    for size in range(len(whole) - 20, len(whole), 3):
        assert read(resealed(whole[:size]), limits) is None
