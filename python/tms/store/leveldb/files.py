"""The files of LevelDB and RocksDB as bytes: checks that both leave out, an empty database, a
read-only copy.

    CURRENT      the name of the manifest
    MANIFEST-n   a log of edits: which tables are live, which log is the oldest needed
    n.log        a log of writes that are in no table yet
    n.ldb        a table: sorted rows in checksummed blocks; RocksDB's are n.sst
    log          blocks of 32 KiB of fragments: crc 4, length 2, type 1 (little-endian), payload

Invariants

* LevelDB verifies the checksum of every fragment when it opens a database with `paranoid_checks`.
  So the check here goes from header to header and examines only the supposed end of a log: LevelDB
  takes a damaged length for the torn write of a crash, and silently drops that record and all
  records behind it.
* A fragment that reaches beyond the end of its file is torn only if no shorter length fits its
  checksum.
* A log that the manifest needs always exists; both databases would go on without it.
* An empty database has LevelDB's files. RocksDB reads those, and writes the same files with more
  fields in them.
"""

import contextlib
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from tms.runtime.disk import sync_path
from tms.store.leveldb.values import VALUES, damaged

_LOOKS_MAX = 100  # attempts to find LevelDB changing no files
_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LOG = re.compile(r"[0-9]+\.log")
_TABLE = re.compile(r"[0-9]+\.(?:ldb|sst)")
_DATABASE_ID = b"\x81\x40"  # the edit that every manifest of RocksDB begins with
_SKIPPED = 1 << 13  # bit of a tag of RocksDB: readers that do not know the tag skip it
_MANIFEST = re.compile(r"MANIFEST-[0-9]+")


def write_empty(path: Path) -> None:
    """Make a directory with the files of an empty database."""
    name = b"leveldb.BytewiseComparator"
    edit = bytes((1, len(name))) + name + bytes((2, 0, 3, 2, 4, 0))
    path.mkdir()
    (path / "MANIFEST-000001").write_bytes(b"".join(_framed(edit, 0)))
    (path / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    (path / VALUES).touch()


def check(path: Path) -> dict[Path, int]:
    """The bytes of each log that a crash cut off during a write. Raises `DataCorrupt` if a file is
    missing, or damaged in a way that LevelDB overlooks."""
    log_number, tables, exact = _version(_manifest(path))
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(path)}
    for number, size in tables.items():
        found = sizes.get(f"{number:06}.ldb", sizes.get(f"{number:06}.sst"))
        if found != size:
            state = "it is missing" if found is None else f"it has {found} bytes instead of {size}"
            raise damaged(path / f"{number:06}.{'ldb' if exact else 'sst'}", state)
    if VALUES not in sizes:
        raise damaged(path / VALUES, "it is missing")
    logs = sorted(name for name in sizes if _LOG.fullmatch(name))
    needed_logs = [name for name in logs if int(name.removesuffix(".log")) >= log_number]
    oldest = f"{log_number:06}.log"
    if not needed_logs if not exact else log_number and oldest not in logs:
        raise damaged(path / oldest, "it is missing")
    torn = {path / name: _torn_bytes(path / name) for name in needed_logs}
    return {file: dropped_bytes for file, dropped_bytes in torn.items() if dropped_bytes}


