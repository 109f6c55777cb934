"""Every page: no barrier in light and dark, nothing wider than a narrow window, readable without a
script, within four requests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

import tms
from tests.console_kit import (
    NARROW_PX,
    TALL_PX,
    WIDE_PX,
    Visitor,
    barriers,
    console_served,
    overflow_px,
)
from tests.console_world import BILLING, PACKERS, Shop
from tests.http_kit import Served
from tms.console.pages.table import ROUTES

SHOWN = {"namespace": "shop", "topic": "orders", "group": BILLING}
OTHER = {  # by the beginning of a path
    "/console/delayed": {"topic": "reminders"},
    "/console/queues": {"group": PACKERS},
}


def addresses() -> Iterator[str]:
    """The address of each page, with what the shop has."""
    for route in ROUTES:
        if route.method == "GET":
            other = [more for path, more in OTHER.items() if route.path.startswith(path)]
            yield route.path.format_map(SHOWN | (other[0] if other else {}))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with console_served() as running:
        shop = Shop(tms.connect(running.url))
        shop.fill()
        shop.hold()
        yield running
        shop.close()


@pytest.fixture(scope="module")
def shared(browser: Browser, served: Served) -> Iterator[tuple[Visitor, Page, Page]]:
    """A visitor with two pages, the second of which runs no scripts."""
    visitor = Visitor(browser, served.url)
    yield visitor, visitor.open("about:blank"), visitor.open("about:blank", javascript=False)
    visitor.close()


def seen(page: Page) -> tuple[list[str], list[str]]:
    """The headings of a page's content, and those of its tables."""
    main = page.get_by_role("main")
    headings = main.get_by_role("heading").all_inner_texts()
    return headings, main.get_by_role("columnheader").all_inner_texts()


@pytest.mark.parametrize("address", [*addresses()])
def test_a_page_is_for_everybody(shared: tuple[Visitor, Page, Page], address: str) -> None:
    visitor, page, plain = shared
    visitor.problems.clear()
    page.emulate_media(color_scheme="light")
    answer = page.goto(address)
    assert answer is not None and answer.ok, answer
    assert barriers(page) == []
    assert overflow_px(page) == 0
    page.emulate_media(color_scheme="dark")
    assert barriers(page, "color-contrast") == []
    page.set_viewport_size({"width": NARROW_PX, "height": TALL_PX})
    assert overflow_px(page) == 0
    page.set_viewport_size({"width": WIDE_PX, "height": TALL_PX})
    plain.goto(address)
    assert seen(plain) == seen(page)
    assert visitor.problems == []
