"""The tests of Kafka's protocol once more, with bounds that are drawn for each of their files:
pages of one topic, a cache of one batch, a look that sees one message.

In a landing some of the files run, which the run seed draws; the long run has them all. Each has a
process of its own, so that a service of the file has these bounds from its beginning. A test that
fails only here depends on a bound: `Bounds.of(…).drawn` has them all.

The tests of restarts are left out: they copy the directory of a running service, whose journals
small bounds shorten meanwhile. No crash leaves half of a copy.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import drawn_kit
from tests.run_seed import drawn, run_seed

FILES = [
    *("test_access", "test_admin", "test_clients", "test_data", "test_groups", "test_instances"),
    *("test_requests", "test_sasl", "test_times", "test_records", "test_transactions"),
]
FLAGS = ("-q", "-x", "-p", "tests.drawn_kit", "-p", "no:cacheprovider", "-p", "no:schemathesis")
TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("file", drawn("files with drawn bounds", FILES, 3))
def test_kafkas_protocol_holds_with_drawn_bounds(file: str) -> None:
    path = Path(__file__).parent / f"{file}.py"
    drawn_by = f"{file} {run_seed()}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *FLAGS, "-p", "no:xdist", str(path)],
        env={**os.environ, drawn_kit.DRAWN_BY: drawn_by},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"Bounds.of({drawn_by!r}) were set.\n{done.stdout[-4_000:]}"


def test_tests_that_run_only_with_defaults_are_there() -> None:
    text = "".join((Path(__file__).parent / f"{file}.py").read_text() for file in FILES)
    assert not [name for name in drawn_kit.AT_DEFAULT if f"def {name}(" not in text]
