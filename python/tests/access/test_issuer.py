"""The keys of an issuer: fetched, kept, replaced, and used while they cannot be fetched."""

import asyncio
import contextlib
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from tests.clocks import START_MS, ManualClock
from tests.jwt_kit import AUDIENCE, ISSUER, JwksServer, claims, jwks, key_of, sign
from tests.tls_kit import Authority
from tests.waiting import PATIENCE_S
from tms.access.jwt import JwtRules, UnknownKey
from tms.errors import ConfigError, Unauthenticated, Unavailable
from tms.runtime.tls import ClientTls
from tms.server import issuer as trusting
from tms.server import jwks as reading
from tms.server.issuer import IssuerOptions, TrustedIssuer

RULES = JwtRules(ISSUER, AUDIENCE, "sub", frozenset(("ES256",)), 0)
ONE, TWO = key_of("ES256", "one"), key_of("ES256", "two")
STALE_S = 600.0
BY_ONE, BY_TWO = (sign(key, claims()).encode() for key in (ONE, TWO))


@pytest.fixture
def server() -> Iterator[JwksServer]:
    with JwksServer(jwks(ONE)) as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def options(place: str, timeout_s: float = 5.0, tls: ClientTls | None = None) -> IssuerOptions:
    return IssuerOptions(place, RULES, tls or ClientTls(), 300.0, STALE_S, timeout_s)


def fetched(issuer: TrustedIssuer) -> None:
    asyncio.run(issuer._fetch())


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_its_keys_verify_tokens(server: JwksServer, clock: ManualClock) -> None:
    issuer = TrustedIssuer(options(server.url + "?v=1"), clock)
    with pytest.raises(Unavailable, match=r"jwt\.jwks"):
        issuer.verified(BY_ONE)
    assert "No JWT is accepted" in issuer.warnings()[0]
    fetched(issuer)
    assert issuer.verified(BY_ONE).principal == "ann"
    assert server.asked == ["/keys?v=1"] and issuer.warnings() == []


def test_what_could_not_be_a_token_is_refused_without_any_keys(clock: ManualClock) -> None:
    issuer = TrustedIssuer(options("/nowhere"), clock)
    with pytest.raises(Unauthenticated, match="not accepted"):
        issuer.verified(sign(key_of("RS256"), claims(), "RS256").encode())


def test_keys_are_rotated_without_a_restart(server: JwksServer, clock: ManualClock) -> None:
    issuer = TrustedIssuer(options(server.url), clock)
    changes: list[str] = []
    issuer.when_changed = lambda: changes.append("changed")
    fetched(issuer)
    assert issuer.verified(BY_ONE) is issuer.verified(BY_ONE)  # from the cache
    server.document = jwks(ONE, TWO)
    fetched(issuer)
    assert issuer.verified(BY_TWO).principal == "ann" and not changes
    server.document = jwks(TWO)
    fetched(issuer)
    assert changes == ["changed"] and issuer.verified(BY_TWO).principal == "ann"
    with pytest.raises(UnknownKey):
        issuer.verified(BY_ONE)


def test_an_issuer_that_takes_all_its_keys_back_is_believed(
    server: JwksServer, clock: ManualClock
) -> None:
    issuer = TrustedIssuer(options(server.url), clock)
    fetched(issuer)
    issuer.verified(BY_ONE)
    server.document = b'{"keys":[]}'
    fetched(issuer)
    with pytest.raises(UnknownKey):
        issuer.verified(BY_ONE)
    assert issuer.warnings()


def test_keys_that_are_not_known_cause_one_fetch_in_a_time(
    server: JwksServer, clock: ManualClock
) -> None:
    issuer = TrustedIssuer(options(server.url), clock)

    async def ask() -> None:
        await issuer._fetch()
        clock.pass_ms(round(1_000 * trusting.REFETCH_S) - 1)
        assert not await issuer.refetched()
        clock.pass_ms(1)
        done = await asyncio.gather(*(issuer.refetched() for _ in range(50)))
        assert all(done) and len(server.asked) == 2  # the fifty waited for one fetch
        for _ in range(50):
            assert not await issuer.refetched()
        assert len(server.asked) == 2

    run(ask)


