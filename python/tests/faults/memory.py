"""A bound on the memory of a process: a cgroup of its own, or, if this user may not make one, a
limit on its data segment.

The second counts requested memory, not used memory, stacks of threads included, so the same bound
has to be larger: `DATA_FACTOR`.
"""

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE_S

CGROUPS = Path("/sys/fs/cgroup")
DATA_FACTOR = 3
_EMPTY_S = PATIENCE_S


@dataclass(frozen=True)
class Bound:
    """A bound for processes, and the number of kills that it caused."""

    enter: Callable[[], None]
    kills: Callable[[], int]
    real: bool  # counts memory in use


@contextlib.contextmanager
def bound_memory(bytes_max: int) -> Iterator[Bound]:
    """A bound for the processes that call `enter` before they begin."""
    for make in (_version_1, _version_2):
        try:
            group, bound = make(bytes_max)
        except OSError:
            continue
        try:
            yield bound
        finally:
            _remove(group)
        return

    def enter() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_FACTOR * bytes_max,) * 2)

    yield Bound(enter, lambda: 0, real=False)


def _version_1(bytes_max: int) -> tuple[Path, Bound]:
    group = _limited(_own(CGROUPS / "memory", "memory"), "memory.limit_in_bytes", bytes_max)
    return group, _bound(group, "memory.oom_control")


def _version_2(bytes_max: int) -> tuple[Path, Bound]:
    group = _limited(_own(CGROUPS, ""), "memory.max", bytes_max)
    return group, _bound(group, "memory.events")


def _limited(group: Path, file: str, bytes_max: int) -> Path:
    """Make a group with this limit."""
    group.mkdir()
    try:
        (group / file).write_text(str(bytes_max))
    except OSError:
        group.rmdir()
        raise
    return group


def _own(root: Path, controller: str) -> Path:
    """The name of a new group below the one of this process, or below the root of the part of a
    larger hierarchy that is visible here."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (root / path.lstrip("/")).is_dir():
            root = root / path.lstrip("/")
            break
    return root / f"tms-test-{os.getpid()}-{time.monotonic_ns()}"


def _bound(group: Path, events: str) -> Bound:
    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    def kills() -> int:
        words = (line.split() for line in (group / events).read_text().splitlines())
        return next((int(value) for name, value in words if name == "oom_kill"), 0)

    return Bound(enter, kills, real=True)


def _remove(group: Path) -> None:
    end = time.monotonic() + _EMPTY_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            assert time.monotonic() < end, f"{group} does not get empty"
            time.sleep(0.05)
