"""Delayed messages: which topics have some, what comes when, and cancelling some of them."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

import tms
from sim.faulty import FaultyStore
from tests.access_kit import People
from tests.cli_kit import tms_command
from tests.cluster_kit import Instances
from tests.http_kit import Served, serving
from tests.pages_kit import PageReader, ReadPage
from tms.client.client import Bus
from tms.store.memory import MemoryStore

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as bus:
        yield bus


def at(topic: str, *more: str) -> str:
    return "/".join(["/console/delayed/default", topic, *more])


def defer(bus: Bus, topic: str, count: int, key: bytes | None = b"k") -> list[str]:
    """So many messages that are due in an hour and later; their ids, in order."""
    bus.create_topic(topic)
    return [
        str(bus.publish_later(topic, b"x" * 100, key=key, delay=f"{60 + nth}m"))
        for nth in range(count)
    ]


def ids(page: ReadPage) -> list[str]:
    return re.findall(r"<code>([0-9]+-[0-9]+)</code>", page.html)


def cancel(reader: PageReader, topic: str, chosen: list[str]) -> ReadPage:
    """The page that says what will be cancelled."""
    return reader.get(at(topic, "cancel") + "?" + urlencode([("id", id) for id in chosen]))


def confirm(reader: PageReader, topic: str, page: ReadPage, chosen: list[str]) -> ReadPage:
    fields = [("form", page.form().fields["form"]), *(("id", id) for id in chosen)]
    own = {"Origin": reader.origin, "Content-Type": "application/x-www-form-urlencoded"}
    answer = reader.ask("POST", at(topic, "cancel"), urlencode(fields), own)
    return reader.get(answer.headers["location"]) if answer.status == 303 else answer


def test_the_topics_that_have_some_are_listed(reader: PageReader, bus: Bus) -> None:
    for topic, count in (("soon-b", 2), ("soon-a", 1), ("soon-none", 0)):
        defer(bus, topic, count)
    page = reader.get("/console/delayed")
    assert [text for text in page.links if text.startswith("soon-")] == ["soon-a", "soon-b"]
    assert "soon-b 2" in page.text and "59 min" in page.text
    first = reader.get("/console/delayed?limit=1")
    assert "soon-b" not in first.links and "soon-b" in reader.get(first.links["Next page"]).links
    assert "has delayed messages" in reader.get("/console/delayed?namespace=nowhere").text


def test_messages_are_shown_in_the_order_in_which_they_are_due(
    reader: PageReader, bus: Bus
) -> None:
    expected = defer(bus, "ordered", 5)
    page = reader.get(at("ordered") + "?limit=2")
    seen = ids(page)
    while "Next page" in page.links:
        page = reader.get(page.links["Next page"])
        seen += ids(page)
    assert seen == expected
    assert "5 waiting" in page.text and "101 B" in page.text, page.text
    assert "Nothing waits here." in reader.get(at("ordered") + f"?after={expected[-1]}").text


def test_a_page_of_large_messages_is_shorter_and_not_the_last(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("large")
    expected = [
        str(bus.publish_later("large", b"x" * (3 << 20), delay=f"{60 + nth}m")) for nth in range(5)
    ]
    page = reader.get(at("large"))
    seen = ids(page)
    assert len(seen) < 5 and len(page.html) < 10_000
    while "Next page" in page.links:
        page = reader.get(page.links["Next page"])
        seen += ids(page)
    assert seen == expected


def test_keys_are_shown_and_harmless(reader: PageReader, bus: Bus) -> None:
    for key in (None, b"\xff\x00", HOSTILE.encode(), "\u202e".encode(), b"k" * 65_536):
        defer(bus, "keyed", 1, key)
    page = reader.get(at("keyed"))
    assert HOSTILE not in page.html and "ff 00 hex" in page.text and "⟨U+202E⟩" in page.text
    assert "none" in page.text and len(page.html) < 10_000


def test_some_are_cancelled_after_they_are_shown(reader: PageReader, bus: Bus) -> None:
    all_ids = defer(bus, "some", 5)
    chosen = all_ids[1:4]
    page = cancel(reader, "some", chosen)
    assert "Of 3 chosen messages 3 still wait" in page.text
    assert bus.describe_delayed("some").waiting == 5, "only shown"
    bus.cancel_delayed("some", tms.DelayedId.parse(chosen[0]))
    assert "Of 3 chosen messages 2 still wait" in cancel(reader, "some", chosen).text
    done = confirm(reader, "some", page, chosen)
    # The first was cancelled twice, which is answered like the first time.
    assert "Cancelled 3 messages of some." in done.text
    assert ids(done) == [all_ids[0], all_ids[4]]
    late = confirm(reader, "some", page, ["1-1", all_ids[0]])
    assert "Cancelled 1 message of some. Delivered or cancelled before: 1." in late.text


def test_a_shell_cancels_too(reader: PageReader, bus: Bus, served: Served) -> None:
    all_ids = defer(bus, "shell", 4)
    words = shlex.split(cancel(reader, "shell", all_ids[:2]).commands[0])
    assert tms_command(*words[1:], env={"TMS_URL": served.url}).returncode == 0
    assert ids(reader.get(at("shell"))) == all_ids[2:]
    request = shlex.split(cancel(reader, "shell", all_ids[2:3]).commands[1])
    subprocess.run([request[0], "-fsS", *request[1:]], check=True, capture_output=True, timeout=60)
    assert ids(reader.get(at("shell"))) == all_ids[3:]


@pytest.mark.parametrize("query", ["", "id=x", "id=1", "&".join(f"id=1-{n}" for n in range(201))])
def test_a_wrong_choice(reader: PageReader, bus: Bus, query: str) -> None:
    defer(bus, "choice", 0)
    assert reader.get(at("choice", "cancel") + f"?{query}").status == 422


def test_a_topic_that_was_deleted_meanwhile(reader: PageReader, bus: Bus) -> None:
    chosen = defer(bus, "brief", 2)
    page = cancel(reader, "brief", chosen)
    bus.delete_topic("brief")
    assert confirm(reader, "brief", page, chosen).status == 404
    assert reader.get(at("brief")).status == 404
    assert "brief" not in reader.get("/console/delayed").links


def test_an_observer_sees_counts_a_consumer_sees_messages_and_a_publisher_cancels(
    guarded: People,
) -> None:
    with guarded.bus("owner", "all *") as bus:
        chosen = defer(bus, "rights", 1)
        defer(bus, "rights-hidden", 1)
    olga = PageReader(guarded.url, tms_session=guarded.token("olga", "observe topic:rights"))
    page = olga.get("/console/delayed")
    assert "rights" in page.links and "rights-hidden" not in page.html
    assert olga.get(at("rights")).status == 403
    token = guarded.token("carl", "consume topic:rights")
    carl = PageReader(guarded.url, tms_session=token)
    page = carl.get(at("rights"))
    assert ids(page) == chosen and "needs publish on topic:default:rights" in page.text
    asked = cancel(carl, "rights", chosen)
    assert 'class="danger" disabled' in asked.html
    refused = confirm(carl, "rights", asked, chosen)
    assert refused.status == 403 and "carl may not publish topic:default:rights" in refused.text
    guarded.access.add_grant("carl", "publish", "topic:rights")
    assert "Cancelled 1 message of rights." in confirm(carl, "rights", asked, chosen).text


def test_each_instance_shows_and_cancels(three: Instances) -> None:
    with three.connect("a") as bus:
        chosen = {f"later-{nth}": defer(bus, f"later-{nth}", 3) for nth in range(6)}
    shards = {served.service.engine.shards.held for served in three.served.values()}
    assert len(shards) == 3, "else nothing is asked of others"
    for nth, id in enumerate(("a", "b", "c")):
        reader = PageReader(three.url(id))
        page = reader.get("/console/delayed")
        assert [text for text in page.links if text.startswith("later-")] == sorted(chosen)
        for topic, expected in chosen.items():
            assert ids(reader.get(at(topic))) == expected[nth:]
            asked = cancel(reader, topic, expected[nth : nth + 1])
            assert (
                "Cancelled 1 message of"
                in confirm(reader, topic, asked, expected[nth : nth + 1]).text
            )


def test_a_full_store_says_what_is_not_done() -> None:
    store = FaultyStore(MemoryStore())
    with serving(store) as served, tms.connect(served.url) as bus:
        chosen = defer(bus, "full", 2)
        reader = PageReader(served.url)
        page = cancel(reader, "full", chosen)
        store.fill()
        refused = confirm(reader, "full", page, chosen)
        assert refused.status == 507, refused.text
        store.heal()
        assert "Cancelled 2 messages of full." in confirm(reader, "full", page, chosen).text
