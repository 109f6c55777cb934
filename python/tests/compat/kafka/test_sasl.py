"""Authentication of Kafka's connections by SASL, frame by frame."""

import logging
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import new, pbkdf2_hmac
from hmac import digest
from typing import Any

import msgspec
import pytest

import tms
from tests.access_kit import People
from tests.clocks import ManualClock
from tests.jwt_kit import AUDIENCE, ISSUER, JwksServer, claims, jwks, key_of, sign
from tests.kafka_kit import ENDED, Broker, KafkaConnection, kafka_serving
from tests.waiting import PATIENCE_S, until
from tms.access.jwt import ALGORITHMS, JwtRules
from tms.access.scram import salt_of
from tms.compat.kafka import codec, requests
from tms.compat.kafka.errors import ErrorCode
from tms.model import keys
from tms.runtime.tls import ClientTls
from tms.server import guard as guarding
from tms.server.issuer import IssuerOptions
from tms.server.service import AccessLimits
from tms.store.memory import MemoryStore

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
FAILED, ILLEGAL = ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.ILLEGAL_SASL_STATE


@pytest.fixture(scope="module")
def broker(clock: ManualClock, prompt_refusals: None) -> Iterator[Broker]:
    with kafka_serving(MemoryStore(shared=True), clock, AccessLimits()) as broker:
        yield broker


@pytest.fixture(scope="module")
def people(broker: Broker) -> People:
    return People(broker.served)


@pytest.fixture(scope="module")
def ann(people: People) -> str:
    return people.token("ann", "all topic:orders")


def shake(kafka: KafkaConnection, mechanism: str, version: int = 1) -> Any:
    return kafka.ask("SaslHandshake", version, mechanism=mechanism)


def say(kafka: KafkaConnection, message: bytes, version: int = 2) -> Any:
    return kafka.ask("SaslAuthenticate", version, auth_bytes=message)


def plain(user: str, token: str, authorized: str = "") -> bytes:
    return f"{authorized}\0{user}\0{token}".encode()


class ScramClient:
    """A client of SCRAM, by the formulas of RFC 5802."""

    def __init__(self, mechanism: str, user: str, token: str) -> None:
        self._algorithm = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._token = token.encode()
        self.bare = f"n={user},r=abcdefgh"

    def first(self, binding: str = "n,,") -> bytes:
        return (binding + self.bare).encode()

    def last(self, challenge: bytes, binding: bytes = b"n,,") -> bytes:
        nonce, salt, count = (part[2:] for part in challenge.decode().split(","))
        salted = pbkdf2_hmac(self._algorithm, self._token, b64decode(salt), int(count))
        key = digest(salted, b"Client Key", self._algorithm)
        without = f"c={b64encode(binding).decode()},r={nonce}"
        about = f"{self.bare},{challenge.decode()},{without}".encode()
        signature = digest(new(self._algorithm, key).digest(), about, self._algorithm)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.signature = b"v=" + b64encode(
            digest(digest(salted, b"Server Key", self._algorithm), about, self._algorithm)
        )
        return f"{without},p={b64encode(proof).decode()}".encode()


def authenticate(kafka: KafkaConnection, mechanism: str, user: str, token: str) -> Any:
    """The answer to the last message."""
    assert not shake(kafka, mechanism).error_code
    if mechanism == "PLAIN":
        return say(kafka, plain(user, token))
    client = ScramClient(mechanism, user, token)
    challenge = say(kafka, client.first())
    if challenge.error_code:
        return challenge
    answer = say(kafka, client.last(challenge.auth_bytes))
    if not answer.error_code:
        assert answer.auth_bytes == client.signature  # the service knows the token, too
    return answer


def is_known(kafka: KafkaConnection) -> bool:
    """True if the connection has a session, which is asked for by a request."""
    try:
        return not kafka.ask("DescribeCluster", 0).error_code
    except ENDED:
        return False


def is_closed(kafka: KafkaConnection) -> bool:
    try:
        return kafka.socket.recv(1) == b""
    except ConnectionError:
        return True


