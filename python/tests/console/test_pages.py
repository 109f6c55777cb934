"""The console over HTTP: its frame, its forms, and what other pages cannot make of it."""

import http.client
import json
import time
from urllib.parse import urlsplit

import pytest

import tms
from tests.http_kit import Served
from tests.pages_kit import PageReader
from tms.console.console import Console

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


def make(served: Served, *topics: str) -> None:
    with tms.connect(served.url) as bus:
        for topic in topics:
            bus.create_topic(topic)


def test_a_list_and_a_topic(served: Served, reader: PageReader) -> None:
    make(served, "a-list", "a-list-more")
    page = reader.get("/console/topics")
    assert page.status == 200
    assert page.links["a-list"] == "/console/topics/default/a-list"
    topic = reader.get(page.links["a-list"])
    assert "0 messages" in topic.text
    assert "No group reads this topic." in topic.text


def test_a_list_has_pages(served: Served, reader: PageReader) -> None:
    make(served, *(f"paged-{nth}" for nth in range(5)))
    seen: list[str] = []
    page = reader.get("/console/topics?limit=2")
    while True:
        seen += [text for text in page.links if text.startswith("paged-")]
        if "Next page" not in page.links:
            break
        page = reader.get(page.links["Next page"])
    assert seen == [f"paged-{nth}" for nth in range(5)]
    assert "First page" in page.links


def test_pages_have_a_policy_and_are_not_kept(reader: PageReader) -> None:
    for target in ("/console/topics", "/console/nowhere", "/console/topics/default/missing"):
        page = reader.get(target)
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"


def test_an_error_is_a_page(reader: PageReader) -> None:
    page = reader.get(f"/console/topics/default/{HOSTILE.replace('/', '%2F')}")
    assert page.status in (400, 404, 422)
    assert HOSTILE not in page.html
    assert reader.get("/console/nowhere").status == 404
    assert reader.ask("PUT", "/console/topics").status == 405


def test_a_topic_is_deleted_by_its_typed_name(served: Served, reader: PageReader) -> None:
    make(served, "to-delete")
    page = reader.get("/console/topics/default/to-delete/delete")
    assert "tms topic delete to-delete" in page.text
    wrong = reader.send(page.form(), typed="another")
    assert wrong.status == 422 and "Nothing was changed" in wrong.text
    done = reader.send(page.form(), typed="to-delete")
    assert done.status == 200 and "The topic to-delete was deleted." in done.text
    assert "was deleted" not in reader.get("/console/topics").text
    again = reader.post("/console/topics/default/to-delete/delete", page.form().fields)
    assert again.status == 422
    typed = {**page.form().fields, "typed": "to-delete"}
    assert reader.post("/console/topics/default/to-delete/delete", typed).status == 404


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({"Origin": "http://evil.example"}, {}, 403),
        ({"Origin": ""}, {}, 403),
        ({}, {"form": ""}, 403),
        ({}, {"form": "1.abc"}, 403),
        ({"Content-Type": "text/plain"}, {}, 415),
        ({"Host": "evil.example"}, {}, 403),
    ],
)
def test_a_forged_form_changes_nothing(
    served: Served,
    reader: PageReader,
    headers: dict[str, str],
    fields: dict[str, str],
    status: int,
) -> None:
    make(served, "kept")
    target = "/console/topics/default/kept/delete"
    form = reader.get(target).form()
    answer = reader.post(target, {**form.fields, "typed": "kept", **fields}, headers)
    assert answer.status == status
    assert "kept" in reader.get("/console/topics").links


def test_a_page_that_resolves_its_name_to_this_machine_sees_no_console(
    served: Served, reader: PageReader
) -> None:
    for target in ("/console/", "/console/topics", "/console/sign-in", "/console/live"):
        page = reader.ask("GET", target, headers={"Host": "evil.example"})
        assert page.status == 403 and "not known here" in page.text


def test_a_form_of_another_browser_changes_nothing(served: Served, reader: PageReader) -> None:
    make(served, "of-another")
    target = "/console/topics/default/of-another/delete"
    fields = {**PageReader(served.url).get(target).form().fields, "typed": "of-another"}
    reader.get(target)
    assert reader.post(target, fields).status == 403
    assert "of-another" in reader.get("/console/topics").links


def test_parts_of_a_page_go_on(served: Served) -> None:
    make(served, "live")
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    connection.request("GET", "/console/live?page=/console/topics/default/live&parts=topic")
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "text/event-stream"

    def next_parts() -> dict[str, str]:
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, "the events ended"
        parts: dict[str, str] = json.loads(line[6:])
        return parts

    assert "<b>0</b> messages" in next_parts()["topic"]
    with tms.connect(served.url) as bus:
        bus.publish("live", b"one")
        assert "<b>1</b> messages" in next_parts()["topic"]
        bus.delete_topic("live")
    assert "no topic live" in str(next_parts())
    started = time.monotonic()
    assert not answer.readline().strip() and not answer.readline()
    assert time.monotonic() - started < 10
    connection.close()


@pytest.mark.parametrize("query", ["", "page=/v2/&parts=a", "page=/console/topics&parts="])
def test_live_parts_of_no_page(reader: PageReader, query: str) -> None:
    assert reader.get(f"/console/live?{query}").status == 422


@pytest.mark.parametrize("part", ["nothing", "main", "title"])
def test_live_parts_that_a_page_does_not_have(reader: PageReader, part: str) -> None:
    events = reader.get(f"/console/live?page=/console/topics&parts={part}")
    assert "event: ended" in events.html and "no part" in events.html


def test_a_link_of_another_site_leaves_the_cookies_as_they_are(
    served: Served, reader: PageReader
) -> None:
    """The browser leaves cookies of this kind out: a new key would undo forms of other tabs."""
    target = "/console/topics?namespace=default&limit=5"
    page = reader.ask("GET", target, headers={"Sec-Fetch-Site": "cross-site"})
    assert page.status == 200 and "set-cookie" not in page.headers
    assert page.links["Go on to the page"] == target
    assert 'http-equiv="refresh" content="0"' in page.html
    own = reader.ask("GET", target, headers={"Sec-Fetch-Site": "same-origin"})
    assert "set-cookie" in own.headers and "Topics" in own.text


def test_an_empty_key_of_a_browser_is_replaced(served: Served) -> None:
    reader = PageReader(served.url, tms_browser="")
    reader.get("/console/topics")
    assert reader.cookies["tms_browser"]


def test_a_fault_of_the_console_is_a_page_too(
    reader: PageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.get("/console/topics")

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("hidden from people")

    monkeypatch.setattr(Console, "_shown", broken)
    page = reader.get("/console/topics")
    assert page.status == 500 and "its log has the details" in page.text.lower()
    assert "hidden from people" not in page.html
    assert "unsafe" not in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1 KiB"), (700 << 20, "700 MiB"), (None, "?")],
)
def test_sizes(value: int | None, text: str) -> None:
    from tms.console.rendering import size

    assert size(value) == text


def test_hidden_characters_are_shown() -> None:
    from tms.console.rendering import visible

    assert visible("a\u202eb\x07c\ud800") == "a⟨U+202E⟩b⟨U+0007⟩c⟨U+D800⟩"
