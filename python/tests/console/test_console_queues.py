"""Groups and queues in a browser; and the two minutes in which a person who knows nothing finds a
poisoned message, reads why it died, mends it, and has it worked on again."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

import tms
from tests.console_kit import Visitor
from tests.console_world import BILLED, BILLING, ORDERS, PACKERS, PLACED, POISONED, Shop
from tests.http_kit import Served
from tests.waiting import until
from tms.client.client import Bus


@pytest.fixture(scope="module")
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        Shop(connected).fill()
        yield connected


def link(page: Page, name: str) -> None:
    """Click a link that is seen, and wait for the page that it leads to."""
    with page.expect_navigation():
        page.get_by_role("main").get_by_role("link", name=name).first.click()


def press(page: Page, name: str) -> None:
    """Press a button that is seen, and wait for the page that it leads to."""
    with page.expect_navigation():
        page.get_by_role("button", name=name).first.click()


def test_a_group_is_reset_after_a_plan(visitor: Visitor, bus: Bus) -> None:
    page = visitor.open("/console/topics/shop/orders")
    link(page, BILLING)
    expect(page.get_by_role("main")).to_contain_text(f"{PLACED - BILLED} messages behind")
    link(page, "Reset…")
    page.get_by_label("Go on at").select_option("earliest")
    press(page, "Show what it would do")
    expect(page.get_by_role("main")).to_contain_text(f"{BILLED} messages read again")
    expect(page.get_by_role("main")).to_contain_text("0 messages skipped")
    [group] = bus.list_groups(ORDERS)
    assert group.lag == PLACED - BILLED, "a plan changes nothing"
    page.get_by_label(f"Type {BILLING} to confirm").fill(BILLING)
    press(page, "Reset the group")
    expect(page.get_by_role("main")).to_contain_text(f"{PLACED} messages behind")
    [group] = bus.list_groups(ORDERS)
    assert group.lag == PLACED


def test_two_people_reset_one_group(visitor: Visitor, bus: Bus) -> None:
    address = f"/console/groups/shop/orders/{BILLING}/reset"
    first = visitor.open(f"{address}?to=latest")
    second = visitor.open(f"{address}?to=offset&value=5")
    for page in (first, second):
        page.get_by_label(f"Type {BILLING} to confirm").fill(BILLING)
        press(page, "Reset the group")
    expect(first.get_by_role("status").first).to_contain_text("goes on at")
    expect(second.get_by_role("main")).to_contain_text("Nothing was changed")


def test_a_poisoned_message_is_mended_within_two_minutes(visitor: Visitor, bus: Bus) -> None:
    """Only links and buttons that are seen; nothing is known but that something is wrong."""
    page = visitor.open("/console/queues?namespace=shop")
    link(page, "3 dead")
    number, quantity = next(iter(POISONED.items()))
    expect(page.get_by_role("main")).to_contain_text(f"quantity is '{quantity}'")
    with page.expect_navigation():
        page.get_by_role("row", name=str(number)).get_by_role("link", name="Mend…").click()
    value = page.get_by_role("textbox", name="Value", exact=True)
    order = json.loads(value.input_value())
    assert order["order"] == number
    value.fill(json.dumps(order | {"quantity": 2}))
    press(page, "Publish")
    expect(page.get_by_role("status").first).to_contain_text("ublished")
    expect(page.get_by_role("main")).not_to_contain_text(f"quantity is '{quantity}'")
    queue = bus.queue(ORDERS, group=PACKERS)
    packed: list[object] = []

    def is_packed() -> bool:
        packed.extend(json.loads(one.value or b"") for one in queue.receive(100, wait_s=1))
        return order | {"quantity": 2} in packed

    until(is_packed, "the mended message is delivered")
    assert queue.describe().dead == len(POISONED) - 1


def test_dead_letters_are_moved_back_after_a_plan(visitor: Visitor, bus: Bus) -> None:
    page = visitor.open(f"/console/queues/shop/orders/{PACKERS}/dead")
    dead = bus.queue(ORDERS, group=PACKERS).describe().dead
    press(page, f"Move all {dead} back…")
    assert bus.queue(ORDERS, group=PACKERS).describe().dead == dead, "a plan changes nothing"
    press(page, f"Move {dead} back")
    expect(page.get_by_role("status").first).to_contain_text("moved back")
    assert bus.queue(ORDERS, group=PACKERS).describe().dead == 0