def test_known_keys_are_good_for_a_time_while_nobody_can_fetch_them(
    server: JwksServer, clock: ManualClock
) -> None:
    issuer = TrustedIssuer(options(server.url), clock)
    fetched(issuer)
    server.raw(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")
    clock.pass_ms(round(1_000 * STALE_S))
    fetched(issuer)
    other = sign(ONE, claims("bea")).encode()
    assert issuer.verified(BY_ONE).principal == "ann"
    assert issuer.verified(other).principal == "bea"
    assert "are used for 0 s more" in issuer.warnings()[0]
    clock.pass_ms(1)
    for token in (BY_ONE, sign(ONE, claims("eve")).encode()):  # in the cache or not
        with pytest.raises(Unavailable):
            issuer.verified(token)
    assert "No JWT is accepted" in issuer.warnings()[0]
    server.answer = server.send
    fetched(issuer)
    assert issuer.verified(BY_ONE).principal == "ann" and not issuer.warnings()


def test_what_is_remembered_ends_with_its_token(server: JwksServer, clock: ManualClock) -> None:
    issuer = TrustedIssuer(options(server.url), clock)
    fetched(issuer)
    token = sign(ONE, claims(exp=START_MS // 1_000 + 10)).encode()
    issuer.verified(token)
    clock.jump_ms(9_999)
    assert issuer.verified(token).principal == "ann"
    clock.jump_ms(1)
    with pytest.raises(Unauthenticated, match="expired"):
        issuer.verified(token)


def test_no_more_tokens_are_remembered_than_allowed(
    server: JwksServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusting, "VERIFIED_MAX", 3)
    issuer = TrustedIssuer(options(server.url), clock)
    fetched(issuer)
    for number in range(10):
        assert issuer.verified(sign(ONE, claims(f"p{number}")).encode()).principal == f"p{number}"
        assert len(issuer._verified) <= 3
    with pytest.raises(Unauthenticated):
        issuer.verified(BY_ONE[:-4] + b"AAAA")
    assert all(BY_ONE not in key for key in issuer._verified)  # digests, no tokens


# --- answers of an issuer's server ----------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = [
    ("redirect", b"HTTP/1.1 302 Found\r\nlocation: /k\r\ncontent-length: 0\r\n\r\n", "status 302"),
    ("missing", b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\n{}", "status 404"),
    ("upgrade", b"HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", "HTTP|status"),
    ("empty", b"", "ended"),
    ("no http", b"SSH-2.0-x\r\n", "HTTP"),
    ("cut", OK + b"content-length: 100\r\n\r\n{", "ended"),
    ("cut chunks", OK + b"transfer-encoding: chunked\r\n\r\n5\r\n{", "ended"),
    ("large", OK + b"content-length: 9999999\r\n\r\n" + b" " * 400_000, "larger than"),
    ("endless head", OK + b"x: " + b"y" * 400_000, "larger than|HTTP"),
    ("html", OK + b"content-length: 6\r\n\r\n<html>", "no JSON Web Key Set"),
    ("no end", OK + b"\r\n<html>", "no JSON Web Key Set"),
    ("deep", OK + b"content-length: 90000\r\n\r\n" + b"[" * 90_000, "no JSON Web Key Set"),
]


@pytest.mark.parametrize(("name", "answer", "why"), ANSWERS, ids=[one[0] for one in ANSWERS])
def test_an_answer_that_is_no_document_changes_nothing(
    server: JwksServer,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    name: str,
    answer: bytes,
    why: str,
) -> None:
    issuer = TrustedIssuer(options(server.url), clock)
    fetched(issuer)
    server.raw(answer)
    with caplog.at_level(logging.ERROR, "tms.server"):
        for _ in range(2):
            fetched(issuer)
    assert issuer.verified(BY_ONE).principal == "ann"
    assert len(server.asked) == 3 and issuer.warnings()
    [said] = caplog.records  # only once
    assert re.search(why, str(vars(said))), vars(said)
    assert server.url not in issuer.warnings()[0]  # `/readyz` shows warnings to everyone


def test_an_answer_may_end_with_its_connection(server: JwksServer, clock: ManualClock) -> None:
    server.raw(OK + b"\r\n" + jwks(ONE))
    issuer = TrustedIssuer(options(server.url), clock)
    fetched(issuer)
    assert issuer.verified(BY_ONE).principal == "ann"


@pytest.mark.parametrize("way", ["hangs", "trickles"])
def test_a_server_that_is_slow_is_given_up(
    server: JwksServer, clock: ManualClock, way: str
) -> None:
    hung_up = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(OK + b"content-length: 1000\r\n\r\n")
        try:
            while not server.gone.wait(0.02):
                handler.wfile.write(b" ")
        except ConnectionError:
            hung_up.set()

    server.answer = server.hang if way == "hangs" else trickle
    issuer = TrustedIssuer(options(server.url, timeout_s=0.3), clock)
    began_s = monotonic()
    fetched(issuer)
    assert 0.3 <= monotonic() - began_s < 5
    assert issuer.warnings()
    if way == "trickles":
        assert hung_up.wait(PATIENCE_S), "the thread does not read on"


def test_a_read_that_was_cancelled_keeps_no_event_loop(clock: ManualClock) -> None:
    """Also while the connection is made: the service ends then."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with contextlib.ExitStack() as stack:
            for _ in range(4):  # until connections are not taken any more
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(address)
            issuer = TrustedIssuer(options(f"http://127.0.0.1:{address[1]}/", timeout_s=30), clock)

            async def ask() -> None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(issuer._fetch(), 0.2)

            began_s = monotonic()
            asyncio.run(ask())
            assert monotonic() - began_s < 10


def test_a_server_that_is_away_is_no_failure(clock: ManualClock) -> None:
    with JwksServer() as gone:
        place = gone.url
    for url in (place, "http://127.0.0.1:1/", "https://no-such-host.invalid/keys"):
        issuer = TrustedIssuer(options(url), clock)
        fetched(issuer)
        assert "No JWT is accepted" in issuer.warnings()[0]


def test_a_server_of_another_ca_is_not_believed(
    server: JwksServer, clock: ManualClock, tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b", "other")
    server.use_tls(authority.sign())
    for ca, believed in ((other.ca, False), (authority.ca, True)):
        issuer = TrustedIssuer(options(server.url, tls=ClientTls(str(ca))), clock)
        fetched(issuer)
        assert bool(issuer.warnings()) is not believed
    assert issuer.verified(BY_ONE).principal == "ann"


def test_keys_in_a_file_are_read_again(clock: ManualClock, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    issuer = TrustedIssuer(options(str(file)), clock)
    fetched(issuer)
    assert issuer.warnings()
    file.write_bytes(jwks(ONE))
    fetched(issuer)
    assert issuer.verified(BY_ONE).principal == "ann"
    file.write_bytes(jwks(TWO))
    fetched(issuer)
    assert issuer.verified(BY_TWO).principal == "ann"


def test_a_file_that_is_none_or_too_large_is_not_read(clock: ManualClock, tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # the writer writes nothing
    large.write_bytes(jwks(ONE) + b" " * reading.DOCUMENT_BYTES_MAX)
    for place in (pipe, large, tmp_path, Path("/dev/zero")):
        issuer = TrustedIssuer(options(str(place)), clock)
        fetched(issuer)
        assert issuer.warnings(), place
    os.close(writer)


def test_keys_are_fetched_again_and_again_and_sooner_after_a_failure(
    server: JwksServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = TrustedIssuer(options(server.url), clock)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            server.raw(b"")
        elif len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(trusting.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(issuer.keep_fresh())
    assert pauses == [300.0, trusting.RETRY_S, trusting.RETRY_S] and len(server.asked) == 3


def test_a_library_that_is_missing_is_named(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "tms.access.jwks")
    with pytest.raises(ConfigError, match=r"jwt\.jwks needs joserfc.*tms-log\[server\]"):
        TrustedIssuer(options("/keys"), clock)


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://idp.test/keys", b"idp.test"), ("https://idp.test:444/keys", b"idp.test:444")],
)
def test_an_issuer_is_asked_by_its_host_without_the_default_port(url: str, host: bytes) -> None:
    connection = reading._IssuerConnection(urlsplit(url), ClientTls(), 1)
    connection.sock = Mock()
    connection.request("GET", "/keys")
    (sent,) = [bytes(call.args[0]) for call in connection.sock.sendall.call_args_list]
    assert b"\r\nHost: " + host + b"\r\n" in sent


@pytest.mark.parametrize("shut_down", [False, True])
def test_a_connection_that_was_shut_down_before_it_had_a_socket_ends_once_connected(
    shut_down: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = urlsplit(f"http://127.0.0.1:{listener.getsockname()[1]}/keys")
        connection = reading._IssuerConnection(url, ClientTls(), PATIENCE_S)
        with contextlib.closing(connection):
            if shut_down:
                connection.shut_down()
                with pytest.raises(TimeoutError):
                    connection.connect()
            else:
                connection.connect()
