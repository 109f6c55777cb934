"""The body of a block → messages.

A few messages are unpacked here, many by pyarrow, which is imported when it is first needed.
Without pyarrow all are unpacked here, except those of compressed blocks.

Invariants

* The block passed `checking` when it came in and its CRC is right, so its ends are true.
* Each column has one cell for each message of the block. A null map of headers reads as an empty
  one.
* The unpacked buffers of a compressed block are kept only by the slice that needed them; `unpacked`
  lets neighbours share them, and keeps nothing.
"""

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise, repeat, starmap
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from tms.block import arrow
from tms.block.arrow import (
    HEADER_VALUE,
    HEADERS,
    KEY,
    NAME,
    SMALL_ENDS,
    SMALL_MAX,
    VALUE,
    Layout,
    decompressed_bytes,
    library,
)
from tms.block.header import HEADER_BYTES, Flags, behind_index, body_crc, index_of, read_header
from tms.block.times import TimesHead, times_head, times_of
from tms.errors import BadBlock, DataCorrupt
from tms.model.message import Buffer
from tms.runtime.extras import installed

if TYPE_CHECKING:
    import pyarrow as pa


_BUFFER_LENGTH = struct.Struct("<q")  # at the begin of a compressed buffer; -1: it is not
COLD_MAX = 2_048  # messages and headers to unpack by hand while pyarrow is not loaded


@cache
def schema() -> "pa.Schema":
    """The schema of every block."""
    pa = library()
    headers = pa.map_(pa.utf8(), pa.binary())
    return pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", headers)])


def decode(block: Buffer) -> "Columns":
    """The messages of a stored block. Raises `DataCorrupt` if it has changed since it was
    stored."""
    try:
        header = read_header(block)
        crc = body_crc(block)
        if crc != header.crc:
            raise BadBlock(f"its body has the CRC-32C {crc:08x}, its header says {header.crc:08x}.")
        index, times_at = None, HEADER_BYTES
        count = header.count
        if header.flags & Flags.SPARSE:
            index = index_of(block, header)
            times_at, count = behind_index(header, index), len(index)
        times = times_head(block, times_at, count) if header.has_times else None
        start = times_at if times is None else times.end
        layout, body = arrow.read(block, start)
        if layout.messages != count:
            raise BadBlock(f"its header says {count} messages, its body {layout.messages}.")
    except BadBlock as exc:
        raise DataCorrupt(f"A stored block is damaged, run `tms fsck`: {exc.message}") from exc
    return Columns(block, layout, body, start, index, 0, count, times)


def record_batch(block: Buffer, layout: Layout, start: int = HEADER_BYTES) -> "pa.RecordBatch":
    """The body, which begins at `start`, as an Arrow record batch. Raises `pyarrow.ArrowException`
    and `OSError`."""
    pa = library()
    if not layout.compressed:
        return pa.ipc.read_record_batch(pa.py_buffer(block).slice(start), schema())
    # Only a stream reader can decompress in this thread; handing over to others costs more.
    stream = b"".join((schema().serialize(), memoryview(block)[start:]))
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return pa.ipc.open_stream(stream, options=options).read_next_batch()


def unpacked(slices: "Iterable[Columns]") -> "Iterator[Columns]":
    """Yields the slices one after the other, each to be read before the next: consecutive slices of
    one block unpack it once, and no unpacked bytes are kept."""
    last: Columns | None = None
    for columns in slices:
        part = columns.slice(0, columns.count)
        if last is not None and last._block is columns._block:
            part._batch = last._batch
        last = part
        yield part


class Ends(NamedTuple):
    """The ends of each column's cells; of headers, the entries of each message and their names and
    values."""

    keys: Sequence[int]
    values: Sequence[int]
    headers: Sequence[int]
    names: Sequence[int]
    texts: Sequence[int]

    def between(self, start: int, stop: int) -> int:
        """The bytes of the messages from `start` up to, but not including, `stop`."""
        keys, values, headers, names, texts = self
        size = keys[stop] - keys[start] + values[stop] - values[start]
        if names:
            for ends in names, texts:
                size += ends[headers[stop]] - ends[headers[start]]
        return size


class HeaderCells(NamedTuple):
    """The headers of messages one after the other, in order: those of message `i` are
    `names[ends[i] : ends[i + 1]]` and their values. A name may occur twice in a message."""

    ends: Sequence[int]
    names: Sequence[str]
    values: Sequence[bytes | None]

    def take(self, places: Iterable[int]) -> "HeaderCells":
        """The headers of the messages at these places."""
        ends = [0]
        names: list[str] = []
        values: list[bytes | None] = []
        for at in places:
            part = slice(self.ends[at], self.ends[at + 1])
            names += self.names[part]
            values += self.values[part]
            ends.append(len(names))
        return HeaderCells(ends, names, values)

    def rows(self) -> list[dict[str, bytes | None]]:
        """The headers of each message. The last one of a name counts."""
        return [
            dict(zip(self.names[start:stop], self.values[start:stop], strict=True))
            for start, stop in pairwise(self.ends)
        ]


