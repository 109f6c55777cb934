"""Consumers that follow read exactly what fetches would, whatever happens to the connection."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S, until
from tms.client.http.following import FollowedTail
from tms.client.transport import FetchRequest, open_channel
from tms.errors import Forbidden, Unavailable
from tms.model.message import Fetched, PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.store.leveldb import LevelDBStore


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture
def bus(served: Served) -> Iterator[tms.Bus]:
    with tms.connect(served.url) as connected:
        connected.create_topic("a", partitions=1)
        yield connected


class Reading:
    """A consumer in a thread, and its messages."""

    def __init__(self, consumer: tms.Consumer) -> None:
        self.values: list[int] = []
        self.consumer = consumer
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for message in self.consumer:
            assert message.value is not None
            self.values.append(int(message.value))

    def has(self, count: int) -> list[int]:
        """The values, once there are so many."""
        until(lambda: len(self.values) >= count)
        return self.values

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def fetches(served: Served) -> int:
    answers = served.service.metrics.answers.items()
    return sum(count for (name, _), count in answers if name == "fetch")


def test_at_the_end_a_consumer_follows_and_asks_no_more(served: Served, bus: tms.Bus) -> None:
    with Reading(bus.consumer("a", wait_s=0.2)) as reading:
        until(lambda: served.service.metrics.followers == 1)
        before = fetches(served)
        for number in range(100):
            bus.publish("a", b"%d" % number)
        assert reading.has(100) == list(range(100))
        time.sleep(0.5)
        assert fetches(served) == before
    until(lambda: served.service.metrics.followers == 0)


def test_who_reads_up_to_the_end_does_not_follow(served: Served, bus: tms.Bus) -> None:
    bus.publish("a", b"1")
    assert [m.value for m in bus.consumer("a", stop_at_end=True)] == [b"1"]
    assert served.service.metrics.followers == 0


def test_a_connection_that_is_cut_costs_a_fetch_and_no_message(
    served: Served, bus: tms.Bus
) -> None:
    with Reading(bus.consumer("a")) as reading:
        for number in range(200):
            bus.publish("a", b"%d" % number)
            if number % 20 == 0:
                until(lambda: served.service.metrics.followers == 1)
                served.in_loop(
                    lambda: [one.transport.abort() for one in served.service.watchdog.connections]
                )
        assert reading.has(200) == list(range(200))


def test_an_iteration_that_is_begun_anew_gets_every_message_once(
    served: Served, bus: tms.Bus
) -> None:
    consumer = bus.consumer("a", wait_s=5)
    found = []
    for number in range(30):
        bus.publish("a", b"%d" % number)
        iteration = iter(consumer)
        message = next(iteration)
        assert message.value is not None
        found.append(int(message.value))
        if number % 3:
            bus.publish("a", b"-1")
            assert next(iteration).value == b"-1"
        iteration.close()  # the answer to the request ahead is discarded
    consumer.close()
    assert found == list(range(30))


def test_a_part_that_nobody_took_is_not_passed_over(bus: tms.Bus) -> None:
    channel = open_channel(bus._transport)
    at = request("offset:0")
    first = channel.begin_fetch(at).result(PATIENCE_S)  # the end
    at = at.after(first, 1.0)
    assert channel.begin_fetch(at).result(PATIENCE_S).blocks == []  # follows
    bus.publish("a", b"1")
    untaken = channel.begin_fetch(at)
    until(untaken.done)
    taken = channel.begin_fetch(at).result(PATIENCE_S)
    assert [stored.partition for stored in taken.blocks] == [0]
    channel.close()


def test_a_slow_consumer_is_cut_off_and_goes_on(served: Served, bus: tms.Bus) -> None:
    count, value = 300, b"x" * 100_000
    consumer = bus.consumer("a", bytes_max=1 << 20, wait_s=5)
    iteration = iter(consumer)
    bus.publish("a", b"0 " + value)
    assert next(iteration).value is not None
    for number in range(1, count):
        bus.publish("a", b"%d " % number + value)
    assert served.service.fetching.bytes <= served.service.fetching.bytes_max
    numbers = []
    for _ in range(1, count):
        message = next(iteration)
        assert message.value is not None
        numbers.append(int(message.value.split()[0]))
    consumer.close()
    assert numbers == list(range(1, count))


def test_members_of_a_group_follow_and_share(served: Served, bus: tms.Bus) -> None:
    bus.create_topic("b", partitions=4)
    with (
        Reading(bus.consumer("b", group="g")) as one,
        Reading(bus.consumer("b", group="g")) as other,
    ):
        for number in range(400):
            bus.publish("b", b"%d" % number, partition=number % 4)
            time.sleep(0.002)
        until(lambda: len(set(one.values + other.values)) == 400)
        until(lambda: served.service.metrics.followers == 2)
        assert one.values and other.values


def test_a_view_follows(served: Served, bus: tms.Bus) -> None:
    bus.create_topic("c", partitions=1, cleanup="compact")
    with bus.view("c") as view:
        until(lambda: served.service.metrics.followers == 1)
        bus.publish("c", b"1", key=b"k")
        until(lambda: view.get(b"k") == b"1")


def test_a_service_that_was_stopped_is_followed_again_when_it_is_back(tmp_path: Path) -> None:
    with serving(LevelDBStore(tmp_path, create=True)) as served:
        address = served.address
        bus = tms.connect("http://{}:{}".format(*address))
        bus.create_topic("a", partitions=1)
        reading = Reading(bus.consumer("a"))
        bus.publish("a", b"0")
        reading.has(1)
        until(lambda: served.service.metrics.followers == 1)
    listener = socket.create_server(address, backlog=64)
    with serving(LevelDBStore(tmp_path, create=False), listener=listener) as again, reading:
        bus.publish("a", b"1")
        assert reading.has(2) == [0, 1]
        until(lambda: again.service.metrics.followers == 1)
    bus.close()


def test_a_service_that_lets_nobody_follow_is_fetched_from(
    served: Served, bus: tms.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tms.server import fetch as fetching

    def refuse(*_: object) -> None:
        raise Forbidden("Nobody follows here.")

    monkeypatch.setattr(fetching, "Follower", refuse)
    with Reading(bus.consumer("a", wait_s=0.2)) as reading:
        for number in range(10):
            bus.publish("a", b"%d" % number)
        assert reading.has(10) == list(range(10))
        time.sleep(0.6)
        refused = served.service.metrics.answers["fetch", 403]
    assert refused == 1


# -- when ----------------------------------------------------------------------------------------

NAME = TopicName("default", "a")


def request(at: str = "after:" + "0" * 39 + "1", **more: Any) -> FetchRequest:
    place = [PartitionPosition(0, Position.parse(at))]
    return FetchRequest(**{"name": NAME, "positions": place, "bytes_max": 9, "wait_s": 1.0,
                           "goes_on": True} | more)  # fmt: skip


def fetched(end: int = 1, reached: int = 1) -> Fetched:
    return Fetched([], dict(request().positions), {0: end}, {0: reached})


def test_it_goes_on_at_the_end_of_the_same_only() -> None:
    tail = FollowedTail()
    assert not tail.is_at(request())
    tail.seen(request(), fetched())
    assert tail.is_at(request())
    for other in (
        request("offset:1"),
        request(wait_s=0.0),
        request(bytes_max=8),
        request(goes_on=False),
        request(name=TopicName("default", "b")),
    ):
        assert not tail.is_at(other), other
    tail.seen(request(), fetched(end=2))
    assert not tail.is_at(request())
    tail.seen(request(), fetched(end=2), part=object())
    assert tail.is_at(request()), "the next part is on its way"


def test_after_an_outage_it_is_tried_again_and_not_after_a_refusal() -> None:
    tail = FollowedTail()
    tail.refused(Unavailable("away"))
    tail.seen(request(), fetched())
    assert tail.is_at(request())
    tail.refused(Forbidden("no"))
    tail.seen(request(), fetched())
    assert not tail.is_at(request())
