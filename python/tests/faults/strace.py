"""Runs the writer, or another program, under strace: to fail or kill it at a chosen system call, or
to record it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import pytest

from tests.databases import passed_on
from tests.faults.forker import Child
from tests.waiting import PATIENCE_S

CHANGING = (
    "openat,write,pwrite64,pwritev2,ftruncate,fsync,fdatasync,"
    "rename,unlink,unlinkat,mkdir,rmdir,link"
)
PROGRAM_S = 100.0  # time limit of a program
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
_BEGUN = re.compile(r"(\d+) +(\w+\(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_FD = re.compile(r"(?:-?\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Ended(NamedTuple):
    """The exit code of a program, and its output."""

    returncode: int
    stderr: bytes


class Call(NamedTuple):
    """A system call that succeeded: the file it is about, its strings, all its arguments."""

    name: str
    path: str
    strings: tuple[bytes, ...]
    arguments: str


Recording = tuple[Path, list[Call]]  # a directory, and the calls that changed its files


def strace() -> str:
    """The path of strace; fails the test, with advice, if it is missing."""
    found = shutil.which("strace")
    if found is None:
        pytest.fail("strace is missing: install it, on Debian with `apt-get install strace`")
    return found


def recorded(record: Callable[[Path], Recording]) -> Any:
    """A fixture: the recording that `record` makes in a directory, once for each database."""
    made: dict[str, Recording] = {}

    @pytest.fixture
    def recording(database: str, tmp_path_factory: pytest.TempPathFactory) -> Recording:
        if database not in made:
            made[database] = record(tmp_path_factory.mktemp("recording"))
        return made[database]

    return recording


def run_writer(what: str, data: Path, acks: Path, *options: str) -> Ended:
    """Run the writer under strace with these options."""
    return run_program("tests.faults.writer", [what, str(data), str(acks)], *options)


def run_program(module: str, arguments: Sequence[str], *options: str) -> Ended:
    """Run `main()` of a module under strace with these options: they count its calls, and none of
    the start of an interpreter."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)} | passed_on()
    with TemporaryFile() as said:
        child = Child(module, arguments, env, (said.fileno(), said.fileno()), stops=True)
        tracer = subprocess.Popen(
            [strace(), "-f", *options, "-p", str(child.pid)], stderr=subprocess.PIPE
        )
        try:
            assert tracer.stderr is not None
            attached = tracer.stderr.readline()
            assert b"attached" in attached, f"strace does not attach: {attached!r}"
            child.send_signal(signal.SIGCONT)
            code = child.wait(PROGRAM_S)
            tracer.communicate(timeout=PATIENCE_S)
        finally:
            for process in (child, tracer):
                process.kill()
                process.wait(PATIENCE_S)
        said.seek(0)
        return Ended(code, said.read())


def inject(call: str, path: Path | None, effect: str, nth: int | str) -> list[str]:
    """Options that inject an effect at the nth call of this name, on this path or on any."""
    only = [] if path is None else ["-P", str(path)]
    options = ["-o", "/dev/null", "-e", f"trace={call}"]
    return [*options, *only, "-e", f"inject={call}:{effect}:when={nth}"]


def record(journal: Path) -> list[str]:
    """Options that record all calls that change files, with all their bytes."""
    return ["-y", "-xx", "-s", "1000000", "-e", f"trace={CHANGING}", "-o", str(journal)]


def calls(journal: Path) -> Iterator[Call]:
    """The successful calls of a recording, in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in journal.read_text().splitlines():
        if match := _BEGUN.fullmatch(line):
            begun[match[1]] = match[2]
            continue
        if match := _RESUMED.fullmatch(line):
            line = f"{match[1]} {begun.pop(match[1])}{match[2]}"
        match = _LINE.match(line)
        if match and int(match[4]) >= 0:
            yield _call(match[2], match[3])


def moments(same: list[Call], data: Path) -> list[tuple[Path | None, int]]:
    """The calls in a data directory, among calls of one name: the path within it and the count of
    calls on that path, with which `inject` finds the call in another run.

    strace finds no path in `unlinkat` with a descriptor: those are counted without.
    """
    counted: Counter[str] = Counter()
    found: list[tuple[Path | None, int]] = []
    for call in same:
        path = None if call.name == "unlinkat" else Path(call.path)
        counted[str(path)] += 1
        if call.path.startswith(f"{data}/"):
            found.append((path and path.relative_to(data), counted[str(path)]))
    return found


def _call(name: str, arguments: str) -> Call:
    strings = tuple(_decode(text) for text in _STRING.findall(arguments))
    fd = _FD.match(arguments)
    base = _decode(fd[1]).decode() if fd else ""
    if name in ("openat", "unlinkat"):
        path = str(Path(base) / strings[0].decode())
    else:
        path = base or strings[0].decode()
    return Call(name, path, strings, arguments)


def _decode(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
