"""Answers are compressed as the client accepts it, and only then."""

import gzip
import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from tests.http_kit import Answer, Client, Served, serving
from tms.api import routes
from tms.errors import NotAcceptable
from tms.server import service as services
from tms.server.http import compression
from tms.server.http.compression import coding_of
from tms.server.service import COMPRESS_INLINE_BYTES

MESSAGES = 2_000
PATH = "/v2/namespaces/default/topics/events/messages"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        served.create("events")
        some = [{"key": f"user-{n % 9}", "value": f"clicked {n}"} for n in range(MESSAGES)]
        with served.connect() as client:
            body = json.dumps({"messages": some}).encode()
            assert client.request("POST", PATH, body).status == routes.OK
            queue = PATH.removesuffix("messages") + "queues/desks"
            assert client.request("PUT", queue, b"{}").status == routes.CREATED
        yield served


def plain(answer: Answer) -> bytes:
    undo: dict[str, Any] = {
        "gzip": gzip.decompress,
        "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body),
    }
    coding = answer.headers.get("content-encoding")
    return answer.body if coding is None else bytes(undo[coding](answer.body))


def fetch(served: Served, limit: int = MESSAGES, **headers: str) -> Answer:
    with served.connect() as client:
        return client.request("GET", f"{PATH}?start=earliest&limit={limit}", **headers)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("media", [routes.JSON, routes.ARROW_STREAM])
def test_a_fetch_is_compressed(served: Served, coding: str, media: str) -> None:
    before = fetch(served, Accept=media)
    answer = fetch(served, Accept=media, Accept_Encoding=coding)
    assert answer.status == routes.OK and answer.headers["content-encoding"] == coding
    assert answer.headers["content-type"] == media
    assert answer.headers["vary"] == "accept-encoding"
    assert answer.headers["tms-next"] == before.headers["tms-next"]
    assert 3 * len(answer.body) < len(before.body)
    assert plain(answer) == before.body
    if media == routes.ARROW_STREAM:
        assert pa.ipc.open_stream(plain(answer)).read_all().num_rows == MESSAGES


def test_who_asks_for_nothing_gets_the_same_as_ever(served: Served) -> None:
    answer = fetch(served)
    assert not {"content-encoding", "vary"} & answer.headers.keys()
    assert len(answer.json["messages"]) == MESSAGES


@pytest.mark.parametrize(
    ("wanted", "coding"),
    [
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate, br", "gzip"),
        ("GZIP;Q=0.5, zstd;q=0.4", "gzip"),
        ("zstd;q=0, gzip", "gzip"),
        ("*", "zstd"),
        ("*, zstd;q=0", "gzip"),
        ("gzip;q=0.5, identity;q=0.5", "gzip"),
        ("identity;q=0.5, gzip;q=0.4", None),
        ("gzip;q=0", None),
        ("br", None),
        ("", None),
        ("identity", None),
        ("*;q=0, identity", None),
        ("gzip;q=much", None),
    ],
)
def test_what_a_client_likes_best_is_chosen(wanted: str, coding: str | None) -> None:
    found = coding_of(wanted.encode())
    assert (None if found is None else found.name) == coding


@pytest.mark.parametrize("wanted", ["identity;q=0", "*;q=0", "br, *;q=0", "gzip;q=0, identity;q=0"])
def test_who_allows_nothing_that_is_made_here_is_refused(wanted: str) -> None:
    with pytest.raises(NotAcceptable, match="Accept-Encoding"):
        coding_of(wanted.encode())


def test_a_publish_that_could_not_be_answered_stores_nothing(served: Served) -> None:
    end = fetch(served, limit=1).headers["tms-end"]
    with served.connect() as client:
        answer = client.request(
            "POST", PATH, b'{"messages": [{"value": "x"}]}', Accept_Encoding="*;q=0"
        )
    assert answer.problem == "not-acceptable"
    assert fetch(served, limit=1).headers["tms-end"] == end


