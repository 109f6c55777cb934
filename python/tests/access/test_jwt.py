"""Tokens of other issuers: verified ones, and every reason to refuse one."""

import json
import random
from typing import Any

import pytest
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from tests.clocks import START_MS
from tests.jwt_kit import AUDIENCE, ISSUER, b64, claims, hmac_with, jwks, key_of, sign
from tms.access import jwks as keys_module
from tms.access.jwks import IssuerKeys, keys_in
from tms.access.jwt import ALGORITHMS, JwtRules, UnknownKey, VerifiedJwt, is_jwt, verify
from tms.errors import Malformed, Unauthenticated

RULES = JwtRules(ISSUER, AUDIENCE, "sub", frozenset(ALGORITHMS), 0)
NOW_S = START_MS // 1_000
KEY = key_of("ES256")
RSA = key_of("RS256", "rsa")
KEYS = keys_in(jwks(KEY, RSA))


def look(
    token: str | bytes, keys: IssuerKeys = KEYS, rules: JwtRules = RULES, now_ms: int = START_MS
) -> VerifiedJwt:
    raw = token.encode() if isinstance(token, str) else token
    assert is_jwt(raw), raw
    return verify(raw, lambda: keys, rules, now_ms)


def refused(token: str | bytes, why: str, **more: Any) -> None:
    with pytest.raises(Unauthenticated, match=why):
        look(token, **more)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_names_its_principal(algorithm: str) -> None:
    key = key_of(algorithm)
    token = sign(key, claims("ann", exp=NOW_S + 60), algorithm)
    found = look(token, keys_in(jwks(key)))
    assert found == ("ann", 1_000 * (NOW_S + 60), key.thumbprint())
    other = key_of(algorithm)
    refused(sign(other, claims(), algorithm), "signature", keys=keys_in(jwks(key)))


def test_the_claim_that_names_the_principal_is_configured() -> None:
    rules = RULES._replace(principal="email")
    assert look(sign(KEY, claims(email="ann@b.c")), rules=rules).principal == "ann@b.c"
    refused(sign(KEY, claims()), r"claim email \(jwt.principal\)", rules=rules)
    for wrong in (7, None, ["ann"], {"a": 1}):
        refused(sign(KEY, {**claims(), "sub": wrong}), "claim sub")


# --- signatures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alg", ["none", "None", "NONE", ""])
def test_a_token_without_a_signature_is_refused(alg: str) -> None:
    for kid in ("one", "rsa", None):
        header = {"alg": alg, "kid": kid} if kid else {"alg": alg}
        for end in ("", b64(b"x"), sign(KEY, claims()).rpartition(".")[2]):
            refused(f"{b64(header)}.{b64(claims())}.{end}", "not accepted")


def test_a_public_key_is_no_secret_of_an_hmac() -> None:
    assert isinstance(RSA, RSAKey) and isinstance(KEY, ECKey)
    public = RSA.as_dict(private=False)
    secrets = [
        RSA.as_pem(private=False),
        RSA.as_der(private=False),
        KEY.as_pem(private=False),
        jwks(RSA),
        json.dumps(public).encode(),
        str(public["n"]).encode(),
    ]
    for secret in secrets:
        for kid in ("rsa", "one"):
            refused(hmac_with(secret, claims(), kid), "not accepted")


def test_a_key_of_an_hmac_in_the_document_verifies_nothing() -> None:
    secret = OctKey.import_key(b"0" * 32, {"kid": "one"})
    document = json.dumps({"keys": [secret.as_dict(private=True)]}).encode()
    assert not keys_in(document).thumbprints
    rules = RULES._replace(algorithms=RULES.algorithms | {"HS256"})  # no setting allows it
    with pytest.raises(UnknownKey):
        look(hmac_with(b"0" * 32, claims(), "one"), keys_in(document), rules)


def test_a_key_verifies_its_own_algorithms_only() -> None:
    token = sign(RSA, claims(), "RS256")
    assert look(token).principal == "ann"
    refused(token, "for RS256", keys=keys_in(jwks(RSA, alg="PS256")))
    refused(sign(RSA, claims(), "RS256", kid="one"), "for RS256")  # that key is an EC key
    forged = sign(KEY, claims(), "ES256").split(".")
    forged[0] = b64({"alg": "RS256", "kid": "rsa"})
    refused(".".join(forged), "signature")
    few = RULES._replace(algorithms=frozenset(("ES256",)))
    refused(token, "but those by ES256", rules=few)


