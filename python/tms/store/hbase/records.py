"""Small records: rows of the metadata table, changed by compare and set.

Invariants

* Timestamps are the region server's, which never lets a change disappear behind what it changes.
* Every write leaves random bytes in `m:w`. A change is made only if those that were seen are still
  there, so neither an empty value nor one that came back is taken for what it is not; and who lost
  an answer finds its own bytes, or knows that it does not know.
* A record is removed with the timestamp that it was seen with, so a late repeat of the removal
  cannot take a newer record away. Removing waits until the clock has moved on, because a record
  that is made within the same millisecond would be hidden with it.
* A map of records never refuses writes: each stands for itself, there is nothing to recover. Every
  write is synced, each row on its own.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tms.errors import StorageUnavailable, TMSError, TooLarge
from tms.model.message import Buffer
from tms.model.topic import Durability
from tms.store.base import Row, check_row
from tms.store.hbase.rows import (
    FAMILY,
    RECORD_BYTES_MAX,
    VALUE,
    WRITER,
    RecordRows,
    record_of,
)
from tms.store.hbase.thrift.connection import Failure, types
from tms.store.hbase.thrift.pool import Pool
from tms.store.hbase.thrift.scanning import PAGE_BYTES, READ, Pages, Plan, batches, lengths

_TRIES = 10
_GONE_S = 0.002  # how long after a record was seen its removal is done, at the earliest
_WRITER_BYTES = 16
_DELETES_PER_CALL = 1_000


class Seen(NamedTuple):
    """A record as it was read; without a value when there is none."""

    value: bytes | None
    writer: bytes | None
    timestamp: int


class Records:
    """Rows of one table with a value each. Thread-safe."""

    def __init__(self, pool: Pool, table: bytes) -> None:
        self.table = table
        self._pool = pool

    def get(self, row: bytes) -> Seen:
        """The record of a row."""
        wanted = types().TGet(row=row, attributes=READ)
        found = self._pool.call("get", self.table, wanted, repeatable=True)
        return Seen(*record_of(found.columnValues))

    def put(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Store records, synced."""
        for some, size in batches(rows, lambda row: len(row[0]) + len(row[1])):
            puts = [_put(row, value, os.urandom(_WRITER_BYTES)) for row, value in some]
            self._pool.call("putMultiple", self.table, puts, repeatable=False, size=size)

    def compare_and_set(self, row: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set a record, or remove it with None, if it is `expected` now; synced. Raises
        `StorageUnavailable` when that may have happened or may yet happen."""
        writer = os.urandom(_WRITER_BYTES)
        removing = False
        for _ in range(_TRIES):
            seen = self.get(row)
            if seen.writer == writer:
                return True  # HBase had repeated it by itself, and then said no
            if removing and seen.value is None:
                raise _unknown(row)
            if seen.value != expected:
                return False
            if value == expected:
                return True
            if value is not None:
                if self._set(row, seen, value, writer):
                    return True
            elif self._removed(row, seen):
                return True
            else:
                removing = True
        raise StorageUnavailable(f"The record {_shown(row)} changes all the time. Try again.")

    def delete(self, rows: Sequence[bytes]) -> None:
        """Remove records as they are now, synced; missing ones are ignored."""
        column = types().TColumn(family=FAMILY, qualifier=VALUE)
        for at in range(0, len(rows), _DELETES_PER_CALL):
            gets = [
                types().TGet(
                    row=row, columns=[column], filterString=b"KeyOnlyFilter()", attributes=READ
                )
                for row in rows[at : at + _DELETES_PER_CALL]
            ]
            found = self._pool.call("getMultiple", self.table, gets, repeatable=True)
            gone = [_delete(one.row, one.columnValues[0].timestamp) for one in found if one.row]
            if gone:
                _let_time_pass()
                self._pool.call("deleteMultiple", self.table, gone, repeatable=True)

    def all(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every row that begins with an ASCII prefix, and its value."""
        start, stop = prefix, _end(prefix)
        while found := self.scan(start, stop, PAGE_BYTES):
            yield from found
            start = found[-1][0] + b"\0"

    def lengths(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, int]]:
        """Every row of a range, and about how many bytes it has."""
        for row, size in lengths(self._pool, self.table, start, stop):
            yield row, len(row) + size

    def names(self, prefix: bytes) -> list[bytes]:
        """Every row that begins with an ASCII prefix."""
        return [row for row, _ in lengths(self._pool, self.table, prefix, _end(prefix))]

    def scan(
        self,
        start: bytes,
        stop: bytes,
        bytes_max: int,
        reverse: bool = False,
        size_of: Callable[[bytes, bytes], int] = lambda row, value: len(row) + len(value),
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) and their values, until `bytes_max` is reached. Their lengths are
        read ahead of them, because one page may hold only so many bytes."""
        pages = Pages(self._pool, self.table, start, stop, reverse)
        plan = Plan(pages)
        found: list[tuple[bytes, bytes]] = []
        left = bytes_max
        while not pages.ended:
            count, total = (1, 0) if left <= 1 else plan.next(left)
            if not count:
                break
            for one in pages.next(count, total):
                value = record_of(one.columnValues)[0]
                if value is None:
                    continue
                found.append((one.row, value))
                left -= size_of(one.row, value)
                if left <= 0:
                    return found
        return found

    def _set(self, row: bytes, seen: Seen, value: bytes, writer: bytes) -> bool:
        """Store the record unless it changed since it was seen."""
        try:
            done = self._pool.attempt(
                "checkAndPut",
                self.table,
                row,
                *_check(seen),
                _put(row, value, writer),
                repeatable=False,
                size=len(value),
            )
        except Failure as failure:
            if failure.done and self.get(row).writer == writer:
                return True
            raise _unknown(row, failure) if failure.done else failure.error from failure
        # Where a record was removed, one with an older timestamp is hidden: a clock went back.
        if done and seen.value is None and self.get(row).value is None:
            raise _unknown(row)
        return bool(done)

    def _removed(self, row: bytes, seen: Seen) -> bool:
        """Remove the record unless it changed since it was seen."""
        _let_time_pass()
        gone = _delete(row, seen.timestamp)
        try:
            return bool(
                self._pool.attempt(
                    "checkAndDelete", self.table, row, *_check(seen), gone, repeatable=False
                )
            )
        except Failure as failure:
            raise _unknown(row, failure) if failure.done else failure.error from failure


class RecordMap:
    """A map of records; made by `HBaseStore`."""

    value_bytes_max = RECORD_BYTES_MAX
    hopeless: str | None = None  # it never refuses writes

    def __init__(self, pool: Pool, rows: RecordRows) -> None:
        self._records = Records(pool, rows.table)
        self._rows = rows
        self._skipped = len(rows.prefix)
        self._lock = threading.Lock()
        self._stored_bytes: int | None = None
        self._gone: TMSError | None = None

    def recover(self) -> None:
        """Nothing to do."""

    def write(self, rows: Sequence[Row], durability: Durability) -> None:
        """Store these rows, each on its own; always synced."""
        stored = {key: self._checked(key, value) for key, value in rows}
        self._require_open()
        if stored:
            self._records.put([(self._rows.row(key), stored[key]) for key in sorted(stored)])
            self._count(sum(len(key) + len(value) for key, value in stored.items()))

    def overwrite(self, rows: Sequence[Row], durability: Durability) -> None:
        """The same as `write`."""
        self.write(rows, durability)

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when there is none."""
        row = self._rows.row(key)
        self._require_open()
        return self._records.get(row).value

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached; of more than a page, each page as it
        is when it is read."""
        self._require_open()
        skipped = self._skipped
        found = self._records.scan(
            *self._rows.range(start, stop),
            bytes_max,
            reverse,
            lambda row, value: len(row) - skipped + len(value),
        )
        return [(row[skipped:], value) for row, value in found if len(row) > skipped]

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, synced."""
        rows = [self._rows.row(key) for key in dict.fromkeys(keys)]
        self._require_open()
        self._records.delete(rows)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set or remove `key` if it is `expected` now; synced."""
        row, new = self._rows.row(key), None if value is None else self._checked(key, value)
        self._require_open()
        done = self._records.compare_and_set(row, expected, new)
        if done and new is not None:
            self._count(len(new) - len(expected or b""))
        return done

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Nothing to do: HBase's compactions give the space back."""
        self._require_open()

    def stored_bytes(self) -> int:
        """The bytes of all rows when this was asked first, and what was written since."""
        self._require_open()
        if self._stored_bytes is None:
            found = sum(size for _, size in self._records.lengths(*self._rows.range(None, None)))
            with self._lock:
                self._stored_bytes = found
        return self._stored_bytes

    def drop_rows(self) -> None:
        """Remove every row."""
        names: list[bytes] = []
        for row, _ in self._records.lengths(*self._rows.range(None, None)):
            names.append(row)
            if len(names) == _DELETES_PER_CALL:
                self._records.delete(names)
                names = []
        self._records.delete(names)

    def end(self, reason: TMSError) -> None:
        """Raise `reason` from every later call."""
        self._gone = reason

    def _checked(self, key: bytes, value: Buffer) -> bytes:
        check_row(key, value)
        if len(value) > RECORD_BYTES_MAX:
            raise TooLarge(
                f"A value in HBase's {self._records.table.decode()} has at most "
                f"{RECORD_BYTES_MAX} bytes, this one has {len(value)}."
            )
        return bytes(value)

    def _count(self, size: int) -> None:
        with self._lock:
            if self._stored_bytes is not None:
                self._stored_bytes += size

    def _require_open(self) -> None:
        if self._gone is not None:
            raise type(self._gone)(self._gone.message)


