"""Following through an instance that forwards: it ends with a position, and goes on without
loss."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster_kit import Instances, instances
from tests.http_kit import Client, request
from tests.waiting import PATIENCE_S, until
from tms.api import routes
from tms.model.topic import TopicName

TOPIC = "orders"
PATH = f"/v2/namespaces/default/topics/{TOPIC}/messages"


@pytest.fixture
def three() -> Iterator[Instances]:
    """Three instances, and a topic of one partition."""
    with instances("a", "b", "c") as all:
        with all.connect("a") as bus:
            bus.create_topic(TOPIC, partitions=1)
            bus.publish(TOPIC, b"0")
        yield all


def place(all: Instances) -> tuple[int, int]:
    """The partition."""
    engine = next(iter(all.served.values())).service.engine
    return engine.topics.registry.find(TopicName("default", TOPIC)).uid, 0


def owner(all: Instances) -> str:
    """The instance that has the partition open, as every instance says."""
    where = place(all)

    def holders() -> list[str]:
        said = {owner for id in all.served for owner in all.owners(TOPIC, id)}
        return [
            id
            for id in said & all.served.keys()
            if where in all.served[id].service.engine.topics.partitions.logs and len(said) == 1
        ]

    until(holders, "nobody owns it")
    return holders()[0]


def move(all: Instances, to: str) -> None:
    """Let another instance own the partition."""
    uid, partition = place(all)
    all.cluster[to].pin(f"{uid}/{partition}", to)


class Followed:
    """A connection to an instance that follows; its messages, and the position at its end."""

    def __init__(self, client: Client, start: str = "earliest") -> None:
        self._client = client
        self.next = start
        self.problem: Any = None
        client.send(
            request("GET", f"{PATH}?follow=true&wait_s=1&start={start}", Accept=routes.NDJSON)
        )
        self.head = client._until(b"\r\n\r\n").decode()
        assert " 200 " in self.head, self.head
        self._chunks = client._chunks()
        self._line = b""

    def part(self) -> list[int]:
        """The values of the next part; empty also at the end."""
        while not self._line.endswith(b"\n"):
            chunk = next(self._chunks, b"")
            if not chunk:
                assert not self._line, "it ends in the middle of a part"
                return []
            self._line += chunk
        part, self._line = json.loads(self._line), b""
        if "problem" in part:
            self.problem = part["problem"]
            return []
        self.next = part["next"]
        return [int(message["value"]) for message in part["messages"]]

    def has(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            found += self.part()
        return found

    def rest(self) -> list[int]:
        return [value for values in iter(self.part, []) for value in values]


def publish(all: Instances, id: str, values: range) -> None:
    with all.connect(id) as bus:
        for value in values:
            bus.publish(TOPIC, b"%d" % value)


def test_it_ends_between_parts_when_the_instance_drains_that_forwards(three: Instances) -> None:
    at = owner(three)
    through, other = (id for id in "abc" if id != at)
    followed = Followed(three.served[through].connect())
    found = followed.has(1)
    publish(three, at, range(1, 20))
    found += followed.has(10)
    began_s = time.monotonic()
    three.served[through].stop()
    found += followed.rest()
    assert time.monotonic() - began_s < 4
    assert followed.problem is None
    publish(three, at, range(20, 30))
    again = Followed(three.served[other].connect(), followed.next)
    while len(found) < 30:
        found += again.part()
    assert found == list(range(30))
    until(lambda: three.served[at].service.metrics.followers == 1, "the owner lets it go")


def test_a_part_that_is_half_sent_when_the_instance_drains_is_sent_to_its_end(
    three: Instances,
) -> None:
    at = owner(three)
    through = next(id for id in "abc" if id != at)
    followed = Followed(three.served[through].connect())
    followed.has(1)
    with three.connect(at) as bus, bus.producer(TOPIC) as producer:
        for number in range(1, 60):
            producer.send(b"%d" % number + b" " * 500_000, partition=0)
    connections = three.served[through].service.watchdog.connections
    until(lambda: any(one.writable for one in connections), "it is sent everything")
    three.served[through].stop()
    until(lambda: any(one._running and one._running.hurried for one in connections), "no drain")
    found = followed.rest()
    assert found and found == list(range(1, len(found) + 1))
    assert len(found) < 59


def test_it_ends_between_parts_when_the_owner_drains(three: Instances) -> None:
    at = owner(three)
    through = next(id for id in "abc" if id != at)
    followed = Followed(three.served[through].connect())
    found = followed.has(1)
    three.stop(at)
    found += followed.rest()
    publish(three, through, range(1, 5))
    found += Followed(three.served[through].connect(), followed.next).has(5 - len(found))
    assert found == list(range(5))


@pytest.mark.parametrize("to", ["forwarder", "third"])
def test_it_ends_when_the_partition_moves_and_goes_on_at_its_new_owner(
    three: Instances, to: str
) -> None:
    at = owner(three)
    through, third = (id for id in "abc" if id != at)
    followed = Followed(three.served[through].connect())
    found = followed.has(1)
    new = through if to == "forwarder" else third
    move(three, new)
    until(lambda: owner(three) == new, "it has not moved")
    publish(three, through, range(1, 10))
    found += followed.rest()
    again = Followed(three.served[through].connect(), followed.next)
    found += again.has(10 - len(found))
    assert found == list(range(10))


def test_a_client_that_leaves_is_followed_no_more(three: Instances) -> None:
    at = owner(three)
    through = next(id for id in "abc" if id != at)
    followed = Followed(three.served[through].connect())
    followed.has(1)
    metrics = three.served[at].service.metrics
    assert metrics.followers == 1
    followed._client.socket.close()
    until(lambda: metrics.followers == 0, "the owner sends on")


def test_the_time_of_an_answer_that_goes_on_is_no_latency_where_it_is_forwarded(
    three: Instances,
) -> None:
    at = owner(three)
    through = next(id for id in "abc" if id != at)
    metrics = three.served[through].service.metrics
    before = metrics.seconds["fetch"].count
    followed = Followed(three.served[through].connect())
    followed.has(1)
    three.stop(at)
    followed.rest()
    until(lambda: metrics.answers["fetch", 200] == 1, "it has not ended")
    assert metrics.seconds["fetch"].count == before


def test_a_consumer_reads_everything_once_while_the_partition_moves(three: Instances) -> None:
    values: list[int] = []
    with three.connect("a") as bus:
        consumer = bus.consumer(TOPIC, start="earliest", wait_s=0.5)

        def read() -> None:
            for message in consumer:
                values.append(int(message.value or b""))

        reading = threading.Thread(target=read)
        reading.start()
        for number in range(1, 200):
            if number % 40 == 0:
                move(three, "abc"[number // 40 % 3])
            bus.publish(TOPIC, b"%d" % number)
        until(lambda: len(values) >= 200, "it does not get everything")
        metrics = [served.service.metrics for served in three.served.values()]
        until(lambda: sum(one.followers for one in metrics) == 1, "it does not follow")
        consumer.close()
        reading.join(PATIENCE_S)
    assert values == list(range(200))
