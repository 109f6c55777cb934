"""Bearer tokens: `tms_ID_SECRET`, 12 and 64 hexadecimal digits.

Invariants

* Only the SHA-256 of a token is stored. The secret has 256 random bits, so a slow hash, which
  protects words that people choose, protects nothing here.
* A token is looked up by its digest, so how long that takes says nothing of another token.
"""

import re
from hashlib import sha256
from typing import NamedTuple

PREFIX = "tms_"
ID_BYTES, SECRET_BYTES = 6, 32
TOKEN = re.compile(rb"tms_([0-9a-f]{12})_[0-9a-f]{64}")  # its id is the group


class MadeToken(NamedTuple):
    """A token that was just made."""

    id: str
    text: str


def make(random: bytes) -> MadeToken:
    """A token of `ID_BYTES + SECRET_BYTES` random bytes."""
    assert len(random) == ID_BYTES + SECRET_BYTES, "a token has 38 bytes"
    id = random[:ID_BYTES].hex()
    return MadeToken(id, f"{PREFIX}{id}_{random[ID_BYTES:].hex()}")


def without_secrets(path: bytes) -> str:
    """A path for logs and traces: of a token in it, the id is left."""
    return TOKEN.sub(rb"tms_\1", path).decode("latin-1")


def digest(token: bytes) -> str:
    """The digest of a token, which is all that is stored of it."""
    return sha256(token).hexdigest()
