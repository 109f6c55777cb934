"""Every page: no barrier in light and dark, nothing wider than a narrow window, readable without a
script, within four requests."""

from collections.abc import Iterator
from contextlib import closing

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
from tests.console_world import BILLING, ORDERS, PACKERS, Shop
from tests.http_kit import Served
from tms.console.pages.table import ROUTES

OTHER = {  # other values, by the beginning of a path
    "/console/delayed": {"topic": "reminders"},
    "/console/queues": {"group": PACKERS},
}
FILES = ("/file",)  # ends of paths whose answers browsers keep
PAGES = [route.path for route in ROUTES if route.method == "GET" and not route.path.endswith(FILES)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with console_served() as running:
        yield running


@pytest.fixture(scope="module")
def shown(served: Served) -> Iterator[dict[str, str]]:
    """The names in the paths of pages, with their values in the shop."""
    with closing(Shop(tms.connect(served.url))) as shop:
        shop.fill()
        shop.hold()
        first = next(iter(shop.bus.consumer(ORDERS, start="earliest", stop_at_end=True)))
        yield {
            "namespace": "shop",
            "topic": "orders",
            "group": BILLING,
            "partition": str(first.partition),
            "id": str(first.id),
        }


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


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_for_everybody(
    shared: tuple[Visitor, Page, Page], shown: dict[str, str], path: str
) -> None:
    visitor, page, plain = shared
    other = [more for beginning, more in OTHER.items() if path.startswith(beginning)]
    address = path.format_map(shown | (other[0] if other else {}))
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
