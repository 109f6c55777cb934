"""The header of a block: 48 bytes, integers big-endian.

    0   4  magic "TMSB"                                                             service
    4   1  format version: 1, or 2 with event times                                 producer
    5   1  flags: 1 transactional, 2 staged, 4 rolled back, 8 sparse, 16 issued     service
           32 the producer sequence counts messages                                 producer
    6   2  reserved, zero                                                           service
    8   4  message count                                                            producer
    12  4  CRC-32C of the body                                                      producer
    16  8  base offset: the offset of the first message                             service
    24  8  write pointer, 0 = not transactional                                     producer
    32  8  producer id, 0 = none                                                    producer
    40  4  producer sequence: the number of the block, or of its first message      producer
    44  4  reserved, zero                                                           producer

A sequence counts blocks, modulo 2^32. With the flag 32 it counts messages, modulo 2^31, as Kafka's
does; the producer id is then a number (47 bits) and an epoch (16 bits), `NUMBER << 16 | EPOCH`, and
all epochs of a number are one producer.

A sparse block lacks some of its messages. It begins with its index, little-endian like its columns:

    48  4  n: number of remaining messages, at least 1
    52  4  zero
    56  2n the distance of each from the block's first message, in id and in offset; ascending
    …      zeros up to a multiple of 8; then the body of n messages

A block of version 2 has event times before its body, behind the index if there is one (`times`).

Invariants

* The column at the right names the side that fills in a field; neither changes the other's bytes.
* The CRC covers the body, the index and the times, not the header: the service must be able to
  place a block.
* The count, the base offset and the id of the last message are those of the whole block, also when
  it is sparse: so ids and offsets of messages never change.
"""

import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c
from msgspec import Raw, Struct

from tms.errors import BadBlock, Invalid
from tms.model.message import MESSAGES_MAX, Buffer

HEADER_BYTES = 48
FORMAT_VERSION = 1
TIMES_VERSION = 2  # of a block with event times: an earlier release refuses it by its version

_MAGIC = b"TMSB"
_HEADER = struct.Struct(">4sBBHIIQQQII")
_START = struct.Struct(">4sBBH")
_PLACE = struct.Struct(">QQ")  # and write pointer
_PRODUCER = struct.Struct(">QI")  # and sequence
_INDEX = struct.Struct("<II")
_INDEX_AT = HEADER_BYTES + _INDEX.size


_VERSION_AT = 4
FLAGS_AT = 5
EPOCH_BITS = 16  # of the id of a producer whose sequence counts messages
PRODUCER_NUMBER_MAX = 2**47 - 1
MESSAGE_SEQUENCES = 2**31


class Flags:
    """The flags of a block, set by the service except for `COUNTS_MESSAGES`. Plain numbers: an
    enumeration's own `&` takes 1 µs."""

    TRANSACTIONAL: Final = 1
    STAGED: Final = 2  # the messages stand in the payload map
    ROLLED_BACK: Final = 4
    SPARSE: Final = 8  # some messages are gone
    ISSUED: Final = 16  # the write pointer was given by the service's own transaction manager
    COUNTS_MESSAGES: Final = 32  # the producer sequence does


class BlockHeader(Struct, frozen=True, gc=False):
    """The fields of a block's header; magic, version and reserved bytes are checked and left
    out."""

    flags: int
    count: int
    crc: int
    base_offset: int
    write_pointer: int
    producer_id: int
    producer_sequence: int
    has_times: bool = False


def read_header(block: Buffer) -> BlockHeader:
    """The block's header; its body is not read. Raises `BadBlock`."""
    if len(block) < HEADER_BYTES:
        raise BadBlock(f"A block has at least {HEADER_BYTES} bytes, this one has {len(block)}.")
    magic, version, flags, zero, count, crc, base, pointer, producer, sequence, zeros = (
        _HEADER.unpack_from(block)
    )
    if magic != _MAGIC:
        raise BadBlock(f'A block begins with "TMSB", this one with {magic!r}.')
    if not FORMAT_VERSION <= version <= TIMES_VERSION:
        raise BadBlock(
            f"The block has format version {version}, but this TMS knows only the versions"
            f" {FORMAT_VERSION} and {TIMES_VERSION}: use a newer TMS for it.",
            version=version,
        )
    if zero or zeros:
        raise BadBlock("The reserved bytes of the block's header are not zero.")
    if not 0 < count <= MESSAGES_MAX:
        raise BadBlock(f"A block has 1 to {MESSAGES_MAX} messages, this one says {count}.")
    has_times = version == TIMES_VERSION
    return BlockHeader(flags, count, crc, base, pointer, producer, sequence, has_times)


