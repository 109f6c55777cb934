"""The overview, and the last hour on the page of a topic, over real services."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import instances
from tests.console_kit import console_served
from tests.console_world import ORDERS, Shop
from tests.http_kit import Served
from tests.pages_kit import PageReader
from tms.errors import StorageUnavailable, Unavailable
from tms.runtime.clock import SystemClock


class LaterClock(SystemClock):
    """The machine's clock, ahead by the steps that a test takes."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:  # type: ignore[override]
        return SystemClock.monotonic_s() + self.ahead_s


def step(served: Served, steps: int = 1) -> None:
    """Count steps of the last hour, as the service does every ten seconds."""
    sampler = served.service.histories.sampler
    if not isinstance(sampler._clock, LaterClock):
        sampler._clock = sampler.rings._clock = LaterClock()
    for _ in range(steps):
        sampler._clock.ahead_s += 10
        sampler.sample(sampler.counts())


@pytest.fixture(scope="module")
def shop() -> Iterator[Served]:
    with console_served() as running:
        with tms.connect(running.url) as bus:
            Shop(bus).fill()
            step(running)
            bus.publish_many(ORDERS, [b"x"] * 100)
            step(running, 7)
        yield running


def test_what_is_wrong_is_said_with_its_runbook(shop: Served) -> None:
    reader = PageReader(shop.url)
    page = reader.get("/console/")
    assert page.status == 200
    assert "The queue packers of shop:orders has 3 dead letters." in page.text
    assert page.links["Show"] == "/console/queues/shop/orders/packers"
    runbook = page.links["What to do: TmsDeadLetters"]
    assert runbook == "/console/runbooks#tmsdeadletters"
    runbooks = reader.get(runbook)
    assert 'id="tmsdeadletters"' in runbooks.html
    assert "tms queue redrive TOPIC GROUP" in runbooks.text


def test_a_service_that_was_just_started() -> None:
    with console_served() as served:
        page = PageReader(served.url).get("/console")
        assert page.status == 200 and page.headers["cache-control"] == "no-store"
        assert "Nothing is wrong that you may see." in page.text
        assert "Groups and queues have not been looked at yet" in page.text
        assert "Nothing is known of this time yet." in page.text
        assert "this service ready" in page.text
        step(served)
        assert "have not been looked at yet" not in PageReader(served.url).get("/console/").text


def test_the_last_hour_is_drawn_and_said(shop: Served) -> None:
    page = PageReader(shop.url).get("/console/")
    assert page.html.count('<svg class="chart"') == 4
    assert "Messages: now 0/s, peak" in page.text
    assert "Counted in memory since" in page.text and "when the service was started" in page.text
    assert len(page.html) < 100 << 10
    group = PageReader(shop.url).get("/console/groups/shop/orders/billing")
    assert group.html.count('<svg class="chart"') == 1 and "Messages: now 1" in group.text
    topic = PageReader(shop.url).get("/console/topics/shop/orders")
    assert topic.html.count('<svg class="chart"') == 2
    assert "mean" in topic.text
    quiet = PageReader(shop.url).get("/console/topics/shop/reminders")
    assert quiet.html.count("<svg") == 2 or "Nothing is known of this time yet." in quiet.text


@pytest.mark.parametrize("namespace", ["nowhere", "a b", "<script>alert(1)</script>", "x" * 500])
def test_any_namespace(shop: Served, namespace: str) -> None:
    reader = PageReader(shop.url)
    page = reader.get(f"/console/?namespace={quote(namespace)}")
    assert page.status in (200, 422)
    assert "<script>alert" not in page.html


def test_a_service_that_cannot_store_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with console_served() as served:
        monkeypatch.setattr(served.service.engine, "readiness", lambda: ["The disk is <full>."])
        page = PageReader(served.url).get("/console/")
        assert page.status == 200
        assert "Fault: The disk is <full>." in page.text
        assert "The disk is &lt;full&gt;." in page.html
        assert page.links["What to do: TmsNotReady"] == "/console/runbooks#tmsnotready"


def test_each_visitor_sees_what_it_may(guarded: People) -> None:
    with guarded.bus("admin", "all *") as bus:
        bus.create_topic("watched")
        bus.publish("watched", b"x")
        bus.queue("watched", group="workers").receive(1)
        bus.create_topic("secret:hidden")
    stranger = PageReader(guarded.url).get("/console/")
    assert stranger.status == 401
    assert "this service ready" not in stranger.text and "Nothing is wrong" not in stranger.text
    nobody = PageReader(guarded.url, tms_session=guarded.token("nobody", "consume topic:other:x"))
    page = nobody.get("/console/")
    assert page.status == 200
    assert "needs observe on service" in page.text
    assert "<svg" not in page.html and "this service" not in page.text
    assert nobody.get("/console/topics/default/watched").status == 403
    observer = PageReader(guarded.url, tms_session=guarded.token("eve", "observe service"))
    page = observer.get("/console/")
    assert "this service ready" in page.text and "needs observe" not in page.text
    assert "The last hour" in page.text
    some = guarded.token("ina", "observe topic:default:watched")
    page = PageReader(guarded.url, tms_session=some).get("/console/?namespace=default")
    assert page.status == 200 and "of the namespace default" in page.text
    admin = PageReader(guarded.url, tms_session=guarded.token("admin"))
    assert "Nothing is wrong that you may see." in admin.get("/console/").text


def test_instances_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise Unavailable("It is away.")

    with instances("a", "b") as both:
        both.coordinator()
        reader = PageReader(both.url("a"))
        page = reader.get("/console/")
        assert "coordinator" in page.text and "does not answer" not in page.text
        for peer in both.cluster["a"].others():
            monkeypatch.setattr(peer, "load", away)
            monkeypatch.setattr(peer, "own_history", away)
            monkeypatch.setattr(peer, "own_backlogs", away)
        page = reader.get("/console/")
        assert "The instance b does not answer." in page.text
        assert "Without b, which did not answer." in page.text
        assert page.links["What to do: TmsDown"] == "/console/runbooks#tmsdown"


def test_parts_that_fail_are_said_and_the_others_are_shown(
    shop: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("The store does not answer.")

    monkeypatch.setattr(shop.service.engine.glance, "instances", away)
    page = PageReader(shop.url).get("/console/")
    assert page.status == 200
    assert "The store does not answer." in page.text
    assert "3 dead letters" in page.text and "<svg" in page.html
