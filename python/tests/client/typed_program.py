"""Types of serializers, for type checkers: read values have the type of written ones. `make check`
has mypy read this; it is never run."""

from typing import assert_type

import tms
import tms.aio
from tms.serializers import Json


class Order:
    total: int


ORDERS = Json(Order)


def bill(message: tms.Message[Order]) -> None:
    assert_type(message.decoded, Order)


def misled(message: tms.Message[int]) -> None:
    assert_type(message.decoded, int)


def without(bus: tms.Bus, consumer: tms.Consumer) -> None:
    bus.producer("orders").send(b"x")
    bus.producer("orders").send(ORDERS)  # type: ignore[arg-type]
    for message in bus.consumer("orders"):
        assert_type(message, tms.Message)
        assert_type(message.decoded, bytes)
    for message in consumer:
        assert_type(message.decoded, bytes)


def typed(bus: tms.Bus) -> None:
    producer = bus.producer("orders", serializer=ORDERS)
    producer.send(Order())
    producer.send(None)
    producer.send_many([Order(), None])
    producer.send(b"x")  # type: ignore[arg-type]
    consumer = bus.consumer("orders", serializer=ORDERS, group="g")
    assert_type(consumer, tms.Consumer[Order])
    for message in consumer:
        assert_type(message.decoded, Order)
        assert_type(message.value, bytes | None)
    consumer.handle(bill)
    consumer.handle(misled)  # type: ignore[arg-type]
    for batch in consumer.batches():
        assert_type(batch.messages()[0].decoded, Order)
    queue = bus.queue("orders", group="g", serializer=ORDERS, lease_s=60)
    for delivered in queue:
        assert_type(delivered.decoded, Order)
        with queue.settling(delivered) as same:
            assert_type(same.decoded, Order)
    with bus.transaction() as tx:
        tx.ack(consumer)
        tx.ack(queue, queue.receive())
    assert_type(bus.view("orders", serializer=ORDERS)[b"k"], Order)


async def on_a_loop(bus: tms.aio.AsyncBus) -> None:
    await bus.producer("orders", serializer=ORDERS).send(Order())
    await bus.producer("orders", serializer=ORDERS).send(b"x")  # type: ignore[arg-type]
    consumer = bus.consumer("orders", serializer=ORDERS, group="g")
    async for message in consumer:
        assert_type(message.decoded, Order)
    await consumer.handle(bill)
    await consumer.handle(misled)  # type: ignore[arg-type]
    queue = await bus.queue("orders", group="g", serializer=ORDERS)
    async for delivered in queue:
        assert_type(delivered.decoded, Order)
