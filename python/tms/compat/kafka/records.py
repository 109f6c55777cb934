"""Kafka's record batches (magic 2) ⇄ blocks.

    batch, big-endian
        0   8  base offset                          27  8  base timestamp, ms
        8   4  length: bytes from 12 on             35  8  maximum timestamp
        12  4  leader epoch of the partition        43  8  producer id, -1 = none
        16  1  magic (2)                            51  2  producer epoch
        17  4  CRC-32C of the bytes from 21 on      53  4  sequence of the first record
        21  2  attributes                           57  4  count
        23  4  last offset delta                    61  …  records, compressed together

    attributes   0-2 compression · 3 timestamps are the append time · 4 transactional · 5 control
    record       length, 0, timestamp delta, offset delta, key, value, headers: a count, then name
                 and value of each; bytes have their length before them, -1 = null. Numbers are
                 zigzag varints.

Invariants

* A block that `decode` returns is one that `tms.block.check` accepts: it need not be checked again.
* Whatever the bytes are, `decode` raises only `BadRecords`, and takes memory in proportion to
  `batch_bytes_max`. A batch is refused as a whole.
* The times that a producer wrote are the messages' event times, and those of a batch that leaves. A
  block without event times leaves with its publish time as append time.
* `encode` is a pure function: a stored block has the same batch on every instance, for ever.
* A batch covers all offsets of its block, also those of messages that compaction removed: so a
  consumer's position passes them.
* The parser is a library's in C that may read up to 20 bytes behind the records before it sees that
  they are damaged; so there are always as many zeros behind them.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple, cast

import google_crc32c
from msgspec import Raw

from tms import block as blocks
from tms.block import HEADER_VALUE_BYTES_MAX, HEADERS_MAX, MESSAGES_MAX, HeaderCells, TimesColumn
from tms.compat.kafka.compression import decompress
from tms.compat.kafka.errors import BadRecords, ErrorCode
from tms.compat.kafka.records_building import HEADER_BYTES, RecordColumns, build, library
from tms.errors import Invalid
from tms.model.ids import TIME_MS_MAX
from tms.model.message import Buffer, StoredBlock

OFFSETS_MAX = 1 << 31  # of a batch
BATCH_BYTES_MAX = (1 << 31) - 1  # of an encoded batch
SEQUENCE_MAX = (1 << 31) - 1  # the next one is 0
PRODUCER_NUMBER_MAX = (1 << 47) - 1
EPOCH_BITS = 16
LARGE_BYTES = 1 << 20  # of a record, from which on its headers are counted before it is parsed

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_LENGTH_FROM = 12
_MAGIC_AT = 16
_CRC_AT = 17
_CRC_FROM = 21
_CODEC = 7  # bits of the attributes
_APPEND_TIME = 8
_TRANSACTIONAL = 16
_CONTROL = 32
_MAGIC = 2
_NONE = -1
_RECORD_BYTES_MIN = 7  # a byte for each field
_SPARE_BYTES = 32  # behind the records, for the parser
_HEADER_COST_BYTES = 100  # of a header while it is converted
_BLOCK_BYTES = 1_024  # of a block besides its cells and their ends, at most
_CELL_BYTES = 21  # of a message's ends, validity and time in a block
_VARINT_BITS_MAX = 70


class RecordLimits(NamedTuple):
    """Bounds in bytes of one batch: `batch_bytes_max` of its records once decompressed, of which a
    header counts as 100 at least; `block_bytes_max` of a block that it becomes; `message_bytes_max`
    of a message's key, value and headers, as the topic has it; and whether messages need a key, as
    those of a compacted topic do."""

    batch_bytes_max: int
    block_bytes_max: int
    message_bytes_max: int
    needs_keys: bool = False


class DecodedBatch(NamedTuple):
    """A producer's batch and the blocks to store, in order. Producer id, epoch and sequence are -1
    if the producer is not idempotent. Timestamps are in ms; they are the producer's."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    base_timestamp_ms: int
    max_timestamp_ms: int
    record_count: int
    has_times: bool  # True if a record has a timestamp
    blocks: list[bytearray]


