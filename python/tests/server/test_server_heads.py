"""Heads that were parsed before: requests mean the same the second time, and the third."""

import re
import socket
from collections.abc import Iterator
from random import Random

import pytest

from tests.http_kit import Served, serving
from tests.http_kit import request as raw
from tests.waiting import PATIENCE_S, until
from tms.server.http import heads
from tms.server.http.heads import KnownHeads
from tms.store.memory import MemoryStore

TOPICS = "/v2/namespaces/default/topics"
MESSAGES = f"{TOPICS}/t/messages"
JSON = b'{"messages":[{"value":"YQ=="}]}'
PUBLISH = raw("POST", MESSAGES, JSON)
_VARYING = re.compile(
    rb"(?:date|content-length|tms-request-id): [^\r]*\r\n|\"request_id\":\"[^\"]*\"|"
    rb"\"(?:offset|timestamp_ms|created_ms)\":\d+|\"id\":\"[^\"]*\"",
    re.IGNORECASE,
)


@pytest.fixture(params=[True, False], ids=["remembered", "parsed"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    if not request.param:
        monkeypatch.setattr(KnownHeads, "remember", lambda *_: None)
    with serving(MemoryStore()) as served:
        served.create("t")
        yield served


def answers(served: Served, *pieces: bytes) -> bytes:
    """The answers to pieces that the service receives one after another, and to the end of the
    connection, which it receives once all are answered: answers to a connection that has ended
    already say `close`. Fields that differ from request to request are removed."""
    found = b""
    with socket.create_connection(served.address, PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                connection.sendall(piece)
                for _ in range(2):  # the loop looks at its sockets in between
                    served.in_loop(lambda: None)
            until(lambda: not served.server._http.requests)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it has been closed before that
            pass
        while received := connection.recv(1 << 16):
            found += received
    return _VARYING.sub(b"", found)


BARE = PUBLISH.replace(b"\r\n", b"\n")
ODD = {
    "whole": (PUBLISH,),
    "two at once": (PUBLISH + PUBLISH,),
    "head, then body": (PUBLISH[: -len(JSON)], JSON),
    "in the middle of the head": (PUBLISH[:30], PUBLISH[30:]),
    "another behind a body": (PUBLISH + PUBLISH[:20], PUBLISH[20:]),
    "one byte too many": (PUBLISH + b"x",),
    "line ends before it": (b"\r\n\r\n" + PUBLISH,),
    "only line ends": (b"\r\n\r\n",),
    "other line ends": (BARE,),
    "an empty line in the body": (raw("POST", MESSAGES, b'{\r\n\r\n"messages":[]}'),),
    "no body": (raw("GET", TOPICS),),
    "HEAD": (raw("HEAD", f"{TOPICS}/t"),),
    "not there": (raw("GET", "/nowhere"),),
    "closing": (raw("POST", MESSAGES, JSON, connection="close"),),
    "waiting for a word": (raw("POST", MESSAGES, JSON, expect="100-continue"),),
    "upgrade": (raw("GET", TOPICS, connection="upgrade", upgrade="websocket"),),
    "CONNECT": (b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n",),
    "HTTP/1.0": (b"GET /livez HTTP/1.0\r\n\r\n",),
    "chunks": (
        b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (MESSAGES.encode(), len(JSON), JSON),
    ),
    "bad JSON": (raw("POST", MESSAGES, b"{"),),
    "a length that is too short": (PUBLISH.replace(b"Length: 31", b"Length: 30"),),
    "no host": (b"GET /livez HTTP/1.1\r\n\r\n",),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_request_is_answered_the_second_time_as_it_was_the_first(
    odd: str, served: Served
) -> None:
    for _ in range(3):  # so that the service knows it
        answers(served, PUBLISH)
    pieces = ODD[odd]
    first = answers(served, *pieces)
    assert [answers(served, *pieces) for _ in range(2)] == [first] * 2
    # On one connection, behind others that are known.
    after = answers(served, PUBLISH, *pieces)
    assert after == answers(served, PUBLISH, *pieces)
    assert after.endswith(first)


LIVE = raw("GET", "/livez")
LONGER = raw("POST", MESSAGES, JSON + b" ")
BEFORE = {
    "two different ones": (LIVE + raw("GET", TOPICS), LIVE),
    "line ends": (b"\r\n\r\n" + PUBLISH, b"\r\n\r\n" + b"x" * len(JSON)),
    "a body that comes later": (PUBLISH[: -len(JSON)], PUBLISH),
    "a longer body": (LONGER, PUBLISH + b" "),
}


@pytest.mark.parametrize("before", BEFORE)
def test_what_came_before_changes_no_meaning(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, then = BEFORE[before]
    with serving(MemoryStore()) as served:
        served.create("t")
        answers(served, first)
        found = answers(served, then)
    with monkeypatch.context() as patched, serving(MemoryStore()) as served:
        patched.setattr(KnownHeads, "remember", lambda *_: None)
        served.create("t")
        assert found == answers(served, then)


def test_any_cuts_give_the_same_answers() -> None:
    random, stream = Random(7), PUBLISH * 6
    with serving(MemoryStore()) as served:
        served.create("t")
        whole = answers(served, *[PUBLISH] * 6)
        for _ in range(12):
            cuts = sorted(random.sample(range(1, len(stream)), 3))
            pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
            assert answers(served, *pieces) == whole


def test_a_known_head_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    remember = KnownHeads.remember

    def counted(self: KnownHeads, data: bytes, exchange: object) -> None:
        parsed.append(data)
        remember(self, data, exchange)  # type: ignore[arg-type]

    with serving(MemoryStore()) as served:
        served.create("t")
        monkeypatch.setattr(KnownHeads, "remember", counted)
        with served.connect() as client:
            for _ in range(5):
                assert client.request("POST", MESSAGES, JSON).status == 200
    assert len(parsed) == 1


def test_few_and_short_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "HEADS_MAX", 3)
    with serving(MemoryStore()) as served, served.connect() as client:
        known = served.service.watchdog.heads
        for number in range(20):
            assert client.request("GET", f"/livez?{number}").status in (200, 400)
            assert len(known._heads) <= 3
        before = dict(known._heads)
        client.request("GET", "/livez", x_long="x" * heads.HEAD_BYTES_MAX)
        assert known._heads == before
