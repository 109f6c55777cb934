"""The service over TLS: accepted clients, the errors of rejected ones, and limits that hold as they
do without TLS."""

import contextlib
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tms
from tests.http_kit import Client, Served, request, serving
from tests.tls_kit import Authority, Certificate
from tests.waiting import PATIENCE_S, until
from tms.api import routes
from tms.errors import ConfigError, NotFound
from tms.runtime.tls import ServerTls, certificate_name
from tms.server.http.exchange import Exchange
from tms.server.http.watchdog import ConnectionLimits

TOPIC = "/v2/namespaces/default/topics/t"
SLOW = ConnectionLimits(head_timeout_s=1, body_timeout_s=1, write_timeout_s=1, keep_alive_s=2)


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.sign()


@pytest.fixture
def served(certificate: Certificate) -> Iterator[Served]:
    with serving(tls=ServerTls(*certificate.pair), connection_limits=SLOW) as running:
        yield running


def connect(
    served: Served, authority: Authority, own: Certificate | None = None, **settings: Any
) -> Client:
    """A connection over TLS."""
    context = ssl.create_default_context(cafile=authority.ca)
    for name, value in settings.items():
        setattr(context, name, value)
    if own is not None:
        context.load_cert_chain(*own.pair)
    client = served.connect()
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    return client


@contextlib.contextmanager
def naming(tls: ServerTls | None) -> Iterator[Served]:
    """A service that answers every request with the name of the caller; `seen` has all of them."""
    with serving(tls=tls) as running:
        seen: set[bytes] = set()

        async def answer(exchange: Exchange) -> None:
            name = (exchange.peer_certificate_name or "-").encode()
            seen.add(name)
            exchange.respond(routes.OK, b"", name)

        running.server._http._application = answer
        running.seen = seen  # type: ignore[attr-defined]
        yield running


def test_it_speaks_tls_1_2_and_1_3_and_nothing_older(served: Served, authority: Authority) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = connect(served, authority, maximum_version=version)
        assert client.request("GET", "/readyz").status == routes.OK
    old = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning), pytest.raises(ssl.SSLError):
        connect(served, authority, minimum_version=old, maximum_version=old)


def test_a_connection_is_kept_alive_and_requests_may_be_pipelined(
    served: Served, authority: Authority
) -> None:
    client = connect(served, authority)
    for _ in range(3):
        assert client.request("GET", "/livez").status == routes.OK
    client.send(request("GET", "/livez") * 5)
    assert [client.answer().status for _ in range(5)] == [routes.OK] * 5


def test_an_idle_connection_is_closed_with_a_goodbye_after_its_time(
    served: Served, authority: Authority
) -> None:
    client = connect(served, authority)
    assert client.request("GET", "/livez").status == routes.OK
    assert client.is_closed()  # an end without close_notify would raise


def test_a_request_without_tls_is_told_to_use_https(served: Served) -> None:
    client = served.connect()
    answer = client.request("POST", "/v2/namespaces/default/topics/a/messages", b"x" * 500_000)
    assert answer.status == routes.STATUS[tms.errors.Malformed.kind]
    assert "write https://" in answer.json["detail"]
    assert client.is_closed()


def test_tls_on_a_plain_port_is_told_to_use_http() -> None:
    with serving() as plain:
        host, port = plain.address
        bus = tms.connect(f"https://{host}:{port}", timeout_s=5)
        with bus, pytest.raises(ConfigError, match="write http://"):
            bus.create_topic("a")
        client = plain.connect()
        client.send(b"\x16\x03\x01\x02\x00\x01\x00")
        assert "--tls-cert" in client.answer().json["detail"]


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_handshake_that_does_not_get_on_is_closed_within_its_time(
    served: Served, sent: bytes
) -> None:
    client = served.connect()
    client.send(sent)
    assert client.is_closed()
    assert not served.service.watchdog.connections


