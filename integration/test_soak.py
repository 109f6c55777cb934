"""A small round of the soak that `make soak` runs for hours, drawn from the run seed. A finding is
printed with the command that repeats it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_seed import run_seed

LIMIT_S = 900
SMALL = ("--seconds", "1", "--load", "12", "--jobs", "8", "--share", "0.05")  # one round


@pytest.mark.timeout(LIMIT_S + 30)
def test_everything_acknowledged_is_read_again_once_and_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.soak", *SMALL, "--seed", run_seed()],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-20_000:]
