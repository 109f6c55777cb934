"""Record batches as clients send them, from an encoder that shares nothing with the one of TMS."""

import gzip
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import google_crc32c
import pyarrow as pa

from tms.block import decode
from tms.compat.kafka.records import RecordLimits
from tms.model.message import Buffer

LIMITS = RecordLimits(1 << 20, 1 << 20, 1 << 20)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HEADER = struct.Struct(">qiibIhiqqqhii")
TIME_MS = 1_700_000_000_000


class Record(NamedTuple):
    """A record; headers in order, names may repeat."""

    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Sequence[tuple[str, bytes | None]] = ()


def time_of(at: int) -> int:
    """The time of the record at this place of a batch."""
    return TIME_MS + at % 3


def varint(number: int) -> bytes:
    """A zigzag varint of 64 bits."""
    left = (number << 1 ^ number >> 63) & (1 << 64) - 1
    digits = bytearray()
    while left > 0x7F:
        digits.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*digits, left])


def sized(cell: bytes | None) -> bytes:
    """Bytes with their length before them."""
    return varint(-1) if cell is None else varint(len(cell)) + cell


def record(cells: Record, delta: int, time_delta: int = 0) -> bytes:
    """The bytes of a record."""
    body = b"\0" + varint(time_delta) + varint(delta) + sized(cells.key) + sized(cells.value)
    body += varint(len(cells.headers))
    for name, value in cells.headers:
        body += sized(name.encode()) + sized(value)
    return varint(len(body)) + body


def batch(records: Sequence[Record], codec: int = NONE, **fields: Any) -> bytes:
    """A batch of these records. `fields` replace those of the header, or give the `payload`."""
    payload = b"".join(record(cells, at, at % 3) for at, cells in enumerate(records))
    payload = fields.pop("payload", payload)
    values = {
        "base_offset": 0,
        "length": None,
        "leader_epoch": -1,
        "magic": 2,
        "crc": None,
        "attributes": codec,
        "last_offset_delta": len(records) - 1,
        "base_timestamp": TIME_MS,
        "max_timestamp": TIME_MS + 2,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": len(records),
    } | fields
    payload = compressed(codec, payload)
    if values["length"] is None:
        values["length"] = HEADER.size - 12 + len(payload)
    if values["crc"] is None:
        head = HEADER.pack(*(values | {"crc": 0}).values())
        values["crc"] = google_crc32c.value(head[21:] + payload)
    return HEADER.pack(*values.values()) + payload


def compressed(codec: int, payload: bytes) -> bytes:
    """The records, compressed as a client does it; snappy in Java's frame, of two blocks."""
    if codec == NONE:
        return payload
    if codec == GZIP:
        return gzip.compress(payload, 6, mtime=0)
    if codec != SNAPPY:
        return bytes(pa.Codec({LZ4: "lz4", ZSTD: "zstd"}[codec]).compress(payload, asbytes=True))
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    half = len(payload) // 2
    for part in (payload[:half], payload[half:]):
        block = raw_snappy(part)
        framed += struct.pack(">i", len(block)) + block
    return framed


def raw_snappy(payload: bytes) -> bytes:
    """A block of snappy without a frame."""
    return bytes(pa.Codec("snappy").compress(payload, asbytes=True))


def resealed(damaged: bytes) -> bytes:
    """The batch with the length and checksum of its bytes: as a faulty client would send it."""
    sealed = bytearray(damaged)
    struct.pack_into(">i", sealed, 8, len(sealed) - 12)
    struct.pack_into(">I", sealed, 17, google_crc32c.value(bytes(sealed[21:])))
    return bytes(sealed)


def records_of(block: Buffer) -> list[Record]:
    """The messages of a block, with all of their headers."""
    columns = decode(block)
    ends, names, values = columns.header_cells()
    return [
        Record(key, value, [*zip(names[start:stop], values[start:stop], strict=True)])
        for key, value, start, stop in zip(
            columns.keys(), columns.values(), ends[:-1], ends[1:], strict=True
        )
    ]
