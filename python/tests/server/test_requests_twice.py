"""Two equal requests at once: one effect, and both get the result (row 36 of the faults).

The store holds the first one. The second comes over another connection, while the first one waits
or after its connection was cut.
"""

import json
import select
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

import tms
from sim.faulty import FaultyStore
from tests.gate_kit import StoreGate, in_thread
from tests.http_kit import Answer, Client, Served, request, serving
from tests.log_kit import KeptStore
from tests.proxy import Fault, Proxy
from tests.waiting import PATIENCE_S, until
from tms.api import bodies, commits, routes
from tms.block import encode
from tms.errors import Conflict
from tms.model.ids import MessageId
from tms.model.keys import delayed_map, segment_map
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.model.transaction import Commit, TopicBlock
from tms.topics.sharding import POSITIONS, QUEUES, Shards

TOPIC = TopicName("default", "t")
PATH = "/v2/namespaces/default/topics/t"
TRANSACTIONS = "/v2/transactions"
QUEUE = f"{PATH}/queues/workers"
LATER = "9000000000000"
METADATA = "metadata"
HANDLERS = "tms-http"  # the threads of requests; other threads write there, too


@dataclass
class World:
    """A service over a store with a gate, started after the contents were stored."""

    store: KeptStore
    gate: StoreGate = field(default_factory=StoreGate)
    served: Served = field(init=False)

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        with Client(self.served.address) as client:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            return client.request(method, path, raw)

    def maps(self, name: TopicName = TOPIC, partition: int = 0) -> str:
        """The prefix of the names of the segments of a partition."""
        uid = self.served.service.engine.topics.registry.find(name).uid
        return segment_map(uid, partition, 0)[:-1]

    @property
    def shards(self) -> Shards:
        """The shards of the engine."""
        return self.served.service.engine.topics.shards

    def values(self, **query: str) -> list[str]:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        found = self.call("GET", f"{PATH}/messages?{asked}").json
        return [message["value"] for message in found["messages"]]

    def twice(self, raw: bytes, operation: str, maps: str, cut: bool) -> list[Answer]:
        """Send a request, and again while the store holds it; returns the answers, only the second
        one's if the first one's connection was cut."""
        method = raw.split()[0].decode()
        with Client(self.served.address) as first, Client(self.served.address) as second:
            with self.gate.holding(operation, maps, HANDLERS if maps == METADATA else ""):
                first.send(raw)
                self.gate.wait_reached()
                before = self._running()
                if cut:
                    first.socket.close()
                second.send(raw)
                if self.gate.held != "service":  # else the event loop writes: one after the other
                    until(lambda: self._running() - before or readable(second))
            sent = [second] if cut else [first, second]
            return [client.answer(method) for client in sent]

    def _running(self) -> set[object]:
        """The connections with requests in progress."""
        connections: list[Any] = list(self.served.service.watchdog.connections)
        return {one for one in connections if one._running is not None}


def readable(client: Client) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(KeptStore(shared=request.param))
    with serving(made.store) as made.served:
        made.served.create("t", durability="written")
        publish = {"messages": [{"value": "a"}, {"value": "b"}]}
        assert made.call("PUT", QUEUE, {}).status == routes.CREATED
        assert made.call("POST", f"{PATH}/messages", publish).status == routes.OK
    with serving(FaultyStore(made.store, made.gate)) as made.served:
        yield made


