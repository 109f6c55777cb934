"""A browser in front of the console: Debian's Chromium, driven by Playwright.

    with chromium() as browser:
        visitor = Visitor(browser, served.url)
        page = visitor.open("/console/topics", dark=True)

Invariants

* A visitor notes each violation of a page's Content-Security-Policy, each error of a script, each
  part of a page that is not there, each request to another host, and each page that takes more than
  `REQUESTS_MAX` requests. The fixture `visitor` fails the test that leaves any of them.
* Each `open` has a context of its own: cookies, storage and cache of no other.
* Nothing but loopback is reached: the browser resolves no name.

Playwright runs an event loop in the thread of the test for as long as `chromium` is open, so no
test of that module calls `asyncio.run`.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Frame,
    Page,
    Request,
    Response,
    WebError,
    expect,
    sync_playwright,
)

from tests.http_kit import Served, serving
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore

REQUESTS_MAX = 4
WAIT_MS = 20_000.0  # for an element that a busy machine shows late
NARROW_PX, WIDE_PX, TALL_PX = 400, 1280, 900
TABS_MAX = 80
LEAVING = 20
BARRIERS = ("serious", "critical")
_NOT_OF_THE_PAGE = ("about:", "blob:", "data:")
_IN_RESPONSES = "Failed to load resource"  # Chromium says it of what `_answered` judges
# Tests run as root and in containers with little shared memory.
_FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_OUTLINE = """() => {
    const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== 'none' && style.outlineWidth !== '0px'
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; the contexts of visitors share it."""
    program = shutil.which("chromium")
    assert program, (
        "Tests of the console need Chromium on PATH. On Debian: apt-get install chromium"
    )
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_FLAGS)
        yield browser
        browser.close()


@contextmanager
def console_served(access: AccessLimits | None = None) -> Iterator[Served]:
    """A service with the console and running upkeep; with `access` it wants tokens."""
    with serving(MemoryStore(shared=True), network=NetworkOptions(access)) as served:
        served.service.engine.start()
        yield served


class Visitor:
    """Opens pages of the service at `url`, and notes in `problems` what no page may do. `others`:
    the URLs of further instances of the service."""

    def __init__(self, browser: Browser, url: str, *others: str) -> None:
        self.url = url
        self.problems: list[str] = []
        self._hosts = tuple(f"{one}/" for one in (url, *others))
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._requests: dict[Page, list[str]] = {}  # of the page that is shown
        self._coming: dict[Page, str] = {}  # the request for the next page

    def open(
        self,
        path: str,
        *,
        javascript: bool = True,
        width: int = WIDE_PX,
        dark: bool = False,
        zone: str = "UTC",
    ) -> Page:
        """A page in a browser that has visited nothing yet. `zone`: its time zone."""
        context = self._browser.new_context(
            base_url=self.url,
            java_script_enabled=javascript,
            viewport={"width": width, "height": TALL_PX},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            timezone_id=zone,
            locale="en-GB",
        )
        self._contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        context.on("console", self._logged)
        context.on("weberror", self._failed)
        context.on("request", self._requested)
        context.on("response", self._answered)
        page = context.new_page()
        self._requests[page] = []
        page.on("framenavigated", self._arrived)
        page.goto(path)
        return page

    def requests(self, page: Page) -> list[str]:
        """The requests of the page that is shown, its own first."""
        return self._requests[page]

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            for page in context.pages:
                _leave(page)
            context.close()
        self._contexts.clear()

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_IN_RESPONSES):
            self.problems.append(f"{_path(message.location['url'])}: {message.text}")

    def _failed(self, error: WebError) -> None:
        self.problems.append(f"{_path(error.page.url)}: {error.error}")

    def _requested(self, request: Request) -> None:
        if request.url.startswith(_NOT_OF_THE_PAGE):
            return
        if not request.url.startswith(self._hosts):
            self.problems.append(f"a request to another host: {request.method} {request.url}")
        page, said = request.frame.page, f"{request.method} {_path(request.url)}"
        if request.is_navigation_request() and request.frame == page.main_frame:
            self._coming[page] = said
            return
        requests = self._requests[page]
        if said in requests:  # a connection that is made again
            return
        requests.append(said)
        if len(requests) == REQUESTS_MAX + 1:
            self.problems.append(f"a page took more than {REQUESTS_MAX} requests: {requests}")

    def _arrived(self, frame: Frame) -> None:
        """Count the requests of a page from its own on; until it comes, they are of the one before
        it."""
        if frame == frame.page.main_frame:
            self._requests[frame.page] = [self._coming.get(frame.page, "")]

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and not response.request.is_navigation_request():
            self.problems.append(f"{response.status} for {_path(response.url)}")


def barriers(page: Page, *rules: str) -> list[str]:
    """Serious and critical findings of axe-core on the page as it is, with the elements: of these
    rules, or of all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = page.evaluate("options => axe.run(options)", options)["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[two['html'] for two in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in BARRIERS
    ]


def overflow_px(page: Page) -> int:
    """The pixels by which the page is wider than its window."""
    root = "document.scrollingElement"
    return int(page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))


def tab_to(page: Page, role: str, name: str) -> None:
    """Press Tab until the element with this role and name has the focus. Fails if it never has, or
    if an element on the way shows no outline."""
    wanted = page.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        assert page.evaluate(_OUTLINE), (
            f"no outline: {page.evaluate('document.activeElement.outerHTML')}"
        )
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{TABS_MAX} times Tab did not reach the {role} {name!r}")


def _leave(page: Page) -> None:
    """End what the page loads: Playwright waits forever if a context is closed during that."""
    for _ in range(LEAVING):
        with suppress(Error):  # another page was on its way
            page.goto("about:blank")
            return


def _path(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")
