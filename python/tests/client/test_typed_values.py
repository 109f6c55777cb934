"""Serializers that are bound to producers, consumers, queues and views: objects go in and out."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

import tms
import tms.aio
from tests.waiting import PATIENCE_S
from tms.block.received import Delivered
from tms.errors import Invalid, Undecodable, ViewFailed
from tms.model.message import Message
from tms.serializers import Json
from tms.testing.memory import MemoryLog

TOPIC = "orders"


@dataclass
class Order:
    customer: str
    total: int


ORDERS = Json(Order)
ANN, BOB = Order("ann", 12), Order("bob", 7)


class Careless:
    """A serializer of a user: raises what it likes."""

    def encode(self, value: str) -> bytes:
        return value.encode() if value else None  # type: ignore[return-value]

    def decode(self, data: bytes) -> str:
        return {b"known": "value"}[data]

    def __repr__(self) -> str:
        return "Careless()"


def test_what_a_producer_is_given_its_consumer_has(bus: tms.Bus) -> None:
    with bus.producer(TOPIC, serializer=ORDERS) as producer:
        producer.send(ANN, key=b"ann", headers={"h": b"1"})
        producer.send_many([BOB, None], keys=[b"bob", b"ann"])
    messages = list(bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS))
    orders = [message.decoded for message in messages if message.value is not None]
    assert sorted(order.total for order in orders) == [7, 12]
    assert {m.key: m.value for m in messages if m.value} == {
        b"ann": ORDERS.encode(ANN),
        b"bob": ORDERS.encode(BOB),
    }


def test_without_a_serializer_the_value_is_what_it_is(bus: tms.Bus) -> None:
    bus.publish(TOPIC, b"x")
    [message] = bus.consumer(TOPIC, stop_at_end=True)
    assert message.decoded == b"x"
    assert type(message) is Message


def test_a_message_stays_the_tuple_that_it_was(bus: tms.Bus) -> None:
    bus.publish(TOPIC, ORDERS.encode(ANN), key=b"ann")
    [plain] = bus.consumer(TOPIC, stop_at_end=True)
    [typed] = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
    assert typed == plain
    assert isinstance(typed, Message)
    assert repr(typed) == repr(plain)
    assert len(typed) == len(plain)
    assert typed._replace(key=None).decoded == ANN


def test_a_message_can_be_sent_to_another_process(bus: tms.Bus) -> None:
    bus.publish(TOPIC, ORDERS.encode(ANN))
    [typed] = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
    there, again = pickle.loads(pickle.dumps([typed, typed._replace(key=b"k")]))
    assert (there, there.decoded, again.decoded) == (typed, ANN, ANN)
    assert type(there) is type(again)


def test_what_cannot_be_decoded_says_where_it_is_and_has_been_handed_out(bus: tms.Bus) -> None:
    id = bus.publish(TOPIC, b"{", key=b"k")
    bus.publish(TOPIC, ORDERS.encode(ANN), key=b"k")
    consumer = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS, group="g", partitions="all")
    orders, poison = [], []
    for message in consumer:
        try:
            orders.append(message.decoded)
        except Undecodable as error:
            assert f"{id} of {TOPIC} cannot be read by Json(Order)" in error.message
            assert error.details == {"field": "value", "id": str(id), "topic": TOPIC}
            poison.append(message.value)
    assert (orders, poison) == ([ANN], [b"{"])
    consumer.ack()
    assert not list(bus.consumer(TOPIC, stop_at_end=True, group="g", partitions="all"))


def test_a_consumer_that_stops_at_what_it_cannot_decode_meets_it_again(bus: tms.Bus) -> None:
    bus.publish(TOPIC, ORDERS.encode(ANN), key=b"k")
    bus.publish(TOPIC, b"{", key=b"k")

    def read() -> list[Order]:
        orders: list[Order] = []
        consumer = bus.consumer(
            TOPIC, stop_at_end=True, serializer=ORDERS, group="g", partitions="all"
        )
        for message in consumer:
            orders.append(message.decoded)
            consumer.ack()
        return orders

    for _ in range(2):
        with pytest.raises(Undecodable, match=r"no Order"):
            read()
    left = bus.consumer(TOPIC, stop_at_end=True, group="g", partitions="all")
    assert [message.value for message in left] == [b"{"]


def test_members_of_a_group_have_objects_too(bus: tms.Bus) -> None:
    bus.publish(TOPIC, ORDERS.encode(ANN))
    with bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS, group="g") as member:
        assert [message.decoded for message in member] == [ANN]


def test_batches_have_objects_in_their_messages(bus: tms.Bus) -> None:
    bus.publish_many(TOPIC, [ORDERS.encode(ANN), ORDERS.encode(BOB)])
    consumer = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
    assert [m.decoded for batch in consumer.batches() for m in batch.messages()] == [ANN, BOB]


def test_a_producer_refuses_what_does_not_fit_and_goes_on(bus: tms.Bus) -> None:
    with bus.producer(TOPIC, serializer=ORDERS) as producer:
        with pytest.raises(Invalid, match="cannot be written as Order"):
            producer.send(object())  # type: ignore[arg-type]
        with pytest.raises(Invalid) as raised:
            producer.send_many([ANN, object()])  # type: ignore[list-item]
        assert raised.value.details == {"field": "value", "index": 1}
        producer.send(BOB)
    stored = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
    assert sorted(m.decoded.total for m in stored) == [7, 12]  # values from before the index


def test_bytes_are_written_by_a_serializer_too(bus: tms.Bus) -> None:
    class Reversed:
        def encode(self, value: bytes) -> bytes:
            return value[::-1]

        decode = encode

    with bus.producer(TOPIC, serializer=Reversed()) as producer:
        producer.send(b"abc", partition=0)
        producer.send_many([b"def", b"ghi"], partition=0)
    plain = [message.value for message in bus.consumer(TOPIC, stop_at_end=True)]
    assert plain == [b"cba", b"fed", b"ihg"]
    read = bus.consumer(TOPIC, stop_at_end=True, serializer=Reversed())
    assert [message.decoded for message in read] == [b"abc", b"def", b"ghi"]


def test_whatever_a_serializer_raises_is_explained(bus: tms.Bus) -> None:
    with bus.producer(TOPIC, serializer=Careless()) as producer:
        with pytest.raises(Invalid, match=r"Careless\(\): AttributeError"):
            producer.send(5)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=r"Careless\(\) has made NoneType of a str"):
            producer.send("")
        producer.send("unknown")
    [message] = bus.consumer(TOPIC, stop_at_end=True, serializer=Careless())
    with pytest.raises(Undecodable, match=r"Careless\(\): KeyError\(b'unknown'\)"):
        _ = message.decoded


def test_a_tombstone_has_no_object(bus: tms.Bus) -> None:
    bus.publish(TOPIC, None, key=b"k")
    [message] = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
    with pytest.raises(Undecodable, match="tombstone"):
        _ = message.decoded


def test_a_queue_delivers_objects_and_dead_letters_what_is_none(bus: tms.Bus) -> None:
    queue = bus.queue(
        TOPIC, group="g", lease_s=60, deliveries_max=1, dead_letter="dead", serializer=ORDERS
    )
    bus.publish(TOPIC, ORDERS.encode(ANN), key=b"k")
    bus.publish(TOPIC, b"{", key=b"k")
    done: list[Order] = []

    @queue.worker
    def work(message: Delivered[Order]) -> None:
        done.append(message.decoded)
        work.stop() if message.value == b"{" else None

    for message in queue.receive(2):
        try:
            work(message)
        except Undecodable as error:
            queue.reject(message, cause=error.message)
        else:
            queue.ack(message)
    assert done == [ANN]
    [letter] = bus.list_dead_letters(TOPIC, group="g")
    assert letter.message.value == b"{"
    assert "cannot be read by Json(Order)" in letter.cause


def test_a_worker_hands_objects_to_its_handler(bus: tms.Bus) -> None:
    queue = bus.queue(
        TOPIC, group="g", lease_s=60, deliveries_max=1, dead_letter="dead", serializer=ORDERS
    )
    done: list[Order] = []

    @queue.worker
    def work(message: Delivered[Order]) -> None:
        try:
            done.append(message.decoded)
        finally:
            if message.value == b"{":
                work.stop()

    bus.publish(TOPIC, ORDERS.encode(ANN), partition=0)
    bus.publish(TOPIC, b"{", partition=0)
    work.run()
    assert done == [ANN]
    [letter] = bus.list_dead_letters(TOPIC, group="g")
    assert letter.cause.startswith("Undecodable")


def test_a_group_hands_objects_to_its_handler_and_what_is_none_is_a_dead_letter(
    log: MemoryLog, bus: tms.Bus
) -> None:
    bus.publish_many(TOPIC, [ORDERS.encode(ANN), b"{", ORDERS.encode(BOB)], partition=0)
    options: dict[str, Any] = {"deliveries_max": 2, "backoff_first_s": 0, "dead_letter": ""}
    g, h = tms.Group("g", **options), tms.Group("h", **options)
    done: list[Order] = []

    def bill(message: tms.Message[Order]) -> None:
        done.append(message.decoded)

    with bus.consumer(TOPIC, group=g, stop_at_end=True, serializer=ORDERS) as member:
        member.handle(bill)

    async def on_a_loop() -> None:
        async with log.aio_bus.consumer(
            TOPIC, group=h, stop_at_end=True, serializer=ORDERS
        ) as member:
            await member.handle(bill)

    asyncio.run(on_a_loop())
    assert done == [ANN, BOB, ANN, BOB]
    for group in ("g", "h"):
        [letter] = bus.list_dead_letters(TOPIC, group=group)
        assert (letter.message.value, letter.deliveries) == (b"{", 2)
        assert letter.cause.startswith("Undecodable")


def test_a_transaction_reads_objects_and_writes_them(bus: tms.Bus) -> None:
    bus.publish(TOPIC, ORDERS.encode(ANN))
    bus.create_topic("totals")
    consumer = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS, group="g", partitions="all")
    totals = Json(int)
    with bus.transaction() as tx:
        for message in consumer:
            tx.send("totals", totals.encode(message.decoded.total))
        tx.ack(consumer)
    assert [m.decoded for m in bus.consumer("totals", stop_at_end=True, serializer=totals)] == [12]


def test_a_view_has_objects(bus: tms.Bus) -> None:
    changes: list[tuple[bytes, Order | None]] = []
    with bus.producer(TOPIC, serializer=ORDERS) as producer:
        producer.send(ANN, key=b"1")
        producer.send(BOB, key=b"2")
    with bus.view(
        TOPIC, serializer=ORDERS, on_change=lambda key, order: changes.append((key, order))
    ) as view:
        assert dict(view) == {b"1": ANN, b"2": BOB}
        bus.publish(TOPIC, None, key=b"2")
        view.refresh()
        assert dict(view) == {b"1": ANN}
    assert sorted(changes[:2], key=str) == [(b"1", ANN), (b"2", BOB)]
    assert changes[-1] == (b"2", None)


def test_a_view_says_what_it_cannot_decode(bus: tms.Bus) -> None:
    with bus.view(TOPIC, serializer=ORDERS) as view:
        id = bus.publish(TOPIC, b"{", key=b"k")
        with pytest.raises((Undecodable, ViewFailed), match=f"{id} of {TOPIC}"):
            view.refresh()
        with pytest.raises(ViewFailed, match=f"{id} of {TOPIC}"):
            _ = view[b"k"]
    with pytest.raises(Undecodable, match=f"{id} of {TOPIC}"):
        bus.view(TOPIC, serializer=ORDERS)


def test_a_view_fails_alike_whoever_of_its_threads_meets_it(bus: tms.Bus) -> None:
    with bus.view(TOPIC, serializer=ORDERS) as view:
        bus.publish(TOPIC, b"{", key=b"k")
        thread = view._thread
        assert thread is not None
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        with pytest.raises(ViewFailed, match="cannot go on: Undecodable"):
            view.refresh()


def test_a_view_takes_a_serializer_or_a_function(bus: tms.Bus) -> None:
    with pytest.raises(Invalid, match="either apply or serializer"):
        bus.view(TOPIC, serializer=ORDERS, apply=lambda _, m: m)  # type: ignore[call-overload]


def test_asyncio_has_objects_too(bus: tms.Bus, log: MemoryLog) -> None:
    async def program() -> None:
        aio = log.aio_bus
        async with aio.producer(TOPIC, serializer=ORDERS) as producer:
            await producer.send(ANN)
            await producer.send_many([BOB])
        consumer = aio.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
        assert sorted([m.decoded.total async for m in consumer]) == [7, 12]
        member = aio.consumer(TOPIC, stop_at_end=True, serializer=ORDERS, group="g")
        assert sorted([m.decoded.total async for m in member]) == [7, 12]
        queue = await aio.queue(TOPIC, group="q", lease_s=60, serializer=ORDERS)
        assert sorted([m.decoded.total for m in await queue.receive(2)]) == [7, 12]
        view = await aio.view(TOPIC, serializer=ORDERS)
        assert dict(view) == {}

    asyncio.run(program())
