"""Thrift servers over TLS: verified ones, and the errors of wrong certificates."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tls_kit import Authority, Certificate
from tests.waiting import PATIENCE_S
from tms.errors import ConfigError
from tms.runtime.clock import SystemClock
from tms.runtime.tls import ClientTls
from tms.store.hbase.connection import Failure, ThriftConnection, types
from tms.store.hbase.pool import HBasePlace

CALL = b"getThriftServerType"


@contextlib.contextmanager
def thrift(certificate: Certificate, client_ca: Path | None = None) -> Iterator[int]:
    """A server that presents itself as a Thrift 2 server, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate.pair)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    name = len(CALL).to_bytes(4, "big") + CALL
    kind = int(types().TThriftServerType.TWO).to_bytes(4, "big")
    answer = b"\x80\x01\x00\x02" + name + bytes(4) + b"\x08\x00\x00" + kind + b"\x00"

    def serve() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(connected, True) as client:
                while client.recv(1_000):
                    client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


def check(port: int, tls: ClientTls) -> None:
    clock = SystemClock()
    until_s = clock.monotonic_s() + 5
    connection = ThriftConnection("127.0.0.1", port, clock, 5.0, until_s, tls)
    try:
        connection.check(until_s)
    finally:
        connection.close()


def refused(port: int, tls: ClientTls, said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        check(port, tls)
    assert isinstance(caught.value.error, ConfigError)
    assert not caught.value.again


def test_a_thrift_server_is_verified_and_shown_a_certificate(tmp_path: Path) -> None:
    authority, strange = Authority(tmp_path), Authority(tmp_path, "strange")
    own = authority.sign("tms")
    with thrift(authority.sign(), authority.ca) as port:
        check(port, ClientTls(str(authority.ca), *own.pair))
        refused(port, ClientTls(str(strange.ca), *own.pair), "not trusted")
        refused(port, ClientTls(str(authority.ca)), "none was given")
    with thrift(authority.sign(of=["DNS:elsewhere"])) as port:
        refused(port, ClientTls(str(authority.ca)), "another host")


def test_the_url_says_whether_there_is_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HBasePlace.parse("hbase://a:1/x").tls is None
    monkeypatch.setenv("TMS_CA", "ca.pem")
    place = HBasePlace.parse("hbases://a:1,b/x")
    assert place.tls == ClientTls("ca.pem")
    assert str(place) == "hbases://a:1,b:9090/x"
    assert HBasePlace.parse("hbases://a", ClientTls("mine")).tls == ClientTls("mine")
