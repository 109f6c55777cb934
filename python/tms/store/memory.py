"""A store in memory: the reference for every engine, and the store of tests that need no disk.

Invariants

* A map is a dict and the sorted list of its keys. Keys that only grow, as those of a segment do,
  cost an append.
* Values are copied when they are written, so a caller may reuse its buffer.
* Nothing survives the process: all durabilities are equal.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from tms.errors import Closed, Conflict, NotFound, TMSError
from tms.model.topic import Durability
from tms.store.base import (
    VALUE_BYTES_MAX,
    MapRow,
    OwnStore,
    StoreImage,
    check_key,
    check_name,
    check_row,
)

_CLOSED = "The memory store is closed; make a new one."


class MemoryMap:
    """An ordered map in memory."""

    value_bytes_max = VALUE_BYTES_MAX

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: list[bytes] = []
        self._rows: dict[bytes, bytes] = {}
        self._bytes = 0
        self._gone: TMSError | None = None

    def recover(self) -> None:
        """Nothing to do: memory takes every write."""

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows, all or nothing."""
        for key, value in rows:
            check_row(key, value)
        with self._lock:
            self._require_open()
            for key, value in rows:
                self._put(key, bytes(value))

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """As `write`."""
        self.write(rows, durability)

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""
        with self._lock:
            self._require_open()
            return self._rows.get(key)

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached."""
        with self._lock:
            self._require_open()
            low = 0 if start is None else bisect_left(self._keys, start)
            high = len(self._keys) if stop is None else bisect_left(self._keys, stop)
            found: list[tuple[bytes, bytes]] = []
            size = 0
            for index in range(high - 1, low - 1, -1) if reverse else range(low, high):
                key = self._keys[index]
                value = self._rows[key]
                found.append((key, value))
                size += len(key) + len(value)
                if size >= bytes_max:
                    break
            return found

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys."""
        wanted = list(keys)
        for key in wanted:
            check_key(key)
        with self._lock:
            self._require_open()
            for key in wanted:
                self._remove(key)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set or remove `key` if it is `expected` now."""
        check_row(key, value or b"")
        with self._lock:
            self._require_open()
            if self._rows.get(key) != expected:
                return False
            if value is None:
                self._remove(key)
            else:
                self._put(key, bytes(value))
            return True

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Nothing to do: replaced rows are gone."""
        with self._lock:
            self._require_open()

    def stored_bytes(self) -> int:
        """The bytes of all keys and values."""
        with self._lock:
            return self._bytes

    def end(self, reason: TMSError) -> None:
        """Raise `reason` from every later call."""
        with self._lock:
            self._gone = reason

    def _require_open(self) -> None:
        if self._gone is not None:
            raise type(self._gone)(self._gone.message)

    def _put(self, key: bytes, value: bytes) -> None:
        old = self._rows.get(key)
        if old is None:
            if not self._keys or key > self._keys[-1]:
                self._keys.append(key)
            else:
                self._keys.insert(bisect_left(self._keys, key), key)
            self._bytes += len(key)
        else:
            self._bytes -= len(old)
        self._rows[key] = value
        self._bytes += len(value)

    def _remove(self, key: bytes) -> None:
        old = self._rows.pop(key, None)
        if old is not None:
            del self._keys[bisect_left(self._keys, key)]
            self._bytes -= len(key) + len(old)


class MemoryStore(OwnStore):
    """Maps in memory, by name. `shared` is for tests of owners that share a store."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.immediate = Durability.NONE if shared else Durability.WRITTEN
        self._lock = threading.Lock()
        self._maps: dict[str, MemoryMap] = {}
        self._closed = False

    def open(self, name: str, create: bool) -> MemoryMap:
        """The map with this name; raises `NotFound` or `Conflict`."""
        check_name(name)
        with self._lock:
            self._require_open()
            found = self._maps.get(name)
            if create:
                if found is not None:
                    raise Conflict(f"The map {name} exists already.")
                found = self._maps[name] = MemoryMap()
            elif found is None:
                raise NotFound(f"There is no map {name}.")
            return found

    def drop(self, name: str) -> None:
        """Remove the map."""
        check_name(name)
        with self._lock:
            self._require_open()
            dropped = self._maps.pop(name, None)
        if dropped is not None:
            dropped.end(NotFound(f"The map {name} was dropped."))

    def close_maps(self, prefix: str) -> None:
        """Nothing to do: all users share the maps."""

    def image(self) -> StoreImage:
        """Raises `Conflict`: there are no files."""
        raise Conflict("What is in memory is in no file.")

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        with self._lock:
            self._require_open()
            return sorted(name for name in self._maps if name.startswith(prefix))

    def healthy(self) -> str | None:
        """Always None: memory takes every write."""
        return None

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._closed = True
            maps, self._maps = list(self._maps.values()), {}
        for one in maps:
            one.end(Closed(_CLOSED))

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(_CLOSED)
