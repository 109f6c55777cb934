"""A map of messages or of payloads: rows that are written once, with timestamps from their keys.

Invariants

* A write can be repeated: the same row with the same timestamp and bytes changes nothing, however
  late it lands. So after a failed write `recover` writes the rows once more: then they are stored,
  and no late repeat of the failed write changes the result of a later read.
* `overwrite` uses a later timestamp than the stored one, `delete` covers all of them: late repeats
  never win. A deleted key is never written again (ids are assigned once); it would stay hidden.
* Replaced and deleted cells leave HBase with the next major compaction of the region.
* Rows written without a sync are kept in memory, up to `UNSYNCED_BYTES_MAX`, and written again by
  the next synced write, before its own rows. A sync of HBase's log covers one file of one server,
  but the region may have moved since, or the log may have been rolled; rewriting holds in each
  case. A write that would exceed the bound is a synced one, and so is a large write: its rows would
  cost more to write twice than to sync. So the unsynced rows of an owner that died are among the
  last `UNSYNCED_BYTES_MAX` bytes, and the next process that opens the map writes those again with
  its first sync.
* `!map/NAME` says how large the rows can be, before the first such row is written: a reader knows
  how many it can request at once. A process that does not write reads it again now and then.
* Rows whose keys are not spelled like those of the map are skipped, counted and logged.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tms.errors import DataCorrupt, Invalid, NotFound, StorageUnavailable, TMSError, TooLarge
from tms.model.message import Buffer
from tms.model.topic import Durability
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.store.base import MapRow, check_row
from tms.store.hbase.connection import types
from tms.store.hbase.overwriting import LATER_MAX, replacements
from tms.store.hbase.pool import Pool
from tms.store.hbase.records import RecordMap
from tms.store.hbase.rows import BLOCK_BYTES_MAX, FAMILY, BlockRows, StoredRow, block_of, pieces
from tms.store.hbase.scanning import PAGE_BYTES, PAGE_ROWS_MAX, READ, Pages, Plan, batches, lengths

RETRY_S = 0.5
NOTE_S = 1.0  # the age at which a reader reads the note again
UNSYNCED_BYTES_MAX = 1 << 20
_LARGE_WRITE_BYTES = 128 << 10
ROW_BYTES_FIRST = 16 << 10
_DELETES_PER_CALL = 1_000
_SMALL_PAGE_BYTES = 1 << 20
_log = logging.getLogger("tms.store")


class MapNote(msgspec.Struct, frozen=True):
    """The value of `!map/NAME`."""

    created_ms: int = 0
    row_bytes_max: int = BLOCK_BYTES_MAX


class NotedMap(NamedTuple):
    """The key of a map's note, and the note."""

    names: RecordMap
    name: bytes
    note: bytes


