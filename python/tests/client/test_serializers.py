"""Values of types: written values can be read again, and a value that does not fit raises an
error."""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field

import tms
from tms.errors import Invalid
from tms.serializers import Avro, Json, MessagePack, Pydantic, Serializer
from tms.testing.memory import MemoryLog

TOPIC = "orders"


class Struct(msgspec.Struct):
    customer: str
    total: int


@dataclass
class Record:
    customer: str
    total: int


class Typed(TypedDict):
    customer: str
    total: int


class Validated(BaseModel):
    customer: str
    total: int


SCHEMA: Mapping[str, object] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "total", "type": "int"}],
}
NEWER: Mapping[str, object] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "total", "type": "long"},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}
PLAIN = {"customer": "ann", "total": 12}
CASES: list[tuple[Serializer[Any], object]] = [
    (Json(Struct), Struct("ann", 12)),
    (Json(Record), Record("ann", 12)),
    (Json(Typed), PLAIN),
    (Json(dict[str, list[int]]), {"a": [1, 2]}),
    (MessagePack(Struct), Struct("ann", 12)),
    (MessagePack(Record), Record("ann", 12)),
    (Pydantic(Validated), Validated(customer="ann", total=12)),
    (Avro(SCHEMA), PLAIN),
]
NAMES = [f"{type(one).__name__}-{type(value).__name__}-{n}" for n, (one, value) in enumerate(CASES)]


@pytest.fixture
def bus() -> Iterator[tms.Bus]:
    log = MemoryLog()
    log.bus.create_topic(TOPIC)
    yield log.bus
    log.close()


@pytest.mark.parametrize(("serializer", "value"), CASES, ids=NAMES)
def test_what_is_published_is_read_again(
    bus: tms.Bus, serializer: Serializer[Any], value: object
) -> None:
    bus.publish(TOPIC, serializer.encode(value))
    [message] = bus.consumer(TOPIC, stop_at_end=True)
    assert message.decode(serializer) == value


@pytest.mark.parametrize(("serializer", "value"), CASES, ids=NAMES)
def test_what_is_cut_or_has_more_names_its_message(
    bus: tms.Bus, serializer: Serializer[Any], value: object
) -> None:
    data = serializer.encode(value)
    for wrong in (data[:-1], data + b"!", b"", b"\xff\xff\xff", b"[" * 100_000):
        bus.publish(TOPIC, wrong)
    for message in bus.consumer(TOPIC, stop_at_end=True):
        with pytest.raises(Invalid, match=str(message.id)) as raised:
            message.decode(serializer)
        assert raised.value.details == {"field": "value", "id": str(message.id), "topic": TOPIC}
        assert f"{message.id} of {TOPIC} cannot be read by {serializer!r}" in raised.value.message


@pytest.mark.parametrize("serializer", [one for one, _ in CASES], ids=NAMES)
def test_what_cannot_be_written_is_refused(serializer: Serializer[Any]) -> None:
    with pytest.raises(Invalid, match="cannot be written as"):
        serializer.encode({"total": object()})


@pytest.mark.parametrize("serializer", [one for one, _ in CASES if one is not CASES[3][0]])
@pytest.mark.parametrize(
    "wrong", [{"total": 1}, {"customer": 1, "total": 1}, b"x", None, Struct("ann", "12")], ids=repr
)
def test_nothing_is_written_that_cannot_be_read(serializer: Serializer[Any], wrong: object) -> None:
    with pytest.raises(Invalid, match="cannot be written as"):
        serializer.encode(wrong)


def test_a_model_of_another_kind_is_refused_and_aliases_are_read_again() -> None:
    class Aliased(BaseModel):
        customer_name: str = Field(alias="customerName")

    aliased = Pydantic(Aliased)
    with pytest.raises(Invalid, match="A Validated cannot be written as Aliased"):
        aliased.encode(Validated(customer="ann", total=12))  # type: ignore[arg-type]
    data = aliased.encode(Aliased(customerName="ann"))
    assert data == b'{"customerName":"ann"}'
    assert aliased.decode(data).customer_name == "ann"


def test_a_tombstone_is_not_decoded(bus: tms.Bus) -> None:
    bus.publish(TOPIC, None, key=b"k")
    [message] = bus.consumer(TOPIC, stop_at_end=True)
    with pytest.raises(Invalid, match="tombstone"):
        message.decode(Json(Struct))


def test_messages_of_queues_and_delayed_ones_are_decoded_alike(bus: tms.Bus) -> None:
    orders = Json(Struct)
    bus.publish(TOPIC, orders.encode(Struct("ann", 12)))
    queue = bus.queue(TOPIC, group="g", lease_s=60)
    [delivered] = queue.receive()
    [seen] = queue.peek()
    assert seen.decode(orders) == delivered.decode(orders)
    bus.publish_later(TOPIC, orders.encode(Struct("bob", 7)), delay="1h")
    [waiting] = bus.list_delayed(TOPIC)
    assert (delivered.decode(orders).total, waiting.decode(orders).total) == (12, 7)


def test_avro_reads_what_an_older_schema_has_written() -> None:
    data = Avro(SCHEMA).encode(PLAIN)
    assert Avro(NEWER, writer=SCHEMA).decode(data) == {"total": 12, "currency": "EUR"}


@pytest.mark.parametrize(("serializer", "value"), CASES, ids=NAMES)
def test_a_serializer_can_be_sent_to_another_process(
    serializer: Serializer[Any], value: object
) -> None:
    there: Serializer[Any] = pickle.loads(pickle.dumps(serializer))
    assert repr(there) == repr(serializer)
    assert there.decode(serializer.encode(value)) == value


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid, match="Avro schema"):
        Avro({"type": "recrod", "name": "Order"})
