"""A visitor of pages notices everything that no page of the console may do."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from tests.console_kit import (
    NARROW_PX,
    REQUESTS_MAX,
    Visitor,
    barriers,
    chromium,
    overflow_px,
    tab_to,
)

POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:"
TOP = (
    "<!doctype html><html lang=en><title>Page</title><link rel=icon href=data:,><main><h1>Page</h1>"
)
PAGES = {
    "/good": f"{TOP}<a href=/next>Next</a><button>Do it</button><script src=/good.js></script>",
    "/next": f"{TOP}next",
    "/inline": f"{TOP}<p style='color: red'>red</p>",
    "/broken": f"{TOP}<script src=/broken.js></script>",
    "/away": f"{TOP}<a href=http://other.test/>away</a>",
    "/part": f"{TOP}<script src=/nowhere></script>",
    "/many": TOP + "".join(f"<script src=/good.js?{n}></script>" for n in range(REQUESTS_MAX)),
    "/barrier": f"{TOP}<img src=/good.png><input>",
    "/wide": f"{TOP}<link rel=stylesheet href=/wide.css><p>{'wide' * 200}",
    "/hidden": f"{TOP}<link rel=stylesheet href=/hidden.css><a href=/next>Next</a>",
}
PARTS = {
    "/good.js": ("text/javascript", "document.title = 'Scripted'"),
    "/broken.js": ("text/javascript", "nothing.is.there"),
    "/wide.css": ("text/css", "p { white-space: nowrap }"),
    "/hidden.css": ("text/css", "a { outline: none }"),
    "/good.png": ("image/png", ""),
}


class Pages(BaseHTTPRequestHandler):
    """Answers with the pages above, and says 404 to other paths."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        media, text = PARTS.get(path, ("text/html", PAGES.get(path, f"{TOP}not there")))
        self.send_response(200 if path in PARTS or path in PAGES else 404)
        self.send_header("Content-Type", media)
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def found(browser: Browser, url: str) -> Iterator[Visitor]:
    """A visitor whose problems are what a test looks for."""
    visitor = Visitor(browser, url)
    yield visitor
    visitor.close()


def test_a_page_that_does_nothing_wrong_leaves_no_problem(found: Visitor) -> None:
    page = found.open("/good")
    assert page.title() == "Scripted"
    assert found.requests(page) == ["GET /good", "GET /good.js"]
    assert barriers(page) == []
    assert overflow_px(page) == 0
    tab_to(page, "button", "Do it")
    page.get_by_role("link", name="Next").click()
    page.get_by_text("next").wait_for()
    assert found.requests(page) == ["GET /next"]
    assert found.problems == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/inline", "Content Security Policy"),
        ("/broken", "nothing is not defined"),
        ("/part", "404 for /nowhere"),
        ("/many", f"more than {REQUESTS_MAX} requests"),
    ],
)
def test_a_fault_of_a_page_is_noted(found: Visitor, path: str, said: str) -> None:
    found.open(path)
    assert any(said in problem for problem in found.problems), found.problems


def test_a_page_that_is_not_there_is_no_problem_of_its_own(found: Visitor) -> None:
    found.open("/missing")
    assert found.problems == []


def test_another_host_is_noted_and_not_reached(found: Visitor) -> None:
    page = found.open("/away")
    with page.expect_event("requestfailed"):
        page.get_by_role("link", name="away").click()
    assert found.problems[0] == "a request to another host: GET http://other.test/"


def test_a_barrier_is_found(found: Visitor) -> None:
    said = barriers(found.open("/barrier"))
    assert sorted(one.split()[0] for one in said) == ["image-alt", "label"], said


def test_a_page_that_is_too_wide_is_measured(found: Visitor) -> None:
    assert overflow_px(found.open("/wide", width=NARROW_PX)) > NARROW_PX


def test_focus_that_cannot_be_seen_fails(found: Visitor) -> None:
    with pytest.raises(AssertionError, match="no outline"):
        tab_to(found.open("/hidden"), "link", "Next")


def test_a_browser_without_scripts_runs_none(found: Visitor) -> None:
    assert found.open("/good", javascript=False).title() == "Page"


def test_without_chromium_a_test_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AssertionError, match="apt-get install chromium"), chromium():
        pass
