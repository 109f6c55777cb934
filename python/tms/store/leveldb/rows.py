"""Rows of a database: writing, iterating, and the values that they have or point to."""

from collections.abc import Iterable, Iterator

from tms.store.leveldb.drivers import Database, Rows
from tms.store.leveldb.values import POINTER, PointerRow, ValueFile, length

FIRST_KEY = b"\0"  # of a row; the empty key is the mark's


def put(db: Database, rows: Iterable[PointerRow], sync: bool) -> None:
    """Write rows in one step."""
    batch = db.write_batch(sync=sync)
    for key, row in rows:
        batch.put(key, row)
    batch.write()


def value_of(values: ValueFile, row: bytes) -> bytes:
    """The value that a row has or points to. Raises `DataCorrupt`, OSError."""
    return values.read(row) if row[:1] == POINTER else row[1:]


def every(rows: Rows) -> Iterator[PointerRow]:
    """All rows."""
    rows.seek(FIRST_KEY)
    while rows.valid():
        yield rows.item()
        rows.next()


def collect(
    rows: Rows, start: bytes, stop: bytes | None, bytes_max: int, reverse: bool
) -> list[PointerRow]:
    """Rows of [start, stop) until their values reach `bytes_max`; at least one if there is one."""
    if reverse:
        if stop is not None:
            rows.seek(stop)
        if stop is not None and rows.valid():
            rows.prev()
        else:
            rows.seek_to_last()
    else:
        rows.seek(start)
    step = rows.prev if reverse else rows.next
    collected: list[PointerRow] = []
    size = 0
    while rows.valid():
        row = rows.item()
        key = row[0]
        if (stop is not None and key >= stop) or key < start:
            break
        collected.append(row)
        size += len(key) + length(row[1])
        if size >= bytes_max:
            break
        step()
    return collected
