"""A map's large values, each written once, in a file beside the database.

LevelDB writes a value twice, to a log and to a table, and computes a checksum in software each
time. So a write with a large value goes to this file, and the database gets rows that point to it.

    values      frames, one for each write, one behind the other; big-endian

    frame        0  4  magic "TMSV"
                 4  4  rows
                 8  8  bytes of the frame
                16  4  bytes of the table
                20  4  CRC-32C of the table and of bytes 0 to 20
                24  …  table; of each row: key length 2, value length 4, the value's CRC-32C 4, key
                 …  …  the values, one behind the other

    in the database
    row          0  1  0: the value follows        1: it is in the file
                 1  8  its place   9  4  its length   13  4  its CRC-32C
    mark         0  8  end of the frames whose rows are in the database     under the empty key
                 8  8  everything before this was synced

Invariants

* A frame counts when it is whole: one that a crash cut off does not exist.
* Rows go to the database after their frame, with the mark in the same step. So frames behind the
  mark are whole and without rows, or torn; opening adds the former and ignores the latter.
* Synced bytes are whole, or damaged (`DataCorrupt`). Between `synced` and the end a power loss may
  have removed any bytes, of the file or of the database; there, the first frame that is not whole
  is the end.
* Opening changes nothing in the file; the first write cuts off the bytes behind the end.
* After a failed sync the bytes on the disk are unknown: `rewrite` writes them again.
* The space of a deleted or replaced value is reclaimed when the map is dropped, or its rows are
  copied to a new one (`LevelDBMap.reclaim`).
"""

import os
import secrets
import shutil
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
from msgspec import Raw

from tms.errors import DataCorrupt
from tms.model.message import Buffer

VALUES = "values"  # the name of the file
MARK_KEY = b""
SMALL, POINTER = b"\0", b"\1"
_MAGIC = b"TMSV"
_HEAD = struct.Struct(">4sIQII")
_ENTRY = struct.Struct(">HII")
_POINTER = struct.Struct(">BQII")
_MARK = struct.Struct(">QQ")
_PARTS_MAX = 1_000  # of one writev
_CHUNK = 8 << 20

PointerRow = tuple[bytes, bytes]


class ValuesEnd(NamedTuple):
    """The counted bytes of a file of values. Of two with the same origin, the longer one begins
    with the shorter one."""

    bytes: int
    origin: str


class _Value(NamedTuple):
    key: bytes
    place: int
    length: int
    crc: int

    def row(self) -> PointerRow:
        return self.key, _POINTER.pack(POINTER[0], self.place, self.length, self.crc)


class ValueFile:
    """The open file of one map. Reading is thread-safe; writing needs the map's write lock."""

    def __init__(self, path: Path, mark: bytes | None) -> None:
        self._path = path / VALUES
        end, self.synced = (0, 0) if mark is None else _MARK.unpack(mark)
        self._fd = _open(self._path)
        try:
            size = os.fstat(self._fd).st_size
            if size < self.synced:
                raise damaged(self._path, f"it has {size} bytes, and {self.synced} were synced")
            self.unrecorded: list[PointerRow] = []  # rows that the database lacks
            self.end = self.synced
            for stop, values in _frames(self._fd, self.synced, size):
                self.end = stop
                if stop > end:
                    self.unrecorded += [value.row() for value in values]
        except BaseException:
            os.close(self._fd)
            raise
        self.sync_begun = self.end
        self._origin = secrets.token_hex(8)
        self.torn_bytes = size - self.end
        self.lost = self.end < end  # True if rows in the database point behind the end
        self._tail = self.torn_bytes > 0  # True if there are bytes behind the end
        self._syncing = threading.Lock()
        self._sync_error: OSError | None = None
        self._closed = False

    def counted(self) -> ValuesEnd:
        """The bytes of the file that count now: they never change while the file is open."""
        return ValuesEnd(self.end, self._origin)

    def go_on_from(self, last: ValuesEnd) -> None:
        """Trust the file as it was when it was closed, unless its end has changed."""
        if last.bytes == self.end:
            self._origin = last.origin

    def mark(self) -> bytes:
        """The row of `MARK_KEY` for the present state."""
        return _MARK.pack(self.end, self.synced)

    def append(self, rows: Sequence[tuple[bytes, Buffer]]) -> list[PointerRow]:
        """Write a frame of these rows; returns the rows for the database. Raises OSError."""
        if self._sync_error is not None:
            raise self._sync_error
        self._cut_tail()
        entries = [(key, value, _crc(value)) for key, value in rows]
        table = b"".join(
            [_ENTRY.pack(len(key), len(value), crc) + key for key, value, crc in entries]
        )
        place = self.end + _HEAD.size + len(table)
        pointers = []
        for key, value, crc in entries:
            pointers.append(_Value(key, place, len(value), crc).row())
            place += len(value)
        head = _head(len(rows), place - self.end, table)
        self._tail = True  # until the frame is complete
        _write(self._fd, [head + table, *[value for _, value in rows]], self.end)
        self._tail = False
        self.end = place
        return pointers

    def sync(self) -> None:
        """Make everything written durable. Raises OSError."""
        with self._syncing:
            self._sync(self.end)

    def sync_behind(self) -> None:
        """Sync the present bytes, in any thread; the next `append` or `sync` raises its error."""
        end = self.end
        with self._syncing:
            if not self._closed and self._sync_error is None:
                try:
                    self._sync(end)
                except OSError as error:
                    self._sync_error = error

    def _sync(self, end: int) -> None:
        # The system reports an error once, to the first call; so one thread calls at a time.
        if self._sync_error is not None:
            raise self._sync_error
        os.fdatasync(self._fd)
        self.synced = max(self.synced, end)

    def rewrite(self) -> None:
        """Write all bytes again that may not be on the disk, and sync them: after a failed sync,
        bytes that can be read may be in memory only. Raises OSError."""
        self._cut_tail()
        for at in range(self.synced, self.end, _CHUNK):
            part = os.pread(self._fd, min(_CHUNK, self.end - at), at)
            _write(self._fd, [part], at)
        self.sync()

    def _cut_tail(self) -> None:
        """Cut off the bytes behind the end. An image that has the file, too, keeps them."""
        if not self._tail:
            return
        if os.fstat(self._fd).st_nlink > 1:
            new = self._path.with_suffix(".new")
            try:
                shutil.copyfile(self._path, new)
                os.truncate(new, self.end)
                fd = _open(new)
                try:
                    os.fsync(fd)
                    new.rename(self._path)
                    os.dup2(fd, self._fd, inheritable=False)
                finally:
                    os.close(fd)
            except BaseException:
                new.unlink(missing_ok=True)  # the disk may be full
                raise
        else:
            os.ftruncate(self._fd, self.end)
        self._tail = False

    def read(self, pointer: bytes) -> bytes:
        """The value that a row points to. Raises `DataCorrupt`, OSError."""
        _, place, length, crc = _POINTER.unpack(pointer)
        value = os.pread(self._fd, length, place)
        if len(value) != length or google_crc32c.value(value) != crc:
            raise damaged(self._path, f"the value at byte {place} has a wrong checksum")
        return value

    def behind_end(self, row: bytes) -> bool:
        """True if a row of the database points behind the end."""
        return row[:1] == POINTER and _POINTER.unpack(row)[1] >= self.end

    def close(self) -> None:
        """Close the descriptor."""
        with self._syncing:
            self._closed = True
            os.close(self._fd)


