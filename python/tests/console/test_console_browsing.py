"""The console in a browser: its frame, its keyboard, its lists and topics."""

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

import tms
from tests.console_kit import Visitor, tab_to
from tests.http_kit import Served
from tms.client.client import Bus

HIDE = """hidden => {
    Object.defineProperty(document, 'hidden', {configurable: true, value: hidden});
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def at(page: Page) -> str:
    parts = urlsplit(page.url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


@pytest.fixture(scope="module")
def bus(served: Served) -> Bus:
    with tms.connect(served.url) as connected:
        yield connected


def test_a_list_leads_to_a_topic(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("list-one", partitions=3)
    bus.publish("list-one", b"x")
    page = visitor.open("/console/topics")
    page.get_by_role("link", name="list-one").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("list-one")
    expect(page.get_by_role("main")).to_contain_text("1 messages")
    assert visitor.requests(page)[0] == "GET /console/topics/default/list-one"


def test_pages_of_a_list_are_turned_by_keys(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("zz-last")
    page = visitor.open("/console/topics?limit=1")
    first = page.get_by_role("rowheader").all_inner_texts()
    for _ in range(100):
        if "zz-last" in page.get_by_role("rowheader").all_inner_texts():
            break
        before = page.url
        page.keyboard.press("n")
        page.wait_for_url(lambda url, before=before: url != before)
    page.keyboard.press("p")
    page.wait_for_url("**/console/topics?limit=1")
    assert page.get_by_role("rowheader").all_inner_texts() == first


def test_keys_are_listed_and_lead_to_sections(visitor: Visitor) -> None:
    page = visitor.open("/console/topics")
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keyboard")
    expect(keys).to_be_visible()
    expect(keys).to_contain_text("Search in this page's list")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    sections = page.get_by_role("navigation", name="Sections").get_by_role("link").all()
    told = {link.get_attribute("data-key"): link.get_attribute("href") for link in sections}
    assert len(told) == len(sections), "two sections have one key"
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**" + str(told["g t"]))


def test_keys_do_nothing_while_somebody_types(visitor: Visitor) -> None:
    page = visitor.open("/console/topics")
    page.get_by_label("Name contains").press_sequentially("gt?rnp")
    expect(page.get_by_label("Name contains")).to_have_value("gt?rnp")
    assert at(page) == "/console/topics"


def test_a_topic_is_deleted_by_the_keyboard_alone(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("by-keys")
    page = visitor.open("/console/topics/default/by-keys")
    tab_to(page, "link", "Delete…")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Delete by-keys").wait_for()
    expect(page.get_by_text("tms topic delete by-keys", exact=False)).to_be_hidden()
    page.get_by_text("The same from a shell").click()
    expect(page.get_by_text("tms topic delete by-keys", exact=False)).to_be_visible()
    page.reload()
    tab_to(page, "textbox", "Type by-keys to confirm")
    page.keyboard.type("by-keys")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("The topic by-keys was deleted.")
    assert "by-keys" not in [str(one.name) for one in bus.list_topics()]


def test_a_wrong_name_deletes_nothing(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("stays")
    page = visitor.open("/console/topics/default/stays/delete")
    page.get_by_role("textbox").fill("Stays")
    page.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    assert "stays" in [str(one.name) for one in bus.list_topics()]


def test_numbers_change_while_they_are_looked_at(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("lively")
    page = visitor.open("/console/topics/default/lively")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    bus.publish_many("lively", [b"x"] * 1_234)
    expect(page.get_by_role("listitem").filter(has_text="messages")).to_contain_text("1\u202f234")
    assert len(visitor.requests(page)) == 4, "no request more"
    bus.delete_topic("lively")
    expect(page.get_by_role("contentinfo")).to_contain_text("Not live any more")


def test_a_hidden_page_has_no_connection(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("hidden")
    page = visitor.open("/console/topics/default/hidden")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    with page.expect_event("requestfailed", lambda one: "/console/live" in one.url):
        page.evaluate(HIDE, True)
    bus.publish("hidden", b"x")
    with page.expect_request(lambda one: "/console/live" in one.url):
        page.evaluate(HIDE, False)
    expect(page.get_by_role("main")).to_contain_text("1 messages")


def test_times_are_shown_in_both_zones(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("timely")
    page = visitor.open("/console/topics/default/timely", zone="Asia/Kolkata")
    created = page.get_by_role("row", name="Created").locator("time")
    expect(created).to_contain_text("Z (")
    expect(created).to_contain_text("GMT+5:30")


def test_a_name_that_cannot_be_is_refused(visitor: Visitor) -> None:
    page = visitor.open("/console/topics")
    page.get_by_label("Namespace").fill("<b>../a\u202eb</b>")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("main b").count() == 0
