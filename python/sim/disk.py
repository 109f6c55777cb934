"""A disk: memory that outlives its closing, and that keeps replaced and deleted values until their
space is reclaimed, as an append-only file does.

Invariants

* Readers of the store never see replaced values; `holds` does.
* A text that is a substring of another text is not held where only the longer one stands.
* Writes that a power loss undoes were never on the disk.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from tms.store.memory import MemoryMap, MemoryStore


class DiskMap(MemoryMap):
    """A map whose old bytes stay until it is reclaimed."""

    def __init__(self, keeps: Callable[[], bool]) -> None:
        super().__init__()
        self._keeps = keeps
        self._replaced: list[bytes] = []

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Forget the replaced values."""
        super().reclaim(pause)
        self._replaced = []

    def cells(self) -> Iterator[bytes]:
        """All values on the disk, also the replaced ones."""
        yield from self._rows.values()
        yield from self._replaced

    def _put(self, key: bytes, value: bytes) -> None:
        self._keep(key)
        super()._put(key, value)

    def _remove(self, key: bytes) -> None:
        self._keep(key)
        super()._remove(key)

    def _keep(self, key: bytes) -> None:
        old = self._rows.get(key)
        if old is not None and self._keeps():
            self._replaced.append(old)


class Disk(MemoryStore):
    """Maps by name that outlive the closing of the store."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__(shared=shared)
        self._keeps = True

    def open(self, name: str, create: bool) -> MemoryMap:
        """The map with this name, created if `create` says so."""
        found = super().open(name, create)
        if create:
            found = self._maps[name] = DiskMap(lambda: self._keeps)
        return found

    def close(self) -> None:
        """Keep everything."""

    @contextmanager
    def losing(self) -> Iterator[None]:
        """While this lasts, undone writes leave nothing on the disk."""
        self._keeps = False
        try:
            yield
        finally:
            self._keeps = True

    def holds(self, texts: Collection[str]) -> tuple[str, ...]:
        """The texts that stand somewhere on the disk."""
        maps = [one for _, one in sorted(self._maps.items()) if isinstance(one, DiskMap)]
        cells = b"\0".join(cell for one in maps for cell in one.cells())
        held: set[str] = set()
        for text in sorted(texts, key=len, reverse=True):
            if text.encode() in cells:
                held.add(text)
                cells = cells.replace(text.encode(), b"\0")  # excludes substrings of `text`
        return tuple(text for text in texts if text in held)
