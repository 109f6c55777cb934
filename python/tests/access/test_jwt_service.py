"""Tokens of an issuer at a service: their principals are like all others."""

import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tms
from tests.access_kit import People, until_polling, waits
from tests.clocks import LateClock
from tests.http_kit import Answer, Served, serving
from tests.jwt_kit import AUDIENCE, ISSUER, JwksServer, claims, jwks, key_of, sign
from tests.waiting import PATIENCE_S, until
from tests.yardstick import in_yardsticks
from tms.access.jwt import ALGORITHMS, JwtRules
from tms.access.records import FIRST
from tms.client.client import Bus
from tms.errors import Forbidden, Overloaded, Unauthenticated, Unavailable
from tms.runtime.tls import ClientTls
from tms.server import guard as guarding
from tms.server import issuer as trusting
from tms.server.issuer import IssuerOptions
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore

RULES = JwtRules(ISSUER, AUDIENCE, "sub", frozenset(ALGORITHMS), 0)
KEY = key_of("ES256")
WHOAMI = "/v2/access/whoami"


def network(jwks: str, timeout_s: float = PATIENCE_S) -> NetworkOptions:
    issuer = IssuerOptions(jwks, RULES, ClientTls(), 300.0, 600.0, timeout_s)
    return NetworkOptions(AccessLimits(issuer=issuer))


@pytest.fixture
def issuer() -> Iterator[JwksServer]:
    with JwksServer(jwks(KEY)) as server:
        yield server


