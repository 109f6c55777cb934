"""Publishing and fetching over HTTP: representations, positions, long polls, memory in flight."""

import io
import itertools
import json
import threading
import time

import polars
import pyarrow as pa
import pytest

from tests.http_kit import Client, Served, request, serving
from tests.waiting import until
from tms import block
from tms.api import bodies, routes
from tms.model.keys import Partitioner
from tms.model.message import NewBlock
from tms.server.fetch import GRANT_BYTES_MIN
from tms.server.service import RequestLimits

_topics = itertools.count()


@pytest.fixture
def topic(served: Served) -> str:
    return served.create(f"t{next(_topics)}", partitions=2) + "/messages"


def framed(partition: int, *values: bytes) -> bytes:
    return b"".join(bodies.frames([NewBlock(partition, block.encode(list(values)))]))


def fetched(client: Client, target: str) -> list[tuple[int, list[bytes | None]]]:
    """Partition and values of each block."""
    answer = client.request("GET", target, Accept=routes.BLOCKS)
    assert (answer.status, answer.headers["content-type"]) == (routes.OK, routes.BLOCKS)
    return [(s.partition, block.decode(s.block).values()) for s in bodies.unframe(answer.body)]


# -- publishing --------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["none", "written", "synced", None])
def test_blocks_are_stored_as_durably_as_asked(
    client: Client, topic: str, durability: str | None
) -> None:
    query = "" if durability is None else f"?durability={durability}"
    answer = client.request("POST", topic + query, framed(1, b"a", b"b"), media=routes.BLOCKS)
    [appended] = answer.json["appended"]
    assert (appended["partition"], appended["count"]) == (1, 2)
    assert appended["base_offset"] == (-1 if durability == "none" else 0)
    assert fetched(client, f"{topic}?start=earliest&wait_s=5") == [(1, [b"a", b"b"])]


def test_several_blocks_for_several_partitions_go_in_one_request(
    client: Client, topic: str
) -> None:
    body = framed(1, b"a") + framed(0, b"b") + framed(1, b"c")
    answer = client.request("POST", topic, body, media=routes.BLOCKS)
    places = [(a["partition"], a["base_offset"]) for a in answer.json["appended"]]
    assert places == [(1, 0), (0, 0), (1, 1)]
    assert fetched(client, topic) == [(0, [b"b"]), (1, [b"a"]), (1, [b"c"])]


def test_json_messages_come_back_as_they_were(client: Client, topic: str) -> None:
    sent = [
        {"value": "grüße", "key": "k", "headers": {"trace": "1"}, "partition": 0},
        {"json": {"a": [1.5, None, "x"]}, "partition": 0},
        {"value": "/w==", "key": "AA==", "encoding": "base64", "partition": 0},
        {"value": None, "partition": 0},
    ]
    answer = client.request("POST", topic, json.dumps({"messages": sent}).encode())
    places = answer.json["messages"]
    assert [place["offset"] for place in places] == [0, 1, 2, 3]
    found = client.request("GET", topic).json["messages"]
    assert [each["id"] for each in found] == [place["id"] for place in places]
    shown = [(each["key"], each["value"], each["encoding"], each["headers"]) for each in found]
    assert shown == [
        ("k", "grüße", "utf-8", {"trace": "1"}),
        (None, '{"a": [1.5, null, "x"]}', "utf-8", {}),
        ("AA==", "/w==", "base64", {}),
        (None, None, "utf-8", {}),
    ]


