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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from tms.clock import Clock, SystemClock
from tms.doctor.finding import Finding, ok, problem, warning
from tms.extras import DISTRIBUTION

MIB = 1 << 20
_MEMORY_BYTES = 256 * MIB
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*?(?:>= *([0-9.]+)|$|;)")
_AVAILABLE = re.compile(r"^MemAvailable: *([0-9]+)", re.MULTILINE)
_CGROUP_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNLIMITED_CGROUP = 1 << 60
_BORN_MS = 1_767_225_600_000  # 2026-01-01: no clock of a machine that runs this TMS is before it
_NATIVE = ("google_crc32c", "httptools", "msgspec")  # of every installation
_NATIVE_OF_EXTRAS = ("plyvel", "pyarrow", "rocksdict", "uvloop", "zstandard")
_VARIABLES = (
    *("TMS_URL", "TMS_DATA", "TMS_STORE", "TMS_TRACEBACK"),
    *("TMS_CONTEXT", "TMS_TOKEN", "TMS_TOKEN_FILE", "TMS_CA", "TMS_CERT", "TMS_KEY"),
)
_SLOW_SWITCHES = ("PYTHONDEVMODE", "PYTHONASYNCIODEBUG", "PYTHONMALLOC", "PYTHONTRACEMALLOC")


# Limits of this process: the least that is enough, and what a lower one limits.
_LIMITS = (
    ("file size", "RLIMIT_FSIZE", 64 * MIB, problem, "bytes per file"),
    ("threads", "RLIMIT_NPROC", 256, warning, "threads and processes"),
    (
        "open files",
        "RLIMIT_NOFILE",
        4_096,
        warning,
        "files; a connection has one, a segment 4",
    ),
    ("address space", "RLIMIT_AS", 4 << 30, warning, "bytes; Arrow reserves more than it uses"),
)
# Settings of the kernel: the file, which of its words are bad, and what they mean.
_KERNEL: tuple[tuple[str, str, Callable[[list[str]], bool], str], ...] = (
    (
        "huge pages",
        "sys/kernel/mm/transparent_hugepage/enabled",
        lambda words: "[always]" in words,
        "transparent huge pages are always on; memory use grows beyond what is needed",
    ),
    (
        "memory overcommit",
        "proc/sys/vm/overcommit_memory",
        lambda words: words == ["2"],
        "vm.overcommit_memory is {}; reservations that are never used may fail",
    ),
    (
        "connection backlog",
        "proc/sys/net/core/somaxconn",
        lambda words: int(words[0]) < 512,
        "net.core.somaxconn is {}; bursts of new connections are refused",
    ),
    (
        "local ports",
        "proc/sys/net/ipv4/ip_local_port_range",
        lambda words: int(words[1]) - int(words[0]) < 5_000,
        "only the ports {} to {} are for outgoing connections",
    ),
)


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
    requires: Callable[[str], list[str] | None] = metadata.requires
    load: Callable[[str], object] = importlib.import_module
    clock: Clock = field(default_factory=SystemClock)
    temporary: Callable[[], str] = tempfile.gettempdir
    encoding: str = sys.getfilesystemencoding()

    def text(self, path: str) -> str:
        """The text of a file below /proc or /sys; empty if there is none."""
        root, _, rest = path.partition("/")
        try:
            return ({"proc": self.proc, "sys": self.sysfs}[root] / rest).read_text()
        except OSError:
            return ""


def check(machine: Machine) -> Iterator[Finding]:
    """All checks of the machine."""
    yield _python(machine)
    yield _libraries(machine)
    yield _native(machine)
    yield from _limits(machine)
    yield _memory(machine)
    yield _memory_of_container(machine)
    yield _clock(machine)
    yield _encoding(machine)
    yield _temporary(machine)
    yield from _kernel(machine)
    yield _switches(machine)
    yield _variables(machine)
    yield _target(machine)


def _python(machine: Machine) -> Finding:
    name = ".".join(map(str, machine.version))
    if machine.version < (3, 11):
        return problem("Python", f"{name} is too old", "run TMS with Python 3.11 or newer")
    return ok("Python", name)


def _libraries(machine: Machine) -> Finding:
    try:
        required = machine.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return warning(
            "libraries",
            f"TMS runs from its sources, and no distribution {DISTRIBUTION} says what it needs",
            "make env, in a clone",
        )
    required = [line for line in required if "extra ==" not in line]
    if missing := list(outdated(required, machine.installed)):
        return problem("libraries", "; ".join(missing))
    return ok("libraries", "all there and new enough")


def outdated(requirements: Iterable[str], installed: Callable[[str], str]) -> Iterator[str]:
    """The requirements like `NAME>=VERSION` that are not installed, or whose version is older."""
    for line in requirements:
        name, least = _REQUIREMENT.findall(line)[0]
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            yield f"{name} is not installed"
            continue
        if _numbers(version) < _numbers(least):
            yield f"{name} {version} is older than {least}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _native(machine: Machine) -> Finding:
    broken = []
    for name in (*_NATIVE, *_NATIVE_OF_EXTRAS):
        try:
            machine.load(name)
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError) and name in _NATIVE_OF_EXTRAS:
                continue
            broken.append(f"{name}: {error}")
    if broken:
        return problem("native libraries", "; ".join(broken))
    return ok("native libraries", "load")


def _limits(machine: Machine) -> Iterator[Finding]:
    for check, name, least, worse, what in _LIMITS:
        limit = machine.limit(name)
        if 0 <= limit < least:
            yield worse(check, f"at most {limit:,} {what}")
        else:
            yield ok(check, f"up to {limit:,}" if limit >= 0 else "unlimited")


def _memory(machine: Machine) -> Finding:
    available = _AVAILABLE.search(machine.text("proc/meminfo"))
    if available is None:
        return ok("memory", "unknown on this system")
    free = int(available[1]) << 10
    if free < _MEMORY_BYTES:
        return problem("memory", f"only {free // MIB:,} MiB are available")
    return ok("memory", f"{free // MIB:,} MiB available")


def _memory_of_container(machine: Machine) -> Finding:
    check = "memory of the control group"
    texts = map(machine.text, _CGROUP_LIMITS)
    limit = next((int(text) for text in texts if text.strip().isdigit()), _UNLIMITED_CGROUP)
    if limit < _MEMORY_BYTES:
        return warning(check, f"limited to {limit // MIB:,} MiB")
    return ok(check, "enough" if limit < _UNLIMITED_CGROUP else "unlimited")


def _clock(machine: Machine) -> Finding:
    now_ms = machine.clock.now_ms()
    if now_ms < _BORN_MS:
        return problem("clock", "the wall clock is before TMS was made; ids carry the time")
    if now_ms > _BORN_MS + 50 * 365 * 86_400_000:
        return problem("clock", "the wall clock is decades ahead")
    return ok("clock", "plausible")


def _encoding(machine: Machine) -> Finding:
    if machine.encoding.lower().replace("-", "") != "utf8":
        return warning("encoding", f"the locale uses {machine.encoding}")
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


def _kernel(machine: Machine) -> Iterator[Finding]:
    for check, path, is_bad, found in _KERNEL:
        words = machine.text(path).split()
        if words and is_bad(words):
            yield warning(check, found.format(*words))
        else:
            yield ok(check, " ".join(words) or "unknown on this system")


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
