"""The records of a batch, built from columns, not compressed.

    record   length · 0, timestamp delta · offset delta · key length · key · value length · value ·
             headers

A library's builder in C makes small records fastest. It computes a checksum in software, which is
of no use because the header is written later, and which takes longer than anything else once the
records are large. So those are joined here.

Invariants

* Both ways make the same bytes: every number has the fewest bytes that hold it.
* Joining copies the cells once. The fields between them come from tables, a column at a time: only
  headers, and columns with some nulls, take a step of Python for each record.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, repeat, starmap
from operator import add
from typing import Any, NamedTuple, cast

from tms.block import BytesColumn, HeaderCells
from tms.errors import TooLarge
from tms.model.message import MESSAGES_MAX
from tms.runtime.extras import needed

HEADER_BYTES = 61  # of a batch
JOINED_BYTES_MIN = 512  # of the average record, from which on joining is faster than the library
VARINTS_KEPT = 16_384  # positive numbers, and as many negative ones
_DIGIT_BITS = 7
_MORE = 0x80
_NULL = b"\1"  # the length -1
_NO_HEADERS = b"\0"
_ATTRIBUTES = b"\0"
_OFFSET_RUNS = ((1, 1 << 6), (2, 1 << 13), (3, MESSAGES_MAX))  # offset deltas by their bytes
_FORMAT = 2
_PLAIN = 0
_NO_PRODUCER = (-1, -1, -1)

_Field = bytes | Sequence[bytes]  # of all records, or of each


class RecordColumns(NamedTuple):
    """The columns of a batch's records, at least one. Offsets ascend, from the batch's base on;
    times are in ms, and the first one is the base."""

    offsets: Sequence[int]
    times: Sequence[int]
    keys: BytesColumn
    values: BytesColumn
    headers: HeaderCells


class _Column(NamedTuple):
    """Fields of records, one behind the other. Their bytes are `common`, and where records differ
    those of `sizes` besides."""

    fields: tuple[_Field, ...]
    common: int
    sizes: Sequence[int] | None = None


class _Varints(dict[int, bytes]):
    """The zigzag varints of numbers of at most 64 bits. Those of small ones are kept."""

    def __missing__(self, number: int) -> bytes:
        left = number << 1 ^ number >> 63
        digits = bytearray()
        while left >= _MORE:
            digits.append(left & (_MORE - 1) | _MORE)
            left >>= _DIGIT_BITS
        digits.append(left)
        made = bytes(digits)
        if -VARINTS_KEPT <= number < VARINTS_KEPT:
            self[number] = made
        return made


@cache
def library() -> Any:
    """aiokafka's parser and builder of batches, in C."""
    with needed("The Kafka front end", "kafka"):
        from aiokafka.record._crecords import default_records
    return default_records


def build(records: RecordColumns, record_bytes: int, bytes_max: int) -> bytearray:
    """Room for a batch's header, then the records, which have about `record_bytes` each. Raises
    `TooLarge` if that is more than `bytes_max`."""
    joined = record_bytes >= JOINED_BYTES_MIN
    batch = _join(records) if joined else _build(records, bytes_max)
    if batch is None or len(batch) > bytes_max:
        raise TooLarge(f"A block of more than {bytes_max} bytes fits no batch of Kafka's.")
    return batch


def _build(records: RecordColumns, bytes_max: int) -> bytearray | None:
    """The batch by the library; None if it is too large."""
    builder = library().DefaultRecordBatchBuilder(_FORMAT, _PLAIN, False, *_NO_PRODUCER, bytes_max)
    offsets, times, keys, values, (ends, names, texts) = records
    headers: Sequence[list[tuple[str, bytes | None]]] = [[]] * len(values)
    if names:
        pairs = [*zip(names, texts, strict=True)]
        headers = [pairs[start:stop] for start, stop in pairwise(ends)]
    rows = zip(offsets, times, keys, values, headers, strict=True)
    if None in starmap(builder.append, rows):
        return None
    batch: bytearray = builder.build()
    return batch


