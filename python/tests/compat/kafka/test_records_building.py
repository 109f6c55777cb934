"""A batch is the same bytes whether the library builds it or its parts are joined."""

import random
from collections.abc import Sequence

import pytest
from aiokafka.record._crecords import DefaultRecordBatch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compat.kafka.records_batches import LIMITS, TIME_MS, Record, batch, varint
from tests.compat.kafka.test_records import cells, headers
from tms.block import HeaderCells, encode, place
from tms.compat.kafka import records_building
from tms.compat.kafka.records import decode
from tms.compat.kafka.records import encode as encode_batch
from tms.compat.kafka.records_building import HEADER_BYTES, RecordColumns, build
from tms.errors import TooLarge
from tms.model.ids import TIME_MS_MAX
from tms.model.message import MESSAGES_MAX, StoredBlock

BYTES_MAX = (1 << 31) - 1
BUILT, JOINED = 0, 1 << 30  # sizes of a record with which the library builds, and does not
EDGES = [0, 1, 63, 64, 65, 8_191, 8_192, 8_193]  # where a varint gets a byte more
sizes = st.sampled_from(EDGES)
columns = st.one_of(
    st.lists(cells, min_size=1, max_size=40),
    st.lists(sizes.map(bytes), min_size=1, max_size=40),
    st.tuples(sizes, st.integers(1, 200)).map(lambda drawn: [bytes(drawn[0])] * drawn[1]),
    st.integers(1, 100).map(lambda count: [None] * count),
)
times = st.one_of(
    st.just([TIME_MS]),
    st.lists(st.integers(0, TIME_MS_MAX), min_size=1, max_size=20),
    st.lists(st.integers(TIME_MS - 70, TIME_MS + 70), min_size=1, max_size=20),
)
steps = st.lists(st.sampled_from([1, 2, 60, 8_000]), min_size=1, max_size=10)


def cells_of(rows: Sequence[Sequence[tuple[str, bytes | None]]]) -> HeaderCells:
    pairs = [pair for row in rows for pair in row]
    ends = [sum(map(len, rows[:at])) for at in range(len(rows) + 1)]
    return HeaderCells(ends, [name for name, _ in pairs], [value for _, value in pairs])


def repeated(some: Sequence[object], count: int) -> list[object]:
    return [some[at % len(some)] for at in range(count)]


@given(columns, columns, times, st.lists(headers, min_size=1, max_size=5), steps)
@example([b"k"], [b"v"] * 8_193, [TIME_MS], [[]], [1])
@example([None], [b"v"] * 65, [TIME_MS, 0], [[("é", None)], []], [1])
def test_both_ways_make_the_same_bytes(
    keys: list[bytes | None],
    values: list[bytes | None],
    times: list[int],
    rows: list[list[tuple[str, bytes | None]]],
    steps: list[int],
) -> None:
    count = len(values)
    offsets: list[int] = [0]
    for step in repeated(steps, count - 1):
        offsets.append(min(offsets[-1] + step, MESSAGES_MAX - 1))
    records = RecordColumns(
        offsets if max(steps) > 1 else range(count),
        repeated(times, count),
        repeated(keys, count),
        values,
        cells_of(repeated(rows, count)),
    )
    built, joined = build(records, BUILT, BYTES_MAX), build(records, JOINED, BYTES_MAX)
    assert joined[HEADER_BYTES:] == built[HEADER_BYTES:]
    assert not any(joined[:HEADER_BYTES])


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@example(1 << 62)
def test_numbers_are_written_as_clients_write_them(number: int) -> None:
    assert records_building._varints([number]) == [varint(number)]
    assert records_building._varints([number]) == [varint(number)], "it is kept now"


def test_only_small_numbers_are_kept() -> None:
    table = records_building._table()
    kept = records_building.VARINTS_KEPT
    for number in (-kept - 1, kept, 1 << 40):
        records_building._varints([number])
        assert number not in table
    for number in (-kept, kept - 1):
        records_building._varints([number])
        assert number in table


@pytest.mark.parametrize("record_bytes", [BUILT, JOINED])
def test_a_batch_that_is_too_large_is_refused(record_bytes: int) -> None:
    rows = RecordColumns(range(4), [0] * 4, [None] * 4, [bytes(100)] * 4, cells_of([[]] * 4))
    size = len(build(rows, record_bytes, BYTES_MAX))
    estimated = size + 100  # as the library does
    assert len(build(rows, record_bytes, estimated)) == size
    with pytest.raises(TooLarge, match=f"{size - 1} bytes"):
        build(rows, record_bytes, size - 1)


def test_large_records_are_read_by_clients() -> None:
    drawn = random.Random(4)
    records = [Record(b"k%d" % at, drawn.randbytes(drawn.choice(EDGES))) for at in range(300)]
    records += [Record(b"gone", None), Record(None, bytes(16 << 20)), Record(None, b"last")]
    limits = LIMITS._replace(
        batch_bytes_max=32 << 20, block_bytes_max=32 << 20, message_bytes_max=32 << 20
    )
    (block,) = decode(batch(records), limits).blocks
    place(block, 70)
    encoded = encode_batch(StoredBlock(0, TIME_MS, 400, block))
    parsed = DefaultRecordBatch(encoded)
    assert parsed.validate_crc()
    assert [(one.offset, one.key, one.value) for one in parsed] == [
        (70 + at, one.key, one.value) for at, one in enumerate(records)
    ]


def test_the_largest_block_is_read_by_clients() -> None:
    block = encode([bytes(600)] * MESSAGES_MAX, event_times=[*range(MESSAGES_MAX)])
    place(block, 0)
    parsed = DefaultRecordBatch(encode_batch(StoredBlock(0, TIME_MS, MESSAGES_MAX - 1, block)))
    assert parsed.validate_crc()
    for at, one in enumerate(parsed):
        assert (one.offset, one.timestamp, len(one.value)) == (at, at, 600)
    assert at == MESSAGES_MAX - 1
