"""The metadata of a block's body: one encapsulated Arrow IPC RecordBatch message, without pyarrow.

The schema is always `key: binary, value: binary, headers: map<utf8, binary>`, which makes 6 field
nodes and 15 buffers. Integers are little-endian here, as Arrow has them.

    0       4  ff ff ff ff                  continuation
    4       4  m, a multiple of 8
    8       m  flatbuffer: Message → RecordBatch → compression, buffers, nodes
    8 + m   …  the buffers, each at a multiple of 8

    node    0 key        1 value      2 headers   3 entries    4 name        5 header value
    buffer  0 validity   3 validity   6 validity  8 validity   9 validity   12 validity
            1 ends       4 ends       7 ends                  10 ends       13 ends
            2 bytes      5 bytes                              11 bytes      14 bytes

pyarrow always lays this flatbuffer out in the same way. So `write` fills in a template, and `read`
compares with the template before it walks the flatbuffer of another writer, e.g. Java's.

Invariants

* The bytes of `write` equal those that pyarrow writes for the same buffers.
* The layout that `read` returns lies within the block: the counts agree, each buffer is inside,
  aligned and, unless compressed, long enough for its column. No memory is allocated by a foreign
  length.
"""

import struct
from collections.abc import Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, NamedTuple

from tms.errors import BadBlock
from tms.model.message import Buffer
from tms.runtime.extras import needed

SMALL_MAX = 32  # messages and headers; pyarrow is not faster up to here (nor worth importing)
SMALL_ENDS = [struct.Struct(f"<{cells + 1}i") for cells in range(SMALL_MAX + 1)]
METADATA_BYTES_MAX = 1_024  # pyarrow's have 424 to 448
METADATA_CACHED_MAX = 512  # metadata repeats from block to block, as sizes and counts do
NODES = 6
BUFFERS = 15
KEY, VALUE, HEADERS, NAME, HEADER_VALUE = 0, 3, 6, 9, 12  # each column's first buffer

_PREFIX = struct.Struct("<II")
_LENGTH = struct.Struct("<q")
_CONTINUATION = 0xFFFFFFFF
_VTABLE_BYTES_MAX = 32
_METADATA_VERSION = 4  # spelled V5
_RECORD_BATCH = 3  # in the union MessageHeader


class Compression(StrEnum):
    """The compression of a block's buffers."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


_CODECS = {(0, 0): Compression.LZ4, (1, 0): Compression.ZSTD}  # codec, method


@cache
def library() -> Any:
    """pyarrow. Raises `ConfigError` if it is not installed."""
    with needed("An Arrow record batch or a compressed block", "arrow"):
        import pyarrow
    return pyarrow


class Layout(NamedTuple):
    """The location of the columns within a body."""

    small: bool  # the template's, not compressed, few cells: better read without pyarrow
    compressed: bool
    messages: int
    entries: int  # headers of all messages together
    nulls: tuple[int, ...]  # null keys, null values, null maps of headers, null values of headers
    buffers: tuple[int, ...]  # offset, length, offset, length, … behind the metadata
    body_bytes: int
    compression: Compression


class _Template(NamedTuple):
    """pyarrow's metadata: fixed bytes around body length, count, buffers and nodes."""

    compression: Compression
    fields: struct.Struct
    start: bytes  # … body length
    middle: bytes  # … count
    before_buffers: bytes  # … 15 × (offset, length)
    before_nodes: bytes  # … 6 × (length, nulls)


def _template(compression: Compression, start: str, middle: str, before_buffers: str) -> _Template:
    fixed = [bytes.fromhex(part) for part in (start, middle, before_buffers, "00000000 06000000")]
    one, two, three, four = map(len, fixed)
    fields = struct.Struct(f"<{one}sq{two}sq{three}s{2 * BUFFERS}q{four}s{2 * NODES}q")
    return _Template(compression, fields, *fixed)


_PLAIN = _template(
    Compression.NONE,
    "ffffffff a8010000 14000000 00000000 0c001600 06000500 08000c00 0c000000 00030400 18000000",
    "00000a00 18000c00 04000800 0a000000 0c010000 10000000",
    "00000000 0f000000",
)
_LZ4 = _template(
    Compression.LZ4,
    "ffffffff b8010000 14000000 00000000 0c001800 06000500 08000c00 0c000000 00030400 1c000000",
    "00000000 0c001c00 10000400 08000c00 0c000000 18010000 1c000000 14000000",
    "00000000 04000400 04000000 0f000000",
)
_ZSTD = _template(
    Compression.ZSTD,
    "ffffffff c0010000 14000000 00000000 0c001800 06000500 08000c00 0c000000 00030400 1c000000",
    "00000000 0c001e00 10000400 08000c00 0c000000 20010000 24000000 18000000",
    "00000000 00000600 08000700 06000000 00000001 0f000000",
)
_TEMPLATES = {template.compression: template for template in (_PLAIN, _LZ4, _ZSTD)}
_BY_SIZE = {template.fields.size: template for template in (_PLAIN, _LZ4, _ZSTD)}


