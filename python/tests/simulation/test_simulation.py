"""The simulation: nothing is found in any of these seeds, a seed is one run, and every planted bug
is found."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.bugs.bugs import BUGS, planted
from sim.bugs.found import ELSEWHERE
from sim.disk import Disk
from sim.simulation import run
from tms.model.topic import Durability

SEEDS, CHUNK = 1_000, 50
BUG_SEEDS = SEEDS  # in which nothing is found without a bug
PYTHON = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_nothing_is_found_in_these_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        findings = run(seed).findings
        assert not findings, f"make sim SEED={seed} replays this: {findings[:3]}"


@pytest.mark.parametrize("arguments", [["3"], ["--instances", "177"]])
def test_a_seed_is_one_run_whatever_the_order_of_sets(arguments: list[str]) -> None:
    def replay(hash_seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "sim", *arguments]
        return subprocess.run(
            command, cwd=PYTHON, env=environment, capture_output=True, check=True, timeout=60
        ).stdout

    assert replay("1") == replay("2")


def test_the_disk_of_a_simulation_keeps_what_was_replaced_until_it_is_reclaimed() -> None:
    disk = Disk()
    one = disk.open("one", create=True)
    one.write([(b"a", b"first"), (b"b", b"second")], Durability.SYNCED)
    one.overwrite([(b"a", b"third")], Durability.SYNCED)
    one.delete([b"b"])
    assert disk.holds(["first", "second", "third", "fourth"]) == ("first", "second", "third")
    one.reclaim()
    assert disk.holds(["first", "second", "third"]) == ("third",)
    with disk.losing():
        one.delete([b"a"])
    assert disk.holds(["third"]) == ()


def _wrong(seed: int) -> bool:
    try:
        return bool(run(seed).findings)
    except Exception:  # stuck, or the engine contradicts itself
        return True


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        assert any(_wrong(seed) for seed in range(1, BUG_SEEDS + 1))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bug", ELSEWHERE)
def test_a_planted_bug_that_no_run_comes_by_is_found_by_the_test_that_it_names(bug: str) -> None:
    """In a process that has it."""
    program = (
        "import sys, pytest\n"
        "from sim.bugs.bugs import planted\n"
        "with planted(sys.argv[1]):\n"
        "    sys.exit(pytest.main(sys.argv[2:]))"
    )
    (file,) = (PYTHON / "tests").glob(f"*/{ELSEWHERE[bug].test.partition('::')[0]}")
    name = f"{file}::{ELSEWHERE[bug].test.partition('::')[2]}"
    test = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", name]
    command = [sys.executable, "-c", program, bug, *test]
    ended = subprocess.run(command, cwd=PYTHON, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
