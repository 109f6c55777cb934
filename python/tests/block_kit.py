"""Blocks that `tms.block` did not make: pyarrow's, and broken ones with a right CRC."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from tms.block import HEADER_BYTES, check, decode, schema
from tms.model.message import Buffer, Headers

LIMITS = {"message_bytes_max": 1 << 20, "decompressed_bytes_max": 1 << 24}


class Messages(NamedTuple):
    """Columns of messages, as `encode` takes and `decode` returns them."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[dict[str, bytes | None]]


def unpack(block: Buffer) -> Messages:
    """The messages of a block, after it was checked."""
    check(block, **LIMITS)
    columns = decode(block)
    return Messages(columns.values(), columns.keys(), columns.headers())


def batch_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> pa.RecordBatch:
    """The record batch that pyarrow builds of these messages; None makes a null map of headers."""
    rows = None if headers is None else [None if r is None else list(r.items()) for r in headers]
    columns = [keys or [None] * len(values), values, rows or [[]] * len(values)]
    arrays = [pa.array(c, kind) for c, kind in zip(columns, schema().types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def body_of(
    batch: pa.RecordBatch, compression: str | None = None, custom: dict[str, str] | None = None
) -> bytes:
    """The batch as pyarrow serializes it; with custom metadata the flatbuffer's layout differs."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata=custom)
        end = sink.tell()
    start = batch.schema.serialize().size
    body: bytes = sink.getvalue()[start:end].to_pybytes()
    return body


def block_of(body: bytes, count: int) -> bytearray:
    """A block with this body, even an invalid one, and a matching header."""
    crc = google_crc32c.value(body)
    return bytearray(struct.pack(">4sBBHIIQQQII", b"TMSB", 1, 0, 0, count, crc, *[0] * 5) + body)


def with_right_crc(block: bytearray) -> bytearray:
    """The block itself, its CRC made to fit its body."""
    struct.pack_into(">I", block, 12, google_crc32c.value(bytes(block[HEADER_BYTES:])))
    return block