class BlockMap:
    """A map of blocks; `HBaseStore` makes it."""

    value_bytes_max = BLOCK_BYTES_MAX

    def __init__(
        self, pool: Pool, rows: BlockRows, noted: NotedMap, clock: Clock, created: bool
    ) -> None:
        self.foreign_rows = 0  # number of skipped rows
        self._pool = pool
        self._rows = rows
        self._names, self._name, self._note = noted
        self._clock = clock
        self._row_bytes_max = read_note(noted.note).row_bytes_max
        self._writes = created  # then no other process makes the rows larger
        self._noted_s = clock.monotonic_s()
        self._largest = 1 if created else self._row_bytes_max
        self._usual = max(1, self._largest // 4)  # bytes of a row, from the newest page
        self._writing = threading.Lock()
        self._unsynced: dict[tuple[bytes, int], StoredRow] = {}
        self._unsynced_bytes = 0
        self._inherited = not created and rows.unsynced
        self._stored_bytes: int | None = 0 if created else None
        self._doubtful: list[StoredRow] = []
        self._failure: TMSError | None = None
        self._recovery_failed = False
        self._retry_at_s = float("-inf")
        self._gone: TMSError | None = None

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows in the order of their keys; after a crash a first part of them may be
        stored."""
        stored = self._stored(rows)
        with self._writing:
            self._require_writable()
            size = sum(len(one.value) for one in stored)
            unsynced = self._unsynced_bytes + size
            large = size >= _LARGE_WRITE_BYTES or unsynced > UNSYNCED_BYTES_MAX
            if durability is Durability.SYNCED or large or not self._rows.unsynced:
                self._sync(stored)
            elif stored:
                self._put(stored, synced=False)
                self._unsynced.update({(one.row, one.timestamp): one for one in stored})
                self._unsynced_bytes = unsynced
            if self._stored_bytes is not None:
                self._stored_bytes += size + len(stored) * self._rows.key_bytes

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Replace stored rows; synced. Rows that do not exist are not created."""
        fresh = self._stored(rows)
        with self._writing:
            self._require_writable()
            if not fresh:
                return
            stored, stale = replacements(self._pool, self._rows.table, fresh)
            self._stored_bytes = None
            self._sync(stored)
            self._remove(stale)

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Nothing to do: HBase's major compactions reclaim the space."""
        self._require_open()

    def recover(self) -> None:
        """Write the rows of a failed write once more, at most twice a second."""
        with self._writing:
            if self._failure is None:
                return
            now_s = self._clock.monotonic_s()
            if now_s < self._retry_at_s:
                raise _again(self._failure)
            self._retry_at_s = now_s + RETRY_S
            self._recovery_failed = True
            self._put(self._doubtful, synced=True)
            self._unsynced = {}
            self._unsynced_bytes = 0
            self._doubtful = []
            self._stored_bytes = None
            self._failure = None
            self._recovery_failed = False

    @property
    def hopeless(self) -> str | None:
        """The reason why the last `recover` failed; None if it did not."""
        failure = self._failure
        return failure.message if failure is not None and self._recovery_failed else None

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys for good, synced."""
        gone = [self._deletion(key) for key in dict.fromkeys(keys)]
        with self._writing:
            self._require_writable()
            if not gone:
                return
            self._sync([])
            self._stored_bytes = None
            self._remove(gone)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Refused: blocks do not change."""
        raise Invalid("A map of blocks in HBase takes no compare-and-set; use a map of records.")

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""
        row = self._rows.row(key)
        self._require_open()
        wanted = types().TGet(row=row, attributes=READ)
        found = self._pool.call(
            "get", self._rows.table, wanted, repeatable=True, size=min(self._largest, PAGE_BYTES)
        )
        block = block_of(row, found.columnValues)
        return None if block is None else block[0]

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached."""
        self._require_open()
        left = bytes_max
        found: list[tuple[bytes, bytes]] = []
        for key, one in self._each(start, stop, bytes_max, reverse):
            found.append((key, one.value))
            left -= len(key) + len(one.value)
            if left <= 0:
                break
        return found

    def stored_bytes(self) -> int:
        """The bytes of all rows: read once, then counted."""
        self._require_open()
        with self._writing:
            if self._stored_bytes is None:
                rows = lengths(self._pool, self._rows.table, *self._rows.range(None, None))
                self._stored_bytes = sum(size + self._rows.key_bytes for _, size in rows)
            return self._stored_bytes

    def end(self, reason: TMSError) -> None:
        """Raise `reason` from every later call."""
        self._gone = reason

    # -- writing; the caller holds `_writing` --------------------------------------------------

    def _sync(self, stored: list[StoredRow]) -> None:
        """Write the unsynced rows once more, then these rows, synced."""
        earlier = self._tail() if self._inherited else list(self._unsynced.values())
        self._put([*earlier, *stored], synced=True)
        self._unsynced = {}
        self._unsynced_bytes = 0
        self._inherited = False

    def _put(self, stored: list[StoredRow], synced: bool) -> None:
        durability = types().TDurability
        self._writes = True
        try:
            self._announce(max((len(one.value) for one in stored), default=0))
            for some, size in batches(stored, lambda one: len(one.row) + len(one.value)):
                puts = [
                    _put(one, durability.FSYNC_WAL if synced else durability.SYNC_WAL)
                    for one in some
                ]
                self._pool.call("putMultiple", self._rows.table, puts, repeatable=True, size=size)
        except BaseException as exc:
            doubtful = [*self._unsynced.values(), *stored]
            self._doubtful = list({(one.row, one.timestamp): one for one in doubtful}.values())
            self._failure = (
                _again(exc)
                if isinstance(exc, TMSError)
                else StorageUnavailable(f"A write to HBase was interrupted ({type(exc).__name__}).")
            )
            raise

    def _announce(self, size: int) -> None:
        """Make the map's note allow rows of this size."""
        while size > self._row_bytes_max:
            allowed = max(ROW_BYTES_FIRST, 1 << (size - 1).bit_length())
            note = msgspec.structs.replace(read_note(self._note), row_bytes_max=allowed)
            raw = msgspec.json.encode(note)
            if self._names.compare_and_set(self._name, self._note, raw):
                self._note = raw
                self._row_bytes_max = allowed
                break
            found = self._names.get(self._name)
            if found is None:
                raise NotFound(f"The map {self._name.decode()} was dropped by another process.")
            self._row_bytes_max = read_note(found).row_bytes_max
            self._note = found
        self._largest = max(self._largest, size)

    def _tail(self) -> list[StoredRow]:
        """The last rows, which include all unsynced ones of the previous owner."""
        left = UNSYNCED_BYTES_MAX
        found: list[StoredRow] = []
        for _, one in self._each(None, None, UNSYNCED_BYTES_MAX, reverse=True):
            found.append(one)
            left -= len(one.value)
            if left <= 0:
                break
        return found[::-1]

    def _remove(self, gone: list[Any]) -> None:
        for at in range(0, len(gone), _DELETES_PER_CALL):
            some = gone[at : at + _DELETES_PER_CALL]
            self._pool.call("deleteMultiple", self._rows.table, some, repeatable=True)

    # -- parts ---------------------------------------------------------------------------------

    def _each(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool
    ) -> Iterator[tuple[bytes, StoredRow]]:
        """Rows of a range, in pages that fit `bytes_max` as far as their sizes are known."""
        self._renew_note()
        pages = Pages(self._pool, self._rows.table, *self._rows.range(start, stop), reverse)
        plan: Plan | None = None
        left, skipped = bytes_max, 0
        try:
            while not pages.ended:
                room = min(max(left, 1), PAGE_BYTES)
                count, total = self._trusted(room) if plan is None else plan.next(room)
                if not count:  # a few large rows would make all pages small: read lengths first
                    plan = plan or Plan(pages)
                    count, total = plan.next(room)
                    if not count:
                        break
                size = 0
                results = pages.next(count, total)
                if results:  # the caller may use the first of them only
                    self._usual = max(1, sum(map(_bytes_of, results)) // len(results))
                for result in results:
                    key = self._rows.key(result.row)
                    block = None if key is None else block_of(result.row, result.columnValues)
                    if key is None or block is None:
                        skipped += 1
                        continue
                    size += len(block[0])
                    yield key, StoredRow(result.row, block[1], block[0])
                left -= size
        finally:
            if skipped:
                self.foreign_rows += skipped
                _log.warning("foreign rows skipped: map=%s rows=%d", self._name.decode(), skipped)

    def _renew_note(self) -> None:
        """Read the note again: another process may have begun to write larger rows."""
        now_s = self._clock.monotonic_s()
        if self._writes or now_s < self._noted_s + NOTE_S:
            return
        self._noted_s = now_s
        found = self._names.get(self._name)
        if found is not None and found != self._note:
            self._row_bytes_max = read_note(found).row_bytes_max
            self._note = found
            self._largest = max(self._largest, self._row_bytes_max)

    def _trusted(self, room: int) -> tuple[int, int]:
        """The number of rows that fill `room` even if each has the largest size, and their bytes; 0
        if that would be far too few."""
        trusted = max(1, PAGE_BYTES // self._largest)
        wanted = min(room // self._usual + 1, PAGE_ROWS_MAX)
        if wanted > trusted and trusted * self._usual < _SMALL_PAGE_BYTES:
            return 0, 0
        count = min(trusted, wanted)
        return count, min(count * self._usual, PAGE_BYTES)

    def _stored(self, rows: Sequence[MapRow]) -> list[StoredRow]:
        """The rows to write, sorted; the last one of equal keys."""
        values: dict[bytes, Buffer] = {}
        for key, value in rows:
            check_row(key, value)
            if len(value) > BLOCK_BYTES_MAX:
                raise TooLarge(
                    f"A value in HBase's {self._rows.table.decode()} has at most {BLOCK_BYTES_MAX} "
                    f"bytes, this one has {len(value)}."
                )
            values[key] = value
        return [
            StoredRow(self._rows.row(key), self._rows.timestamp(key), bytes(values[key]))
            for key in sorted(values)
        ]

    def _deletion(self, key: bytes) -> Any:
        return types().TDelete(
            row=self._rows.row(key),
            timestamp=self._rows.timestamp(key) + LATER_MAX,
            durability=types().TDurability.FSYNC_WAL,
        )

    def _require_open(self) -> None:
        if self._gone is not None:
            raise _again(self._gone)

    def _require_writable(self) -> None:
        self._require_open()
        if self._failure is not None:
            raise _again(self._failure)


def read_note(raw: bytes) -> MapNote:
    """The note of a map. Raises `DataCorrupt`."""
    try:
        return from_json(raw, MapNote)
    except msgspec.MsgspecError as exc:
        raise DataCorrupt(f"The note of a map is {raw[:200]!r}. Run `tms fsck`.") from exc


def _bytes_of(result: Any) -> int:
    return sum(len(cell.value) for cell in result.columnValues)


def _put(one: StoredRow, durability: int) -> Any:
    cell = types().TColumnValue
    return types().TPut(
        row=one.row,
        columnValues=[
            cell(family=FAMILY, qualifier=name, value=value) for name, value in pieces(one.value)
        ],
        timestamp=one.timestamp,
        durability=durability,
    )


def _again(error: TMSError) -> TMSError:
    return type(error)(error.message)
