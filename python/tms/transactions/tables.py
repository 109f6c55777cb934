"""The tables of one engine: a map of the store each.

Invariants

* Versions are written before their transaction commits, synced, and are seen only after that.
* Versions are taken back before their transaction is aborted.
* A read sees one moment, however many pages it takes: a snapshot of its transaction, or its own.
  Compaction leaves every version that a read may still see.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from tms.errors import Conflict, Invalid, NotFound, TMSError
from tms.model.keys import TABLES
from tms.model.snapshot import Fate, Snapshot
from tms.model.topic import Durability
from tms.store.base import Map, Store, pages
from tms.transactions.manager import TransactionManager
from tms.transactions.state import TransactionState
from tms.transactions.versions import (
    Version,
    check_key,
    decode,
    encode,
    first_row,
    row_key,
    rows_of,
    unneeded,
    visible,
)

SCAN_BYTES = 256 << 10
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


class Tables:
    """Key-value data of an engine. Thread-safe."""

    def __init__(self, store: Store, manager: TransactionManager) -> None:
        self._store = store
        self._manager = manager
        self._maps: dict[str, Map] = {}
        self._failed: set[str] = set()
        self._bounds: dict[object, int] = {}  # of reads outside of transactions
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let other processes open the maps."""
        self._store.close_maps(TABLES)

    def names(self) -> list[str]:
        """The names of all tables, sorted."""
        return [name.removeprefix(TABLES) for name in self._store.names(TABLES)]

    def snapshot(self, transaction: int) -> Snapshot:
        """The snapshot of a transaction in progress."""
        return self._manager.snapshot(transaction)

    def get(self, table: str, key: bytes, snapshot: Snapshot | None = None) -> bytes | None:
        """The value of a key for a transaction, or as it is committed now."""
        start, stop = rows_of(check_key(key))
        with self._seeing(snapshot) as seen:
            row = next(self._visible(table, start, stop, seen), None)
        return None if row is None else row.value

    def scan(
        self, table: str, start: bytes, stop: bytes | None, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of [start, stop) in the order of the keys; None is an open end. Without
        a transaction's snapshot, as they are committed when the first is asked for."""
        end = None if stop is None else first_row(stop)
        with self._seeing(snapshot) as seen:
            for version in self._visible(table, first_row(start), end, seen):
                assert version.value is not None
                yield version.key, version.value

    def write(self, table: str, transaction: int, values: Mapping[bytes, bytes | None]) -> None:
        """Store versions of a transaction in progress; None deletes."""
        rows = [encode(Version(check_key(key), transaction, v)) for key, v in values.items()]
        if not rows:
            return
        map_ = self._map(table) or self._make(table)
        with self._lock:
            if table in self._failed:
                map_.recover()
                self._failed.discard(table)
        try:
            map_.write(rows, Durability.SYNCED)
        except TMSError:
            self._failed.add(table)
            raise

    def take_back(self, table: str, transaction: int, keys: Iterable[bytes]) -> None:
        """Remove versions of a transaction that will never commit."""
        map_ = self._map(table)
        if map_ is not None:
            map_.recover()
            map_.delete([row_key(key, transaction) for key in keys])

    def compact(self, table: str) -> int:
        """Remove the versions that no reader can see any more; returns how many."""
        map_, count = self._map(table), 0
        if map_ is None:
            return 0
        with self._lock:
            bound = min([self._manager.bound(), *list(self._bounds.values())])
        versions = self._versions(map_, None, None)
        gone: list[bytes] = []
        for version in unneeded(versions, lambda pointer: self._fate(pointer), bound):
            gone.append(row_key(version.key, version.pointer))
            count += 1
            if len(gone) == 1_000:
                map_.delete(gone)
                gone = []
        if gone:
            map_.delete(gone)
        return count

    @contextmanager
    def _seeing(self, snapshot: Snapshot | None) -> Iterator[Snapshot]:
        """The snapshot of a read: a transaction's, or of everything that is committed now."""
        if snapshot is not None:
            yield snapshot
            return
        read = object()
        with self._lock:  # or what it sees is removed before its bound is known
            snapshot, self._bounds[read] = self._manager.look(_as_committed)
        try:
            yield snapshot
        finally:  # no lock: the thread that drops a scan may hold it
            del self._bounds[read]

    def _visible(
        self, table: str, start: bytes, stop: bytes | None, snapshot: Snapshot
    ) -> Iterator[Version]:
        map_ = self._map(table)
        if map_ is None:
            return iter(())

        def sees(pointer: int) -> bool:
            # A snapshot does not name what was lost with the power.
            return self._fate(pointer) is not Fate.SKIPPED and snapshot.is_visible(pointer)

        return visible(self._versions(map_, start, stop), sees)

    def _fate(self, pointer: int) -> Fate:
        return self._manager.fate(pointer, True)

    @staticmethod
    def _versions(rows: Map, start: bytes | None, stop: bytes | None) -> Iterator[Version]:
        for page in pages(rows, start, stop, SCAN_BYTES):
            yield from map(decode, page)

    def _map(self, table: str) -> Map | None:
        map_ = self._maps.get(table)
        if map_ is None:
            if not _NAME.fullmatch(table):
                raise Invalid(
                    f"A table is named with 1 to 64 of a-z 0-9 _ -, the first one a letter or "
                    f"digit; got {table[:80]!r}."
                )
            try:
                map_ = self._maps[table] = self._store.open(TABLES + table, create=False)
            except NotFound:
                return None
        return map_

    def _make(self, table: str) -> Map:
        try:
            map_ = self._store.open(TABLES + table, create=True)
        except Conflict:  # another thread was first
            map_ = self._store.open(TABLES + table, create=False)
        self._maps[table] = map_
        return map_


def _as_committed(state: TransactionState) -> tuple[Snapshot, int]:
    """The snapshot of everything that is committed, and a pointer up to which everything is
    decided."""
    in_progress = tuple(state.in_progress)
    bound = in_progress[0] - 1 if in_progress else state.last_pointer
    return Snapshot(0, state.last_pointer, (), in_progress), bound
