"""Blocks → the rows that Spark sees, as Arrow record batches. Shared by every way to read a topic
from Spark; knows pyarrow, but not pyspark. Names, types and order of the columns are those of
Spark's Kafka source, so that its programs run unchanged.

    key            binary          null: a message without a key
    value          binary          null: a tombstone
    topic          string
    partition      int
    offset         bigint          rises within a partition; gaps where nobody may see messages
    timestamp      timestamp       when it was published, in UTC
    timestampType  int             1: the time was given by the log, not by the producer
    headers        array<struct<key: string, value: binary>>   asked for; null: no headers
    id             string          asked for; the message id, 40 hexadecimal digits
    event_time     timestamp       asked for; the time that its publisher gave; null: none

    a block of many messages     key and value are the block's own buffers, the other columns are
                                 computed by Arrow; one batch, nothing copied
    small blocks                 up to 32 messages and headers: gathered cell by cell; more: by
                                 Arrow; then joined up to `JOINED_BYTES` and `JOINED_ROWS`

Invariants

* `arrow_schema` and `spark_ddl` say the same; Spark compares them.
* Every message with `start` ≤ offset < `stop` once, in the order of the blocks; nothing else.
* A block that has such a message is checked against its CRC, once, before anything of it is used.
* No Python loop per message, but for blocks of so few that Arrow would take longer.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from tms import block as blocks_of
from tms.block import MESSAGES_MAX, BlockHeader
from tms.block.placing import offsets
from tms.errors import BadBlock, DataCorrupt
from tms.model.ids import SEQUENCES_PER_MS, MessageId
from tms.model.message import StoredBlock

LOG_APPEND_TIME = 1  # Kafka's number for it
HEADER = pa.struct([("key", pa.utf8()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
TIMESTAMP = pa.timestamp("us", tz="UTC")
SMALL_BYTES = 64 << 10  # a smaller block is joined with its neighbours
JOINED_BYTES = 1 << 20
JOINED_ROWS = MESSAGES_MAX
_NO_PAYLOAD = "0" * 20  # the second half of an id: clients show staged messages without theirs

_ALWAYS = (
    ("key", pa.binary(), "binary"),
    ("value", pa.binary(), "binary"),
    ("topic", pa.utf8(), "string"),
    ("partition", pa.int32(), "int"),
    ("offset", pa.int64(), "bigint"),
    ("timestamp", TIMESTAMP, "timestamp"),
    ("timestampType", pa.int32(), "int"),
)
_HEADERS = ("headers", HEADERS, "array<struct<key: string, value: binary>>")
_ID = ("id", pa.utf8(), "string")
_EVENT_TIME = ("event_time", TIMESTAMP, "timestamp")


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """The optional columns to read."""

    headers: bool = False
    message_id: bool = False
    event_time: bool = False


@cache
def arrow_schema(columns: WantedColumns) -> pa.Schema:
    """The schema of every record batch with these columns."""
    return pa.schema([(name, kind) for name, kind, _ in _chosen(columns)])


def spark_ddl(columns: WantedColumns) -> str:
    """The schema in Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, _, kind in _chosen(columns))


def _chosen(columns: WantedColumns) -> list[tuple[str, pa.DataType, str]]:
    chosen = [*_ALWAYS]
    if columns.headers:
        chosen.append(_HEADERS)
    if columns.message_id:
        chosen.append(_ID)
    if columns.event_time:
        chosen.append(_EVENT_TIME)
    return chosen


def batches(
    blocks: Iterable[StoredBlock], topic: str, start: int, stop: int, columns: WantedColumns
) -> Iterator[pa.RecordBatch]:
    """The rows of the messages of these blocks whose offsets are in [start, stop).

    Batches refer to the memory of the blocks. Raises `DataCorrupt` at a block that is not as it was
    stored, after the rows before it.
    """
    rows = _RowBatches(topic, columns)
    for stored in blocks:
        try:
            header = blocks_of.read_header(stored.block)
            first = max(0, start - header.base_offset)
            behind = min(header.count, stop - header.base_offset)
            ready = rows.add(stored, header, first, behind) if first < behind else []
        except (BadBlock, DataCorrupt) as exc:
            yield from rows.joined()
            where = (
                f"{topic}, partition {stored.partition}, {stored.time_ms}:{stored.last_sequence}"
            )
            raise DataCorrupt(f"{where}: {exc.message}") from exc
        yield from ready
    yield from rows.joined()


