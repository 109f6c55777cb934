"""Fault 35: a process that uses a log is forked. The programs are in tests/faults; each checks its
own conditions."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import forking, forking_embedded
from tests.http_kit import serving

Run = Callable[[str, str], None]
OVER_HTTP = [*forking.PROGRAMS, pytest.param(*forking.PROGRAMS_LONG, marks=pytest.mark.long)]
EMBEDDED = [
    *forking_embedded.PROGRAMS,
    pytest.param(*forking_embedded.PROGRAMS_LONG, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def runner() -> Iterator["subprocess.Popen[str]"]:
    """The process that forks a child for each program."""
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.forking_embedded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with running:
        yield running
        running.stdin.close()  # type: ignore[union-attr]
    assert running.returncode == 0


@pytest.fixture
def run(runner: "subprocess.Popen[str]", tmp_path: Path) -> Run:
    """Run a program on a URL or a directory; fails if the program does."""

    def run(program: str, where: str) -> None:
        assert runner.stdin is not None and runner.stdout is not None
        errors = tmp_path / "errors"
        runner.stdin.write(f"{program} {where} {errors}\n")
        runner.stdin.flush()
        code = int(runner.stdout.readline())
        assert code == 0, f"{program} ended with {code}\n{errors.read_text()}"

    return run


@pytest.mark.parametrize("program", OVER_HTTP)
def test_fault_35_a_fork_shares_nothing_with_its_parent_over_http(program: str, run: Run) -> None:
    with serving() as served:
        run(program, served.url)


@pytest.mark.parametrize("program", EMBEDDED)
def test_fault_35_a_directory_stays_with_the_process_that_opened_it(
    program: str, run: Run, tmp_path: Path
) -> None:
    run(program, str(tmp_path / "data"))