def test_keys_that_a_token_brings_are_not_used() -> None:
    mine = key_of("ES256", "mine")
    public = mine.as_dict(private=False)
    headers: list[dict[str, Any]] = [
        {"jwk": public},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/keys"},
        {"x5c": ["MIIB"]},
    ]
    for header in headers:
        with pytest.raises(UnknownKey):
            look(sign(mine, claims(), kid="mine", **header))
        refused(sign(mine, claims(), kid="one", **header), "signature")


def test_a_header_that_two_read_differently_is_refused() -> None:
    good = sign(KEY, claims()).split(".")
    twice = b64(b'{"alg":"ES256","kid":"one","alg":"none"}')
    refused(f"{twice}.{good[1]}.", "twice")
    twice = b64(b'{"alg":"none","kid":"one","alg":"ES256"}')
    refused(f"{twice}.{good[1]}.", "twice")
    other = sign(RSA, claims(), "RS512").encode()
    assert KEYS.opened(other, "rsa", "RS512")
    with pytest.raises(Unauthenticated, match="two ways"):
        KEYS.opened(other, "rsa", "RS256")


def test_extensions_and_other_kinds_of_tokens_are_refused() -> None:
    refused(sign(KEY, claims(), crit=["b64"], b64=False), "crit")
    refused(sign(KEY, claims(), crit=[]), "crit")
    refused(sign(KEY, claims(), b64=False), "signature")
    for typ in ("dpop+jwt", "logout+jwt", "secevent+jwt", "JOSE"):
        refused(sign(KEY, claims(), typ=typ), "typ")
    for typ in ("JWT", "at+jwt", "application/at+JWT"):
        assert look(sign(KEY, claims(), typ=typ)).principal == "ann"


def test_a_token_that_was_changed_anywhere_is_refused() -> None:
    token = sign(KEY, claims(exp=NOW_S + 60))
    dice = random.Random(7)
    places = [place for place, char in enumerate(token) if char != "."]
    for place in dice.sample(places, 120):
        other = chr(ord(token[place]) ^ (1 << dice.randrange(7)))
        changed = token[:place] + other + token[place + 1 :]
        if is_jwt(changed.encode("latin-1")):
            with pytest.raises(Unauthenticated):
                look(changed)
    for length in range(len(token)):
        if is_jwt(token[:length].encode()):
            with pytest.raises(Unauthenticated):
                look(token[:length])


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"[]",
        b"{",
        b'{"iss":"\xff"}',
        b"[" * 4_000,
        b'{"x":' + b"[" * 4_000 + b"]" * 4_000 + b"}",
        b"\xff\xfe",
        b'{"iss":1,"aud":2,"exp":3}',
    ],
)
def test_claims_that_are_malformed_are_refused(payload: bytes) -> None:
    refused(sign(KEY, payload), "malformed")
    signed = sign(KEY, claims()).split(".")
    refused(f"{b64(payload)}.{signed[1]}.{signed[2]}", "malformed")


# --- claims ---------------------------------------------------------------------------------------


def test_a_token_of_another_issuer_is_refused() -> None:
    for issuer in ("https://issuer.example/", "https://other.example", "", None):
        refused(sign(KEY, claims(iss=issuer)), "issuer|iss")


def test_a_token_for_another_audience_is_refused() -> None:
    for audience in ("other", "tms2", "", [], ["other"], [["tms"]], {"tms": 1}, None):
        refused(sign(KEY, claims(aud=audience)), "aud")
    assert look(sign(KEY, claims(aud=["other", "tms"]))).principal == "ann"


def test_a_token_without_an_end_is_refused() -> None:
    refused(sign(KEY, claims(exp=None)), "exp")
    for wrong in ("4000000000", True, [], 10**13, -(10**13)):
        refused(sign(KEY, claims(exp=wrong)), "exp|malformed")
    refused(
        sign(KEY, json.dumps(claims(exp=0)).replace('"exp": 0', '"exp": 1e999').encode()), "exp"
    )


def test_a_claim_that_stands_twice_is_refused() -> None:
    said = json.dumps(claims())[:-1].encode()
    for twice in (b'"sub": "eve"', b'"aud": "other"', b'"x": {"a": 1, "a": 2}'):
        refused(sign(KEY, said + b", " + twice + b"}"), "twice")
    assert look(sign(KEY, said + b', "x": {"a": 1, "b": {"a": 2}}}')).principal == "ann"


