"""Small records: rows of the metadata table, changed by compare and set.

Invariants

* Timestamps are the region server's, which never lets a change disappear behind the row it changes.
* Every write leaves random bytes in `m:w`. A change is made only if the bytes that were read are
  still there, so neither an empty value nor a value that returned is mistaken for another one; and
  a writer that lost an answer finds its own bytes, or reports that the outcome is unknown.
* A record is removed with the timestamp at which it was read, so a late repeat of the removal
  cannot remove a newer record. Removing waits until the clock has moved on, because a record that
  is made within the same millisecond would be hidden with it.
* A map of records never refuses writes: each row is independent, there is nothing to recover. Every
  write is synced, each row on its own.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tms.errors import StorageUnavailable, TMSError, TooLarge
from tms.model.keys import prefix_stop
from tms.model.message import Buffer
from tms.model.topic import Durability
from tms.store.base import MapRow, check_row
from tms.store.hbase.connection import Failure, types
from tms.store.hbase.pool import Pool
from tms.store.hbase.rows import FAMILY, RECORD_BYTES_MAX, VALUE, WRITER, RecordRows, record_of
from tms.store.hbase.scanning import READ, Pages, Plan, batches, lengths

_TRIES = 10
_GONE_S = 0.002  # from reading a record to its removal, at least
_WRITER_BYTES = 16
_DELETES_PER_CALL = 1_000


class _Seen(NamedTuple):
    """A record as it was read; without a value if there is none."""

    value: bytes | None
    writer: bytes | None
    timestamp: int


class RecordMap:
    """A map of records, or other rows of their table with one prefix, each with one value."""

    value_bytes_max = RECORD_BYTES_MAX
    hopeless: str | None = None  # it never refuses writes

    def __init__(self, pool: Pool, rows: RecordRows) -> None:
        self._pool = pool
        self._table = rows.table
        self._rows = rows
        self._skipped = len(rows.prefix)
        self._lock = threading.Lock()
        self._stored_bytes: int | None = None
        self._gone: TMSError | None = None

    def recover(self) -> None:
        """Nothing to do."""

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows, each on its own; always synced."""
        stored = {key: self._checked(key, value) for key, value in rows}
        self._require_open()
        for some, size in batches(sorted(stored.items()), lambda row: len(row[0]) + len(row[1])):
            puts = [_put(self._rows.row(key), value, _writer()) for key, value in some]
            self._pool.call("putMultiple", self._table, puts, repeatable=False, size=size)
            self._count(size)

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """As `write`."""
        self.write(rows, durability)

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""
        row = self._rows.row(key)
        self._require_open()
        return self._seen(row).value

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached; of several pages, each as of its own
        read. Lengths are read ahead, because one page may have only so many bytes."""
        self._require_open()
        pages = Pages(self._pool, self._table, *self._rows.range(start, stop), reverse)
        plan = Plan(pages)
        found: list[tuple[bytes, bytes]] = []
        left = bytes_max
        while not pages.ended:
            count, total = (1, 0) if left <= 1 else plan.next(left)
            if not count:
                break
            for one in pages.next(count, total):
                key, value = one.row[self._skipped :], record_of(one.columnValues)[0]
                if not key or value is None:
                    continue
                found.append((key, value))
                left -= len(key) + len(value)
                if left <= 0:
                    return found
        return found

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys as their records are now, synced."""
        rows = [self._rows.row(key) for key in dict.fromkeys(keys)]
        self._require_open()
        self._delete(rows)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set or remove `key` if its value is `expected`; synced. Raises `StorageUnavailable` if
        the change may have been made or may still be made."""
        row, new = self._rows.row(key), None if value is None else self._checked(key, value)
        self._require_open()
        done = self._compare_and_set(row, expected, new)
        if done and new is not None:
            self._count(len(new) - len(expected or b""))
        return done

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Nothing to do: HBase's compactions reclaim the space."""
        self._require_open()

    def stored_bytes(self) -> int:
        """The bytes of all rows: read at the first call, counted from then on."""
        self._require_open()
        if self._stored_bytes is None:
            stored = sum(len(row) + size for row, size in self._lengths(b""))
            with self._lock:
                self._stored_bytes = stored
        return self._stored_bytes

    def keys(self, prefix: bytes) -> list[bytes]:
        """The keys that begin with an ASCII prefix."""
        self._require_open()
        return [row[self._skipped :] for row, _ in self._lengths(prefix)]

    def drop_rows(self) -> None:
        """Remove every row."""
        rows: list[bytes] = []
        for row, _ in self._lengths(b""):
            rows.append(row)
            if len(rows) == _DELETES_PER_CALL:
                self._delete(rows)
                rows = []
        self._delete(rows)

    def end(self, reason: TMSError) -> None:
        """Raise `reason` from every later call."""
        self._gone = reason

    # -- rows ----------------------------------------------------------------------------------

    def _seen(self, row: bytes) -> _Seen:
        wanted = types().TGet(row=row, attributes=READ)
        found = self._pool.call("get", self._table, wanted, repeatable=True)
        return _Seen(*record_of(found.columnValues))

    def _lengths(self, prefix: bytes) -> Iterator[tuple[bytes, int]]:
        """Every row whose key begins with an ASCII prefix, and the bytes of its value."""
        stop = prefix_stop(prefix) if prefix else None
        return lengths(self._pool, self._table, *self._rows.range(prefix, stop))

    def _compare_and_set(self, row: bytes, expected: bytes | None, value: bytes | None) -> bool:
        writer = _writer()
        removing = False
        for _ in range(_TRIES):
            seen = self._seen(row)
            if seen.writer == writer:
                return True  # HBase repeated it by itself, and refused the repetition
            if removing and seen.value is None:
                raise _unknown(row)
            if seen.value != expected:
                return False
            if value == expected:
                return True
            removing = value is None
            if self._removed(row, seen) if value is None else self._set(row, seen, value, writer):
                return True
        raise StorageUnavailable(f"The record {_shown(row)} changes all the time. Try again.")

    def _delete(self, rows: Sequence[bytes]) -> None:
        column = types().TColumn(family=FAMILY, qualifier=VALUE)
        for at in range(0, len(rows), _DELETES_PER_CALL):
            gets = [
                types().TGet(
                    row=row, columns=[column], filterString=b"KeyOnlyFilter()", attributes=READ
                )
                for row in rows[at : at + _DELETES_PER_CALL]
            ]
            found = self._pool.call("getMultiple", self._table, gets, repeatable=True)
            gone = [_deletion(one.row, one.columnValues[0].timestamp) for one in found if one.row]
            if gone:
                _let_time_pass()
                self._pool.call("deleteMultiple", self._table, gone, repeatable=True)

    def _set(self, row: bytes, seen: _Seen, value: bytes, writer: bytes) -> bool:
        """Store the record unless it changed since it was read."""
        put = _put(row, value, writer)
        try:
            done = self._attempt("checkAndPut", row, seen, put, len(value))
        except Failure as failure:
            if failure.done and self._seen(row).writer == writer:
                return True
            raise _unknown(row, failure) if failure.done else failure.error from failure
        # A removed record hides one with an older timestamp, made after a clock went back.
        if done and seen.value is None and self._seen(row).value is None:
            raise _unknown(row)
        return done

    def _removed(self, row: bytes, seen: _Seen) -> bool:
        """Remove the record unless it changed since it was read."""
        _let_time_pass()
        try:
            return self._attempt("checkAndDelete", row, seen, _deletion(row, seen.timestamp))
        except Failure as failure:
            raise _unknown(row, failure) if failure.done else failure.error from failure

    def _attempt(self, method: str, row: bytes, seen: _Seen, change: Any, size: int = 0) -> bool:
        """Make a change if the record is still as it was read. Raises `Failure`."""
        check = (FAMILY, WRITER, seen.writer)
        if seen.value is not None and seen.writer is None:  # made by hand
            check = (FAMILY, VALUE, seen.value)
        arguments = (self._table, row, *check, change)
        return bool(self._pool.attempt(method, *arguments, repeatable=False, size=size))

    def _checked(self, key: bytes, value: Buffer) -> bytes:
        check_row(key, value)
        if len(value) > RECORD_BYTES_MAX:
            raise TooLarge(
                f"A value in HBase's {self._table.decode()} has at most {RECORD_BYTES_MAX} bytes, "
                f"this one has {len(value)}."
            )
        return bytes(value)

    def _count(self, size: int) -> None:
        with self._lock:
            if self._stored_bytes is not None:
                self._stored_bytes += size

    def _require_open(self) -> None:
        if self._gone is not None:
            raise type(self._gone)(self._gone.message)


def _writer() -> bytes:
    return os.urandom(_WRITER_BYTES)


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


def _deletion(row: bytes, timestamp: int) -> Any:
    return types().TDelete(row=row, timestamp=timestamp, durability=types().TDurability.FSYNC_WAL)


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