def test_a_handshake_that_trickles_has_no_more_time(served: Served) -> None:
    client = served.connect()
    hello = b"\x16\x03\x01\x02\x00" + bytes(512)

    def trickle() -> None:
        for byte in hello:
            try:
                client.send(bytes([byte]))
            except OSError:
                return
            if stop.wait(0.1):
                return

    stop = threading.Event()
    thread = threading.Thread(target=trickle)
    thread.start()
    assert client.is_closed()
    stop.set()
    thread.join()


def test_bytes_that_are_no_tls_after_a_handshakes_first_byte_end_the_connection(
    served: Served,
) -> None:
    client = served.connect()
    client.send(b"\x16GET / HTTP/1.1\r\n\r\n")
    assert client.is_closed()
    assert served.service.watchdog.handshakes_failed == 1


def test_slow_headers_are_told_so_and_cut_off(served: Served, authority: Authority) -> None:
    client = connect(served, authority)
    client.send(b"GET / HT")
    assert client.answer().problem == "request-timeout"
    assert client.is_closed()


def test_a_body_of_many_megabytes_comes_whole_and_goes_back_whole(
    served: Served, authority: Authority
) -> None:
    values = [os.urandom(100_000) for _ in range(100)]
    host, port = served.address
    with tms.connect(f"https://{host}:{port}", ca=authority.ca) as bus:
        bus.create_topic("t")
        bus.publish_many("t", values)
        assert [one.value for one in bus.consumer("t", stop_at_end=True)] == values


def test_who_does_not_read_holds_up_no_more_than_its_buffers_and_is_cut_off(
    served: Served, authority: Authority
) -> None:
    host, port = served.address
    with tms.connect(f"https://{host}:{port}", ca=authority.ca) as bus:
        bus.create_topic("t")
        for _ in range(12):
            bus.publish_many("t", [os.urandom(1_000_000)] * 5)
    client = connect(served, authority)
    for _ in range(8):
        client.send(
            request("GET", "/v2/namespaces/default/topics/t/messages?bytes_max=8000000&limit=1000")
        )
    before = served.service.watchdog.cut_off
    until(lambda: served.service.watchdog.cut_off > before)


def test_a_body_that_is_cut_in_the_middle_stores_nothing(
    served: Served, authority: Authority
) -> None:
    assert connect(served, authority).request("PUT", TOPIC, b"{}").status == routes.CREATED
    client = connect(served, authority)
    body = b'{"messages":[{"value":"' + b"a" * 100_000 + b'"}]}'
    client.send(request("POST", f"{TOPIC}/messages", body)[:50_000])
    client.socket.close()  # without close_notify
    answer = connect(served, authority).request("GET", f"{TOPIC}/messages")
    assert answer.json["messages"] == []


@contextlib.contextmanager
def standing(served: Served) -> Iterator[None]:
    """The event loop of the service stands still."""
    stands, goes_on = threading.Event(), threading.Event()
    served.loop.call_soon_threadsafe(lambda: (stands.set(), goes_on.wait(PATIENCE_S)))
    assert stands.wait(PATIENCE_S)
    try:
        yield
    finally:
        goes_on.set()


def test_who_says_goodbye_still_gets_the_answer_that_is_owed(
    served: Served, authority: Authority
) -> None:
    assert connect(served, authority).request("PUT", TOPIC, b"{}").status == routes.CREATED
    client = connect(served, authority)
    client.send(request("GET", f"{TOPIC}/messages?wait_s=30"))
    assert isinstance(client.socket, ssl.SSLSocket)
    client.socket.setblocking(False)
    with standing(served), pytest.raises(ssl.SSLWantReadError):
        client.socket.unwrap()  # it fails otherwise if the answer comes while it looks for one
    client.socket.settimeout(10)
    assert client.answer().json["messages"] == []


def test_a_refusal_of_a_body_that_is_still_sent_is_read_before_the_end(
    served: Served, authority: Authority
) -> None:
    client = connect(served, authority)
    client.send(b"POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n")
    with suppress(OSError):
        for _ in range(40):
            client.send(bytes(100_000))
    assert client.answer().status == routes.STATUS[NotFound.kind]


