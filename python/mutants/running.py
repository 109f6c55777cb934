"""Runs the tests of a room: once on the unchanged code, to learn which test reaches which line,
then, against each mutant, the tests that reach it, each time in a forked process.

    parent (pytest and the drivers imported, nothing of tms)
      ├─ fork: all tests, traced      ─▶ Baseline
      └─ fork: one mutant, its tests  ─▶ killed | timeout | survived | unreached

Invariants

* No file is changed: a mutant's code is handed to the import system of its process.
* A process that does not end in time is killed with everything it started; that counts as noticed.
* The quickest tests come first, and the first that fails ends the run.
"""

import importlib
import json
import os
import resource
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple, NoReturn

import coverage
import pytest

from mutants.making import Mutant
from mutants.rooms import PYTHON, Room

BASELINE_S_MAX = 1_800.0
BUDGET_S = 60.0  # of tests for one mutant, by their untraced times
SLOWER = 8.0  # a mutant that takes this much longer, and `GRACE_S`, hangs
GRACE_S = 20.0
_POLL_S = 0.02
_OUTCOMES = {
    None: "timeout",
    int(pytest.ExitCode.OK): "survived",
    int(pytest.ExitCode.TESTS_FAILED): "killed",
    int(pytest.ExitCode.INTERRUPTED): "killed",  # a test file cannot even be imported
    int(pytest.ExitCode.USAGE_ERROR): "killed",  # nor one from which tests were named
}
# With rewritten asserts pytest would load the modules of the package, because it has a plugin.
_FLAGS = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("--hypothesis-seed=0", "--assert=plain"),
)


class Baseline(NamedTuple):
    """Seconds of each test, the tests that reach each line of each file, and the modules of other
    packages that the tests imported."""

    seconds: dict[str, float]
    reached: dict[str, dict[int, list[str]]]
    imported: Sequence[str] = ()

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that reach the mutant, quickest first, as many as the budget allows."""
        lines = self.reached.get(str(mutant.file), {})
        found = {test for line in mutant.lines for test in lines.get(line, ())}
        if "" in found:  # runs at import
            found = set(self.seconds)
        chosen, room = list[str](), BUDGET_S
        for test in sorted(found, key=lambda one: self.seconds[one]):
            room -= self.seconds[test]
            if chosen and room < 0:
                break
            chosen.append(test)
        return chosen


class Result(NamedTuple):
    """The outcome of a mutant; `seconds` of wall time."""

    mutant: Mutant
    outcome: str
    tests: int
    seconds: float

    @property
    def lives(self) -> bool:
        """True if no test has noticed the mutant."""
        return self.outcome not in ("killed", "timeout")


def measure(room: Room) -> Baseline:
    """Run the room's tests on the unchanged code. Raises `SystemExit` if one fails."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "baseline.json"
        log = Path(scratch) / "log"
        fork = _Fork(partial(_trace, room, answer), log, BASELINE_S_MAX)
        while not fork.ended():
            time.sleep(_POLL_S)
        if fork.status != 0:
            sys.exit(f"The tests fail without any mutant:\n{log.read_text()[-8_000:]}")
        found = json.loads(answer.read_text())
    reached = {
        file: {int(line): tests for line, tests in lines.items()}
        for file, lines in found["reached"].items()
    }
    return Baseline(found["seconds"], reached, found["imported"])


def run(mutants: Sequence[Mutant], baseline: Baseline, jobs: int) -> Iterator[Result]:
    """The results as they come, `jobs` mutants at a time."""
    _preload(baseline.imported)
    waiting, trials = list(reversed(mutants)), list[_Trial]()
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or trials:
            while waiting and len(trials) < jobs:
                mutant = waiting.pop()
                tests = baseline.tests_of(mutant)
                if not tests:
                    yield Result(mutant, "unreached", 0, 0.0)
                    continue
                usual_s = min(BUDGET_S, sum(baseline.seconds[test] for test in tests))
                work = partial(_test, mutant, tests)
                fork = _Fork(work, Path(scratch) / "log", GRACE_S + SLOWER * usual_s)
                trials.append(_Trial(mutant, len(tests), fork))
            for trial in [one for one in trials if one.fork.ended()]:
                trials.remove(trial)
                outcome = _OUTCOMES[trial.fork.status]
                yield Result(trial.mutant, outcome, trial.tests, trial.fork.seconds())
            time.sleep(_POLL_S)


class _Fork:
    """`work` in a process of its own; `status` is its answer, None when it did not end in time."""

    def __init__(self, work: Callable[[], int], log: Path, timeout_s: float) -> None:
        self._begun = time.monotonic()
        self._until = self._begun + timeout_s
        self.status: int | None = None
        self._child = os.fork()
        if self._child == 0:
            _become(work, log, timeout_s)

    def ended(self) -> bool:
        """True if the process has ended, or was ended because its time is over."""
        ended, status = os.waitpid(self._child, os.WNOHANG)
        if ended:
            self.status = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > self._until:
            os.killpg(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            return True
        return bool(ended)

    def seconds(self) -> float:
        """Seconds since the fork."""
        return time.monotonic() - self._begun


class _Trial(NamedTuple):
    mutant: Mutant
    tests: int
    fork: _Fork


def _become(work: Callable[[], int], log: Path, timeout_s: float) -> NoReturn:
    status = 99
    try:
        os.setsid()
        cpu_s = int(timeout_s) + 1  # in case no parent is left to end it
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = int(work())
    finally:
        os._exit(status)


def _preload(modules: Sequence[str]) -> None:
    """Import the unchanged modules that the tests need, so that a fork starts at once."""
    for name in modules:
        with suppress(ImportError):  # an alias that another module has made
            importlib.import_module(name)


def _of_others() -> list[str]:
    """The imported modules of Python and of its packages."""
    places = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))
    files = {name: getattr(one, "__file__", None) or "" for name, one in [*sys.modules.items()]}
    return [name for name, file in files.items() if file.startswith(places)]


def _test(mutant: Mutant, tests: Sequence[str]) -> int:
    original = SourceFileLoader.get_code
    changed = compile(mutant.code, str(mutant.file), "exec", dont_inherit=True)

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return changed if self.path == str(mutant.file) else original(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    return pytest.main(["-x", *_FLAGS, *tests])


class _Tracer:
    """A plugin of pytest that notes the lines and the time of each test."""

    def __init__(self, tracer: coverage.Coverage) -> None:
        self._tracer = tracer
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        test = f"{item.path}::{item.nodeid.partition('::')[2]}"
        self._tracer.switch_context(test)
        begun = time.perf_counter()
        yield
        self.seconds[test] = time.perf_counter() - begun
        self._tracer.switch_context("")


def _trace(room: Room, answer: Path) -> int:
    tracer = coverage.Coverage(
        data_file=None, include=[str(file) for file in room.files()], concurrency=["thread"]
    )
    plugin = _Tracer(tracer)
    tracer.start()
    status = pytest.main(["-x", *_FLAGS, *map(str, room.test_files())], [plugin])
    tracer.stop()
    lines = tracer.get_data()
    reached = {file: lines.contexts_by_lineno(file) for file in lines.measured_files()}
    found = {"seconds": plugin.seconds, "reached": reached, "imported": _of_others()}
    answer.write_text(json.dumps(found))
    return int(status)


def project() -> Path:
    """The root of the project, where tests are run."""
    return PYTHON.parent
