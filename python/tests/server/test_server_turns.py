"""Large requests are unpacked one at a time, outside of the event loop, and the memory of a failed
request is free immediately."""

import gc
import json
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http_kit import Answer, Served, request, serving
from tms import block
from tms.api import bodies, cloud_events, routes
from tms.block import Compression, checking_bytes
from tms.model.message import NOTHING, NewBlock
from tms.model.preconditions import expected_text
from tms.server import new_messages, operations
from tms.server.fetch import FILTERING_MAX
from tms.server.service import QUICK_BLOCKS_MAX, QUICK_BYTES_MAX, are_quick
from tms.topics import publishing

CLIENTS = 6
TOPIC = "/v2/namespaces/default/topics/t"
LOOP = "service"  # the thread of the event loop
LARGE = 300_000  # bytes; a few of them are too many for the event loop


def packed(count: int, messages: int = 1, size: int = LARGE) -> bytes:
    """A body of `count` compressed blocks."""
    made = bytes(block.encode([bytes(size)] * messages, compression=Compression.ZSTD))
    return b"".join(bodies.frames([NewBlock(0, made)] * count))


def commit(head: dict[str, object], blocks: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text + blocks


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as running:
        running.create("t", durability="written")
        yield running


def at_once(served: Served, raw: bytes) -> list[Answer]:
    def ask(_: int) -> Answer:
        with served.connect() as client:
            client.send(raw)
            return client.answer()

    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(ask, range(CLIENTS)))


