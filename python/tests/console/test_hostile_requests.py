"""Requests and contents made to break the console: headers, numbers, origins of dead letters."""

from contextlib import suppress

import pytest

import tms
from tests.http_kit import Served
from tests.pages_kit import PageReader
from tms.console.rendering import environment
from tms.errors import TopicExists
from tms.model.queue import DEAD_CAUSE, DEAD_DELIVERIES, DEAD_GROUP, DEAD_ORIGIN

SPLIT = '"tms_a\\015\\012x-forwarded-by: me"'  # as a cookie writes a line's end
LONG = "9" * 5_000
ORIGINS = ("default:origin/{}/0/ab", "default:origin/0/{}/ab")


def make(bus: tms.Bus, topic: str) -> None:
    with suppress(TopicExists):
        bus.create_topic(topic)


def test_a_session_adds_no_header_to_a_question(served: Served) -> None:
    reader = PageReader(served.url, tms_session=SPLIT)
    page = reader.get("/console/topics")
    assert page.status == 401 and "not signed in any more" in page.text
    assert "tms_session" not in reader.cookies
    assert reader.get("/console/topics").status == 200


def test_a_pasted_token_adds_no_header_to_a_question(served: Served) -> None:
    reader = PageReader(served.url)
    form = reader.get("/console/queues/new").form()
    fields = {**form.fields, "token": "tms_a\r\nx-forwarded-by: me"}
    page = reader.post("/console/sign-in", fields)
    assert page.status == 401 and "paste the token again" in page.text


@pytest.mark.parametrize("number", ["0" * 19 + "1" + "0" * 9, "1" + "0" * 5_000, "\u0663"])
def test_a_number_is_within_its_bounds_however_it_is_written(served: Served, number: str) -> None:
    with tms.connect(served.url) as bus:
        make(bus, "numbers")
        bus.publish("numbers", b"one")
    reader = PageReader(served.url)
    for target in (
        f"/console/topics?limit={number}",
        "/console/messages/default/numbers?limit=" + number,
        f"/console/messages/default/numbers/{number}/0123456789abcdef01234567",
        "/console/topics/default/numbers/producers?partition=" + number,
        f"/console/transactions/{number}",
    ):
        page = reader.ask("GET", quoted(target))
        assert page.status in (400, 422), (target[:80], page.status, page.text[:300])
    form = reader.get("/console/transactions/prune").form()
    page = reader.send(form, typed="prune", before_ms=number)
    assert page.status == 422 and "before_ms is a time" in page.text


def quoted(target: str) -> str:
    return target.replace("\u0663", "%D9%A3")


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("number", [LONG, "²", "-1", ""])
def test_a_dead_letter_that_anybody_wrote_breaks_no_page(
    served: Served, origin: str, number: str
) -> None:
    with tms.connect(served.url) as bus:
        make(bus, "origin")
        queue = bus.queue("origin", group="forged")
        letters = str(queue.describe().dead_letter)
        make(bus, letters)
        headers = {
            DEAD_ORIGIN: origin.format(number).encode(),
            DEAD_GROUP: b"forged",
            DEAD_CAUSE: b"why not",
            DEAD_DELIVERIES: LONG.encode(),
        }
        bus.publish(letters, b"forged", headers=headers)
        *_, forged = iter(bus.consumer(letters, start="earliest", stop_at_end=True))
    reader = PageReader(served.url)
    topic = letters.partition(":")[2] or letters
    page = reader.get(f"/console/messages/default/{topic}/{forged.partition}/{forged.id}")
    assert page.status == 200 and "Why it died" not in page.text
    assert reader.get("/console/queues/default/origin/forged/dead").status == 200
    with tms.connect(served.url) as bus:
        bus.queue("origin", group="forged").redrive()  # it breaks nothing for the others


def test_the_address_of_live_parts_is_ascii(served: Served) -> None:
    page = PageReader(served.url).get("/console/live?page=/console/topics%C3%BC&parts=topics")
    assert page.status == 422 and "address of a page" in page.text


def test_a_command_beside_a_refusal_quotes_the_names_in_it() -> None:
    resource = "queue:default:orders/x; touch pwned #"
    shown = str(environment().globals["ui"].denied("manage", resource))  # type: ignore[attr-defined]
    assert "manage &#39;queue:default:orders/x; touch pwned #&#39;" in shown