def padded(size: int) -> int:
    """The next multiple of 8."""
    return (size + 7) & -8


@lru_cache(METADATA_CACHED_MAX)
def write(
    compression: Compression,
    messages: int,
    entries: int,
    nulls: tuple[int, int, int],
    sizes: tuple[int, ...],
) -> tuple[bytes, int]:
    """The metadata for buffers of these 15 sizes, and the sum of their lengths, each padded to
    8. `nulls` are the null keys, values, and values of headers."""
    at = 0
    buffers: list[int] = []
    for size in sizes:
        buffers += (at, size)
        at += (size + 7) & -8
    template = _TEMPLATES[compression]
    null_keys, null_values, null_texts = nulls
    metadata = template.fields.pack(
        template.start, at, template.middle, messages,
        template.before_buffers, *buffers, template.before_nodes,
        messages, null_keys, messages, null_values, messages, 0,
        entries, 0, entries, 0, entries, null_texts,
    )  # fmt: skip
    return metadata, at


def read(block: Buffer, start: int) -> tuple[Layout, int]:
    """The layout of the body that begins at `start`, and the offset of its buffers.

    The body ends where the block ends. Raises `BadBlock`.
    """
    length = len(block)
    if length < start + 8:
        raise BadBlock("The block has no body.")
    mark, size = _PREFIX.unpack_from(block, start)
    body = start + 8 + size
    if mark != _CONTINUATION or size % 8 or size > METADATA_BYTES_MAX or body > length:
        raise BadBlock("The block's body does not begin with the metadata of a record batch.")
    layout = _layout(bytes(block[start:body]))
    if layout.body_bytes != length - body:
        raise BadBlock("The record batch does not end where the block ends.")
    return layout, body


@lru_cache(METADATA_CACHED_MAX)
def _layout(metadata: bytes) -> Layout:
    try:
        matched = _match(metadata)
        compression, body_bytes, messages, buffers, nodes = matched or _walk(metadata)
    except struct.error as exc:
        raise BadBlock("The metadata of the block's body points outside of itself.") from exc
    entries = nodes[6]
    if nodes[::2] != (messages,) * 3 + (entries,) * 3 or min(messages, entries) < 0:
        raise BadBlock("The columns of the record batch differ in length.")
    nulls = (*nodes[1:7:2], nodes[11])
    if min(nulls) < 0 or max(nulls[:3]) > messages or nulls[3] > entries:
        raise BadBlock("A column of the record batch has more nulls than cells.")
    if nodes[7] or nodes[9]:
        raise BadBlock("The names of headers cannot be null.")
    end = 0
    for at, size in zip(buffers[::2], buffers[1::2], strict=True):
        if size < 0 or at % 8 or not (end if size else 0) <= at <= body_bytes - size:
            raise BadBlock("A buffer of the record batch lies outside of the block or in another.")
        end = at + size if size else end
    compressed = compression is not Compression.NONE
    if not compressed:
        _check_sizes(messages, entries, nulls, buffers[1::2])
    small = (
        matched is not None
        and not compressed
        and messages + entries <= SMALL_MAX
        and min(buffers[2 * NAME + 3], buffers[2 * HEADER_VALUE + 3]) > 0
    )
    return Layout(small, compressed, messages, entries, nulls, buffers, body_bytes, compression)


def _check_sizes(messages: int, entries: int, nulls: Sequence[int], sizes: Sequence[int]) -> None:
    for column, null_cells in zip((KEY, VALUE, HEADERS, HEADER_VALUE), nulls, strict=True):
        cells = entries if column == HEADER_VALUE else messages
        if column != HEADER_VALUE and sizes[column + 1] < 4 * (cells + 1):
            raise BadBlock("A column of the record batch has fewer ends than cells.")
        if null_cells and 8 * sizes[column] < cells:
            raise BadBlock("A column of the record batch has fewer validity bits than cells.")
    for size in (sizes[NAME + 1], sizes[HEADER_VALUE + 1]):
        if size < 4 * (entries + 1) and (entries or size):  # Java writes no ends for no cells
            raise BadBlock("The headers of the record batch have fewer ends than cells.")


