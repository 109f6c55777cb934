"""Fault 35: a process is forked that has a log in its hands. The programs stand in
tests/faults; each says there what must be so."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults import forking, forking_embedded
from tests.http_kit import serving

Run = Callable[[str, str], None]


def programs(every: Mapping[str, object]) -> list[object]:
    """Parameters: a program that forks many times runs in `make test-long`."""
    return [
        pytest.param(name, marks=pytest.mark.long) if name.endswith("_long") else name
        for name in every
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
    """Runs a program on a URL or a directory; fails if the program does."""

    def run(program: str, where: str) -> None:
        assert runner.stdin is not None and runner.stdout is not None
        errors = tmp_path / "errors"
        runner.stdin.write(f"{program} {where} {errors}\n")
        runner.stdin.flush()
        code = int(runner.stdout.readline())
        assert code == 0, f"{program} ended with {code}\n{errors.read_text()}"

    return run


@pytest.mark.parametrize("program", programs(forking.PROGRAMS))
def test_fault_35_a_fork_shares_nothing_with_its_parent_over_http(program: str, run: Run) -> None:
    with serving() as served:
        run(program, f"http://127.0.0.1:{served.address[1]}")


@pytest.mark.parametrize("program", programs(forking_embedded.PROGRAMS))
def test_fault_35_a_directory_stays_with_the_process_that_opened_it(
    program: str, run: Run, tmp_path: Path
) -> None:
    run(program, str(tmp_path / "data"))
