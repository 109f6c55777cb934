"""Instances that call one another over TLS, each with its own certificate, and clients that go
straight to all of them."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import tms
from tests.cluster.test_instances import PARTITIONS, TOPIC, spread, values
from tests.cluster_kit import Instances, instances
from tests.http_kit import serving
from tests.tls_kit import Authority, Certificate
from tms.client.http.peer import HttpPeer
from tms.errors import Unavailable
from tms.runtime.tls import ClientTls, ServerTls


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Certificate:
    return authority.sign("alice")


def _between(all: Instances) -> Counter[str]:
    """The number of calls between instances."""
    found: Counter[str] = Counter()
    for served in all.served.values():
        metrics = served.service.metrics
        found["forwarded"] += metrics.forwarded
        for (operation, _), answers in metrics.answers.items():
            if operation.startswith("partitions."):
                found["asked"] += answers
    return found


def test_instances_store_fetch_and_forward_over_tls_and_clients_go_straight(
    authority: Authority, alice: Certificate
) -> None:
    own = authority.sign("instance")
    tls = ServerTls(*own.pair, str(authority.ca))
    with instances("a", "b", "c", tls=tls, peers=ClientTls(str(authority.ca), *own.pair)) as all:
        options = {"ca": authority.ca, "cert": alice.pair}
        with all.connect("a", **options) as bus:
            bus.create_topic(TOPIC, partitions=PARTITIONS)
            sent = spread(bus, "first")
            before = _between(all)
            assert before["asked"] > 0
            sent |= spread(bus, "straight")
            assert _between(all)["asked"] == before["asked"]
            for group in map(str, range(6)):
                queue = bus.queue(TOPIC, group=group, start="earliest")
                got = queue.receive(limit=100, wait_s=1)
                queue.ack(got)
                assert {one.value for one in got} <= sent
            assert _between(all)["forwarded"] > 0
            with bus.transaction() as tx:
                for partition in range(PARTITIONS):
                    tx.send(TOPIC, b"tx %d" % partition, partition=partition)
            sent |= {b"tx %d" % partition for partition in range(PARTITIONS)}
            assert values(bus) == sent

        async def read() -> set[bytes | None]:
            async with tms.aio.connect(all.url("b"), **options) as bus:
                consumer = bus.consumer(TOPIC, stop_at_end=True)
                return {message.value async for message in consumer}

        assert asyncio.run(read()) == sent
        with tms.connect(",".join(map(all.url, "cab")), **options) as bus:
            all.stop("c")
            assert values(bus) == sent


def test_an_instance_that_does_not_trust_another_one_says_so(
    authority: Authority, tmp_path: Path
) -> None:
    wrong = ClientTls(str(Authority(tmp_path, "strange").ca))
    with serving(tls=ServerTls(*authority.sign().pair)) as served:
        asking = HttpPeer("b", "https://{}:{}".format(*served.address), tls=wrong)
        asking.timeout_s = 0.2
        with pytest.raises(Unavailable, match=r"certificate of .* is not trusted"):
            next(asking.list_topics("default"), None)