# -- before ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [one.name for one in requests.load().values()])
def test_nothing_is_answered_before_a_client_has_authenticated(broker: Broker, name: str) -> None:
    request = next(one for one in requests.load().values() if one.name == name)
    for version in (request.versions.first, request.versions.last):
        with broker.connect() as kafka:
            if name in ("ApiVersions", "SaslHandshake", "SaslAuthenticate"):
                kafka.ask(name, version)
                continue
            with pytest.raises(ENDED):
                kafka.ask(name, version)


def test_a_large_frame_is_taken_from_known_clients_only(broker: Broker, ann: str) -> None:
    size = 64 << 10
    with broker.connect() as kafka:
        kafka.socket.sendall((size + 1).to_bytes(4, "big"))
        assert is_closed(kafka)
    with broker.connect("ann", ann) as kafka:
        kafka.ask("ApiVersions", 0, client_software_name="x")
        kafka.send_body("DescribeCluster", 0, b"\0" + bytes(2 * size))
        assert not kafka.answer().error_code


def test_a_client_that_does_not_authenticate_is_closed(ann: str) -> None:
    with kafka_serving(access=AccessLimits(), frame_timeout_s=1) as broker:
        token = People(broker.served).token("ann")
        with broker.connect() as silent, broker.connect("ann", token) as known:
            began = time.monotonic()
            assert is_closed(silent)
            assert time.monotonic() - began > 0.5
            assert is_known(known)
            until(lambda: len(broker.front._authentications) == 1, "the connection is forgotten")


