"""Rows become the blocks that a client would make of the same messages, and a row that cannot
become a message is refused with the names of its column and topic."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.block import check, decode
from tms.errors import Invalid, PartitionNotFound, TMSError, TooLarge, TopicNotFound
from tms.model.ids import TIME_MS_MAX
from tms.model.keys import Partitioner
from tms.model.topic import TopicName
from tms.spark.sink.columns import shape_of
from tms.spark.sink.filling import Filler
from tms.spark.sink.options import write_options
from tms.spark.sink.routing import Router, SinkTopic
from tms.spark.source.options import read_options

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "event_time": pa.timestamp("us", tz="UTC"),
}
SPARK = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
    "event_time": "timestamp",
}
PARTITIONS = {"a": 3, "b": 1, "other:c": 7}
PARTITIONERS = {"a": Partitioner.CRC32C, "b": Partitioner.CRC32C, "other:c": Partitioner.MURMUR2}
LIMIT = 1_000

Message = tuple[bytes | None, bytes | None, dict[str, bytes | None], int | None]
Written = dict[tuple[str, int], list[Message]]


def look_up(name: TopicName) -> SinkTopic:
    if str(name) not in PARTITIONS:
        raise TopicNotFound(f"There is no topic {name}.")
    return SinkTopic(name, PARTITIONS[str(name)], LIMIT, PARTITIONERS[str(name)])


def batch(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> pa.RecordBatch:
    """Rows as Spark passes them."""
    rows = list(rows)
    return pa.record_batch(
        {name: pa.array([row.get(name) for row in rows], TYPES[name]) for name in columns}
    )


def write(
    batches: Iterable[pa.RecordBatch], topic: str = "", filler: Filler | None = None, turn: int = 0
) -> Written:
    """The messages that the topics would get. Checks every block as the service does."""
    batches = list(batches)
    fields = [(name, SPARK[name]) for name in batches[0].schema.names]
    router = Router(shape_of(fields, topic), look_up, turn)
    filler = filler or Filler(7)
    blocks = [one for b in batches for one in filler.add(router.route(b), b.nbytes)]
    blocks += filler.finish()
    written: Written = {}
    numbers: dict[tuple[str, int], int] = {}
    for name, new in blocks:
        partition, block = new.partition, new.block
        header = check(block, message_bytes_max=LIMIT, decompressed_bytes_max=1 << 24)
        place = (str(name), partition)
        assert (header.producer_id, header.producer_sequence) == (7, numbers.get(place, 0))
        numbers[place] = header.producer_sequence + 1
        columns = decode(block)
        messages = zip(
            columns.keys(), columns.values(), columns.headers(), columns.event_times(), strict=True
        )
        written.setdefault(place, []).extend(messages)
    assert {(str(name), p): n for (name, p), n in filler.blocks.items()} == numbers
    return written


CELLS = st.none() | st.binary(max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": CELLS,
            "value": CELLS,
            "headers": st.none() | st.dictionaries(NAMES, CELLS, max_size=3),
            "topic": st.sampled_from(sorted(PARTITIONS)),
            "partition": st.none() | st.just(0),
            "event_time": st.none() | st.integers(0, TIME_MS_MAX * 1_000 + 999),
        }
    ),
    max_size=40,
)


def as_spark(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its headers as a list of pairs."""
    headers = row["headers"]
    return {**row, "headers": None if headers is None else [*headers.items()]}


