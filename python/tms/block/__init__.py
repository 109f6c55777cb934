"""The block: packed once by a producer, unpacked once by a consumer, passed on as bytes between.

    0   48  header (`header`): count, CRC, base offset, producer, …     big-endian
    48   …  of a sparse block: the index of its remaining messages (`header`)
    48   …  of a block with event times: the time of each message (`times`)
    48   …  body: one encapsulated Arrow IPC RecordBatch message of the columns
            key: binary, value: binary, headers: map<utf8, binary>      little-endian (`arrow`)

Invariants

* The producer sends the body and its own part of the header; the service fills in the rest with
  `place` and never touches the body.
* A block that `check` passed can hurt no reader; `decode` returns the encoded messages or raises.
* `thin` is the only way to remove messages from a block; the others keep ids, offsets and bytes.
* Importing this room does not import pyarrow; a lone message is never worth the wait.
"""

from typing import TYPE_CHECKING

from tms.block.arrow import Compression
from tms.block.checking import check_body, checking_bytes
from tms.block.columns import Columns, Ends, HeaderCells, decode, schema, unpacked
from tms.block.header import (
    EPOCH_BITS,
    FLAGS_AT,
    FORMAT_VERSION,
    HEADER_BYTES,
    MESSAGE_SEQUENCES,
    BlockHeader,
    Flags,
    body_crc,
    check_new,
    count_messages,
    flags_of,
    index_of,
    place,
    read_header,
    write_header,
)
from tms.block.lone import lone_bytes, lone_cells, pack_lone
from tms.block.packing import (
    HEADER_VALUE_BYTES_MAX,
    HEADERS_ADDED_MAX,
    HEADERS_MAX,
    BytesColumn,
    HeadersColumn,
    SharedHeaders,
    compress,
    pack,
    pack_batch,
)
from tms.block.sparse import thin
from tms.block.times import TimesColumn, check_event_time, check_times, pack_times
from tms.errors import BadBlock, CrcMismatch
from tms.model.message import MESSAGES_MAX, Buffer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EPOCH_BITS",
    "FLAGS_AT",
    "FORMAT_VERSION",
    "HEADERS_ADDED_MAX",
    "HEADERS_MAX",
    "SharedHeaders",
    "TimesColumn",
    "HEADER_BYTES",
    "HEADER_VALUE_BYTES_MAX",
    "MESSAGES_MAX",
    "MESSAGE_SEQUENCES",
    "BlockHeader",
    "BytesColumn",
    "Columns",
    "Compression",
    "Ends",
    "Flags",
    "HeaderCells",
    "HeadersColumn",
    "check",
    "check_event_time",
    "checking_bytes",
    "count_messages",
    "decode",
    "encode",
    "encode_batch",
    "flags_of",
    "index_of",
    "place",
    "read_header",
    "schema",
    "thin",
    "unpack_lone",
    "unpacked",
]


def encode(
    values: BytesColumn,
    keys: BytesColumn | None = None,
    headers: HeadersColumn | HeaderCells | None = None,
    event_times: TimesColumn | None = None,
    *,
    producer_id: int = 0,
    producer_sequence: int = 0,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """The whole block of these messages, with base offset 0. `event_times` are in ms since
    1970-01-01T00:00Z.

    Raises `Invalid` (with the `index` of a message that is to blame) and `TooLarge` for more than
    `MESSAGES_MAX` messages.
    """
    times = b"" if event_times is None else pack_times(event_times, len(values))
    room = HEADER_BYTES + len(times)
    block = None
    if len(values) == 1 and headers is None and (keys is None or len(keys) == 1):
        block = pack_lone(values[0], keys[0] if keys else None)
        if block is not None:
            block[HEADER_BYTES:HEADER_BYTES] = times
    if block is None:
        block = pack(values, keys, headers, room)
    if compression is not Compression.NONE:
        block = compress(block, room, compression)
    block[HEADER_BYTES:room] = times
    write_header(block, len(values), producer_id, producer_sequence, bool(times))
    return block


def encode_batch(
    batch: "pa.RecordBatch",
    event_times: TimesColumn | None = None,
    *,
    producer_id: int = 0,
    producer_sequence: int = 0,
) -> bytearray:
    """The whole block of messages that are Arrow columns of `schema()` already. Header names and
    values must be such as `encode` accepts: they are not checked again. Raises like `encode`."""
    times = b"" if event_times is None else pack_times(event_times, batch.num_rows)
    room = HEADER_BYTES + len(times)
    block = pack_batch(batch, room)
    block[HEADER_BYTES:room] = times
    write_header(block, batch.num_rows, producer_id, producer_sequence, bool(times))
    return block


def check(block: Buffer, message_bytes_max: int, decompressed_bytes_max: int) -> BlockHeader:
    """The header of an incoming block, after everything about the block was checked.

    Raises `BadBlock`, `CrcMismatch`, `DecompressedTooLarge`, `Invalid` and `TooLarge`; the last two
    carry the `index` of a message.
    """
    header = read_header(block)
    if header.flags:
        check_new(header)
    crc = body_crc(block)
    if crc != header.crc:
        raise CrcMismatch(
            f"The block's body has the CRC-32C {crc:08x}, but its header says {header.crc:08x}:"
            " it was damaged on its way, send it again."
        )
    start = HEADER_BYTES
    if header.has_times:
        start = check_times(block, start, header.count)
    elif header.count == 1:
        size = lone_bytes(block)
        if size is not None and size <= message_bytes_max:
            return header
    check_body(block, start, header.count, message_bytes_max, decompressed_bytes_max)
    return header


def unpack_lone(block: Buffer) -> tuple[bytes | None, bytes] | None:
    """Key and value of a stored block that is a lone message without headers, in a fraction of the
    time of `decode`; None for any other block, and for a damaged one."""
    cells = lone_cells(block)
    try:
        return cells if cells is not None and body_crc(block) == read_header(block).crc else None
    except BadBlock:
        return None
