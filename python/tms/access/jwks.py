"""The public keys of an issuer, as its JWKS has them (RFC 7517), and signatures by them.

Invariants

* Only public keys of RSA, EC and Ed25519 are used. Symmetric keys, keys for encryption and keys
  with their private part are skipped, so that no public text is the key of an HMAC.
* A token names one key (`kid`); without a name, exactly one key must fit.
* The document is bounded before it is read into keys.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwa import JWSAlgModel
from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

from tms.access.jwt import UnknownKey
from tms.errors import Malformed, Unauthenticated
from tms.runtime.decoding import from_json

KEYS_MAX = 100
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192
_PART_BYTES_MAX = 8_192  # of a token
_RSA = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_CURVES = {
    ("EC", "P-256"): frozenset(("ES256",)),
    ("EC", "P-384"): frozenset(("ES384",)),
    ("EC", "P-521"): frozenset(("ES512",)),
    ("OKP", "Ed25519"): frozenset(("EdDSA", "Ed25519")),
}


class _SentKey(msgspec.Struct):
    """A key in the document."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: str | None = None


class _SentKeys(msgspec.Struct):
    keys: list[msgspec.Raw]


class IssuerKey(NamedTuple):
    """A public key, and what it verifies."""

    kid: str | None
    algorithms: frozenset[str]
    thumbprint: str  # RFC 7638: the same for the same key
    public: RSAKey | ECKey | OKPKey


class _AnyOfOurs(jws.JWSRegistry):
    """Algorithms by their names. The caller has checked that the algorithm is allowed; the library
    warns of `EdDSA`, which issuers still use. Tokens are bounded as a whole."""

    max_header_length = max_signature_length = _PART_BYTES_MAX

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in (self.allowed or ()):
            raise Unauthenticated("The header of the token can be read in two ways.")
        return self.algorithms[name]


class IssuerKeys:
    """The keys of an issuer, as one document had them; see `access.jwt.SigningKeys`."""

    def __init__(self, keys: Iterable[IssuerKey] = ()) -> None:
        self._keys = tuple(keys)
        self.thumbprints = frozenset(key.thumbprint for key in self._keys)

    def opened(self, token: bytes, kid: str | None, algorithm: str) -> tuple[bytes, str]:
        """The claims of a token, and the thumbprint of the key that signed them. Raises
        `UnknownKey`, `Unauthenticated`."""
        key = self._find(kid, algorithm)
        registry = _AnyOfOurs(algorithms=(algorithm,), strict_check_header=False)
        try:
            opened = jws.deserialize_compact(token, key.public, registry=registry)
        except (JoseError, ValueError, RecursionError) as exc:
            raise Unauthenticated(
                "The signature of the token is not one by a key of its issuer."
            ) from exc
        return opened.payload, key.thumbprint

    def _find(self, kid: str | None, algorithm: str) -> IssuerKey:
        named = [key for key in self._keys if kid is None or key.kid == kid]
        if not named and kid is not None:
            raise UnknownKey("The token was signed with a key that its issuer does not publish.")
        fitting = [key for key in named if algorithm in key.algorithms]
        if len(fitting) != 1:
            raise Unauthenticated(
                f"The token does not say which key of its issuer it was signed with: {len(fitting)}"
                f" of those that its kid names are for {algorithm}."
            )
        return fitting[0]


def keys_in(document: bytes) -> IssuerKeys:
    """The keys in a document; what cannot be used here is passed over. Raises `Malformed`."""
    try:
        sent = from_json(document, _SentKeys).keys
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise Malformed(f"This is no JSON Web Key Set ({exc!s:.200}).") from exc
    if len(sent) > KEYS_MAX:
        raise Malformed(f"A JSON Web Key Set of {len(sent)} keys is refused: {KEYS_MAX} are read.")
    return IssuerKeys(key for key in map(_key_of, sent) if key is not None)


def _key_of(raw: msgspec.Raw) -> IssuerKey | None:
    """The key, or None if it verifies nothing here."""
    try:
        sent = from_json(raw, _SentKey)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    algorithms = _RSA if sent.kty == "RSA" else _CURVES.get((sent.kty, sent.crv), frozenset())
    if sent.alg is not None:
        algorithms &= {sent.alg}
    verifies = sent.use in (None, "sig") and (sent.key_ops is None or "verify" in sent.key_ops)
    if not algorithms or not verifies or sent.d is not None:
        return None
    members = {"kty": sent.kty, "crv": sent.crv, "n": sent.n, "e": sent.e, "x": sent.x, "y": sent.y}
    try:
        public = import_key({name: text for name, text in members.items() if text})
    except (JoseError, ValueError):
        return None
    assert isinstance(public, RSAKey | ECKey | OKPKey), "no other kind has algorithms"
    bits = public.public_key.key_size if isinstance(public, RSAKey) else RSA_BITS_MIN
    if not RSA_BITS_MIN <= bits <= RSA_BITS_MAX:
        return None
    return IssuerKey(sent.kid, algorithms, public.thumbprint(), public)
