"""SCRAM-SHA-256 and SCRAM-SHA-512, at the side that knows verifiers (RFC 5802, RFC 7677).

    client   n,,n=ann,r=NONCE                    ─▶ challenge   r=NONCE+OURS,s=SALT,i=4096
    client   c=biws,r=NONCE+OURS,p=PROOF         ─▶ signature   v=SIGNATURE

Invariants

* A token does not follow from its verifier. A token has 256 random bits, so no table of salted
  hashes holds it: the salt follows from the principal's name, and the challenge to a principal that
  is unknown looks like any other.
* A principal may have several tokens with one salt; a proof is compared with each of them.
* A proof is valid for the nonces of one exchange. Channel binding is not offered: a client that
  demands it is refused.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import new, pbkdf2_hmac, sha256
from typing import NamedTuple

from tms.errors import Malformed

ALGORITHMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}  # by mechanism
ITERATIONS = 4_096  # clients refuse fewer
SALT_BYTES = 16
MESSAGE_BYTES_MAX = 4 << 10
_NO_BINDING = ("n", "y")  # of the channel


class ScramVerifier(NamedTuple):
    """The keys that hold a client's proof against a token, and prove to the client that the service
    knows it."""

    stored_key: bytes
    server_key: bytes


def salt_of(principal: str) -> bytes:
    """The salt of a principal's tokens."""
    return sha256(b"tms scram " + principal.encode()).digest()[:SALT_BYTES]


def verifier(algorithm: str, password: bytes, salt: bytes) -> ScramVerifier:
    """The verifier of a password, or of a token."""
    salted = pbkdf2_hmac(algorithm, password, salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    return ScramVerifier(
        _hash(algorithm, client_key), hmac.digest(salted, b"Server Key", algorithm)
    )


def packed(of: ScramVerifier) -> str:
    """A verifier as it is stored: its two keys in hexadecimal digits."""
    return (of.stored_key + of.server_key).hex()


def unpacked(text: str) -> ScramVerifier:
    """A stored verifier. Raises `ValueError`."""
    keys = bytes.fromhex(text)
    half = len(keys) // 2
    return ScramVerifier(keys[:half], keys[half:])


class ScramExchange:
    """One authentication. `nonce` is random, and printable without commas. Its methods raise
    `Malformed` for a message that cannot be one."""

    def __init__(self, algorithm: str, nonce: str) -> None:
        self._algorithm = algorithm
        self._nonce = nonce
        self._binding = ""
        self._first = ""  # the messages that a proof is about
        self._challenge = ""

    def begin(self, message: bytes) -> str:
        """Read a client's first message; returns the name of its user."""
        parts = _text(message).split(",", 2)
        if len(parts) < 3 or parts[0] not in _NO_BINDING:
            raise Malformed("A client of SCRAM begins with `n,,` or `y,,`: no channel is bound.")
        binding, authorized, first = parts
        attributes = first.split(",")
        user = _unescaped(_value(attributes, 0, "n"))
        nonce = _value(attributes, 1, "r")
        if authorized and _unescaped(_value([authorized], 0, "a")) != user:
            raise Malformed("A client of SCRAM authenticates for itself, not for another user.")
        self._binding = f"{binding},{authorized},"
        self._first = first
        self._nonce = nonce + self._nonce
        return user

    def challenge(self, salt: bytes) -> bytes:
        """The answer to the first message."""
        self._challenge = f"r={self._nonce},s={b64encode(salt).decode()},i={ITERATIONS}"
        return self._challenge.encode()

    def finish(
        self, message: bytes, verifiers: Sequence[ScramVerifier]
    ) -> tuple[int, bytes] | None:
        """Read a client's last message: the index of the verifier that its proof is right for, and
        the answer. None: it is right for none of them."""
        text, comma, last = _text(message).rpartition(",")
        attributes = text.split(",")
        binding = _decoded(_value(attributes, 0, "c"))
        nonce = _value(attributes, 1, "r")
        proof = _decoded(_value([last], 0, "p"))
        if (
            not comma
            or binding != self._binding.encode()
            or not hmac.compare_digest(nonce.encode(), self._nonce.encode())
        ):
            return None
        about = f"{self._first},{self._challenge},{text}".encode()
        for index, one in enumerate(verifiers):
            signature = hmac.digest(one.stored_key, about, self._algorithm)
            if len(proof) != len(signature):
                continue
            client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
            if hmac.compare_digest(_hash(self._algorithm, client_key), one.stored_key):
                signed = hmac.digest(one.server_key, about, self._algorithm)
                return index, b"v=" + b64encode(signed)
        return None


def _hash(algorithm: str, key: bytes) -> bytes:
    return new(algorithm, key).digest()


def _text(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        text = ""
    if not 0 < len(message) <= MESSAGE_BYTES_MAX or not text.isprintable() or not text:
        raise Malformed(
            f"A message of SCRAM is 1 to {MESSAGE_BYTES_MAX} bytes of printable text, got "
            f"{len(message)} bytes."
        )
    return text


def _value(attributes: Sequence[str], index: int, name: str) -> str:
    """The value of an attribute at its place."""
    if index >= len(attributes) or not attributes[index].startswith(f"{name}="):
        raise Malformed(f"A message of SCRAM lacks the attribute `{name}` at its place.")
    value = attributes[index][2:]
    if not value:
        raise Malformed(f"The attribute `{name}` of a message of SCRAM is empty.")
    return value


def _unescaped(name: str) -> str:
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise Malformed("A name in a message of SCRAM has `=` for other than a comma or itself.")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Malformed("A message of SCRAM has an attribute that is no base64.") from None
