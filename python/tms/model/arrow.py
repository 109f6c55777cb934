"""The body of a block: one encapsulated Arrow IPC RecordBatch message of the schema

    key: binary, value: binary, headers: map<utf8, binary>

    0   4  ff ff ff ff                     continuation
    4   4  metadata length m               little-endian, multiple of 8
    8   m  flatbuffer Message → RecordBatch: 6 field nodes, 15 buffers, optional compression
    8+m …  the buffers, each at a multiple of 8

Invariants

* Importing this module does not import pyarrow.
* No byte of a foreign body reaches pyarrow before `read_layout` found every length and offset within bounds.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c

from tms.errors import BadBlock, DataCorrupt, DecompressedTooLarge, Invalid, TooLarge
from tms.model.log import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES_MAX = 65_536
HEADERS_MAX = 1_000
BODY_BYTES_MAX = 2**31 - 1
NODES = 6
BUFFERS = 15


class Compression(StrEnum):
    """How the buffers of a block are compressed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Layout(NamedTuple):
    """What the metadata says: where the buffers are and how big they are once decompressed."""

    count: int
    entries: int
    body: int
    buffers: tuple[int, ...]  # offset, length, offset, length, …
    compressed: bool


@cache
def _arrow() -> Any:
    import pyarrow

    return pyarrow


@cache
def schema() -> "pa.Schema":
    """The schema of every block."""
    pa = _arrow()
    return pa.schema(
        [("key", pa.binary()), ("value", pa.binary()), ("headers", pa.map_(pa.utf8(), pa.binary()))]
    )


def crc32c(block: Buffer, start: int) -> int:
    """The CRC-32C of the bytes from `start`."""
    crc: int = google_crc32c.value(bytes(memoryview(block)[start:]))
    return crc


def encode(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Mapping[str, bytes] | None] | None,
    compression: Compression,
    start: int,
) -> bytearray:
    """The body, after `start` zero bytes. Raises `Invalid` and `TooLarge`."""
    count = len(values)
    if not count:
        raise Invalid("A block has at least one message.")
    if count > MESSAGES_MAX:
        raise TooLarge(f"A block has at most {MESSAGES_MAX} messages, got {count}.")
    pa = _arrow()
    types = schema()
    try:
        columns = [
            _binary_column(keys, count, "keys"),
            _binary_column(values, count, "values"),
            _headers_column(headers, count),
        ]
    except (pa.ArrowException, OverflowError) as exc:
        raise TooLarge(f"The messages do not fit into one block: {exc}") from exc
    batch = pa.RecordBatch.from_arrays(columns, schema=types)
    return bytearray(start) + _serialize(batch, compression)


def _binary_column(cells: Sequence[bytes | None] | None, count: int, name: str) -> "pa.Array":
    pa = _arrow()
    if cells is None:
        return pa.nulls(count, pa.binary())
    if len(cells) != count:
        raise Invalid(f"There are {count} values but {len(cells)} {name}.")
    for index, cell in enumerate(cells):
        if cell is not None and type(cell) is not bytes:
            raise Invalid(
                f"{name}[{index}] is bytes or None, got {type(cell).__name__}.", index=index
            )
    return pa.array(cells, pa.binary())


def _headers_column(headers: Sequence[Mapping[str, bytes] | None] | None, count: int) -> "pa.Array":
    pa = _arrow()
    kind = schema().field(2).type
    if headers is None:
        return pa.nulls(count, kind)
    if len(headers) != count:
        raise Invalid(f"There are {count} values but {len(headers)} headers.")
    rows: list[list[tuple[str, bytes]] | None] = []
    for index, row in enumerate(headers):
        if not row:
            rows.append(None)
            continue
        if len(row) > HEADERS_MAX:
            raise Invalid(
                f"A message has at most {HEADERS_MAX} headers, got {len(row)}.", index=index
            )
        for name, value in row.items():
            if type(name) is not str or not name:
                raise Invalid(f"A header's name is a non-empty str, got {name!r:.80}.", index=index)
            if type(value) is not bytes:
                raise Invalid(
                    f"Header {name!r:.80} is bytes, got {type(value).__name__}.", index=index
                )
        rows.append(list(row.items()))
    try:
        return pa.array(rows, kind)
    except UnicodeEncodeError as exc:
        raise Invalid("A header's name cannot be written as UTF-8.") from exc


