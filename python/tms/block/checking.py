"""Checks of an incoming block's body, so that no stored block can hurt a reader.

    metadata in bounds  ▶  size once decompressed  ▶  columns  ▶  headers  ▶  size of each message

A few messages are checked here, in less time than pyarrow takes to begin; many by pyarrow.

Invariants

* Each step sees only bytes that the earlier ones passed; before the first two did, no foreign byte
  reaches pyarrow and no memory is allocated.
* Whatever the bytes are, only errors of `tms.errors` are raised.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from tms.block import arrow
from tms.block.arrow import HEADER_VALUE, HEADERS, KEY, NAME, SMALL_ENDS, VALUE, Layout
from tms.block.columns import record_batch
from tms.block.header import HEADER_BYTES, read_header
from tms.block.lone import lone_bytes
from tms.block.packing import HEADER_VALUE_BYTES_MAX, HEADERS_MAX, even_ends
from tms.block.times import times_head
from tms.errors import BadBlock, DecompressedTooLarge, Invalid, TooLarge
from tms.model.message import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER_COST_BYTES = 100  # of a header, while its ends are Python's numbers
_END = struct.Struct("<i")
_NO_HEADERS = bytes(24)  # the three ends of one message, each padded to 8


class _Ends(NamedTuple):
    """The ends of each column's cells, after the begin of the first one."""

    keys: Sequence[int]
    values: Sequence[int]
    headers: Sequence[int] = (0, 0)
    names: Sequence[int] = (0,)
    texts: Sequence[int] = (0,)  # the values of headers
    header_validity: bytes = b""  # one bit per message; empty when no map of headers is null


def checking_bytes(block: Buffer) -> int:
    """Approximate memory in bytes that checking an incoming block takes, besides the block
    itself."""
    if lone_bytes(block) is not None:
        return 0
    try:
        header = read_header(block)
        start = HEADER_BYTES
        if header.has_times:
            start = times_head(block, start, header.count).end
        layout, body = arrow.read(block, start)
        size = arrow.decompressed_bytes(block, body, layout) if layout.compressed else 0
    except BadBlock:  # `check_body` raises it before it allocates any
        return 0
    return size + _HEADER_COST_BYTES * layout.entries


def check_body(
    block: Buffer, start: int, count: int, message_bytes_max: int, decompressed_bytes_max: int
) -> None:
    """Check the body, which begins at `start`. Raises `BadBlock`, `DecompressedTooLarge`,
    `Invalid`, `TooLarge`; the last two with `index`."""
    layout, body = arrow.read(block, start)
    if layout.messages != count:
        raise BadBlock(f"The block's header says {count} messages, its body has {layout.messages}.")
    size = arrow.decompressed_bytes(block, body, layout)
    if size > decompressed_bytes_max:
        raise DecompressedTooLarge(
            f"The block's body has {size} bytes once decompressed, but"
            f" {decompressed_bytes_max} is the limit: publish fewer messages together."
        )
    if layout.small:
        lone = count == 1 and not layout.entries
        ends = _lone(block, body, layout) if lone else _small(block, body, layout)
    else:
        batch = _validated(block, start, layout)
        alike = not layout.entries or _is_one_header_each(block, body, layout)
        if alike and size <= message_bytes_max:
            return
        ends = _large(batch, layout)
    if layout.entries:
        _check_headers(ends)
    if size > message_bytes_max:
        _check_messages(ends, message_bytes_max)


def _lone(block: Buffer, body: int, layout: Layout) -> _Ends:
    """`_small` for a lone message without headers, which a caller waits for."""
    buffers, nulls, read = layout.buffers, layout.nulls, SMALL_ENDS[1].unpack_from
    if bytes(block[body + buffers[2 * HEADERS + 2] :]) != _NO_HEADERS:
        return _small(block, body, layout)
    key_start, key_stop = read(block, body + buffers[2 * KEY + 2])
    value_start, value_stop = read(block, body + buffers[2 * VALUE + 2])
    if (
        not 0 <= key_start <= key_stop <= buffers[2 * KEY + 5]
        or not 0 <= value_start <= value_stop <= buffers[2 * VALUE + 5]
        or (nulls[0] and block[body + buffers[2 * KEY]] & 1)
        or (nulls[1] and block[body + buffers[2 * VALUE]] & 1)
        or (nulls[2] and block[body + buffers[2 * HEADERS]] & 1)
    ):
        raise BadBlock("The cells of the record batch contradict its metadata.")
    return _Ends((key_start, key_stop), (value_start, value_stop))


def _small(block: Buffer, body: int, layout: Layout) -> _Ends:
    """The ends of a body that is validated here."""
    count, entries, buffers = layout.messages, layout.entries, layout.buffers
    for column, nulls in zip((KEY, VALUE, HEADERS, HEADER_VALUE), layout.nulls, strict=True):
        cells = entries if column == HEADER_VALUE else count
        validity = _validity(block, body, layout, column) if nulls else b""
        if nulls and _cells_there(validity, cells) != cells - nulls:
            raise BadBlock("A column of the record batch has not as many nulls as it says.")
    keys = _ends(block, body + buffers[2 * KEY + 2], count, buffers[2 * KEY + 5])
    values = _ends(block, body + buffers[2 * VALUE + 2], count, buffers[2 * VALUE + 5])
    headers = _ends(block, body + buffers[2 * HEADERS + 2], count, entries)
    at = body + buffers[2 * NAME + 4]
    names = _ends(block, body + buffers[2 * NAME + 2], entries, buffers[2 * NAME + 5])
    texts = _ends(
        block, body + buffers[2 * HEADER_VALUE + 2], entries, buffers[2 * HEADER_VALUE + 5]
    )
    try:
        for start, stop in pairwise(names):
            str(block[at + start : at + stop], "utf-8")
    except UnicodeDecodeError as exc:
        raise BadBlock("A header's name is not UTF-8.") from exc
    validity = _validity(block, body, layout, HEADERS) if layout.nulls[2] else b""
    return _Ends(keys, values, headers, names, texts, validity)


