"""Blocks as rows of Spark: every message once, as the client shows it, without copies."""

import struct
from collections.abc import Sequence
from datetime import datetime
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.block_kit import batch_of, block_of, body_of
from tests.spark_topics_kit import row_of
from tms.block import Compression, decode, encode, place, thin
from tms.client.cursor import Batch
from tms.errors import DataCorrupt
from tms.model.ids import TIME_MS_MAX, utc
from tms.model.message import Buffer, Message, Staged, StoredBlock
from tms.spark.rows import WantedColumns, arrow_schema, batches, spark_ddl

TIME_MS = 1_700_000_000_000
EVERYTHING = 1 << 62
ALL = WantedColumns(headers=True, message_id=True, event_time=True)

cells = st.none() | st.binary(max_size=40)
header_maps = st.dictionaries(st.text("abé", min_size=1, max_size=3), cells)
times = st.none() | st.integers(0, TIME_MS_MAX)
messages = st.tuples(cells, cells, header_maps, times)


def stored(
    block: Buffer, base: int = 0, partition: int = 0, last: int = 9_999, time_ms: int = TIME_MS
) -> StoredBlock:
    """The block as the service places it."""
    placed = bytearray(block)
    place(placed, base)
    return StoredBlock(partition, time_ms, last, placed)


def rows(
    blocks: Sequence[StoredBlock],
    start: int = 0,
    stop: int = EVERYTHING,
    columns: WantedColumns = ALL,
) -> list[dict[str, object]]:
    """The rows of all batches, after Arrow has validated these."""
    found = []
    for batch in batches(blocks, "t", start, stop, columns):
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(columns))
        found += batch.to_pylist()
    return found


def time_of(message: Message) -> datetime | None:
    return None if message.event_time_ms is None else utc(message.event_time_ms)


def as_rows(blocks: Sequence[StoredBlock], start: int, stop: int) -> list[dict[str, object]]:
    """The messages that a consumer of TMS gets, in the form of rows."""
    return [
        row_of(message) | {"event_time": time_of(message)}
        for block in blocks
        for message in Batch("t", block).messages()
        if start <= message.offset < stop
    ]


@st.composite
def partitions(draw: st.DrawFn) -> list[StoredBlock]:
    """Blocks one after the other: small ones, larger ones, compressed and sparse ones, with
    gaps."""
    made, offset = [], draw(st.integers(0, 1 << 40))
    for number in range(draw(st.integers(0, 5))):
        content = draw(st.lists(messages, min_size=1, max_size=4))
        content *= draw(st.sampled_from([1, 1, 3, 40]))
        keys, values, headers, times = (list(column) for column in zip(*content, strict=True))
        with_headers = headers if draw(st.booleans()) else None
        with_times = times if draw(st.booleans()) else None
        compression = draw(st.sampled_from([*Compression]))
        one = stored(
            encode(values, keys, with_headers, with_times, compression=compression),
            offset,
            last=len(content) + 7,
            time_ms=TIME_MS + number,
        )
        if draw(st.booleans()):
            kept = sorted(draw(st.sets(st.integers(0, len(content) - 1), min_size=1)))
            one = structs.replace(one, block=thin(one.block, kept))
        made.append(one)
        offset += len(content) + draw(st.sampled_from([0, 0, 17]))
    return made


@given(partitions(), st.data())
@settings(deadline=None, max_examples=150)
def test_rows_are_what_a_consumer_gets(blocks: list[StoredBlock], data: st.DataObject) -> None:
    first = decode_base(blocks[0]) if blocks else 0
    start = data.draw(st.integers(first - 3, first + 250))
    stop = data.draw(st.integers(start, first + 400))
    assert rows(blocks, start, stop) == as_rows(blocks, start, stop)
    assert rows(blocks) == as_rows(blocks, 0, EVERYTHING)


def decode_base(block: StoredBlock) -> int:
    return int(struct.unpack_from(">Q", block.block, 16)[0])


@pytest.mark.parametrize("count", [7, 3_000])
def test_a_block_is_cut_at_both_ends(count: int) -> None:
    headers = [{"h": b"%d" % i} if i % 3 else {} for i in range(count)]
    values = [b"%d" % i for i in range(count)]
    block = stored(encode(values, values, headers), 100)
    found = rows([block], 103, 100 + count - 1)
    assert [row["offset"] for row in found] == [*range(103, 100 + count - 1)]
    assert [row["value"] for row in found] == values[3:-1]
    assert found == as_rows([block], 103, 100 + count - 1)


