"""The store port: named, ordered maps of bytes.

Invariants, held by every engine and checked by one contract suite
(`tests/contracts/store_contract.py`)

* Keys compare as unsigned bytes. Ranges are half open. Keys are 1 to 1,024 bytes, values up to the
  map's `value_bytes_max`, at most 64 MiB.
* A write is visible to every later call when it returns, and as durable as requested; a `synced`
  write makes all earlier writes to the same map durable too. After a crash, all rows of a write
  that did not return may be stored, or none, or, if the store is `shared`, some: the missing ones
  are usually the last in the order of keys, but callers must not rely on it.
* Values are returned as they were written, or an error is raised: damaged bytes are never returned
  (`DataCorrupt`).
* After a failed write the map may refuse every write (`StorageFull`, `StorageUnavailable`) until
  `recover` has made it writable; reads go on wherever possible. Until then it is undecided which
  rows of the failed write are stored; afterwards it is decided for good. So the owner calls
  `recover`, reads the stored rows, and only then writes again.
* A key of a map of blocks is written once, may be overwritten any number of times, may be deleted,
  and is then never written again.
* Safe to call from any thread.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tms.errors import Invalid, TooLarge
from tms.model.backup import ImageFile
from tms.model.message import Buffer
from tms.model.topic import Durability

MapRow = tuple[bytes, Buffer]

KEY_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 64 << 20
NAME_BYTES_MAX = 200
_NAME = re.compile(r"[a-z0-9_-][a-z0-9_.-]*(/[a-z0-9_-][a-z0-9_.-]*)*", re.ASCII)


class Map(Protocol):
    """An ordered map of bytes to bytes."""

    @property
    def value_bytes_max(self) -> int:
        """The largest size of a value in bytes; a larger one is refused with `TooLarge`."""
        ...

    def recover(self) -> None:
        """Make the map writable again after a failed write; does nothing if it is. Raises
        `StorageFull` or `StorageUnavailable` if that is not possible yet. Makes at most about two
        attempts a second, however often it is called."""
        ...

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows. `Durability.NONE` means `WRITTEN`. Without rows, `SYNCED` makes all
        earlier writes durable."""
        ...

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Replace stored rows that have the same keys. A failed `write` or overwrite of these keys
        that has not taken effect yet never will."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""
        ...

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) in key order (descending with `reverse`). The scan ends as soon as
        `bytes_max` bytes of keys and values are reached and not before, so that `is_last` is exact;
        it returns at least one row if there is one. None is an open end."""
        ...

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys; missing ones are ignored. Durable like `synced`."""
        ...

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set `key` to `value` (None removes it) if its value is `expected` (None: absent); False
        if it is not. Synced. Raises `StorageUnavailable` if the outcome is unknown. For a map of
        blocks an engine may refuse it (`Invalid`)."""
        ...

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Reclaim the space of deleted and replaced rows: when it returns, their bytes are no
        longer in the store. The remaining rows stay as they are, durable like `synced`. No other
        thread may write meanwhile, or it waits. `pause` is called now and then, between pieces of
        the work. Does nothing if the engine reclaims space in its own time."""
        ...

    def stored_bytes(self) -> int:
        """Approximate bytes that the map takes in the store."""
        ...


class StoreImage(Protocol):
    """An image of a store at one moment, as the files that restore it: it has every write that had
    returned by then, none that began later, and the rows of one write together."""

    @property
    def files(self) -> Sequence[ImageFile]:
        """The files; the last one completes the restored directory."""
        ...

    def read(self, file: ImageFile, start: int, bytes_max: int) -> bytes:
        """Bytes of a file from `start` on, `bytes_max` of them unless it ends before. Raises
        `StorageUnavailable`, and `NotFound` after `release`."""
        ...

    def release(self) -> None:
        """Release the files. A second call does nothing."""
        ...


class Volume(NamedTuple):
    """The size of a volume in bytes, and how many of them can be written to."""

    total: int
    free: int