def _serialize(batch: "pa.RecordBatch", compression: Compression) -> bytes:
    pa = _arrow()
    if compression is Compression.NONE:
        return batch.serialize().to_pybytes()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression.value)
    with pa.ipc.new_stream(sink, schema(), options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue()[schema().serialize().size : end].to_pybytes()


def decode(block: Buffer, start: int) -> "pa.RecordBatch":
    """The record batch of a stored block. Raises `DataCorrupt`."""
    pa = _arrow()
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(block).slice(start), schema())
    except pa.ArrowException as exc:
        raise DataCorrupt(f"A stored block cannot be read: {exc}") from exc


def binaries(batch: "pa.RecordBatch", column: int) -> list[bytes | None]:
    """A binary column as a list."""
    cells: list[bytes | None] = batch.column(column).to_pylist()
    return cells


def header_dicts(batch: "pa.RecordBatch") -> list[dict[str, bytes]]:
    """The column of headers as a list."""
    return [dict(row) if row else {} for row in batch.column(2).to_pylist()]


def check(
    block: Buffer, start: int, count: int, message_bytes_max: int, decompressed_bytes_max: int
) -> None:
    """Everything that an incoming body must satisfy; see `block.check`."""
    pa = _arrow()
    view = memoryview(block)[start:]
    layout = read_layout(view)
    if layout.count != count:
        raise BadBlock(f"The block's header says {count} messages, its body has {layout.count}.")
    size = _decompressed_bytes(view, layout)
    if size > decompressed_bytes_max:
        raise DecompressedTooLarge(
            f"The block's body has {size} bytes once decompressed, the limit is {decompressed_bytes_max}."
        )
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(view), schema())
        batch.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        raise BadBlock(f"The block's body is not a valid record batch: {exc}") from exc
    if layout.entries:
        _check_headers(batch)
    if size > message_bytes_max:
        _check_sizes(batch, message_bytes_max)


def _check_headers(batch: "pa.RecordBatch") -> None:
    if batch.column(2).items.null_count:
        raise Invalid("A header's value is bytes, not null.")
    for index, row in enumerate(batch.column(2).to_pylist()):
        if not row:
            continue
        if len(row) > HEADERS_MAX:
            raise Invalid(
                f"A message has at most {HEADERS_MAX} headers, this one has {len(row)}.",
                index=index,
            )
        if not all(name for name, _ in row):
            raise Invalid("A header's name is not empty.", index=index)


def _check_sizes(batch: "pa.RecordBatch", message_bytes_max: int) -> None:
    rows = zip(binaries(batch, 0), binaries(batch, 1), batch.column(2).to_pylist(), strict=True)
    for index, (key, value, headers) in enumerate(rows):
        size = len(key or b"") + len(value or b"")
        size += sum(len(name.encode()) + len(cell) for name, cell in headers or ())
        if size > message_bytes_max:
            raise TooLarge(
                f"A message has at most {message_bytes_max} bytes, this one has {size}.",
                index=index,
            )


def read_layout(body: memoryview) -> Layout:
    """The layout that the metadata describes, with everything in bounds. Raises `BadBlock`."""
    try:
        return _read_layout(body)
    except struct.error as exc:
        raise BadBlock("The metadata of the block's body points outside of itself.") from exc


