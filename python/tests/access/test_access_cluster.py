"""Access control of instances: who asks one of them is the same to all, and a change at one counts
at every other from its next answer on."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import tms
from tests.cluster_kit import Instances, instances
from tests.http_kit import Client
from tms.access.records import peer_secret
from tms.client.client import Bus
from tms.errors import Forbidden, TransactionNotFound, Unauthenticated
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
        token = first.access.create_token("admin").token
    with tms.connect(three.url("a"), token=token) as bus:
        yield bus


def bus_of(three: Instances, admin: Bus, id: str, principal: str, *grants: str) -> Bus:
    for grant in grants:
        verb, _, pattern = grant.partition(" ")
        admin.access.add_grant(principal, verb, pattern)
    return tms.connect(three.url(id), token=admin.access.create_token(principal).token)


def test_what_is_granted_at_one_is_granted_at_all_and_taken_at_all(
    three: Instances, admin: Bus
) -> None:
    admin.create_topic("spread-1", partitions=6)
    token = admin.access.create_token("ann")
    buses = [tms.connect(three.url(id), token=token.token) for id in IDS]
    for bus in buses:
        with pytest.raises(Forbidden):
            bus.publish("spread-1", b"x")
    admin.access.add_grant("ann", "publish", "topic:spread-1")
    for bus in buses:
        for partition in range(6):
            bus.publish("spread-1", b"x", partition=partition)
    admin.access.remove_grant("ann", "publish", "topic:spread-1")
    for bus in buses:
        with pytest.raises(Forbidden):
            bus.publish("spread-1", b"y", partition=0)
    admin.access.revoke_token(token.id)
    for bus in buses:
        with pytest.raises(Unauthenticated):
            bus.access.whoami()
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
        began = ann.transactions.begin().transaction_id
        for id in IDS:
            eve = bus_of(three, admin, id, f"eve-{id}", "publish topic:tx-1")
            with eve, pytest.raises(TransactionNotFound):
                eve.transactions.abort(began)
        assert ann.transactions.abort(began).outcome == "aborted"


def test_cdaps_protocol_knows_the_principal_before_a_request_is_forwarded(
    three: Instances, admin: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance that gets a forwarded request sees the certificate of the one that forwards."""
    admin.create_topic("v1-cluster")
    admin.access.add_grant("ann-v1", "publish", "topic:v1-cluster")
    token = admin.access.create_token("ann-v1").token
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
    """Whatever certificate the instance shows that forwards it."""
    exchange = SimpleNamespace(headers={HOP: b"1"}, peer_certificate_name="instance")
    guard = three.served["a"].service.guard
    assert guard is not None
    with pytest.raises(Unauthenticated):
        guard._shown(exchange)  # type: ignore[arg-type]
    del exchange.headers[HOP]
    assert guard._shown(exchange)[0] == "instance"  # type: ignore[arg-type]


def test_only_who_knows_the_clusters_secret_is_an_instance(three: Instances, admin: Bus) -> None:
    secret = peer_secret(open_metadata(three.store))
    with Client(three.served["b"].address) as client:
        body = b'{"pointers": [1]}'
        for headers, status in (
            ({}, 403),
            ({"TMS_Peer": "0" * 64}, 403),
            ({"TMS_Peer": secret[:-1]}, 403),
        ):
            answer = client.request("POST", "/v2/cluster/fates", body, **headers)
            assert answer.status == status
        whoami = "/v2/access/whoami"
        believed = client.request("GET", whoami, TMS_Peer=secret, TMS_Principal="admin")
        assert believed.json["principal"] == "admin"
        assert client.request("GET", whoami, TMS_Principal="admin").status == 401
