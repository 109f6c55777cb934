"""Every page: no barrier in light and dark, nothing wider than a narrow window, readable without a
script, within four requests."""

from collections.abc import Callable, Iterator

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
from tests.console_world import BILLING, ORDERS, PACKERS, REMINDERS, Shop
from tests.http_kit import Served
from tms.console.pages.table import ROUTES

NO_PAGES = ("/file", "/download", "/follow")  # ends of paths that answer something else
GUARDED = "/console/access/"  # of a service with access control: see test_console_people
PAGES = [
    route.path
    for route in ROUTES
    if route.method == "GET" and not route.path.endswith(NO_PAGES)
    if not route.path.startswith(GUARDED)
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with console_served() as running:
        yield running


@pytest.fixture(scope="module")
def address(served: Served) -> Iterator[Callable[[str], str]]:
    """The address of a page in the shop, by the path with its names."""
    with tms.connect(served.url) as bus:
        shop = Shop(bus)
        shop.fill()
        first = next(iter(bus.consumer(ORDERS, start="earliest", stop_at_end=True)))
        delayed = next(iter(bus.list_delayed(REMINDERS))).id
        names = {
            "namespace": "shop",
            "topic": "orders",
            "group": BILLING,
            "link": "tms_unknown",
            "instance": "a",
        }
        names |= {"partition": str(first.partition), "id": str(first.id)}
        names |= {"principal": "ann", "token": bus.admin.access.create_token("ann").id}
        others: dict[str, dict[str, object]] = {
            "/console/delayed": {"topic": "reminders"},
            "/console/queues": {"group": PACKERS},
            "/console/transactions": {"id": shop.hold(served.service.engine)},
        }
        queries = {"/console/delayed/{namespace}/{topic}/cancel": f"?id={delayed}"}

        def address_of(path: str) -> str:
            other = [more for beginning, more in others.items() if path.startswith(beginning)]
            return path.format_map(names | (other[0] if other else {})) + queries.get(path, "")

        yield address_of


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
    shared: tuple[Visitor, Page, Page], address: Callable[[str], str], path: str
) -> None:
    visitor, page, plain = shared
    visitor.problems.clear()
    page.emulate_media(color_scheme="light")
    answer = page.goto(address(path))
    assert answer is not None and answer.ok, answer
    assert barriers(page) == []
    assert overflow_px(page) == 0
    page.emulate_media(color_scheme="dark")
    assert barriers(page, "color-contrast") == []
    page.set_viewport_size({"width": NARROW_PX, "height": TALL_PX})
    assert overflow_px(page) == 0
    page.set_viewport_size({"width": WIDE_PX, "height": TALL_PX})
    plain.goto(address(path))
    assert seen(plain) == seen(page)
    assert visitor.problems == []
