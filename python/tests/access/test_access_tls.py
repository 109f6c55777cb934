"""Principals by their certificates: a caller with a certificate that the service verifies needs no
token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from tests.cluster_kit import instances
from tests.http_kit import serving
from tests.tls_kit import Authority
from tms.access.records import FIRST, AccessRecords
from tms.client.client import Bus
from tms.errors import Forbidden, Unauthenticated
from tms.runtime.tls import ClientTls, ServerTls
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore


class Guarded:
    """A service that asks for certificates, and controls access."""

    def __init__(self, authority: Authority, port: int, records: AccessRecords) -> None:
        self.url = f"https://localhost:{port}"
        self.records, first = records, records.first_token()
        self._authority = authority
        with self.bus("first", first) as bus:
            self.admin = bus.admin.access.create_token("admin").token

    def bus(self, name: str, token: str | None = None) -> Bus:
        cert = self._authority.sign(name).pair
        return tms.connect(self.url, token=token, ca=self._authority.ca, cert=cert)


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Guarded]:
    tls = ServerTls(*authority.sign().pair, str(authority.ca), required=False)
    network = NetworkOptions(AccessLimits())
    with serving(MemoryStore(), tls=tls, network=network) as served:
        yield Guarded(authority, served.address[1], served.service.engine.access)


def test_the_name_in_a_certificate_is_a_principal(guarded: Guarded) -> None:
    with guarded.bus("anybody", guarded.admin) as admin, guarded.bus("ann") as ann:
        assert admin.admin.access.whoami().principal == "admin"  # a token wins over a certificate
        assert ann.admin.access.whoami().principal == "ann"
        admin.create_topic("mine")
        with pytest.raises(Forbidden):
            ann.publish("mine", b"x")
        admin.admin.access.add_grant("ann", "publish", "topic:mine")
        ann.publish("mine", b"x")


def test_who_shows_no_certificate_needs_a_token(guarded: Guarded, authority: Authority) -> None:
    with tms.connect(guarded.url, ca=authority.ca) as bus, pytest.raises(Unauthenticated):
        bus.admin.access.whoami()


def test_a_name_that_no_principal_can_have_is_nobodys(guarded: Guarded) -> None:
    with guarded.bus("Ann of Green Gables") as bus, pytest.raises(Unauthenticated):
        bus.admin.access.whoami()


def test_the_name_of_the_first_administrator_is_nobodys(guarded: Guarded) -> None:
    guarded.records.first_token()  # to have a grant of that name
    with guarded.bus(FIRST) as bus, pytest.raises(Unauthenticated):
        bus.admin.access.whoami()


def test_an_instance_that_forwards_says_for_whom_and_not_who_it_is(
    authority: Authority, tmp_path: Path
) -> None:
    own = authority.sign("instance").pair
    tls = ServerTls(*own, str(authority.ca))
    peers = ClientTls(str(authority.ca), *own)
    with instances("a", "b", tls=tls, peers=peers, access=AccessLimits()) as both:
        both.coordinator()
        access = both.served["a"].service.engine.access
        access.add_grant("ann", "all", "namespace:default")
        for id in ("a", "b"):
            ann, eve = (authority.sign(name).pair for name in ("ann", "eve"))
            with both.connect(id, ca=authority.ca, cert=ann) as bus:
                bus.create_topic(f"t-{id}", partitions=4)
                for partition in range(4):
                    bus.publish(f"t-{id}", b"x", partition=partition)
                with bus.transaction() as tx:
                    tx.send(f"t-{id}", b"y")
                queue = bus.queue(f"t-{id}", group="g", start="earliest")
                assert len(queue.receive(10, wait_s=2)) > 0
            with both.connect(id, ca=authority.ca, cert=eve) as bus, pytest.raises(Forbidden):
                bus.queue(f"t-{id}", group="g").receive(1)
