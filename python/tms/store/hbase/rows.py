"""The rows of a map, and the cells of a value: bytes only, no calls.

    messages   t0000002a/p00003/s00000001, key 10 bytes   row  salt uid partition segment KEY   hex
    payloads   t0000002a/p00003/y00019675, key 18 bytes   row  salt uid partition day KEY       hex
               digits 4, 8, 4 and 8; the first 16 are one partition, the first 24 one map
    metadata   every other map                            row  MAP ":" KEY, as they are

    cells of a block    m:b, and from 8 MiB on m:b01, m:b02 …, each of 8 MiB but the last
                        timestamp: the time in the key, in ms; more each time it is overwritten
    cells of a record   m:v the value; m:w its writer, 16 random bytes
                        timestamp: the region server's clock

Invariants

* Rows sort as keys do, so a range of keys is a range of rows.
* A row whose key is spelled differently is not a row of the map.
* The pieces of a block have one timestamp: others are left of an overwritten block.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c

from tms.errors import DataCorrupt, Invalid
from tms.model.keys import prefix_stop
from tms.model.message import Buffer
from tms.store.base import check_key

MESSAGES, PAYLOADS, METADATA = "messages", "payloads", "metadata"
TABLES = (MESSAGES, PAYLOADS, METADATA)
FAMILY = b"m"
BLOCK, VALUE, WRITER = b"b", b"v", b"w"
PIECE_BYTES = 8 << 20
BLOCK_BYTES_MAX = (
    40 << 20
)  # one call with 80 MiB still works on a Thrift server with 256 MB of heap
RECORD_BYTES_MAX = 8 << 20
PREFIX_CHARS = 24
PARTITION_MAX = 0xFFFF
NAMES = b"!map/"  # rows of metadata that name the existing maps
_MAP = re.compile(r"t([0-9a-f]{8})/p([0-9]{5})/([sy])([0-9]{8})", re.ASCII)
_HEX = re.compile(rb"[0-9a-f]*")
_BLOCK_KEY_BYTES = {"s": 10, "y": 18}
_TIME_AT = {"s": 0, "y": 8}
_PIECES_MAX = 99
MORE = tuple(b"b%02d" % number for number in range(1, BLOCK_BYTES_MAX // PIECE_BYTES))


class StoredRow(NamedTuple):
    """A block to write: its row, and the timestamp of its cells."""

    row: bytes
    timestamp: int
    value: bytes


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of a map of messages or of payloads."""

    table: bytes
    prefix: bytes
    key_bytes: int
    time_at: int  # the index of the time in a key
    unsynced: bool  # True if rows may be written without a sync

    def row(self, key: bytes) -> bytes:
        """The row of a key. Raises `Invalid`."""
        check_key(key)
        if len(key) != self.key_bytes:
            raise Invalid(
                f"A key in {self.table.decode()} has {self.key_bytes} bytes, this one {len(key)}."
            )
        return self.prefix + key.hex().encode()

    def key(self, row: bytes) -> bytes | None:
        """The key of a row; None if the row is not one of the map's."""
        digits = row[PREFIX_CHARS:]
        if (
            len(digits) != 2 * self.key_bytes
            or not row.startswith(self.prefix)
            or not _HEX.fullmatch(digits)
        ):
            return None
        return bytes.fromhex(digits.decode())

    def range(self, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes]:
        """The half-open range of rows of a range of keys."""
        first = self.prefix + (b"" if start is None else start.hex().encode())
        end = self.prefix + (b"g" if stop is None else stop.hex().encode())  # g: behind all digits
        return first, end

    def timestamp(self, key: bytes) -> int:
        """The timestamp of the row's cells when it is written first."""
        return int.from_bytes(key[self.time_at : self.time_at + 8], "big")


@dataclass(frozen=True, slots=True)
class RecordRows:
    """The rows of a map of records."""

    table: bytes
    prefix: bytes

    def row(self, key: bytes) -> bytes:
        """The row of a key. Raises `Invalid`."""
        check_key(key)
        return self.prefix + key

    def key(self, row: bytes) -> bytes | None:
        """The key of a row; None if the row is not one of the map's."""
        return row[len(self.prefix) :] or None if row.startswith(self.prefix) else None

    def range(self, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes]:
        """The half-open range of rows of a range of keys."""
        end = prefix_stop(self.prefix) if stop is None else self.prefix + stop
        return self.prefix + (start or b""), end