@pytest.mark.parametrize("count", [4, 400])
def test_missing_keys_tombstones_and_empty_cells_differ(count: int) -> None:
    keys, values = [None, b"", b"k", None] * (count // 4), [None, b"v", b"", b""] * (count // 4)
    found = rows([stored(encode(values, keys))])
    assert [(row["key"], row["value"]) for row in found] == [*zip(keys, values, strict=True)]


@pytest.mark.parametrize("count", [2, 200])
def test_messages_without_headers_have_null_as_with_kafka(count: int) -> None:
    headers: list[dict[str, bytes]] = [{}, {"a": b"1", "b": b""}] * (count // 2)
    found = rows([stored(encode([b"v"] * count, headers=headers))])
    assert found[0]["headers"] is None
    assert found[-1]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]
    none = rows([stored(encode([b"v"] * count))])
    assert {row["headers"] for row in none} == {None}


def test_a_block_of_another_writer_with_null_maps_and_repeated_names_is_read() -> None:
    maps = [None, {"a": b"1"}, {}] * 50
    batch = batch_of([b"v"] * 150, headers=maps)
    repeated = pa.array([[("n", b"1"), ("n", b"2")]] * 150, batch.schema.field("headers").type)
    found = rows([stored(block_of(body_of(batch), 150))])
    assert [row["headers"] for row in found[:3]] == [None, [{"key": "a", "value": b"1"}], None]
    batch = batch.set_column(2, batch.schema.field("headers"), repeated)
    twice = [{"key": "n", "value": b"1"}, {"key": "n", "value": b"2"}]
    assert rows([stored(block_of(body_of(batch), 150))])[149]["headers"] == twice


@pytest.mark.parametrize("count", [3, 300])
def test_a_staged_message_has_the_id_that_clients_show(count: int) -> None:
    block = stored(encode([b"v"] * count), 5, last=count + 40)
    staged = structs.replace(block, payload=(TIME_MS - 5, 17))
    ids = [row["id"] for row in rows([staged])]
    assert ids == [str(id) for id in Batch("t", staged).ids()]
    assert ids[0] == f"{TIME_MS:016x}" + f"{41:04x}" + 20 * "0"


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_compressed_blocks_are_unpacked(compression: Compression) -> None:
    values = [b"%06d" % i * 20 for i in range(3_000)]
    headers = [{"n": b"%d" % i} for i in range(3_000)]
    block = stored(encode(values, values, headers, compression=compression), last=2_999)
    assert len(block.block) < 200_000
    assert rows([block]) == as_rows([block], 0, EVERYTHING)


def test_cells_of_a_block_are_not_copied() -> None:
    block = stored(encode([Random(i).randbytes(100) for i in range(3_000)]), last=2_999)
    within = pa.py_buffer(block.block)
    [batch] = batches([block], "t", 10, 2_000, WantedColumns())
    assert batch.num_rows == 1_990
    for buffer in batch.column(1).buffers()[1:]:
        assert within.address <= buffer.address < within.address + within.size


def test_a_view_of_a_larger_answer_is_read_in_place() -> None:
    block = stored(encode([b"%d" % i for i in range(500)]), 3)
    answer = memoryview(b"prefix" + bytes(block.block) + b"next")
    view = structs.replace(block, block=answer[6:-4])
    assert rows([view]) == as_rows([block], 0, EVERYTHING)
    lone = stored(encode([b"one"]), 3)
    assert rows([structs.replace(lone, block=memoryview(lone.block))]) == as_rows(
        [lone], 0, EVERYTHING
    )


def test_nothing_gives_no_batches() -> None:
    block = stored(encode([b"v"] * 5), 100)
    assert not [*batches([], "t", 0, EVERYTHING, ALL)]
    assert not [*batches([block], "t", 0, 100, ALL)]
    assert not [*batches([block], "t", 105, EVERYTHING, ALL)]
    assert not [*batches([block], "t", 102, 102, ALL)]


def test_small_blocks_are_joined_and_large_ones_stay_alone() -> None:
    lone = [stored(encode([b"%d" % i]), i, last=0, time_ms=TIME_MS + i) for i in range(50)]
    some = [stored(encode([b"v" * 9] * 100), 50 + 100 * i) for i in range(3)]
    large = stored(encode([bytes(100)] * 1_000), 350)
    found = [*batches([*lone, *some, large, lone[0]], "t", 0, EVERYTHING, ALL)]
    assert [batch.num_rows for batch in found] == [350, 1_000, 1]
    assert rows([*lone, *some]) == as_rows([*lone, *some], 0, EVERYTHING)


def test_joined_batches_have_a_limit_of_bytes_and_of_rows() -> None:
    bytes_of_it = [stored(encode([bytes(60_000)]), i) for i in range(40)]
    sizes = [batch.nbytes for batch in batches(bytes_of_it, "t", 0, EVERYTHING, WantedColumns())]
    assert len(sizes) > 1
    assert max(sizes) <= 1 << 20
    many = stored(encode([b""] * 5_000), last=4_999)
    counts = [
        b.num_rows for b in batches([many] * 40, "t", 0, EVERYTHING, WantedColumns(message_id=True))
    ]
    assert sum(counts) == 200_000
    assert max(counts) <= 65_536


def test_blocks_of_several_partitions_keep_theirs() -> None:
    blocks = [stored(encode([b"v"]), partition=i % 3) for i in range(7)]
    blocks += [stored(encode([b"v"] * 50), partition=i % 2) for i in range(3)]
    assert rows(blocks) == as_rows(blocks, 0, EVERYTHING)


@pytest.mark.parametrize("compression", [*Compression])
@pytest.mark.parametrize("count", [2, 2_000])
def test_every_damaged_block_is_found(count: int, compression: Compression) -> None:
    values: list[bytes | None] = [b"%d" % i * 9 for i in range(count)]
    block = stored(encode(values, compression=compression), 4, last=count)
    good, random = stored(encode([b"before"]), 3), Random(count)
    for _ in range(60):
        bit = random.randrange(8 * 48, 8 * len(block.block))
        damaged = bytearray(block.block)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        found = batches([good, structs.replace(block, block=damaged)], "t", 0, EVERYTHING, ALL)
        assert next(found).column("value").to_pylist() == [b"before"]
        with pytest.raises(DataCorrupt, match=f"t, partition 0, {TIME_MS}:{count}"):
            next(found)


def test_a_truncated_block_is_found() -> None:
    block = stored(encode([b"v" * 99] * 40))
    for size in (0, 5, 47, 48, 60, 200, len(block.block) - 1):
        with pytest.raises(DataCorrupt):
            rows([structs.replace(block, block=block.block[:size])])


def test_a_place_that_cannot_be_is_found() -> None:
    with pytest.raises(DataCorrupt, match="cannot end at this place"):
        rows([stored(encode([b"v"] * 20), last=18)])
    with pytest.raises(DataCorrupt, match="cannot end at this place"):
        rows([stored(encode([b"v"] * 20), last=65_536)])


def test_a_reference_that_nobody_resolved_is_not_read_as_messages() -> None:
    from tms.log.staging import reference_to

    reference = reference_to(Staged(TIME_MS, 8, 9, 1, 1))
    with pytest.raises(DataCorrupt):
        rows([StoredBlock(0, TIME_MS, 8, reference)])


def test_the_crc_is_computed_once_for_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from tms.block import columns as model

    right, sizes = model.body_crc, list[int]()
    monkeypatch.setattr(model, "body_crc", lambda block: sizes.append(len(block)) or right(block))
    blocks = [stored(encode([b"v"] * count), 1_000 * count) for count in (1, 40, 900)]
    assert len(rows(blocks)) == 941
    assert sizes == [len(block.block) for block in blocks]
    sizes.clear()
    rows(blocks, 40_000, 40_001)
    assert sizes == [len(blocks[1].block)]


def test_columns_stand_in_kafkas_order_and_those_asked_for_behind() -> None:
    always = "key binary, value binary, topic string, partition int, offset bigint,"
    always += " timestamp timestamp, timestampType int"
    headers, id = ", headers array<struct<key: string, value: binary>>", ", id string"
    event_time = ", event_time timestamp"
    assert spark_ddl(WantedColumns()) == always
    assert spark_ddl(WantedColumns(headers=True)) == always + headers
    assert spark_ddl(WantedColumns(message_id=True)) == always + id
    assert spark_ddl(WantedColumns(event_time=True)) == always + event_time
    assert spark_ddl(ALL) == always + headers + id + event_time
    for columns in (
        WantedColumns(),
        WantedColumns(headers=True),
        WantedColumns(message_id=True),
        ALL,
    ):
        assert [*rows([stored(encode([b"v"]))], columns=columns)[0]] == arrow_schema(columns).names


def test_decode_keeps_its_word_for_what_rows_rely_on() -> None:
    """`few` is set only for blocks that can be unpacked here."""
    assert decode(encode([b"v"] * 32)).few
    assert not decode(encode([b"v"] * 33)).few
    assert not decode(encode([b"v" * 99] * 3, compression=Compression.LZ4)).few