class LogTail:
    """The log that a database writes to; syncs the bytes that LevelDB leaves unsynced when it
    changes to a new log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = ""

    def look(self) -> None:
        """Find the newest log; call it after opening the database."""
        self._log = str(logs(self._path)[-1])

    def size(self) -> int:
        """The size in bytes of the log that was the newest at the last look: a write that did not
        make it grow went to a newer one."""
        try:
            return os.stat(self._log).st_size
        except FileNotFoundError:
            return -1

    def sync(self) -> None:
        """Sync all logs and their names, and find the newest log again."""
        for log in logs(self._path):
            with contextlib.suppress(
                FileNotFoundError
            ):  # its rows are in a table now, which is synced
                sync_path(log)
        sync_path(self._path)
        self.look()


def copy(source: Path, target: Path) -> bool:
    """Copy the files of a database, its tables as links, so that the copy can be opened without
    touching the source; False if the source is in use and changed too fast.

    Logs are removed only after the manifest says that they are not needed: the logs that exist
    between two equal reads of the manifest belong to it.
    """
    target.mkdir()
    for _ in range(_LOOKS_MAX):
        with contextlib.ExitStack() as held:
            before = _bookkeeping(source)
            open_logs = [(log.name, _open(log, held)) for log in logs(source)]
            if _bookkeeping(source) != before:
                continue
            for name, content in before.items():
                (target / name).write_bytes(content)
            for name in (VALUES, *filter(_TABLE.fullmatch, os.listdir(source))):
                with contextlib.suppress(FileNotFoundError):
                    _link(source / name, target / name)
            for name, file in open_logs:
                if file is not None:
                    (target / name).write_bytes(file.read())
            return True
    return False


def link(source: Path, target: Path) -> dict[str, int] | None:
    """Link the files of a database that is not written to; returns how many bytes of each belong to
    it. None if LevelDB, which may merge tables all the same, changed them too fast."""
    for _ in range(_LOOKS_MAX):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        before = _bookkeeping(source)
        names = [name for name in os.listdir(source) if _LOG.fullmatch(name)]
        names += filter(_TABLE.fullmatch, os.listdir(source))
        sizes = {}
        for name in (*before, *names, VALUES):
            with contextlib.suppress(FileNotFoundError):
                os.link(source / name, target / name)
                sizes[name] = os.stat(target / name).st_size
        if _bookkeeping(source) == before:
            return sizes | {name: len(content) for name, content in before.items()}
    return None


def _open(file: Path, held: contextlib.ExitStack) -> BinaryIO | None:
    try:
        return held.enter_context(file.open("rb"))
    except FileNotFoundError:
        return None


def _bookkeeping(path: Path) -> dict[str, bytes]:
    """CURRENT and the manifests, as far as they exist."""
    found = {}
    for name in ("CURRENT", *filter(_MANIFEST.fullmatch, os.listdir(path))):
        with contextlib.suppress(FileNotFoundError):
            found[name] = (path / name).read_bytes()
    return found


def logs(path: Path) -> list[Path]:
    """The logs in a database's directory, oldest first."""
    found = (name for name in os.listdir(path) if _LOG.fullmatch(name))
    return [path / name for name in sorted(found, key=lambda name: int(name.removesuffix(".log")))]


def salvage(log: Path) -> None:
    """Rewrite a log with only its intact records.

    LevelDB's own repair takes over damaged records of a log as if they were good.
    """
    records = list(_intact_records(_read(log)))
    new = log.with_suffix(".new")
    with new.open("wb") as file:
        for record in records:
            for part in _framed(record, file.tell()):
                file.write(part)
        file.flush()
        os.fsync(file.fileno())
    new.rename(log)


def _intact_records(data: bytes) -> Iterator[bytes]:
    """The records whose fragments are all intact, in order; behind damage the search for the next
    one goes on byte by byte."""
    offset, parts = 0, list[bytes]()
    whole = False  # True if `parts` begins with a first fragment
    while offset + _HEADER.size <= len(data):
        left = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left < _HEADER.size:
            offset += left
            continue
        crc, length, kind = _HEADER.unpack_from(data, offset)
        payload = data[offset + _HEADER.size : offset + _HEADER.size + length]
        if (
            not _FULL <= kind <= _LAST
            or length > left - _HEADER.size
            or len(payload) < length
            or _masked_crc(bytes((kind,)) + payload) != crc
        ):
            offset, whole = offset + 1, False
            continue
        offset += _HEADER.size + length
        if kind in (_FULL, _FIRST):
            parts, whole = [], True
        parts.append(payload)
        if kind in (_FULL, _LAST):
            if whole:
                yield b"".join(parts)
            whole = False


def _framed(record: bytes, offset: int) -> Iterator[bytes]:
    """The fragments of a record that is written at this offset of a log."""
    first, rest = True, memoryview(record)
    while True:
        left = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left < _HEADER.size:
            yield bytes(left)
            offset += left
            continue
        part, rest = rest[: left - _HEADER.size], rest[left - _HEADER.size :]
        kind = (_FULL if first else _LAST) if not rest else (_FIRST if first else _MIDDLE)
        body = bytes((kind,)) + part
        yield _HEADER.pack(_masked_crc(body), len(part), kind) + part
        offset, first = offset + _HEADER.size + len(part), False
        if not rest:
            return


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        target.symlink_to(source)


def _torn_bytes(file: Path) -> int:
    data = _read(file)
    whole = 0
    for start, length, kind in _fragments(data, file):
        if kind in (_FULL, _LAST):
            whole = start + length
    return len(data) - whole