class Store(Protocol):
    """Maps by name. A name has parts of `[a-z0-9_.-]`, none with a dot first, joined with `/`; 1 to
    200 bytes in all."""

    @property
    def shared(self) -> bool:
        """True if other processes may write to the store at the same time: then the owner of a map
        has to make sure that it still is."""
        ...

    @property
    def immediate(self) -> Durability:
        """The strongest durability that does not keep the caller waiting."""
        ...

    def open(self, name: str, create: bool) -> Map:
        """The map with this name. With `create` it must not exist (`Conflict`), without it must
        (`NotFound`). All callers share one map. A damaged map raises `DataCorrupt` and is never
        replaced by an empty one."""
        ...

    def drop(self, name: str) -> None:
        """Remove the map and its space; a missing one is ignored. In a `shared` store the space of
        a map of blocks is reclaimed later, and its name is not used again."""
        ...

    def close_maps(self, prefix: str) -> None:
        """Close the maps whose names begin with `prefix`, once calls on them have ended: another
        process may open them. The next `open` opens them again."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        ...

    def healthy(self) -> str | None:
        """None, or a sentence with the reason why the store cannot write."""
        ...

    def warnings(self) -> list[str]:
        """A sentence for each problem of the store that keeps it neither from reading nor from
        writing."""
        ...

    def cleaned_ms(self) -> int | None:
        """Readers that bypass this process may see rows of invalid transactions. Returns a time in
        ms: every row of a transaction that was invalid by then, and wrote its last row before, is
        gone. None if all reading goes through the engine. Raises if the time cannot be found
        out."""
        ...

    def default_retention_ms(self) -> int | None:
        """The retention, as configured in the store, of topics without their own; None if none is
        configured. It may change at any time."""
        ...

    def volume(self) -> Volume | None:
        """The volume that has the data; None if that is unknown."""
        ...

    def image(self) -> StoreImage:
        """An image of the store at a moment during this call; writes wait for milliseconds. Raises
        `Conflict` if this store is not backed up by its files, `StorageUnavailable`,
        `StorageFull`."""
        ...

    def close(self) -> None:
        """Close every map. A second call does nothing."""
        ...


class OwnStore:
    """The answers of a `Store` that only the engine reads and that has no settings of its own."""

    def warnings(self) -> list[str]:
        """Always empty."""
        return []

    def cleaned_ms(self) -> int | None:
        """None: only the engine reads it."""
        return None

    def default_retention_ms(self) -> int | None:
        """None: this store has no configuration."""
        return None

    def volume(self) -> Volume | None:
        """None: this store is in memory."""
        return None


def is_last(page: Sequence[tuple[bytes, bytes]], bytes_max: int) -> bool:
    """True if a scan of `bytes_max` bytes ended because its range did. A page that is full may be
    the last one as well."""
    return sum(len(key) + len(value) for key, value in page) < bytes_max


def pages(
    source: Map, start: bytes | None, stop: bytes | None, bytes_max: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """All rows of [start, stop) in key order, in pages."""
    while page := source.scan(start, stop, bytes_max):
        yield page
        if is_last(page, bytes_max):
            return
        start = page[-1][0] + b"\0"


def check_name(name: str) -> str:
    """The map name itself. Raises `Invalid`."""
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"A map name is 1 to {NAME_BYTES_MAX} of a-z 0-9 _ . - in parts joined with /, and no "
            f"part begins with a dot; got {name[:NAME_BYTES_MAX]!r}."
        )
    return name


def check_row(key: bytes, value: Buffer) -> None:
    """Raises `Invalid` or `TooLarge` for a row that no engine takes."""
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise Invalid(f"A key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(key)}.")
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"A stored value has at most {VALUE_BYTES_MAX} bytes, this one has {len(value)}."
        )


def check_key(key: bytes) -> None:
    """Raises `Invalid` for a key that no engine takes."""
    check_row(key, b"")