class Crowding:
    """The highest number of simultaneous calls of a function, and their threads."""

    def __init__(self) -> None:
        self.most = 0
        self.threads: set[str] = set()
        self._now = 0
        self._lock = threading.Lock()

    def around(self, work: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
                self.threads.add(threading.current_thread().name.partition("_")[0])
            try:
                threading.Event().wait(0.02)  # so that other calls would come in
                return work(*args, **kwargs)
            finally:
                with self._lock:
                    self._now -= 1

        return counted


BLOCKS = routes.BLOCKS
MANY = QUICK_BLOCKS_MAX + 1
PLAIN = b"".join(bodies.frames([NewBlock(0, bytes(block.encode([b"x"])))] * MANY))
HEAVY = {
    "few large blocks": (f"{TOPIC}/messages", BLOCKS, packed(4)),
    "many blocks": (f"{TOPIC}/messages", BLOCKS, PLAIN),
    "an expectation": (
        f"{TOPIC}/messages?expect={expected_text(NOTHING)}",
        BLOCKS,
        packed(1, messages=4),
    ),
    "a commit": (
        "/v2/transactions/new/commit",
        routes.COMMIT,
        commit({"topics": [{"topic": "default:t", "blocks": 4}]}, packed(4)),
    ),
    "delayed messages": (f"{TOPIC}/delayed?delay_s=3600", BLOCKS, packed(4)),
}


@pytest.mark.parametrize("what", HEAVY)
def test_large_blocks_are_checked_one_request_at_a_time_by_a_thread(
    what: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowding = Crowding()
    monkeypatch.setattr(publishing, "check", crowding.around(publishing.check))
    path, media, body = HEAVY[what]
    answers = at_once(served, request("POST", path, body, media=media))
    assert {answer.status for answer in answers} <= {200, 409}, answers
    assert crowding.most == 1 and LOOP not in crowding.threads, crowding.threads


def test_staged_blocks_that_are_large_are_checked_one_request_at_a_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.connect() as client:
        id = client.request("POST", "/v2/transactions", b"{}").json["transaction_id"]
    crowding = Crowding()
    monkeypatch.setattr(publishing, "check", crowding.around(publishing.check))
    path = f"{TOPIC}/staged?transaction={id}"
    answers = at_once(served, request("POST", path, packed(4), media=BLOCKS))
    assert {answer.status for answer in answers} == {204}
    assert crowding.most == 1 and LOOP not in crowding.threads


@pytest.mark.parametrize("compression", [*Compression])
def test_a_small_publish_is_checked_by_the_event_loop_itself(
    compression: Compression, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowding = Crowding()
    monkeypatch.setattr(publishing, "check", crowding.around(publishing.check))
    made = bytes(block.encode([b"x" * 100] * 10, compression=compression))
    body = b"".join(bodies.frames([NewBlock(0, made)]))
    answers = at_once(served, request("POST", f"{TOPIC}/messages", body, media=BLOCKS))
    assert {answer.status for answer in answers} == {200}
    assert crowding.threads == {LOOP}


MESSAGES = {"messages": [{"value": "x" * 40_000}]}
EVENT = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "data": "x" * 40_000}


@pytest.mark.parametrize(
    ("path", "media", "body", "module"),
    [
        ("messages", routes.JSON, MESSAGES, new_messages),
        ("messages", routes.CLOUD_EVENT, EVENT, cloud_events),
        ("messages", routes.CLOUD_EVENTS, [EVENT], cloud_events),
        ("delayed?delay_s=3600", routes.JSON, MESSAGES, new_messages),
        ("delayed?delay_s=3600", routes.CLOUD_EVENTS, [EVENT], cloud_events),
        (
            "queues/q/ack",
            routes.JSON,
            {"tokens": [f"0.{n:x}.1.1" for n in range(4_000)]},
            operations,
        ),
    ],
    ids=["publish", "event", "events", "delayed", "delayed events", "ack"],
)
def test_large_json_is_read_one_request_at_a_time(
    path: str,
    media: str,
    body: object,
    module: Any,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served.connect() as client:
        assert client.request("PUT", f"{TOPIC}/queues/q", b"{}").status == 201
    crowding = Crowding()
    monkeypatch.setattr(module, "decode_strict", crowding.around(module.decode_strict))
    sent = request("POST", f"{TOPIC}/{path}", json.dumps(body).encode(), media=media)
    answers = at_once(served, sent)
    assert {answer.status for answer in answers} == {200}
    assert crowding.most == 1 and LOOP not in crowding.threads


@pytest.mark.parametrize(
    ("method", "path", "body", "name", "most"),
    [
        ("POST", f"{TOPIC}/erase", b'{"key":"k"}', "erase", 1),
        ("GET", f"{TOPIC}/messages?where=key%20%3D%20k", None, "fetch", FILTERING_MAX),
    ],
    ids=["erasing", "filtering"],
)
def test_what_looks_at_many_messages_leaves_threads_to_others(
    method: str,
    path: str,
    body: bytes | None,
    name: str,
    most: int,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowding = Crowding()
    engine = served.service.engine
    monkeypatch.setattr(engine, name, crowding.around(getattr(engine, name)))
    answers = at_once(served, request(method, path, body))
    assert {answer.status for answer in answers} == {200}
    assert crowding.most <= most < served.service.limits.threads
    assert LOOP not in crowding.threads


def test_delayed_messages_are_listed_by_what_they_are_once_unpacked(served: Served) -> None:
    with served.connect() as client:
        for _ in range(4):
            body = packed(1, messages=3, size=3 << 20)
            answer = client.request("POST", f"{TOPIC}/delayed?delay_s=3600", body, media=BLOCKS)
            assert answer.status == 200, answer
        listed = client.request("GET", f"{TOPIC}/delayed?limit=1000").json
        assert listed["waiting"] == 12 and len(listed["messages"]) == 3
        after = listed["messages"][-1]["id"]
        rest = client.request("GET", f"{TOPIC}/delayed?limit=1000&after={after}").json
        assert len(rest["messages"]) == 3 and rest["messages"][0]["id"] > after


FAILING = {
    "a commit that expects what is not so": (
        "/v2/transactions/new/commit",
        routes.COMMIT,
        commit(
            {
                "positions": [
                    {
                        "group": f"g{n}",
                        "topic": "default:t",
                        "partition": 0,
                        "position": "latest",
                        "expected": "earliest",
                    }
                    for n in range(5_000)
                ]
            }
        ),
    ),
    "tokens of no queue": (
        f"{TOPIC}/queues/none/ack",
        routes.JSON,
        json.dumps({"tokens": [f"0.{n:x}.1.1" for n in range(20_000)]}).encode(),
    ),
    "messages that are wrong": (
        f"{TOPIC}/messages",
        routes.JSON,
        json.dumps({"messages": [{"value": "x"}] * 9_000 + [{"value": 1}]}).encode(),
    ),
    "CDAP's wrong publish": (
        "/v1/namespaces/default/topics/none/publish",
        "avro/binary",
        b"\x02\xa0\x8d\x06" + b"\x00" * 50_000 + b"\x00",
    ),
}


@pytest.mark.parametrize("what", FAILING)
def test_what_a_failed_request_held_needs_no_garbage_collector(what: str, served: Served) -> None:
    path, media, body = FAILING[what]
    raw = request("POST", path, body, media=media)
    at_once(served, raw)  # caches are filled then
    gc.collect()
    gc.disable()
    try:
        answers = at_once(served, raw)
        assert all(answer.status in (400, 404, 409, 422) for answer in answers), answers
        assert gc.collect() < 5_000
    finally:
        gc.enable()


def test_a_block_says_what_checking_it_takes_before_anything_is_taken() -> None:
    lone = bytes(block.encode([bytes(60_000)]))
    assert checking_bytes(lone) == 0
    values = [bytes(1_000)] * 2_000
    assert checking_bytes(bytes(block.encode(values))) == 0
    for codec in (Compression.ZSTD, Compression.LZ4):
        made = bytes(block.encode(values, compression=codec))
        assert 2_000_000 < checking_bytes(made) < 2_100_000
        assert not are_quick([NewBlock(0, made)])
    headed = bytes(block.encode([b""] * 50, None, [{f"h{n}": b"" for n in range(1_000)}] * 50))
    assert checking_bytes(headed) > QUICK_BYTES_MAX
    for broken in (b"", lone[:60], lone[:-1], bytes(500)):
        assert checking_bytes(broken) == 0
    assert are_quick([NewBlock(0, lone)] * QUICK_BLOCKS_MAX)
    assert not are_quick([NewBlock(0, lone)] * MANY)