class Columns(Struct, eq=False):
    """The messages of a block, column by column, each unpacked at its first use.

    Raises `DataCorrupt` if a column cannot be unpacked.
    """

    _block: Buffer
    _layout: Layout
    _body: int  # where its buffers begin
    _start: int  # of the body
    _index: Sequence[int] | None
    _first: int  # of these messages in the block
    count: int
    times: TimesHead | None  # None: no message of the block has an event time
    _batch: "pa.RecordBatch | None" = None

    def slice(self, start: int, stop: int) -> "Columns":
        """The messages from `start` up to, but not including, `stop`."""
        stop = min(stop, self.count)
        start = min(start, stop)
        return Columns(
            self._block,
            self._layout,
            self._body,
            self._start,
            self._index,
            self._first + start,
            stop - start,
            self.times,
            self._batch,
        )

    def about(self, bytes_max: int) -> "Columns":
        """The first messages, about as many as fit `bytes_max`, at least one."""
        part = self
        while part.cell_bytes > bytes_max and part.count > 1:
            part = part.slice(0, part.count // 2)
        return part

    @property
    def index(self) -> Sequence[int]:
        """The distance of each message from the first one of the block as it was published."""
        whole = range(self._layout.messages) if self._index is None else self._index
        return whole[self._first : self._first + self.count]

    @property
    def has_tombstones(self) -> bool:
        """True if a message of the block has no value."""
        return self._layout.nulls[1] > 0

    @property
    def compression(self) -> arrow.Compression:
        """The compression of the block."""
        return self._layout.compression

    @property
    def origin(self) -> tuple[Buffer, int, int]:
        """The block of these messages, the place of the first of them, and the number of the
        block's messages."""
        return self._block, self._first, self._layout.messages

    @property
    def cell_bytes(self) -> int:
        """Approximate bytes of the messages, not compressed; of a slice, its share."""
        size = decompressed_bytes(self._block, self._body, self._layout)
        return size * self.count // self._layout.messages

    @property
    def unpacked_bytes(self) -> int:
        """Memory in bytes that unpacking the whole block takes; 0 if it is not compressed."""
        if not self._layout.compressed:
            return 0
        return decompressed_bytes(self._block, self._body, self._layout)

    def ends(self) -> Ends:
        """The ends of the whole block's cells. Unpacks nothing else."""
        messages, entries = self._layout.messages, self._layout.entries
        return Ends(
            self._ends_of(KEY, messages),
            self._ends_of(VALUE, messages),
            self._ends_of(HEADERS, messages),
            self._ends_of(NAME, entries) if entries else (),
            self._ends_of(HEADER_VALUE, entries) if entries else (),
        )

    def _ends_of(self, column: int, count: int) -> Sequence[int]:
        size = 4 * (count + 1)
        cells = memoryview(self._buffer(column + 1))
        return (cells[:size] if len(cells) >= size else memoryview(bytes(size))).cast("i")

    @property
    def few(self) -> bool:
        """True if the block has so few messages that unpacking them here is faster than Arrow."""
        return self._layout.small

    def values(self) -> list[bytes | None]:
        """The values; None is a tombstone."""
        return self._binaries(VALUE, self._layout.nulls[1])

    def keys(self) -> list[bytes | None]:
        """The keys; None for messages without one."""
        return self._binaries(KEY, self._layout.nulls[0])

    def event_times(self, missing: int | None = None) -> list[int | None]:
        """The event times in ms since 1970-01-01T00:00Z; `missing` for messages without one."""
        head = self.times
        if head is None:
            return [missing] * self.count
        if not head.cells:
            return [head.latest_ms] * self.count
        times = times_of(self._block, head, self._first, self._first + self.count)
        return [missing if time < 0 else time for time in times] if head.nulls else [*times]

    def arrays(self) -> tuple["pa.Array", "pa.Array"]:
        """Keys and values as Arrow arrays; buffers that were not compressed are not copied."""
        if self._layout.compressed:
            batch = self.record_batch()
            return batch.column(0), batch.column(1)
        null_keys, null_values, *_ = self._layout.nulls
        return self._array(KEY, null_keys), self._array(VALUE, null_values)

    def headers(self) -> list[dict[str, bytes | None]]:
        """The headers; empty for messages without any. The last one of a name counts."""
        if not self._layout.entries:
            return [*map(dict, repeat((), self.count))]
        return self.header_cells().rows()

    def header_cells(self) -> HeaderCells:
        """The headers as they were published, also those whose name occurs again. The cells are the
        whole block's, also for a slice; `ends` are the slice's."""
        layout = self._layout
        if not layout.entries:
            return HeaderCells([0] * (self.count + 1), [], [])
        ends: Sequence[int]
        if self._by_hand():
            ends = self._ends(HEADERS, 0, layout.messages)
            names = [name.decode() for name in self._cells(NAME, 0, layout.entries)]
            texts = self._cells_or_none(HEADER_VALUE, layout.nulls[3], 0, layout.entries)
        else:
            maps = self._whole_batch().column(2)
            ends, names, texts = (c.to_pylist() for c in (maps.offsets, maps.keys, maps.items))
        return HeaderCells(ends[self._first : self._first + self.count + 1], names, texts)

    def record_batch(self) -> "pa.RecordBatch":
        """The columns key, value and headers; buffers that were not compressed are not copied."""
        return self._whole_batch().slice(self._first, self.count)

    def _whole_batch(self) -> "pa.RecordBatch":
        if self._batch is None:
            pa = library()
            try:
                self._batch = record_batch(self._block, self._layout, self._start)
            except (pa.ArrowException, OSError) as exc:
                raise DataCorrupt(f"A stored block cannot be unpacked: {exc}") from exc
        return self._batch

    def _binaries(self, column: int, nulls: int) -> list[bytes | None]:
        layout, count, first = self._layout, self.count, self._first
        cells: list[bytes | None]
        if nulls == layout.messages:
            return [None] * count
        if layout.compressed:
            cells = self.record_batch().column(column // 3).to_pylist()
            return cells
        if count > SMALL_MAX and not self._by_hand():
            cells = self._array(column, nulls).to_pylist()
            return cells
        return self._cells_or_none(column, nulls, first, count)

    def _cells_or_none(self, column: int, nulls: int, first: int, count: int) -> list[bytes | None]:
        """The cells of a column that may have nulls, from `first` on, `count` of them."""
        cells: list[bytes | None] = [*self._cells(column, first, count)]
        if nulls:
            at, size = self._span(column)
            bits = int.from_bytes(self._block[at : at + size], "little") >> first
            cells = [cell if bits >> i & 1 else None for i, cell in enumerate(cells)]
        return cells

    def _by_hand(self) -> bool:
        """True if the messages are unpacked without pyarrow: if it is not installed, if it is not
        faster, or if it is not loaded and loading would take too long: a reader at the tail must
        not stall when it meets a larger block."""
        layout = self._layout
        if layout.small or layout.compressed:
            return layout.small
        if "pyarrow" in sys.modules:
            return False
        return layout.messages + layout.entries <= COLD_MAX or not installed("pyarrow")

    def _array(self, column: int, nulls: int) -> "pa.Array":
        """One column of the slice, without the cost of the others."""
        pa = library()
        block = pa.py_buffer(self._block)
        spans = map(self._span, range(column, column + 3))
        validity, ends, cells = starmap(block.slice, spans)
        buffers = [validity if nulls else None, ends, cells]
        null_count = -1 if nulls else 0  # -1: to be counted, a slice may have fewer
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, null_count, self._first)

    def _cells(self, column: int, first: int, count: int) -> list[bytes]:
        """The cells of a column from `first` on, `count` of them."""
        ends = self._ends(column, first, count)
        at = self._body + self._layout.buffers[2 * column + 4]
        if count == 1:  # a lone message, for which a caller waits
            return [bytes(self._block[at + ends[0] : at + ends[1]])]
        begin = ends[0]
        cells = bytes(self._block[at + begin : at + ends[-1]])
        return [cells[start - begin : stop - begin] for start, stop in pairwise(ends)]

    def _ends(self, column: int, first: int, count: int) -> tuple[int, ...]:
        at = self._body + self._layout.buffers[2 * column + 2] + 4 * first
        if count < len(SMALL_ENDS):
            return SMALL_ENDS[count].unpack_from(self._block, at)
        return struct.unpack_from(f"<{count + 1}i", self._block, at)

    def _buffer(self, number: int) -> Buffer:
        """A buffer of the block, not compressed."""
        at, size = self._span(number)
        packed = memoryview(self._block)[at : at + size]
        if not size or not self._layout.compressed:
            return packed
        (length,) = _BUFFER_LENGTH.unpack_from(packed)
        if length == -1:
            return packed[_BUFFER_LENGTH.size :]
        pa = library()
        try:
            codec = pa.Codec(self._layout.compression.value)
            unpacked: bytes = codec.decompress(packed[_BUFFER_LENGTH.size :], length, asbytes=True)
        except (pa.ArrowException, OSError) as exc:
            raise DataCorrupt(f"A stored block cannot be unpacked: {exc}") from exc
        return unpacked

    def _span(self, buffer: int) -> tuple[int, int]:
        """The offset of a buffer in the block, and its length."""
        buffers = self._layout.buffers
        return self._body + buffers[2 * buffer], buffers[2 * buffer + 1]
