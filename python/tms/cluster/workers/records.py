"""The map `metadata` of a data directory, served by the supervisor to its workers.

    worker:  get ──▶ remembered, if no record has changed since ──▶ else asked for
             all else ──────────────────────────────────────────▶ asked for

Invariants

* Each change is one step with its count in memory that all of them share, and is answered after it.
  So a value is remembered with the count of the moment at which it was read, and is true as long as
  the count is the same: a read after a change was acknowledged, or after another read saw it, sees
  it.
* A request without an answer may have been carried out (`StorageUnavailable`).
"""

import ctypes
import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from tms.cluster.workers.frames import Frames
from tms.errors import StorageUnavailable, TMSError, Unavailable, from_code
from tms.model.topic import Durability, parse_durability
from tms.store.base import VALUE_BYTES_MAX, Map, MapRow

REMEMBERED_MAX = 100_000


class RecordRequest(msgspec.Struct, array_like=True):
    """A request of a worker to the map of records: a method and its arguments."""

    method: str
    given: list[Any]


class RecordAnswer(msgspec.Struct, array_like=True):
    """The answer to a worker: the number of changes by then, and a value or an error (code,
    message, details)."""

    changes: int
    value: Any = None
    error: tuple[str, str, dict[str, Any]] | None = None


class ChangeCount:
    """A count in memory that processes share; one of them moves it. `descriptor` is inherited."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("tms-changes")
            os.ftruncate(descriptor, mmap.PAGESIZE)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._count = ctypes.c_uint64.from_buffer(self._memory)  # read and written at once

    @property
    def now(self) -> int:
        """The number of changes so far."""
        return self._count.value

    def move(self) -> None:
        """Count a change. Only the supervisor calls it, one thread at a time."""
        self._count.value += 1


class RecordServer:
    """Does with the map what workers ask for. Thread-safe."""

    def __init__(self, records: Map, changes: ChangeCount) -> None:
        self._records = records
        self._changes = changes
        self._lock = threading.Lock()

    def answer(self, request: RecordRequest) -> RecordAnswer:
        """The answer to a request of a worker."""
        value, error = None, None
        with self._lock:
            try:
                value = _DO[request.method](self._records, *request.given)
            except TMSError as raised:
                error = raised.code, raised.message, raised.details
            if request.method not in _READS:
                self._changes.move()
            return RecordAnswer(self._changes.now, value, error)

    def serve(self, frames: Frames) -> None:
        """Answer a worker until it goes."""
        try:
            while True:
                frames.send(self.answer(frames.receive(RecordRequest)))
        except Unavailable:
            frames.close()


def _write(records: Map, rows: list[tuple[bytes, bytes]], durability: str) -> None:
    records.write(rows, parse_durability(durability))


def _overwrite(records: Map, rows: list[tuple[bytes, bytes]], durability: str) -> None:
    records.overwrite(rows, parse_durability(durability))


def _reclaim(records: Map) -> None:
    records.reclaim()


_READS: dict[str, Callable[..., Any]] = {
    "get": lambda records, key: records.get(key),
    "scan": lambda records, *given: records.scan(*given),
    "stored_bytes": lambda records: records.stored_bytes(),
}
_DO: dict[str, Callable[..., Any]] = _READS | {
    "write": _write,
    "overwrite": _overwrite,
    "delete": lambda records, keys: records.delete(keys),
    "compare_and_set": lambda records, *given: records.compare_and_set(*given),
    "recover": lambda records: records.recover(),
    "reclaim": _reclaim,
}


class ServedRecords:
    """The map as a worker sees it; see `Map`. `connect` makes a connection to the supervisor.
    Thread-safe."""

    value_bytes_max = VALUE_BYTES_MAX

    def __init__(self, connect: Callable[[], socket.socket], changes: ChangeCount) -> None:
        self._connect = connect
        self._changes = changes
        self._idle: deque[Frames] = deque()
        self._remembered: tuple[int, dict[bytes, bytes | None]] = (-1, {})

    def remembers(self, key: bytes) -> bool:
        """True if `get` of this key needs no request."""
        count, values = self._remembered
        return count == self._changes.now and key in values

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when there is none."""
        count, values = self._remembered
        if count == self._changes.now and key in values:
            return values[key]
        count, value = self._ask("get", key)
        found: bytes | None = value
        before, values = self._remembered
        if before != count or len(values) >= REMEMBERED_MAX:
            values = {}
            self._remembered = count, values
        values[key] = found
        return found

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Rows of [start, stop) until `bytes_max` is reached."""
        _, rows = self._ask("scan", start, stop, bytes_max, reverse)
        return [(key, value) for key, value in rows]

    def stored_bytes(self) -> int:
        """About how many bytes the map takes."""
        size: int = self._ask("stored_bytes")[1]
        return size

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Store these rows."""
        self._ask("write", [(key, bytes(value)) for key, value in rows], durability)

    def overwrite(self, rows: Sequence[MapRow], durability: Durability) -> None:
        """Write rows; as `write`."""
        self._ask("overwrite", [(key, bytes(value)) for key, value in rows], durability)

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, synced."""
        self._ask("delete", list(keys))

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Set or remove `key` if it is `expected` now; synced."""
        done: bool = self._ask("compare_and_set", key, expected, value)[1]
        return done

    def recover(self) -> None:
        """Make the map writable again."""
        self._ask("recover")

    def reclaim(self, pause: Callable[[], None] = lambda: None) -> None:
        """Give back what deleted rows took."""
        self._ask("reclaim")

    def _ask(self, name: str, *given: object) -> tuple[int, Any]:
        try:
            frames = self._idle.pop()
        except IndexError:
            frames = Frames(self._connect())
        try:
            frames.send(RecordRequest(name, list(given)))
            answer = frames.receive(RecordAnswer)
        except BaseException as exc:
            frames.close()
            if isinstance(exc, Unavailable):
                raise StorageUnavailable(exc.message, outcome="unknown") from exc
            raise
        self._idle.append(frames)
        if answer.error is not None:
            raise from_code(*answer.error)
        return answer.changes, answer.value
