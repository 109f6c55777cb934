"""Checks of the machine and of this process: Python, libraries, limits, memory, clock, kernel
settings, environment.

Everything is read from a `Machine`, so that tests can plant what is wrong.
"""

import importlib
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from tms.clock import Clock, SystemClock
from tms.doctor.finding import Finding, ok, problem, warning

MIB = 1 << 20
_DESCRIPTORS = 4_096
_MEMORY_BYTES = 256 * MIB
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)")
_AT_LEAST = re.compile(r">=\s*([0-9.]+)")
_UNLIMITED_CGROUP = 1 << 60
_BORN_MS = 1_767_225_600_000  # 2026-01-01: no clock of a machine that runs this TMS is before it
_NATIVE = ("plyvel", "pyarrow", "google_crc32c", "uvloop", "httptools", "msgspec", "zstandard")
_VARIABLES = ("TMS_URL", "TMS_DATA", "TMS_STORE", "TMS_TRACEBACK")
_SLOW_SWITCHES = ("PYTHONDEVMODE", "PYTHONASYNCIODEBUG", "PYTHONMALLOC", "PYTHONTRACEMALLOC")


def _limit(name: str) -> int:
    soft, _ = resource.getrlimit(getattr(resource, name))
    return soft


@dataclass(frozen=True)
class Machine:
    """Where the checks look."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    limit: Callable[[str], int] = _limit
    version: tuple[int, ...] = sys.version_info[:3]
    installed: Callable[[str], str] = metadata.version
    load: Callable[[str], object] = importlib.import_module
    clock: Clock = field(default_factory=SystemClock)
    temporary: Callable[[], str] = tempfile.gettempdir
    encoding: str = sys.getfilesystemencoding()

    def number(self, *path: str) -> int | None:
        """The number in a file below /proc or /sys; None if there is none."""
        root = self.proc if path[0] == "proc" else self.sysfs
        try:
            return int(root.joinpath(*path[1:]).read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def text(self, *path: str) -> str:
        """The text of a file below /proc or /sys; empty if there is none."""
        root = self.proc if path[0] == "proc" else self.sysfs
        try:
            return root.joinpath(*path[1:]).read_text()
        except OSError:
            return ""


def check(machine: Machine) -> Iterator[Finding]:
    """All checks of the machine."""
    yield _python(machine)
    yield _libraries(machine)
    yield _native(machine)
    yield _descriptors(machine)
    yield _file_size(machine)
    yield _threads(machine)
    yield _address_space(machine)
    yield _memory(machine)
    yield _memory_of_container(machine)
    yield _clock(machine)
    yield _encoding(machine)
    yield _temporary(machine)
    yield _huge_pages(machine)
    yield _overcommit(machine)
    yield _backlog(machine)
    yield _ports(machine)
    yield _switches(machine)
    yield _variables(machine)
    yield _target(machine)


def _python(machine: Machine) -> Finding:
    name = ".".join(map(str, machine.version))
    if machine.version < (3, 11):
        return problem("Python", f"{name} is too old", "run TMS with Python 3.11 or newer")
    return ok("Python", name)


def _libraries(machine: Machine) -> Finding:
    missing = []
    for line in metadata.requires("tms") or []:
        requirement, _, marker = line.partition(";")
        found_name = _REQUIREMENT.match(requirement)
        if found_name is None or "extra ==" in marker:  # what only some need
            continue
        name, wanted = found_name[1], (_AT_LEAST.search(requirement) or ("", "0"))[1]
        try:
            found = machine.installed(name)
        except metadata.PackageNotFoundError:
            missing.append(f"{name} is missing")
            continue
        if _numbers(found) < _numbers(wanted):
            missing.append(f"{name} {found} is older than {wanted}")
    if missing:
        return problem(
            "libraries",
            "; ".join(missing),
            "install the locked versions: pip install --require-hashes -r requirements.lock",
        )
    return ok("libraries", "all there and new enough")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _native(machine: Machine) -> Finding:
    broken = []
    for name in _NATIVE:
        try:
            machine.load(name)
        except ImportError as error:
            broken.append(f"{name}: {error}")
    if broken:
        return problem(
            "native libraries",
            "; ".join(broken),
            "reinstall them for this Python: pip install --force-reinstall NAME",
        )
    return ok("native libraries", "load")


def _descriptors(machine: Machine) -> Finding:
    limit = machine.limit("RLIMIT_NOFILE")
    if 0 <= limit < _DESCRIPTORS:
        return warning(
            "open files",
            f"at most {limit:,} descriptors; each connection takes one, each open segment four",
            f"ulimit -n {_DESCRIPTORS * 16}, or LimitNOFILE= in the systemd unit",
        )
    return ok("open files", f"up to {limit:,}" if limit >= 0 else "unlimited")


def _file_size(machine: Machine) -> Finding:
    limit = machine.limit("RLIMIT_FSIZE")
    if 0 <= limit < 64 * MIB:
        return problem("file size", f"at most {limit:,} bytes per file", "ulimit -f unlimited")
    return ok("file size", "enough")


def _threads(machine: Machine) -> Finding:
    limit = machine.limit("RLIMIT_NPROC")
    if 0 <= limit < 256:
        return warning("threads", f"at most {limit} threads and processes", "ulimit -u 4096")
    return ok("threads", "enough")


def _address_space(machine: Machine) -> Finding:
    limit = machine.limit("RLIMIT_AS")
    if 0 <= limit < 4 << 30:
        return warning(
            "address space",
            f"limited to {limit // MIB:,} MiB; Arrow reserves more than it uses",
            "ulimit -v unlimited, and limit memory with a control group instead",
        )
    return ok("address space", "enough")


def _memory(machine: Machine) -> Finding:
    for line in machine.text("proc", "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
            if free < _MEMORY_BYTES:
                return problem(
                    "memory",
                    f"only {free // MIB:,} MiB are available",
                    f"free some: the service needs {_MEMORY_BYTES // MIB} MiB and its cache",
                )
            return ok("memory", f"{free // MIB:,} MiB available")
    return ok("memory", "unknown on this system")


def _memory_of_container(machine: Machine) -> Finding:
    limits = (
        machine.number("sys", "fs", "cgroup", "memory.max"),
        machine.number("sys", "fs", "cgroup", "memory", "memory.limit_in_bytes"),
    )
    limit = next((one for one in limits if one is not None and one < _UNLIMITED_CGROUP), None)
    if limit is not None and limit < _MEMORY_BYTES:
        return warning(
            "memory of the control group",
            f"limited to {limit // MIB:,} MiB",
            f"raise it to {2 * _MEMORY_BYTES // MIB} MiB, or make the service's cache smaller",
        )
    return ok("memory of the control group", "enough" if limit else "unlimited")


def _clock(machine: Machine) -> Finding:
    now_ms = machine.clock.now_ms()
    if now_ms < _BORN_MS:
        return problem(
            "clock",
            "the wall clock is before this version of TMS was made; ids carry the time",
            "set the clock, and let chrony or systemd-timesyncd keep it",
        )
    if now_ms > _BORN_MS + 50 * 365 * 86_400_000:
        return problem(
            "clock", "the wall clock is decades ahead", "set the clock before publishing"
        )
    return ok("clock", "plausible")


def _encoding(machine: Machine) -> Finding:
    if machine.encoding.lower().replace("-", "") != "utf8":
        return warning("encoding", f"the locale uses {machine.encoding}", "export LC_ALL=C.UTF-8")
    return ok("encoding", "UTF-8")


def _temporary(machine: Machine) -> Finding:
    try:
        path = machine.temporary()
        free = shutil.disk_usage(path).free
    except OSError as error:
        return warning("temporary files", str(error), "set TMPDIR to a directory you may write to")
    if free < 16 * MIB:
        return warning("temporary files", f"{path} is full", f"free some space in {path}")
    return ok("temporary files", path)


def _huge_pages(machine: Machine) -> Finding:
    text = machine.text("sys", "kernel", "mm", "transparent_hugepage", "enabled")
    if "[always]" in text:
        return warning(
            "huge pages",
            "transparent huge pages are always on; memory use grows beyond what is needed",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok("huge pages", "only where asked for" if text else "unknown on this system")


def _overcommit(machine: Machine) -> Finding:
    if machine.number("proc", "sys", "vm", "overcommit_memory") == 2:
        return warning(
            "memory overcommit",
            "vm.overcommit_memory is 2; reservations that are never used may fail",
            "sysctl vm.overcommit_memory=0",
        )
    return ok("memory overcommit", "allowed")


def _backlog(machine: Machine) -> Finding:
    backlog = machine.number("proc", "sys", "net", "core", "somaxconn")
    if backlog is not None and backlog < 512:
        return warning(
            "connection backlog",
            f"net.core.somaxconn is {backlog}; bursts of new connections are refused",
            "sysctl net.core.somaxconn=4096",
        )
    return ok("connection backlog", "enough")


def _ports(machine: Machine) -> Finding:
    ends = machine.text("proc", "sys", "net", "ipv4", "ip_local_port_range").split()
    if len(ends) == 2 and int(ends[1]) - int(ends[0]) < 5_000:
        return warning(
            "local ports",
            f"only {int(ends[1]) - int(ends[0]) + 1:,} ports for outgoing connections",
            'sysctl net.ipv4.ip_local_port_range="32768 60999"',
        )
    return ok("local ports", "enough")


def _switches(machine: Machine) -> Finding:
    found = [name for name in _SLOW_SWITCHES if machine.environ.get(name)]
    if found:
        return warning(
            "debugging switches",
            f"{', '.join(found)} make Python slow",
            f"unset {' '.join(found)}",
        )
    return ok("debugging switches", "none set")


def _variables(machine: Machine) -> Finding:
    """Names below `TMS__` belong to the configuration of the service, which checks them itself."""
    strange = sorted(
        name
        for name in machine.environ
        if name.startswith("TMS_") and not name.startswith("TMS__") and name not in _VARIABLES
    )
    if strange:
        near = {name: get_close_matches(name, _VARIABLES, 1) for name in strange}
        hints = ", ".join(f"{name} → {close[0]}" for name, close in near.items() if close)
        return warning(
            "environment",
            f"{', '.join(strange)}: TMS knows no such variable",
            f"correct the name: {hints}" if hints else f"unset {' '.join(strange)}",
        )
    return ok("environment", "every TMS_ variable is known")


def _target(machine: Machine) -> Finding:
    if machine.environ.get("TMS_URL") and machine.environ.get("TMS_DATA"):
        return problem("target", "TMS_URL and TMS_DATA are both set", "unset one of them")
    return ok("target", "not ambiguous")
