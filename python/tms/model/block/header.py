"""The header of a block: 48 bytes, integers big-endian.

    0   4  magic "TMSB"                                                             service
    4   1  format version (1)                                                       service
    5   1  flags: 1 transactional, 2 staged, 4 rolled back, 8 sparse                service
    6   2  reserved, zero                                                           service
    8   4  message count                                                            producer
    12  4  CRC-32C of the body                                                      producer
    16  8  base offset: the offset of the first message                             service
    24  8  write pointer, 0 = not transactional                                     producer
    32  8  producer id, 0 = none                                                    producer
    40  4  producer sequence                                                        producer
    44  4  reserved, zero                                                           producer

Invariants

* Who fills in what stands at the right; nobody changes the other's bytes.
* The CRC covers the body, not the header: the service must be able to place a block.
"""

import struct
from enum import IntFlag
from typing import NamedTuple

import google_crc32c
from msgspec import Raw

from tms.errors import BadBlock
from tms.model.log import Buffer

HEADER_BYTES = 48
FORMAT_VERSION = 1
MESSAGES_MAX = 65_536

_MAGIC = b"TMSB"
_HEADER = struct.Struct(">4sBBHIIQQQII")
_START = struct.Struct(">4sBBH")
_PLACE = struct.Struct(">QQ")  # and write pointer


class Flags(IntFlag):
    """What the service knows of a block."""

    TRANSACTIONAL = 1
    STAGED = 2  # the messages stand in the payload map
    ROLLED_BACK = 4
    SPARSE = 8
    ISSUED = 16  # the write pointer was given by the service's own transaction manager


class BlockHeader(NamedTuple):
    """What a block's header says; magic, version and reserved bytes are checked and left out."""

    flags: int
    count: int  # type: ignore[assignment]  # how many messages, not tuple's method
    crc: int
    base_offset: int
    write_pointer: int
    producer_id: int
    producer_sequence: int


def read_header(block: Buffer) -> BlockHeader:
    """The block's header; its body is not looked at. Raises `BadBlock`."""
    if len(block) < HEADER_BYTES:
        raise BadBlock(f"A block has at least {HEADER_BYTES} bytes, this one has {len(block)}.")
    magic, version, flags, zero, count, crc, base, pointer, producer, sequence, zeros = (
        _HEADER.unpack_from(block)
    )
    if magic != _MAGIC:
        raise BadBlock(f'A block begins with "TMSB", this one with {magic!r}.')
    if version != FORMAT_VERSION:
        raise BadBlock(
            f"The block has format version {version}, but this TMS knows only version"
            f" {FORMAT_VERSION}: use a newer TMS for it.",
            version=version,
        )
    if zero or zeros:
        raise BadBlock("The reserved bytes of the block's header are not zero.")
    if not 0 < count <= MESSAGES_MAX:
        raise BadBlock(f"A block has 1 to {MESSAGES_MAX} messages, this one says {count}.")
    return BlockHeader(flags, count, crc, base, pointer, producer, sequence)


def write_header(block: bytearray, count: int, producer_id: int, producer_sequence: int) -> None:
    """Fill in the header of a block whose body is complete."""
    crc = body_crc(block)
    _HEADER.pack_into(
        block, 0, _MAGIC, FORMAT_VERSION, 0, 0, count, crc, 0, 0, producer_id, producer_sequence, 0
    )


def place(
    block: bytearray | memoryview, base_offset: int, flags: int = 0, write_pointer: int = 0
) -> None:
    """The service's part of a checked block, in place: magic, version, flags, base offset, write
    pointer."""
    _START.pack_into(block, 0, _MAGIC, FORMAT_VERSION, flags, 0)
    _PLACE.pack_into(block, 16, base_offset, write_pointer)


def flags_of(block: Buffer) -> int:
    """The flags of a block that was checked before, cheaply."""
    return block[5]


def body_crc(block: Buffer) -> int:
    """The CRC-32C of the block's body."""
    # google_crc32c takes no bytearray and no memoryview; `Raw` lends it their bytes without a copy.
    crc: int = google_crc32c.value(Raw(memoryview(block)[HEADER_BYTES:]))
    return crc