def in_ms(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1_000


def expected(rows: Iterable[Mapping[str, Any]], turns: Iterable[int]) -> Written:
    """The place to which a client would send each of the same messages, one after another."""
    found: Written = {}
    for row, turn in zip(rows, turns, strict=True):
        count = PARTITIONS[row["topic"]]
        if row["partition"] is not None:
            partition = row["partition"]
        elif row["key"] is not None:
            partition = PARTITIONERS[row["topic"]].partition_of(row["key"], count)
        else:
            partition = turn % count
        message = (row["key"], row["value"], dict(row["headers"] or {}), in_ms(row["event_time"]))
        found.setdefault((row["topic"], partition), []).append(message)
    return found


@given(ROWS, st.integers(1, 15), st.integers(30, 300), st.integers(1, 2_000))
def test_every_row_is_a_message_in_its_partition_and_in_order(
    rows: list[dict[str, Any]], size: int, block_bytes: int, held_bytes: int
) -> None:
    parts = [rows[at : at + size] for at in range(0, len(rows), size)] or [[]]
    spread = [*map(as_spark, rows)]
    batches = [batch(spread[at : at + size], TYPES) for at in range(0, len(rows), size)]
    written = write(batches or [batch([], TYPES)], filler=Filler(7, block_bytes, held_bytes))
    assert written == expected(rows, [turn for turn, part in enumerate(parts) for _ in part])


@given(ROWS, st.integers(0, 10), st.integers(1, 30))
def test_rows_that_are_a_part_of_a_batch_are_written_alone(
    rows: list[dict[str, Any]], start: int, count: int
) -> None:
    spread = [*map(as_spark, rows)]
    part = rows[start : start + count]
    written = write([batch(spread, TYPES).slice(start, count)])
    assert written == expected(part, [0] * len(part))


def test_text_is_written_as_utf_8_and_large_columns_too() -> None:
    for text in (pa.string(), pa.large_string()):
        columns = {"key": pa.array(["ä", None], text), "value": pa.array(["ö", ""], text)}
        written = write([pa.record_batch(columns)], "b")
        assert written == {
            ("b", 0): [("ä".encode(), "ö".encode(), {}, None), (None, b"", {}, None)]
        }


def test_the_option_topic_holds_for_all_rows() -> None:
    rows = [{"value": b"1", "topic": "a"}, {"value": b"2", "topic": None}]
    assert list(write([batch(rows, ("value", "topic"))], "b")) == [("b", 0)]


def test_rows_without_a_place_begin_at_their_turn_and_go_around() -> None:
    one = batch([{"value": b"1"}] * 2, ("value",))
    assert [place[1] for place in write([one] * 5, "a", turn=2)] == [2, 0, 1]


def test_a_block_has_less_than_its_size_and_one_more_message() -> None:
    filler = Filler(7, block_bytes=1_000)
    rows = [{"value": bytes(size)} for size in (400, 400, 400, 900, 10, 10)]
    router = Router(shape_of([("value", "binary")], "b"), look_up)
    slices = router.route(batch(rows, ("value",)))
    sizes = [decode(one.new.block).count for one in filler.add(slices, 0)]
    sizes += [decode(one.new.block).count for one in filler.finish()]
    assert sizes == [2, 1, 3]


def test_held_rows_are_written_when_they_take_too_much_memory() -> None:
    filler = Filler(7, held_bytes=100)
    router = Router(shape_of([("value", "binary")], "b"), look_up)
    one = batch([{"value": b"1"}], ("value",))
    assert [len(list(filler.add(router.route(one), 60))) for _ in range(4)] == [0, 1, 0, 1]


def test_event_times_need_no_database_of_time_zones() -> None:
    rows = batch([{"value": b"1", "event_time": 7_999}], ("value", "event_time"))
    unknown = rows.column(1).cast(pa.timestamp("us", tz="Not/Known"))
    assert write([rows.set_column(1, "event_time", unknown)], "b") == {
        ("b", 0): [(None, b"1", {}, 7)]
    }


# Rows that cannot become messages


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        ({"value": bytes(LIMIT + 1), "topic": "a"}, TooLarge, "for the topic a has 1001 bytes"),
        ({"value": b"", "key": bytes(1_001), "topic": "b"}, TooLarge, "for the topic b"),
        (
            {"value": b"", "headers": [("n", bytes(LIMIT))], "topic": "other:c"},
            TooLarge,
            "for the topic other:c has 1001 bytes in its columns key, value and headers",
        ),
        ({"value": b"", "topic": "none"}, TopicNotFound, "no topic none"),
        ({"value": b"", "topic": "a b"}, Invalid, "The column topic: A topic name"),
        ({"value": b"", "topic": "system:x"}, Invalid, "The column topic: The namespace `system`"),
        ({"value": b"", "topic": None}, Invalid, "The column topic is null"),
        ({"value": b"", "topic": "a", "partition": 3}, PartitionNotFound, "partition is 3 .* a,"),
        ({"value": b"", "topic": "b", "partition": -1}, PartitionNotFound, "partition is -1"),
        ({"value": b"", "topic": "a", "headers": [(None, b"")]}, Invalid, "headers: a name"),
        ({"value": b"", "topic": "a", "headers": [("", b"")]}, Invalid, "headers: a name"),
        ({"value": b"", "topic": "a", "headers": [None]}, Invalid, "headers: a name"),
        ({"value": b"", "topic": "a", "event_time": -1}, Invalid, "event_time is from 1970"),
        (
            {"value": b"", "topic": "a", "event_time": (TIME_MS_MAX + 1) * 1_000},
            Invalid,
            "event_time is from 1970",
        ),
        (
            {"value": b"", "topic": "a", "headers": [("n", b"1"), ("n", b"2")]},
            Invalid,
            "the name 'n' is there twice",
        ),
        (
            {"value": b"", "topic": "a", "headers": [("n", bytes((64 << 10) + 1))]},
            Invalid,
            "a value has at most 65536 bytes, one has 65537",
        ),
        (
            {"value": b"", "topic": "a", "headers": [(f"{n}", b"") for n in range(1_001)]},
            Invalid,
            "a message has at most 1000, a row has 1001",
        ),
    ],
)
def test_a_row_that_no_topic_takes_is_refused(
    row: dict[str, Any], error: type[TMSError], said: str
) -> None:
    good = {"value": b"1", "topic": "a", "headers": [("n", b"")]}
    with pytest.raises(error, match=said):
        write([batch([good, row, good], TYPES)])


