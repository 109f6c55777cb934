"""A service that waits for less time than requested: clients go on until their time is over."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

import tms
import tms.aio
from tests.gate_kit import in_thread
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S, until
from tms.client.http.transport import HttpTransport
from tms.server.service import RequestLimits

Ask = Callable[[tms.Bus], list[bytes | None]]


def fetched(bus: tms.Bus, wait_s: float = PATIENCE_S) -> list[bytes | None]:
    return [message.value for message in bus.fetch("a", "latest", wait_s=wait_s).messages()]


def consumed(bus: tms.Bus) -> list[bytes | None]:
    return [next(iter(bus.consumer("a"))).value]


def received(bus: tms.Bus, wait_s: float = PATIENCE_S) -> list[bytes | None]:
    return [message.value for message in bus.queue("a", group="g").receive(wait_s=wait_s)]


def fetched_on_a_loop(bus: tms.Bus) -> list[bytes | None]:
    async def fetch() -> list[bytes | None]:
        async with tms.aio.connect(url(bus)) as other:
            page = await other.fetch("a", "latest", wait_s=PATIENCE_S)
            return [message.value for message in page.messages()]

    return asyncio.run(fetch())


def received_on_a_loop(bus: tms.Bus) -> list[bytes | None]:
    async def receive() -> list[bytes | None]:
        async with tms.aio.connect(url(bus)) as other:
            queue = await other.queue("a", group="g")
            return [message.value for message in await queue.receive(wait_s=PATIENCE_S)]

    return asyncio.run(receive())


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(limits=RequestLimits(fetch_wait_ms_max=20)) as running:
        yield running


@pytest.mark.parametrize(
    "ask", [fetched, consumed, received, fetched_on_a_loop, received_on_a_loop]
)
def test_a_client_that_waits_for_longer_than_the_service_gets_what_comes(
    served: Served, ask: Ask
) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("a")
        bus.queue("a", group="g")
        asked = in_thread(lambda: ask(bus))
        until(lambda: polls(served) >= 3 or served.service.metrics.followers)
        bus.publish("a", b"1")
        assert asked.result(PATIENCE_S) == [b"1"]


@pytest.mark.parametrize("ask", [fetched, received])
def test_a_wait_in_which_nothing_comes_ends(
    served: Served, ask: Callable[..., list[bytes | None]]
) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("a")
        bus.queue("a", group="g")
        assert ask(bus, 0.1) == []
        assert polls(served) >= 2


def polls(served: Served) -> int:
    """The number of answered fetches and receives."""
    answers = served.service.metrics.answers.items()
    return sum(count for (route, _), count in answers if route in ("fetch", "receive"))


def url(bus: tms.Bus) -> str:
    transport = bus._transport
    assert isinstance(transport, HttpTransport)
    return transport.addresses.now.url