def _join(records: RecordColumns) -> bytearray:
    """The batch by joining all of its parts at once."""
    offsets, times, keys, values, headers = records
    count = len(values)
    deltas = _Column((_varints(offsets),), 0)
    columns = [_times(times), deltas, _cells(keys), _cells(values), _headers(headers)]
    fields: list[_Field] = [_lengths(columns, offsets)]
    for column in columns:
        fields += column.fields
    width = len(fields)
    parts = [bytes(HEADER_BYTES), *repeat(b"", width * count)]
    for at, field in enumerate(fields, 1):
        parts[at::width] = [field] * count if isinstance(field, bytes) else field
    return bytearray().join(parts)


def _lengths(columns: Sequence[_Column], offsets: Sequence[int]) -> list[bytes]:
    """The length of each record, which is the field before all others."""
    common = sum(column.common for column in columns)
    sizes: Sequence[int] | None = None
    for column in columns:
        if column.sizes is not None:
            sizes = column.sizes if sizes is None else [*map(add, sizes, column.sizes)]
    lengths: list[bytes] = []
    for digits, end in _OFFSET_RUNS:
        start = len(lengths)
        stop = bisect_left(offsets, end)
        if sizes is None:
            lengths += _varints((common + digits,)) * (stop - start)
        else:
            lengths += _varints(map(add, sizes[start:stop], repeat(common + digits)))
    return lengths


def _times(times: Sequence[int]) -> _Column:
    """The attributes and the timestamp delta of each record."""
    different = [*set(times)]
    deltas = _varints(time - times[0] for time in different)
    fields = dict(zip(different, map(_ATTRIBUTES.__add__, deltas), strict=True))
    if len(fields) == 1:
        return _Column((fields[times[0]],), len(fields[times[0]]))
    each = [*map(fields.__getitem__, times)]
    sizes = {*map(len, fields.values())}
    return _Column((each,), sizes.pop()) if len(sizes) == 1 else _sized(each)


def _cells(cells: BytesColumn) -> _Column:
    """Keys or values, each behind its length."""
    try:
        sizes = [*map(len, cast(Sequence[bytes], cells))]
    except TypeError:
        return _cells_or_null(cells)
    known = cast(Sequence[bytes], cells)
    shortest, longest = _varints((min(sizes), max(sizes)))
    if shortest == longest:
        return _Column((longest, known), len(longest) + sizes[0])
    if len(shortest) == len(longest):
        return _Column((_varints(sizes), known), len(longest), sizes)
    return _sized(_varints(sizes), known)


def _cells_or_null(cells: BytesColumn) -> _Column:
    """As `_cells`, some of which are None."""
    if cells.count(None) == len(cells):
        return _Column((_NULL,), len(_NULL))
    sizes = _varints(-1 if cell is None else len(cell) for cell in cells)
    return _sized(sizes, [cell or b"" for cell in cells])


def _headers(cells: HeaderCells) -> _Column:
    """The number of headers of each record, and the headers."""
    ends, names, values = cells
    if not names:
        return _Column((_NO_HEADERS,), len(_NO_HEADERS))
    parts: list[bytes] = []
    for column in ([*map(str.encode, names)], values):
        sizes = _varints(-1 if cell is None else len(cell) for cell in column)
        parts += map(add, sizes, [cell or b"" for cell in column])
    pairs = [*map(add, parts[: len(names)], parts[len(names) :])]
    counts = _varints(stop - start for start, stop in pairwise(ends))
    texts = [b"".join(pairs[start:stop]) for start, stop in pairwise(ends)]
    return _sized(counts, texts)


def _sized(*fields: Sequence[bytes]) -> _Column:
    """A column of fields that differ in size."""
    sizes: Sequence[int] = [*map(len, fields[0])]
    for field in fields[1:]:
        sizes = [*map(add, sizes, map(len, field))]
    return _Column(fields, 0, sizes)


def _varints(numbers: Any) -> list[bytes]:
    return [*map(_table().__getitem__, numbers)]


@cache
def _table() -> _Varints:
    return _Varints()
