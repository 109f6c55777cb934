"""Certificates that clients verify and show, and their errors for wrong ones."""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.http_kit import Served, serving
from tests.tls_kit import Authority, Certificate
from tests.waiting import PATIENCE_S
from tms.client.http.addresses import ServiceAddresses
from tms.errors import ConfigError, Invalid
from tms.runtime.tls import ClientTls, ServerTls

Attempt = Callable[..., None]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"), "strange")


@pytest.fixture(scope="module")
def asked(authority: Authority) -> Iterator[Served]:
    """A service that asks for a certificate."""
    with serving(tls=ServerTls(*authority.sign().pair, str(authority.ca))) as served:
        yield served


def url(served: Served, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{served.address[1]}"


def _channel(url: str, **options: Any) -> None:
    """Connect as the channel of a producer."""
    with tms.connect(url, timeout_s=PATIENCE_S, **options) as bus, bus.producer("t") as producer:
        producer.send(b"x")
        producer.flush()


def _transport(url: str, **options: Any) -> None:
    with tms.connect(url, timeout_s=PATIENCE_S, **options) as bus:
        next(bus.list_topics(), None)


def _asyncio(url: str, **options: Any) -> None:
    async def run() -> None:
        bus = tms.aio.connect(url, timeout_s=PATIENCE_S, **options)
        async with bus, bus.producer("t") as producer:
            await producer.send(b"x")

    asyncio.run(run())


WAYS = pytest.mark.parametrize("attempt", [_transport, _channel, _asyncio])


def refused(attempt: Attempt, url: str, said: str, **options: Any) -> None:
    """Check that an attempt fails immediately, and names the reason."""
    began = time.monotonic()
    with pytest.raises(ConfigError, match=said) as caught:
        attempt(url, **options)
    assert time.monotonic() - began < PATIENCE_S / 2, "it was tried again and again"
    assert not caught.value.retriable


@WAYS
def test_a_service_whose_certificate_has_expired_is_not_used(
    attempt: Attempt, authority: Authority
) -> None:
    with serving(tls=ServerTls(*authority.sign(days=-1).pair)) as served:
        refused(attempt, url(served), "has expired", ca=authority.ca)


@WAYS
def test_a_service_of_another_ca_is_not_used(
    attempt: Attempt, authority: Authority, stranger: Authority
) -> None:
    with serving(tls=ServerTls(*stranger.sign().pair)) as served:
        refused(attempt, url(served), "not trusted.*TMS_CA", ca=authority.ca)
        refused(attempt, url(served), "not trusted")  # nor does the machine trust it


@WAYS
def test_a_service_of_another_host_is_not_used(attempt: Attempt, authority: Authority) -> None:
    with serving(tls=ServerTls(*authority.sign(of=["DNS:elsewhere"]).pair)) as served:
        refused(attempt, url(served), "another host", ca=authority.ca)
        refused(attempt, url(served, "localhost"), "another host", ca=authority.ca)


@WAYS
def test_who_shows_no_certificate_is_told_that_one_is_asked_for(
    attempt: Attempt, authority: Authority, asked: Served
) -> None:
    refused(attempt, url(asked), "none was given.*TMS_CERT", ca=authority.ca)


@WAYS
def test_who_shows_a_certificate_of_another_ca_is_told_so(
    attempt: Attempt, authority: Authority, stranger: Authority, asked: Served
) -> None:
    own = stranger.sign("eve").pair
    refused(attempt, url(asked), "does not trust the CA", ca=authority.ca, cert=own)


@WAYS
def test_who_shows_a_certificate_that_has_expired_is_told_so(
    attempt: Attempt, authority: Authority, asked: Served
) -> None:
    own = authority.sign("old", days=-1).pair
    refused(
        attempt, url(asked), "refuses the client certificate: it has exp", ca=authority.ca, cert=own
    )


@WAYS
def test_https_to_a_plain_port_says_so(attempt: Attempt) -> None:
    with serving() as served:
        refused(attempt, url(served), "write http://")


def test_http_to_a_port_with_tls_says_so(authority: Authority, asked: Served) -> None:
    plain = url(asked).replace("https", "http")
    for attempt in (_transport, _channel, _asyncio):
        with pytest.raises(tms.errors.Malformed, match="write https://"):
            attempt(plain)


def test_a_certificate_is_shown_as_a_pair_or_as_one_file_with_the_key(
    authority: Authority, asked: Served, tmp_path: Path
) -> None:
    own = authority.sign("alice")
    both = tmp_path / "both.pem"
    both.write_bytes(own.cert.read_bytes() + own.key.read_bytes())
    for cert in (own.pair, (own.cert, own.key), both, str(both)):
        with tms.connect(url(asked, "localhost"), ca=authority.ca, cert=cert) as bus:
            next(bus.list_topics(), None)


def test_the_environment_names_what_was_not_given(
    authority: Authority, asked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = authority.sign("alice")
    monkeypatch.setenv("TMS_CA", str(authority.ca))
    refused(_transport, url(asked), "none was given")
    monkeypatch.setenv("TMS_CERT", str(own.cert))
    monkeypatch.setenv("TMS_KEY", str(own.key))
    _transport(url(asked))
    with serving() as plain:  # other certificates do no harm to it
        _transport(plain.url)


def test_what_was_given_wins_over_the_environment() -> None:
    environ = {"TMS_CA": "a", "TMS_CERT": "b", "TMS_KEY": "c"}
    assert ClientTls.of(None, None, environ) == ClientTls("a", "b", "c")
    assert ClientTls.of("x", None, environ) == ClientTls("x", "b", "c")
    assert ClientTls.of(None, "y", environ) == ClientTls("a", "y", "")
    assert ClientTls.of(None, ("y", "z"), environ) == ClientTls("a", "y", "z")
    assert ClientTls.of(None, None, {}) == ClientTls()


def test_files_that_mean_nothing_or_are_not_there_are_refused_at_once(
    authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="not encrypted"):
        tms.connect("http://127.0.0.1:1", ca=authority.ca)
    with pytest.raises(ConfigError, match="cannot be read"):
        tms.connect("https://127.0.0.1:1", ca=tmp_path / "none")
    with pytest.raises(ConfigError, match="is not there"):
        tms.connect("https://127.0.0.1:1", cert=tmp_path / "none")
    with pytest.raises(ConfigError, match="without its certificate"):
        ClientTls.of(None, None, {"TMS_KEY": "k"})
    wrong: Any
    for wrong in ((1, None), (None, 1), (None, ("a",)), (None, ("a", "b", "c")), (b"a", None)):
        with pytest.raises(Invalid):
            tms.connect("https://127.0.0.1:1", ca=wrong[0], cert=wrong[1])


def test_a_client_shows_its_renewed_certificate_on_its_next_connection(
    authority: Authority, tmp_path: Path
) -> None:
    mine = Certificate(tmp_path / "own.pem", tmp_path / "own.key")
    mine.replace(authority.sign("first"))
    tls = ClientTls(str(authority.ca), *mine.pair)
    first = tls.context()
    assert tls.context() is first
    mine.cert.write_text("half of a cert")
    assert tls.context() is first
    mine.replace(authority.sign("second"))
    assert tls.context() is not first


def test_an_owner_that_was_learned_and_is_not_trusted_is_passed_by(
    authority: Authority, stranger: Authority
) -> None:
    """A client with a working URL goes on to use it, whatever the service says about others."""
    good, bad = ServerTls(*authority.sign().pair), ServerTls(*stranger.sign().pair)
    with (
        serving(tls=good) as served,
        serving(tls=bad) as other,
        tms.connect(url(served), ca=authority.ca) as bus,
    ):
        bus.create_topic("t")
        bus.publish("t", b"x")
        addresses: ServiceAddresses = bus._transport.addresses  # type: ignore[union-attr]
        name = next(bus.list_topics()).name
        header = f"{url(other)} 0".encode()
        addresses.take_in([(name, 0)], {b"tms-owner": header})
        assert addresses.of([(name, 0)]).url == url(other)
        bus.publish("t", b"y")
        assert [one.value for one in bus.consumer("t", stop_at_end=True)] == [b"x", b"y"]
        addresses.take_in([(name, 0)], {b"tms-owner": header})
        assert addresses.of([(name, 0)]).url == url(served), "it is shunned for a while"


def test_a_hundred_connections_read_the_files_once(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ClientTls(str(authority.ca), *authority.sign().pair)
    made: list[ssl.SSLContext] = []
    make = tls._made
    monkeypatch.setattr(ClientTls, "_made", lambda _: made.append(make()) or made[-1])
    threads = [threading.Thread(target=tls.context) for _ in range(20)]
    tls.context()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