def _check(seen: Seen) -> tuple[bytes, bytes, bytes | None]:
    """Family, qualifier and value that are still there if the record has not changed."""
    if seen.value is not None and seen.writer is None:  # made by hand
        return FAMILY, VALUE, seen.value
    return FAMILY, WRITER, seen.writer


def _put(row: bytes, value: bytes, writer: bytes) -> Any:
    cell = types().TColumnValue
    return types().TPut(
        row=row,
        columnValues=[
            cell(family=FAMILY, qualifier=VALUE, value=value),
            cell(family=FAMILY, qualifier=WRITER, value=writer),
        ],
        durability=types().TDurability.FSYNC_WAL,
    )


def _delete(row: bytes, timestamp: int) -> Any:
    return types().TDelete(row=row, timestamp=timestamp, durability=types().TDurability.FSYNC_WAL)


def _end(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _let_time_pass() -> None:
    threading.Event().wait(_GONE_S)


def _unknown(row: bytes, failure: Failure | None = None) -> StorageUnavailable:
    because = f": {failure.error.message}" if failure is not None else "."
    return StorageUnavailable(
        f"Whether the record {_shown(row)} was changed is unknown, and it may still be{because} "
        "Read it, then try again."
    )


def _shown(row: bytes) -> str:
    return row.decode(errors="backslashreplace")
