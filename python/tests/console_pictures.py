"""Pictures of the console's pages, for docs/console.md and the README: `make pictures`.

Each is taken from a real service with the small shop of `console_world`, in Chromium, and stored
with few colours, because most of a page is paper and text.
"""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.access_kit import People
from tests.cluster_kit import instances
from tests.console_kit import WIDE_PX, Visitor, chromium, console_served
from tests.console_world import Shop
from tms.server.service import AccessLimits

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
HEIGHT_PX_MAX = 860
COLOURS = 48
BYTES_MAX = 60 << 10


class Picture(NamedTuple):
    """A picture: its name, the address of the page, and the links to follow from there."""

    name: str
    address: str
    links: tuple[str, ...] = ()
    dark: bool = False


_ORDERS, _QUEUE = "shop/orders", "/console/queues/shop/orders/packers"
PICTURES = (
    Picture("topics", "/console/topics?namespace=shop"),
    Picture("topic", f"/console/topics/{_ORDERS}"),
    Picture("messages", f"/console/messages/{_ORDERS}?limit=20", dark=True),
    Picture("message", f"{_QUEUE}/dead", ("20",)),
    Picture("publish", f"/console/messages/{_ORDERS}", ("0/", "Publish this one again")),
    Picture("groups", "/console/groups?namespace=shop"),
    Picture("group", f"/console/groups/{_ORDERS}/billing"),
    Picture("reset", f"/console/groups/{_ORDERS}/billing/reset?to=shift&value=-20"),
    Picture("queues", "/console/queues?namespace=shop"),
    Picture("queue", _QUEUE),
    Picture("dead-letters", f"{_QUEUE}/dead"),
    Picture("delayed", "/console/delayed/shop/reminders"),
    Picture("transactions", "/console/transactions"),
    Picture("access", "/console/access"),
    Picture("service", "/console/service"),
    Picture("instances", "/console/instances"),
)


def take(page: Page, picture: Picture) -> bytes:
    """The picture of a page, as PNG."""
    page.emulate_media(color_scheme="dark" if picture.dark else "light")
    page.set_viewport_size({"width": WIDE_PX, "height": 200})
    answer = page.goto(picture.address)
    assert answer is not None and answer.ok, f"{picture.address}: {answer}"
    for link in picture.links:
        with page.expect_navigation():
            page.get_by_role("main").get_by_role("link", name=link).first.click()
    height = int(page.evaluate("document.scrollingElement.scrollHeight"))
    page.set_viewport_size({"width": WIDE_PX, "height": min(height, HEIGHT_PX_MAX)})
    shot = Image.open(io.BytesIO(page.screenshot()))
    packed = io.BytesIO()
    few = shot.convert("RGB").quantize(
        COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    )
    few.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def pictures() -> Iterator[tuple[Picture, bytes]]:
    """All pictures: of one service, with the rights of its administrator, and the last one of three
    instances."""
    with chromium() as browser:
        yield from zip(PICTURES[:-1], _of_one(browser), strict=True)
        with instances("a", "b", "c") as three, three.connect("a") as bus:
            bus.create_topic("orders", partitions=8)
            for number in range(80):
                bus.publish("orders", b"x" * 100, partition=number % 8)
            visitor = Visitor(browser, three.url("a"))
            yield PICTURES[-1], take(visitor.open("about:blank"), PICTURES[-1])
            visitor.close()


def _of_one(browser: Browser) -> Iterator[bytes]:
    with console_served(AccessLimits()) as served:
        people = People(served)
        for principal, grant in (("billing", "consume topic:shop:orders"), ("eve", "observe *")):
            people.token(principal, grant)
        with people.bus("ann", "all *") as bus:
            shop = Shop(bus)
            shop.fill()
            shop.hold(served.service.engine)
        visitor = Visitor(browser, served.url)
        page = visitor.open("/console/topics")
        page.get_by_label("Token").fill(people.token("ann"))
        with page.expect_navigation():
            page.get_by_role("button", name="Sign in").click()
        for picture in PICTURES[:-1]:
            yield take(page, picture)
        visitor.close()


def main() -> None:
    """Take all, and put them into the folder, or the one that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    for picture, png in pictures():
        (folder / f"console-{picture.name}.png").write_bytes(png)
        print(f"console-{picture.name}.png  {len(png) >> 10} KiB")


if __name__ == "__main__":
    main()
