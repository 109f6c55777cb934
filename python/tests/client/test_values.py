"""Values as JSON, and messages as tables, on the engine in memory."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas
import pyarrow as pa
import pytest

import tms
import tms.aio
from tms.api.messages import arrow_schema
from tms.errors import BadJson, Invalid
from tms.testing.memory import MemoryLog

TOPIC = "values"


class Struct(msgspec.Struct):
    total: int


@dataclass
class Record:
    total: int


def published(bus: tms.Bus, value: bytes | None) -> tms.Message:
    bus.publish(TOPIC, value, key=b"k")
    [message] = bus.consumer(TOPIC, stop_at_end=True)
    return message


@pytest.mark.parametrize(
    ("value", "read"),
    [(b'{"total": 1}', {"total": 1}), (b"null", None), (b" [1.5, true]", [1.5, True])],
)
def test_a_value_is_read_as_json(bus: tms.Bus, value: bytes, read: object) -> None:
    assert published(bus, value).json() == read


@pytest.mark.parametrize(
    ("kind", "read"),
    [(Struct, Struct(1)), (Record, Record(1)), (dict[str, int], {"total": 1})],
    ids=str,
)
def test_a_value_is_read_as_an_object_of_a_type(bus: tms.Bus, kind: Any, read: object) -> None:
    assert published(bus, b'{"total": 1}').json(kind) == read


@pytest.mark.parametrize("value", [b"", b"{", b"one", b"\xff", b'"\xff"', b"1 2", b"[" * 100_000])
def test_what_is_not_json_says_which_message_it_is(bus: tms.Bus, value: bytes) -> None:
    message = published(bus, value)
    with pytest.raises(BadJson, match=str(message.id)):
        message.json()


def test_what_does_not_fit_says_where(bus: tms.Bus) -> None:
    with pytest.raises(Invalid, match=r"is no Record: Expected `int`, got `str` - at `\$\.total`"):
        published(bus, b'{"total": "1"}').json(Record)


def test_a_tombstone_is_no_null(bus: tms.Bus) -> None:
    with pytest.raises(Invalid, match="tombstone"):
        published(bus, None).json()


def test_messages_of_queues_and_delayed_ones_are_read_alike(bus: tms.Bus) -> None:
    published(bus, b"7")
    [delivered] = bus.queue(TOPIC, group="g", lease_s=60).receive()
    bus.publish_later(TOPIC, b"8", delay="1h")
    [waiting] = bus.list_delayed(TOPIC)
    assert (delivered.json(int), waiting.json(int)) == (7, 8)


def some_published(bus: tms.Bus) -> list[tms.Message]:
    bus.publish_many(TOPIC, [b"a", None, b"c"], partition=0)
    bus.publish_many(
        TOPIC, [b"d" * 500] * 3, [b"k", None, b"l"], [{"h": b"1"}, None, {}], 1, compression="zstd"
    )
    return list(bus.consumer(TOPIC, stop_at_end=True))


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    return [
        (
            *(row["id"], row["partition"], row["offset"], row["timestamp"], row["key"]),
            row["value"],
            dict(row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]


def as_rows(messages: list[tms.Message]) -> list[tuple[object, ...]]:
    return [
        (str(m.id), m.partition, m.offset, m.timestamp, m.key, m.value, dict(m.headers))
        for m in messages
    ]


def test_a_table_has_what_the_messages_have(bus: tms.Bus) -> None:
    messages = some_published(bus)
    consumer = bus.consumer(TOPIC, stop_at_end=True)
    table = consumer.to_arrow()
    assert table.schema == arrow_schema()
    assert rows(table) == as_rows(messages)
    assert consumer.to_arrow().num_rows == 0, "its position is behind them"


def test_a_table_begins_within_a_block_and_leaves_out_what_is_erased(bus: tms.Bus) -> None:
    messages = some_published(bus)
    bus.erase(TOPIC, id=messages[4].id, partition=1)
    start = {0: messages[1].id, 1: "earliest"}
    table = bus.consumer(TOPIC, start, stop_at_end=True).to_arrow()
    assert rows(table) == as_rows(messages[1:4] + messages[5:])


def test_pandas_and_polars_have_the_same_rows(bus: tms.Bus) -> None:
    messages = some_published(bus)
    frame = bus.consumer(TOPIC, stop_at_end=True).to_pandas()
    polars = bus.consumer(TOPIC, stop_at_end=True).to_polars()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == polars.columns == arrow_schema().names
    assert list(frame["offset"]) == list(polars["offset"]) == [m.offset for m in messages]
    assert list(polars["value"]) == [m.value for m in messages]
    assert list(frame["timestamp"]) == [m.timestamp for m in messages]
    [batch, _] = bus.consumer(TOPIC, stop_at_end=True).batches()
    assert len(batch.to_pandas()) == len(batch.to_polars()) == len(batch)


def test_a_topic_without_messages_is_a_table_without_rows(bus: tms.Bus) -> None:
    assert bus.consumer(TOPIC, stop_at_end=True).to_arrow().schema == arrow_schema()
    assert bus.consumer(TOPIC, stop_at_end=True).to_polars().shape == (0, 8)


def test_a_consumer_without_an_end_has_no_table(bus: tms.Bus) -> None:
    with pytest.raises(Invalid, match="stop_at_end=True"):
        bus.consumer(TOPIC).to_arrow()


def test_asyncio_has_the_same_tables(log: MemoryLog) -> None:
    messages = some_published(log.bus)

    async def read() -> tuple[pa.Table, int, int]:
        def consumer() -> tms.aio.AsyncConsumer:
            return log.aio_bus.consumer(TOPIC, stop_at_end=True)

        with pytest.raises(Invalid, match="stop_at_end=True"):
            await log.aio_bus.consumer(TOPIC).to_arrow()
        sizes = len(await consumer().to_pandas()), len(await consumer().to_polars())
        return await consumer().to_arrow(), *sizes

    table, *sizes = asyncio.run(read())
    assert rows(table) == as_rows(messages) and sizes == [6, 6]
