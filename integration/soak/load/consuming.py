"""Consumers that follow topics while others write, erase and truncate, and note each message."""

import json
from pathlib import Path
from typing import Any

import tms
from integration.soak.content import digest, name_of, value_digest
from integration.soak.load.worker import Worker
from tms.errors import OffsetOutOfRange, TMSError


def cells(message: Any) -> list[object]:
    """A message as a row of a reading."""
    return [
        message.partition,
        message.offset,
        str(message.id),
        name_of(message.value, message.headers),
        digest(message.key, message.headers, message.value),
        value_digest(message.value),
    ]


def work(worker: Worker) -> None:
    """Follow one topic until the stop; after an error continue at the last position."""
    topic = worker.topic(followed=True)
    path = Path(worker.job.directory) / f"{worker.name}.reading"
    positions: dict[int, str] = {}
    with worker.connect() as bus, path.open("w") as out:
        head = {"reader": f"live consumer {worker.name}", "topic": topic, "live": True}
        out.write(json.dumps(head) + "\n")
        while not worker.stopped:
            try:
                _follow(worker, bus, topic, positions, out)
            except OffsetOutOfRange:
                positions.clear()
            except TMSError as error:
                if not error.retriable:
                    raise
        out.write(json.dumps({"end": True}) + "\n")


def _follow(worker: Worker, bus: tms.Bus, topic: str, positions: dict[int, str], out: Any) -> None:
    random, partitions = worker.random, int(worker.job.topics[topic]["partitions"])
    start = {p: positions.get(p, "earliest") for p in range(partitions)}
    count, limit = 0, random.randint(100, 20_000)
    with bus.consumer(
        topic,
        start,
        stop_at_end=random.random() < 0.5,
        wait_s=0.5,
        bytes_max=int(2 ** random.uniform(8, 22)),
    ) as consumer:
        with worker.ending(consumer):
            for message in consumer:
                out.write(json.dumps(cells(message)) + "\n")
                positions[message.partition] = f"after:{message.id}"
                count += 1
                if count >= limit:
                    break
        for partition, position in consumer.positions().items():
            positions[partition] = str(position)
    out.flush()