def test_a_small_answer_is_compressed_only_where_it_must_be(served: Served) -> None:
    with served.connect() as client:
        small = client.request("GET", routes.LIVEZ, Accept_Encoding="gzip")
        assert "content-encoding" not in small.headers and small.json["alive"]
        assert small.headers["vary"] == "accept-encoding"
        must = client.request("GET", routes.LIVEZ, Accept_Encoding="gzip, identity;q=0")
        assert must.headers["content-encoding"] == "gzip" and plain(must) == small.body


def test_every_answer_in_json_may_be_compressed(served: Served) -> None:
    messages = json.dumps({"messages": [{"value": "x"}] * 100}).encode()
    queue = PATH.removesuffix("messages") + "queues/desks"
    asked = [
        ("GET", routes.OPENAPI, None),
        ("GET", routes.METRICS, None),
        ("POST", PATH, messages),
        ("POST", PATH.replace("messages", "delayed?delay_s=1000"), messages),
        ("GET", PATH.replace("messages", "delayed"), None),
        ("POST", f"{queue}/receive", b'{"limit": 100}'),
    ]
    with served.connect() as client:
        for method, path, body in asked:
            answer = client.request(method, path, body, Accept_Encoding="gzip")
            assert answer.status == routes.OK, answer
            assert answer.headers["content-encoding"] == "gzip", path
            assert len(plain(answer)) > len(answer.body)


def test_head_has_the_headers_of_get(served: Served) -> None:
    with served.connect() as client:
        got = client.request("GET", routes.OPENAPI, Accept_Encoding="zstd")
        head = client.request("HEAD", routes.OPENAPI, Accept_Encoding="zstd")
    assert head.body == b""
    for name in ("content-encoding", "content-length", "content-type"):
        assert head.headers[name] == got.headers[name]


def test_blocks_go_out_as_they_are_stored(served: Served) -> None:
    with served.connect() as client:
        stored = client.request("GET", PATH, Accept=routes.BLOCKS)
        asked = client.request("GET", PATH, Accept=routes.BLOCKS, Accept_Encoding="gzip, zstd")
        assert asked.body == stored.body and "content-encoding" not in asked.headers
        for method, path, body in (
            ("GET", PATH, None),
            ("POST", PATH.replace("messages", "queues/desks/receive"), b"{}"),
        ):
            refused = client.request(
                method, path, body, Accept=routes.BLOCKS, Accept_Encoding="gzip, identity;q=0"
            )
            assert refused.problem == "not-acceptable"


def test_errors_are_readable_by_everybody(served: Served) -> None:
    with served.connect() as client:
        answer = client.request("GET", "/nothing", Accept_Encoding="gzip, identity;q=0")
    assert answer.problem == "not-found" and "content-encoding" not in answer.headers


def test_a_large_answer_is_compressed_outside_of_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[bool, set[str]] = {True: set(), False: set()}
    held: list[int] = []

    def compress(coding: compression.Coding, body: Any) -> bytes:
        threads[len(body) > COMPRESS_INLINE_BYTES].add(threading.current_thread().name)
        held.append(served.service.fetching.bytes)
        return compression.compress(coding, body)

    monkeypatch.setattr(services, "compress", compress)
    large = fetch(served, Accept_Encoding="gzip")
    small = fetch(served, limit=50, Accept_Encoding="gzip")
    assert len(plain(large)) > COMPRESS_INLINE_BYTES >= len(plain(small))
    assert threads[False] == {"service"}
    assert all(name.startswith("tms-http") for name in threads[True]) and threads[True]
    assert held[0] >= 2 * len(plain(large))  # the compressed bytes count, and are released
    with Client(served.address) as client:
        client.request("GET", routes.LIVEZ)
    assert served.service.fetching.bytes == 0


def test_what_does_not_get_smaller_is_sent_as_it_is(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "compress", lambda coding, body: bytes(len(body)))
    answer = fetch(served, Accept_Encoding="gzip")
    assert "content-encoding" not in answer.headers
    assert len(answer.json["messages"]) == MESSAGES
