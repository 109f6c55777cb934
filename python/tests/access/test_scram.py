"""SCRAM at the side that knows verifiers."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from tms.access import scram
from tms.access.scram import ScramExchange, ScramVerifier
from tms.errors import Malformed

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT, SERVER = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT}".encode()
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
FINAL = f"c=biws,r={CLIENT}{SERVER},p={PROOF}".encode()
PENCIL = scram.verifier("sha256", b"pencil", SALT)
OTHER = scram.verifier("sha256", b"pen", SALT)


def begun(first: bytes = FIRST, algorithm: str = "sha256") -> ScramExchange:
    exchange = ScramExchange(algorithm, SERVER)
    assert exchange.begin(first) == "user"
    exchange.challenge(SALT)
    return exchange


def final(password: bytes, algorithm: str, challenge: bytes, nonce: str = CLIENT + SERVER) -> bytes:
    """The last message of a client, by the formulas of RFC 5802."""
    salted = hashlib.pbkdf2_hmac(algorithm, password, SALT, 4_096)
    key = hmac.digest(salted, b"Client Key", algorithm)
    without = f"c=biws,r={nonce}"
    about = b",".join((FIRST[3:], challenge, without.encode()))
    signature = hmac.digest(hashlib.new(algorithm, key).digest(), about, algorithm)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{without},p={b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677() -> None:
    exchange = ScramExchange("sha256", SERVER)
    assert exchange.begin(FIRST) == "user"
    challenge = exchange.challenge(SALT)
    assert challenge == f"r={CLIENT}{SERVER},s={b64encode(SALT).decode()},i=4096".encode()
    signature = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.finish(FINAL, [PENCIL]) == (0, signature)


@pytest.mark.parametrize("algorithm", scram.ALGORITHMS.values())
def test_a_proof_is_compared_with_each_token_of_a_principal(algorithm: str) -> None:
    verifiers = [scram.verifier(algorithm, one, SALT) for one in (b"a", b"b", b"c")]
    for index, password in enumerate((b"a", b"b", b"c")):
        exchange = ScramExchange(algorithm, SERVER)
        exchange.begin(FIRST)
        challenge = exchange.challenge(SALT)
        found = exchange.finish(final(password, algorithm, challenge), verifiers)
        assert found is not None and found[0] == index
    assert begun(algorithm=algorithm).finish(FINAL, []) is None


def test_a_verifier_is_stored_and_read() -> None:
    assert scram.unpacked(scram.packed(PENCIL)) == PENCIL
    assert "pencil" not in scram.packed(PENCIL)


@pytest.mark.parametrize(
    "message",
    [
        f"c=biws,r={CLIENT}{SERVER},p={b64encode(bytes(32)).decode()}",  # another proof
        f"c=biws,r={CLIENT}{SERVER},p={b64encode(bytes(64)).decode()}",  # of another length
        f"c=biws,r={CLIENT}other,p={PROOF}",  # another nonce
        f"c=eSws,r={CLIENT}{SERVER},p={PROOF}",  # another beginning than that of the exchange
        f"c=biws,r={CLIENT}{SERVER},x=1,p={PROOF}",  # an extension that the proof is not about
    ],
)
def test_what_proves_nothing_is_refused(message: str) -> None:
    assert begun().finish(message.encode(), [PENCIL, OTHER]) is None


def test_a_client_that_knows_the_token_names_the_nonce_of_the_exchange() -> None:
    for nonce, is_right in ((CLIENT + SERVER, True), (CLIENT, False), (CLIENT + "x", False)):
        exchange = ScramExchange("sha256", SERVER)
        exchange.begin(FIRST)
        message = final(b"pencil", "sha256", exchange.challenge(SALT), nonce)
        assert (exchange.finish(message, [PENCIL]) is not None) is is_right


def test_a_proof_is_valid_for_one_exchange_and_one_token() -> None:
    assert begun().finish(FINAL, [OTHER]) is None
    again = ScramExchange("sha256", "another")
    again.begin(FIRST)
    again.challenge(SALT)
    assert again.finish(FINAL, [PENCIL]) is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"\xff\xfe",
        b"n,,n=user\0,r=x",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"n,,m=must,n=user,r=x",  # an extension that has to be understood
        b"n,a=other,n=user,r=x",  # acts for another user
        b"p=tls-unique,,n=user,r=x",  # demands a bound channel
        b"n,,n=us=er,r=x",
        b"n,,n=user,r=" + b"x" * scram.MESSAGE_BYTES_MAX,
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        ScramExchange("sha256", SERVER).begin(message)


@pytest.mark.parametrize(
    "message",
    [b"", b"c=biws", b"c=biws,r=x", b"r=x,c=biws,p=eA==", b"c=!,r=x,p=eA==", b"c=biws,r=x,p=!"],
)
def test_a_last_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        begun().finish(message, [PENCIL])


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"n,,n=user,r=x,ext=1", "user"),
        (b"y,,n=user,r=x", "user"),
        (b"n,a=user,n=user,r=x", "user"),
        (b"n,,n=a=2Cb=3Dc,r=x", "a,b=c"),
    ],
)
def test_names_and_what_may_come_with_them(message: bytes, user: str) -> None:
    assert ScramExchange("sha256", SERVER).begin(message) == user


def test_every_truncation_of_a_last_message_proves_nothing() -> None:
    for size in range(len(FINAL)):
        try:
            assert begun().finish(FINAL[:size], [PENCIL]) is None
        except Malformed:
            continue


def test_principals_have_salts_of_their_own() -> None:
    assert scram.salt_of("ann") != scram.salt_of("bob")
    assert len(scram.salt_of("ann")) == scram.SALT_BYTES
    assert isinstance(PENCIL, ScramVerifier)
