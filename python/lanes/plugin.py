"""pytest's part of a lane: `-p lanes.plugin --lane NAME`.

Invariants

* The tests of a file run in one worker, in order, so that what a module shares is made once. Tests
  below `SPREAD` share nothing: each goes to the next worker that is free, after all other files,
  so that the workers end together.
* Only the process that reports notes seconds: with xdist the one that started the workers.
* Processor time is measured where the test runs. It holds that of all threads there, and of
  processes that ended and were waited for meanwhile.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from lanes.durations import SUFFIX, Durations, Taken

SPREAD = (
    "python/tests/simulation/",
    "python/tests/contracts/",
    "python/tests/house/test_docs.py",
    "python/tests/house/test_examples.py",
    "python/tests/client/test_dead_letters.py",
    "python/tests/store/test_store.py",
)
INTO = Path(__file__).resolve().parents[2] / "build" / "tests"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", help="the name under which the seconds of each test are noted")
    parser.addoption("--notes", type=Path, default=INTO, help="the folder of these notes")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("lane")
    if name:
        config.pluginmanager.register(_Measuring())
    if name and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Noting(config.getoption("notes") / f"{name}{SUFFIX}"))


class _Measuring:
    """Adds to the report of each phase of a test the processor time since the report before."""

    def __init__(self) -> None:
        self._before_s = _cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now_s = _cpu_s()
        report.cpu_s, self._before_s = now_s - self._before_s, now_s
        return report


def _cpu_s() -> float:
    return sum(os.times()[:4])


class Noting:
    """Notes the seconds of each test, and writes them when the session ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._durations = Durations()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the seconds of an ended phase of a test."""
        taken = Taken(report.duration, getattr(report, "cpu_s", 0.0))
        self._durations.note(report.nodeid, taken)

    def pytest_sessionfinish(self) -> None:
        """Write the seconds at the end of the session."""
        self._durations.write(self._path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """The scheduler that spreads tests over workers."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        """Whole files first, those with most tests before the others; then single tests."""

        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]

    return ByFile(config, log)
