"""Topics for the tests of Spark: a service with messages of every fate, and the visible ones.

The transactions that hold readers back or leave gaps are written through the engine, as Tephra's
clients do; staged and plain ones through the client. Cases beyond one life of a name are in
`relive` (earlier lives), `truncate`, and services with a late clock, whose messages have expired
since.

`from tests.spark_topics_kit import topic, world` imports the fixtures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

import tms
from tests.http_kit import serving
from tests.log_kit import HOUR_MS
from tms.block import encode
from tms.engine.engine import Engine
from tms.model.ids import utc
from tms.model.message import Message, NewBlock
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import TopicName
from tms.runtime.clock import Clock
from tms.store.base import Store

Row = dict[str, Any]


@dataclass
class Topics:
    """A service, a bus of its own, and the engine below."""

    url: str
    bus: tms.Bus
    engine: Engine
    open: list[int] = field(default_factory=list)
    _elsewhere: int = 0

    def publish(self, topic: str, partition: int, count: int, what: str = "v") -> None:
        """Publish messages that count up."""
        values = [f"{what}{number}".encode() for number in range(count)]
        self.bus.publish_many(topic, values, partition=partition)

    def begin(self, long: bool = True) -> int:
        """Begin a transaction that stays open until it is aborted or invalidated, or times out: a
        short one after half a minute, a long one after a day."""
        self.open.append(self.engine.transactions.begin(long=long).transaction_id)
        return self.open[-1]

    def publish_in(self, pointer: int, topic: str, partition: int, *values: bytes) -> None:
        """Publish messages that become visible only if the transaction commits."""
        blocks = [NewBlock(partition, encode(list(values)))]
        submitted = self.engine.transactions.submit(TopicName.parse(topic), blocks, pointer)
        submitted.result(20)

    def elsewhere(self, began_ago_ms: int = 0) -> int:
        """Return a pointer of a transaction that the service does not know: it counts as open for
        25 hours."""
        self._elsewhere += 1
        began_ms = self.engine.topics.clock.now_ms() - began_ago_ms
        return began_ms * POINTERS_PER_MS + POINTERS_PER_MS // 2 + self._elsewhere

    def abort(self, pointer: int) -> None:
        """Abort a transaction: its messages never become visible."""
        self.open.remove(pointer)
        self.engine.transactions.abort(pointer)

    def invalidate(self, pointer: int, forget: bool = False) -> None:
        """Invalidate a transaction: its messages stay and never become visible. With `forget` it
        leaves the list of invalid transactions again."""
        self.open.remove(pointer)
        self.engine.transactions.invalidate(pointer)
        if forget:
            self.engine.transactions.tephra.truncate([pointer])

    def leave_gap(self, topic: str, partition: int, count: int, long: bool = True) -> None:
        """Leave a gap: offsets whose messages were rolled back."""
        pointer = self.begin(long)
        self.publish_in(pointer, topic, partition, *[b"rolled back"] * count)
        self.abort(pointer)

    def leave_invalid(self, random: Random, topic: str, partition: int) -> None:
        """Leave a message that stays and is never visible."""
        if random.random() < 0.3:
            self.publish_in(self.elsewhere(26 * HOUR_MS), topic, partition, b"from elsewhere")
            return
        pointer = self.begin()
        self.publish_in(pointer, topic, partition, b"invalid")
        self.invalidate(pointer, random.random() < 0.3)

    def stage(self, random: Random, topic: str, partitions: int, commit: bool = True) -> None:
        """Stage messages in a transaction before it commits, or is aborted."""
        tx = self.bus.transaction()
        for _ in range(random.randint(1, 4)):
            tx.send(topic, random.randbytes(30), key=b"staged", headers={"h": b"1"})
        for batch in list(tx._batches.all):
            tx._stage(batch.name, NewBlock(batch.partition, batch.block()), tx.id)
        tx.send(topic, b"with them", partition=random.randrange(partitions))
        if commit:
            tx.commit()
        else:
            tx.abort()

    def fill(
        self, random: Random, topic: str, partitions: int, steps: int, foreign: float = 0.3
    ) -> None:
        """Publish messages of every fate, in random order; transactions that stay open hold back
        the messages after them, and only the foreign part of them cannot be ended."""
        for step in range(steps):
            partition = random.randrange(partitions)
            kind = random.randrange(10)
            if kind == 0:
                self.leave_gap(topic, partition, random.randint(1, 5), random.random() < 0.5)
            elif kind == 1 and step > steps // 2:
                pointer = self.elsewhere() if random.random() < foreign else self.begin()
                self.publish_in(pointer, topic, partition, b"open")
            elif kind == 2:
                with self.bus.transaction() as tx:
                    for _ in range(random.randint(1, 5)):
                        tx.send(topic, b"committed", partition=random.randrange(partitions))
            elif kind == 3:
                self.stage(random, topic, partitions, random.random() < 0.7)
            elif kind == 4:
                self.bus.publish(topic, None, key=b"gone", headers={"why": b"", "é": b"\0\xff"})
            elif kind == 9:
                self.leave_invalid(random, topic, partition)
            else:
                values = [random.randbytes(random.randint(0, 40)) for _ in range(kind * 3)]
                keys = [random.choice([None, b"", b"k%d" % i]) for i in range(len(values))]
                compression = random.choice(["none", "lz4", "zstd"])
                self.bus.publish_many(topic, values, keys=keys, compression=compression)

    def relive(self, random: Random, topic: str, partitions: int, steps: int) -> None:
        """Let some lives of a name end before it is created once more."""
        for _ in range(random.randint(1, 2)):
            self.bus.create_topic(topic, partitions=partitions, durability="written")
            self.fill(random, topic, partitions, steps)
            self.bus.delete_topic(topic)

    def truncate(self, random: Random, topic: str) -> None:
        """Truncate every partition before an offset."""
        ends = self.bus.offsets(topic)
        self.bus.truncate_topic(topic, f"offset:{random.randint(1, max(2, *ends.values()) // 2)}")

    def settle(self, clean: bool = True) -> None:
        """Do a service's periodic work: transactions time out, expired messages are cleaned, and
        readers without the service get a new image of the transactions."""
        self.engine.transactions.tidy()
        if clean:
            self.engine.maintenance.clean()
        self.engine.transactions.close()


@contextmanager
def topics(store: Store | None = None, clock: Clock | None = None) -> Iterator[Topics]:
    """A service on a free port."""
    with serving(store, clock=clock) as served:
        url = served.url
        with tms.connect(url) as bus:
            yield Topics(url, bus, served.service.engine)


@pytest.fixture(scope="module")
def world() -> Iterator[Topics]:
    """A service for all tests of a module."""
    with topics() as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest, world: Topics) -> str:
    """A new topic, named like the test, of 2 partitions or as many as its module's `PARTITIONS`."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[-100:]
    partitions = getattr(request.module, "PARTITIONS", 2)
    world.bus.create_topic(name, partitions=partitions, durability="written")
    return name


def row_of(message: Message) -> Row:
    """A message as a row with all columns; with an event time only if it has one."""
    headers = [{"key": name, "value": value} for name, value in message.headers.items()]
    time_ms = message.event_time_ms
    return ({} if time_ms is None else {"event_time": utc(time_ms)}) | {
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
    """The messages that a consumer gets from these topics now, in order of topic, partition and
    offset."""
    messages = [one for name in names for one in bus.consumer(name, stop_at_end=True)]
    return in_order(row_of(one) for one in messages)


def in_order(rows: Any) -> list[Row]:
    """Rows in order of topic, partition and offset."""
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
