"""Content-Encoding of answers: the choice by the client's header, and compression.

    Accept-Encoding ─▶ coding_of ─▶ compress

* Of what a client likes equally well zstd comes first, then gzip, then nothing (`identity`).
* A client without the header gets the answer as it is. A client that refuses even that
  (`identity;q=0`, `*;q=0`) gets a compressed answer, however small, or `NotAcceptable` before
  anything is done.
"""

import zlib
from functools import lru_cache
from typing import NamedTuple

import zstandard

from tms.errors import NotAcceptable
from tms.model.message import Buffer

COMPRESS_BYTES_MIN = 1 << 10  # below it a coding saves less than a packet
_GZIP = 31  # zlib's way to say: a gzip header
_GZIP_LEVEL, _ZSTD_LEVEL = 3, 1  # higher ones take several times as long for a tenth less
_IDENTITY = "identity"
_MADE = ("zstd", "gzip")
VARY = b"vary: accept-encoding\r\n"


class Coding(NamedTuple):
    """A coding of answers. Unless it `may_be_plain`, every answer has it."""

    name: str
    may_be_plain: bool


@lru_cache(maxsize=256)
def coding_of(accept_encoding: bytes) -> Coding | None:
    """The coding that a client likes best; None: no coding. Raises `NotAcceptable`."""
    text = accept_encoding.decode("latin-1")
    liked = qualities(text)
    others = liked.get("*")
    plain = liked.get(_IDENTITY, others)
    best = max(_MADE, key=lambda name: liked.get(name, others or 0.0))
    quality = liked.get(best, others or 0.0)
    if quality > 0 and quality >= liked.get(_IDENTITY, 0.0):
        return Coding(best, plain != 0)
    if plain == 0:
        raise NotAcceptable(
            f"An answer is compressed by {' or '.join(_MADE)}, or not at all ({_IDENTITY}); the "
            f"Accept-Encoding {text[:100]!r} allows none of these. Allow one, or leave it out."
        )
    return None


def compress(coding: Coding, body: Buffer) -> bytes:
    """The body in a coding."""
    if coding.name == "zstd":
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    machine = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    return machine.compress(body) + machine.flush()


def qualities(value: str) -> dict[str, float]:
    """The names in an Accept header, in lower case, with their qualities, 0 to 1; text that is no
    quality counts as none."""
    named = {}
    for part in value.split(","):
        name, *settings = (piece.strip().lower() for piece in part.split(";"))
        if name:
            named[name] = _quality(settings)
    return named


def _quality(settings: list[str]) -> float:
    quality = 1.0
    for setting in settings:
        if setting.startswith("q="):
            try:
                quality = float(setting[2:])
            except ValueError:
                quality = 0.0
    return quality