@pytest.fixture(params=[False, True], ids=["waiting", "cut"])
def cut(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def first_id(world: World) -> str:
    return str(world.call("GET", f"{PATH}/messages").json["messages"][0]["id"])


def commit(path: str, value: bytes, expect: str = "", **more: Any) -> bytes:
    keys = [b"k"] if expect else None
    new = NewBlock(0, encode([value], keys), MessageId.parse(expect) if expect else None)
    body = b"".join(commits.encode_commit(Commit(0, blocks=(TopicBlock(TOPIC, new),), **more)))
    return request("POST", path, body, media=routes.COMMIT)


def alike(answers: list[Answer], status: int = routes.OK) -> Any:
    """The answer, after a check that all are equal."""
    assert {answer.status for answer in answers} == {status}, answers
    found = [answer.json if answer.body else None for answer in answers]
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_commit_by_token(world: World, cut: bool, large: bool) -> None:
    """A thread of its own stores large ones; this is the first commit after a start."""
    value = b"1" * ((2 << 20) if large else 1)
    raw = commit(f"{TRANSACTIONS}/new/commit", value, token="t")
    found = alike(world.twice(raw, "write", world.maps(), cut))
    assert len(found["appended"]) == 1
    assert [value[:1] for value in world.values()] == ["a", "b", "1"]


def test_a_commit_by_token_that_looks_at_the_log(world: World, cut: bool) -> None:
    raw = commit(f"{TRANSACTIONS}/new/commit", b"1", token="t", expect=first_id(world))
    found = alike(world.twice(raw, "scan", world.maps(), cut))
    assert len(found["appended"]) == 1
    assert world.values() == ["a", "b", "1"]


def test_a_commit_by_id(world: World, cut: bool) -> None:
    id = world.call("POST", TRANSACTIONS, {}).json["transaction_id"]
    raw = commit(f"{TRANSACTIONS}/{id}/commit", b"1", expect=first_id(world))
    found = alike(world.twice(raw, "write", world.maps(), cut))
    assert (found["transaction_id"], len(found["appended"])) == (id, 1)
    assert world.values() == ["a", "b", "1"]


def test_a_commit_that_is_refused(world: World, cut: bool) -> None:
    first = first_id(world)
    world.call("POST", f"{PATH}/messages", {"messages": [{"value": "c", "key": "k"}]})
    raw = commit(f"{TRANSACTIONS}/new/commit", b"1", token="t", expect=first)
    answers = world.twice(raw, "scan", world.maps(), cut)
    assert {(one.status, one.problem) for one in answers} == {(409, "wrong-last-id")}
    assert world.values() == ["a", "b", "c"]


def test_a_begin_by_token(world: World, cut: bool) -> None:
    raw = request("POST", TRANSACTIONS, b'{"token": "t"}')
    world.call("POST", TRANSACTIONS, {})
    journal = world.maps(TopicName("system", "_transactions"))
    found = alike(world.twice(raw, "write", journal, cut), routes.CREATED)
    begun = [one["transaction_id"] for one in world.call("GET", TRANSACTIONS).json["transactions"]]
    assert begun.count(found["transaction_id"]) == 1 and len(begun) == 2


def test_a_publish_with_an_idempotency_key(world: World, cut: bool) -> None:
    body = b'{"messages": [{"value": "1"}, {"value": "2", "key": "k"}]}'
    raw = request("POST", f"{PATH}/messages", body, Idempotency_Key="one")
    alike(world.twice(raw, "write", world.maps(), cut))
    assert world.values() == ["a", "b", "1", "2"]


def test_a_block_with_a_producer_sequence(world: World, cut: bool) -> None:
    block = encode([b"1", b"2"], producer_id=7, producer_sequence=0)
    body = b"".join(bodies.frames([NewBlock(0, block)]))
    raw = request("POST", f"{PATH}/messages", body, media=routes.BLOCKS)
    found = [one.json["appended"][0] for one in world.twice(raw, "write", world.maps(), cut)]
    assert [one.pop("duplicate") for one in found] == [False, True][cut:]
    assert all(one == found[0] for one in found)
    assert world.values() == ["a", "b", "1", "2"]


def test_delayed_messages_with_an_idempotency_key(world: World, cut: bool) -> None:
    body = b'{"messages": [{"value": "1"}]}'
    path = f"{PATH}/delayed?deliver_at_ms={LATER}"
    world.call("POST", path, json.loads(body))
    raw = request("POST", path, body, Idempotency_Key="one")
    maps = delayed_map(world.served.service.engine.topics.registry.find(TOPIC).uid)
    alike(world.twice(raw, "write", maps, cut))
    assert world.call("GET", f"{PATH}/delayed").json["waiting"] == 2


def test_a_cancellation_of_a_delayed_message(world: World, cut: bool) -> None:
    body = {"messages": [{"value": "1"}, {"value": "2"}]}
    made = world.call("POST", f"{PATH}/delayed?deliver_at_ms={LATER}", body).json["messages"]
    maps = delayed_map(world.served.service.engine.topics.registry.find(TOPIC).uid)
    raw = request("DELETE", f"{PATH}/delayed/{made[0]['id']}")
    assert alike(world.twice(raw, "write", maps, cut)) == {"cancelled": True}
    assert world.call("GET", f"{PATH}/delayed").json["waiting"] == 1


@pytest.mark.parametrize("how", ["ack", "reject", "nack", "release"])
def test_settling_messages_of_a_queue(world: World, cut: bool, how: str) -> None:
    received = world.call("POST", f"{QUEUE}/receive", {"limit": 2}).json["messages"]
    tokens = [message["token"] for message in received]
    assert len(tokens) == 2
    body = {"tokens": tokens} | ({"delay_s": 3_600} if how == "nack" else {})
    raw = request("POST", f"{QUEUE}/{how}", json.dumps(body).encode())
    journal = world.maps(QUEUES, world.shards.of_queue(TOPIC, "workers"))
    found = alike(world.twice(raw, "write", journal, cut))
    assert not found.get("failed"), found
    left = world.call("POST", f"{QUEUE}/receive", {"limit": 2}).json["messages"]
    assert [message["deliveries"] for message in left] == ([1, 1] if how == "release" else [])


def test_dead_letters_that_are_moved_back(world: World, cut: bool) -> None:
    """It moves all that are there, so the second one finds nothing, or finds another request at
    work."""
    received = world.call("POST", f"{QUEUE}/receive", {"limit": 2}).json["messages"]
    rejected = {"tokens": [message["token"] for message in received]}
    assert world.call("POST", f"{QUEUE}/reject", rejected).status == routes.OK
    world.served.service.engine.queues.start()
    until(lambda: world.call("GET", QUEUE).json["dead"] == 2)
    raw = request("POST", f"{QUEUE}/redrive", b'{"limit": 10}')
    answers = world.twice(raw, "write", world.maps(), cut)
    assert {(one.status, one.body) for one in answers if one.status == routes.OK} <= {
        (routes.OK, b'{"moved":2}'),
        (routes.OK, b'{"moved":0}'),
    }
    refused = {one.problem for one in answers if one.status != routes.OK}
    assert refused <= {"conflict", "transaction-conflict"}
    until(lambda: world.call("GET", QUEUE).json["dead"] == 0)
    assert world.values() == ["a", "b", "a", "b"]


def test_positions_that_move_from_where_they_stand(world: World, cut: bool) -> None:
    """A repetition gets the answer that they stand there: another client may have moved them."""
    path = f"{PATH}/positions/g"
    world.call("PUT", path, {"positions": {"0": "offset:1"}})
    body = {"positions": {"0": "offset:2"}, "expected": {"0": "offset:1"}}
    raw = request("PUT", path, json.dumps(body).encode())
    journal = world.maps(POSITIONS, world.shards.of_group("g"))
    *first, second = world.twice(raw, "write", journal, cut)
    assert (second.problem, second.json["details"]["position"]) == ("conflict", "offset:2")
    assert [one.status for one in first] == [routes.OK] * (not cut)
    assert world.call("GET", path).json == {"positions": {"0": "offset:2"}}


def test_the_creation_of_a_topic(world: World, cut: bool) -> None:
    raw = request("PUT", "/v2/namespaces/default/topics/new", b'{"partitions": 3}')
    answers = world.twice(raw, "compare_and_set", METADATA, cut)
    assert [one.status for one in answers] == [routes.CREATED, routes.OK][cut:]
    assert all(one.json == answers[0].json for one in answers)
    assert answers[0].json["generation"] == 1


def test_a_change_of_a_topic(world: World, cut: bool) -> None:
    raw = request("PATCH", PATH, b'{"partitions": 3}')
    found = alike(world.twice(raw, "compare_and_set", METADATA, cut))
    assert found["settings"]["partitions"] == 3
    assert world.call("GET", PATH).json["settings"] == found["settings"]


def test_the_deletion_of_a_topic(world: World, cut: bool) -> None:
    """A repetition finds the topic gone, which a client takes for its success."""
    raw = request("DELETE", PATH)
    answers = world.twice(raw, "write", METADATA, cut)
    assert [one.status for one in answers] == [routes.NO_CONTENT, 404][cut:]
    assert world.served.create("t") == PATH
    assert world.call("GET", PATH).json["generation"] == 2


# A client that repeats by itself


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("named", ["token", "id"])
def test_a_commit_of_a_client_whose_connection_is_cut(
    world: World, named: str, large: bool
) -> None:
    """It was on its way to the log when the connection ended, and is repeated immediately."""
    host, port = world.served.address
    with Proxy(f"http://{host}:{port}") as proxy, tms.connect(proxy.url) as bus:
        tx = bus.transaction()
        if named == "id":
            assert tx.id
        tx.send("t", b"1" * ((2 << 20) if large else 1), key=b"k", expect=first_id(world))
        proxy.script(Fault.CUT, Fault.CUT)
        with world.gate.holding("scan", world.maps()):
            ids = in_thread(tx.commit)
            world.gate.wait_reached()
            until(lambda: proxy.done)
        assert len(ids.result(PATIENCE_S)) == 1
    assert [value[:1] for value in world.values()] == ["a", "b", "1"]
    assert world.call("GET", TRANSACTIONS).json == {"transactions": []}


@pytest.mark.parametrize("moved", [False, True], ids=["own", "another's"])
def test_an_acknowledgement_of_a_client_whose_connection_is_cut(world: World, moved: bool) -> None:
    """Its repetition finds the group at the requested position, or where another one moved it."""
    host, port = world.served.address
    with Proxy(f"http://{host}:{port}", b"PUT") as proxy, tms.connect(proxy.url) as bus:
        consumer = bus.consumer("t", group="g", partitions="all", stop_at_end=True)
        assert [message.value for message in consumer] == [b"a", b"b"]
        if moved:
            world.call("PUT", f"{PATH}/positions/g", {"positions": {"0": "offset:1"}})
        proxy.script(Fault.LOSE_ANSWER)
        if moved:
            with pytest.raises(Conflict):
                consumer.ack()
        else:
            consumer.ack()
        assert proxy.done
    found = world.call("GET", f"{PATH}/positions/g").json["positions"]["0"]
    assert (found == "offset:1") == moved


# Partitions that are added between the two


KEYED = [{"value": str(number), "key": f"k{number}"} for number in range(20)]
KEYED += [{"value": "none"}, {"value": "named", "partition": 0}]


def grow(world: World, partitions: int) -> None:
    body = {"partitions": partitions}
    assert world.call("PATCH", PATH, body).status == routes.OK


def publish_keyed(world: World, path: str = "messages", key: str = "one") -> Answer:
    with Client(world.served.address) as client:
        body = json.dumps({"messages": KEYED}).encode()
        return client.request("POST", f"{PATH}/{path}", body, Idempotency_Key=key)


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def lives(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world whose service a test starts itself."""
    yield World(KeptStore(shared=request.param))


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_key_stands_for_the_partitions_that_it_came_for_first(
    lives: World, restarted: bool
) -> None:
    with ExitStack() as life:
        lives.served = life.enter_context(serving(lives.store))
        lives.served.create("t", partitions=2)
        first = publish_keyed(lives)
        for partitions in (3, 7):
            grow(lives, partitions)
            if restarted:
                life.close()
                lives.served = life.enter_context(serving(lives.store))
            assert publish_keyed(lives).json == first.json
            other = publish_keyed(lives, key=f"new {partitions}")
            assert other.json["messages"] != first.json["messages"]
            assert publish_keyed(lives, key=f"new {partitions}").json == other.json
        assert len(lives.values(limit="1000")) == 3 * len(KEYED)
        used = {message["partition"] for message in other.json["messages"]}
        assert max(used) > 3, "new keys use all partitions"


def test_a_key_that_was_stored_by_half_is_completed_where_it_began(lives: World) -> None:
    """The process died between two partitions, and partitions were added before the next try."""
    with serving(lives.store) as lives.served:
        lives.served.create("t", partitions=2)
        publish_keyed(lives, key="other")
    store = FaultyStore(lives.store)
    with serving(store) as lives.served:
        uid = lives.served.service.engine.topics.registry.find(TOPIC).uid
        store.fail_write(1, stored=False, prefix=segment_map(uid, 1, 0)[:-1])
        assert publish_keyed(lives).status == 503
        half = len(lives.values(limit="1000")) - len(KEYED)
        assert 0 < half < len(KEYED)
        grow(lives, 9)
    with serving(lives.store) as lives.served:
        first = publish_keyed(lives)
        assert first.status == routes.OK
        assert {message["partition"] for message in first.json["messages"]} == {0, 1}
        assert publish_keyed(lives).json == first.json
        assert len(lives.values(limit="1000")) == 2 * len(KEYED)


def test_a_key_whose_first_request_is_under_way() -> None:
    """Nothing of it is in the log yet."""
    world = World(KeptStore(shared=True))
    with serving(FaultyStore(world.store, world.gate)) as world.served:
        world.served.create("t", partitions=2)
        world.call("POST", f"{PATH}/messages", {"messages": [{"value": "a", "partition": 0}]})
        with world.gate.holding("write", world.maps()):
            first = in_thread(lambda: publish_keyed(world))
            world.gate.wait_reached()
            grow(world, 7)
            second = in_thread(lambda: publish_keyed(world))
        alike([first.result(PATIENCE_S), second.result(PATIENCE_S)])
        assert len(world.values(limit="1000")) == 1 + len(KEYED)


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_key_of_delayed_messages_stands_for_the_same_partitions(
    lives: World, restarted: bool
) -> None:
    path = f"delayed?deliver_at_ms={LATER}"
    with ExitStack() as life:
        lives.served = life.enter_context(serving(lives.store))
        lives.served.create("t", partitions=2)
        first = publish_keyed(lives, path)
        grow(lives, 7)
        if restarted:
            life.close()
            lives.served = life.enter_context(serving(lives.store))
        assert publish_keyed(lives, path).json == first.json
        assert lives.call("GET", f"{PATH}/delayed").json["waiting"] == len(KEYED)
        body = json.dumps({"messages": KEYED[1:]}).encode()
        with Client(lives.served.address) as client:
            other = client.request("POST", f"{PATH}/{path}", body, Idempotency_Key="one")
        assert (other.status, other.problem) == (422, "idempotency-key-reused")


def test_a_key_in_a_topic_that_was_made_anew_is_new(lives: World) -> None:
    with serving(lives.store) as lives.served:
        lives.served.create("t", partitions=4)
        publish_keyed(lives)
        assert lives.call("DELETE", PATH).status == routes.NO_CONTENT
        lives.served.create("t", partitions=2)
        assert publish_keyed(lives).status == routes.OK
        assert len(lives.values(limit="1000")) == len(KEYED)
