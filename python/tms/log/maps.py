"""The maps of one partition, which its log opens as long as the partition is this process's.

Invariants

* Once it is released none is opened: where a map can be open in one process only, the next owner
  waits for nobody who still reads.
"""

import threading
from typing import Protocol

from tms.errors import TMSError, again
from tms.store.base import Map


class MapStore(Protocol):
    """What a log needs of the store."""

    @property
    def shared(self) -> bool:
        """Whether other processes can reach it."""
        ...

    def open(self, name: str, create: bool) -> Map:
        """See `Store.open`."""
        ...

    def drop(self, name: str) -> None:
        """See `Store.drop`."""
        ...

    def names(self, prefix: str) -> list[str]:
        """See `Store.names`."""
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
        """Whether other processes can reach them."""
        return self._store.shared

    def open(self, name: str, create: bool) -> Map:
        """See `Store.open`. Raises the reason once it is released."""
        with self._lock:
            if self._released is not None:
                raise again(self._released)
            return self._store.open(name, create)

    def drop(self, name: str) -> None:
        """See `Store.drop`."""
        self._store.drop(name)

    def names(self, prefix: str) -> list[str]:
        """See `Store.names`."""
        return self._store.names(prefix)

    def release(self, reason: TMSError) -> None:
        """Nothing is opened from now on; who is at it has done it."""
        with self._lock:
            self._released = reason
