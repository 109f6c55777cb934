"""Fault 35: a process is forked that has a log in its hands. The programs stand in
tests/faults; each says there what must be so."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import forking, forking_embedded
from tests.http_kit import serving


def run(programs: str, program: str, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{programs}", program, where],
        capture_output=True,
        text=True,
        timeout=forking.LIMIT_S + 20,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, f"{program} ended with {done.returncode}\n{done.stderr}"


@pytest.mark.parametrize("program", forking.PROGRAMS)
def test_fault_35_a_fork_shares_nothing_with_its_parent_over_http(program: str) -> None:
    with serving() as served:
        run("forking", program, f"http://127.0.0.1:{served.address[1]}")


@pytest.mark.parametrize("program", forking_embedded.PROGRAMS)
def test_fault_35_a_directory_stays_with_the_process_that_opened_it(
    program: str, tmp_path: Path
) -> None:
    run("forking_embedded", program, str(tmp_path / "data"))
