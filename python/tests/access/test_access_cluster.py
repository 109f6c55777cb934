"""Access control of instances: a caller is the same principal at every instance, and a change at
one counts at every other from its next answer on."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import tms
from tests.cluster_kit import Instances, instances
from tests.http_kit import Client, request
from tms.client.client import Bus
from tms.cluster.identity import COVERED_BYTES_MAX, InstanceIdentity, ProvenRequest
from tms.cluster.membership import InstanceRecord
from tms.errors import Forbidden, TransactionNotFound, Unauthenticated
from tms.model import keys
from tms.runtime.clock import SystemClock
from tms.server import guard as guarding
from tms.server.forwarding import HOP
from tms.server.service import AccessLimits
from tms.topics.sweep import open_metadata

IDS = ("a", "b", "c")


@pytest.fixture(scope="module")
def three() -> Iterator[Instances]:
    with instances(*IDS, access=AccessLimits()) as three:
        three.coordinator()
        yield three


@pytest.fixture(scope="module")
def admin(three: Instances) -> Iterator[Bus]:
    access = three.served["a"].service.engine.access
    with tms.connect(three.url("a"), token=access.first_token()) as first:
        token = first.admin.access.create_token("admin").token
    with tms.connect(three.url("a"), token=token) as bus:
        yield bus


def bus_of(three: Instances, admin: Bus, id: str, principal: str, *grants: str) -> Bus:
    for grant in grants:
        verb, _, pattern = grant.partition(" ")
        admin.admin.access.add_grant(principal, verb, pattern)
    return tms.connect(three.url(id), token=admin.admin.access.create_token(principal).token)


def test_what_is_granted_at_one_is_granted_at_all_and_taken_at_all(
    three: Instances, admin: Bus
) -> None:
    admin.create_topic("spread-1", partitions=6)
    token = admin.admin.access.create_token("ann")
    buses = [tms.connect(three.url(id), token=token.token) for id in IDS]
    for bus in buses:
        with pytest.raises(Forbidden):
            bus.publish("spread-1", b"x")
    admin.admin.access.add_grant("ann", "publish", "topic:spread-1")
    for bus in buses:
        for partition in range(6):
            bus.publish("spread-1", b"x", partition=partition)
    admin.admin.access.remove_grant("ann", "publish", "topic:spread-1")
    for bus in buses:
        with pytest.raises(Forbidden):
            bus.publish("spread-1", b"y", partition=0)
    admin.admin.access.revoke_token(token.id)
    for bus in buses:
        with pytest.raises(Unauthenticated):
            bus.admin.access.whoami()
        bus.close()
    values = [one.value for one in admin.consumer("spread-1", stop_at_end=True)]
    assert values == [b"x"] * 18


@pytest.mark.parametrize("id", IDS)
def test_transactions_groups_and_queues_work_at_any_instance(
    three: Instances, admin: Bus, id: str
) -> None:
    topics = [f"{kind}-{id}" for kind in ("in", "out")]
    for topic in topics:
        admin.create_topic(topic, partitions=4)
    admin.publish_many(topics[0], [b"%d" % number for number in range(20)])
    grants = (f"consume topic:{topics[0]}", f"publish topic:{topics[1]}")
    with bus_of(three, admin, id, f"worker-{id}", *grants) as bus:
        consumer = bus.consumer(topics[0], group="g", stop_at_end=True)
        for message in consumer:
            with bus.transaction() as tx:
                tx.send(topics[1], message.value)
                tx.ack(consumer)
        assert len(list(admin.consumer(topics[1], stop_at_end=True))) == 20
        with pytest.raises(Forbidden):
            bus.queue(topics[1], group="desk", lease_s=5)


def test_a_transaction_is_its_principals_at_every_instance(three: Instances, admin: Bus) -> None:
    admin.create_topic("tx-1")
    coordinator = three.coordinator()
    other = next(id for id in IDS if id != coordinator)
    with bus_of(three, admin, other, "ann-tx", "publish topic:tx-1") as ann:
        began = ann.admin.transactions.begin().transaction_id
        for id in IDS:
            eve = bus_of(three, admin, id, f"eve-{id}", "publish topic:tx-1")
            with eve, pytest.raises(TransactionNotFound):
                eve.admin.transactions.abort(began)
        assert ann.admin.transactions.abort(began).outcome == "aborted"


def test_cdaps_protocol_knows_the_principal_before_a_request_is_forwarded(
    three: Instances, admin: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance that gets a forwarded request sees the certificate of the one that forwards."""
    admin.create_topic("v1-cluster")
    admin.admin.access.add_grant("ann-v1", "publish", "topic:v1-cluster")
    token = admin.admin.access.create_token("ann-v1").token
    path = "/v1/namespaces/default/topics/v1-cluster"
    for id in IDS:
        with Client(three.served[id].address) as client:
            answer = client.request("GET", path, Authorization=f"Bearer {token}")
            assert answer.status == 200
            caplog.clear()
            answer = client.request("DELETE", path, Authorization=f"Bearer {token}")
            assert answer.status == 403
            [denied] = [one.msg for one in caplog.records if one.name == "tms.audit"]
            assert denied.fields["principal"] == "ann-v1"
            assert denied.fields["operation"] == "cdap.delete"
            before = [one.service.metrics.forwarded for one in three.served.values()]
            assert client.request("GET", path).status == 401
            assert client.request("GET", "/ping").status == 200
            assert [one.service.metrics.forwarded for one in three.served.values()] == before