# -- mechanisms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_principal_authenticates_by_its_token(
    kafka: KafkaConnection, ann: str, mechanism: str, version: int
) -> None:
    answer = authenticate(kafka, mechanism, "ann", ann)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert answer.session_lifetime_ms == 0  # the token does not expire
    assert is_known(kafka)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_token_of_a_principal_is_one(
    broker: Broker, people: People, ann: str, mechanism: str
) -> None:
    for token in (people.token("ann"), ann, people.token("ann")):
        with broker.connect() as kafka:
            assert not authenticate(kafka, mechanism, "ann", token).error_code


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_messages_without_a_header_are_those_of_the_oldest_clients(
    kafka: KafkaConnection, broker: Broker, ann: str, mechanism: str
) -> None:
    def raw(to: KafkaConnection, message: bytes) -> bytes:
        to.socket.sendall(len(message).to_bytes(4, "big") + message)
        return to.frame()

    assert shake(kafka, mechanism, 0).mechanisms == MECHANISMS
    if mechanism == "PLAIN":
        assert raw(kafka, plain("ann", ann)) == b""
    else:
        client = ScramClient(mechanism, "ann", ann)
        last = client.last(raw(kafka, client.first()))
        assert raw(kafka, last) == client.signature
    assert is_known(kafka)
    with broker.connect() as wrong, pytest.raises(ENDED):
        shake(wrong, mechanism, 0)
        raw(wrong, b"garbage")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_principal_and_a_wrong_token_look_the_same(
    broker: Broker, people: People, ann: str, mechanism: str
) -> None:
    other = people.token("bob")
    told = set()
    for user, token in (("ann", "wrong"), ("nobody", "wrong"), ("nobody", ann), ("ann", other)):
        with broker.connect() as kafka:
            answer = authenticate(kafka, mechanism, user, token)
            told.add((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
            assert is_closed(kafka)
    [(code, message, said)] = told
    assert (code, said) == (FAILED, b"") and "tms token create" in message


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("one_time", [False, True])
def test_a_session_of_the_console_is_no_token(
    broker: Broker, people: People, mechanism: str, one_time: bool
) -> None:
    with tms.connect(people.url, token=people.token("seen")) as bus:
        session = bus.admin.access.create_session(one_time)
    with broker.connect() as kafka:
        assert authenticate(kafka, mechanism, "seen", session.token).error_code == FAILED


def test_an_unknown_principal_gets_a_challenge_like_others(broker: Broker) -> None:
    for user in ("ann", "nobody"):
        challenges = []
        for _ in range(2):
            with broker.connect() as kafka:
                shake(kafka, MECHANISMS[1])
                client = ScramClient(MECHANISMS[1], user, "")
                challenges.append(bytes(say(kafka, client.first()).auth_bytes))
        salt = b64encode(salt_of(user)).decode()
        assert all(f",s={salt},i=4096" in one.decode() for one in challenges)
        assert challenges[0] != challenges[1]  # the nonce


def test_a_mechanism_that_is_not_there_ends_the_connection(kafka: KafkaConnection) -> None:
    answer = shake(kafka, "GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == MECHANISMS
    assert is_closed(kafka)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\0\0\0",
        b"\xff\0\xff\0\xff",
        b"n,,n=ann",
        b"p=x,,n=ann,r=x",
        b"x" * 9999,
    ],
)
def test_garbage_fails_and_ends_the_connection(
    kafka: KafkaConnection, mechanism: str, message: bytes
) -> None:
    shake(kafka, mechanism)
    assert say(kafka, message).error_code == FAILED
    assert is_closed(kafka)


def test_a_client_authenticates_for_itself(broker: Broker, ann: str) -> None:
    for authorized, code in (("ann", 0), ("bob", FAILED)):
        with broker.connect() as kafka:
            shake(kafka, "PLAIN")
            assert say(kafka, plain("ann", ann, authorized)).error_code == code


def test_what_one_exchange_proved_proves_nothing_in_another(broker: Broker, ann: str) -> None:
    client = ScramClient(MECHANISMS[1], "ann", ann)
    with broker.connect() as kafka:
        shake(kafka, MECHANISMS[1])
        last = client.last(say(kafka, client.first()).auth_bytes)
        assert not say(kafka, last).error_code
    with broker.connect() as kafka:
        shake(kafka, MECHANISMS[1])
        say(kafka, client.first())
        assert say(kafka, last).error_code == FAILED


@pytest.mark.parametrize("binding", ["y,,", "n,a=ann,", "p=tls-unique,,", "p=tls-exporter,,"])
def test_no_channel_is_bound(broker: Broker, ann: str, binding: str) -> None:
    client = ScramClient(MECHANISMS[2], "ann", ann)
    with broker.connect() as kafka:
        shake(kafka, MECHANISMS[2])
        answer = say(kafka, client.first(binding))
        if binding.startswith("p"):
            assert answer.error_code == FAILED
            return
        last = client.last(answer.auth_bytes, binding.encode())
        assert not say(kafka, last).error_code
    with broker.connect() as kafka:  # the beginning was changed on the way
        shake(kafka, MECHANISMS[2])
        last = client.last(say(kafka, client.first()).auth_bytes, binding.encode())
        assert say(kafka, last).error_code == FAILED


def test_a_token_of_an_earlier_version_has_no_verifier(broker: Broker, people: People) -> None:
    token = people.token("older")
    metadata = broker.served.service.engine.topics.registry.metadata
    [(key, raw)] = [
        (key, raw)
        for key, raw in metadata.scan(
            keys.TOKEN_PREFIX, keys.prefix_stop(keys.TOKEN_PREFIX), 1 << 20
        )
        if b'"older"' in raw
    ]
    record = msgspec.json.decode(raw)
    del record["scram"]
    metadata.delete([key])
    assert metadata.compare_and_set(key, None, msgspec.json.encode(record))
    people.access.add_grant("older", "observe", "topic:x")  # has the records read again
    with broker.connect() as kafka:
        assert not authenticate(kafka, "PLAIN", "older", token).error_code
    with broker.connect() as kafka:
        answer = authenticate(kafka, MECHANISMS[1], "older", token)
        assert answer.error_code == FAILED and "earlier version of TMS" in answer.error_message


# -- states ----------------------------------------------------------------------------------------


def test_a_message_without_a_mechanism_ends_the_connection(kafka: KafkaConnection) -> None:
    assert say(kafka, b"x").error_code == ILLEGAL
    assert is_closed(kafka)


def test_a_mechanism_is_chosen_once(kafka: KafkaConnection) -> None:
    shake(kafka, "PLAIN")
    assert shake(kafka, "PLAIN").error_code == ILLEGAL
    assert is_closed(kafka)


@pytest.mark.parametrize("name", ["Metadata", "DescribeCluster"])
def test_no_request_comes_into_an_authentication(
    kafka: KafkaConnection, ann: str, name: str
) -> None:
    shake(kafka, "PLAIN")
    with pytest.raises(ENDED):
        kafka.ask(name, 1)


def test_a_client_that_is_known_need_not_authenticate_again(
    broker: Broker, people: People, ann: str
) -> None:
    with broker.connect("ann", ann) as kafka:
        assert shake(kafka, "PLAIN").error_code == ILLEGAL
        assert say(kafka, plain("bob", people.token("bob"))).error_code == ILLEGAL
        assert is_known(kafka)


def test_what_follows_a_failure_on_its_connection_is_not_answered(
    kafka: KafkaConnection, ann: str
) -> None:
    sent: list[tuple[str, dict[str, Any]]] = [
        ("SaslHandshake", {"mechanism": "PLAIN"}),
        ("SaslAuthenticate", {"auth_bytes": plain("ann", "wrong")}),
        ("SaslHandshake", {"mechanism": "PLAIN"}),
        ("SaslAuthenticate", {"auth_bytes": plain("ann", ann)}),
        ("DescribeCluster", {}),
    ]
    frames = []
    for name, fields in sent:
        message = codec.class_of(f"{name}Request")(**fields)
        version = 1 if fields else 0
        body = b"".join(codec.writer(f"{name}Request", version)(message))
        frames.append(kafka.framed(name, version, body))
    kafka.socket.sendall(b"".join(frames))
    assert not kafka.answer().error_code
    with pytest.raises(ENDED):
        assert kafka.answer().error_code == FAILED  # it may be lost with what was not read
        kafka.answer()


def test_a_session_belongs_to_its_connection(broker: Broker, ann: str) -> None:
    with broker.connect("ann", ann) as known, broker.connect() as other:
        assert is_known(known)
        assert not is_known(other)
        assert is_known(known)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_session_is_renewed_before_its_token_expires(
    broker: Broker, people: People, clock: ManualClock, mechanism: str
) -> None:
    def token(principal: str) -> str:
        return people.access.create_token(principal, expires_s=60).token

    with broker.connect() as kafka, broker.connect() as other, broker.connect() as stays:
        for one in (kafka, other, stays):
            answer = authenticate(one, mechanism, "brief", token("brief"))
            assert answer.session_lifetime_ms == 60_000
        clock.pass_ms(50_000)
        answer = authenticate(kafka, mechanism, "brief", token("brief"))
        assert answer.session_lifetime_ms == 60_000
        answer = authenticate(other, mechanism, "someone", token("someone"))
        assert answer.error_code == FAILED and "belongs to brief" in answer.error_message
        clock.pass_ms(20_000)
        assert is_known(kafka)
        assert not is_known(stays)


def test_no_request_comes_into_a_renewal(broker: Broker, people: People) -> None:
    token = people.access.create_token("brief", expires_s=60).token
    with broker.connect("brief", token) as kafka:
        assert not shake(kafka, "PLAIN").error_code
        assert not is_known(kafka)


def test_a_session_is_renewed_by_its_mechanism_only(broker: Broker, people: People) -> None:
    token = people.access.create_token("brief", expires_s=60).token
    with broker.connect("brief", token) as kafka:
        assert shake(kafka, MECHANISMS[1]).error_code == ILLEGAL
        assert is_closed(kafka)


# -- guesses, and what is written ------------------------------------------------------------------


def test_a_client_that_guesses_waits(
    broker: Broker, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = broker.served.service.guard
    assert guard is not None
    guard.decisions._refusals.clear()
    monkeypatch.setattr(guarding, "GUESS_S", 0.5)
    waited = []
    for number in range(7):
        began = time.monotonic()
        with broker.connect() as kafka:
            mechanism = MECHANISMS[number % 3]
            assert authenticate(kafka, mechanism, f"guess{number}", "wrong").error_code == FAILED
        waited.append(time.monotonic() - began)
    assert min(waited[5:]) > 0.5


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_failures_are_counted_and_no_secret_is_logged(
    broker: Broker, ann: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = broker.served.service.guard
    assert guard is not None
    guard.decisions._refusals.clear()
    counted = broker.served.service.metrics.front_answers
    before = counted["kafka", "SaslAuthenticate", FAILED.name]
    with caplog.at_level(logging.DEBUG), broker.connect() as kafka:
        authenticate(kafka, mechanism, "ann", f"{ann}x")
    assert counted["kafka", "SaslAuthenticate", FAILED.name] == before + 1
    [refused] = [one for one in caplog.messages if "access_refused" in one]
    assert "why='wrong token'" in refused and "kafka.SaslAuthenticate" in refused
    assert not any(ann[17:] in one for one in caplog.messages)


def test_a_service_without_access_control_takes_no_sasl() -> None:
    with kafka_serving() as broker, broker.connect() as kafka:
        assert shake(kafka, "PLAIN").error_code == ILLEGAL
        assert say(kafka, b"\0a\0b").error_code == ILLEGAL
        assert is_known(kafka)


def test_a_new_connection_brings_no_new_quota(broker: Broker, people: People) -> None:
    token = people.token("hasty")
    people.access.set_quota("hasty", requests_s=2)
    began = time.monotonic()
    for _ in range(6):
        with broker.connect("hasty", token) as kafka:
            assert is_known(kafka)
    assert time.monotonic() - began > 1.0  # 2 at once, then 2 a second


def test_a_client_that_sends_no_more_brings_no_new_quota(broker: Broker, people: People) -> None:
    token = people.token("leaves")
    people.access.set_quota("leaves", requests_s=2)
    began = time.monotonic()
    for _ in range(6):
        with broker.connect() as kafka:
            kafka.send("SaslHandshake", 1, mechanism="PLAIN")
            kafka.send("SaslAuthenticate", 2, auth_bytes=plain("leaves", token))
            kafka.send("DescribeCluster", 0)
            kafka.socket.shutdown(socket.SHUT_WR)
            assert [kafka.answer().error_code for _ in range(3)] == [0, 0, 0]
    assert time.monotonic() - began > 1.0  # 2 at once, then 2 a second


def test_renewals_count_for_the_quota_also_without_headers(
    broker: Broker, people: People, kafka: KafkaConnection
) -> None:
    token = people.access.create_token("renews", expires_s=60).token
    assert not shake(kafka, "PLAIN", 0).error_code
    message = plain("renews", token)
    kafka.socket.sendall(len(message).to_bytes(4, "big") + message)
    assert kafka.frame() == b""
    people.access.set_quota("renews", requests_s=4)
    began = time.monotonic()
    for _ in range(6):
        assert not shake(kafka, "PLAIN", 0).error_code
        kafka.socket.sendall(len(message).to_bytes(4, "big") + message)
        assert kafka.frame() == b""
    assert time.monotonic() - began > 1.5  # 4 at once, then 4 a second


# -- other credentials -----------------------------------------------------------------------------


def test_a_token_of_an_issuer_is_a_password_of_plain() -> None:
    key = key_of("ES256")
    rules = JwtRules(ISSUER, AUDIENCE, "sub", frozenset(ALGORITHMS), 0)
    with JwksServer(jwks(key)) as server:
        options = IssuerOptions(server.url, rules, ClientTls(), 300.0, 600.0, PATIENCE_S)
        with kafka_serving(access=AccessLimits(issuer=options)) as broker:
            token = sign(key, claims("ann@login.example"))
            issuer = broker.served.service.issuer
            until(lambda: not issuer or not issuer.warnings(), "the keys are fetched")
            with broker.connect() as kafka:
                answer = authenticate(kafka, "PLAIN", "ann@login.example", token)
                assert not answer.error_code and answer.session_lifetime_ms > 0
                assert is_known(kafka)
            with broker.connect() as kafka:
                assert authenticate(kafka, "PLAIN", "bob", token).error_code == FAILED


def test_a_client_tries_again_while_the_keys_of_an_issuer_are_not_there() -> None:
    rules = JwtRules(ISSUER, AUDIENCE, "sub", frozenset(ALGORITHMS), 0)
    options = IssuerOptions("/nowhere/keys", rules, ClientTls(), 300.0, 600.0, PATIENCE_S)
    with (
        kafka_serving(access=AccessLimits(issuer=options)) as broker,
        broker.connect() as kafka,
        pytest.raises(ENDED),
    ):
        authenticate(kafka, "PLAIN", "ann", sign(key_of("ES256"), claims()))


def test_connections_that_end_leave_nothing(broker: Broker, ann: str) -> None:
    for _ in range(20):
        client = socket.create_connection(broker.address)
        client.sendall(b"\0")
        client.close()
        broker.connect("ann", ann).socket.close()
    until(lambda: not broker.front._authentications, "all are forgotten")
