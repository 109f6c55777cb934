"""Rows of a range, page by page: one round trip each, bounded by the heap of the Thrift server.

A Thrift server collects a page in its heap before it answers, and takes a number of rows, not of
bytes. So the caller of a page decides how many rows it may have.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tms.store.hbase.connection import types
from tms.store.hbase.pool import Pool

T = TypeVar("T")

# TMS reads all stored rows, also those that the coprocessor hides from other readers.
READ = {b"tms.isolation": b"uncommitted"}
PAGE_BYTES = 8 << 20  # of one call, in either direction
PAGE_ROWS_MAX = 4_096
LENGTHS = b"KeyOnlyFilter(true)"  # instead of a value, its length in 4 bytes
_BELOW = b"\xff" * 9


@dataclass(slots=True)
class Pages:
    """The rows of [start, stop), ascending or descending."""

    pool: Pool
    table: bytes
    start: bytes
    stop: bytes
    reverse: bool = False
    filter: bytes | None = None
    ended: bool = field(init=False)

    def __post_init__(self) -> None:
        self.ended = self.start >= self.stop

    def lengths(self) -> Iterator[tuple[bytes, int]]:
        """The remaining rows, and the sizes of their values in bytes."""
        return lengths(self.pool, self.table, self.start, self.stop, self.reverse)

    def next(self, rows: int, size: int = 0) -> list[Any]:
        """The next rows, at most `rows`; fewer at the end only. `size` is their approximate size in
        bytes."""
        if self.ended:
            return []
        asked = rows
        if self.reverse:  # HBase includes the start row; `stop` is exclusive
            asked += 1
            first, last = self.stop, _before(self.start)
        else:
            first, last = self.start, self.stop
        scan = types().TScan(
            startRow=first,
            stopRow=last,
            caching=asked,
            limit=asked,
            reversed=self.reverse,
            filterString=self.filter,
            attributes=READ,
        )
        found = self.pool.call(
            "getScannerResults", self.table, scan, asked, repeatable=True, size=size
        )
        self.ended = len(found) < asked
        if self.reverse:
            found = [one for one in found if self.start <= one.row < self.stop][:rows]
            if found:
                self.stop = found[-1].row
        elif found:
            self.start = found[-1].row + b"\0"
        return list(found)


def lengths(
    pool: Pool, table: bytes, start: bytes, stop: bytes, reverse: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Every row of a range, and the size of its value in bytes."""
    pages = Pages(pool, table, start, stop, reverse, LENGTHS)
    count = 64
    while not pages.ended:
        for one in pages.next(count):
            yield one.row, sum(int.from_bytes(cell.value, "big") for cell in one.columnValues)
        count = min(4 * count, PAGE_ROWS_MAX)


class Plan:
    """The number of remaining rows that fit into a page, by lengths that are read ahead.

    Rows that come and go meanwhile make it wrong by their number: if it ends before the rows do, it
    is made again.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._lengths = pages.lengths()
        self._known: int | None = None  # the size of the next row, if it was read before
        self._used = False

    def next(self, room: int) -> tuple[int, int]:
        """The number of rows that fill `room` bytes, as far as a page may, at least one if there is
        one; and their bytes."""
        found = self._next(room)
        if not found[0] and self._used:
            self._lengths = self._pages.lengths()
            found = self._next(room)
        self._used = True
        return found

    def _next(self, room: int) -> tuple[int, int]:
        count = total = 0
        while total < room:
            size = self._known
            if size is None:
                row, length = next(self._lengths, (b"", 0))
                if not row:  # one row more than there are: a shorter page is the end
                    return count + 1 if count else 0, total
                size = len(row) + length
            self._known = size
            if count and total + size > PAGE_BYTES:
                break
            self._known = None
            total += size
            count += 1
        return count, total


def batches(rows: Iterable[T], size_of: Callable[[T], int]) -> Iterator[tuple[Sequence[T], int]]:
    """Rows in groups of at most `PAGE_BYTES`, or of one; and the bytes of each group."""
    batch: list[T] = []
    total = 0
    for row in rows:
        size = size_of(row)
        if batch and (total + size > PAGE_BYTES or len(batch) == PAGE_ROWS_MAX):
            yield batch, total
            batch, total = [], 0
        batch.append(row)
        total += size
    if batch:
        yield batch, total


def _before(row: bytes) -> bytes:
    """A row a little below this one; the caller leaves out rows between them."""
    if not row or row[-1] == 0:
        return row[:-1]
    return row[:-1] + bytes((row[-1] - 1,)) + _BELOW
