"""A store around another one that fails as scripted: for tests and simulations.

Invariants

* Deterministic: what fails is scripted by counting calls, never by time or chance; a crash that
  keeps a random part of the unsynced writes takes its `Random` from the caller.
* A fault looks like the real one: a failed write was stored or not, and the map then refuses writes
  until `recover`, which makes durable whatever is there, as reopening a LevelDB does.
* Only what is written through this store is undone by `crash`; creating and dropping maps is
  durable at once.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from tms.errors import DataCorrupt, StorageFull, StorageUnavailable, TMSError
from tms.model.topic import Durability
from tms.store.base import Map, MapRow, Store, StoreImage, Volume

Undo = list[tuple[bytes, bytes | None]]  # what the keys of one write held before it
CRASHED = "The store has crashed; open what `crash` returned."


@dataclass(slots=True)
class _Fault:
    """The outcome of a write that is `countdown` writes away."""

    countdown: int
    stored: bool
    prefix: str
    refusals: int


class FaultyStore:
    """Maps of `inner` that fail on demand.

    `before(operation, map name)` is called ahead of every operation on a map: to count, to block on
    an event, to move a clock, or to raise.
    """

    def __init__(
        self, inner: Store, before: Callable[[str, str], None] = lambda operation, name: None
    ) -> None:
        self.inner = inner
        self.before = before
        self.writes = 0
        self.crashed = False
        self.full = False
        self.corrupt: set[tuple[str, bytes]] = set()
        self._lock = threading.RLock()
        self._maps: dict[str, FaultyMap] = {}
        self._faults: list[_Fault] = []

    def fail_write(self, nth: int, *, stored: bool, prefix: str = "", refusals: int = 0) -> None:
        """Let the nth write from now on (1 is the next) to maps named `prefix…` fail.

        If `stored`, its rows are there nevertheless; `recover` fails `refusals` times before it
        succeeds. Deletions and successful comparisons count as writes.
        """
        with self._lock:
            self._faults.append(_Fault(nth, stored, prefix, refusals))

    def fill(self) -> None:
        """Let every write and `recover` raise `StorageFull` until `release`."""
        self.full = True

    def release(self) -> None:
        """Let writes succeed again, once their maps have recovered."""
        self.full = False

    def heal(self) -> None:
        """End all faults; every map takes writes again."""
        with self._lock:
            self._faults.clear()
            self.full = False
            for one in self._maps.values():
                one.heal()

    def corrupt_value(self, name: str, key: bytes) -> None:
        """Let every read of this row raise `DataCorrupt`."""
        self.corrupt.add((name, key))

    def crash(self, random: Random | None = None) -> Store:
        """Lose the unsynced writes, as a power loss does; returns the inner store, to be opened
        anew.

        With `random` each map keeps a random number of the first of its unsynced writes.
        """
        with self._lock:
            self.crashed = True
            for _, one in sorted(self._maps.items()):
                one.lose(0 if random is None else random.randint(0, len(one.undo)))
            return self.inner

    @property
    def shared(self) -> bool:
        """True if the inner store is shared."""
        return self.inner.shared

    @property
    def immediate(self) -> Durability:
        """The durability of writes of the inner store."""
        return self.inner.immediate

    def open(self, name: str, create: bool) -> "FaultyMap":
        """The map with this name, around the inner one."""
        with self._lock:
            self.enter("open", name)
            inner = self.inner.open(name, create)
            found = self._maps.get(name)
            if found is None:
                found = self._maps[name] = FaultyMap(self, name, inner)
            return found

    def drop(self, name: str) -> None:
        """Remove the map."""
        with self._lock:
            self.enter("drop", name)
            self.inner.drop(name)
            self._maps.pop(name, None)

    def close_maps(self, prefix: str) -> None:
        """Close the maps of the inner store."""
        self.inner.close_maps(prefix)

    def image(self) -> StoreImage:
        """The image of the inner store."""
        return self.inner.image()

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        self.enter("names", prefix)
        return self.inner.names(prefix)

    def healthy(self) -> str | None:
        """The reason why the store does not take writes: full, or a map that did not recover; None
        without one."""
        if self.full:
            return "The disk is full."
        hopeless = (one.hopeless for one in list(self._maps.values()))
        return next((reason for reason in hopeless if reason is not None), self.inner.healthy())

    def warnings(self) -> list[str]:
        """The warnings of the inner store."""
        return self.inner.warnings()

    def cleaned_ms(self) -> int | None:
        """The time up to which the inner store is clean; None if no reader bypasses the engine."""
        return self.inner.cleaned_ms()

    def default_retention_ms(self) -> int | None:
        """The default retention of the inner store."""
        return self.inner.default_retention_ms()

    def volume(self) -> Volume | None:
        """The volume of the inner store."""
        return self.inner.volume()

    def close(self) -> None:
        """Close the inner store; after a crash the opener of its successor does that."""
        if not self.crashed:
            self.inner.close()

    def enter(self, operation: str, name: str) -> None:
        """Begin an operation: every operation calls this first."""
        if self.crashed:
            raise StorageUnavailable(CRASHED)
        self.before(operation, name)

    def next_fault(self, name: str) -> _Fault | None:
        """Count one write to this map; the fault that is due."""
        with self._lock:
            self.writes += 1
            due = None
            for fault in [one for one in self._faults if name.startswith(one.prefix)]:
                fault.countdown -= 1
                if fault.countdown == 0:
                    self._faults.remove(fault)
                    due = due or fault
            return due


class FaultyMap:
    """A map of a `FaultyStore`."""

    def __init__(self, store: FaultyStore, name: str, inner: Map) -> None:
        self.undo: list[Undo] = []
        self.hopeless: str | None = None
        self._store = store
        self._name = name
        self._inner = inner
        self._lock = threading.RLock()
        self._failure: TMSError | None = None
        self._refusals = 0

    @property
    def value_bytes_max(self) -> int:
        """The limit of the inner map."""
        return self._inner.value_bytes_max

    def recover(self) -> None:
        """Make the map writable again, unless the script lets this fail."""
        with self._lock:
            self._store.enter("recover", self._name)
            if self._failure is None:
                self._inner.recover()
                return
            if self._store.full:
                self._failure = StorageFull("The disk is full.")
            elif self._refusals:
                self._refusals -= 1
            else:
                self.heal()
                return
            self.hopeless = self._failure.message
            raise self._fail(self._failure)

    def heal(self) -> None:
        """Take writes again."""
        if self._failure is not None:
            self.undo = []
        self._failure = self.hopeless = None
        self._refusals = 0

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows, or fail as scripted."""
        self._write("write", self._inner.write, rows, durability)

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Replace these rows, or fail as scripted."""
        self._write("overwrite", self._inner.overwrite, rows, durability)

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, or fail as scripted."""
        wanted = list(keys)
        with self._lock:
            self._enter_writing("delete")
            self._change(wanted, lambda: self._inner.delete(wanted), synced=bool(wanted))

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set `key` if it is `expected` now, or fail as scripted."""
        with self._lock:
            self._enter_writing("compare_and_set")
            if self._inner.get(key) != expected:
                return False
            self._change(
                [key], lambda: self._inner.compare_and_set(key, expected, value), synced=True
            )
            return True

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`; `DataCorrupt` as scripted."""
        self._store.enter("get", self._name)
        self._check([key])
        return self._inner.get(key)

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop); `DataCorrupt` as scripted."""
        self._store.enter("scan", self._name)
        rows = self._inner.scan(start, stop, bytes_max, reverse)
        self._check([key for key, _ in rows])
        return rows

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Reclaim space, or fail as scripted."""
        with self._lock:
            self._enter_writing("reclaim")
            self._change([], lambda: self._inner.reclaim(pause), synced=True)

    def stored_bytes(self) -> int:
        """The size of the inner map."""
        return self._inner.stored_bytes()

    def lose(self, kept: int) -> None:
        """Undo the unsynced writes, except for the first `kept` of them."""
        with self._lock:
            for undo in reversed(self.undo[kept:]):
                self._inner.delete([key for key, value in undo if value is None])
                self._inner.write(
                    [(key, value) for key, value in undo if value is not None], Durability.SYNCED
                )
            self.undo = []

    def _enter_writing(self, operation: str) -> None:
        self._store.enter(operation, self._name)
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def _write(
        self,
        operation: str,
        write: Callable[[Sequence[MapRow], Durability], None],
        rows: Sequence[MapRow],
        durability: Durability,
    ) -> None:
        with self._lock:
            self._enter_writing(operation)
            self._change(
                [key for key, _ in rows],
                lambda: write(rows, durability),
                durability is Durability.SYNCED,
            )

    def _change(self, keys: list[bytes], change: Callable[[], object], synced: bool) -> None:
        if not keys and not synced:
            return
        fault = self._store.next_fault(self._name)
        if self._store.full:
            raise self._fail(StorageFull("The disk is full."))
        if fault is None or fault.stored:
            self.undo.append([(key, self._inner.get(key)) for key in dict.fromkeys(keys)])
            change()
            if synced and fault is None:
                self.undo = []
        if fault is not None:
            self._refusals = fault.refusals
            raise self._fail(StorageUnavailable("The disk failed; was it written? Unknown."))

    def _fail(self, error: TMSError) -> TMSError:
        self._failure = error
        return type(error)(error.message)

    def _check(self, keys: list[bytes]) -> None:
        for key in keys:
            if (self._name, key) in self._store.corrupt:
                raise DataCorrupt(f"The row {key.hex()} of the map {self._name} is damaged.")
