"""Bad input to queues: refused with a problem document of a stable type, leases and settles
nothing, and leaves the connection usable."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_kit import Answer, Client, Served, serving
from tms.api import routes
from tms.model.queue import RECEIVE_MAX, TOKENS_MAX, Token
from tms.server.service import RequestLimits

BODY_MAX = 1 << 20
_topics = itertools.count()
Value = Any


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    limits = RequestLimits(body_bytes_max=BODY_MAX)
    with serving(limits=limits) as running:
        yield running


@pytest.fixture
def queue(served: Served, client: Client) -> str:
    """A queue with three messages."""
    topic = served.create(f"t{next(_topics)}", durability="written")
    body = json.dumps({"messages": [{"value": str(n)} for n in range(3)]}).encode()
    assert client.request("POST", f"{topic}/messages", body).status == routes.OK
    path = f"{topic}/queues/workers"
    assert client.request("PUT", path, b"{}").status == routes.CREATED
    return path


def post(client: Client, path: str, body: Value, **more: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.request("POST", path, data, **more)


def refused(client: Client, answer: Answer, status: int, problem: str) -> None:
    assert (answer.status, answer.problem) == (status, problem), answer
    assert client.request("GET", "/livez").status == routes.OK


def counts(client: Client, queue: str) -> tuple[int, int]:
    """The numbers of new messages, and of leased ones."""
    found = client.request("GET", queue).json
    return found["backlog"], found["leased"]


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": RECEIVE_MAX + 1},
        {"limit": 1.5},
        {"limit": "1"},
        {"limit": None},
        {"limit": 10**30},
        {"wait_s": -1},
        {"wait_s": 3_600.1},
        {"wait_s": "1"},
        {"bytes_max": 0},
        {"bytes_max": 1 << 40},
        {"max": 1},
        [],
        "receive",
        1,
    ],
    ids=str,
)
def test_a_receive_that_asks_for_what_is_not_given(client: Client, queue: str, body: Value) -> None:
    refused(client, post(client, f"{queue}/receive", body), 422, "invalid")
    assert counts(client, queue) == (3, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"limit":1,"limit":2}',
        b'{"wait_s":NaN}',
        b'{"wait_s":Infinity}',
        b'{"wait_s":1e999}',
        b'\xef\xbb\xbf{"limit":1}',
        b'{"limit":1}x',
        b'{"a":"\\ud800"}',
        b"\xff",
        b"[" * 20_000,
    ],
)
@pytest.mark.parametrize("what", ["receive", "ack", "redrive"])
def test_a_body_that_is_not_strict_json(client: Client, queue: str, what: str, body: bytes) -> None:
    refused(client, post(client, f"{queue}/{what}", body), 400, "bad-json")
    assert counts(client, queue) == (3, 0)


def test_a_body_that_is_too_large(client: Client, queue: str) -> None:
    refused(client, post(client, f"{queue}/receive", bytes(100 << 10)), 413, "too-large")
    refused(client, post(client, f"{queue}/ack", bytes(BODY_MAX + 1)), 413, "too-large")


@pytest.mark.parametrize(
    "what", ["receive", "ack", "nack", "release", "extend", "reject", "redrive"]
)
def test_media_types_that_are_not_read_or_made(client: Client, queue: str, what: str) -> None:
    path = f"{queue}/{what}"
    for media in (None, "text/plain", routes.BLOCKS):
        answer = post(client, path, b"{}", media=media)  # type: ignore[arg-type]
        refused(client, answer, 415, "unsupported-media-type")
    refused(client, post(client, path, b"{}", Accept="text/html"), 406, "not-acceptable")
    refused(client, client.request("GET", path), 405, "method-not-allowed")
    refused(client, post(client, f"{path}?max=1", b"{}"), 422, "invalid")
    assert counts(client, queue) == (3, 0)


@pytest.mark.parametrize(
    "tokens",
    [
        [""],
        ["x"],
        ["0.0.1"],
        ["0.0.1.1.0"],
        ["0.0.1.1.10001"],
        ["-1.0.1.1"],
        ["0.0.1.1 "],
        ["0.0.1.1\n"],
        ["0.0.1.G"],
        ["٠.0.1.1"],
        ["0" * 100],
        [0],
        [None],
        [["0.0.1.1"]],
        "0.0.1.1",
        None,
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("what", ["ack", "nack", "release", "extend", "reject"])
def test_tokens_that_are_none(client: Client, queue: str, what: str, tokens: Value) -> None:
    taken = post(client, f"{queue}/receive", {"limit": 3}).json["tokens"]
    body = {"tokens": [*taken, *tokens] if isinstance(tokens, list) else tokens}
    refused(client, post(client, f"{queue}/{what}", body), 422, "invalid")
    assert counts(client, queue) == (0, 3)


def test_tokens_of_more_messages_than_one_request_names(client: Client, queue: str) -> None:
    token = str(Token(0, 0, 1, 1, TOKENS_MAX // 2))
    for what in ("ack", "nack", "release", "extend", "reject"):
        answer = post(client, f"{queue}/{what}", {"tokens": [token, token, "0.0.1.1"]})
        refused(client, answer, 413, "too-large")


@pytest.mark.parametrize("what", ["ack", "nack", "release", "extend", "reject"])
def test_tokens_of_others_do_nothing_and_are_named(client: Client, queue: str, what: str) -> None:
    taken = post(client, f"{queue}/receive", {"limit": 3}).json["tokens"]
    token = Token.parse(taken[0])
    others = [
        str(token._replace(epoch=token.epoch + 1)),
        str(token._replace(partition=9)),
        str(token._replace(offset=1 << 59, count=1)),
        str(token._replace(deliveries=2, count=1)),
    ]
    answer = post(client, f"{queue}/{what}", {"tokens": others})
    assert (answer.status, answer.json["done"]) == (routes.OK, 0)
    assert sum(Token.parse(one).count for one in answer.json["fenced"]) == token.count + 1 + 2 + 2
    assert counts(client, queue) == (0, 3)


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("nack", {"delay_s": -1}),
        ("nack", {"delay_s": 43_201}),
        ("nack", {"delay_s": "1"}),
        ("nack", {"cause": "x" * 1_001}),
        ("nack", {"cause": 1}),
        ("extend", {"lease_s": 0}),
        ("extend", {"lease_s": 43_201}),
        ("extend", {"delay_s": 1}),
        ("reject", {"cause": "x" * 1_001}),
        ("reject", {"cause": 1}),
        ("ack", {"cause": "x"}),
        ("ack", {"token": "0.0.1.1"}),
    ],
)
def test_settings_of_a_call_that_are_none(
    client: Client, queue: str, what: str, more: dict[str, object]
) -> None:
    taken = post(client, f"{queue}/receive", {"limit": 3}).json["tokens"]
    answer = post(client, f"{queue}/{what}", {"tokens": taken, **more})
    refused(client, answer, 422, "invalid")
    assert counts(client, queue) == (0, 3)


@pytest.mark.parametrize("limit", [0, -1, 100_001, 1.5, "1"])
def test_a_redrive_of_no_number(client: Client, queue: str, limit: object) -> None:
    refused(client, post(client, f"{queue}/redrive", {"limit": limit}), 422, "invalid")


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"lease_s": 0}, 422, "invalid"),
        ({"lease_s": 43_201}, 422, "invalid"),
        ({"lease_s": "30s"}, 422, "invalid"),
        ({"deliveries_max": 256}, 422, "invalid"),
        ({"deliveries_max": -1}, 422, "invalid"),
        ({"backoff_max_s": -1}, 422, "invalid"),
        ({"jitter": 2}, 422, "invalid"),
        ({"dead_letter": "a/b"}, 422, "invalid"),
        ({"dead_letter": "system:a"}, 403, "forbidden"),
        ({"ordered_by": "value"}, 422, "invalid"),
        ({"start": "time:-1"}, 422, "invalid"),
        ({"outstanding_max": 0}, 422, "invalid"),
        ({"durability": "often"}, 422, "invalid"),
        ({"leases": 1}, 422, "invalid"),
        ([], 422, "invalid"),
    ],
    ids=str,
)
def test_settings_of_a_queue_that_are_none(
    client: Client, queue: str, body: Value, status: int, problem: str
) -> None:
    data = json.dumps(body).encode()
    refused(client, client.request("PUT", f"{queue}2", data), status, problem)
    refused(client, client.request("PATCH", queue, data), status, problem)
    refused(client, client.request("GET", f"{queue}2"), 404, "queue-not-found")


@pytest.mark.parametrize(
    ("group", "status", "problem"),
    [
        ("a%2Fb", 422, "invalid"),
        ("a%00b", 422, "invalid"),
        ("a%0Ab", 422, "invalid"),
        ("x" * 256, 422, "invalid"),
        ("..", 400, "malformed"),
        ("%ff", 400, "malformed"),
        ("%2525", 400, "malformed"),
        ("", 422, "invalid"),
    ],
)
def test_groups_that_are_none(
    client: Client, queue: str, group: str, status: int, problem: str
) -> None:
    path = f"{queue.removesuffix('workers')}{group}"
    refused(client, client.request("PUT", path, b"{}"), status, problem)
    refused(client, post(client, f"{path}/receive", {}), status, problem)


@pytest.mark.parametrize("what", ["receive", "ack", "redrive"])
def test_queues_and_topics_that_are_not_there(client: Client, queue: str, what: str) -> None:
    body = {"tokens": ["0.0.1.1"]} if what == "ack" else {}
    refused(client, post(client, f"{queue}2/{what}", body), 404, "queue-not-found")
    nowhere = queue.replace("/topics/t", "/topics/nowhere")
    answer = post(client, f"{nowhere}/{what}", body)
    assert (answer.status, answer.problem) in {(404, "topic-not-found"), (404, "queue-not-found")}
    refused(client, post(client, f"{queue}/steal", body), 404, "not-found")


def test_a_queue_that_is_not_there_cannot_be_described_changed_or_deleted(
    client: Client, queue: str
) -> None:
    for method, body in (("GET", None), ("PATCH", b'{"lease_s":1}'), ("DELETE", None)):
        answer = client.request(method, f"{queue}2", body)
        refused(client, answer, 404, "queue-not-found")


def test_what_is_fixed_is_not_changed_and_nothing_is_no_change(client: Client, queue: str) -> None:
    refused(client, client.request("PATCH", queue, b"{}"), 422, "invalid")
    for body in (b'{"ordered_by":"key"}', b'{"start":"latest"}'):
        refused(client, client.request("PATCH", queue, body), 409, "conflict")
    refused(client, client.request("PUT", queue, b'{"lease_s":1}'), 409, "conflict")


def test_topics_of_tms_have_no_queues(client: Client) -> None:
    path = "/v2/namespaces/system/topics/_queues/queues/mine"
    refused(client, client.request("PUT", path, b"{}"), 403, "forbidden")