def decompressed_bytes(block: Buffer, body: int, layout: Layout) -> int:
    """The total length of all buffers when decompressed, as the block states it. Raises
    `BadBlock`."""
    if not layout.compressed:
        return layout.body_bytes
    total = 0
    for at, size in zip(layout.buffers[::2], layout.buffers[1::2], strict=True):
        if not size:
            continue
        if size < 8:
            raise BadBlock("A compressed buffer is too short to hold its length.")
        (declared,) = _LENGTH.unpack_from(block, body + at)
        if declared < -1:
            raise BadBlock("A compressed buffer has a negative length.")
        total += size - 8 if declared == -1 else declared
    return total


_Found = tuple[Compression, int, int, tuple[int, ...], tuple[int, ...]]


def _match(metadata: bytes) -> _Found | None:
    """Compression, body length, count, buffers and nodes, if the metadata is the template's."""
    template = _BY_SIZE.get(len(metadata))
    if template is None:
        return None
    start, body_bytes, middle, messages, before_buffers, *rest = template.fields.unpack(metadata)
    buffers, before_nodes, nodes = rest[: 2 * BUFFERS], rest[2 * BUFFERS], rest[2 * BUFFERS + 1 :]
    if (start, middle, before_buffers, before_nodes) != template[2:]:
        return None
    return template.compression, body_bytes, messages, tuple(buffers), tuple(nodes)


def _walk(metadata: bytes) -> _Found:
    """Compression, body length, count, buffers and nodes from a flatbuffer with any layout."""
    message = _Table(metadata, 8)
    if message.scalar(0, "<h") != _METADATA_VERSION or message.scalar(1, "<B") != _RECORD_BATCH:
        raise BadBlock("The block's body is not an Arrow record batch of metadata version 5.")
    batch = message.table(2)
    compression = Compression.NONE
    if batch.has(3):
        body_compression = batch.table(3)
        codec = body_compression.scalar(0, "<b"), body_compression.scalar(1, "<b")
        if codec not in _CODECS:
            raise BadBlock("The block's body is compressed, but neither with LZ4 nor with ZSTD.")
        compression = _CODECS[codec]
    if batch.has(4) and batch.vector(4, 0):
        raise BadBlock("The record batch has variadic buffers, which no block has.")
    return (
        compression,
        message.scalar(3, "<q"),
        batch.scalar(0, "<q"),
        batch.vector(2, 2 * BUFFERS),
        batch.vector(1, 2 * NODES),
    )


class _Table:
    """A flatbuffer table, found through the offset at `pointer`. Only bytes within it are read."""

    __slots__ = ("_at", "_fields", "_metadata")

    def __init__(self, metadata: bytes, pointer: int) -> None:
        self._metadata = metadata
        self._at = pointer + self._read("<I", pointer)
        vtable = self._at - self._read("<i", self._at)
        size = min(self._read("<H", vtable), _VTABLE_BYTES_MAX)
        self._fields = [self._read("<H", at) for at in range(vtable + 4, vtable + size - 1, 2)]

    def has(self, field: int) -> bool:
        """True if the field is present. An absent scalar is zero."""
        return field < len(self._fields) and self._fields[field] != 0

    def scalar(self, field: int, kind: str) -> int:
        """The field's number."""
        return self._read(kind, self._at + self._fields[field]) if self.has(field) else 0

    def table(self, field: int) -> "_Table":
        """The field's table."""
        if not self.has(field):
            raise BadBlock("The metadata of the block's body lacks a table.")
        return _Table(self._metadata, self._at + self._fields[field])

    def vector(self, field: int, numbers: int) -> tuple[int, ...]:
        """The field's vector of structs, each of `numbers` 64-bit numbers."""
        if not self.has(field):
            raise BadBlock("The metadata of the block's body lacks a vector.")
        pointer = self._at + self._fields[field]
        at = pointer + self._read("<I", pointer)
        if self._read("<I", at) * 2 != numbers:
            raise BadBlock("The record batch does not have the columns of a block.")
        return struct.unpack_from(f"<{numbers}q", self._metadata, at + 4)

    def _read(self, kind: str, at: int) -> int:
        if at < 0:
            raise BadBlock("The metadata of the block's body points outside of itself.")
        number: int = struct.unpack_from(kind, self._metadata, at)[0]
        return number
