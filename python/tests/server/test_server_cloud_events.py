"""CloudEvents over HTTP, as the official SDK for Python sends and reads them."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.v1.event import CloudEvent

from tests.http_kit import Answer, Client, Served, request, serving
from tms.api import routes
from tms.api.cloud_events import read_one
from tms.errors import Invalid
from tms.model.keys import Partitioner
from tms.model.topic import TopicName, TopicSettings
from tms.server.service import AccessLimits, NetworkOptions, RequestLimits

_topics = itertools.count()
ATTRIBUTES = {
    "id": "A234-1234-1234",
    "source": "https://example.com/shop",
    "type": "com.example.order",
    "subject": 'the "blue" one, 100 % 😀',
    "partitionkey": "ann",
}
DATA: list[tuple[str, Any]] = [
    ("application/json", {"total": 12, "items": ["a", "b"]}),
    ("application/vnd.shop+json", {"total": 12}),
    ("application/xml", "<order>ü</order>"),
    ("application/octet-stream", b"\x00\xff"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(limits=RequestLimits(body_bytes_max=1 << 16)) as running:
        yield running


@pytest.fixture
def path(served: Served) -> str:
    return served.create(f"events{next(_topics)}", partitions=3)


def event_of(content_type: str, data: Any, **more: Any) -> CloudEvent:
    return CloudEvent({**ATTRIBUTES, "datacontenttype": content_type, **more}, data)


def post(client: Client, target: str, sent: HTTPMessage, **more: str) -> Answer:
    """Send an event that the SDK has made."""
    headers = {name.replace("-", "_"): text for name, text in sent.headers.items()}
    media = headers.pop("content_type", None)
    return client.request("POST", target, sent.body, media=media, **headers, **more)


def batch_of(*events: CloudEvent) -> HTTPMessage:
    bodies = [to_structured_event(event).body for event in events]
    body = b"[" + b",".join(bodies) + b"]"
    return HTTPMessage({"content-type": routes.CLOUD_EVENTS}, body)


def read(client: Client, path: str, query: str = "") -> list[CloudEvent]:
    """All events of a topic, as the SDK reads them."""
    answer = client.request("GET", f"{path}/messages{query}", Accept=routes.CLOUD_EVENTS)
    assert (answer.status, answer.headers["content-type"]) == (routes.OK, routes.CLOUD_EVENTS)
    events = []
    for event in answer.json:
        message = HTTPMessage({"content-type": routes.CLOUD_EVENT}, json.dumps(event).encode())
        read = from_structured_event(message)
        assert isinstance(read, CloudEvent)
        events.append(read)
    return events


def same(event: CloudEvent, found: CloudEvent) -> bool:
    return (event.get_attributes(), event.get_data()) == (
        found.get_attributes(),
        found.get_data(),
    )


MODES = [to_structured_event, to_binary_event, batch_of]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("content_type", "data"), DATA)
def test_what_the_sdk_sends_it_reads_again(
    client: Client, path: str, mode: Any, content_type: str, data: Any
) -> None:
    event = event_of(content_type, data, comexampleextension="value")
    answer = post(client, f"{path}/messages", mode(event))
    assert answer.status == routes.OK, answer.body
    [place] = answer.json["messages"]
    [found] = read(client, path)
    assert same(event, found)
    [message] = client.request("GET", f"{path}/messages").json["messages"]
    assert (message["id"], message["key"] in ("ann", "YW5u")) == (place["id"], True)


@pytest.mark.parametrize("mode", MODES)
def test_an_event_without_data_comes_back_without(client: Client, path: str, mode: Any) -> None:
    event = CloudEvent(dict(ATTRIBUTES))
    assert post(client, f"{path}/messages", mode(event)).status == routes.OK
    [found] = read(client, path)
    assert same(event, found)
    [message] = client.request("GET", f"{path}/messages").json["messages"]
    assert message["value"] is None


def test_the_key_of_the_partition_decides_where_events_go(client: Client, path: str) -> None:
    events = [event_of("text/plain", str(n), id=str(n), partitionkey=f"k{n % 4}") for n in range(8)]
    answer = post(client, f"{path}/messages", batch_of(*events))
    partitions = [place["partition"] for place in answer.json["messages"]]
    assert partitions[:4] == partitions[4:]
    assert len({*partitions}) > 1
    assert sorted(event.get_id() for event in read(client, path)) == sorted(map(str, range(8)))


def test_a_batch_is_stored_whole_or_not_at_all(client: Client, path: str) -> None:
    good = to_structured_event(event_of("text/plain", "x")).body
    body = b"[" + good + b',{"specversion": "1.0", "id": "2", "source": "/x"}]'
    answer = client.request("POST", f"{path}/messages", body, media=routes.CLOUD_EVENTS)
    assert (answer.status, answer.problem) == (422, "invalid")
    assert answer.json["details"] == {"index": 1, "field": "type"}
    assert read(client, path) == []


def test_an_empty_batch_stores_nothing(client: Client, path: str) -> None:
    answer = client.request("POST", f"{path}/messages", b"[]", media=routes.CLOUD_EVENTS)
    assert (answer.status, answer.json) == (routes.OK, {"messages": []})
    later = f"{path}/delayed?delay_s=1"
    answer = client.request("POST", later, b"[]", media=routes.CLOUD_EVENTS)
    assert (answer.status, answer.json) == (routes.OK, {"messages": []})


def test_a_structured_event_may_have_its_headers_too(client: Client, path: str) -> None:
    event = event_of("text/plain", "x")
    both = HTTPMessage(
        {**to_binary_event(event).headers, **to_structured_event(event).headers},
        to_structured_event(event).body,
    )
    assert post(client, f"{path}/messages", both).status == routes.OK
    assert same(event, read(client, path)[0])


def test_a_binary_event_that_lacks_an_attribute_says_which(client: Client, path: str) -> None:
    answer = client.request(
        "POST", f"{path}/messages", b"{}", ce_specversion="1.0", ce_id="1", ce_type="t"
    )
    assert (answer.status, answer.json["details"]) == (422, {"field": "source"})


def test_a_format_that_is_not_read_is_refused(client: Client, path: str) -> None:
    for media in ("application/cloudevents+avro", "application/cloudevents"):
        answer = client.request("POST", f"{path}/messages", b"x", media=media, ce_id="1")
        assert (answer.status, answer.problem) == (415, "unsupported-media-type")
        assert routes.CLOUD_EVENTS in answer.json["detail"]
    answer = client.request("GET", f"{path}/messages", Accept=routes.CLOUD_EVENT)
    assert answer.status == 406


# -- repetitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_event_that_is_sent_twice_is_stored_twice(client: Client, path: str, mode: Any) -> None:
    sent = mode(event_of("text/plain", "x"))
    ids = {post(client, f"{path}/messages", sent).json["messages"][0]["id"] for _ in range(2)}
    assert len(ids) == 2
    first, second = read(client, path)
    assert (first.get_source(), first.get_id()) == (second.get_source(), second.get_id())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["messages", "delayed?delay_s=60"])
def test_under_a_key_it_is_stored_once(client: Client, path: str, mode: Any, way: str) -> None:
    sent = mode(event_of("text/plain", "x"))
    ids = {
        post(client, f"{path}/{way}", sent, Idempotency_Key="a 1").json["messages"][0]["id"]
        for _ in range(2)
    }
    assert len(ids) == 1


def test_a_key_goes_with_the_attributes_too(client: Client, path: str) -> None:
    first, *others = (f"k{number}" for number in range(9))
    hash_of = Partitioner.CRC32C.hash_of
    at = hash_of(first.encode()) % 3
    elsewhere = next(key for key in others if hash_of(key.encode()) % 3 != at)
    for key, status in ((first, routes.OK), (elsewhere, 422)):
        sent = to_binary_event(event_of("text/plain", "x", partitionkey=key))
        answer = post(client, f"{path}/messages", sent, Idempotency_Key="b 1")
        assert answer.status == status, answer.body
    assert answer.problem == "idempotency-key-reused"


# -- later, limits, and who may --------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_event_may_be_due_later(client: Client, path: str, mode: Any) -> None:
    event = event_of("application/json", {"a": 1})
    assert post(client, f"{path}/delayed?delay_s=3600", mode(event)).status == routes.OK
    [waiting] = client.request("GET", f"{path}/delayed").json["messages"]
    assert (waiting["key"], waiting["headers"]["ce_id"]) == ("ann", ATTRIBUTES["id"])


def test_an_expectation_holds_for_events(client: Client, path: str) -> None:
    sent = to_binary_event(event_of("text/plain", "x"))
    target = f"{path}/messages?expect=nothing"
    assert post(client, target, sent).status == routes.OK
    assert post(client, target, sent).problem == "wrong-last-id"


def test_an_event_that_is_too_large_is_refused(served: Served, client: Client) -> None:
    path = served.create(f"small{next(_topics)}", message_bytes_max=400)
    for mode in MODES:
        answer = post(client, f"{path}/messages", mode(event_of("text/plain", "x" * 400)))
        assert (answer.status, answer.problem) == (413, "too-large")
    sent = to_binary_event(event_of("text/plain", "x" * (1 << 17)))
    answer = post(client, f"{path}/messages", sent)
    assert (answer.status, answer.problem) == (413, "too-large")


def test_a_fetch_takes_its_limit_and_goes_on(client: Client, path: str) -> None:
    events = [event_of("text/plain", str(n), id=str(n)) for n in range(5)]
    post(client, f"{path}/messages", batch_of(*events))
    start, seen = "earliest", []
    for _ in range(3):
        answer = client.request(
            "GET", f"{path}/messages?limit=2&start={start}", Accept=routes.CLOUD_EVENTS
        )
        seen += [event["id"] for event in answer.json]
        start = answer.headers["tms-next"]
    assert seen == ["0", "1", "2", "3", "4"]
    assert answer.headers["tms-reached"] == answer.headers["tms-end"]


def test_a_filter_chooses_events_by_their_attributes(client: Client, path: str) -> None:
    events = [event_of("text/plain", "x", id=str(n), type=f"t{n % 2}") for n in range(4)]
    post(client, f"{path}/messages", batch_of(*events))
    found = read(client, path, "?where=header.ce_type%20%3D%20t1")
    assert [event.get_id() for event in found] == ["1", "3"]


def test_large_answers_are_made_like_small_ones(client: Client, path: str) -> None:
    for number in range(4):
        event = event_of("application/json", {"text": "y" * 30_000}, id=str(number))
        assert post(client, f"{path}/messages", to_structured_event(event)).status == routes.OK
    assert [event.get_id() for event in read(client, path)] == ["0", "1", "2", "3"]


def test_events_take_the_rights_of_messages() -> None:
    network = NetworkOptions(AccessLimits())
    with serving(network=network) as served, served.connect() as client:
        engine = served.service.engine
        engine.create_topic(TopicName("default", "guarded"), TopicSettings())
        path = "/v2/namespaces/default/topics/guarded/messages"
        engine.access.add_grant("reader", "consume", "topic:guarded")
        engine.access.add_grant("writer", "publish", "topic:guarded")
        sent = [mode(event_of("text/plain", "x")) for mode in MODES]
        assert {post(client, path, one).status for one in sent} == {401}
        for who, may in (("reader", False), ("writer", True)):
            token = f"Bearer {engine.access.create_token(who).token}"
            for one in sent:
                answer = post(client, path, one, Authorization=token)
                assert answer.status == (routes.OK if may else 403)
            answer = client.request("GET", path, Accept=routes.CLOUD_EVENTS, Authorization=token)
            assert answer.status == (403 if may else routes.OK)


def test_a_message_of_another_client_is_read_by_the_sdk(client: Client, path: str) -> None:
    body = b'{"messages": [{"key": "ann", "json": {"a": 1}}, {"value": "plain"}]}'
    assert client.request("POST", f"{path}/messages", body).status == routes.OK
    found = {repr(event.get_data()): event for event in read(client, path)}
    assert found.keys() == {"{'a': 1}", "b'plain'"}
    assert {event.get_type() for event in found.values()} == {"tms.message"}


def test_pipelined_requests_keep_their_headers_apart(client: Client, path: str) -> None:
    first = to_binary_event(event_of("text/plain", "x", id="first"))
    headers = {name.replace("-", "_"): text for name, text in first.headers.items()}
    media = headers.pop("content_type")
    sent = request("POST", f"{path}/messages", first.body, media=media, **headers)
    sent += request("POST", f"{path}/messages", b'{"messages": [{"value": "second"}]}')
    client.send(sent)
    assert [client.answer("POST").status for _ in range(2)] == [routes.OK, routes.OK]
    assert sorted(event.get_type() for event in read(client, path)) == [
        "com.example.order",
        "tms.message",
    ]


def test_the_rules_are_those_of_the_sdk() -> None:
    """An event that the SDK refuses to make is refused here as well; test_cloud_events checks the
    rest."""
    for wrong in ({"id": ""}, {"source": ""}, {"type": ""}, {"subject": ""}, {"Upper": "x"}):
        attributes = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", **wrong}
        with pytest.raises(CloudEventValidationError):
            CloudEvent(dict(attributes))
        with pytest.raises(Invalid):
            read_one(json.dumps(attributes).encode())
