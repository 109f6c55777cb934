"""Messages → the body of a block.

Packing needs pyarrow only to compress: joining all cells once is as fast as building its arrays.

Invariants

* A cell may hold any bytes; None makes a null cell, not an empty one.
* A message without headers gets an empty map, not a null one.
* A message has at most `HEADERS_MAX` headers from its publisher, and up to `HEADERS_ADDED_MAX` more
  as a dead letter: every stored message can be packed again. Names are not empty, values have at
  most `HEADER_VALUE_BYTES_MAX` or are None.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import sub
from types import NoneType
from typing import TYPE_CHECKING, cast, overload

from tms.block import arrow
from tms.block.arrow import Compression
from tms.block.columns import HeaderCells, schema
from tms.errors import Invalid, TooLarge
from tms.model.message import MESSAGES_MAX, Headers

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS_MAX = 1_000
HEADERS_ADDED_MAX = 16
_HEADERS_MAX = HEADERS_MAX + HEADERS_ADDED_MAX
HEADER_VALUE_BYTES_MAX = 64 << 10
COUNTS_CACHED_MAX = 4  # most often the count is 1
EVEN_CACHED_MAX = 12  # columns of cells of one size
COMPRESSED_BYTES_MIN = 64  # smaller buffers stay as they are

BytesColumn = Sequence[bytes | None]
HeadersColumn = Sequence[Headers | None]

# A column: validity (if any cell is null) and ends, each padded to 8; cells; the cells' bytes.
_Column = tuple[bytes, Sequence[bytes], int]

# Number of headers; the end of each message's, padded; names; values (`texts`, for short), of which
# so many are null.
_HeaderColumns = tuple[int, bytes, _Column, tuple[int, _Column]]

_NO_CELLS: _Column = (bytes(8), (), 0)
_PAD = [bytes(-size % 8) for size in range(8)]
_BYTES = {bytes, bytearray}
_TEXTS = {*_BYTES, NoneType}
_LENGTH = struct.Struct("<q")
_ENDS_OF_ONE = struct.Struct("<2i")


class SharedHeaders(Sequence[Headers]):
    """The headers that `count` messages share, of which one copy is packed."""

    __slots__ = ("_count", "row")

    def __init__(self, row: Headers, count: int) -> None:
        self.row = row
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Headers]:
        return repeat(self.row, self._count)

    @overload
    def __getitem__(self, at: int) -> Headers: ...

    @overload
    def __getitem__(self, at: slice) -> "SharedHeaders": ...

    def __getitem__(self, at: int | slice) -> "Headers | SharedHeaders":
        rows = range(self._count)[at]
        return self.row if isinstance(rows, int) else SharedHeaders(self.row, len(rows))


def pack(
    values: BytesColumn,
    keys: BytesColumn | None,
    headers: HeadersColumn | HeaderCells | None,
    room: int,
) -> bytearray:
    """`room` zero bytes, then the body, not compressed. Raises `Invalid` and `TooLarge`."""
    count = len(values)
    if not count:
        raise Invalid("A block has at least one message.")
    if count > MESSAGES_MAX:
        raise TooLarge(f"A block has at most {MESSAGES_MAX} messages, got {count}.")
    null_keys, (key_ends, key_cells, key_bytes) = _column("keys", keys, count)
    null_values, (value_ends, value_cells, value_bytes) = _column("values", values, count)
    entries, map_ends, names, (null_texts, texts) = _header_columns(headers, count)
    name_ends, name_cells, name_bytes = names
    text_ends, text_cells, text_bytes = texts
    ends, entry_ends, validity = 4 * count + 4, 4 * entries + 4, (count + 7) // 8
    text_validity = (entries + 7) // 8 if null_texts else 0
    sizes = (
        validity if null_keys else 0, ends, key_bytes,
        validity if null_values else 0, ends, value_bytes,
        0, ends, 0,
        0, entry_ends, name_bytes,
        text_validity, entry_ends, text_bytes,
    )  # fmt: skip
    metadata, body_bytes = arrow.write(
        Compression.NONE, count, entries, (null_keys, null_values, null_texts), sizes
    )
    parts = (
        bytes(room), metadata,
        key_ends, *key_cells, _PAD[key_bytes & 7],
        value_ends, *value_cells, _PAD[value_bytes & 7],
        map_ends,
        name_ends, *name_cells, _PAD[name_bytes & 7],
        text_ends, *text_cells, _PAD[text_bytes & 7],
    )  # fmt: skip
    try:
        block = bytearray().join(parts)
    except TypeError as exc:
        raise _wrong_type(values, keys) from exc
    if len(block) != room + len(metadata) + body_bytes:  # some cell's len() is not its bytes
        raise _wrong_type(values, keys)
    return block


def pack_batch(batch: "pa.RecordBatch", room: int) -> bytearray:
    """`room` zero bytes, then the body of columns that are Arrow's already, with the schema of
    blocks. The caller has checked the invariants of headers. Raises `Invalid` and `TooLarge`."""
    if batch.schema != schema():
        raise Invalid(f"A block has the columns {schema()}, got {batch.schema}.")
    if not batch.num_rows:
        raise Invalid("A block has at least one message.")
    if batch.num_rows > MESSAGES_MAX:
        raise TooLarge(f"A block has at most {MESSAGES_MAX} messages, got {batch.num_rows}.")
    return bytearray().join((bytes(room), memoryview(batch.serialize())))


def compress(block: bytearray, room: int, compression: Compression) -> bytearray:
    """The block of `pack` with compressed buffers; a buffer that would grow stays as it is."""
    codec = arrow.library().Codec(compression.value)
    layout, body = arrow.read(block, room)
    view = memoryview(block)
    parts: list[bytes | memoryview] = []
    sizes: list[int] = []
    for at, size in zip(layout.buffers[::2], layout.buffers[1::2], strict=True):
        if not size:
            sizes.append(0)
            continue
        length, packed = -1, view[body + at : body + at + size]
        if size >= COMPRESSED_BYTES_MIN:
            shorter = codec.compress(packed, asbytes=True)
            if len(shorter) < size:
                length, packed = size, shorter
        sizes.append(8 + len(packed))
        parts += (_LENGTH.pack(length), packed, _PAD[len(packed) & 7])
    null_keys, null_values, _, null_texts = layout.nulls
    nulls = null_keys, null_values, null_texts
    metadata, _ = arrow.write(compression, layout.messages, layout.entries, nulls, tuple(sizes))
    return bytearray().join((bytes(room), metadata, *parts))


def _column(name: str, cells: BytesColumn | None, count: int) -> tuple[int, _Column]:
    """The number of null cells, and the column."""
    if cells is None:
        return count, _nulls(count)
    if len(cells) != count:
        raise Invalid(f"There are {count} values, but {len(cells)} {name}.")
    try:
        return 0, _joined(cast(Sequence[bytes], cells))
    except TypeError:
        filled = [b"" if cell is None else cell for cell in cells]
    try:
        ends, _, size = _joined(filled)
    except TypeError as exc:
        raise _wrong_type(cells) from exc
    bits = "".join("0" if cell is None else "1" for cell in reversed(cells))
    validity = int(bits, 2).to_bytes(arrow.padded((count + 7) // 8), "little")
    return bits.count("0"), (validity + ends, filled, size)


@lru_cache(COUNTS_CACHED_MAX)
def _nulls(count: int) -> _Column:
    return bytes(arrow.padded((count + 7) // 8) + arrow.padded(4 * count + 4)), (), 0


@lru_cache(COUNTS_CACHED_MAX)
def _no_headers(count: int) -> _HeaderColumns:
    return 0, bytes(arrow.padded(4 * count + 4)), _NO_CELLS, (0, _NO_CELLS)


def _joined(cells: Sequence[bytes]) -> _Column:
    if len(cells) == 1:  # a lone message, for which a caller waits
        size = len(cells[0])
        if size < 2**31:
            return _ENDS_OF_ONE.pack(0, size), cells, size
    sizes = [*map(len, cells)]
    if sizes and sizes.count(sizes[0]) == len(sizes):
        return _even(len(sizes), sizes[0]), cells, sizes[0] * len(sizes)
    ends = list(accumulate(sizes, initial=0))
    try:
        return struct.pack(f"<{len(ends)}i{len(ends) % 2 * 4}x", *ends), cells, ends[-1]
    except struct.error as exc:
        raise TooLarge("The messages of a block have less than 2 GiB together.") from exc


def _header_columns(headers: HeadersColumn | HeaderCells | None, count: int) -> _HeaderColumns:
    if headers is None:
        return _no_headers(count)
    if isinstance(headers, HeaderCells):
        return _cell_columns(headers, count, headers)
    if len(headers) != count:
        raise Invalid(f"There are {count} values, but {len(headers)} headers.")
    if type(headers) is SharedHeaders and [*map(type, headers.row.values())] == [bytes]:
        return _repeated(count, headers.row)
    names: list[str] = []
    texts: list[bytes | None] = []
    ends = [0]
    try:
        for row in headers:
            if row:
                names += row
                texts += row.values()
            ends.append(len(names))
    except (TypeError, AttributeError) as exc:
        raise _wrong_headers(headers) from exc
    return _cell_columns(HeaderCells(ends, names, texts), count, headers)


def _cell_columns(
    cells: HeaderCells, count: int, headers: HeadersColumn | HeaderCells
) -> _HeaderColumns:
    """The header columns of these cells, which the caller gave as `headers`."""
    ends, names, texts = cells
    sizes = list(map(sub, ends[1:], ends))
    if len(sizes) != count or ends[0] or min(sizes) < 0 or not ends[-1] == len(names) == len(texts):
        raise Invalid(
            f"The ends of the headers do not fit {count} messages and {len(names)} names."
        )
    try:
        encoded = list(map(str.encode, names))
    except (TypeError, UnicodeEncodeError) as exc:
        raise _wrong_headers(headers) from exc
    if max(sizes) > _HEADERS_MAX or b"" in encoded or not set(map(type, texts)) <= _TEXTS:
        raise _wrong_headers(headers)
    if texts and max(map(len, filter(None, texts)), default=0) > HEADER_VALUE_BYTES_MAX:
        raise _wrong_headers(headers)
    map_ends = struct.pack(f"<{count + 1}i{len(ends) % 2 * 4}x", *ends)
    return len(encoded), map_ends, _joined(encoded), _column("header values", texts, len(texts))


def _repeated(count: int, row: Headers) -> _HeaderColumns:
    """The header columns for one header that all messages share, such as the context of a trace."""
    if _why_wrong(row):
        raise _wrong_headers([row])
    ((name, text),) = row.items()
    assert text is not None
    encoded = name.encode()
    map_ends, name_ends, text_ends = even_ends(count, len(encoded), len(text))
    names: _Column = name_ends, (encoded * count,), len(encoded) * count
    return count, map_ends, names, (0, (text_ends, (text * count,), len(text) * count))


def even_ends(count: int, *sizes: int) -> list[bytes]:
    """The ends of `count` cells: of one header each, then of cells of these sizes; padded."""
    return [_even(count, size) for size in (1, *sizes)]


@lru_cache(EVEN_CACHED_MAX)
def _even(count: int, size: int) -> bytes:
    """The ends of `count` cells of one size, padded."""
    try:
        ends = map(size.__mul__, range(count + 1))
        return struct.pack(f"<{count + 1}i{(count + 1) % 2 * 4}x", *ends)
    except struct.error as exc:
        raise TooLarge("The messages of a block have less than 2 GiB together.") from exc


def _wrong_type(*columns: BytesColumn | None) -> Invalid:
    """The error for cells that could not be joined; it names the first one that is to blame."""
    for cells in columns:
        for index, cell in enumerate(cells or ()):
            if cell is not None and type(cell) not in _BYTES:
                kind = type(cell).__name__
                return Invalid(f"Keys and values are bytes or None, got {kind}.", index=index)
    return Invalid("Keys and values are bytes or None.")


def _wrong_headers(headers: HeadersColumn | HeaderCells) -> Invalid:
    """The error for headers that could not be joined; it names the first ones that are to blame."""
    for index, row in enumerate(headers.rows() if isinstance(headers, HeaderCells) else headers):
        why = row and _why_wrong(row)
        if why:
            return Invalid(f"Headers are a mapping of str to bytes or None: {why}.", index=index)
    return Invalid("Headers are a mapping of str to bytes or None.")


def _why_wrong(row: object) -> str:
    if not isinstance(row, Mapping):
        return f"got {type(row).__name__}"
    if len(row) > _HEADERS_MAX:
        return f"a message has at most {HEADERS_MAX}, this one {len(row)}"
    for name, text in row.items():
        if not isinstance(name, str) or not name:
            return f"a name is a str that is not empty, got {name!r:.80}"
        if name.encode(errors="ignore").decode() != name:
            return f"a name is valid Unicode, got {name!r:.80}"
        if type(text) not in _TEXTS:
            return f"the value of {name!r:.80} is bytes or None, got {type(text).__name__}"
        if text is not None and len(text) > HEADER_VALUE_BYTES_MAX:
            return (
                f"a value has at most {HEADER_VALUE_BYTES_MAX} bytes, {name!r:.80} has {len(text)}"
            )
    return ""