@pytest.mark.parametrize("partitioner", Partitioner)
def test_the_partitioner_of_a_topic_places_keys_in_json_and_cannot_be_changed(
    client: Client, partitioner: Partitioner
) -> None:
    topic = f"/v2/namespaces/default/topics/t{next(_topics)}"
    made = client.request(
        "PUT", topic, b'{"partitions":7,"partitioner":"%s"}' % partitioner.encode()
    )
    assert (made.status, made.json["settings"]["partitioner"]) == (routes.CREATED, partitioner)
    keys = [f"key {number}" for number in range(20)]
    body = json.dumps({"messages": [{"value": "v", "key": key} for key in keys]}).encode()
    wanted = [partitioner.partition_of(key.encode(), 7) for key in keys]
    for path in ("messages", "delayed?delay_s=3600"):
        answer = client.request("POST", f"{topic}/{path}", body)
        assert [place["partition"] for place in answer.json["messages"]] == wanted
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "partitionkey": keys[0]}
    media = "application/cloudevents+json"
    answer = client.request("POST", f"{topic}/messages", json.dumps(event).encode(), media=media)
    assert answer.json["messages"][0]["partition"] == wanted[0]
    (other,) = {*Partitioner} - {partitioner}
    answer = client.request("PATCH", topic, b'{"partitioner":"%s"}' % other.encode())
    assert answer.status == 409 and f"cannot become {other}" in answer.json["detail"]
    answer = client.request("PUT", topic, b'{"partitioner":"md5"}')
    assert answer.status == 422 and "partitioner" in answer.json["detail"]


def test_messages_without_key_spread_over_partitions_and_with_key_do_not(
    client: Client, topic: str
) -> None:
    def partition(message: dict[str, str]) -> int:
        answer = client.request("POST", topic, json.dumps({"messages": [message]}).encode())
        return int(answer.json["messages"][0]["partition"])

    assert {partition({"value": "a"}) for _ in range(4)} == {0, 1}
    assert len({partition({"value": "a", "key": "k"}) for _ in range(4)}) == 1


def test_a_topic_that_is_not_there_is_named(client: Client) -> None:
    missing = "/v2/namespaces/default/topics/missing/messages"
    body = json.dumps({"messages": [{"value": "a"}]}).encode()
    for answer in (
        client.request("POST", missing, framed(0, b"a"), media=routes.BLOCKS),
        client.request("POST", missing, body),
        client.request("GET", missing),
        client.request("GET", f"{missing}?start=0:latest&wait_s=0.1"),
    ):
        assert (answer.status, answer.problem) == (404, "topic-not-found")


# -- fetching ----------------------------------------------------------------------------------


def test_reading_on_with_next_delivers_everything_once(client: Client, topic: str) -> None:
    for number in range(20):
        client.request("POST", topic, framed(number % 2, b"%d" % number), media=routes.BLOCKS)
    for query in ("limit=3", "bytes_max=1"):
        seen: list[str] = []
        position = "earliest"
        for _ in range(30):
            answer = client.request("GET", f"{topic}?start={position}&{query}")
            seen += [message["value"] for message in answer.json["messages"]]
            position = answer.json["next"]
            assert position == answer.headers["tms-next"]
        assert sorted(map(int, seen)) == list(range(20))
        assert [n for n in map(int, seen) if n % 2] == list(range(1, 20, 2))
        assert answer.headers["tms-end"] == "0:10,1:10"
        assert answer.json["ends"] == {"0": 10, "1": 10}


def test_one_partition_can_be_asked_for_alone(client: Client, topic: str) -> None:
    body = framed(0, b"a") + framed(1, b"b", b"c")
    client.request("POST", topic, body, media=routes.BLOCKS)
    assert fetched(client, f"{topic}?start=1:earliest") == [(1, [b"b", b"c"])]
    found = client.request("GET", f"{topic}?start=1:offset:1,0:latest").json["messages"]
    assert [message["value"] for message in found] == ["c"]
    answer = client.request("GET", f"{topic}?start=2:earliest")
    assert (answer.status, answer.problem) == (404, "partition-not-found")


def test_many_small_and_large_blocks_arrive_whole(client: Client, topic: str) -> None:
    sent = [bytes([n]) * (100 if n % 3 else 40_000) for n in range(30)]
    body = b"".join(framed(0, value) for value in sent)
    client.request("POST", topic, body, media=routes.BLOCKS)
    assert [value for _, [value] in fetched(client, f"{topic}?bytes_max=8000000")] == sent


