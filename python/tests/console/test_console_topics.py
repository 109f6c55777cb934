"""Topics, delayed messages and transactions in a browser: lists that are searched and sorted, and
each action with its plan."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

import tms
from tests.console_kit import Visitor
from tests.console_world import ORDERS, PAYMENTS, REMINDERS, Shop
from tests.http_kit import Served
from tms.client.client import Bus


@pytest.fixture(scope="module")
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        Shop(connected).fill()
        yield connected


def press(page: Page, name: str) -> None:
    """Press a button that is seen, and wait for the page that it leads to."""
    with page.expect_navigation():
        page.get_by_role("button", name=name).first.click()


def names(page: Page) -> list[str]:
    return page.get_by_role("main").get_by_role("rowheader").all_inner_texts()


def test_a_list_is_searched_and_sorted_by_keys(visitor: Visitor, bus: Bus) -> None:
    for number in range(5):
        bus.create_topic(f"found-{number}")
        bus.publish_many(f"found-{number}", [b"x"] * number)
    page = visitor.open("/console/topics?limit=3")
    page.keyboard.press("/")
    page.keyboard.type("found-")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert names(page) and all(name.startswith("found-") for name in names(page))
    page.goto("/console/topics?search=found-")
    with page.expect_navigation():
        page.get_by_role("columnheader", name="Messages").get_by_role("link").click()
    assert names(page) == [f"found-{number}" for number in range(4, -1, -1)]
    assert names(visitor.open(page.url)) == names(page), "the address is the list"


def test_a_topic_is_created_changed_and_truncated(visitor: Visitor, bus: Bus) -> None:
    page = visitor.open("/console/topics?namespace=shop")
    page.get_by_role("link", name="Create a topic…").click()
    page.get_by_label("Name", exact=True).fill("bad name")
    press(page, "Create the topic")
    expect(page.get_by_role("alert").first).to_be_visible()
    page.get_by_label("Name", exact=True).fill("parcels")
    press(page, "Create the topic")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop:parcels")
    page.goto("/console/topics/shop/parcels/settings")
    page.get_by_label("Partitions").fill("3")
    press(page, "Show what it does…")
    assert bus.describe_topic("shop:parcels").settings.partitions == 1, "a plan changes nothing"
    press(page, "Change the settings")
    expect(page.get_by_role("status").first).to_be_visible()
    assert bus.describe_topic("shop:parcels").settings.partitions == 3
    bus.publish_many("shop:parcels", [b"x"] * 9, partition=0)
    page.goto("/console/topics/shop/parcels/truncate?before=offset:4&partition=0")
    expect(page.get_by_role("main")).to_contain_text("4 messages will be unreadable")
    page.get_by_label("Type shop:parcels to confirm").fill("shop:parcels")
    press(page, "Remove the messages")
    left = bus.describe_topic("shop:parcels").partition_infos[0]
    assert (left.start_offset, left.end_offset) == (4, 9)


def test_delayed_messages_are_cancelled_after_a_plan(visitor: Visitor, bus: Bus) -> None:
    page = visitor.open("/console/delayed/shop/reminders")
    boxes = page.get_by_role("checkbox")
    assert boxes.count() == 3
    boxes.first.check()
    boxes.nth(1).check()
    press(page, "Cancel the chosen ones…")
    assert bus.describe_delayed(REMINDERS).waiting == 3, "a plan changes nothing"
    press(page, "Cancel 2 messages")
    expect(page.get_by_role("status").first).to_be_visible()
    assert bus.describe_delayed(REMINDERS).waiting == 1


def test_readers_that_wait_for_a_transaction_go_on_once_it_is_invalid(
    visitor: Visitor, served: Served, bus: Bus
) -> None:
    id = Shop(bus).hold(served.service.engine)
    bus.publish(PAYMENTS, b"behind", partition=0)
    page = visitor.open("/console/transactions")
    page.get_by_role("link", name=str(id)).click()
    expect(page.get_by_role("main")).to_contain_text(PAYMENTS)
    page.get_by_role("link", name="Invalidate…").click()
    page.get_by_role("textbox").fill(str(id))
    press(page, "Invalidate the transaction")
    expect(page.get_by_role("status").first).to_be_visible()
    read = [one.value for one in bus.consumer(PAYMENTS, start="earliest", stop_at_end=True)]
    assert b"behind" in read and not any(b"open" in (value or b"") for value in read)


def test_a_topic_that_was_deleted_meanwhile_is_said(visitor: Visitor, bus: Bus) -> None:
    bus.create_topic("gone")
    page = visitor.open("/console/topics/default/gone/settings")
    bus.delete_topic("gone")
    page.get_by_label("Partitions").fill("3")
    press(page, "Show what it does…")
    expect(page.get_by_role("main")).to_contain_text("no topic")
    assert ORDERS in [str(one.name) for one in bus.list_topics("shop")]