def _manifest(path: Path) -> Path:
    current = _read(path / "CURRENT").decode("ascii", "replace")
    if current[-1:] != "\n" or not _MANIFEST.fullmatch(current[:-1]):
        raise damaged(path / "CURRENT", "it does not name a manifest")
    return path / current[:-1]


def _version(manifest: Path) -> tuple[int, dict[int, int], bool]:
    """The number of the oldest log that is needed, the bytes of each table by its number, and True
    if that log has exactly this number, as in LevelDB; RocksDB's has this or a higher one."""
    data = _read(manifest)
    log_number, tables, edit, exact = 0, dict[int, int](), b"", True
    try:
        for start, length, kind in _fragments(data, manifest):
            if kind in (_FULL, _FIRST):
                edit = b""
            edit += data[start : start + length]
            if kind in (_FULL, _LAST):
                log_number = _apply(edit, log_number, tables)
                exact = exact and not edit.startswith(_DATABASE_ID)
    except (IndexError, ValueError) as exc:
        raise damaged(manifest, "an edit in it cannot be read") from exc
    return log_number, tables, exact


class _ManifestEdit:
    """An edit of a manifest, read from its begin. Raises IndexError at its end."""

    def __init__(self, edit: bytes) -> None:
        self._edit = edit
        self._at = 0

    def left(self) -> bool:
        return self._at < len(self._edit)

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._edit[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def skip_bytes(self) -> None:
        size = self.number()
        self._at += size

    def skip_fields(self) -> None:
        """Two sequences, and fields until one has the tag 1."""
        self.number()
        self.number()
        while self.number() != 1:
            self.skip_bytes()


def _apply(data: bytes, log_number: int, tables: dict[int, int]) -> int:
    """Apply an edit of the manifest to `tables`; returns the number of the oldest log that is
    needed then."""
    edit = _ManifestEdit(data)
    while edit.left():
        match edit.number():
            case 1:  # comparator
                edit.skip_bytes()
            case 2:
                log_number = edit.number()
            case 3 | 4 | 9:  # next file, last sequence, previous log
                edit.number()
            case 10 | 200 | 203 | 300:  # RocksDB's: oldest log to keep, column families, group
                edit.number()
            case 5:  # compaction pointer: level, key
                edit.number()
                edit.skip_bytes()
            case 6:  # deleted table: level, number
                edit.number()
                tables.pop(edit.number(), None)
            case (7 | 103) as tag:  # new table: level, number, size, smallest key, largest key
                edit.number()
                table = edit.number()
                tables[table] = edit.number()
                edit.skip_bytes()
                edit.skip_bytes()
                if tag == 103:  # RocksDB's
                    edit.skip_fields()
            case tag if tag & _SKIPPED:
                edit.skip_bytes()
            case tag:
                raise ValueError(f"unknown tag {tag}")
    return log_number


def _fragments(data: bytes, file: Path) -> Iterator[tuple[int, int, int]]:
    """Start, length and type of the payloads up to the end, or to the fragment at which the file
    was torn. Raises `DataCorrupt` if it was damaged and not torn."""
    offset, size, header = 0, len(data), _HEADER.size
    while offset + header <= size:
        left = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left < header:
            offset += left
            continue
        crc, length, kind = _HEADER.unpack_from(data, offset)
        if kind == 0 and length == 0:
            if data.count(0, offset) != size - offset:
                raise damaged(file, f"there are zeros at byte {offset}")
            return
        if length > left - header or not _FULL <= kind <= _LAST:
            raise damaged(file, f"the fragment at byte {offset} has a wrong header")
        start = offset + header
        offset = start + length
        if offset > size:
            if _fits_shorter(crc, kind, memoryview(data)[start:]):
                raise damaged(file, f"the fragment at byte {start - header} has a wrong length")
            return
        yield start, length, kind


def _fits_shorter(crc: int, kind: int, rest: memoryview) -> bool:
    """True if the checksum fits some first part of `rest`."""
    running = google_crc32c.value(bytes((kind,)))
    if _mask(running) == crc:
        return True
    for index in range(len(rest)):
        running = google_crc32c.extend(running, bytes(rest[index : index + 1]))
        if _mask(running) == crc:
            return True
    return False


def _masked_crc(data: bytes) -> int:
    return _mask(google_crc32c.value(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError as exc:
        raise damaged(file, "it is missing") from exc
