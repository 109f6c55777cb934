"""Clients go straight to the instance that keeps a resource, and find it again when it moves;
clients that wait at another instance keep no one from working."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import tms
from tests.cluster.test_instances import PARTITIONS, TOPIC, read, spread, values
from tests.cluster_kit import Instances, instances
from tests.waiting import PATIENCE_S, until
from tms.client.client import Bus
from tms.client.http.peer import HttpPeer
from tms.model.topic import TopicName

MESSAGES = 2_000


@pytest.fixture
def three() -> Iterator[Instances]:
    with instances("a", "b", "c") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        assert set(all.owners(TOPIC)) == {"a", "b", "c"}
        yield all


def hops(all: Instances) -> Counter[str]:
    """The requests between instances, by operation."""
    count: Counter[str] = Counter()
    for served in all.served.values():
        for (operation, _), answers in served.service.metrics.answers.items():
            if operation.startswith("partitions."):
                count[operation] += answers
        count["forwarded"] += served.service.metrics.forwarded
    return count


def publish_hops(all: Instances) -> tuple[int, int]:
    """The publishes that were divided, and the requests that were forwarded."""
    count = hops(all)
    return count["partitions.store"], count["forwarded"]


def test_lone_publishes_go_to_the_owner_once_it_is_known(three: Instances) -> None:
    with three.connect("a") as bus:
        sent = spread(bus, "first")
        before = hops(three)
        assert before["forwarded"] > 0
        for round in range(5):
            sent |= spread(bus, f"again {round} ")
        assert hops(three) == before
        assert values(bus) == sent


def test_a_producer_divides_its_requests_among_the_owners(three: Instances) -> None:
    with three.connect("a") as bus:
        spread(bus, "x")
        before = publish_hops(three)
        with bus.producer(TOPIC) as producer:
            for number in range(MESSAGES):
                producer.send(b"%d" % number, key=b"%d" % number)
                if number % 100 == 99:
                    producer.flush()
        assert publish_hops(three) == before
        assert {b"%d" % number for number in range(MESSAGES)} <= values(bus)


def test_an_asyncio_producer_divides_its_requests_among_the_owners(three: Instances) -> None:
    async def publish() -> None:
        async with tms.aio.connect(three.url("a")) as bus:
            for partition in range(PARTITIONS):
                await bus.publish(TOPIC, b"learn", partition=partition)
            before = publish_hops(three)
            async with bus.producer(TOPIC) as producer:
                for number in range(MESSAGES):
                    await producer.send(b"%d" % number, key=b"%d" % number)
            await asyncio.gather(
                *(bus.publish(TOPIC, b"lone %d" % p, partition=p) for p in range(PARTITIONS))
            )
            assert publish_hops(three) == before

    with three.connect("a") as bus:
        sent = spread(bus, "x")
    asyncio.run(publish())
    with three.connect("b") as bus:
        sent |= {b"%d" % number for number in range(MESSAGES)} | {b"learn"}
        sent |= {b"lone %d" % partition for partition in range(PARTITIONS)}
        assert values(bus) == sent
        assert len(read(bus)) == PARTITIONS * 3 + MESSAGES


def test_what_one_instance_keeps_for_all_is_asked_of_it(three: Instances) -> None:
    shards = three.served["a"].service.engine.topics.shards
    number = shards.of_queue(TopicName("default", TOPIC), "work")
    keeper = next(id for id in "abc" if three.served[id].service.engine.shards.holds(number))
    at = next(id for id in "abc" if id not in (keeper, three.coordinator()))
    with three.connect(at) as bus:
        queue = bus.queue(TOPIC, group="work", start="earliest")
        with bus.transaction() as tx:
            tx.send(TOPIC, b"x")
        spread(bus, "x")
        got = queue.receive(limit=1)
        queue.ack(got)
        before = hops(three)["forwarded"]
        assert before > 0
        for _ in range(5):
            queue.ack(queue.receive(limit=1))
            with bus.transaction() as tx:
                tx.send(TOPIC, b"y")
        assert hops(three)["forwarded"] == before


def test_one_partition_is_consumed_at_its_owner(three: Instances) -> None:
    partition = three.owners(TOPIC).index("b")
    with three.connect("a") as bus:
        bus.publish(TOPIC, b"first", partition=partition)
        got = []
        consumer = bus.consumer(TOPIC, start="earliest", partitions=[partition])
        for message in consumer:
            got.append(message.value)
            if len(got) == 1:
                before = hops(three)
            if len(got) == 50:
                break
            bus.publish(TOPIC, b"%d" % len(got), partition=partition)
        # The first answers name the owners; the fetch in flight ends before they are used.
        assert hops(three)["forwarded"] <= before["forwarded"] + 1
        assert hops(three)["partitions.fetch"] == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The instances that another one asked for messages."""
    asked: list[str] = []
    right = HttpPeer.fetch

    def fetch(self: HttpPeer, *args: Any, **named: Any) -> Any:
        asked.append(self.name)
        return right(self, *args, **named)

    monkeypatch.setattr(HttpPeer, "fetch", fetch)
    return asked