def test_a_time_of_many_digits_is_no_time() -> None:
    for claim in ("exp", "nbf"):
        written = json.dumps(claims() | {claim: 0})
        for digits in ("9" * 400, "-" + "9" * 400, "9" * 5_000):
            payload = written.replace(f'"{claim}": 0', f'"{claim}": {digits}').encode()
            refused(sign(KEY, payload), f"{claim}|malformed")


def test_a_token_is_valid_in_its_time_only() -> None:
    token = sign(KEY, claims(exp=NOW_S + 60, nbf=NOW_S - 5))
    assert look(token, now_ms=START_MS + 59_999).principal == "ann"
    refused(token, "expired", now_ms=START_MS + 60_000)
    assert look(token, now_ms=START_MS - 5_000).principal == "ann"
    refused(token, "not valid yet", now_ms=START_MS - 5_001)
    lenient = RULES._replace(leeway_s=30)
    assert look(token, rules=lenient, now_ms=START_MS + 89_999).expires_ms == START_MS + 90_000
    refused(token, "expired", rules=lenient, now_ms=START_MS + 90_000)
    assert look(token, rules=lenient, now_ms=START_MS - 35_000).principal == "ann"
    refused(token, "not valid yet", rules=lenient, now_ms=START_MS - 35_001)


# --- keys -----------------------------------------------------------------------------------------


def test_a_key_that_is_not_known_is_told_from_a_wrong_signature() -> None:
    with pytest.raises(UnknownKey):
        look(sign(key_of("ES256", "two"), claims()))


def test_a_token_that_names_no_key_needs_the_only_one_that_fits() -> None:
    token = sign(KEY, claims(), kid=None)
    assert look(token).principal == "ann"  # the other key is an RSA key
    refused(token, "does not say which key", keys=keys_in(jwks(KEY, key_of("ES256", "two"))))
    refused(token, "does not say which key", keys=keys_in(jwks(RSA)))
    same = keys_in(jwks(KEY, key_of("ES256", "one")))
    refused(sign(KEY, claims()), "does not say which key", keys=same)


def _usable(key: Key, **more: Any) -> int:
    return len(keys_in(jwks(key, **more)).thumbprints)


def test_keys_that_are_not_for_signatures_are_passed_over() -> None:
    assert _usable(KEY, use="sig", key_ops=["verify"], alg="ES256") == 1
    for more in (
        {"use": "enc"},
        {"key_ops": ["sign"]},
        {"key_ops": []},
        {"alg": "ECDH-ES"},
        {"alg": "RS256"},
        {"crv": "secp256k1"},
        {"x": "AAAA"},
        {"x": "*"},
        {"x": 7},
        {"kty": "oct"},
        {"kid": 7},
    ):
        assert _usable(KEY, **more) == 0, more
    assert len(keys_in(b'{"keys":[7,null,{},%s]}' % jwks(KEY)[10:-2]).thumbprints) == 1


def test_a_key_that_shows_its_private_part_verifies_nothing() -> None:
    for key in (KEY, RSA):
        document = json.dumps({"keys": [key.as_dict(private=True)]}).encode()
        assert not keys_in(document).thumbprints


@pytest.mark.filterwarnings("ignore")
def test_a_key_of_rsa_is_neither_weak_nor_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = RSAKey.generate_key(1_024)
    assert _usable(weak) == 0 and _usable(RSA) == 1
    assert _usable(RSA, n="x" * 2_000) == 0
    assert _usable(RSA, e="AA") == 0
    monkeypatch.setattr(keys_module, "RSA_BITS_MAX", 2_047)
    assert _usable(RSA) == 0


@pytest.mark.parametrize(
    "document",
    [b"", b"{}", b"[]", b"<html>", b'{"keys":{}}', b'{"keys":7}', b"\xff", b"[" * 90_000],
)
def test_a_document_that_is_none_is_refused(document: bytes) -> None:
    with pytest.raises(Malformed, match="no JSON Web Key Set"):
        keys_in(document)


def test_a_document_of_many_keys_is_refused() -> None:
    one = KEY.as_dict(private=False)
    document = json.dumps({"keys": [one] * (keys_module.KEYS_MAX + 1)}).encode()
    with pytest.raises(Malformed, match="100 are read"):
        keys_in(document)
