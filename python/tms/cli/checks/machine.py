"""Checks of this machine and this process: limits, clock, temporary files, environment.

All facts come from a `Machine`, so that tests can plant faults.
"""

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from tms.cli.checks.finding import Finding, ok, problem, warning
from tms.runtime.clock import Clock, SystemClock

MIB = 1 << 20
_BORN_MS = 1_767_225_600_000  # 2026-01-01: no clock of a machine that runs this TMS is before it
_LATEST_MS = _BORN_MS + 50 * 365 * 86_400_000
_VARIABLES = (
    *("TMS_URL", "TMS_DATA", "TMS_STORE", "TMS_TRACEBACK"),
    *("TMS_CONTEXT", "TMS_TOKEN", "TMS_TOKEN_FILE", "TMS_CA", "TMS_CERT", "TMS_KEY"),
)
# Limits of this process: the least that is enough, the unit, the command that raises the limit.
_LIMITS = (
    (
        "open files",
        "RLIMIT_NOFILE",
        4_096,
        "files; a connection has one, a segment 4",
        "ulimit -n 65536, or LimitNOFILE= in the systemd unit",
    ),
    ("threads", "RLIMIT_NPROC", 256, "threads and processes", "ulimit -u 4096"),
)


def _limit(name: str) -> int:
    soft, _ = resource.getrlimit(getattr(resource, name))
    return soft


@dataclass(frozen=True)
class Machine:
    """The sources of the checks' facts."""

    mounts: Path = Path("/proc/self/mounts")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    limit: Callable[[str], int] = _limit
    clock: Clock = field(default_factory=SystemClock)
    temporary: Callable[[], str] = tempfile.gettempdir


def check(machine: Machine) -> Iterator[Finding]:
    """All checks of the machine."""
    yield from _limits(machine)
    yield _clock(machine)
    yield _temporary(machine)
    yield _variables(machine)


def _limits(machine: Machine) -> Iterator[Finding]:
    for check, name, least, unit, fix in _LIMITS:
        limit = machine.limit(name)
        if 0 <= limit < least:
            yield warning(check, f"at most {limit:,} {unit}", fix)
        else:
            yield ok(check, f"up to {limit:,}" if limit >= 0 else "unlimited")


def _clock(machine: Machine) -> Finding:
    fix = "set the clock before publishing, and let chrony or systemd-timesyncd keep it"
    if not _BORN_MS <= machine.clock.now_ms() <= _LATEST_MS:
        return problem("clock", "the wall clock is years off, and ids carry the time", fix)
    return ok("clock", "plausible")


def _temporary(machine: Machine) -> Finding:
    try:
        path = machine.temporary()
        free = shutil.disk_usage(path).free
    except OSError as error:
        return warning("temporary files", str(error), "set TMPDIR to a directory you may write to")
    if free < 16 * MIB:
        return warning("temporary files", f"{path} is full", f"free some space in {path}")
    return ok("temporary files", path)


def _variables(machine: Machine) -> Finding:
    """Reports unknown `TMS_` variables. Names below `TMS__` are left to the service, which checks
    them when it reads its configuration."""
    names = [name for name in machine.environ if re.match("TMS_(?!_)", name)]
    if strange := sorted({*names}.difference(_VARIABLES)):
        near = {name: get_close_matches(name, _VARIABLES, 1) for name in strange}
        hints = ", ".join(f"{name} → {close[0]}" for name, close in near.items() if close)
        fix = f"correct the name: {hints}" if hints else f"unset {' '.join(strange)}"
        return warning("environment", f"{', '.join(strange)}: TMS knows no such variable", fix)
    return ok("environment", "every TMS_ variable is known")
