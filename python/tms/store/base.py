"""The store port: named, ordered maps of bytes.

Invariants, held by every engine and checked by one contract suite
(`tests/contracts/store_contract.py`)

* Keys compare as unsigned bytes. Ranges are half open. Keys are 1 to 1,024 bytes, values up to the
  map's `value_bytes_max`, at most 64 MiB.
* A write is visible to every later call when it returns, and as durable as was asked; a `synced`
  write makes all earlier writes to the same map durable too. After a crash, of a write that never
  returned all rows may be there, or none, or, where the store is `shared`, some: those that are
  missing are rather the last in the order of keys, but need not be. Nobody may rely on more.
* Values come back as they were written or an error is raised: damaged bytes are never returned
  (`DataCorrupt`).
* After a failed write the map may refuse every write (`StorageFull`, `StorageUnavailable`) until
  `recover` has made it writable; reads go on wherever possible. Whether the rows of the failed
  write are there is unknown until then, and decided for good after it: so the owner calls
  `recover`, looks at what is stored, and only then writes again.
* A key of a map of blocks is written once, perhaps overwritten, often if need be, perhaps deleted,
  and then never written again.
* Safe to call from any thread.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from tms.errors import Invalid, TooLarge
from tms.model.backup import ImageFile
from tms.model.message import Buffer
from tms.model.topic import Durability

Row = tuple[bytes, Buffer]

KEY_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 64 << 20
NAME_BYTES_MAX = 200
_NAME = re.compile(r"[a-z0-9_-][a-z0-9_.-]*(/[a-z0-9_-][a-z0-9_.-]*)*", re.ASCII)


class Map(Protocol):
    """An ordered map of bytes to bytes."""

    @property
    def value_bytes_max(self) -> int:
        """How large a value can be; a larger one is refused with `TooLarge`."""
        ...

    def recover(self) -> None:
        """Make the map writable again after a failed write; does nothing when it is. Raises
        `StorageFull` or `StorageUnavailable` when that cannot be done yet; tries at most about
        twice a second, however often called."""
        ...

    def write(self, rows: Sequence[Row], durability: Durability) -> None:
        """Store these rows. `Durability.NONE` is taken as `WRITTEN`. No rows with `SYNCED`: only
        make everything before durable."""
        ...

    def overwrite(self, rows: Sequence[Row], durability: Durability) -> None:
        """Store rows in place of stored ones with the same keys. A `write` of these keys that took
        no effect yet, because it failed, takes none any more, nor does an earlier overwriting."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when there is none."""
        ...

    def scan(
        self,
        start: bytes | None,
        stop: bytes | None,
        bytes_max: int,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) in key order (descending with `reverse`), ending once `bytes_max`
        bytes of keys and values are reached and not before, so that `is_last` is exact; at least
        one row if there is one. None is an open end."""
        ...

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys; missing ones are ignored. Durable like `synced`."""
        ...

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set `key` to `value` (None removes it) if it is `expected` now (None: absent); False if
        not. Synced. `StorageUnavailable` when that is unknown. On a map of blocks an engine may
        refuse it (`Invalid`)."""
        ...

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Give back what rows took that were deleted or replaced: when it returns, their bytes are
        no more in the store. The rows stay as they are, durable like `synced`; nobody else may
        write meanwhile, or waits. `pause` is called now and then, between pieces of the work.
        Where the engine does it in its own time nothing happens."""
        ...

    def stored_bytes(self) -> int:
        """About how many bytes the map takes in the store."""
        ...


class StoreImage(Protocol):
    """A store as it was at one moment, as the files that bring it back: every write that had
    returned then is in it, none that began later, and the rows of one write together."""

    @property
    def files(self) -> Sequence[ImageFile]:
        """The files; the last one makes a directory with all of them whole."""
        ...

    def read(self, file: ImageFile, start: int, bytes_max: int) -> bytes:
        """Bytes of a file from `start` on, `bytes_max` of them unless it ends before. Raises
        `StorageUnavailable`, and `NotFound` after `release`."""
        ...

    def release(self) -> None:
        """Let go of the files. A second call does nothing."""
        ...


class Store(Protocol):
    """Maps by name. A name is parts of `[a-z0-9_.-]`, none with a dot first, joined with `/`; 1 to
    200 bytes in all."""

    @property
    def shared(self) -> bool:
        """Whether other processes may write to the same store at the same time: then the owner of
        a map has to make sure that it still is."""
        ...

    @property
    def immediate(self) -> Durability:
        """The strongest durability that it gives without keeping the caller waiting."""
        ...

    def open(self, name: str, create: bool) -> Map:
        """The map with this name. With `create` it must not exist, without it must (`NotFound`,
        `Conflict`); a map that is open already is shared. A damaged map raises `DataCorrupt` and
        is never replaced by an empty one."""
        ...

    def drop(self, name: str) -> None:
        """Remove the map and its space; a missing one is ignored. In a `shared` store the space of
        a map of blocks comes back later, and its name is not used again."""
        ...

    def let_go(self, prefix: str) -> None:
        """Let go of maps whose names begin with `prefix`, once calls on them have ended: another
        process may open them. They are opened anew when they are asked for."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        ...

    def healthy(self) -> str | None:
        """None, or a sentence that says what keeps the store from writing."""
        ...

    def warnings(self) -> list[str]:
        """Sentences that say what is wrong with the store although it reads and writes."""
        ...

    def cleaned_ms(self) -> int | None:
        """Whoever reads the store without this process may meet what transactions wrote that are
        invalid. The time up to which that is over: of a transaction that was invalid then, and
        wrote its last before, nothing is left. None: all reading goes through the engine. Raises
        when that cannot be found out."""
        ...

    def default_retention_ms(self) -> int | None:
        """How long whoever set up the store wants messages kept of topics that say nothing of it;
        None: it was not said. It may change at any time."""
        ...

    def image(self) -> StoreImage:
        """The store as it is at a moment during this call; writing waits for milliseconds. Raises
        `Conflict` where this is not the way to keep it, `StorageUnavailable`, `StorageFull`."""
        ...

    def close(self) -> None:
        """Close every map. A second call does nothing."""
        ...


def is_last(page: Sequence[tuple[bytes, bytes]], bytes_max: int) -> bool:
    """Whether a scan of `bytes_max` bytes ended because its range did. One that was full may have
    been the last as well."""
    return sum(len(key) + len(value) for key, value in page) < bytes_max


def pages(
    source: Map, start: bytes | None, stop: bytes | None, bytes_max: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """All rows of [start, stop) in key order, some at a time."""
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
