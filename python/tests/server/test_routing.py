"""The route of a request is a value: one instance answers it, all others know which."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster_kit import Instances, instances
from tests.http_kit import Answer, Client
from tests.waiting import until
from tms import block
from tms.api import bodies
from tms.api.operations import OPERATIONS, TRANSACTIONS
from tms.model.keys import Partitioner
from tms.model.message import Appended, NewBlock
from tms.model.topic import TopicName
from tms.server.routing import kept_by, route_of, route_to
from tms.topics import publishing
from tms.topics.owners import At, Here, SplitByOwner, split

PATH = (b"default", b"orders", b"billing")


@pytest.mark.parametrize(
    ("operation", "kept"),
    [
        ("transactions.begin", TRANSACTIONS),
        ("queues.ack", ("queue", "orders", "billing")),
        ("topics.describe_topic", None),
        ("peers.load", None),
    ],
)
def test_an_operation_and_its_path_name_the_role_or_shard(operation: str, kept: object) -> None:
    assert kept_by(OPERATIONS[operation], PATH) == kept


def settled(all: Instances) -> bool:
    """True if every shard is held, and each once."""
    engines = [served.service.engine for served in all.served.values()]
    count = engines[0].topics.shards.count
    held = sorted(number for engine in engines for number in engine.shards.held)
    return held == list(range(count))


def test_one_instance_answers_and_all_others_route_to_it() -> None:
    with instances("a", "b", "c") as all:
        all.coordinator()
        until(lambda: settled(all), "every shard is held")
        engines = {id: served.service.engine for id, served in all.served.items()}
        for kept in (TRANSACTIONS, *(("group", "", f"g{number}") for number in range(20))):
            routes = {id: route_to(engine, kept) for id, engine in engines.items()}
            [answers] = [id for id, route in routes.items() if route == Here()]
            peers = [route.peer for id, route in routes.items() if id != answers]
            assert {(peer.name, peer.address) for peer in peers} == {(answers, all.url(answers))}


@pytest.fixture
def three() -> Iterator[Instances]:
    with instances("a", "b", "c") as all, all.connect("a") as bus:
        bus.create_topic("orders", partitions=12, partitioner="murmur2")
        assert set(all.owners("orders")) == {"a", "b", "c"}
        yield all


def places(all: Instances) -> dict[str, list[int]]:
    """The partitions of `orders`, by owner."""
    owners = all.owners("orders")
    return {id: [number for number, owner in enumerate(owners) if owner == id] for id in "abc"}


def test_a_route_is_here_or_at_the_owner_of_all_parts_or_has_them_by_owner() -> None:
    owner: Any = object()
    assert split([1, 2], lambda _: None).route == Here()
    assert split([1, 2], lambda _: owner).route == At(owner)
    assert split([1, 2, 3], lambda n: owner if n == 2 else None).route == SplitByOwner(
        [1, 3], {owner: [2]}
    )
    assert split([], lambda _: owner).route == Here()


def test_partitions_have_a_route_and_those_that_are_not_there_are_looked_for_here(
    three: Instances,
) -> None:
    of, topics = places(three), three.served["a"].service.engine.topics
    name = TopicName("default", "orders")
    assert topics.route(name, of["a"]) == Here()
    [peer] = topics.route(name, of["b"])
    assert (peer.name, peer.address) == ("b", three.url("b"))
    route = topics.route(name, [*of["a"], *of["b"], *of["c"]])
    assert isinstance(route, SplitByOwner) and route.here == of["a"]
    assert {peer.name: some for peer, some in route.elsewhere.items()} == {
        "b": of["b"],
        "c": of["c"],
    }
    for unknown in ([12], [-1], [*of["b"], 12]):
        assert topics.route(name, unknown) == Here()


def test_the_query_of_an_inspection_and_the_path_of_a_drain_have_a_route(three: Instances) -> None:
    engine, partition = three.served["a"].service.engine, places(three)["c"][0]
    inspect = OPERATIONS["topics.inspect"]
    [peer] = route_of(engine, inspect, PATH[:2], b"partition=%d" % partition)
    assert peer.name == "c"
    [peer] = route_of(engine, OPERATIONS["cluster.drain"], (b"b",))
    assert peer.name == "b"
    for id in (b"a", b"none"):
        assert route_of(engine, OPERATIONS["cluster.drain"], (id,)) == Here()
    with Client(three.served["a"].address) as client:
        path = f"/v2/namespaces/default/topics/orders/inspect?partition={partition}"
        assert client.request("GET", path).json["partition"] == partition


def published(all: Instances, at: str, body: bytes, media: str, **headers: str) -> Answer:
    with Client(all.served[at].address) as client:
        path = "/v2/namespaces/default/topics/orders/messages"
        return client.request("POST", path, body, media=media, **headers)


def framed(*partitions: int) -> bytes:
    blocks = [NewBlock(partition, block.encode([b"v"])) for partition in partitions]
    return b"".join(map(bytes, bodies.frames(blocks)))


def appended(answer: Answer) -> list[Appended]:
    assert answer.status == 200, answer.body
    return bodies.decode(answer.body, bodies.AppendedBody).appended


def in_json(*messages: dict[str, object]) -> bytes:
    return json.dumps({"messages": messages}).encode()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the blocks that were checked."""
    sizes: list[int] = []
    right = publishing.check

    def check(block: Any, *limits: int) -> Any:
        sizes.append(len(block))
        return right(block, *limits)

    monkeypatch.setattr(publishing, "check", check)
    return sizes


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_publish_for_one_other_instance_is_checked_there_only(
    three: Instances, checked: list[int], coding: str
) -> None:
    of, forwarded = places(three), three.served["a"].service.metrics
    body, headers = framed(*of["b"][:2]), {}
    if coding:
        body, headers = gzip.compress(body), {"content_encoding": coding}
    answer = published(three, "a", body, "application/vnd.tms.blocks", **headers)
    assert [one.partition for one in appended(answer)] == of["b"][:2]
    assert answer.headers["tms-owner"] == three.url("b")
    assert len(checked) == 2
    assert forwarded.forwarded == (0 if coding else 1)


