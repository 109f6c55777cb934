"""Planted bugs that no run of the simulation reaches: the test that a bug names must fail with it.

One process imports the modules of these tests, and each bug is planted in a fork of it: a Python of
its own for each would spend most of its time on imports.
"""

import os
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from sim.bugs.bugs import planted
from sim.bugs.found import ELSEWHERE
from tests import gate_kit, waiting

TESTS = Path(__file__).parent
TIMEOUT_S = 100.0
VAIN_S = 3.0  # time for which a test waits for an event that the bug prevents
_FLAGS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:xdist")
_FAILED, _OTHERWISE = 0, 1


def fails(bug: str, log: Path) -> bool:
    """True if the body of the test that the bug names fails, not its fixtures or its import; `log`
    gets what pytest prints."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.run_seed", "tms.serve.main", "uvloop"])
    process = context.Process(target=_try, args=(bug, str(log)))
    process.start()
    process.join(TIMEOUT_S)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == _FAILED


class _Bodies:
    """A plugin that counts the tests whose bodies failed."""

    def __init__(self) -> None:
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.when == "call" and report.failed


def _try(bug: str, log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    gate_kit.PATIENCE_S = waiting.PATIENCE_S = VAIN_S
    file, _, test = ELSEWHERE[bug].test.partition("::")
    (path,) = TESTS.glob(f"*/{file}")
    bodies = _Bodies()
    with planted(bug):
        ended = pytest.main([*_FLAGS, f"{path}::{test}"], [bodies])
    sys.stdout.flush()
    failed = ended == pytest.ExitCode.TESTS_FAILED and bodies.failed == 1
    os._exit(_FAILED if failed else _OTHERWISE)  # threads of the test may wait for ever
