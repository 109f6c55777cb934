"""Queues over a failing network: repeated requests, unrepeated ones, and their effects."""

from collections.abc import Iterator

import pytest

import tms
from tests.clocks import ManualClock
from tests.http_kit import Served, serving
from tests.proxy import Fault, Proxy
from tests.waiting import until
from tms.errors import QueueNotFound, TimedOut, Unavailable
from tms.model.queue import QueueSettings, Token
from tms.model.topic import TopicName

NAME, GROUP = TopicName.parse("jobs"), "workers"
LEASE_S = 30.0
LOST = [Fault.LOSE_ANSWER, Fault.HALF_ANSWER, Fault.SWALLOW_ANSWER]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def served(clock: ManualClock) -> Iterator[Served]:
    with serving(clock=clock) as served:
        served.service.engine.queues.start()
        yield served


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    url = served.url
    with Proxy(url) as proxy, tms.connect(url) as bus:
        bus.create_topic("jobs", durability="written")
        bus.publish_many("jobs", [b"0", b"1", b"2"])
        bus.admin.queues.declare(NAME, GROUP, QueueSettings(lease_s=LEASE_S))
        yield proxy


@pytest.fixture
def bus(proxy: Proxy) -> Iterator[tms.Bus]:
    with tms.connect(proxy.url, timeout_s=3) as bus:
        yield bus


def received(bus: tms.Bus, limit: int = 10) -> list[tuple[bytes | None, int]]:
    found = bus.admin.queues.receive(NAME, GROUP, limit)
    return [(one.value, one.deliveries) for one in found.messages("jobs")]


@pytest.mark.parametrize("fault", LOST)
def test_a_receive_whose_answer_is_lost_is_not_repeated_and_says_what_that_means(
    fault: Fault, bus: tms.Bus, proxy: Proxy, clock: ManualClock
) -> None:
    proxy.script(fault)
    with pytest.raises((Unavailable, TimedOut), match="comes again when the leases") as caught:
        bus.admin.queues.receive(NAME, GROUP, 2)
    assert caught.value.details["outcome"] == "unknown"
    assert received(bus) == [(b"2", 1)]
    clock.pass_ms(round(LEASE_S * 1_000) + 200)
    assert received(bus) == [(b"0", 2), (b"1", 2), (b"2", 2)]


def test_a_receive_that_never_came_to_the_service_is_repeated(
    bus: tms.Bus, proxy: Proxy, served: Served
) -> None:
    served.service.fetching.bytes += served.service.fetching.bytes_max  # no memory: refused
    try:
        with pytest.raises(tms.TMSError) as caught:
            bus.admin.queues.receive(NAME, GROUP)
    finally:
        served.service.fetching.bytes -= served.service.fetching.bytes_max
    assert caught.value.code == "overloaded"
    assert proxy.requests > 1
    assert "outcome" not in caught.value.details
    assert received(bus) == [(b"0", 1), (b"1", 1), (b"2", 1)]


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("what", ["ack", "nack", "extend"])
def test_a_call_with_tokens_whose_answer_is_lost_counts_as_done(
    fault: Fault, what: str, bus: tms.Bus, proxy: Proxy
) -> None:
    tokens = bus.admin.queues.receive(NAME, GROUP, 3).tokens()
    proxy.script(fault)
    result = getattr(bus.admin.queues, what)(NAME, GROUP, tokens)
    assert (result.done, result.fenced) == (3, ())
    assert proxy.done


def test_what_was_rejected_is_dead_once_although_the_answer_is_lost(
    bus: tms.Bus, proxy: Proxy
) -> None:
    tokens = bus.admin.queues.receive(NAME, GROUP, 3).tokens()
    proxy.script(Fault.LOSE_ANSWER)
    result = bus.admin.queues.reject(
        NAME, GROUP, tokens
    )  # repeated, when they may be moved already
    assert result.done + sum(Token.parse(token).count for token in result.fenced) == 3
    until(lambda: bus.admin.queues.describe(NAME, GROUP).dead == 3)


@pytest.mark.parametrize("fault", [Fault.TWICE, Fault.TRICKLE, Fault.LOSE_REQUEST])
def test_an_ack_that_comes_twice_or_slowly_is_done_once(
    fault: Fault, bus: tms.Bus, proxy: Proxy
) -> None:
    tokens = bus.admin.queues.receive(NAME, GROUP, 2).tokens()
    proxy.script(fault)
    assert bus.admin.queues.ack(NAME, GROUP, tokens) == (2, ())
    info = bus.admin.queues.describe(NAME, GROUP)
    assert (info.leased, info.backlog) == (0, 1)


def test_a_redrive_whose_answer_is_lost_is_not_repeated(bus: tms.Bus, proxy: Proxy) -> None:
    proxy.script(Fault.LOSE_ANSWER)
    with pytest.raises(Unavailable):
        bus.admin.queues.redrive(NAME, GROUP)


def test_a_delete_whose_answer_is_lost_is_done(served: Served) -> None:
    url = served.url
    with Proxy(url, faulty_method=b"DELETE") as proxy, tms.connect(proxy.url, timeout_s=3) as bus:
        bus.create_topic("jobs")
        bus.admin.queues.declare(NAME, GROUP, QueueSettings())
        proxy.script(Fault.LOSE_ANSWER)
        bus.admin.queues.delete(NAME, GROUP)
        with pytest.raises(QueueNotFound):
            bus.admin.queues.delete(NAME, GROUP)