def length(row: bytes) -> int:
    """The size in bytes of the value that a row of the database has or points to."""
    if row[:1] == POINTER:
        size: int = _POINTER.unpack(row)[2]
        return size
    return len(row) - 1


def salvage(path: Path, mark: bytes | None) -> tuple[list[PointerRow], bytes]:
    """The rows of all intact values, wherever they are, and the mark for them. A frame that is
    neither whole nor synced is ignored: its write was cut off."""
    found: list[PointerRow] = []
    synced = 0 if mark is None else _MARK.unpack(mark)[1]
    file = path / VALUES
    file.touch()
    fd = _open(file)
    try:
        size, at = os.fstat(fd).st_size, 0
        while at < size:
            frame = _frame(fd, at, size)
            if frame is None:
                at = _next_magic(fd, at + 1, size)
                continue
            intact = [value.row() for value in frame[1] if _intact(fd, value)]
            if at < synced or len(intact) == len(frame[1]):
                found += intact
            at = frame[0]
    finally:
        os.close(fd)
    return found, _MARK.pack(size, size)


def _frames(fd: int, start: int, size: int) -> Iterator[tuple[int, list[_Value]]]:
    """The whole frames from `start` on, each with its end."""
    while (frame := _frame(fd, start, size)) is not None:
        start, values = frame
        if not all(_intact(fd, value) for value in values):
            return
        yield start, values


def _frame(fd: int, start: int, size: int) -> tuple[int, list[_Value]] | None:
    """The end and the values of the frame that begins at `start`; None if there is none. The values
    themselves are not checked."""
    head = os.pread(fd, _HEAD.size, start)
    if len(head) < _HEAD.size:
        return None
    magic, rows, length, table_bytes, crc = _HEAD.unpack(head)
    if magic != _MAGIC or start + length > size or table_bytes > length:
        return None
    table = os.pread(fd, table_bytes, start + _HEAD.size)
    if _head(rows, length, table) != head:
        return None
    values, at, place = [], 0, start + _HEAD.size + table_bytes
    for _ in range(rows):
        key_bytes, value_bytes, crc = _ENTRY.unpack_from(table, at)
        at += _ENTRY.size + key_bytes
        values.append(_Value(table[at - key_bytes : at], place, value_bytes, crc))
        place += value_bytes
    return start + length, values


def _intact(fd: int, value: _Value) -> bool:
    found = os.pread(fd, value.length, value.place)
    return len(found) == value.length and google_crc32c.value(found) == value.crc


def _next_magic(fd: int, start: int, size: int) -> int:
    """The next possible begin of a frame; `size` if there is none."""
    while start < size:
        chunk = os.pread(fd, _CHUNK, start)
        at = chunk.find(_MAGIC)
        if at >= 0:
            return start + at
        start += max(1, len(chunk) - len(_MAGIC) + 1)
    return size


def _head(rows: int, length: int, table: bytes) -> bytes:
    first = _HEAD.pack(_MAGIC, rows, length, len(table), 0)[:-4]
    crc: int = google_crc32c.extend(google_crc32c.value(table), first)
    return first + crc.to_bytes(4, "big")


def _crc(value: Buffer) -> int:
    # google_crc32c takes no bytearray and no memoryview; `Raw` lends it their bytes without a copy.
    crc: int = google_crc32c.value(value if isinstance(value, bytes) else Raw(value))
    return crc


def _write(fd: int, parts: list[Buffer], at: int) -> None:
    """Write all parts, however few bytes a call takes."""
    if len(parts) > _PARTS_MAX:
        parts = [b"".join(parts)]
    left = sum(map(len, parts))
    written = os.pwritev(fd, parts, at)
    while written < left:
        rest = memoryview(b"".join(parts))[written:]
        step = os.pwritev(fd, [rest], at + written)
        written += step


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CLOEXEC)


def damaged(file: Path, what: str) -> DataCorrupt:
    """The error for a damaged file, or directory."""
    return DataCorrupt(
        f"{file} is damaged: {what}. Run `tms fsck --repair`, or restore it from a backup.",
        file=str(file),
    )
