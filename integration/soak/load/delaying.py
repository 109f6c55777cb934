"""Delayed messages: published singly and in batches, cancelled, due soon or after the soak."""

import time

import tms
from integration.soak.content import Content
from integration.soak.load.worker import Worker

FAR_S = 36_000


def work(worker: Worker) -> None:
    """Publish and cancel until the job is over."""
    cancellable: list[tuple[str, Content, str]] = []
    with worker.connect() as bus:
        while not worker.over:
            topic = worker.topic(delayed=True)
            if cancellable and worker.random.random() < 0.2:
                at = worker.random.randrange(len(cancellable))
                _cancel(worker, bus, *cancellable.pop(at))
            else:
                cancellable += _publish(worker, bus, topic)
                del cancellable[:-500]


def _publish(worker: Worker, bus: tms.Bus, topic: str) -> list[tuple[str, Content, str]]:
    random = worker.random
    made = [worker.maker.make(worker.key(topic)) for _ in range(int(2 ** random.uniform(0, 6)))]
    delay_s = FAR_S if random.random() < 0.1 else random.uniform(0, 10)
    due_ms = int((time.time() + delay_s) * 1_000)
    ids = worker.attempt(
        "delayed",
        [(topic, None, one) for one in made],
        lambda: bus.publish_later_many(
            topic,
            [one.value for one in made],
            [one.key for one in made],
            [one.headers for one in made],
            at=due_ms,
        ),
        topic=topic,
        due_ms=due_ms,
    )
    if not ids:
        return []
    return [(topic, one, str(id)) for one, id in zip(made, ids, strict=True)]


def _cancel(worker: Worker, bus: tms.Bus, topic: str, one: Content, id: str) -> None:
    op = worker.ledger.begin("cancel", topic=topic, of=one.name)
    try:
        cancelled = bus.cancel_delayed(topic, id)
    except BaseException as error:
        worker.failed(op, error)
    else:
        worker.ledger.end(op, "done", cancelled=cancelled)