class _BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


class _Cells(NamedTuple):
    """The records of a batch, column by column; `headers` is None if there are none at all. Times
    are in ms, -1 = none."""

    keys: list[bytes | None]
    values: list[bytes | None]
    headers: HeaderCells | None
    times: TimesColumn


def decode(records: Buffer, limits: RecordLimits, producer_flags: int = 0) -> DecodedBatch:
    """The one batch that a producer sends to a partition.

    Blocks of an idempotent producer have the producer id `id << 16 | epoch`, the sequence of their
    first record, and these flags. Raises `BadRecords`.
    """
    batch = _checked(records)
    payload: Buffer = memoryview(records)[HEADER_BYTES:]
    if codec := batch.attributes & _CODEC:
        payload = decompress(codec, memoryview(payload), limits.batch_bytes_max)
    elif len(payload) > limits.batch_bytes_max:
        raise _too_large(
            f"The records of the batch have {len(payload)} bytes, {limits.batch_bytes_max} is the "
            "limit: send smaller batches.",
        )
    cells = _parsed(payload, batch, limits.batch_bytes_max)
    if limits.needs_keys and None in cells.keys:
        raise _invalid("A compacted topic takes no message without a key.", cells.keys.index(None))
    cuts = _cuts(cells, len(payload), limits)
    try:
        packed = [_block(cells, start, stop, batch) for start, stop in pairwise(cuts)]
    except Invalid:  # of times, which are looked at only then
        cells = cells._replace(times=_times_or_none(cells.times))
        packed = [_block(cells, start, stop, batch) for start, stop in pairwise(cuts)]
    if batch.producer_id != _NONE:
        for block in packed:
            block[blocks.FLAGS_AT] |= producer_flags
    return DecodedBatch(
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        bool(batch.attributes & _TRANSACTIONAL),
        batch.base_timestamp,
        batch.max_timestamp,
        batch.records,
        any(time_ms is not None for time_ms in cells.times),
        packed,
    )