def rows_of(namespace: str, name: str) -> BlockRows | RecordRows:
    """The rows of the map with this name. Raises `Invalid`."""
    found = _MAP.fullmatch(name)
    if found is None:
        return RecordRows(table_name(namespace, METADATA), f"{name}:".encode())
    uid, partition, kind, number = int(found[1], 16), int(found[2]), found[3], int(found[4])
    if partition > PARTITION_MAX:
        raise Invalid(f"HBase has room for {PARTITION_MAX + 1} partitions of a topic; got {name}.")
    return BlockRows(
        table_name(namespace, MESSAGES if kind == "s" else PAYLOADS),
        f"{salt(uid, partition)}{uid:08x}{partition:04x}{number:08x}".encode(),
        _BLOCK_KEY_BYTES[kind],
        _TIME_AT[kind],
        kind == "s",
    )


def salt(uid: int, partition: int) -> str:
    """The digits that spread partitions over the regions: 4, hexadecimal."""
    crc: int = google_crc32c.value(uid.to_bytes(4, "big") + partition.to_bytes(2, "big"))
    return f"{crc >> 16:04x}"


def split_rows(regions: int) -> list[bytes]:
    """The rows at which a table of blocks is split into this many regions of equal size."""
    return [b"%04x" % (0x10000 * i // regions) for i in range(1, regions)]


def table_name(namespace: str, table: str) -> bytes:
    """A table's full name."""
    return f"{namespace}:{table}".encode()


def pieces(value: Buffer) -> Iterator[tuple[bytes, bytes]]:
    """Qualifiers and values of the cells of a block; at least one."""
    raw = bytes(value)
    yield BLOCK, raw[:PIECE_BYTES] if len(raw) > PIECE_BYTES else raw
    for number, at in enumerate(range(PIECE_BYTES, len(raw), PIECE_BYTES), 1):
        yield BLOCK + b"%02d" % number, raw[at : at + PIECE_BYTES]


def block_of(row: bytes, cells: list[Any]) -> tuple[bytes, int] | None:
    """A block and its timestamp from the cells of its row; None if no cell is of a block. Raises
    `DataCorrupt`."""
    if len(cells) == 1 and cells[0].qualifier == BLOCK:
        return cells[0].value, cells[0].timestamp
    found = {cell.qualifier: cell for cell in cells if cell.qualifier[:1] == BLOCK}
    first = found.pop(BLOCK, None)
    if first is None:
        if any(is_more(name) for name in found):
            raise _damaged(row, "m:b is missing")
        return None
    parts = [first.value]
    more = {name for name, cell in found.items() if cell.timestamp == first.timestamp}
    for number in range(1, sum(map(is_more, more)) + 1):
        name = BLOCK + b"%02d" % number
        if name not in more:
            raise _damaged(row, f"m:{name.decode()} is missing")
        if len(parts[-1]) != PIECE_BYTES:
            raise _damaged(row, f"the cell before m:{name.decode()} is not whole")
        parts.append(found[name].value)
    return b"".join(parts), first.timestamp


def record_of(cells: list[Any]) -> tuple[bytes | None, bytes | None, int]:
    """Value, writer and timestamp of a record from the cells of its row."""
    found = {cell.qualifier: cell for cell in cells}
    value, writer = found.get(VALUE), found.get(WRITER)
    if value is None:
        return None, None, 0
    return value.value, None if writer is None else writer.value, value.timestamp


def is_more(qualifier: bytes) -> bool:
    """True if a cell is a piece of a block beyond the first."""
    return len(qualifier) == 3 and qualifier[1:].isdigit() and 0 < int(qualifier[1:]) <= _PIECES_MAX


def _damaged(row: bytes, what: str) -> DataCorrupt:
    return DataCorrupt(
        f"The row {row.decode(errors='backslashreplace')} is damaged: {what}. Run `tms fsck`."
    )