def test_a_consumer_that_is_behind_reads_at_each_owner(three: Instances, asked: list[str]) -> None:
    with three.connect("a") as bus:
        sent = {b"%d" % number for number in range(MESSAGES)}
        with bus.producer(TOPIC) as producer:
            for value in sorted(sent):
                producer.send(value, key=value)
        read(bus)  # the first answers name the owners
        asked.clear()
        consumer = bus.consumer(TOPIC, start="earliest", stop_at_end=True, bytes_max=1_000)
        found = [message.value for message in consumer]
        assert not asked
        assert len(found) == MESSAGES and set(found) == sent


def test_an_asyncio_consumer_that_is_behind_reads_at_each_owner(
    three: Instances, asked: list[str]
) -> None:
    async def consume() -> list[bytes | None]:
        async with tms.aio.connect(three.url("a")) as bus:
            for _ in range(2):  # the first one learns
                asked.clear()
                consumer = bus.consumer(TOPIC, start="earliest", stop_at_end=True, bytes_max=1_000)
                async with consumer:
                    found = [message.value async for message in consumer]
            assert not asked
            return found

    with three.connect("b") as bus:
        sent = spread(bus, "x") | spread(bus, "y")
    assert set(asyncio.run(consume())) == sent


def test_a_consumer_that_waits_is_told_by_one_of_all(three: Instances, asked: list[str]) -> None:
    with three.connect("a") as bus, three.connect("b") as other:
        spread(bus, "x")
        read(bus)
        got: list[bytes | None] = []
        for message in bus.consumer(TOPIC, start="earliest"):
            got.append(message.value)
            if len(got) == PARTITIONS + 20:
                break
            if len(got) >= PARTITIONS:  # it has read everything
                value = b"%d" % len(got)
                other.publish(TOPIC, value, partition=len(got) % PARTITIONS)
        assert got[PARTITIONS:] == [b"%d" % n for n in range(PARTITIONS, PARTITIONS + 20)]
        assert asked


@pytest.mark.parametrize("producers", [1, 4])
def test_nothing_is_lost_twice_or_out_of_order_while_partitions_move(
    three: Instances, producers: int
) -> None:
    """Each producer has several requests in flight when the owners that it knows are out of
    date."""

    def produce(number: int, bus: Bus) -> None:
        with bus.producer(TOPIC, batch_bytes=2_000) as producer:
            for count in range(MESSAGES):
                producer.send(b"%d %d" % (number, count), partition=count % PARTITIONS)

    with three.connect("a", timeout_s=30) as bus:
        spread(bus, "x")
        threads = [threading.Thread(target=produce, args=(n, bus)) for n in range(producers)]
        for thread in threads:
            thread.start()
        number = 0
        while any(thread.is_alive() for thread in threads):
            three.cluster["b"].pin(_place(three, number % PARTITIONS), "abc"[number % 3])
            number += 1
            time.sleep(0.03)
        for thread in threads:
            thread.join()
        for number in range(producers):
            for partition in range(PARTITIONS):
                mine = [
                    int(value.split()[1])
                    for at, _, value in read(bus)
                    if value and at == partition and value.startswith(b"%d " % number)
                ]
                assert mine == list(range(partition, MESSAGES, PARTITIONS))


