"""Verification of JSON Web Tokens of the issuer that a service trusts (RFC 7519, RFC 8725).

    HEADER.CLAIMS.SIGNATURE, each in base64 for URLs
      │      │        └─ by a key of the issuer, see `access.jwks`
      │      └────────── iss, aud, exp, nbf, and the claim that names the principal
      └───────────────── alg and kid: which of the keys

Invariants

* No claim is looked at before the signature is verified.
* The header chooses among the keys and algorithms that are allowed, and brings none: `jku`, `jwk`,
  `x5u` and `x5c` are not read. All algorithms are asymmetric.
* A token without an end, or for another audience, is refused; so is a token with a repeated name.
"""

import json
import re
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from tms.errors import Unauthenticated
from tms.runtime.decoding import from_json

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
ALGORITHMS_DEFAULT = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
EXP_S_MAX = 10**11  # the year 5138: what is beyond is in other units
_SHAPE = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_TYPES = (None, "jwt", "at+jwt", "application/jwt", "application/at+jwt")
_FROM_URLS = bytes.maketrans(b"-_", b"+/")
_T = TypeVar("_T", bound=msgspec.Struct)


class UnknownKey(Unauthenticated):
    """No key of the issuer is known that has the id in a token."""


class JwtRules(NamedTuple):
    """The rules for a token. `principal`: the claim that names its holder; `leeway_s`: the
    tolerated clock skew of the issuer."""

    issuer: str
    audience: str
    principal: str
    algorithms: frozenset[str]
    leeway_s: float


class VerifiedJwt(NamedTuple):
    """The claims of a verified token. `thumbprint` is that of the key that signed it."""

    principal: str
    expires_ms: int
    thumbprint: str


class SigningKeys(Protocol):
    """The keys of an issuer."""

    def opened(self, token: bytes, kid: str | None, algorithm: str) -> tuple[bytes, str]:
        """The claims of a token, and the thumbprint of the key that signed them. Raises
        `UnknownKey`, `Unauthenticated`."""
        ...


class _JwtHeader(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = None


class _JwtClaims(msgspec.Struct):
    iss: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float | None = None


def is_jwt(token: bytes) -> bool:
    """True if this has the form of a signed token of an issuer."""
    return _SHAPE.fullmatch(token) is not None


def verify(
    token: bytes, keys: Callable[[], SigningKeys], rules: JwtRules, now_ms: int
) -> VerifiedJwt:
    """Verify a token and return its claims; `keys` are looked up only for a well-formed token.
    Raises `UnknownKey`, `Unauthenticated`, and what `keys` does."""
    if not is_jwt(token):
        raise _malformed("it has not three parts in base64")
    header = _checked_header(token, rules)
    payload, thumbprint = keys().opened(token, header.kid, header.alg)
    claims = _decoded(payload, _JwtClaims)
    audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    if claims.iss != rules.issuer:
        raise Unauthenticated("The token is of another issuer than the one that is trusted here.")
    if rules.audience not in audiences:
        raise Unauthenticated(
            f"The token is not for this service: its audience (aud) has no {rules.audience}."
        )
    expires_ms = _ms(claims.exp, rules.leeway_s, "exp")
    if now_ms >= expires_ms:
        raise Unauthenticated("The token has expired; ask its issuer for another one.")
    if claims.nbf is not None and now_ms < _ms(claims.nbf, -rules.leeway_s, "nbf"):
        raise Unauthenticated(
            "The token is not valid yet (nbf). Compare the clock of its issuer with this one."
        )
    return VerifiedJwt(_text_in(payload, rules.principal), expires_ms, thumbprint)


def _checked_header(token: bytes, rules: JwtRules) -> _JwtHeader:
    encoded = token.partition(b".")[0]
    try:
        raw = a2b_base64(encoded.translate(_FROM_URLS) + b"=" * (-len(encoded) % 4))
    except ValueError as exc:
        raise _malformed("its header is not base64") from exc
    header = _decoded(raw, _JwtHeader)
    if header.alg not in rules.algorithms:
        raise Unauthenticated(
            f"Tokens signed by {header.alg!r:.20} are not accepted here, but those by "
            f"{', '.join(sorted(rules.algorithms))} (jwt.algorithms)."
        )
    if header.crit is not None:
        raise Unauthenticated("The token asks for an extension (crit) that is not understood here.")
    if (header.typ and header.typ.lower()) not in _TYPES:
        raise Unauthenticated("The token is of a type (typ) that is not for access.")
    return header


def _ms(seconds: float, leeway_s: float, claim: str) -> int:
    if not -EXP_S_MAX < seconds < EXP_S_MAX:
        raise Unauthenticated(f"The claim {claim} of the token is no time in seconds since 1970.")
    return int(1_000 * (seconds + leeway_s))


def _text_in(payload: bytes, claim: str) -> str:
    raw = from_json(payload, dict[str, msgspec.Raw]).get(claim)
    try:
        return from_json(b"null" if raw is None else raw, str)
    except msgspec.MsgspecError as exc:
        raise Unauthenticated(
            f"The token does not name its principal: the claim {claim} (jwt.principal) is missing, "
            "or is no text."
        ) from exc


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    try:
        decoded = from_json(raw, kind)
        _STRICT.decode(raw.decode())
        return decoded
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        part = "header" if kind is _JwtHeader else "claims"
        raise _malformed(f"its {part}: {exc}") from exc


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Two readers may take different ones of two values."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name appears twice in one object")


_STRICT = json.JSONDecoder(object_pairs_hook=_no_duplicates)


def _malformed(why: str) -> Unauthenticated:
    return Unauthenticated(f"The token is malformed ({why:.200}).")