def encode(stored: StoredBlock, leader_epoch: int = _NONE) -> bytearray:
    """The batch of a readable block: at its offsets, with its event times, or else its publish time
    as append time, not compressed. Of messages that have event times, those without one get the
    publish time. Raises `DataCorrupt` and `TooLarge`."""
    header = blocks.read_header(stored.block)
    columns = blocks.decode(stored.block)
    times = cast(list[int], columns.event_times(stored.time_ms))
    cells = columns.keys(), columns.values(), columns.header_cells()
    records = RecordColumns(columns.index, times, *cells)
    batch = build(records, columns.cell_bytes // columns.count, BATCH_BYTES_MAX)
    place = header.base_offset, header.count, leader_epoch
    attributes = _APPEND_TIME if columns.times is None else 0
    _seal(batch, place, (attributes, times[0], max(times)), columns.count)
    return batch


def gap(start: int, stop: int, leader_epoch: int = _NONE) -> bytearray:
    """A batch without records that moves a consumer's position from `start` to `stop`, over offsets
    whose messages were rolled back or removed. Of more than 2^31 offsets it covers the last ones,
    which does as well."""
    if not 0 <= start < stop:
        raise ValueError(f"A gap has at least one offset, not those from {start} to {stop}.")
    start = max(start, stop - OFFSETS_MAX)
    batch = bytearray(HEADER_BYTES)
    _seal(batch, (start, stop - start, leader_epoch), (_APPEND_TIME, _NONE, _NONE), 0)
    return batch


def _checked(records: Buffer) -> _BatchHeader:
    """The header of a batch whose bytes arrived as they were sent, and which a producer may send.
    Raises `BadRecords`."""
    if not records:
        raise _invalid("There is no record batch: a producer sends one to each partition.")
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] < _MAGIC:
        raise _invalid(
            f"The batch has the format {records[_MAGIC_AT]}, but only format 2 is accepted: use a "
            "client for Kafka 0.11 or newer."
        )
    if len(records) < HEADER_BYTES:
        raise _corrupt(f"A record batch has at least {HEADER_BYTES} bytes, not {len(records)}.")
    batch = _BatchHeader._make(_HEADER.unpack_from(records))
    size = _LENGTH_FROM + batch.length
    if batch.magic != _MAGIC or not HEADER_BYTES <= size <= len(records):
        raise _corrupt(
            f"The batch says that it has format {batch.magic} and {size} bytes, but there are "
            f"{len(records)} bytes of format 2."
        )
    if size < len(records):
        raise _invalid("There is more than one record batch: a producer sends one to a partition.")
    crc = google_crc32c.value(Raw(memoryview(records)[_CRC_FROM:]))
    if crc != batch.crc:
        raise _corrupt(
            f"The batch has the CRC-32C {crc:08x}, but says {batch.crc:08x}: it was damaged on its "
            "way, send it again."
        )
    _check_producer(batch)
    if batch.attributes & _CONTROL:
        raise _invalid("The batch is one of control records, which only a broker writes.")
    if batch.attributes & _APPEND_TIME:
        raise BadRecords(
            ErrorCode.INVALID_TIMESTAMP,
            "The batch says that its timestamps are append times, which only a broker knows.",
        )
    if batch.records < 1 or batch.last_offset_delta != batch.records - 1:
        raise _invalid(
            f"The batch says that it has {batch.records} records and the last offset delta "
            f"{batch.last_offset_delta}; a batch has at least one record, and one for each offset."
        )
    return batch


def _check_producer(batch: _BatchHeader) -> None:
    number = batch.producer_id
    if number == _NONE:
        if batch.attributes & _TRANSACTIONAL:
            raise _invalid("The batch is transactional, but has no producer id.")
    elif (
        not 0 < number <= PRODUCER_NUMBER_MAX or min(batch.producer_epoch, batch.base_sequence) < 0
    ):
        raise _invalid(
            f"The batch has producer id {number}, epoch {batch.producer_epoch} and sequence "
            f"{batch.base_sequence}; an id is 1 to {PRODUCER_NUMBER_MAX}, the others are not "
            "negative."
        )


def _parsed(payload: Buffer, batch: _BatchHeader, bytes_max: int) -> _Cells:
    parser = library()
    count = batch.records
    # A MemoryError or an OverflowError is that of a record which says an absurd length.
    damage = parser.CorruptRecordException, UnicodeDecodeError, MemoryError, OverflowError
    if len(payload) > LARGE_BYTES:
        _check_large(payload, count)
    head = _HEADER.pack(0, 0, 0, _MAGIC, 0, 0, 0, batch.base_timestamp, 0, 0, 0, 0, count)
    spacious = memoryview(b"".join((head, payload, bytes(_SPARE_BYTES))))
    parsed = parser.DefaultRecordBatch(spacious[:-_SPARE_BYTES])
    headers = _HeaderColumn(bytes_max - len(payload))
    if count > len(payload) // _RECORD_BYTES_MIN:
        raise _invalid("The records end before the batch says so.")
    keys: list[bytes | None] = [None] * count
    values: list[bytes | None] = [None] * count
    times = [0] * count
    number = -1
    try:
        for number, record in enumerate(parsed):
            if record.offset != number:
                raise _invalid(
                    f"Record {number} has the offset delta {record.offset}; they count from 0.",
                    number,
                )
            keys[number] = record.key
            values[number] = record.value
            times[number] = record.timestamp
            if pairs := record.headers:
                headers.add(number, pairs)
    except damage as exc:
        raise _invalid(f"Record {number + 1} is damaged: {exc}", number + 1) from exc
    assert number == count - 1, "the parser ends early only with an error"
    return _Cells(keys, values, headers.cells(count), times)