def write_header(
    block: bytearray,
    count: int,
    producer_id: int,
    producer_sequence: int,
    has_times: bool = False,
) -> None:
    """Fill in the header of a block whose body is complete."""
    crc = google_crc32c.value(Raw(memoryview(block)[HEADER_BYTES:]))
    version = TIMES_VERSION if has_times else FORMAT_VERSION
    _HEADER.pack_into(
        block, 0, _MAGIC, version, 0, 0, count, crc, 0, 0, producer_id, producer_sequence, 0
    )


def count_messages(block: bytearray, number: int, epoch: int, sequence: int) -> None:
    """Give a new block a producer whose sequence counts messages: `sequence` is that of its first
    message. The body and the CRC stay. Raises `Invalid`."""
    if not (0 < number <= PRODUCER_NUMBER_MAX and 0 <= epoch < 1 << EPOCH_BITS):
        raise Invalid(
            f"A producer has a number from 1 to {PRODUCER_NUMBER_MAX} and an epoch from 0 to "
            f"{(1 << EPOCH_BITS) - 1}, not {number} and {epoch}.",
            field="producer_id",
        )
    if not 0 <= sequence < MESSAGE_SEQUENCES:
        raise Invalid(
            f"The sequence of a message is 0 to {MESSAGE_SEQUENCES - 1}, not {sequence}.",
            field="producer_sequence",
        )
    block[FLAGS_AT] |= Flags.COUNTS_MESSAGES
    _PRODUCER.pack_into(block, 32, number << EPOCH_BITS | epoch, sequence)


def check_new(header: BlockHeader) -> None:
    """Check the flags of an incoming block, and the producer that they concern. Raises
    `BadBlock`."""
    if header.flags & ~Flags.COUNTS_MESSAGES:
        raise BadBlock(
            f"A block comes in without flags, or with {Flags.COUNTS_MESSAGES:#04x}; this one has "
            f"{header.flags:#04x}."
        )
    if header.flags and not (
        0 < header.producer_id >> EPOCH_BITS <= PRODUCER_NUMBER_MAX
        and header.producer_sequence < MESSAGE_SEQUENCES
    ):
        raise BadBlock(
            f"A sequence of messages is below {MESSAGE_SEQUENCES} and needs a producer id of a "
            f"number from 1 to {PRODUCER_NUMBER_MAX} and an epoch of {EPOCH_BITS} bits; this block "
            f"has producer {header.producer_id} and sequence {header.producer_sequence}."
        )


def place(
    block: bytearray | memoryview, base_offset: int, flags: int = 0, write_pointer: int = 0
) -> None:
    """Fill in the service's part of a checked block: magic, flags, base offset, write pointer. The
    format version stays."""
    _START.pack_into(block, 0, _MAGIC, block[_VERSION_AT], flags, 0)
    _PLACE.pack_into(block, 16, base_offset, write_pointer)


def flags_of(block: Buffer) -> int:
    """The flags of a block that was checked before, cheaply."""
    return block[FLAGS_AT]


def index_of(block: Buffer, header: BlockHeader) -> Sequence[int]:
    """The distance of each message of the block from the first one, ascending; cheap if the block
    is not sparse. Raises `BadBlock`."""
    if not header.flags & Flags.SPARSE:
        return range(header.count)
    if len(block) < _INDEX_AT:
        raise BadBlock("The block says that messages are gone, but has no index of what is left.")
    left, zero = _INDEX.unpack_from(block, HEADER_BYTES)
    if zero or not 0 < left <= header.count or _INDEX_AT + 2 * left > len(block):
        raise BadBlock(f"The block's index is of {left} messages, which cannot be.")
    index = struct.unpack_from(f"<{left}H", block, _INDEX_AT)
    if index[-1] >= header.count or index[-1] - index[0] < left - 1:
        raise BadBlock(f"The block's index does not fit {header.count} messages.")
    return index


def pack_index(index: Sequence[int]) -> bytes:
    """The bytes between header and body of a block with only these messages."""
    left = len(index)
    return struct.pack(f"<II{left}H{-2 * left % 8}x", left, 0, *index)


def behind_index(header: BlockHeader, index: Sequence[int]) -> int:
    """The offset of the times and the body of a block with this index."""
    if not header.flags & Flags.SPARSE:
        return HEADER_BYTES
    return _INDEX_AT + ((2 * len(index) + 7) & -8)


def body_crc(block: Buffer) -> int:
    """The CRC-32C of the bytes behind the block's header."""
    # google_crc32c takes no bytearray and no memoryview; `Raw` lends it their bytes without a copy.
    crc: int = google_crc32c.value(Raw(memoryview(block)[HEADER_BYTES:]))
    return crc
