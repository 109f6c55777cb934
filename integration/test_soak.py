"""Three minutes of the soak that `make soak` runs for hours. A finding is printed with its seed and
how to repeat it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 100  # then the round under way comes to its end
LIMIT_S = 1_200


@pytest.mark.timeout(LIMIT_S + 30)
def test_everything_acknowledged_is_read_again_once_and_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.soak", "--seconds", str(SECONDS)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-20_000:]
