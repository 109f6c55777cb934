"""Messages in a browser: what comes is appended once, and nothing of a message is executed."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from playwright.sync_api import Page

import tms
from tests.console_kit import Visitor, barriers
from tests.console_world import HOSTILE, Shop
from tests.http_kit import Served
from tests.tcp_proxy import TcpProxy
from tests.waiting import PATIENCE_S
from tms.client.client import Bus

HIDDEN = """hidden => {
    Object.defineProperty(document, 'hidden', { get: () => hidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""
_VALUES = "rows => rows.map(row => row.querySelector('.value').textContent)"


class Relay(TcpProxy):
    """Passes bytes on."""

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        self.start(_pump, server, client)
        _pump(client, server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        yield connected


def values(page: Page) -> list[str]:
    found: list[str] = page.locator("tbody tr").evaluate_all(_VALUES)
    return found


def following(page: Page) -> None:
    page.locator("#live-state", has_text="Following").wait_for()


def forgive(visitor: Visitor) -> None:
    """A page that follows again takes one request more."""
    (problem,) = visitor.problems
    assert "more than 4 requests" in problem and problem.count("/follow?") == 2
    visitor.problems.clear()


def test_messages_are_appended_as_they_come(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("tailed")
    bus.publish("tailed", b"before")
    page = visitor.open("/console/messages/default/tailed?follow=1")
    following(page)
    bus.publish("tailed", b"<b>bold</b>")
    page.get_by_text("<b>bold</b>").wait_for()
    assert values(page) == ["before", "<b>bold</b>"]
    assert barriers(page) == []
    page.evaluate(HIDDEN, True)
    page.locator("#live-state", has_text="Paused").wait_for()
    bus.publish_many("tailed", [b"hidden %d" % number for number in range(60)])
    page.wait_for_timeout(500)
    assert len(values(page)) == 2
    page.evaluate(HIDDEN, False)
    page.get_by_text("hidden 59").wait_for()
    assert values(page)[2:] == [f"hidden {number}" for number in range(60)]
    forgive(visitor)
    page.get_by_role("link", name="Load newer").click()
    page.get_by_text("There are no messages here").wait_for()


def test_the_newest_rows_stay(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("kept-rows")
    page = visitor.open("/console/messages/default/kept-rows?follow=1")
    following(page)
    bus.publish_many("kept-rows", [b"%d" % number for number in range(320)])
    page.get_by_text("319", exact=True).wait_for()
    assert values(page) == [f"{number}" for number in range(120, 320)]


def test_a_lost_connection_leaves_no_gap(
    served: Served, bus: Bus, visiting: Callable[..., Visitor]
) -> None:
    bus.create_topic("cut")
    with Relay(served.address, PATIENCE_S) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        visitor = visiting(url)
        page = visitor.open("/console/messages/default/cut?follow=1")
        following(page)
        bus.publish("cut", b"first")
        page.get_by_text("first", exact=True).wait_for()
        proxy.end_connections()
        for number in range(3):
            bus.publish("cut", b"lost %d" % number)
        page.get_by_text("lost 2").wait_for()
        assert values(page) == ["first", "lost 0", "lost 1", "lost 2"]
        page.close()
    forgive(visitor)


@pytest.mark.parametrize(
    "form",
    [
        "auto",
        pytest.param("json", marks=pytest.mark.long),
        pytest.param("text", marks=pytest.mark.long),
        pytest.param("hex", marks=pytest.mark.long),
    ],
)
def test_nothing_of_a_message_is_executed(bus: Bus, visitor: Visitor, form: str) -> None:
    topic = f"hostile-{form}"
    bus.create_topic(topic)
    for value in HOSTILE:
        bus.publish(topic, value, key=value, headers={"note": value})
    page = visitor.open(f"/console/messages/default/{topic}?as={form}")
    assert page.title() == f"Messages of {topic} · TMS"
    assert page.locator("tbody tr").count() == len(HOSTILE)
    for at in range(len(HOSTILE)):
        page.locator("tbody tr th a").nth(at).click()
        assert page.title() == f"Message 0/{at} of {topic} · TMS"
        assert page.locator("main script, main a[href*='other.test']").count() == 0
        page.get_by_role("link", name="Publish this one again").click()
        assert page.title() == f"Publish to {topic} · TMS"
        page.go_back()
        page.go_back()


def test_a_poisoned_message_is_mended(bus: Bus, visitor: Visitor) -> None:
    Shop(bus).fill()
    page = visitor.open("/console/messages/shop/orders-packers-dead")
    page.locator("tbody tr th a").first.click()
    page.get_by_text("ValueError: quantity is", exact=False).first.wait_for()
    assert barriers(page) == []
    page.get_by_role("link", name="The original").click()
    page.get_by_role("link", name="Publish this one again").click()
    value = page.locator("textarea[name=value]")
    text = value.input_value()
    value.fill(text + "}")
    page.get_by_role("button", name="Publish", exact=True).click()
    page.locator("#problem-value", has_text="The value is no JSON").wait_for()
    assert barriers(page) == []
    assert page.locator("textarea[name=value]").input_value() == text + "}"
    page.locator("textarea[name=value]").fill(text.replace('"two"', "2"))
    page.get_by_role("button", name="Publish", exact=True).click()
    page.get_by_text("Published to partition").wait_for()
