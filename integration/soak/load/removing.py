"""Erases keys and single messages, and truncates. It also publishes to these topics, so that it
knows ids."""

import time

import tms
from integration.soak.load.publishing import lone
from integration.soak.load.worker import Worker


def work(worker: Worker) -> None:
    """Remove messages now and then until the stop."""
    options = worker.job.options
    with worker.connect() as bus:
        while not worker.stopped:
            topic = worker.topic(erased=True)
            if not worker.over:
                lone(worker, bus, topic)
            draw = worker.random.random()
            if draw < 0.5:
                _erase_key(worker, bus, topic)
            elif draw < 0.85:
                _erase_id(worker, bus, topic)
            elif options.get("truncates"):
                _truncate(worker, bus, topic)
            time.sleep(worker.random.uniform(0.1, options.get("every_s", 2.0)))


def _erase_key(worker: Worker, bus: tms.Bus, topic: str) -> None:
    key = b"k%d" % worker.random.randrange(int(worker.job.topics[topic]["keys"]))
    worker.attempt(
        "erase", [], lambda: bus.erase(topic, key=key, timeout_s=30), topic=topic, key=key.hex()
    )


def _erase_id(worker: Worker, bus: tms.Bus, topic: str) -> None:
    partitions = int(worker.job.topics[topic]["partitions"])
    partition = worker.random.randrange(partitions)
    one = worker.maker.make(None)
    id = worker.attempt(
        "publish",
        [(topic, partition, one)],
        lambda: bus.publish(topic, one.value, None, one.headers, partition),
        ids=lambda id: [id],
    )
    if id is not None:
        worker.attempt(
            "erase",
            [],
            lambda: bus.erase(topic, id=id, partition=partition, timeout_s=30),
            topic=topic,
            of=one.name,
        )


def _truncate(worker: Worker, bus: tms.Bus, topic: str) -> None:
    one = worker.maker.make(None)
    id = worker.attempt(
        "publish",
        [(topic, None, one)],
        lambda: bus.publish(topic, one.value, None, one.headers),
        ids=lambda id: [id],
    )
    if id is not None:
        worker.attempt(
            "truncate",
            [],
            lambda: bus.truncate_topic(topic, before=id),
            topic=topic,
            before=str(id),
        )