class _HeaderColumn:
    """Collects the headers of a batch's records. `bytes_left` bounds the memory that they take
    beyond their own bytes."""

    __slots__ = ("_bytes_left", "_ends", "_names", "_values")

    def __init__(self, bytes_left: int) -> None:
        self._bytes_left = bytes_left
        self._ends = [0]
        self._names: list[str] = []
        self._values: list[bytes | None] = []

    def add(self, number: int, pairs: Sequence[tuple[str, bytes | None]]) -> None:
        """The headers of record `number`; numbers ascend. Raises `BadRecords`."""
        if len(pairs) > HEADERS_MAX:
            raise _too_many_headers(number, len(pairs))
        self._bytes_left -= _HEADER_COST_BYTES * len(pairs)
        if self._bytes_left < 0:
            raise _too_large(
                "The records of the batch have too many headers together: send smaller batches.",
                number,
            )
        for name, value in pairs:
            if not name:
                raise _invalid(f"Record {number} has a header without a name.", number)
            if value is not None and len(value) > HEADER_VALUE_BYTES_MAX:
                raise _invalid(
                    f"A header's value has at most {HEADER_VALUE_BYTES_MAX} bytes, {name!r:.80} of "
                    f"record {number} has {len(value)}.",
                    number,
                )
            self._names.append(name)
            self._values.append(value)
        self._ends += repeat(self._ends[-1], number + 1 - len(self._ends))
        self._ends.append(len(self._names))

    def cells(self, count: int) -> HeaderCells | None:
        """The headers of `count` records; None if there are none."""
        if not self._names:
            return None
        self._ends += repeat(self._ends[-1], count + 1 - len(self._ends))
        return HeaderCells(self._ends, self._names, self._values)


def _check_large(payload: Buffer, count: int) -> None:
    """Count the headers of each large record of a large batch, because the parser makes an object
    of each of them, of 40 times its bytes. Raises `BadRecords`."""
    at = 0
    try:
        for number in range(count):
            size, begin = _read_varint(payload, at)
            at = begin + size
            if size < 0:
                raise _invalid(f"Record {number} has a negative length.", number)
            if size > LARGE_BYTES and (headers := _header_count(payload, begin)) > HEADERS_MAX:
                raise _too_many_headers(number, headers)
    except IndexError as exc:
        raise _invalid("The records end before the batch says so.") from exc


def _header_count(payload: Buffer, at: int) -> int:
    """The number of headers of the record whose attributes are at this place."""
    _, at = _read_varint(payload, at + 1)
    _, at = _read_varint(payload, at)
    for _ in ("key", "value"):
        size, at = _read_varint(payload, at)
        at += max(0, size)
    return _read_varint(payload, at)[0]


