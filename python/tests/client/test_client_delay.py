"""The contract of delayed messages on engines in this process and through HTTP; additions of HTTP
and asyncio."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tms.aio
from tests.clocks import ManualClock
from tests.contracts.delay_contract import DelayContract
from tests.http_kit import Client, serving
from tests.waiting import until
from tests.worlds import EmbeddedWorld, HttpWorld, MemoryWorld, World
from tms.api import routes
from tms.api.bodies import frames
from tms.block import encode
from tms.errors import StorageUnavailable
from tms.model.delayed import DelayedId
from tms.model.message import NewBlock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestShared(DelayContract):
    @pytest.fixture
    def world(self, clock: ManualClock) -> Iterator[World]:
        with closing(MemoryWorld(clock)) as world:
            yield world


class TestEmbedded(DelayContract):
    @pytest.fixture
    def world(self, clock: ManualClock, tmp_path: Path) -> Iterator[World]:
        with closing(EmbeddedWorld(clock, tmp_path)) as world:
            yield world


class TestHttp(DelayContract):
    @pytest.fixture
    def world(self, clock: ManualClock, tmp_path: Path) -> Iterator[World]:
        with closing(HttpWorld(clock, tmp_path)) as world:
            yield world


def test_a_publish_whose_answer_is_lost_is_stored_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = MemoryWorld(clock)
    world.bus.create_topic("orders")
    publish = world.engine.delayed.publish
    lost = [True, True]

    def loses(*args: object, **more: object) -> object:
        found = publish(*args, **more)  # type: ignore[arg-type]
        if lost:
            lost.pop()
            raise StorageUnavailable("The answer is lost.")
        return found

    monkeypatch.setattr(world.engine.delayed, "publish", loses)
    world.bus.publish_later("orders", b"1", delay=1)
    assert world.bus.describe_delayed("orders").waiting == 1 and not lost


@pytest.mark.usefixtures("event_loop")
def test_the_asyncio_bus_does_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with tms.aio.open(tmp_path / "data") as bus:
            await bus.create_topic("orders")
            kept = await bus.publish_later("orders", b"1", delay=3_600)
            gone, _ = await bus.publish_later_many("orders", [b"2", b"3"], delay=3_600)
            assert await bus.cancel_delayed("orders", gone)
            assert (await bus.describe_delayed("orders")).waiting == 2
            assert [one.value async for one in bus.list_delayed("orders")] == [b"1", b"3"]
            await bus.cancel_delayed("orders", kept)
            await bus.publish_later("orders", b"now", delay=0)
            async for message in bus.consumer("orders"):
                assert message.value == b"now"
                break

    asyncio.run(run())


# HTTP by hand


PATH = "/v2/namespaces/default/topics/orders/delayed"


@pytest.fixture
def client() -> Iterator[Client]:
    """A connection to a service with a topic."""
    with serving() as served:
        served.create("orders", partitions=2)
        with Client(served.address) as client:
            yield client


def body(*values: str) -> bytes:
    return json.dumps({"messages": [{"value": value} for value in values]}).encode()


def waiting(client: Client, query: str = "") -> Any:
    return client.request("GET", PATH + query).json


def test_messages_in_json_get_ids_and_wait(client: Client) -> None:
    answer = client.request("POST", PATH + "?delay_s=3600", body("1", "2"))
    assert answer.status == 200
    ids = [DelayedId.parse(one["id"]) for one in answer.json["messages"]]
    assert [one["deliver_at_ms"] for one in answer.json["messages"]] == [id.due_ms for id in ids]
    found = waiting(client)
    assert (found["waiting"], found["next_due_ms"]) == (2, ids[0].due_ms)
    assert [one["value"] for one in found["messages"]] == ["1", "2"]
    assert waiting(client, "?limit=0")["messages"] == []
    assert [one["value"] for one in waiting(client, f"?after={ids[0]}")["messages"]] == ["2"]
    for _ in range(2):
        assert client.request("DELETE", f"{PATH}/{ids[0]}").json == {"cancelled": True}
    assert client.request("DELETE", f"{PATH}/1-1").json == {"cancelled": False}
    assert waiting(client)["waiting"] == 1


def test_a_request_with_a_key_is_stored_once(client: Client) -> None:
    at = "?deliver_at_ms=9000000000000"
    sent = [
        client.request("POST", PATH + at, body("1", "2"), idempotency_key="k") for _ in range(3)
    ]
    assert sent[0].json == sent[1].json == sent[2].json
    assert waiting(client)["waiting"] == 2
    other = client.request("POST", PATH + at, body("other"), idempotency_key="k")
    assert (other.status, other.problem) == (422, "idempotency-key-reused")


def test_blocks_are_taken_as_they_are(client: Client) -> None:
    blocks = b"".join(frames([NewBlock(1, encode([b"1", b"2"]))]))
    path = PATH + "?delay_s=60&durability=written"
    answer = client.request("POST", path, blocks, media=routes.BLOCKS)
    (one,) = answer.json["deferred"]
    assert (one["partition"], one["count"]) == (1, 2)
    assert [found["partition"] for found in waiting(client)["messages"]] == [1, 1]


def test_what_is_due_is_delivered_by_the_service() -> None:
    with serving() as served:
        served.create("orders")
        served.service.engine.start()
        client = served.connect()
        client.request("POST", PATH + "?delay_s=0.001", body("1"))
        path = "/v2/namespaces/default/topics/orders/messages?start=earliest&wait_s=10"
        found = client.request("GET", path, accept=routes.JSON).json

        def counted() -> bool:  # a moment after it is in the log
            metrics = client.request("GET", "/metrics", accept="*/*").body.decode()
            return all(line in metrics for line in DELIVERED)

        until(counted)
    assert [one["value"] for one in found["messages"]] == ["1"]


DELIVERED = (
    "tms_delayed_delivered_total 1.0",
    "tms_delayed_waiting 0.0",
    "tms_delayed_lateness_seconds_count 1.0",
)


@pytest.mark.parametrize(
    ("query", "status", "problem"),
    [
        ("", 422, "invalid"),
        ("?delay_s=0.001&deliver_at_ms=1", 422, "invalid"),
        ("?delay_ms=-1", 422, "invalid"),
        ("?delay_s=0.001.5", 422, "invalid"),
        ("?delay_s=0.001s", 422, "invalid"),
        ("?deliver_at_ms=253402300800000", 422, "invalid"),
        ("?delay_s=2.53402e+11", 422, "invalid"),
        ("?delay=1", 422, "invalid"),
        ("?delay_s=0.001&durability=maybe", 422, "invalid"),
    ],
)
def test_a_wrong_time_is_refused(client: Client, query: str, status: int, problem: str) -> None:
    answer = client.request("POST", PATH + query, body("1"))
    assert (answer.status, answer.problem) == (status, problem)


def test_a_wrong_request_is_refused_and_stores_nothing(client: Client) -> None:
    here = PATH + "?delay_s=60"
    for sent, media, problem in (
        (b"{}", routes.JSON, "invalid"),
        (b"{", routes.JSON, "bad-json"),
        (b'{"messages": []}', routes.JSON, "invalid"),
        (
            b'{"messages": [{"value": "1"}, {"value": "2", "partition": 2}]}',
            routes.JSON,
            "partition-not-found",
        ),
        (b"TMSB", routes.BLOCKS, "malformed"),
        (b"x", "text/plain", "unsupported-media-type"),
    ):
        assert client.request("POST", here, sent, media=media).problem == problem
    assert client.request("POST", here, body("1"), idempotency_key="\t").problem == "invalid"
    none = PATH.replace("orders", "none")
    assert client.request("POST", none + "?delay_s=0.001", body("1")).problem == "topic-not-found"
    assert client.request("GET", none).problem == "topic-not-found"
    assert client.request("DELETE", none + "/1-1").problem == "topic-not-found"
    for path in ("/x", "/1-", "/1-1x", "/"):
        assert client.request("DELETE", PATH + path).status in (422, 400)
    assert client.request("PUT", PATH, b"{}").problem == "method-not-allowed"
    assert client.request("GET", PATH + "?limit=1001").problem == "invalid"
    assert client.request("GET", PATH + "?after=x").problem == "invalid"
    system = "/v2/namespaces/system/topics/_transactions/delayed"
    assert client.request("POST", system + "?delay_s=0.001", body("1")).problem == "forbidden"
    assert waiting(client)["waiting"] == 0
