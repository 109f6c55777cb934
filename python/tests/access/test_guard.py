"""Access control of a service: nothing without a token, and only the granted operations with one.
The operations come from the table, so that none can be forgotten."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

import tms
from tests.access_kit import People, until_polling, waits
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S
from tests.yardstick import in_yardsticks
from tms.access import decisions
from tms.api import routes
from tms.api.operation import Operation, Resource
from tms.api.operations import OPERATIONS
from tms.client.client import Bus
from tms.errors import Forbidden, NotFound, TransactionNotFound, Unauthenticated, Unavailable
from tms.model import keys
from tms.model.access import PATTERN, Access
from tms.model.position import Position
from tms.model.topic import TOPIC, TOPIC_NAME, Durability, TopicName
from tms.model.transaction import Commit, PositionChange, PositionKey
from tms.server import guard as guarding
from tms.server.operations import others_of
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore

GUARDED = [one for one in OPERATIONS.values() if one.access is not Access.OPEN]
DENIED = (401, 403)
IN = TopicName.parse("in-1")
ids = [one.name for one in GUARDED]


def resource_of(operation: Operation) -> str:
    match operation.on:
        case Resource.NAMESPACE:
            return "namespace:default"
        case Resource.TOPIC:
            return "topic:default:orders"
        case Resource.GROUP | Resource.QUEUE:
            return f"{operation.on.value}:default:orders/desks"
        case _:
            return str(operation.on.value)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        yield served


@pytest.fixture
def people(served: Served, monkeypatch: pytest.MonkeyPatch) -> People:
    monkeypatch.setattr(guarding, "GUESS_S", 0.0)
    return People(served)


@pytest.mark.parametrize("operation", GUARDED, ids=ids)
def test_nothing_is_answered_without_a_token(people: People, operation: Operation) -> None:
    answer = people.ask(operation)
    if operation.on is Resource.INSTANCE:
        assert answer.problem == "forbidden"
    else:
        assert answer.status == 401 and answer.problem == "unauthenticated"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("operation", GUARDED, ids=ids)
def test_each_operation_takes_a_grant_of_its_verb_on_what_it_concerns(
    people: People, operation: Operation
) -> None:
    name = operation.name.replace(".", "-")
    without = people.ask(operation, people.token(f"none-{name}"))
    assert (without.status in DENIED) == (operation.access is not Access.KNOWN)
    if operation.on is Resource.INSTANCE:
        everything = people.token(f"all-{name}", "all *")
        assert people.ask(operation, everything).status == 403
        return
    if operation.access is Access.KNOWN:
        return
    others = [f"{verb} {resource_of(operation)}" for verb in Access if _is_other(verb, operation)]
    assert people.ask(operation, people.token(f"other-{name}", *others)).status == 403
    listed = f"{operation.lists.value}:" if operation.lists is not None else "no list"
    others = ["topic:other", "namespace:other", "queue:orders/x"]
    if operation.on is Resource.NAMESPACE and operation.lists is not None:
        others.remove("topic:other")  # it may list some: the list is empty then
    elsewhere = [f"all {one}" for one in others if not one.startswith(listed)]
    assert people.ask(operation, people.token(f"elsewhere-{name}", *elsewhere)).status == 403
    granted = people.token(f"granted-{name}", f"{operation.access} {resource_of(operation)}")
    assert people.ask(operation, granted).status not in DENIED


def _is_other(verb: Access, operation: Operation) -> bool:
    if verb in (Access.OPEN, Access.KNOWN, Access.ALL, operation.access):
        return False
    return operation.access is not Access.OBSERVE


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS.values() if one.access is Access.OPEN],
    ids=lambda one: one.name,
)
def test_what_is_open_needs_no_token(people: People, operation: Operation) -> None:
    assert operation.on is Resource.SERVICE
    assert people.ask(operation).status == 200


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/v1/namespaces/default/topics", "observe namespace:default"),
        ("GET", "/v1/namespaces/default/topics/orders", "observe topic:orders"),
        ("PUT", "/v1/namespaces/default/topics/orders", "manage topic:orders"),
        ("PUT", "/v1/namespaces/default/topics/orders/properties", "manage topic:orders"),
        ("DELETE", "/v1/namespaces/default/topics/orders", "manage topic:orders"),
        ("POST", "/v1/namespaces/default/topics/orders/publish", "publish topic:orders"),
        ("POST", "/v1/namespaces/default/topics/orders/store", "publish topic:orders"),
        ("POST", "/v1/namespaces/default/topics/orders/rollback", "publish topic:orders"),
        ("POST", "/v1/namespaces/default/topics/orders/poll", "consume topic:orders"),
    ],
)
def test_cdaps_protocol_asks_the_same(people: People, method: str, path: str, needed: str) -> None:
    name = f"cdap-{method}-{path.rpartition('/')[2]}"
    with people.served.connect() as client:
        assert client.request(method, path, b"").status == 401
        for token, denied in (
            (people.token(f"{name}-none"), True),
            (people.token(f"{name}-granted", needed), False),
        ):
            answer = client.request(method, path, b"", Authorization=f"Bearer {token}")
            assert (answer.status == 403) == denied


@pytest.mark.parametrize(
    "authorization",
    [
        "Basic YW5uOnNlY3JldA==",
        "Bearer",
        "Bearer ",
        "Bearer tms_000000000000_" + "0" * 64,
        "Bearer " + "x" * 9_000,
        "bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.",
        "Token abc",
    ],
)
def test_what_is_no_valid_token_is_refused(people: People, authorization: str) -> None:
    with people.served.connect() as client:
        path = "/v2/access/whoami"
        answer = client.request("GET", path, Authorization=authorization)
        assert answer.problem == "unauthenticated"
        token = people.token("still")  # the connection stays usable
        assert client.request("GET", path, Authorization=f"Bearer {token}").status == 200


def test_a_token_in_a_url_is_refused(people: People) -> None:
    token = people.token("careless", "all *")
    with people.served.connect() as client:
        answer = client.request("GET", f"/v2/access/whoami?access_token={token}")
    assert answer.status == 400 and b"revoke this one" in answer.body
    assert token.encode() not in answer.body


def test_no_request_passes_for_one_of_an_instance(people: People) -> None:
    admin = people.token("boss", "all *")
    shown = {"Authorization": f"Bearer {admin}"}
    with people.served.connect() as client:
        spoofed = {"TMS_Principal": "boss", "TMS_Hop": "1"}
        assert client.request("GET", "/v2/access/tokens", **spoofed).status == 401
        for proof in ("", "0" * 64, "a b 0 1 - c"):
            spoofed["TMS_Peer"] = proof
            assert client.request("GET", "/v2/access/tokens", **spoofed).status == 403
            assert client.request("GET", "/v2/access/tokens", **spoofed, **shown).status == 403
        assert client.request("POST", "/v2/cluster/fates", b"{}", **shown).status == 403


def test_the_audit_log_has_what_was_refused_and_how_access_was_changed(
    people: People, caplog: pytest.LogCaptureFixture
) -> None:
    guard = people.served.service.guard
    assert guard is not None
    guard.decisions._refusals.clear()
    token = people.token("boss-audit", "all *")
    people.access.set_quota("slow", requests_s=0.001)
    slow, asked = people.token("slow"), "/v2/access/whoami"
    caplog.set_level(logging.INFO, "tms.audit")
    with people.served.connect() as client:
        for _ in range(70):
            client.request("GET", asked, Authorization="Bearer nonsense")
        client.request("GET", asked)
        client.request("GET", f"{asked}?token={token}")
        statuses = {client.request("GET", asked, Authorization=f"Bearer {slow}").status} | {
            client.request("GET", asked, Authorization=f"Bearer {slow}").status for _ in range(3)
        }
        assert 429 in statuses
    with tms.connect(people.url, token=token) as bus:
        new = bus.admin.access.create_token("ann-audit", expires_s=60)
        bus.admin.access.add_grant("ann-audit", "publish", "topic:default:orders")
    told = [one.msg for one in caplog.records if one.name == "tms.audit"]
    refused = [one.fields for one in told if one.name == "access_refused"]
    counts = [one["count"] for one in refused if one["why"] == "wrong token"]
    assert counts == [1, 2, 3, 4, 5, 8, 16, 32, 64]
    assert {one["why"] for one in refused} == {"wrong token", "no token", "token in a URL", "quota"}
    assert {one["principal"] for one in refused if one["why"] == "quota"} == {"slow"}
    made, added = (one.fields for one in told if one.name == "access_changed")
    assert made["principal"] == added["principal"] == "boss-audit"
    assert made["changed"] == {"principal": "ann-audit", "expires_s": 60, "id": new.id}
    assert added["operation"] == "access.add_grant"
    assert added["changed"]["pattern"] == "topic:default:orders"
    secrets = (token, slow, new.token)
    assert not any(secret in str(one.fields) for one in told for secret in secrets)


def test_a_caller_that_guesses_tokens_waits_and_no_other(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "GUESS_S", 0.5)
    token = people.token("quick")

    def ask(text: str) -> float:
        began_s = time.monotonic()
        with people.served.connect() as client:
            client.request("GET", "/v2/access/whoami", Authorization=f"Bearer {text}")
        return time.monotonic() - began_s

    for _ in range(guarding.GUESSES_FREE):
        ask("wrong")
    assert ask("wrong") >= 0.5
    assert ask(token) < 0.5


def test_what_is_remembered_changes_no_answer(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DECISIONS_MAX", "GUESSERS_MAX"):
        monkeypatch.setattr(decisions, name, 1)
    token = people.token("forgotten", "observe topic:orders")
    path = "/v2/namespaces/default/topics"
    with people.served.connect() as client:
        for _ in range(3):
            for topic, denied in (("orders", False), ("other", True)):
                answer = client.request("GET", f"{path}/{topic}", Authorization=f"Bearer {token}")
                assert (answer.status == 403) == denied
            assert client.request("GET", path, Authorization="Bearer wrong").status == 401


def test_names_that_are_refused_and_those_that_nothing_has_take_no_memory(people: People) -> None:
    guard = people.served.service.guard
    assert guard is not None
    nobody, boss = people.token("nobody-7"), people.token("boss-7", "all *")
    guard.decisions._remembered.clear()
    path = "/v2/namespaces/default/topics"
    with people.served.connect() as client:
        for number in range(20):
            asked = f"{path}/t{number}"
            answer = client.request("GET", asked, Authorization=f"Bearer {nobody}")
            assert answer.status == 403
        answer = client.request("GET", f"{path}/{'x' * 5_000}", Authorization=f"Bearer {boss}")
        assert answer.problem == "invalid"
        assert guard.decisions._remembered == {}
        client.request("GET", f"{path}/orders", Authorization=f"Bearer {boss}")
        assert len(guard.decisions._remembered) == 1


# --- bodies ---------------------------------------------------------------------------------------


@pytest.fixture
def admin(people: People) -> Iterator[Bus]:
    with people.bus("admin", "all *") as bus:
        yield bus


def made(admin: Bus, *topics: str) -> None:
    for topic in topics:
        admin.create_topic(topic)


def test_a_transaction_changes_only_what_each_part_of_it_may(admin: Bus, people: People) -> None:
    made(admin, "in-1", "out-1", "secret-1")
    admin.publish_many("in-1", [b"a", b"b"])
    grants = ("consume topic:in-1", "publish topic:out-1", "observe topic:secret-1")
    with people.bus("worker-1", *grants) as bus:
        with bus.transaction() as tx:
            tx.send("out-1", b"1")
        consumer = bus.consumer("in-1", group="g", stop_at_end=True)
        batch = [message.value for message in consumer]
        assert batch == [b"a", b"b"]
        with bus.transaction() as tx:
            tx.ack(consumer)
        denied = pytest.raises(Forbidden, match="publish topic:default:secret-1")
        with denied, bus.transaction() as tx:
            tx.send("out-1", b"2")
            tx.send("secret-1", b"2")
    with people.bus("worker-2", "publish topic:out-1") as bus:
        commit = Commit(positions=(PositionChange(PositionKey("g", IN, 0), Position.earliest()),))
        with pytest.raises(Forbidden, match="consume group:default:in-1/g"):
            bus.admin.transactions.commit(commit)
    values = [one.value for one in admin.consumer("out-1", stop_at_end=True)]
    assert values == [b"1"]


def test_a_grant_covers_topics_with_dots_by_their_exact_beginning(
    admin: Bus, people: People
) -> None:
    made(admin, "shop.eu.orders", "shop-eu", "shopXeu", "__shop")
    with people.bus("shop-5", "all topic:shop.*", "consume topic:__shop") as bus:
        bus.publish("shop.eu.orders", b"1")
        assert [info.topic for info in bus.list_topics()] == ["__shop", "shop.eu.orders"]
        assert bus.queue("shop.eu.orders", group="a.b").receive(1)[0].value == b"1"
        assert list(bus.consumer("__shop", stop_at_end=True)) == []
        for other in ("shop-eu", "shopXeu", "__shop"):
            with pytest.raises(Forbidden, match=f"topic:default:{other}"):
                bus.publish(other, b"2")
    token = people.token("shop-6", "publish topic:shop.eu.orders")
    with people.served.connect() as client:
        for name in ("shop%2Eeu%2eorders", "shop.eu.orders"):
            path = f"/v2/namespaces/default/topics/{name}/messages"
            body = json.dumps({"messages": [{"value": "x"}]}).encode()
            answer = client.request("POST", path, body, Authorization=f"Bearer {token}")
            assert answer.status == routes.OK


def test_a_queue_is_settled_in_a_transaction_by_who_may_consume_it(
    admin: Bus, people: People
) -> None:
    made(admin, "jobs-1", "done-1")
    admin.publish("jobs-1", b"job")
    queue = admin.queue("jobs-1", group="desk", lease_s=60)
    [message] = queue.receive(1)
    with people.bus("thief", "publish topic:done-1", "observe topic:jobs-1") as bus:
        mine = bus.queue("jobs-1", group="desk")
        with pytest.raises(Forbidden, match="consume queue:default:jobs-1/desk"):
            mine.receive(1)
        denied = pytest.raises(Forbidden, match="consume queue:default:jobs-1/desk")
        with denied, bus.transaction() as tx:
            tx.ack(mine, [message])
    queue.ack(message)
    assert queue.receive(1) == []


def test_dead_letters_go_where_the_principal_may_publish(admin: Bus, people: People) -> None:
    made(admin, "jobs-3", "secret-3")
    other = "other:secret-3"
    with people.bus("owner-3", "all topic:jobs-3", "all queue:jobs-3/*") as bus:
        for dead_letter in ("secret-3", other):
            with pytest.raises(Forbidden, match=r"publish topic:\w+:secret-3"):
                bus.queue("jobs-3", group="g", dead_letter=dead_letter)
        queue = bus.queue("jobs-3", group="g")
        with pytest.raises(Forbidden, match="publish topic:default:secret-3"):
            queue.update(dead_letter="secret-3")
        assert queue.update(lease_s=50).settings.dead_letter == ""
        admin.queue("jobs-3", group="g").update(dead_letter="secret-3")
        assert queue.update(dead_letter="secret-3", lease_s=60).settings.lease_s == 60
        admin.publish("jobs-3", b"job")
        queue.reject(queue.receive(1)[0])
        people.served.service.engine.queues.tidy()
        for settle in (queue.redrive, queue.discard):
            with pytest.raises(Forbidden, match="consume topic:default:secret-3"):
                settle()
        people.access.add_grant("owner-3", "consume", "topic:secret-3")
        assert queue.redrive() == 1


def test_an_operation_that_names_a_topic_in_its_body_asks_for_it() -> None:
    """The operations that name a topic are found in the table, so that none can be forgotten."""
    asked = set(others_of(MagicMock()))  # and those of a commit, in `require_commit`
    naming = {
        operation.name
        for operation in OPERATIONS.values()
        if operation.access is not Access.OPEN and operation.on is not Resource.INSTANCE
        for body in operation.form.body.values()
        if names_topics(body)
    }
    reading = {"queues.redrive", "queues.discard"}  # the topic that the queue names
    assert naming == asked - reading


def names_topics(kind: Any) -> bool:
    """True if a value of this type, or a part of it, is spelled like a topic."""
    schema = json.dumps(msgspec.json.schema(kind)).replace(json.dumps(PATTERN)[1:-1], "")
    return json.dumps(TOPIC)[1:-1] in schema or json.dumps(TOPIC_NAME)[1:-1] in schema


def test_an_idempotency_key_belongs_to_its_principal(admin: Bus, people: People) -> None:
    made(admin, "keys-1")
    body = json.dumps({"messages": [{"value": "x"}]}).encode()
    tokens = [people.token(name, "publish topic:keys-1") for name in ("ann-1", "bob-1")]
    path = "/v2/namespaces/default/topics/keys-1/messages"
    with people.served.connect() as client:
        for token in tokens * 2:
            headers = {"Authorization": f"Bearer {token}"}
            answer = client.request("POST", path, body, **headers, Idempotency_Key="one")
            assert answer.status == 200, answer.json
        other = body.replace(b'"x"', b'"y"')
        answer = client.request("POST", path, other, **headers, Idempotency_Key="one")
        assert answer.problem == "idempotency-key-reused" and "'one'" in str(answer.json)
    assert len(list(admin.consumer("keys-1", stop_at_end=True))) == 2


def test_a_transaction_of_somebody_else_is_not_there(admin: Bus, people: People) -> None:
    made(admin, "theirs-1")
    with people.bus("ann-1", "publish topic:theirs-1") as ann:
        began = ann.admin.transactions.begin()
        assert ann.admin.transactions.describe(began.transaction_id).outcome == "open"
        with people.bus("eve-1", "publish topic:theirs-1") as eve:
            for look in (eve.admin.transactions.describe, eve.admin.transactions.abort):
                with pytest.raises(TransactionNotFound) as theirs:
                    look(began.transaction_id)
                with pytest.raises(TransactionNotFound) as nobodys:
                    look(1)
                said = str(theirs.value).replace(str(began.transaction_id), "1")
                assert said == str(nobodys.value)
            with pytest.raises(Forbidden):
                eve.admin.transactions.open()
        operator = people.bus("op-1", "operate transactions")
        assert began.transaction_id in [
            one.transaction_id for one in operator.admin.transactions.open()
        ]
        assert operator.admin.transactions.abort(began.transaction_id).outcome == "aborted"
        operator.close()


# --- changes --------------------------------------------------------------------------------------


POLLS = ("poller-grant", "consume", "topic:poll-grant")
CHANGES: list[tuple[str, Callable[[People, str], None], type[Exception]]] = [
    ("token", lambda people, id: people.access.revoke_token(id), Unauthenticated),
    ("grant", lambda people, id: people.access.remove_grant(*POLLS), Forbidden),
]


@pytest.mark.parametrize(("name", "change", "error"), CHANGES, ids=[one[0] for one in CHANGES])
def test_a_long_poll_ends_with_what_allowed_it(
    admin: Bus,
    people: People,
    name: str,
    change: Callable[[People, str], None],
    error: type[Exception],
) -> None:
    topic, principal = f"poll-{name}", f"poller-{name}"
    made(admin, topic)
    people.access.add_grant(principal, "consume", f"topic:{topic}")
    token = people.access.create_token(principal)
    with tms.connect(people.url, token=token.token) as bus:
        thread, ended = waits(bus, topic)
        until_polling(people, principal)
        change(people, token.id)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert isinstance(ended[0], (error, Unavailable)), ended


def test_another_grant_ends_nobodys_poll(admin: Bus, people: People) -> None:
    made(admin, "calm-1")
    with people.bus("calm", "consume topic:calm-1") as bus:
        thread, ended = waits(bus, "calm-1")
        until_polling(people, "calm")
        people.access.add_grant("stranger", "publish", "topic:calm-1")
        people.access.revoke_token(people.access.create_token("stranger").id)
        admin.publish("calm-1", b"x")
        thread.join(PATIENCE_S)
    assert isinstance(ended[0], float)


# --- the operations on access ---------------------------------------------------------------------


def test_access_is_managed_over_http_as_it_is_embedded(admin: Bus, people: People) -> None:
    access = admin.admin.access
    new = access.create_token("shop", 3_600)
    assert new.token.startswith("tms_") and new.expires_ms > new.created_ms
    made(admin, "mine-1")
    with tms.connect(people.url, token=new.token) as shop:
        assert shop.admin.access.whoami().principal == "shop"
        with pytest.raises(Forbidden, match="tms grant add shop"):
            shop.publish("mine-1", b"x")
        grant = access.add_grant("shop", "publish", "topic:mine-1")
        assert shop.admin.access.whoami().grants == (grant,)
        shop.publish("mine-1", b"x")
        with pytest.raises(Forbidden):
            shop.admin.access.create_token("eve")
        assert access.explain("shop", "publish", "topic:mine-1").grant == grant
        access.remove_grant("shop", "publish", "topic:mine-1")
        with pytest.raises(Forbidden):
            shop.publish("mine-1", b"y")
        access.revoke_token(new.id)
        with pytest.raises(Unauthenticated):
            shop.admin.access.whoami()
    with pytest.raises(NotFound):
        access.revoke_token("0" * 12)


def test_a_decision_costs_little_with_many_tokens_and_grants() -> None:
    """Checked with 10,000 of each."""
    store = MemoryStore()
    with serving(store, network=NetworkOptions(AccessLimits())) as served:
        access, guard = served.service.engine.access, served.service.guard
        assert guard is not None
        rows = [
            (keys.GRANT_PREFIX + b"ann/publish/topic:default:t%d" % number, b"{}")
            for number in range(10_000)
        ]
        token = access.create_token("ann")
        raw = access._metadata.get(keys.TOKEN_PREFIX + token.id.encode())
        assert raw is not None
        others = json.loads(raw)
        rows += [
            (
                keys.TOKEN_PREFIX + b"%012x" % number,
                json.dumps({**others, "digest": f"{number:064x}"}).encode(),
            )
            for number in range(10_000)
        ]
        access._metadata.write(rows, Durability.WRITTEN)
        access._changed()
        headers = {b"authorization": b"Bearer " + token.token.encode()}
        exchange: Any = SimpleNamespace(headers=headers, peer_certificate_name=None)

        def decide(number: int) -> None:
            principal = guard._shown(exchange).principal
            assert guard.decisions.may(principal, Access.PUBLISH, f"topic:default:t{number}")

        assert in_yardsticks(decide, fresh=guard.decisions._remembered.clear) < 40
