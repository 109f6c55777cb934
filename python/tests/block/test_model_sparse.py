"""Sparse blocks: the remaining messages keep their offsets, however often messages are removed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.block.test_model_block import MESSAGES, Messages, some
from tests.block_kit import LIMITS, with_right_crc
from tms.block import (
    HEADER_BYTES,
    MESSAGES_MAX,
    Compression,
    Flags,
    check,
    decode,
    encode,
    index_of,
    place,
    read_header,
    thin,
)
from tms.block.placing import places, skipped
from tms.client.cursor import Batch
from tms.errors import BadBlock, DataCorrupt, Invalid
from tms.model.ids import MessageId
from tms.model.message import StoredBlock
from tms.model.position import Position

BASE, LAST, TIME_MS = 7_000, 900, 1_700_000_000_000


def placed(messages: Messages, compression: Compression = Compression.NONE) -> bytearray:
    """The block of these messages as the service stores it."""
    block = encode(*messages, producer_id=5, producer_sequence=6, compression=compression)
    place(block, BASE, Flags.TRANSACTIONAL | Flags.ISSUED, 99)
    return block


def left_of(messages: Messages, index: list[int]) -> Messages:
    return Messages(*([column[at] for at in index] for column in messages))


def unpacked(block: bytearray) -> Messages:
    columns = decode(block)
    return Messages(columns.values(), columns.keys(), columns.headers())


@given(MESSAGES, st.sampled_from(Compression), st.data())
def test_messages_that_are_left_stay_what_and_where_they_are(
    messages: Messages, compression: Compression, data: st.DataObject
) -> None:
    whole = block = placed(messages, compression)
    index = [*range(len(messages.values))]
    for _ in range(3):
        keep = sorted(data.draw(st.sets(st.integers(0, len(index) - 1), min_size=1)))
        block = thin(block, keep)
        index = [index[at] for at in keep]
        assert [*decode(block).index] == index
        assert unpacked(block) == left_of(messages, index)
        sparse = Flags.SPARSE if len(index) < len(messages.values) else 0
        before = read_header(whole)
        flags = before.flags | sparse
        assert read_header(block) == replace(before, crc=read_header(block).crc, flags=flags)
        assert decode(block).compression is compression


@pytest.mark.parametrize("count", [1, 40, 3_000, MESSAGES_MAX])
def test_keeping_all_messages_changes_nothing(count: int) -> None:
    block = placed(some(count))
    assert thin(block, range(count)) == block


def test_a_block_cannot_lose_its_last_message() -> None:
    with pytest.raises(Invalid):
        thin(placed(some(3)), [])


@pytest.mark.parametrize("count", [20, 3_000])
def test_a_part_of_a_sparse_block_has_the_distances_of_its_messages(count: int) -> None:
    index = [*range(1, count, 3)]
    part = decode(thin(placed(some(count)), index)).slice(2, 5)
    assert [*part.index] == index[2:5]
    assert part.keys() == [some(count).keys[at] for at in index[2:5]]
    assert part.record_batch().num_rows == 3


@given(st.sets(st.integers(0, 19), min_size=1), st.integers(-2, 22))
def test_a_reader_that_begins_in_a_sparse_block_gets_what_is_left_from_there_on(
    kept: set[int], begin: int
) -> None:
    index = sorted(kept)
    stored = StoredBlock(3, TIME_MS, LAST, thin(placed(some(20)), index))
    header = read_header(stored.block)
    first = LAST - 19
    wanted = [at for at in index if at >= begin]
    expected = [(BASE + at, MessageId(TIME_MS, first + at)) for at in wanted]
    for position in (
        Position.offset(max(0, BASE + begin)),
        Position.at(MessageId(TIME_MS, first + begin)),
        Position.after(MessageId(TIME_MS, first + begin - 1)),
    ):
        batch = Batch("t", stored, skipped(stored, header, position))
        assert len(batch) == len(expected)
        assert [*zip(batch.offsets(), batch.ids(), strict=True)] == expected
        assert batch.values() == [some(20).values[at] for at in wanted]
        assert [m.offset for m in batch.messages()] == [offset for offset, _ in expected]
        assert (batch.end_offset, batch.last_id) == (BASE + 20, MessageId(TIME_MS, LAST))
        assert batch.base_offset == (expected[0][0] if expected else BASE + 20)
        assert "sparse" in repr(batch) or len(kept) == 20


@given(st.sets(st.integers(0, 19), min_size=1))
def test_places_are_those_of_the_messages_that_are_left(kept: set[int]) -> None:
    stored = StoredBlock(3, TIME_MS, LAST, thin(placed(some(20)), sorted(kept)))
    assert [*places(stored)] == [
        (BASE + at, MessageId(TIME_MS, LAST - 19 + at)) for at in sorted(kept)
    ]


def test_a_producer_cannot_publish_a_sparse_block() -> None:
    sparse = thin(encode(*some(9)), [1, 2])
    with pytest.raises(BadBlock):
        check(sparse, **LIMITS)
    unflagged = bytearray(sparse)
    unflagged[5] = 0
    with pytest.raises(BadBlock):
        check(unflagged, **LIMITS)


@pytest.mark.parametrize("count", [9, 900])
def test_every_truncation_and_flipped_byte_of_a_sparse_block_is_found(count: int) -> None:
    block = thin(placed(some(count)), range(0, count, 2))
    step = max(1, len(block) // 300)
    for size in range(0, len(block), step):
        with pytest.raises((DataCorrupt, BadBlock)):
            decode(block[:size])
    for at in range(HEADER_BYTES, len(block), step):
        damaged = bytearray(block)
        damaged[at] ^= 1
        with pytest.raises(DataCorrupt):
            decode(damaged)


@pytest.mark.parametrize(
    ("at", "to"),
    [
        pytest.param(48, struct.pack("<I", 0), id="of nothing"),
        pytest.param(48, struct.pack("<I", 10), id="of more than there were"),
        pytest.param(48, struct.pack("<I", 2**32 - 1), id="of more than memory"),
        pytest.param(52, b"\1", id="with reserved bytes"),
        pytest.param(58, struct.pack("<H", 9), id="beyond the block"),
        pytest.param(56, struct.pack("<H", 8), id="that descends"),
    ],
)
def test_an_index_that_cannot_be_is_damage(at: int, to: bytes) -> None:
    block = thin(placed(some(9)), [3, 5])
    block[at : at + len(to)] = to
    with pytest.raises(DataCorrupt):
        decode(with_right_crc(block))


def test_the_index_of_a_whole_block_costs_nothing() -> None:
    block = encode(*some(9))
    assert index_of(block, read_header(block)) == range(9)