class _Constant:
    """A column that has the same cell in every row."""

    def __init__(self, cell: pa.Scalar) -> None:
        self._cell = cell
        self._rows = pa.repeat(cell, 0)

    def rows(self, count: int) -> pa.Array:
        """So many rows; they share their memory with those of other batches."""
        if count > len(self._rows):
            self._rows = pa.repeat(self._cell, 1 << (count - 1).bit_length())
        return self._rows.slice(0, count)


class _Offsets:
    """The column of offsets. Blocks follow each other, so many are numbered at once."""

    def __init__(self) -> None:
        self._first = 0
        self._rows = pa.array([], pa.int64())

    def rows(self, base_offset: int, index: Sequence[int]) -> pa.Array:
        """The rows at these distances from `base_offset`."""
        if not isinstance(index, range):
            return pc.add(pa.array(index, pa.int64()), base_offset)
        first, count = base_offset + index.start, len(index)
        if not self._first <= first <= self._first + len(self._rows) - count:
            self._first = first
            self._rows = pc.add(_numbers(), first)
        return self._rows.slice(first - self._first, count)


class _Gathered:
    """Rows of blocks with a few messages each, all of one partition."""

    def __init__(self) -> None:
        self.partition = 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.times_us: list[int] = []
        self.headers: list[dict[str, bytes | None]] = []
        self.ids: list[str] = []
        self.event_times_us: list[int | None] = []


class _RowBatches:
    """Makes batches, and keeps the small ones back until they are enough together."""

    def __init__(self, topic: str, columns: WantedColumns) -> None:
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._topic = _Constant(pa.scalar(topic, pa.utf8()))
        self._time_type = _Constant(pa.scalar(LOG_APPEND_TIME, pa.int32()))
        self._no_headers = _Constant(pa.scalar(None, HEADERS))
        self._offsets = _Offsets()
        self._partitions: dict[int, _Constant] = {}
        self._gathered = _Gathered()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_rows = 0

    def add(
        self, stored: StoredBlock, header: BlockHeader, first: int, behind: int
    ) -> list[pa.RecordBatch]:
        """Take the messages [first, behind) of a block; the batches that are ready now."""
        cells = blocks_of.decode(stored.block)
        if header.flags & blocks_of.Flags.SPARSE:  # then to places among what is left
            first, behind = (bisect_left(cells.index, at) for at in (first, behind))
        part = cells.slice(first, behind)
        size, count = part.cell_bytes, part.count
        sequence = stored.last_sequence - header.count + 1
        if not 0 <= sequence <= SEQUENCES_PER_MS - header.count:
            raise DataCorrupt(f"{header.count} messages cannot end at this place. Run `tms fsck`.")
        if not count:
            return []
        if size >= SMALL_BYTES:
            return [*self.joined(), self._whole(stored, header, cells, first, behind)]
        ready = []
        if self._waiting_bytes + size > JOINED_BYTES or self._waiting_rows + count > JOINED_ROWS:
            ready = self.joined()
        if cells.few:
            self._gather(stored, header, part)
        else:
            self._end_gathered()
            self._waiting.append(self._whole(stored, header, cells, first, behind))
        self._waiting_bytes += size
        self._waiting_rows += count
        return ready

    def joined(self) -> list[pa.RecordBatch]:
        """The rows held back, as one batch; none if there are none."""
        self._end_gathered()
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = self._waiting_rows = 0
        if len(waiting) < 2:
            return waiting
        return pa.Table.from_batches(waiting).combine_chunks().to_batches()  # type: ignore[no-any-return]

    def _whole(
        self,
        stored: StoredBlock,
        header: BlockHeader,
        cells: blocks_of.Columns,
        first: int,
        behind: int,
    ) -> pa.RecordBatch:
        """The rows of a block, made by Arrow."""
        count, part = behind - first, cells.slice(first, behind)
        keys, values = part.arrays()
        made = {
            "key": keys,
            "value": values,
            "offset": self._offsets.rows(header.base_offset, part.index),
            "timestamp": pa.repeat(pa.scalar(stored.time_ms * 1_000, TIMESTAMP), count),
        }
        if self._columns.headers:
            headers = _headers(cells.record_batch().column(2))
            made["headers"] = (
                self._no_headers.rows(count) if headers is None else headers.slice(first, count)
            )
        if self._columns.message_id:
            sequence = stored.last_sequence - header.count + 1
            made["id"] = _ids(stored.time_ms, sequence, part.index)
        if self._columns.event_time:
            made["event_time"] = pa.array(_in_us(part), TIMESTAMP)
        return self._batch(stored.partition, made)

    def _gather(self, stored: StoredBlock, header: BlockHeader, part: blocks_of.Columns) -> None:
        """Take the messages of a block with a few."""
        if self._gathered.partition != stored.partition:
            self._end_gathered()
            self._gathered.partition = stored.partition
        gathered, count = self._gathered, part.count
        gathered.keys += part.keys()
        gathered.values += part.values()
        gathered.offsets += offsets(header.base_offset, part.index)
        gathered.times_us += [stored.time_ms * 1_000] * count
        if self._columns.headers:
            gathered.headers += part.headers()
        if self._columns.message_id:
            first = MessageId(stored.time_ms, stored.last_sequence - header.count + 1)
            gathered.ids += map(bytes.hex, first.run(part.index))
        if self._columns.event_time:
            gathered.event_times_us += _in_us(part)

    def _end_gathered(self) -> None:
        gathered, self._gathered = self._gathered, _Gathered()
        if not gathered.offsets:
            return
        made = {
            "key": pa.array(gathered.keys, pa.binary()),
            "value": pa.array(gathered.values, pa.binary()),
            "offset": pa.array(gathered.offsets, pa.int64()),
            "timestamp": pa.array(gathered.times_us, TIMESTAMP),
            "headers": pa.array(map(_pairs, gathered.headers), HEADERS),
            "id": pa.array(gathered.ids, pa.utf8()),
            "event_time": pa.array(gathered.event_times_us, TIMESTAMP),
        }
        self._waiting.append(self._batch(gathered.partition, made))

    def _batch(self, partition: int, made: dict[str, pa.Array]) -> pa.RecordBatch:
        """The wanted ones of these columns, with those that are the same in every row."""
        count = len(made["value"])
        if partition not in self._partitions:
            self._partitions[partition] = _Constant(pa.scalar(partition, pa.int32()))
        made["topic"] = self._topic.rows(count)
        made["partition"] = self._partitions[partition].rows(count)
        made["timestampType"] = self._time_type.rows(count)
        return pa.RecordBatch.from_arrays(
            [made[name] for name in self._schema.names], schema=self._schema
        )