def _read_layout(body: memoryview) -> Layout:
    mark, size = struct.unpack_from("<Ii", body)
    if mark != 0xFFFFFFFF or size <= 0 or size % 8 or 8 + size > len(body):
        raise BadBlock("The block's body does not begin with the metadata of a record batch.")
    meta = body[8 : 8 + size]
    message = _Table(meta, _u32(meta, 0))
    version, kind = message.scalar(0, "<h"), message.scalar(1, "<B")
    if version != 4 or kind != 3:
        raise BadBlock("The block's body is not an Arrow record batch of metadata version 5.")
    length = len(body) - 8 - size
    if message.scalar(3, "<q") != length:
        raise BadBlock("The record batch does not end where the block ends.")
    batch = message.table(2)
    count = batch.scalar(0, "<q")
    nodes = batch.vector(1, "<q", 2, NODES)
    buffers = batch.vector(2, "<q", 2, BUFFERS)
    if batch.field(4) and _u32(meta, batch.field(4) + _u32(meta, batch.field(4))):
        raise BadBlock("The record batch has variadic buffers, which no block has.")
    compressed = bool(batch.field(3))
    if compressed:
        codec = batch.table(3)
        if codec.scalar(0, "<b") not in (0, 1) or codec.scalar(1, "<b") != 0:
            raise BadBlock("The record batch is compressed, but not with LZ4 or ZSTD.")
    lengths, nulls = nodes[::2], nodes[1::2]
    if lengths[:3] != (count,) * 3 or len(set(lengths[3:])) != 1 or lengths[3] < 0:
        raise BadBlock("The columns of the record batch differ in length.")
    if any(not 0 <= n <= m for n, m in zip(nulls, lengths, strict=True)):
        raise BadBlock("A column of the record batch has more nulls than cells.")
    for offset, size in zip(buffers[::2], buffers[1::2], strict=True):
        if offset < 0 or size < 0 or offset % 8 or offset + size > length:
            raise BadBlock("A buffer of the record batch lies outside of the block.")
    return Layout(count, lengths[3], len(body) - length, buffers, compressed)


class _Table:
    __slots__ = ("_at", "_fields", "_meta")

    def __init__(self, meta: memoryview, at: int) -> None:
        self._meta = meta
        self._at = at
        vtable = at - int(_read(meta, "<i", at))
        size = int(_read(meta, "<H", vtable))
        if size < 4 or size % 2:
            raise BadBlock("The metadata of the block's body has a broken table.")
        self._fields = [int(_read(meta, "<H", vtable + i)) for i in range(4, min(size, 32), 2)]

    def field(self, index: int) -> int:
        """Where the field is, 0 when it is absent."""
        if index >= len(self._fields) or not self._fields[index]:
            return 0
        return self._at + self._fields[index]

    def scalar(self, index: int, kind: str) -> int:
        at = self.field(index)
        return int(_read(self._meta, kind, at)) if at else 0

    def table(self, index: int) -> "_Table":
        at = self.field(index)
        if not at:
            raise BadBlock("The metadata of the block's body lacks a table.")
        return _Table(self._meta, at + _u32(self._meta, at))

    def vector(self, index: int, kind: str, width: int, count: int) -> tuple[int, ...]:
        at = self.field(index)
        if not at:
            raise BadBlock("The metadata of the block's body lacks a vector.")
        at += _u32(self._meta, at)
        if _u32(self._meta, at) != count:
            raise BadBlock("The record batch does not have the columns of a block.")
        return struct.unpack_from(f"<{width * count}{kind[1]}", self._meta, at + 4)


def _u32(meta: memoryview, at: int) -> int:
    return int(_read(meta, "<I", at))


def _read(meta: memoryview, kind: str, at: int) -> Any:
    if at < 0:
        raise BadBlock("The metadata of the block's body points outside of itself.")
    return struct.unpack_from(kind, meta, at)[0]


def _decompressed_bytes(body: memoryview, layout: Layout) -> int:
    buffers = layout.buffers
    if not layout.compressed:
        return sum(buffers[1::2])
    total = 0
    for offset, size in zip(buffers[::2], buffers[1::2], strict=True):
        if not size:
            continue
        if size < 8:
            raise BadBlock("A compressed buffer is too short for its length.")
        (declared,) = struct.unpack_from("<q", body, layout.body + offset)
        if declared < -1:
            raise BadBlock("A compressed buffer has a negative length.")
        total += size - 8 if declared == -1 else declared
    return total