def _place(all: Instances, partition: int) -> str:
    engine = next(iter(all.served.values())).service.engine
    return f"{engine.topics.registry.find(TopicName('default', TOPIC)).uid}/{partition}"


def test_an_owner_that_ends_is_left_and_the_next_one_found(three: Instances) -> None:
    with three.connect("a", timeout_s=20) as bus:
        sent = spread(bus, "before")
        sent |= spread(bus, "straight")
        three.stop("b")
        sent |= spread(bus, "after")
        before = hops(three)
        sent |= spread(bus, "straight again")
        assert hops(three) == before
        assert values(bus) == sent


def test_who_reads_at_an_instance_that_is_lost_goes_on_at_another(three: Instances) -> None:
    """It answers, and refuses: a failing connection would be left anyway."""
    partition = three.owners(TOPIC).index("b")
    place = {"start": "earliest", "partitions": [partition]}

    async def read_two(bus: "tms.aio.AsyncBus") -> list[bytes | None]:
        got: list[bytes | None] = []
        async for message in bus.consumer(TOPIC, **place):
            got.append(message.value)
            if len(got) == 2:
                return got
            three.member["b"].expire()
            await asyncio.to_thread(at_a.publish, TOPIC, b"2", partition=partition)
        raise AssertionError("it goes on for ever")

    async def main() -> list[bytes | None]:
        async with tms.aio.connect(three.url("a"), timeout_s=10) as bus:
            await bus.publish(TOPIC, b"1", partition=partition)  # the answer names the owner
            return await read_two(bus)

    with three.connect("a", timeout_s=10) as at_a, three.connect("c") as at_c:
        assert asyncio.run(main()) == [b"1", b"2"]
        three.member["b"].join(three.cluster["b"].settle_again)
        until(lambda: three.owners(TOPIC, "a")[partition] == "b", "b is back")
        until(lambda: not three.served["b"].service.reasons(), "b is ready")
        at_a.publish(TOPIC, b"3", partition=partition)
        got = []
        for message in at_a.consumer(TOPIC, **place):
            got.append(message.value)
            if len(got) == 4:
                break
            if len(got) == 3:
                three.member["b"].expire()
                at_c.publish(TOPIC, b"4", partition=partition)
        assert got == [b"1", b"2", b"3", b"4"]


def test_many_that_wait_for_partitions_of_others_keep_nobody_from_publishing(
    three: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them waits at all owners through one instance, and is woken: it does not poll."""
    monkeypatch.setattr("tms.client.http.peer.WATCH_S", 10 * PATIENCE_S)
    crowd = 48  # more than any pool has threads
    got: list[bytes | None] = []

    async def wait(bus: "tms.aio.AsyncBus") -> None:
        async for message in bus.consumer(TOPIC, start="latest"):
            got.append(message.value)
            return

    async def all_wait(ready: threading.Event) -> None:
        async with tms.aio.connect(three.url("a")) as bus:
            tasks = [asyncio.create_task(wait(bus)) for _ in range(crowd)]
            metrics = three.served["b"].service.metrics  # `a` waits there for each of them
            most = 0.9 * crowd  # some are between two requests
            await asyncio.to_thread(until, lambda: metrics.long_polls > most, "all wait")
            ready.set()
            await asyncio.gather(*tasks)

    ready = threading.Event()
    waiting = threading.Thread(target=lambda: asyncio.run(all_wait(ready)))
    waiting.start()
    assert ready.wait(2 * PATIENCE_S)
    owners = three.owners(TOPIC)
    with three.connect("a") as bus:
        begun_s = time.monotonic()
        bus.publish(TOPIC, b"wake", partition=owners.index("b"))
        assert time.monotonic() - begun_s < PATIENCE_S / 6
        until(lambda: len(got) == crowd, "all have seen it")
    waiting.join()
    assert set(got) == {b"wake"}