def test_the_client_is_named_by_its_certificate_once_for_all_its_requests(
    authority: Authority, certificate: Certificate
) -> None:
    asked = ServerTls(*certificate.pair, str(authority.ca), required=False)
    with naming(asked) as served:
        client = connect(served, authority, authority.sign("alice"))
        assert [client.request("GET", "/").body for _ in range(3)] == [b"alice"] * 3
        assert connect(served, authority).request("GET", "/").body == b"-"
        spiffe = authority.sign(None, ["URI:spiffe://here/worker", "DNS:w"])
        assert connect(served, authority, spiffe).request("GET", "/").body == b"w"
    with naming(ServerTls(*certificate.pair)) as served:  # it requests no certificate
        client = connect(served, authority, authority.sign("alice"))
        assert client.request("GET", "/").body == b"-"
    with naming(None) as served:
        assert served.connect().request("GET", "/").body == b"-"


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        ({}, None),
        ({"subject": ((("commonName", "a"),),)}, "a"),
        ({"subject": ((("countryName", "CH"),), (("commonName", "a"),))}, "a"),
        ({"subject": ((("commonName", "a"), ("commonName", "b")),)}, "b"),
        ({"subject": (), "subjectAltName": (("IP Address", "::1"), ("DNS", "d"))}, "d"),
        ({"subject": (), "subjectAltName": (("URI", "u:1"), ("DNS", "d"), ("DNS", "e"))}, "d"),
        ({"subject": (), "subjectAltName": (("URI", "u:1"),)}, None),
        ({"subject": ((("commonName", ""),),), "subjectAltName": (("DNS", "d"),)}, "d"),
        ({"subject": ((("commonName", "a\nb"),),), "subjectAltName": (("DNS", "d"),)}, None),
        ({"subject": (), "subjectAltName": (("DNS", "a\x1b"), ("DNS", "d"))}, None),
        ({"subject": ((("commonName", "a\0"),),)}, None),
    ],
)
def test_a_certificates_name_is_its_common_name_or_its_first_other(
    certificate: dict[str, Any], name: str | None
) -> None:
    assert certificate_name(certificate) == name


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_has_no_certificate_of_the_ca_asks_for_nothing(
    authority: Authority, certificate: Certificate, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    asked = ServerTls(*certificate.pair, str(authority.ca))
    strange = Authority(tmp_path, "strange").sign("alice")
    with naming(asked) as served:
        for own in (None, strange, authority.sign("old", days=-1)):
            with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
                client = connect(served, authority, own, maximum_version=version)
                client.request("GET", "/")
        good = connect(served, authority, authority.sign("bob"), maximum_version=version)
        assert good.request("GET", "/").body == b"bob"
        assert served.service.watchdog.handshakes_failed == 3
    assert served.seen == {b"bob"}  # type: ignore[attr-defined]


def test_a_connection_beyond_the_limit_is_told_so_over_tls(
    authority: Authority, certificate: Certificate
) -> None:
    limits = ConnectionLimits(connections_max=1)
    with serving(tls=ServerTls(*certificate.pair), connection_limits=limits) as served:
        first = connect(served, authority)
        assert first.request("GET", "/livez").status == routes.OK
        assert connect(served, authority).answer().problem == "unavailable"
        assert first.request("GET", "/livez").status == routes.OK


def test_drained_connections_are_told_and_none_is_left(
    authority: Authority, certificate: Certificate
) -> None:
    with serving(tls=ServerTls(*certificate.pair)) as served:
        client = connect(served, authority)
        assert client.request("PUT", TOPIC, b"{}").status == routes.CREATED
        client.send(request("GET", f"{TOPIC}/messages?wait_s=30"))
        while not served.server._http.requests:
            threading.Event().wait(0.01)
        shaking = served.connect()
        shaking.send(b"\x16\x03\x01")
        served.stop()
        assert client.answer().status == routes.OK
        assert client.is_closed()
        assert shaking.is_closed()