def _read_varint(payload: Buffer, at: int) -> tuple[int, int]:
    """A number and the place behind it. Raises `IndexError` if it does not end."""
    byte = payload[at]
    number = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift == _VARINT_BITS_MAX:
            raise IndexError(at)
        at += 1
        byte = payload[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    return number >> 1 ^ -(number & 1), at + 1


def _cuts(cells: _Cells, payload_bytes: int, limits: RecordLimits) -> list[int]:
    """The places between which the records become blocks, with 0 and their number. Raises
    `BadRecords`."""
    count = len(cells.values)
    entries = len(cells.headers.names) if cells.headers else 0
    bound = payload_bytes + _CELL_BYTES * (count + entries) + _BLOCK_BYTES
    if (
        payload_bytes <= limits.message_bytes_max
        and bound <= limits.block_bytes_max
        and count <= MESSAGES_MAX
    ):
        return [0, count]
    cuts = [0]
    left = 0
    for number, (size, headers) in enumerate(_sizes(cells)):
        cost = size + _CELL_BYTES * (1 + headers)
        if size > limits.message_bytes_max or cost + _BLOCK_BYTES > limits.block_bytes_max:
            raise _too_large(
                f"A message of this topic has at most {limits.message_bytes_max} bytes and fits "
                f"a block of {limits.block_bytes_max}, record {number} has {size}.",
                number,
            )
        left -= cost
        if left < 0 or number == cuts[-1] + MESSAGES_MAX:
            if number:
                cuts.append(number)
            left = limits.block_bytes_max - _BLOCK_BYTES - cost
    return [*cuts, count]


def _sizes(cells: _Cells) -> Iterator[tuple[int, int]]:
    """The bytes and the number of headers of each message."""
    sizes = (
        len(key or b"") + len(value or b"")
        for key, value in zip(cells.keys, cells.values, strict=True)
    )
    if cells.headers is None:
        return zip(sizes, repeat(0))
    ends, names, values = cells.headers
    pairs = zip(names, values, strict=True)
    texts = [len(name.encode()) + len(value or b"") for name, value in pairs]
    return (
        (size + sum(texts[start:stop]), stop - start)
        for size, (start, stop) in zip(sizes, pairwise(ends), strict=True)
    )


def _block(cells: _Cells, start: int, stop: int, batch: _BatchHeader) -> bytearray:
    keys, values, headers, times = cells
    if stop - start < len(values):
        keys, values, times = keys[start:stop], values[start:stop], times[start:stop]
        headers = headers and headers.take(range(start, stop))
    keyless = keys[0] is None and keys.count(None) == len(keys)
    producer_id = sequence = 0
    if batch.producer_id != _NONE:
        producer_id = batch.producer_id << EPOCH_BITS | batch.producer_epoch
        sequence = batch.base_sequence + start & SEQUENCE_MAX
    return blocks.encode(
        values,
        None if keyless else keys,
        headers,
        times,
        producer_id=producer_id,
        producer_sequence=sequence,
    )


def _times_or_none(times: TimesColumn) -> TimesColumn:
    """The times of records as event times: None for -1. Raises `BadRecords`."""
    for number, time_ms in enumerate(times):
        if time_ms is None or not _NONE <= time_ms <= TIME_MS_MAX:
            raise BadRecords(
                ErrorCode.INVALID_TIMESTAMP,
                f"Record {number} has the timestamp {time_ms}; one is -1, or from 0 up to the year "
                "9999, in ms.",
                number,
            )
    return [None if time_ms == _NONE else time_ms for time_ms in times]


def _seal(
    batch: bytearray, place: tuple[int, int, int], stamp: tuple[int, int, int], count: int
) -> None:
    """Write the header of a batch of `count` records. `place` is its first offset, the number of
    its offsets, and the leader epoch; `stamp` its attributes, its base and its maximum time in
    ms."""
    base_offset, offsets, leader_epoch = place
    attributes, base_ms, max_ms = stamp
    start = base_offset, len(batch) - _LENGTH_FROM, leader_epoch, _MAGIC
    fields = (attributes, offsets - 1, base_ms, max_ms, _NONE, _NONE, _NONE, count)
    _HEADER.pack_into(batch, 0, *start, 0, *fields)
    crc = google_crc32c.value(Raw(memoryview(batch)[_CRC_FROM:]))
    _CRC.pack_into(batch, _CRC_AT, crc)


def _corrupt(message: str) -> BadRecords:
    return BadRecords(ErrorCode.CORRUPT_MESSAGE, message)


def _invalid(message: str, index: int | None = None) -> BadRecords:
    return BadRecords(ErrorCode.INVALID_RECORD, message, index)


def _too_large(message: str, index: int | None = None) -> BadRecords:
    return BadRecords(ErrorCode.MESSAGE_TOO_LARGE, message, index)


def _too_many_headers(number: int, count: int) -> BadRecords:
    return _invalid(
        f"A message has at most {HEADERS_MAX} headers, record {number} has {count}.", number
    )
