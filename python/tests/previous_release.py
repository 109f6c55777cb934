"""The contents of a data directory that a release writes, and reads: run with another release, its
code does both.

    PYTHONPATH=…/python python previous_release.py fill DIR      writes, and ends without a close
    PYTHONPATH=…/python python previous_release.py contents DIR  prints the contents, as JSON

Only functions of both releases are used. `vectors/directory-2.tar.xz` is the result of `fill` with
the release 0.1.0 at `RELEASE`, `directory-2.json` the output of its `contents`.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import tms
from tms.client.client import Bus

RELEASE = "195aa433841c8484940c6f23d143e46c6f11da72"
FAR = 7_258_118_400_000  # 2200-01-01


def fill(path: Path) -> None:
    """Write one of everything; the process ends as if it had been killed."""
    random = Random(7)
    bus = tms.open(path)
    options: dict[str, Any] = {"retention": "forever", "durability": "synced"}
    bus.create_topic("orders", partitions=3, **options)
    for topic in ("left", "right", "jobs", "later"):
        bus.create_topic(topic, **options)
    bus.create_topic("kept", cleanup="compact", **options)
    numbers = range(60)
    bus.publish_many(
        "orders",
        [random.randbytes(5_000 if n % 20 == 7 else n) for n in numbers],
        keys=[None if n % 3 else b"k%d" % (n % 7) for n in numbers],
        headers=[{"n": b"%d" % n} if n % 2 else None for n in numbers],
    )
    bus.publish_many("orders", [b"packed" * 50] * 20, compression="zstd")
    bus.publish_many("kept", [b"1", b"2", None], keys=[b"a", b"a", b"b"])
    for number in range(3):
        with bus.transaction() as tx:
            tx.send("left", b"%d" % number)
            tx.send("right", b"%d" % number)
            bus.table("sums").within(tx).put(b"last", b"%d" % number)
    tx = bus.transaction()
    tx.send("left", b"rolled back")
    tx.abort()
    with bus.consumer("orders", group="readers", partitions=[0, 1], stop_at_end=True) as consumer:
        next(iter(consumer))
        consumer.ack()
    queue = bus.queue("jobs", group="workers", lease_s=43_200)
    bus.publish_many("jobs", [b"job %d" % n for n in range(10)])
    messages = queue.receive(6)
    queue.ack(messages[:2])
    queue.nack(messages[2], delay_s=43_000)
    queue.reject(messages[3], "broken")
    while not queue.describe().dead:
        time.sleep(0.05)
    bus.publish_later("later", b"in the end", at=FAR)
    open_one = bus.transaction(timeout_s=600)  # which is never decided
    open_one.send("right", b"in progress")
    os._exit(9)


def contents(bus: Bus) -> dict[str, Any]:
    """All messages and states that a reader sees."""
    topics = sorted(info.topic for info in bus.list_topics())
    queue = bus.queue("jobs", group="workers").describe()
    return {
        "topics": {topic: _messages(bus, topic) for topic in topics},
        "positions": {
            str(p): str(at) for p, at in bus.positions("orders", group="readers").items()
        },
        "table": [(key.decode(), value.decode()) for key, value in bus.table("sums").scan()],
        "unsettled": queue.backlog + queue.leased + queue.ready + queue.delayed + queue.blocked,
        "dead": queue.dead,
        "later": [str(one.id) for one in _delayed(bus)("later")],
    }


def _delayed(bus: Bus) -> Any:
    """The listing of delayed messages, as this and the previous release name it."""
    return bus.list_delayed if hasattr(bus, "list_delayed") else bus.delayed_messages


def _messages(bus: Bus, topic: str) -> list[list[Any]]:
    found = sorted(
        bus.consumer(topic, stop_at_end=True), key=lambda one: (one.partition, one.offset)
    )
    return [
        [
            one.partition,
            one.offset,
            str(one.id),
            None if one.key is None else one.key.decode(),
            None if one.value is None else hashlib.sha256(one.value).hexdigest()[:16],
            {name: value.decode("latin-1") for name, value in one.headers.items()},
        ]
        for one in found
    ]


def go_on(bus: Bus) -> None:
    """Change a little of everything, as a release that continues in the directory of another
    one."""
    bus.publish_many("orders", [b"more"] * 10, keys=[b"k1"] * 10)
    bus.publish("orders", bytes(9_000), headers={"large": b"yes"})
    with bus.transaction() as tx:
        tx.send("left", b"more")
        tx.send("right", b"more")
        bus.table("sums").within(tx).put(b"more", b"1")
    with bus.consumer("orders", group="readers", partitions=[0, 1], stop_at_end=True) as consumer:
        assert list(consumer)
        consumer.ack()
    queue = bus.queue("jobs", group="workers")
    [message] = queue.receive(1, wait_s=10)
    queue.ack(message)
    bus.publish_later("later", b"more", at=FAR)
    bus.create_topic("new", retention="forever")
    bus.publish("new", b"of this release")


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill(Path(sys.argv[2]))
    with tms.open(sys.argv[2], create=False) as opened:
        print(json.dumps(contents(opened), indent=1))
