"""A disk: memory that outlives its closing, and that keeps what was replaced or deleted until its
space is reclaimed, as a file does to which rows are only added.

Invariants

* Readers of the store never see what was replaced; `holds` does.
* A text that is a part of another one is not held where that one stands.
* What a power loss takes was never on the disk.
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
        """Forget what was replaced."""
        super().reclaim(pause)
        self._replaced = []

    def cells(self) -> Iterator[bytes]:
        """All values that are somewhere in it."""
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
        """As any store."""
        found = super().open(name, create)
        if create:
            found = self._maps[name] = DiskMap(lambda: self._keeps)
        return found

    def close(self) -> None:
        """Keep everything."""

    @contextmanager
    def losing(self) -> Iterator[None]:
        """While this lasts, what is undone was never there."""
        self._keeps = False
        try:
            yield
        finally:
            self._keeps = True

    def holds(self, texts: Collection[str]) -> tuple[str, ...]:
        """Those of these texts that stand somewhere in it."""
        maps = [one for _, one in sorted(self._maps.items()) if isinstance(one, DiskMap)]
        cells = b"\0".join(cell for one in maps for cell in one.cells())
        held: set[str] = set()
        for text in sorted(texts, key=len, reverse=True):
            if text.encode() in cells:
                held.add(text)
                cells = cells.replace(text.encode(), b"\0")  # whose parts are not held by this
        return tuple(text for text in texts if text in held)
