"""A disk that remembers only synced writes: rebuilds a directory as power loss may leave it.

* Bytes of a file survive once the file was synced, entries of a directory (new, renamed, removed
  names) once the directory was: the least that POSIX promises.
* Of unsynced writes nothing survives (`DROP`), or a random first part of each file and of each
  directory's changes (`PREFIX`), or such a part with zeros for the rest of each file (`ZEROS`).
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from random import Random

from tests.faults.strace import Call


class Unsynced(Enum):
    """The fate of unsynced bytes and names."""

    DROP = auto()
    PREFIX = auto()
    ZEROS = auto()


@dataclass(eq=False)
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""

    def sync(self) -> None:
        self.synced = bytes(self.data)

    def survivor(self, unsynced: Unsynced, random: Random) -> bytes:
        if unsynced is Unsynced.DROP or not self.data.startswith(self.synced):
            return self.synced
        rest = bytes(self.data[len(self.synced) :])
        kept = random.randint(0, len(rest))
        zeros = len(rest) - kept if unsynced is Unsynced.ZEROS else 0
        return self.synced + rest[:kept] + bytes(zeros)


@dataclass(eq=False)
class _Directory:
    entries: "dict[str, _File | _Directory]" = field(default_factory=dict)
    synced: "dict[str, _File | _Directory]" = field(default_factory=dict)
    changes: "list[tuple[str, _File | _Directory | None]]" = field(default_factory=list)

    def set(self, name: str, node: "_File | _Directory | None") -> None:
        self.changes.append((name, node))
        _apply(self.entries, name, node)

    def sync(self) -> None:
        self.synced = dict(self.entries)
        self.changes = []

    def survivors(self, unsynced: Unsynced, random: Random) -> "dict[str, _File | _Directory]":
        found = dict(self.synced)
        kept = 0 if unsynced is Unsynced.DROP else random.randint(0, len(self.changes))
        for name, node in self.changes[:kept]:
            _apply(found, name, node)
        return found


def _apply(
    entries: "dict[str, _File | _Directory]", name: str, node: "_File | _Directory | None"
) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _there(path: Path) -> _Directory:
    found = _Directory()
    for entry in path.iterdir():
        data = b"" if entry.is_dir() else entry.read_bytes()
        node = _there(entry) if entry.is_dir() else _File(bytearray(data), data)
        found.set(entry.name, node)
    found.sync()
    return found


class Disk:
    """The directory `root` as a sequence of system calls leaves it: empty at first, or as `before`,
    which was synced."""

    def __init__(self, root: Path, before: Path | None = None) -> None:
        self._root = str(root)
        self._top = _Directory() if before is None else _there(before)

    def concerns(self, call: Call) -> bool:
        """True if the call is about a file in this directory."""
        return call.path.startswith(self._root + "/") or call.path == self._root

    def play(self, call: Call) -> None:
        """Apply a successful call."""
        match call.name:
            case "openat":
                self._open(call)
            case "write":
                self._file(call.path).data += call.strings[0]
            case "pwrite64":
                self._write_at(call, call.arguments.split(", ")[-1])
            case "pwritev2":  # the last argument is flags
                self._write_at(call, call.arguments.split(", ")[-2])
            case "ftruncate":
                del self._file(call.path).data[int(call.arguments.rpartition(" ")[2]) :]
            case "fsync" | "fdatasync":
                node = self._node(call.path)
                if node is not None:
                    node.sync()
            case "mkdir":
                if call.path != self._root:
                    self._set(call.path, _Directory())
            case "rename":
                source, target = (text.decode() for text in call.strings)
                self._set(target, self._node(source))
                self._set(source, None)
            case "link":
                source, target = (text.decode() for text in call.strings)
                self._set(target, self._node(source))
            case "unlink" | "unlinkat" | "rmdir":
                self._set(call.path, None)

    def replay(
        self, calls: Iterable[Call], moments: Container[int], beside: Path
    ) -> Iterator[tuple[int, bytes]]:
        """Play calls; yields the number of each of these moments, with the bytes that were written
        by then to a file outside of the directory."""
        written = b""
        for number, call in enumerate(calls):
            if self.concerns(call):
                self.play(call)
            elif call.name == "write" and call.path == str(beside):
                written += call.strings[0]
            if number in moments:
                yield number, written

    def rebuild(self, target: Path, unsynced: Unsynced, random: Random) -> None:
        """Write the surviving bytes and names to `target`."""
        self._rebuild(self._top, target, unsynced, random)

    def _rebuild(
        self, directory: _Directory, target: Path, unsynced: Unsynced, random: Random
    ) -> None:
        target.mkdir()
        for name, node in directory.survivors(unsynced, random).items():
            if isinstance(node, _Directory):
                self._rebuild(node, target / name, unsynced, random)
            else:
                (target / name).write_bytes(node.survivor(unsynced, random))

    def _write_at(self, call: Call, offset: str) -> None:
        written = b"".join(call.strings)
        self._file(call.path).data[int(offset) : int(offset) + len(written)] = written

    def _open(self, call: Call) -> None:
        if "O_CREAT" not in call.arguments:
            return
        node = self._node(call.path)
        if node is None:
            self._set(call.path, _File())
        elif "O_TRUNC" in call.arguments and isinstance(node, _File):
            node.data = bytearray()

    def _file(self, path: str) -> _File:
        node = self._node(path)
        return node if isinstance(node, _File) else _File()  # removed, but still open

    def _node(self, path: str) -> _File | _Directory | None:
        node: _File | _Directory | None = self._top
        for part in Path(path).relative_to(self._root).parts:
            node = node.entries.get(part) if isinstance(node, _Directory) else None
        return node

    def _set(self, path: str, node: _File | _Directory | None) -> None:
        parent = self._node(str(Path(path).parent))
        assert isinstance(parent, _Directory), f"{path} has no directory"
        parent.set(Path(path).name, node)
