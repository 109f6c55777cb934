"""Content-Encoding of request bodies, undone within bounds.

    plain_bytes ─▶ so much memory is reserved ─▶ decompress

* One of gzip and zstd, applied once; a body that is still compressed afterwards is refused.
* The result is never larger than `bytes_max`, whatever the compressed bytes claim, and memory is
  taken once for what is really there. zstd windows are at most 8 MiB.
* Truncated or damaged data and bytes behind its end are `BadEncoding`.
"""

import zlib
from collections.abc import Iterator

import zstandard

from tms.errors import BadEncoding, DecompressedTooLarge, UnsupportedMedia
from tms.model.message import Buffer

ZSTD_WINDOW_BYTES_MAX = 8 << 20
_GZIP = 31  # zlib's way to say: a gzip header and nothing else
_GZIP_LENGTH_BYTES = 4  # at the end of the data
_PIECE_BYTES = 256 << 10
_STILL_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


def plain_bytes(coding: str, body: Buffer, bytes_max: int) -> int:
    """The bytes that `decompress` may need, estimated without allocating them. Raises
    `UnsupportedMedia`, `BadEncoding` or `DecompressedTooLarge`."""
    if coding == "gzip":
        size = int.from_bytes(body[-_GZIP_LENGTH_BYTES:], "little")
        return size if size <= bytes_max else _counted(body, bytes_max)
    if coding == "zstd":
        machine = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        size, piece = 0, bytearray(_PIECE_BYTES)
        try:
            reader = machine.stream_reader(body)
            while count := reader.readinto(piece):
                size += count
                if size > bytes_max:
                    raise _too_large(bytes_max)
        except zstandard.ZstdError as exc:
            raise BadEncoding(f"The body is not zstd: {exc}.") from exc
        return size
    raise UnsupportedMedia(
        f"Content-Encoding is gzip or zstd, once, or left out; got {coding[:64]!r}."
    )


def decompress(coding: str, body: Buffer, size: int) -> bytearray:
    """The body without its Content-Encoding; `size` is what `plain_bytes` found. Raises
    `UnsupportedMedia` or `BadEncoding`."""
    plain = (_gunzip if coding == "gzip" else _unzstd)(body, size)
    if plain[:4].startswith(_STILL_COMPRESSED):
        raise UnsupportedMedia("The body is compressed twice; compress it once.")
    return plain


def _pieces(machine: "zlib._Decompress", body: Buffer) -> Iterator[bytes]:
    """The contents of gzip data, some at a time. Raises `BadEncoding`."""
    view, at = memoryview(body), 0
    try:
        while at < len(view) and not machine.eof:
            rest: Buffer = view[at : at + _PIECE_BYTES]
            at += len(rest)
            while len(rest) and not machine.eof:
                yield machine.decompress(rest, _PIECE_BYTES)
                rest = machine.unconsumed_tail
    except zlib.error as exc:
        raise BadEncoding(f"The body is not gzip: {exc}.") from exc
    behind = len(view) - at + len(machine.unused_data)
    if not machine.eof:
        raise BadEncoding("The body's gzip data ends too early.")
    if behind:
        raise BadEncoding(f"{behind} bytes follow the end of the gzip data.")


def _counted(body: Buffer, bytes_max: int) -> int:
    """The size of the contents of gzip data, counted: the length at its end is impossible."""
    size = 0
    for piece in _pieces(zlib.decompressobj(_GZIP), body):
        size += len(piece)
        if size > bytes_max:
            raise _too_large(bytes_max)
    return size


def _gunzip(body: Buffer, size: int) -> bytearray:
    plain, at = bytearray(size), 0
    for piece in _pieces(zlib.decompressobj(_GZIP), body):
        at += len(piece)
        if at > size:
            raise BadEncoding(f"The body's gzip data holds more than the {size} bytes it claims.")
        plain[at - len(piece) : at] = piece
    del plain[at:]
    return plain


def _unzstd(body: Buffer, size: int) -> bytearray:
    machine = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        whole = machine.decompressobj()  # only it tells where the data ended
        plain = bytearray(whole.decompress(body))
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
