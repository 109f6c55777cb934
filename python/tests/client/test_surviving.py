"""A service that is down for longer than every time-out: endless reads go on by themselves."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

import tms
import tms.aio
from integration.cluster.site import free_ports
from tests.client.test_client_faults import pretending
from tests.gate_kit import in_thread
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S, until
from tms.errors import Conflict, TopicNotFound, Unavailable
from tms.store.leveldb import LevelDBStore

TIMEOUT_S = 0.3
BEFORE = [b"%d" % number for number in range(20)]
AFTER = [b"%d" % number for number in range(20, 40)]


class Restarted:
    """A service that a test ends and starts again, at one port, over one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = ExitStack()
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> Served:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=2_048)
        store = LevelDBStore(self.path, create=True)
        served = self._open.enter_context(serving(store, listener=listener, drain_s=0.1))
        served.service.engine.queues.start()
        return served

    def stop(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def publish(self, values: list[bytes]) -> None:
        with tms.connect(self.url) as bus:
            bus.publish_many("t", values, keys=values)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Restarted]:
    with Restarted(tmp_path / "data") as running:
        with tms.connect(running.url) as bus:
            bus.create_topic("t")
            bus.queue("t", group="workers", lease_s=60)
        running.publish(BEFORE)
        yield running


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        str(one.msg).split()[0]
        for one in caplog.records
        if one.name == "tms.runtime.retrying" and str(one.msg).startswith("service_")
    ]


def away(caplog: pytest.LogCaptureFixture) -> bool:
    """True if the service has been down for longer than all time-outs."""
    return events(caplog).count("service_away") >= 2


def consumed(bus: tms.Bus) -> Iterator[bytes | None]:
    with bus.consumer("t") as consumer:
        for message in consumer:
            yield message.value


def consumed_by_a_member(bus: tms.Bus) -> Iterator[bytes | None]:
    with bus.consumer("t", group=tms.Group("g", delivery="at-least-once", session_s=1)) as consumer:
        for message in consumer:
            yield message.value


def consumed_once_at_most(bus: tms.Bus) -> Iterator[bytes | None]:
    with bus.consumer("t", group=tms.Group("g", delivery="at-most-once")) as consumer:
        for message in consumer:
            yield message.value


def consumed_with_acks(bus: tms.Bus) -> Iterator[bytes | None]:
    with bus.consumer("t", group="g") as consumer:
        for message in consumer:
            yield message.value
            consumer.ack()


def consumed_with_acks_by_name(bus: tms.Bus) -> Iterator[bytes | None]:
    with bus.consumer("t", group="g", partitions="all") as consumer:
        for message in consumer:
            yield message.value
            consumer.ack()


def worked_on(bus: tms.Bus) -> Iterator[bytes | None]:
    queue = bus.queue("t", group="workers")
    for message in queue:
        with queue.settling(message):
            yield message.value


async def on_a_loop(bus: tms.aio.AsyncBus) -> AsyncIterator[bytes | None]:
    async with bus.consumer("t") as consumer:
        async for message in consumer:
            yield message.value


async def member_on_a_loop(bus: tms.aio.AsyncBus) -> AsyncIterator[bytes | None]:
    async with bus.consumer("t", group=tms.Group("g", delivery="at-least-once")) as consumer:
        async for message in consumer:
            yield message.value


async def acks_on_a_loop(bus: tms.aio.AsyncBus) -> AsyncIterator[bytes | None]:
    async with bus.consumer("t", group="g") as consumer:
        async for message in consumer:
            yield message.value
            await consumer.ack()


async def worked_on_a_loop(bus: tms.aio.AsyncBus) -> AsyncIterator[bytes | None]:
    queue = await bus.queue("t", group="workers")
    async for message in queue:
        async with queue.settling(message):
            yield message.value


def in_a_thread(
    read: Callable[[tms.Bus], Iterator[bytes | None]], url: str, seen: list[bytes | None]
) -> None:
    with tms.connect(url, timeout_s=TIMEOUT_S) as bus:
        for value in read(bus):
            seen.append(value)
            if value == AFTER[-1]:
                return