def _pairs(headers: dict[str, bytes | None]) -> list[dict[str, str | bytes | None]] | None:
    return [{"key": name, "value": value} for name, value in headers.items()] or None


def _in_us(part: blocks_of.Columns) -> list[int | None]:
    """The event times of messages."""
    times = part.event_times()
    return times if part.times is None else [t if t is None else t * 1_000 for t in times]


def _headers(maps: pa.MapArray) -> pa.Array | None:
    """The maps of a whole block as arrays of structs, with the same buffers; None if all are
    empty."""
    ends = maps.offsets
    if ends[0] == ends[-1]:
        return None
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], fields=[*HEADERS.value_type])
    none = pc.equal(ends.slice(1), ends.slice(0, len(maps)))
    return pa.ListArray.from_arrays(ends, entries, type=HEADERS, mask=none)


def _ids(time_ms: int, first: int, index: Sequence[int]) -> pa.Array:
    """The ids at these distances from a sequence of a millisecond, as text."""
    if isinstance(index, range):
        numbers = _sequences().slice(first + index.start, len(index))
    else:
        numbers = _sequences().take(pc.add(pa.array(index, pa.int64()), first))
    return pc.binary_join_element_wise(f"{time_ms:016x}", numbers, _NO_PAYLOAD, "")


@cache
def _numbers() -> pa.Array:
    """0, 1, 2, … for as many messages as a block has."""
    return pa.array(range(MESSAGES_MAX), pa.int64())


@cache
def _sequences() -> pa.Array:
    """Every sequence as four hexadecimal digits."""
    return pa.array([f"{number:04x}" for number in range(SEQUENCES_PER_MS)])
