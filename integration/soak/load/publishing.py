"""Publishes with the synchronous client: single messages, batches, producers, with `expect`."""

from collections.abc import Callable

import tms
from integration.soak.content import Content
from integration.soak.ledger import Placed
from integration.soak.load.worker import Worker
from tms.block import Compression
from tms.errors import WrongLastId
from tms.model.topic import Durability

COMPRESSIONS = tuple(Compression)
NOTHING = "nothing"
UNSURE = "unsure"  # a key whose last message is unknown is left alone


def work(worker: Worker) -> None:
    """Publish until the job is over, each time in a way that is drawn."""
    with worker.connect() as bus:
        known: dict[tuple[str, bytes], str] = {}
        while not worker.over:
            topic = worker.topic(published=True)
            step(worker, bus, topic, known)


def step(worker: Worker, bus: tms.Bus, topic: str, known: dict[tuple[str, bytes], str]) -> None:
    """Publish in one way."""
    way: Callable[[], object] = worker.random.choices(
        (
            lambda: lone(worker, bus, topic),
            lambda: batch(worker, bus, topic),
            lambda: produce(worker, bus, topic),
            lambda: expecting(worker, bus, topic, known),
        ),
        worker.job.options.get("ways", (6, 2, 1, 1)),
    )[0]
    way()


def some(worker: Worker, topic: str, count: int, partition: int | None = None) -> list[Content]:
    """Messages for a topic; with keys as the plan says, unless they have a partition."""
    keyless = partition is not None
    tombstones = worker.job.topics[topic].get("tombstones", True)
    made = []
    for _ in range(count):
        key = None if keyless else worker.key(topic)
        tombstone = key is not None and tombstones and worker.random.random() < 0.05
        made.append(worker.maker.make(key, tombstone=tombstone))
    return made


def placed(topic: str, partition: int | None, made: list[Content]) -> list[Placed]:
    """With their place, for the ledger."""
    return [(topic, partition, one) for one in made]


def lone(worker: Worker, bus: tms.Bus, topic: str) -> None:
    """Publish some messages, each with a request of its own."""
    for _ in range(worker.random.randint(1, 50)):
        if worker.over:
            return
        [one] = some(worker, topic, 1)
        partition, durability = worker.place(topic, one.key), _durability(worker)
        worker.attempt(
            "publish",
            [(topic, partition, one)],
            lambda one=one, p=partition, d=durability: bus.publish(  # type: ignore[misc]
                topic, one.value, one.key, one.headers, p, d
            ),
            ids=lambda id: [id],
            durability=durability,
        )


def batch(worker: Worker, bus: tms.Bus, topic: str) -> None:
    """Publish messages in one call: one block for each partition."""
    count = int(2 ** worker.random.uniform(1, worker.job.options.get("batch_log2", 9)))
    partition = worker.place(topic, None)
    made = some(worker, topic, count, partition)
    alone = partition is not None or int(worker.job.topics[topic]["partitions"]) == 1
    small = sum(len(one.value or b"") + 200 for one in made) < 1 << 20
    durability = _durability(worker)
    worker.attempt(
        "publish",
        placed(topic, partition, made),
        lambda: bus.publish_many(
            topic,
            [one.value for one in made],
            [one.key for one in made],
            [one.headers for one in made],
            partition,
            durability,
            compression=worker.random.choice(COMPRESSIONS),
        ),
        ids=lambda ids: ids or None,
        durability=durability,
        whole=alone and small,
    )


def produce(worker: Worker, bus: tms.Bus, topic: str) -> None:
    """Publish messages through a producer, acknowledged by its flushes."""
    random = worker.random
    with bus.producer(
        topic,
        linger_ms=random.choice((0, 0, 1, 20)),
        batch_bytes=int(2 ** random.uniform(10, 20)),
        compression=random.choice(COMPRESSIONS),
        in_flight_max=random.randint(1, 8),
    ) as producer:
        for _ in range(random.randint(1, 3)):
            made = some(worker, topic, random.randint(1, 500))

            def flush(made: list[Content] = made) -> bool:
                for one in made:
                    producer.send(one.value, one.key, one.headers)
                producer.flush()
                return True

            flushed = worker.attempt("publish", placed(topic, None, made), flush)
            if flushed is None:
                return  # a failed producer is not used again


def expecting(
    worker: Worker, bus: tms.Bus, topic: str, known: dict[tuple[str, bytes], str]
) -> None:
    """Publish with `expect`, which is stored only if no message came; no other job writes its keys.
    Now and then the expected id is wrong, and the publish has to be refused."""
    key = b"%s!%d" % (worker.name.encode(), worker.random.randrange(100))
    last = known.get((topic, key))
    if last == UNSURE:
        return
    wrong = last is not None and worker.random.random() < 0.2
    expect = NOTHING if wrong or last is None else last
    one = worker.maker.make(key)
    id = worker.attempt(
        "publish",
        [(topic, None, one)],
        lambda: bus.publish(topic, one.value, key, one.headers, expect=expect),
        ids=lambda id: [id],
        refusals=(WrongLastId,) if wrong else (),
    )
    if id is not None and wrong:
        worker.ledger.wrong(f"{one.name} was stored although nothing of {key!r} was expected")
    elif not wrong:
        known[topic, key] = UNSURE if id is None else str(id)


def _durability(worker: Worker) -> Durability | None:
    return worker.random.choice((None, None, None, Durability.WRITTEN, Durability.NONE))
