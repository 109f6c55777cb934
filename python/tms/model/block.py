"""The block: what a producer packs once, a consumer unpacks once, and everything in between passes on as bytes.

    0   4  magic "TMSB"
    4   1  format version (1)
    5   1  flags
    6   2  reserved, zero
    8   4  message count
    12  4  CRC-32C of the body
    16  8  base offset
    24  8  write pointer, 0 = not transactional
    32  8  producer id, 0 = none
    40  4  producer sequence
    44  4  reserved, zero
    48  …  body: one encapsulated Arrow IPC RecordBatch message (`model.arrow`)

Invariants

* Header integers are big-endian. The producer sends bytes 8–16, 24–44 and the body; the service fills in the rest
  (`place`) and never touches the body.
* What `check` accepted can hurt no reader: counts, sizes and text are right and memory was bounded before decompressing.
* Importing this module does not import pyarrow.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, NamedTuple

from tms.errors import BadBlock, CrcMismatch, DataCorrupt
from tms.model import arrow
from tms.model.arrow import MESSAGES_MAX, Compression
from tms.model.log import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MESSAGES_MAX",
    "BlockHeader",
    "Columns",
    "Compression",
    "Flags",
    "check",
    "decode",
    "encode",
    "place",
    "read_header",
]

HEADER_BYTES = 48
FORMAT_VERSION = 1
MAGIC = b"TMSB"
_HEADER = struct.Struct(">4sBBHIIQQQII")
_PLACE = struct.Struct(">4sBBH")
_OFFSET = struct.Struct(">Q")


class Flags(IntFlag):
    """What the service knows of a block."""

    TRANSACTIONAL = 1
    STAGED = 2
    ROLLED_BACK = 4
    SPARSE = 8


class BlockHeader(NamedTuple):
    """The header of a block, without magic, version and reserved bytes."""

    flags: int
    count: int
    crc: int
    base_offset: int
    write_pointer: int
    producer_id: int
    producer_sequence: int


def read_header(block: Buffer) -> BlockHeader:
    """The block's header; the body is not looked at. Raises `BadBlock`."""
    if len(block) < HEADER_BYTES:
        raise BadBlock(f"A block has at least {HEADER_BYTES} bytes, this one has {len(block)}.")
    (
        magic,
        version,
        flags,
        reserved,
        count,
        crc,
        offset,
        pointer,
        producer,
        sequence,
        reserved2,
    ) = _HEADER.unpack_from(block)
    if magic != MAGIC:
        raise BadBlock(f"A block begins with TMSB, this one with {magic!r}.")
    if version != FORMAT_VERSION:
        raise BadBlock(
            f"The block has format version {version}, this TMS reads version {FORMAT_VERSION}: upgrade it to read this.",
            version=version,
        )
    if reserved or reserved2:
        raise BadBlock("The reserved bytes of the block's header are not zero.")
    if not 1 <= count <= MESSAGES_MAX:
        raise BadBlock(f"A block has 1 to {MESSAGES_MAX} messages, this one says {count}.")
    return BlockHeader(flags, count, crc, offset, pointer, producer, sequence)


def place(block: bytearray | memoryview, base_offset: int) -> None:
    """Fill in the service's part of a checked block, in place: version, no flags, base offset."""
    _PLACE.pack_into(block, 0, MAGIC, FORMAT_VERSION, 0, 0)
    _OFFSET.pack_into(block, 16, base_offset)


def encode(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    *,
    producer_id: int = 0,
    producer_sequence: int = 0,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """The whole block of these messages, with base offset zero. Raises `Invalid` and `TooLarge` for what no block can hold."""
    block = arrow.encode(values, keys, headers, compression, HEADER_BYTES)
    crc = arrow.crc32c(block, HEADER_BYTES)
    _HEADER.pack_into(
        block,
        0,
        MAGIC,
        FORMAT_VERSION,
        0,
        0,
        len(values),
        crc,
        0,
        0,
        producer_id,
        producer_sequence,
        0,
    )
    return block


def check(block: Buffer, *, message_bytes_max: int, decompressed_bytes_max: int) -> BlockHeader:
    """Everything that an incoming block must satisfy.

    Raises `BadBlock`, `CrcMismatch`, `DecompressedTooLarge` (before any memory is taken), `TooLarge` and `Invalid` (both
    with `index`, the message's place in the block).
    """
    header = read_header(block)
    if header.flags:
        raise BadBlock(f"A producer's block has no flags, this one has {header.flags}.")
    crc = arrow.crc32c(block, HEADER_BYTES)
    if crc != header.crc:
        raise CrcMismatch(
            f"The block's body has CRC-32C {crc:08x}, its header says {header.crc:08x}: it was damaged on the way."
        )
    arrow.check(block, HEADER_BYTES, header.count, message_bytes_max, decompressed_bytes_max)
    return header


class Columns:
    """The messages of a block, column by column, unpacked when asked for."""

    __slots__ = ("_batch", "count")

    def __init__(self, batch: "pa.RecordBatch") -> None:
        self._batch = batch
        self.count: int = batch.num_rows

    def values(self) -> list[bytes | None]:
        """The values; None is a tombstone."""
        return arrow.binaries(self._batch, 1)

    def keys(self) -> list[bytes | None]:
        """The keys; None for messages without one."""
        return arrow.binaries(self._batch, 0)

    def headers(self) -> list[dict[str, bytes]]:
        """The headers; an empty dict for messages without any."""
        return arrow.header_dicts(self._batch)

    def record_batch(self) -> "pa.RecordBatch":
        """The columns key, value and headers as Arrow knows them."""
        return self._batch


def decode(block: Buffer) -> Columns:
    """The messages of a stored block. Raises `DataCorrupt` when its bytes are not what was stored."""
    try:
        header = read_header(block)
    except BadBlock as exc:
        raise DataCorrupt(f"A stored block is damaged: {exc.message}") from exc
    crc = arrow.crc32c(block, HEADER_BYTES)
    if crc != header.crc:
        raise DataCorrupt(
            f"A stored block's body has CRC-32C {crc:08x}, its header says {header.crc:08x}: run `tms fsck`."
        )
    return Columns(arrow.decode(block, HEADER_BYTES))