def in_a_loop(
    read: Callable[[tms.aio.AsyncBus], AsyncIterator[bytes | None]],
    url: str,
    seen: list[bytes | None],
) -> None:
    async def work() -> None:
        async with tms.aio.connect(url, timeout_s=TIMEOUT_S) as bus:
            reading = read(bus)
            async for value in reading:
                seen.append(value)
                if value == AFTER[-1]:
                    return

    asyncio.run(work())


SYNC = [
    consumed,
    consumed_by_a_member,
    consumed_once_at_most,
    consumed_with_acks,
    consumed_with_acks_by_name,
    worked_on,
]
LOOP = [on_a_loop, member_on_a_loop, acks_on_a_loop, worked_on_a_loop]


@pytest.mark.parametrize("read", [*SYNC, *LOOP], ids=lambda read: read.__name__)
def test_every_message_comes_once_after_an_outage(
    read: Any, service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes | None] = []
    run = in_a_loop if read in LOOP else in_a_thread
    with caplog.at_level(logging.INFO, "tms.runtime.retrying"):
        reading = in_thread(lambda: run(read, service.url, seen))
        until(lambda: len(seen) == len(BEFORE))
        service.stop()
        until(lambda: away(caplog))  # longer than all time-outs
        assert not reading.done()
        service.start()
        service.publish(AFTER)
        reading.result(PATIENCE_S)
    assert seen == [*BEFORE, *AFTER]
    assert events(caplog)[-1] == "service_back"


def test_a_view_is_current_after_an_outage(
    service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    with tms.connect(service.url, timeout_s=TIMEOUT_S) as bus, bus.view("t") as view:
        assert len(view) == len(BEFORE)
        service.stop()
        until(lambda: away(caplog))
        assert len(view) == len(BEFORE)
        service.start()
        service.publish(AFTER)
        until(lambda: len(view) == len(BEFORE + AFTER))
    assert "service_back" in events(caplog)


def test_an_outage_may_have_a_bound(service: Restarted) -> None:
    with tms.connect(service.url, timeout_s=0.1, outage_s=0.5) as bus:
        consumer = iter(bus.consumer("t"))
        view = bus.view("t")
        for _ in BEFORE:
            next(consumer)
        service.stop()
        with pytest.raises(Unavailable):
            next(consumer)
        with pytest.raises(Unavailable):
            until(lambda: len(view) < 0)


@pytest.mark.parametrize("group", ["", "g"])
def test_a_consumer_is_closed_during_an_outage(
    service: Restarted, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with tms.connect(service.url, timeout_s=TIMEOUT_S) as bus:
        consumer, seen = bus.consumer("t", group=group), list[bytes | None]()
        reading = in_thread(lambda: seen.extend(one.value for one in consumer))
        until(lambda: len(seen) == len(BEFORE))
        service.stop()
        until(lambda: away(caplog))
        consumer.close()
        reading.result(PATIENCE_S)


def test_a_topic_that_is_gone_after_the_outage_ends_the_consumer(
    service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    with tms.connect(service.url, timeout_s=TIMEOUT_S) as bus:
        consumer = iter(bus.consumer("t"))
        for _ in BEFORE:
            next(consumer)
        reading = in_thread(lambda: next(consumer))
        service.stop()
        until(lambda: away(caplog))
        with tms.open(service.path) as other:
            other.delete_topic("t")
        service.start()
        with pytest.raises(TopicNotFound):
            reading.result(PATIENCE_S)


def test_who_was_moved_during_the_outage_is_told_by_its_ack(
    service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    with tms.connect(service.url, timeout_s=TIMEOUT_S) as bus:
        consumer = bus.consumer("t", group="g")
        next(iter(consumer))
        service.stop()
        acking = in_thread(consumer.ack)
        until(lambda: away(caplog))
        with tms.open(service.path) as other:  # which forgets the members that it had
            other.set_positions("t", {0: "latest"}, group="g")
        service.start()
        with pytest.raises(Conflict):
            acking.result(PATIENCE_S)


def test_a_bad_gateway_is_a_service_that_is_away() -> None:
    answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno"
    with (
        pretending(lambda _: answer) as url,
        tms.connect(url, timeout_s=0.1) as bus,
        pytest.raises(Unavailable, match=r"in front of .* 502"),
    ):
        bus.describe_topic("t")
