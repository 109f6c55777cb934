"""Messages in a browser: turned over, followed, published, edited, kept as a file; and messages
that would like to be markup."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

import tms
from tests.console_kit import NARROW_PX, Visitor, barriers, overflow_px
from tests.console_world import HOSTILE
from tests.http_kit import Served
from tms.client.client import Bus


@pytest.fixture(scope="module")
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        yield connected


def places(page: Page) -> list[str]:
    return page.get_by_role("rowheader").all_inner_texts()


def show(page: Page) -> None:
    """Send the form above a list, and wait for the page that answers."""
    with page.expect_navigation():
        page.get_by_role("button", name="Show").click()


def test_messages_are_turned_over_by_keys(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("turned")
    bus.publish_many("turned", [b"%d" % number for number in range(130)])
    page = visitor.open("/console/messages/default/turned")
    latest = places(page)
    assert latest[-1] == "0/129"
    expect(page.locator("[aria-current=page]")).to_have_text("Topics")
    page.keyboard.press("p")
    expect(page.get_by_role("rowheader").last).to_have_text(f"0/{129 - len(latest)}")
    assert not set(latest) & set(places(page))
    page.keyboard.press("n")
    expect(page.get_by_role("rowheader").last).to_have_text("0/129")
    page.get_by_role("link", name="Earliest").click()
    expect(page.get_by_role("rowheader").first).to_have_text("0/0")
    again = visitor.open(page.url)  # the address is the place
    assert places(again) == places(page)


def test_messages_are_filtered_and_a_wrong_filter_is_explained(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("filtered")
    for number in range(20):
        bus.publish("filtered", b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")
    page = visitor.open("/console/messages/default/filtered?start=earliest")
    page.get_by_label("Only where").fill("key = odd")
    show(page)
    assert places(page) == [f"0/{number}" for number in range(1, 20, 2)]
    page.get_by_label("Only where").fill("key = = odd")
    show(page)
    expect(page.get_by_role("status").first).to_contain_text("Only where:")
    expect(page.get_by_label("Only where")).to_have_value("key = = odd")


def test_a_message_is_published_and_again_with_a_change(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("written")
    page = visitor.open("/console/topics/default/written")
    page.get_by_role("link", name="Publish…").click()
    page.get_by_label("How the value is written").select_option("json")
    page.get_by_role("textbox", name="Value", exact=True).fill('{"id": 9007199254740993,')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("textbox", name="Value", exact=True)).to_have_value(
        '{"id": 9007199254740993,'
    )
    page.get_by_role("textbox", name="Value", exact=True).fill('{"id": 9007199254740993}')
    page.get_by_role("textbox", name="Headers").fill("kind=first")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status").first).to_contain_text("Published to partition 0 at offset 0")
    expect(page.get_by_role("main")).to_contain_text('"id": 9007199254740993')
    page.get_by_role("link", name="Publish this one again").click()
    expect(page.get_by_role("textbox", name="Headers")).to_have_value("kind=first")
    page.get_by_role("textbox", name="Value", exact=True).fill('{"id": 9007199254740994}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status").first).to_contain_text("at offset 1")
    read = [*bus.consumer("written", start="earliest", stop_at_end=True)]
    assert [json.loads(one.value or b"")["id"] for one in read] == [2**53 + 1, 2**53 + 2]
    assert [one.headers for one in read] == [{"kind": b"first"}] * 2


def test_messages_are_kept_as_a_file(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("kept")
    bus.publish_many("kept", [b'{"n": 9007199254740993}', b"two", b"\xff"])
    page = visitor.open("/console/messages/default/kept?start=earliest")
    with page.expect_download() as download:
        page.get_by_role("link", name="All from here as NDJSON").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 3
    assert [json.loads(line)["offset"] for line in lines] == [0, 1, 2]
    assert download.value.suggested_filename.endswith(".ndjson")


def test_hostile_messages_are_only_shown(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("hostile")
    for value in HOSTILE:
        bus.publish("hostile", value, key=value, headers={"note": value})
    page = visitor.open("/console/messages/default/hostile?start=earliest", width=NARROW_PX)
    assert len(places(page)) == len(HOSTILE)
    assert overflow_px(page) == 0
    page.get_by_role("link", name="0/0", exact=True).click()
    for number in range(len(HOSTILE)):
        page.get_by_role("heading", name=f"Message 0/{number}").wait_for()
        assert "pwned" not in page.title()
        assert page.locator("main script, main a[href^='http://other']").count() == 0
        assert "\u202e" not in page.content() and "\x1b" not in page.content()
        assert overflow_px(page) == 0
        assert barriers(page, "color-contrast", "scrollable-region-focusable") == []
        with page.expect_navigation():
            page.keyboard.press("n")
