"""Publishes with the asyncio client, several tasks at once, on either event loop."""

import asyncio

import uvloop

import tms.aio
from integration.soak.load.publishing import COMPRESSIONS, placed, some
from integration.soak.load.worker import TIMEOUT_S, Worker

TASKS = 4


def work(worker: Worker) -> None:
    """Run on the event loop of the plan."""
    if worker.job.options["loop"] == "uvloop":
        uvloop.run(main(worker))
    else:
        asyncio.run(main(worker))


async def main(worker: Worker) -> None:
    """Run tasks that share a bus, each a writer of its own."""
    async with (
        tms.aio.connect(worker.job.url, timeout_s=TIMEOUT_S) as bus,
        asyncio.TaskGroup() as group,
    ):
        for number in range(TASKS):
            group.create_task(_publish(worker.branch(f"t{number}"), bus))


async def _publish(worker: Worker, bus: tms.aio.AsyncBus) -> None:
    ways = (_lone, _batch, _produce, _commit)
    while not worker.over:
        [way] = worker.random.choices(ways, (6, 2, 1, 1))
        await way(worker, bus, worker.topic(published=True))


async def _lone(worker: Worker, bus: tms.aio.AsyncBus, topic: str) -> None:
    [one] = some(worker, topic, 1)
    partition = worker.place(topic, one.key)
    op = worker.ledger.begin("publish", sent := [(topic, partition, one)])
    worker.spend(sent)
    try:
        id = await bus.publish(topic, one.value, one.key, one.headers, partition)
    except Exception as error:
        worker.failed(op, error)
    else:
        worker.done(op, [id])


async def _batch(worker: Worker, bus: tms.aio.AsyncBus, topic: str) -> None:
    made = some(worker, topic, worker.random.randint(1, 300))
    op = worker.ledger.begin("publish", sent := placed(topic, None, made))
    worker.spend(sent)
    columns = (
        [one.value for one in made],
        [one.key for one in made],
        [one.headers for one in made],
    )
    try:
        ids = await bus.publish_many(
            topic, *columns, compression=worker.random.choice(COMPRESSIONS)
        )
    except Exception as error:
        worker.failed(op, error)
    else:
        worker.done(op, ids)


async def _produce(worker: Worker, bus: tms.aio.AsyncBus, topic: str) -> None:
    made = some(worker, topic, worker.random.randint(1, 500))
    op = worker.ledger.begin("publish", sent := placed(topic, None, made))
    worker.spend(sent)
    try:
        async with bus.producer(topic, linger_ms=worker.random.choice((0, 5))) as producer:
            for one in made:
                await producer.send(one.value, one.key, one.headers)
            await producer.flush()
    except Exception as error:
        worker.failed(op, error)
    else:
        worker.done(op)


async def _commit(worker: Worker, bus: tms.aio.AsyncBus, topic: str) -> None:
    made = some(worker, topic, worker.random.randint(1, 20))
    aborted = worker.random.random() < 0.1
    op = worker.ledger.begin("commit", sent := placed(topic, None, made), whole=True)
    worker.spend(sent)
    try:
        async with bus.transaction() as tx:
            for one in made:
                await tx.send(topic, one.value, one.key, one.headers)
            if aborted:
                raise _Aborted
    except _Aborted:
        worker.ledger.end(op, "refused")
    except Exception as error:
        worker.failed(op, error)
    else:
        worker.done(op)


class _Aborted(Exception):
    """The transaction is given up."""