def test_an_arrow_stream_opens_in_pyarrow_and_polars(client: Client, topic: str) -> None:
    client.request("POST", topic, framed(0, b"a", b"b") + framed(1, b"c"), media=routes.BLOCKS)
    answer = client.request("GET", topic, Accept=routes.ARROW_STREAM)
    assert answer.headers["content-type"] == routes.ARROW_STREAM
    table = pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()
    assert table["value"].to_pylist() == [b"a", b"b", b"c"]
    frame = polars.read_ipc_stream(answer.body)
    assert frame["offset"].to_list() == [0, 1, 0]
    following = answer.headers["tms-next"]
    again = client.request("GET", f"{topic}?start={following}", Accept=routes.ARROW_STREAM)
    assert pa.ipc.open_stream(io.BytesIO(again.body)).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", routes.JSON),
        ("application/*", routes.JSON),
        (f"{routes.BLOCKS};q=0.5, application/json;q=0.4", routes.BLOCKS),
        (f"text/html, {routes.ARROW_STREAM}", routes.ARROW_STREAM),
        (f"*/*;q=0.1, {routes.BLOCKS}", routes.BLOCKS),
    ],
)
def test_the_accept_header_chooses(client: Client, topic: str, accept: str, media: str) -> None:
    assert client.request("GET", topic, Accept=accept).headers["content-type"] == media


def test_a_limit_of_messages_is_not_for_blocks(client: Client, topic: str) -> None:
    answer = client.request("GET", f"{topic}?limit=5", Accept=routes.BLOCKS)
    assert (answer.status, answer.problem) == (422, "invalid")


# -- long polls --------------------------------------------------------------------------------


def _poll(served: Served, client: Client, topic: str) -> None:
    """Begin a long poll."""
    client.send(request("GET", f"{topic}?start=latest&wait_s=30"))
    until(lambda: served.service.metrics.long_polls)


def test_a_long_poll_ends_with_the_first_message(
    served: Served, client: Client, topic: str
) -> None:
    _poll(served, client, topic)
    with served.connect() as other:
        other.request("POST", topic, framed(1, b"now"), media=routes.BLOCKS)
    assert [m["value"] for m in client.answer().json["messages"]] == ["now"]


def test_a_long_poll_ends_with_its_time(client: Client, topic: str) -> None:
    started = time.monotonic()
    answer = client.request("GET", f"{topic}?start=latest&wait_s=0.3")
    assert answer.json["messages"] == []
    assert time.monotonic() - started >= 0.29


def test_what_comes_between_two_polls_is_not_missed(client: Client, topic: str) -> None:
    position = client.request("GET", f"{topic}?start=latest").headers["tms-next"]
    client.request("POST", topic, framed(0, b"between"), media=routes.BLOCKS)
    assert fetched(client, f"{topic}?start={position}&wait_s=60") == [(0, [b"between"])]


def test_many_wait_for_one_message_without_a_thread_each(served: Served, topic: str) -> None:
    threads = threading.active_count()
    clients = [served.connect() for _ in range(100)]
    for client in clients:
        client.send(request("GET", f"{topic}?start=latest&wait_s=30"))
    until(lambda: served.service.metrics.long_polls >= len(clients))
    assert threading.active_count() <= threads + served.service.limits.threads
    with served.connect() as other:
        other.request("POST", topic, framed(0, b"all"), media=routes.BLOCKS)
    for client in clients:
        assert client.answer().json["messages"][0]["value"] == "all"
        client.socket.close()


def test_a_topic_deleted_during_a_long_poll_ends_it(
    served: Served, client: Client, topic: str
) -> None:
    _poll(served, client, topic)
    with served.connect() as other:
        answer = other.request("DELETE", topic.removesuffix("/messages"))
        assert answer.status == routes.NO_CONTENT
    assert client.answer().problem == "topic-not-found"


def test_a_fetch_that_asks_for_more_than_one_returns_gets_that_much() -> None:
    """Clients choose the size; a service with a small bound serves all of them."""
    with serving(limits=RequestLimits(fetch_bytes_max=3_000)) as served, served.connect() as client:
        topic = served.create("a") + "/messages"
        for _ in range(10):
            body = framed(0, bytes(1_000))
            assert client.request("POST", topic, body, media=routes.BLOCKS).status == routes.OK
        for query in ("", "?bytes_max=4194304"):
            answer = client.request("GET", topic + query, Accept=routes.BLOCKS)
            assert answer.status == routes.OK
            assert 1_000 < len(answer.body) <= 3_000


# -- memory in flight --------------------------------------------------------------------------


