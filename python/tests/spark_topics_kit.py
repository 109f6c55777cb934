"""Topics for the tests of Spark: a service with messages of every fate, and what of them is seen.

The transactions that hold readers back or leave gaps are written through the engine, as Tephra's
clients do; staged and plain ones through the client.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import tms
from tests.http_kit import serving
from tms.clock import Clock
from tms.engine import Engine
from tms.model.block import encode
from tms.model.log import Message, NewBlock
from tms.model.topic import TopicName
from tms.store.base import Store

Row = dict[str, Any]


@dataclass
class Topics:
    """A service, a bus of its own, and the engine below."""

    url: str
    bus: tms.Bus
    engine: Engine
    open: list[int] = field(default_factory=list)

    def publish(self, topic: str, partition: int, count: int, what: str = "v") -> None:
        """Messages that count up."""
        values = [f"{what}{number}".encode() for number in range(count)]
        self.bus.publish_many(topic, values, partition=partition)

    def begin(self) -> int:
        """A transaction that stays open until `end`."""
        self.open.append(self.engine.transactions.begin(long=True).transaction_id)
        return self.open[-1]

    def publish_in(self, pointer: int, topic: str, partition: int, *values: bytes) -> None:
        """Messages that are seen only if the transaction commits."""
        blocks = [NewBlock(partition, encode(list(values)))]
        submitted = self.engine.transactions.submit(TopicName.parse(topic), blocks, pointer)
        submitted.result(20)

    def abort(self, pointer: int) -> None:
        """Its messages are never seen."""
        self.open.remove(pointer)
        self.engine.transactions.abort(pointer)

    def leave_gap(self, topic: str, partition: int, count: int) -> None:
        """Offsets whose messages were rolled back."""
        pointer = self.begin()
        self.publish_in(pointer, topic, partition, *[b"rolled back"] * count)
        self.abort(pointer)

    def stage(self, random: Random, topic: str, partitions: int) -> None:
        """Messages that a transaction has staged before it commits."""
        tx = self.bus.transaction()
        for _ in range(random.randint(1, 4)):
            tx.send(topic, random.randbytes(30), key=b"staged", headers={"h": b"1"})
        for batch in list(tx._batches):
            tx._stage(batch.name, NewBlock(batch.partition, batch.block()), tx.id)
        tx.send(topic, b"with them", partition=random.randrange(partitions))
        tx.commit()

    def fill(self, random: Random, topic: str, partitions: int, steps: int) -> None:
        """Messages of every fate, in random order; transactions that are left open hold back what
        comes after them."""
        for step in range(steps):
            partition = random.randrange(partitions)
            kind = random.randrange(9)
            if kind == 0:
                self.leave_gap(topic, partition, random.randint(1, 5))
            elif kind == 1 and step > steps // 2:
                self.publish_in(self.begin(), topic, partition, b"open")
            elif kind == 2:
                with self.bus.transaction() as tx:
                    for _ in range(random.randint(1, 5)):
                        tx.send(topic, b"committed", partition=random.randrange(partitions))
            elif kind == 3:
                self.stage(random, topic, partitions)
            elif kind == 4:
                self.bus.publish(topic, None, key=b"gone", headers={"why": b"", "é": b"\0\xff"})
            else:
                values = [random.randbytes(random.randint(0, 40)) for _ in range(kind * 3)]
                keys = [random.choice([None, b"", b"k%d" % i]) for i in range(len(values))]
                compression = random.choice(["none", "lz4", "zstd"])
                self.bus.publish_many(topic, values, keys=keys, compression=compression)


@contextmanager
def topics(store: Store | None = None, clock: Clock | None = None) -> Iterator[Topics]:
    """A service on a free port."""
    with serving(store, clock=clock) as served:
        url = "http://{}:{}".format(*served.address)
        with tms.connect(url) as bus:
            yield Topics(url, bus, served.service.engine)


def row_of(message: Message) -> Row:
    """A message as a row with all columns."""
    headers = [{"key": name, "value": value} for name, value in message.headers.items()]
    return {
        "key": message.key,
        "value": message.value,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "timestampType": 1,
        "headers": headers or None,
        "id": str(message.id),
    }


def consumed(bus: tms.Bus, *names: str) -> list[Row]:
    """What a consumer gets of these topics now, in order of topic, partition and offset."""
    messages = [one for name in names for one in bus.consumer(name, stop_at_end=True)]
    return in_order(row_of(one) for one in messages)


def in_order(rows: Any) -> list[Row]:
    """Rows in order of topic, partition and offset."""
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
