"""The compressed records of a batch → their bytes, with pyarrow's codecs.

    1 gzip · 2 snappy · 3 lz4 · 4 zstd, in bits 0 to 2 of a batch's attributes

    snappy, as Java and librdkafka frame it; others send one raw block
        0    8  82 53 4e 41 50 50 59 00
        8    8  two versions
        16   4  n, big-endian
        20   n  a raw block; then the next length and block

Invariants

* Besides the result, memory is taken only for a chunk and the windows of the codec: a bomb is
  refused at the first byte beyond the limit. A raw block is refused by the length that it declares.
* Whatever the bytes are, only `BadRecords` is raised.
"""

from collections.abc import Iterator

from tms.block.arrow import library
from tms.compat.kafka.errors import BadRecords, ErrorCode

CHUNK_BYTES = 64 << 10  # decompressed at once
_SNAPPY = 2
_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_BYTES = 16  # magic and versions
_LENGTH_BYTES = 4
_VARINT_BYTES_MAX = 5


def decompress(codec: int, packed: memoryview, bytes_max: int) -> bytes:
    """The bytes that were compressed, at most `bytes_max`. Raises `BadRecords`."""
    if codec in _STREAMS:
        chunks = _stream(_STREAMS[codec], packed)
    elif codec == _SNAPPY:
        chunks = _snappy(packed, bytes_max)
    else:
        raise BadRecords(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"The batch has the compression {codec}, but Kafka knows 0 to 4: none, gzip, snappy, "
            "lz4, zstd.",
        )
    parts: list[bytes] = []
    size = 0
    pa = library()
    try:
        for chunk in chunks:
            size += len(chunk)
            if size > bytes_max:
                raise _too_large(bytes_max)
            parts.append(chunk)
    except (pa.ArrowException, OSError) as exc:
        raise BadRecords(
            ErrorCode.INVALID_RECORD, f"The records of the batch cannot be decompressed: {exc}"
        ) from exc
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _stream(codec: str, packed: memoryview) -> Iterator[bytes]:
    pa = library()
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), codec) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _snappy(packed: memoryview, bytes_max: int) -> Iterator[bytes]:
    codec = library().Codec("snappy")
    left = bytes_max
    for block in _snappy_blocks(packed):
        size = _declared(block)
        left -= size
        if left < 0:
            raise _too_large(bytes_max)
        yield codec.decompress(block, size, asbytes=True)


def _snappy_blocks(packed: memoryview) -> Iterator[memoryview]:
    if packed[: len(_XERIAL)] != _XERIAL:
        yield packed
        return
    at = _XERIAL_BYTES
    while at < len(packed):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(packed[at:begin], "big")
        if at > len(packed):
            raise BadRecords(
                ErrorCode.INVALID_RECORD, "A snappy block ends behind the records of the batch."
            )
        yield packed[begin:at]


def _declared(block: memoryview) -> int:
    """The length that a raw snappy block says it has once decompressed."""
    size = 0
    for place, byte in enumerate(block[:_VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return size
    raise BadRecords(ErrorCode.INVALID_RECORD, "A snappy block does not begin with its length.")


def _too_large(bytes_max: int) -> BadRecords:
    return BadRecords(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The records of the batch have more than {bytes_max} bytes once decompressed, which is "
        "the limit: send smaller batches.",
    )