def test_a_forwarded_request_is_not_its_instances(three: Instances, admin: Bus) -> None:
    """The forwarding instance's certificate is not the caller's."""
    exchange = SimpleNamespace(headers={HOP: b"1"}, peer_certificate_name="instance")
    guard = three.served["a"].service.guard
    assert guard is not None
    with pytest.raises(Unauthenticated):
        guard._shown(exchange)  # type: ignore[arg-type]
    del exchange.headers[HOP]
    assert guard._shown(exchange).principal == "instance"  # type: ignore[arg-type]


def proof(
    three: Instances, to: str, request: ProvenRequest, body: bytes = b"", asking: str = "a"
) -> dict[str, str]:
    """The headers with which an instance proves a request to another one."""
    shown = three.cluster[asking].identity.prove(to, request, len(body), (body,))
    return {"TMS_Peer": shown.decode(), "TMS_Principal": request.principal.decode()}


def test_a_request_of_an_instance_is_believed_once_and_as_it_was_proven(
    three: Instances, admin: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "KEY_WAIT_S", 0.0)
    path = "/v2/access/tokens"
    body = b'{"principal": "ann-proven"}'
    made = ProvenRequest(b"POST", path.encode(), b"admin")
    headers = proof(three, "b", made, body)
    with Client(three.served["b"].address) as b, Client(three.served["c"].address) as c:
        for client, method, target, sent, changed, status in (
            (c, "POST", path, body, {}, 503),  # c has another key
            (b, "PUT", path, body, {}, 405),
            (b, "POST", f"{path}?x=1", body, {}, 403),
            (b, "POST", path, body, {"TMS_Principal": "first-administrator"}, 403),
            (b, "POST", path, body, {"TMS_Peer": headers["TMS_Peer"][:-1] + "x"}, 403),
            (b, "POST", path, body, {}, 200),
            (b, "POST", path, body, {}, 403),  # a repetition
        ):
            answer = client.request(method, target, sent, **headers | changed)
            assert answer.status == status, (target, changed, answer)
        answer = b.request("POST", path, body[:-3] + b'e"}', **proof(three, "b", made, body))
        assert answer.status == 403 and b"another body" in answer.body
        assert b.request("GET", path, TMS_Principal="admin").status == 401
        stranger = InstanceIdentity("a", SystemClock())
        assert stranger.keys
        stranger.see({"b": three.cluster["b"].identity.keys})
        shown = stranger.prove("b", ProvenRequest(b"GET", path.encode(), b"admin"), 0).decode()
        answer = b.request("GET", path, TMS_Peer=shown, TMS_Principal="admin")
        assert answer.status == 503 and b"does not see the instance" in answer.body
        b.send(request("POST", path, body, **proof(three, "b", made, body))[: -len(body)])
        b.send(body)  # later
        assert b.answer().status == 200
    names = [one.principal for one in admin.admin.access.list_tokens()]
    assert names.count("ann-proven") == 2


def test_only_an_instance_asks_what_instances_ask(three: Instances) -> None:
    path, body = "/v2/cluster/fates", b'{"pointers": [1]}'
    asked, to = ProvenRequest(b"POST", path.encode(), b"@instance"), three.coordinator()
    asking = next(id for id in IDS if id != to)
    with Client(three.served[to].address) as client:
        assert client.request("POST", path, body).status == 403
        headers = proof(three, to, asked, body, asking)
        assert client.request("POST", path, body, **headers).status == 200
        assert client.request("POST", path, body, **headers).status == 403


