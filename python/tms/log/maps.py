"""The maps of one partition. Its log opens them while this process owns the partition.

Invariants

* After the release no map is opened: where a map can be open in one process only, the next owner
  waits for no reader of this process.
"""

import threading
from typing import Protocol

from tms.errors import TMSError, again
from tms.store.base import Map


class MapStore(Protocol):
    """The part of the store port that a log needs."""

    @property
    def shared(self) -> bool:
        """True if other processes can reach the store."""
        ...

    def open(self, name: str, create: bool) -> Map:
        """As `Store.open`."""
        ...

    def drop(self, name: str) -> None:
        """As `Store.drop`."""
        ...

    def names(self, prefix: str) -> list[str]:
        """As `Store.names`."""
        ...


class PartitionMaps:
    """The maps of a partition. Thread-safe."""

    __slots__ = ("_lock", "_released", "_store")

    def __init__(self, store: MapStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._released: TMSError | None = None

    @property
    def shared(self) -> bool:
        """True if other processes can reach the maps."""
        return self._store.shared

    def open(self, name: str, create: bool) -> Map:
        """As `Store.open`. Raises the reason of the release after it."""
        with self._lock:
            if self._released is not None:
                raise again(self._released)
            return self._store.open(name, create)

    def drop(self, name: str) -> None:
        """As `Store.drop`."""
        self._store.drop(name)

    def names(self, prefix: str) -> list[str]:
        """As `Store.names`."""
        return self._store.names(prefix)

    def release(self, reason: TMSError) -> None:
        """Refuse to open maps from now on. Returns when calls under way have ended."""
        with self._lock:
            self._released = reason