def test_the_same_header_in_two_messages_is_no_header_twice() -> None:
    row = {"value": b"", "headers": [("n", b"1")]}
    columns = ("value", "headers")
    assert write([batch([row, row], columns)], "b") == {
        ("b", 0): [(None, b"", {"n": b"1"}, None)] * 2
    }


@pytest.mark.parametrize(
    ("fields", "topic", "column", "said"),
    [
        ({"key": "string"}, "a", "value", "needs a column `value` .* the columns are key"),
        ({"value": "struct<a:int>"}, "a", "value", "to_json"),
        ({"value": "bigint"}, "a", "value", "not bigint. Cast it: value.cast"),
        ({"value": "string", "key": "int"}, "a", "key", "The column key is binary or string"),
        ({"value": "string", "topic": "int"}, "", "topic", "The column topic is string"),
        ({"value": "string", "partition": "bigint"}, "a", "partition", "Cast it: partition"),
        ({"value": "string", "headers": "map<string,binary>"}, "a", "headers", "array<struct"),
        ({"value": "string"}, "", "topic", "give the option `topic`, or a column"),
        ({"value": "string", "Value": "string"}, "a", "Value", "two columns 'value'"),
        ({"value": "string", "headres": "string"}, "a", "headres", "Did you mean 'headers'"),
        ({"value": "string", "colour": "string"}, "a", "colour", "has no place in a message"),
    ],
)
def test_columns_that_make_no_message_are_refused_by_name(
    fields: dict[str, str], topic: str, column: str, said: str
) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        shape_of([*fields.items()], topic)
    assert caught.value.details["field"] == column


def test_rows_that_were_read_can_be_written() -> None:
    read = {"offset": "bigint", "timestamp": "timestamp", "timestampType": "int", "id": "string"}
    shape = shape_of([*(SPARK | read).items()], "")
    assert [shape.places[name] for name in ("key", "value", "headers", "topic", "partition")] == [
        *range(5)
    ]


def test_text_with_a_collation_is_text() -> None:
    assert shape_of([("VALUE", "string collate UTF8_LCASE")], "a").places == {"value": 0}


# Options


def test_options_say_where_to_write() -> None:
    given = {"TOPIC": "default:a", "tms.URL": "http://x:1", "tms.token": "t"}
    of_spark = {"checkpointLocation": "/c", "queryName": "q"}
    found = write_options(given | of_spark)
    assert (found.url, found.token, found.topic) == ("http://x:1", "t", "a")
    assert "tms.token" not in repr(found) and "'t'" not in repr(found)


def test_a_token_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t0ken\n")
    to = {"tms.url": "http://x:1", "topic": "a", "tms.token.file": str(file)}
    assert write_options(to).token == "t0ken"
    del to["topic"]
    assert read_options(to | {"subscribe": "a"}).place.token == "t0ken"
    with pytest.raises(Invalid, match="goes with source=service"):
        read_options(
            {
                "source": "hbase",
                "subscribe": "a",
                "tms.store": "hbase://h:1",
                "tms.token.file": str(file),
            }
        )
    to["topic"] = "a"
    for given_, said in (
        (to | {"tms.token": "t"}, "both given"),
        (to | {"tms.token.file": str(tmp_path / "none")}, "No such file"),
    ):
        with pytest.raises(Invalid, match=said):
            write_options(given_)
    for content, said in ((b"", "no token"), (b"\xff", "no text"), (b"t0k en", "printable")):
        file.write_bytes(content)
        with pytest.raises(Invalid, match=said) as caught:
            write_options(to)
        assert "t0k" not in caught.value.message


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({}, "tms.url", "is missing"),
        ({"tms.url": "data/"}, "tms.url", "start `tms serve`"),
        ({"tms.url": "hbase://x:1"}, "tms.url", "start `tms serve`"),
        ({"tms.url": "http://x:1", "topic": "a b"}, "topic", "The option topic"),
        ({"tms.url": "http://x:1", "topic": "system:x"}, "topic", "The option topic"),
        ({"tms.url": "http://x:1", "tms.token": "a\nb"}, "tms.token", "printable"),
        ({"tms.uri": "http://x:1"}, "tms.uri", "Did you mean 'tms.url'"),
        ({"subscribe": "a"}, "subscribe", "option of reading"),
        ({"kafka.acks": "all"}, "kafka.acks", "Options of Kafka"),
        ({"path": "/x"}, "path", "without a path"),
        ({"qwertz": "1"}, "qwertz", "It has topic, tms.url, tms.token"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], field: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        write_options(options)
    assert caught.value.details["field"] == field