def test_the_audit_log_names_the_instance_that_forwards(
    three: Instances, admin: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tms.audit")
    guard = three.served["b"].service.guard
    assert guard is not None
    guard.decisions._refusals.clear()
    forwarded = ProvenRequest(b"GET", b"/v2/access/tokens", b"ann-audited")
    with Client(three.served["b"].address) as client:
        for status in (403, 403):
            headers = proof(three, "b", forwarded)
            assert client.request("GET", "/v2/access/tokens", **headers).status == status
        client.request("GET", "/v2/access/tokens", **headers)
        client.request("POST", "/v2/cluster/fates", b"{}")
    told = [(one.msg.name, one.msg.fields) for one in caplog.records if one.name == "tms.audit"]
    denied = [fields for name, fields in told if name == "access_denied"]
    assert [(one["principal"], one["instance"]) for one in denied] == [("ann-audited", "a")] * 2
    refused = [fields for name, fields in told if name == "access_refused"]
    assert ["used before" in one["error"] for one in refused] == [True, False]
    assert refused[1]["operation"] == "peers.fates"


def test_no_secret_of_instances_is_in_their_store(three: Instances) -> None:
    metadata = open_metadata(three.store)
    rows = metadata.scan(None, None, 1 << 30)
    assert rows and metadata.get(keys.PEER_SECRET) is None
    for cluster in three.cluster.values():
        for own in cluster.identity._own:
            secret = own.private.to_bytes(33)
            shown = (secret, secret[1:], secret.hex()[2:].encode(), own.public.encode())
            assert not any(part in value for _, value in rows for part in shown)


def test_an_instance_that_has_just_joined_is_believed_at_once(three: Instances) -> None:
    """The receiving instance waits for the view that has the new one."""
    identity, path = InstanceIdentity("new", SystemClock()), "/v2/access/whoami"
    record = InstanceRecord("new", "http://127.0.0.1:9", "0", keys=identity.keys)
    b = three.cluster["b"]
    identity.see({"b": b.identity.keys})
    shown = identity.prove("b", ProvenRequest(b"GET", path.encode(), b"ann"), 0).decode()
    with Client(three.served["b"].address) as client:
        client.send(request("GET", path, TMS_Peer=shown, TMS_Principal="ann"))
        b.identity.see({one.id: one.keys for one in (*b.view.instances, record)})
        assert client.answer().json["principal"] == "ann"
    b.identity.see({one.id: one.keys for one in b.view.instances})


def test_a_chunked_request_is_forwarded_whole(three: Instances, admin: Bus) -> None:
    """However much of the body has arrived when it is forwarded, it is never read as another
    request."""
    admin.create_topic("chunked", partitions=6)
    token = admin.admin.access.create_token("admin").token
    coordinator = three.coordinator()
    other = next(id for id in IDS if id != coordinator)
    body = b"GET /v2/access/whoami HTTP/1.1\r\nHost: x\r\n\r\n"
    head = (
        "POST /v2/transactions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for at_once in (True, False):
        with Client(three.served[other].address) as client:
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            client.send(head.encode() + (chunks if at_once else b""))
            if not at_once:
                client.send(chunks)
            assert client.answer().problem == "bad-json"
        with Client(three.served[other].address) as client:
            for _ in range(3):
                answer = client.request(
                    "POST", "/v2/transactions", b"{}", Authorization=f"Bearer {token}"
                )
                assert answer.status in (200, 201) and b"transaction" in answer.body


@pytest.mark.parametrize(
    ("length", "status"), [(1_000, 201), (COVERED_BYTES_MAX, 201), (COVERED_BYTES_MAX + 1, 413)]
)
def test_a_body_is_forwarded_whether_its_proof_covers_it_or_not(
    three: Instances, admin: Bus, length: int, status: int
) -> None:
    """A body may be longer than a proof may cover, and the client may send a part of it later: the
    owner believes each forwarded body, and itself refuses one that is too long."""
    token, coordinator = admin.admin.access.create_token("admin").token, three.coordinator()
    other = next(id for id in IDS if id != coordinator)
    body = b"{}".ljust(length)
    whole = request("POST", "/v2/transactions", body, Authorization=f"Bearer {token}")
    for pieces in ((whole,), (whole[: -length // 2], whole[-length // 2 :])):
        with Client(three.served[other].address) as client:
            for piece in pieces:
                client.send(piece)
            answer = client.answer()
            assert (answer.status, answer.lines["tms-request-id"]) == (status, 2), answer