@pytest.fixture
def served(issuer: JwksServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(guarding, "GUESS_S", 0.0)
    with serving(MemoryStore(), network=network(issuer.url)) as served:
        until_fetched(served)
        yield served


@pytest.fixture
def people(served: Served) -> People:
    return People(served)


def until_fetched(served: Served) -> None:
    issuer = served.service.issuer
    until(lambda: not issuer or not issuer.warnings(), "the keys are fetched")


def ask(served: Served, token: str, path: str = WHOAMI) -> Answer:
    with served.connect() as client:
        return client.request("GET", path, Authorization=f"Bearer {token}")


def of(people: People, principal: str, *grants: str, **more: Any) -> Bus:
    """A bus whose caller shows a JWT."""
    for grant in grants:
        verb, _, pattern = grant.partition(" ")
        people.access.add_grant(principal, verb, pattern)
    return tms.connect(people.url, token=sign(KEY, claims(principal, **more)))


def test_its_principal_has_grants_and_quotas_and_is_written_down_like_others(
    people: People, caplog: pytest.LogCaptureFixture
) -> None:
    with people.bus("admin", "all *") as admin, of(people, "ann") as ann:
        admin.create_topic("orders")
        assert ann.admin.access.whoami().principal == "ann"
        with caplog.at_level(logging.WARNING, "tms.audit"), pytest.raises(Forbidden):
            ann.publish("orders", b"x")
        assert "ann" in str(vars(caplog.records[-1]))
        admin.admin.access.add_grant("ann", "publish", "topic:orders")
        ann.publish("orders", b"x")
        with of(people, "boss", "manage access") as boss:
            boss.admin.access.create_token("eve")
        admin.admin.access.set_quota("ann", requests_s=0.01)
        with pytest.raises(Overloaded):
            for _ in range(3):
                ann.admin.transactions.begin()


@pytest.mark.parametrize(
    "name", [FIRST, "@instance", "*", "", "a b", "ann\n", "x" * 129, "a/b", "anonymous\0", "ä"]
)
def test_its_principal_is_none_that_tms_makes_itself(people: People, name: str) -> None:
    people.access.first_token()  # to have a grant of the first administrator
    answer = ask(people.served, sign(KEY, claims(name)))
    assert answer.problem == "unauthenticated" and b"jwt.principal" in answer.body


def test_it_is_not_believed_to_be_an_instance(people: People) -> None:
    with people.served.connect() as client:
        spoofed = {"TMS_Peer": "0" * 64, "TMS_Principal": "admin"}
        token = sign(KEY, claims("eve"))
        answer = client.request("GET", WHOAMI, Authorization=f"Bearer {token}", **spoofed)
    assert answer.status == 403


@pytest.mark.parametrize(
    "token",
    [
        sign(key_of("ES256"), claims()),
        sign(key_of("ES256", "other"), claims()),
        sign(KEY, claims(aud="other")),
        sign(KEY, claims(exp=1)),
        sign(KEY, claims(pad="x" * 9_000)),
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.",
        "a.b.c",
        "..",
        sign(KEY, claims()) + ".x",
    ],
)
def test_what_is_no_valid_one_is_refused(people: People, token: str) -> None:
    with people.served.connect() as client:
        answer = client.request("GET", WHOAMI, Authorization=f"Bearer {token}")
        assert answer.problem == "unauthenticated"
        assert token.encode() not in answer.body
        good = sign(KEY, claims("ann"))  # the connection stays usable
        assert client.request("GET", WHOAMI, Authorization=f"Bearer {good}").status == 200


def test_an_oversized_one_is_refused_before_it_is_read(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(trusting, "verify", never)
    answer = ask(people.served, sign(KEY, claims(pad="x" * guarding.TOKEN_BYTES_MAX)))
    assert answer.problem == "unauthenticated"


def test_one_in_a_url_is_refused(people: People) -> None:
    token = sign(KEY, claims())
    for query in (f"access_token={token}", token, f"a=b&x={token}&c=d"):
        answer = ask(people.served, token, f"{WHOAMI}?{query}")
        assert answer.status == 400 and b"revoke this one" in answer.body
        assert token.encode() not in answer.body


def test_without_an_issuer_it_is_a_token_that_is_not_known() -> None:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        answer = ask(served, sign(KEY, claims()))
        assert answer.problem == "unauthenticated" and b"mistyped" in answer.body


def test_a_new_key_is_fetched_when_a_token_names_it(
    people: People, issuer: JwksServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = key_of("ES256", "new")
    issuer.document = jwks(KEY, new)
    assert ask(people.served, sign(new, claims("ann"))).status == 401  # keys were fetched just now
    monkeypatch.setattr(trusting, "REFETCH_S", 0.0)
    assert ask(people.served, sign(new, claims("ann"))).json["principal"] == "ann"
    asked = len(issuer.asked)
    monkeypatch.setattr(trusting, "REFETCH_S", 10.0)
    for number in range(20):
        token = sign(key_of("ES256", f"forged-{number}"), claims("ann"))
        assert ask(people.served, token).problem == "unauthenticated"
    assert len(issuer.asked) == asked


def test_a_caller_that_guesses_with_forged_tokens_waits(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "GUESS_S", 0.5)
    forged = sign(key_of("ES256"), claims())
    for _ in range(guarding.GUESSES_FREE):
        ask(people.served, forged)
    began_s = time.monotonic()
    ask(people.served, forged)
    assert time.monotonic() - began_s >= 0.5


# --- an issuer that is away -----------------------------------------------------------------------


def test_a_service_starts_without_its_issuer_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trusting, "RETRY_S", 0.05)
    with JwksServer(jwks(KEY)) as issuer:
        issuer.raw(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
        with serving(MemoryStore(), network=network(issuer.url)) as served:
            people = People(served)
            assert ask(served, people.token("opaque")).json["principal"] == "opaque"
            answer = ask(served, sign(KEY, claims("ann")))
            assert answer.problem == "unavailable" and answer.headers["retry-after"]
            ready = ask(served, "", "/readyz")
            assert ready.status == 200 and "jwt.jwks" in ready.json["warnings"][0]
            issuer.answer = issuer.send
            until_fetched(served)
            assert ask(served, sign(KEY, claims("ann"))).json["principal"] == "ann"
            assert ask(served, "", "/readyz").json["warnings"] == []


def test_a_slow_issuer_holds_up_nobody_but_who_names_a_key_that_is_not_known(
    people: People, issuer: JwksServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusting, "REFETCH_S", 0.0)
    issuer.answer = issuer.hang
    opaque, good = people.token("opaque"), sign(KEY, claims("ann"))
    held: list[Answer] = []
    forged = sign(key_of("ES256", "other"), claims())
    asked = len(issuer.asked)
    thread = threading.Thread(target=lambda: held.append(ask(people.served, forged)))
    thread.start()
    until(lambda: len(issuer.asked) > asked)
    for _ in range(20):
        assert ask(people.served, opaque).status == ask(people.served, good).status == 200
    assert not held
    issuer.gone.set()
    thread.join(PATIENCE_S)
    assert held[0].problem == "unauthenticated"


# --- requests that wait ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jwt", "opaque"])
def test_a_long_poll_ends_when_its_token_expires(
    people: People, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(guarding, "EXPIRY_S", 0.05)
    with people.bus("admin", "all *") as admin:
        admin.create_topic("calm")
        admin.admin.access.add_grant("ann", "consume", "topic:calm")
        if kind == "jwt":
            token = sign(KEY, claims("ann", exp=time.time() + 1_800))
        else:
            token = people.access.create_token("ann", 1_800).token
        guard, issuer = people.served.service.guard, people.served.service.issuer
        assert guard is not None and issuer is not None
        with tms.connect(people.url, token=token) as ann:
            thread, ended = waits(ann, "calm")
            until_polling(people, "ann")
            thread.join(4 * guarding.EXPIRY_S)
            assert thread.is_alive(), ended
            for expires in (guard, issuer, people.access):
                monkeypatch.setattr(expires, "_clock", LateClock(behind_ms=-3_600_000))
            thread.join(PATIENCE_S)
        assert isinstance(ended[0], Unauthenticated | Unavailable), ended
        assert not guard._expiring
        with tms.connect(people.url, token=sign(KEY, claims("ann"))) as ann:
            thread, ended = waits(ann, "calm")
            until_polling(people, "ann")
            admin.publish("calm", b"x")  # a caller with a valid token goes on
            thread.join(PATIENCE_S)
        assert isinstance(ended[0], float)
        people.served.in_loop(lambda: None)
        assert not guard._expiring


def test_a_long_poll_ends_when_the_key_of_its_token_is_taken_back(
    people: People, issuer: JwksServer
) -> None:
    with people.bus("admin", "all *") as admin, of(people, "ann", "consume topic:calm") as ann:
        admin.create_topic("calm")
        thread, ended = waits(ann, "calm")
        until_polling(people, "ann")
        issuer.document = jwks(key_of("ES256", "two"))
        trusted = people.served.service.issuer
        assert trusted is not None
        trusted._began_s = None
        assert ask(people.served, sign(key_of("ES256", "x"), claims())).status == 401
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert isinstance(ended[0], Unauthenticated | Unavailable), ended


def test_one_that_was_verified_costs_little(people: People) -> None:
    """Checked with lengths up to 1 KiB."""
    guard = people.served.service.guard
    assert guard is not None
    token = sign(KEY, claims("ann", pad="x" * 500)).encode()
    exchange: Any = SimpleNamespace(
        headers={b"authorization": b"Bearer " + token}, peer_certificate_name=None
    )
    assert guard._shown(exchange).principal == "ann"
    assert in_yardsticks(lambda _: guard._shown(exchange)) < 30
