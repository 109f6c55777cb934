"""Content-Encoding of request bodies, undone within bounds.

* One of gzip and zstd, applied once; a body that is still compressed afterwards is refused.
* The result is never larger than `bytes_max`, whatever the compressed bytes claim, and memory grows
  only with what was really produced. zstd windows are at most 8 MiB.
* Truncated or damaged data and bytes behind its end are `BadEncoding`.
"""

import zlib

import zstandard

from tms.errors import BadEncoding, DecompressedTooLarge, UnsupportedMedia
from tms.model.log import Buffer

ZSTD_WINDOW_BYTES_MAX = 8 << 20
_GZIP = 31  # zlib's way to say: a gzip header and nothing else
_PIECE_BYTES = 256 << 10
_STILL_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


def decompress(coding: str, body: Buffer, bytes_max: int) -> bytes | bytearray:
    """The body without its Content-Encoding. Raises `UnsupportedMedia`, `BadEncoding` or
    `DecompressedTooLarge`."""
    if coding == "gzip":
        plain: bytes | bytearray = _gunzip(body, bytes_max)
    elif coding == "zstd":
        plain = _unzstd(body, bytes_max)
    else:
        raise UnsupportedMedia(
            f"Content-Encoding is gzip or zstd, once, or left out; got {coding[:64]!r}."
        )
    if bytes(plain[:4]).startswith(_STILL_COMPRESSED):
        raise UnsupportedMedia("The body is compressed twice; compress it once.")
    return plain


def _gunzip(body: Buffer, bytes_max: int) -> bytes:
    machine = zlib.decompressobj(_GZIP)
    try:
        plain = machine.decompress(body, bytes_max + 1)
    except zlib.error as exc:
        raise BadEncoding(f"The body is not gzip: {exc}.") from exc
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not machine.eof:
        raise BadEncoding("The body's gzip data ends too early.")
    if machine.unused_data:
        raise BadEncoding(f"{len(machine.unused_data)} bytes follow the end of the gzip data.")
    return plain


def _unzstd(body: Buffer, bytes_max: int) -> bytes:
    machine = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        # Only the reader stops in time, only the object tells where the data ended: count, then do.
        reader = machine.stream_reader(body)
        piece, size = bytearray(_PIECE_BYTES), 0
        while count := reader.readinto(piece):
            size += count
            if size > bytes_max:
                raise _too_large(bytes_max)
        whole = machine.decompressobj()
        plain: bytes = whole.decompress(body)
    except zstandard.ZstdError as exc:
        raise BadEncoding(f"The body is not zstd: {exc}.") from exc
    if not whole.eof:
        raise BadEncoding("The body's zstd data ends too early.")
    if whole.unused_data:
        raise BadEncoding(f"{len(whole.unused_data)} bytes follow the end of the zstd data.")
    return plain


def _too_large(bytes_max: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(
        f"Decompressed, the body would have more than {bytes_max} bytes, the limit of this service."
    )