def _ends(block: Buffer, at: int, cells: int, last_max: int) -> tuple[int, ...]:
    ends = SMALL_ENDS[cells].unpack_from(block, at)
    if ends[0] < 0 or ends[-1] > last_max or [*ends] != sorted(ends):
        raise BadBlock("A cell of the record batch lies outside of its column.")
    return ends


def _validity(block: Buffer, body: int, layout: Layout, column: int) -> bytes:
    at = body + layout.buffers[2 * column]
    return bytes(block[at : at + layout.buffers[2 * column + 1]])


def _cells_there(validity: bytes, count: int) -> int:
    return (int.from_bytes(validity, "little") & ((1 << count) - 1)).bit_count()


def _validated(block: Buffer, start: int, layout: Layout) -> "pa.RecordBatch":
    pa = arrow.library()
    try:
        batch = record_batch(block, layout, start)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as exc:
        raise BadBlock(f"The block's body is not a valid record batch: {exc}") from exc
    return batch


def _large(batch: "pa.RecordBatch", layout: Layout) -> _Ends:
    """The ends of a batch that pyarrow validated."""

    def ends(array: "pa.Array", cells: int) -> Sequence[int]:
        if not cells:
            return (0,)
        return memoryview(array.buffers()[1])[: 4 * (cells + 1)].cast("i").tolist()

    keys, values, headers = batch.columns
    validity = headers.buffers()[0] if layout.nulls[2] else None
    return _Ends(
        ends(keys, layout.messages),
        ends(values, layout.messages),
        ends(headers, layout.messages),
        ends(headers.keys, layout.entries),
        ends(headers.items, layout.entries),
        b"" if validity is None else validity.to_pybytes(),
    )


def _is_one_header_each(block: Buffer, body: int, layout: Layout) -> bool:
    """True if each message has one header, and all names and all values have the same allowed
    lengths. So it is when the publisher adds the context of a trace to all messages."""
    cells, buffers = layout.messages, layout.buffers
    if layout.compressed or layout.nulls[2] or layout.entries != cells:
        return False
    sizes: list[int] = []
    for column in (NAME, HEADER_VALUE):
        at = body + buffers[2 * column + 2]
        (size,), (end,) = _END.unpack_from(block, at + 4), _END.unpack_from(block, at + 4 * cells)
        if size * cells != end:
            return False
        sizes.append(size)
    if sizes[0] < 1 or not 0 <= sizes[1] <= HEADER_VALUE_BYTES_MAX:
        return False
    expected = even_ends(cells, *sizes)
    for column, ends in zip((HEADERS, NAME, HEADER_VALUE), expected, strict=True):
        at = body + buffers[2 * column + 2]
        if bytes(block[at : at + 4 * cells + 4]) != ends[: 4 * cells + 4]:
            return False
    return True


def _check_headers(ends: _Ends) -> None:
    counts = list(map(sub, ends.headers[1:], ends.headers))
    if max(counts) > HEADERS_MAX:
        index = next(i for i, count in enumerate(counts) if count > HEADERS_MAX)
        raise Invalid(
            f"A message has at most {HEADERS_MAX} headers, this one has {counts[index]}.",
            index=index,
        )
    if not min(map(sub, ends.names[1:], ends.names)):
        empty = next(i for i, (start, stop) in enumerate(pairwise(ends.names)) if start == stop)
        raise Invalid("A header's name is empty.", index=bisect_right(ends.headers, empty) - 1)
    largest = max(map(sub, ends.texts[1:], ends.texts))
    if largest > HEADER_VALUE_BYTES_MAX:
        at = next(
            i for i, (start, stop) in enumerate(pairwise(ends.texts)) if stop - start == largest
        )
        raise Invalid(
            f"A header's value has at most {HEADER_VALUE_BYTES_MAX} bytes, this one has {largest}.",
            index=bisect_right(ends.headers, at) - 1,
        )
    validity = ends.header_validity
    if validity and any(
        count and not validity[i >> 3] >> (i & 7) & 1 for i, count in enumerate(counts)
    ):
        raise BadBlock("A null map of headers is not empty.")


def _check_messages(ends: _Ends, message_bytes_max: int) -> None:
    keys, values, headers, names, texts, _ = ends
    for index in range(len(keys) - 1):
        size = keys[index + 1] - keys[index] + values[index + 1] - values[index]
        first, last = headers[index], headers[index + 1]
        size += names[last] - names[first] + texts[last] - texts[first]
        if size > message_bytes_max:
            raise TooLarge(
                f"A message has at most {message_bytes_max} bytes, this one has {size}.",
                index=index,
            )