def test_a_publish_for_several_instances_is_checked_once_before_any_of_it_is_stored(
    three: Instances, checked: list[int]
) -> None:
    of = places(three)
    partitions = [of[id][0] for id in "abc"]
    bad = framed(*partitions[:-1]) + framed(partitions[-1])[:-1] + b"!"
    refused = published(three, "a", bad, "application/vnd.tms.blocks")
    assert refused.problem == "crc-mismatch"
    checked.clear()
    answer = published(three, "a", framed(*partitions), "application/vnd.tms.blocks")
    assert {one.base_offset for one in appended(answer)} == {0}  # nothing of the first
    assert len(checked) == 3
    assert answer.headers["tms-owner"] == (
        f"{three.url('b')} {partitions[1]}, {three.url('c')} {partitions[2]}"
    )


@pytest.mark.parametrize(
    ("message", "hops"),
    [
        ({"value": "v", "partition": 0}, 1),
        ({"value": "v", "key": "c"}, 1),
        ({"value": "v"}, 0),
        ({"value": "v", "partition": 12}, 0),
        ({"value": "v", "partition": 0.5}, 0),
    ],
)
def test_json_leaves_for_the_owner_if_its_messages_say_where_they_go(
    three: Instances, message: dict[str, object], hops: int
) -> None:
    media, by_key = "application/json", Partitioner.MURMUR2.partition_of(b"c", 12)
    partition: Any = message.get("partition", by_key)
    owner = three.owners("orders")[partition] if partition in range(12) else "a"
    at = next(id for id in "abc" if id != owner)
    three.served[at].service.engine.topics.registry.find(TopicName("default", "orders"))
    before = three.served[at].service.metrics.forwarded
    answer = published(three, at, in_json(message), media)
    assert three.served[at].service.metrics.forwarded - before == hops
    if hops:
        assert [place["partition"] for place in answer.json["messages"]] == [partition]
        again = published(three, at, in_json(message), media, idempotency_key="k")
        assert again.status == 200
        assert three.served[at].service.metrics.forwarded - before == hops
