"""Event times: an optional column of a block, which no other part of the block depends on."""

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.block_kit import LIMITS, with_right_crc
from tms.block import (
    HEADER_BYTES,
    MESSAGES_MAX,
    Compression,
    check,
    decode,
    encode,
    place,
    read_header,
    thin,
)
from tms.block.checking import checking_bytes
from tms.errors import BadBlock, DataCorrupt, Invalid, TMSError
from tms.log.trimming import trimmed
from tms.model.ids import TIME_MS_MAX
from tms.model.message import StoredBlock

TIMES = st.lists(st.none() | st.integers(0, TIME_MS_MAX), min_size=1, max_size=45)
AT = HEADER_BYTES


def block(
    times: list[int | None], compression: Compression = Compression.NONE, sequence: int = 0
) -> bytearray:
    values = [b"value %d" % at for at in range(len(times))]
    return encode(
        values,
        event_times=times,
        producer_id=7,
        producer_sequence=sequence,
        compression=compression,
    )


@given(TIMES, st.sampled_from(Compression))
def test_they_come_out_as_they_went_in(times: list[int | None], compression: Compression) -> None:
    packed = block(times, compression)
    assert check(packed, **LIMITS) == read_header(packed)
    columns = decode(packed)
    assert columns.event_times() == times
    assert columns.slice(1, 3).event_times() == times[1:3]
    assert columns.values() == [b"value %d" % at for at in range(len(times))]
    assert (columns.times is None) == (set(times) == {None})


@given(TIMES, st.data(), st.sampled_from(Compression))
def test_a_block_keeps_them_when_messages_are_removed(
    times: list[int | None], data: st.DataObject, compression: Compression
) -> None:
    keep = data.draw(st.lists(st.integers(0, len(times) - 1), min_size=1, unique=True).map(sorted))
    stored = block(times, compression)
    place(stored, 70, 1, 9)
    left = thin(stored, keep)
    columns = decode(left)
    assert columns.event_times() == [times[at] for at in keep]
    assert columns.values() == [b"value %d" % at for at in keep]
    assert [*columns.index] == keep
    again = decode(thin(left, [len(keep) - 1]))
    assert again.event_times() == [times[keep[-1]]]


@given(TIMES)
def test_a_block_keeps_them_when_its_begin_is_truncated(times: list[int | None]) -> None:
    stored = block([*times, 5])
    place(stored, 70)
    (left,) = trimmed([StoredBlock(0, 5_000, len(times), stored)], (5_000, 1))
    assert decode(left.block).event_times() == [*times, 5][1:]
    assert read_header(left.block).has_times


def test_a_block_without_them_is_what_it_was() -> None:
    for count in (1, 40):
        assert block([None] * count) == encode(
            [b"value %d" % at for at in range(count)], producer_id=7
        )


def test_equal_ones_are_stored_once() -> None:
    assert len(block([5] * 40)) == len(block([None] * 40)) + 16
    assert len(block([*range(40)])) == len(block([None] * 40)) + 16 + 8 * 40
    assert decode(block([TIME_MS_MAX] * MESSAGES_MAX)).event_times() == [TIME_MS_MAX] * MESSAGES_MAX


def test_a_slice_of_a_large_block_reads_its_own_only() -> None:
    columns = decode(block([*range(MESSAGES_MAX)]))
    tracemalloc.start()
    try:
        assert columns.slice(MESSAGES_MAX - 1, MESSAGES_MAX).event_times() == [MESSAGES_MAX - 1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MESSAGES_MAX


def test_the_service_keeps_them_when_it_places_a_block() -> None:
    placed = block([1, None])
    place(placed, 2**40, 1, 9)
    assert read_header(placed).has_times
    assert decode(placed).event_times() == [1, None]


@pytest.mark.parametrize("time", [-1, -5, TIME_MS_MAX + 1, 2**63, 2**70, 1.0, "1"])
def test_what_is_no_time_is_refused_by_index(time: Any) -> None:
    for times in ([7, time], [None, time], [time], [time, time]):
        with pytest.raises(Invalid, match="An event time is None or whole milliseconds") as caught:
            block(times)
        assert caught.value.details["index"] == times.index(time)
    with pytest.raises(Invalid, match="2 values, but 1 event times"):
        encode([b"1", b"2"], event_times=[1])


@pytest.mark.parametrize("time", [-2, -(2**63), TIME_MS_MAX + 1, 2**63 - 1])
def test_a_publish_of_what_is_no_time_is_refused_by_index(time: int) -> None:
    packed = block([1, 2, 3])
    struct.pack_into("<q", packed, AT + 24, time)
    with pytest.raises(Invalid, match="An event time is") as caught:
        check(with_right_crc(packed), **LIMITS)
    assert caught.value.details["index"] == 1
    shared = block([1, 1, 1])
    struct.pack_into("<q", shared, AT + 8, time)
    with pytest.raises(Invalid, match="An event time is") as caught:
        check(with_right_crc(shared), **LIMITS)
    assert caught.value.details["index"] == 0


@pytest.mark.parametrize("cells", [0, 1, 2, 4, 2**32 - 1])
def test_a_column_of_another_length_is_refused(cells: int) -> None:
    packed = block([1, 2, 3])
    struct.pack_into("<I", packed, AT, cells)
    packed = with_right_crc(packed)
    with pytest.raises(BadBlock):
        check(packed, **LIMITS)
    assert checking_bytes(packed) == 0
    with pytest.raises(DataCorrupt):
        decode(packed)


@pytest.mark.parametrize(
    ("at", "number"), [(4, b"\x01"), (4, b"\xff\xff\xff\xff"), (8, b"\x04"), (8, bytes(8))]
)
def test_a_beginning_that_contradicts_the_times_is_refused(at: int, number: bytes) -> None:
    for times in ([1, 2, 3], [1, None, 3], [3, 3, 3]):
        packed = block(times)  # type: ignore[arg-type]
        if packed[AT + at : AT + at + len(number)] == number:
            continue
        packed[AT + at : AT + at + len(number)] = number
        if times == [3, 3, 3] and at == 8:
            continue  # it is the time itself
        with pytest.raises(BadBlock):
            check(with_right_crc(packed), **LIMITS)


def test_a_version_that_the_bytes_do_not_fit_is_refused() -> None:
    without = encode([b"value"])
    without[4] = 2
    with_them = block([1])
    with_them[4] = 1
    for wrong in (without, with_them, with_right_crc(block([1])[: AT + 4])):
        with pytest.raises(BadBlock):
            check(wrong, **LIMITS)
        with pytest.raises(DataCorrupt):
            decode(wrong)


@given(st.binary(min_size=0, max_size=64), st.integers(1, 5))
def test_no_bytes_at_all_hurt_a_reader(begin: bytes, count: int) -> None:
    packed = block([1] * count)
    packed[AT : AT + len(begin)] = begin
    try:
        check(with_right_crc(packed), **LIMITS)
    except TMSError:
        return
    assert len(decode(packed).event_times()) == count