def test_bodies_beyond_the_bound_are_refused_until_others_are_done() -> None:
    limits = RequestLimits(body_bytes_max=1 << 20, publish_bytes_in_flight_max=3 << 20)
    with serving(limits=limits) as served:
        topic = served.create("a") + "/messages"
        body = framed(0, bytes(900_000))
        sent = request("POST", topic, body, media=routes.BLOCKS)
        waiting = [served.connect() for _ in range(3)]
        for client in waiting:
            client.send(sent[:-1])
        with served.connect() as client:
            until(lambda: served.service.publishing.bytes >= 3 * len(body))
            answer = client.request("POST", topic, body, media=routes.BLOCKS)
            assert (answer.status, answer.problem) == (429, "overloaded")
            assert answer.headers["retry-after"]
            for other in waiting:
                other.send(sent[-1:])
                assert other.answer().status == routes.OK
            answer = client.request("POST", topic, body, media=routes.BLOCKS)
            assert answer.status == routes.OK
        assert served.service.publishing.bytes == 0


def test_answers_get_smaller_when_memory_is_short(client: Client, served: Served) -> None:
    topic = served.create("large") + "/messages"
    body = b"".join(framed(0, bytes(30_000)) for _ in range(100))
    client.request("POST", topic, body, media=routes.BLOCKS)
    target = f"{topic}?bytes_max=8000000"
    assert len(fetched(client, target)) == 100
    fetching = served.service.fetching
    fetching.bytes += fetching.bytes_max
    try:
        assert len(fetched(client, target)) == GRANT_BYTES_MIN // 30_000
    finally:
        fetching.bytes -= fetching.bytes_max


@pytest.mark.parametrize("accept", [routes.JSON, routes.ARROW_STREAM, routes.CLOUD_EVENTS])
def test_an_answer_of_messages_gets_smaller_beside_another_one(
    client: Client, served: Served, accept: str
) -> None:
    """It is not refused: each takes at most half of the free memory, unpacked."""
    name = f"beside-{accept.rpartition('/')[2].partition('+')[0]}".replace(".", "-")
    topic = served.create(name) + "/messages"
    body = b"".join(framed(0, bytes(500_000)) for _ in range(8))
    client.request("POST", topic, body, media=routes.BLOCKS)
    fetching = served.service.fetching
    fetching.bytes += fetching.bytes_max // 2
    try:
        answer = client.request("GET", f"{topic}?bytes_max=4194304", Accept=accept)
        assert answer.status == routes.OK, answer
    finally:
        fetching.bytes -= fetching.bytes_max // 2


def test_no_memory_is_lost_however_requests_end(client: Client, served: Served, topic: str) -> None:
    client.request("POST", topic, framed(0, b"a"), media=routes.BLOCKS)
    client.request("POST", topic, b"nonsense", media=routes.BLOCKS)
    client.request("POST", topic, b"{")
    client.request("GET", f"{topic}?start=0:offset:99")
    client.request("GET", topic, Accept=routes.ARROW_STREAM)
    with served.connect() as leaving:
        leaving.send(request("POST", topic, bytes(1_000), media=routes.BLOCKS)[:-1])
    until(lambda: not served.service.publishing.bytes and not served.service.fetching.bytes)
    assert client.request("GET", "/livez").status == routes.OK


def test_one_large_request_alone_is_never_refused_for_memory() -> None:
    limits = RequestLimits(
        body_bytes_max=2 << 20,
        publish_bytes_in_flight_max=2 << 20,
        fetch_bytes_in_flight_max=1 << 20,
    )
    with serving(limits=limits) as served, served.connect() as client:
        topic = served.create("a") + "/messages"
        values = [{"value": "x" * 900_000}, {"value": "y" * 900_000}]
        body = json.dumps({"messages": values}).encode()
        assert client.request("POST", topic, body).status == routes.OK
        for accept in (routes.JSON, routes.ARROW_STREAM, routes.BLOCKS):
            answer = client.request("GET", f"{topic}?bytes_max=8000000", Accept=accept)
            assert answer.status == routes.OK
            assert len(answer.body) >= (1_800_000 if accept == routes.BLOCKS else 900_000)
