"""The run seed: its origin, and the random choices of tests, which all follow from it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tms
from sim.corpus.seeds import ENGINE, INSTANCES, fresh
from tests.run_seed import COUNTS, FRESH, SEED, decide, drawn, fresh_count, one_of, seed_for

PYTHON = Path(__file__).resolve().parents[2]
PROBE = """
import json, os
from hypothesis import given, strategies as st
from sim.corpus.seeds import ENGINE, INSTANCES, fresh
from tests.run_seed import run_seed, seed_for

def note(name, drawn):
    with open(os.environ["PROBE"], "a") as file:
        file.write(json.dumps([name, drawn]) + "\\n")

def test_fresh():
    note("fresh", [[*fresh(kind, run_seed(), 3)] for kind in (ENGINE, INSTANCES)])

def test_schemathesis():
    note("schemathesis", seed_for("schemathesis"))

def test_hypothesis():
    drawn = []

    @given(st.integers())
    def draw(number):
        drawn.append(number)

    draw()
    note("hypothesis", drawn)

def test_in_a_process():
    import subprocess, sys
    command = [sys.executable, "-c", "from tests.run_seed import run_seed; print(run_seed())"]
    note("process", subprocess.run(command, capture_output=True, text=True).stdout)
"""


def draws(tmp_path: Path, *flags: str, **environment: str) -> tuple[list[str], str]:
    """The lines that tests noted in a run of pytest with our conftest, and the output of pytest."""
    file, drawn = tmp_path / "test_probe.py", tmp_path / "drawn"
    file.write_text(PROBE)
    drawn.unlink(missing_ok=True)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in (SEED, COUNTS) and not name.startswith(("PYTEST_", "CI"))
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
        "-p",
        "tests.conftest",
    ]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, *flags, file],
        cwd=PYTHON,
        env={**inherited, "PYTHONPATH": str(PYTHON), "PROBE": str(drawn), **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(drawn.read_text().splitlines()), done.stdout


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """A run of two workers that decides its seed itself."""
    folder = tmp_path_factory.mktemp("shared")
    return draws(folder, "-n", "2", TMS_TEST_SEEDS="7", PYTHONHASHSEED="1")


def test_the_text_that_a_run_prints_repeats_it_on_any_machine(
    shared: tuple[list[str], str], tmp_path: Path
) -> None:
    """With any number of workers, any order of sets, and hypothesis's own settings under CI."""
    drawn, said = shared
    printed = re.search(r"Run seed (\S+); `TMS_TEST_SEED=\1 TMS_TEST_SEEDS=7 make test`", said)
    assert printed, said
    again, _ = draws(
        tmp_path, "-p", "no:xdist", TMS_TEST_SEED=printed[1], PYTHONHASHSEED="2", CI="true"
    )
    assert drawn == again and len(drawn) == 4


def test_another_run_seed_draws_something_else(
    shared: tuple[list[str], str], tmp_path: Path
) -> None:
    others, _ = draws(tmp_path, "-p", "no:xdist", TMS_TEST_SEED="b")
    assert not set(shared[0]) & set(others)


def test_a_seed_of_hypothesis_on_the_command_line_comes_first(tmp_path: Path) -> None:
    first, second = (
        draws(
            tmp_path,
            "-p",
            "no:xdist",
            "-k",
            "test_hypothesis",
            "--hypothesis-seed=1",
            TMS_TEST_SEED=seed,
        )[0]
        for seed in ("a", "b")
    )
    assert first == second


def test_a_run_seed_that_is_given_counts(tmp_path: Path) -> None:
    assert decide({SEED: "given"}, tmp_path) == "given"


def test_else_the_commit_is_the_run_seed_and_processes_inherit_it(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", tmp_path]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout
    environment = {SEED: ""}
    decided = decide(environment, tmp_path)
    assert decided and commit.startswith(decided)
    assert environment == {SEED: decided}


def test_without_git_the_version_is_the_run_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decide({}, tmp_path) == tms.__version__
    monkeypatch.setenv("PATH", "")
    assert decide({}, PYTHON) == tms.__version__


def test_fresh_seeds_are_others_for_each_run_seed_and_each_kind() -> None:
    runs = [tuple(fresh(kind, seed, 9)) for kind in (ENGINE, INSTANCES) for seed in "abc"]
    assert len({seed for seeds in runs for seed in seeds}) == 6 * 9


def test_purposes_draw_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED, "a")
    assert seed_for("hypothesis") != seed_for("schemathesis")


def test_a_landing_has_some_of_all_choices_others_for_each_run_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    landings = []
    for seed in "abc":
        monkeypatch.setenv(SEED, seed)
        parameters = drawn("points", range(40), 10)
        assert parameters == drawn("points", range(40), 10)
        landing = [one for one in parameters if isinstance(one, int)]
        long = [one for one in parameters if not isinstance(one, int)]
        assert len(landing) == 10 and all(one.marks[0].name == "long" for one in long)
        assert sorted([*landing, *(one.values[0] for one in long)]) == [*range(40)]
        landings.append(tuple(landing))
    assert len(set(landings)) == 3


def test_over_some_run_seeds_each_name_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for seed in range(20):
        monkeypatch.setenv(SEED, str(seed))
        names.add(one_of("a fault", ["leveldb", "rocksdb"]))
    assert names == {"leveldb", "rocksdb"}


def test_a_run_may_have_more_fresh_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(given: str) -> tuple[int, int]:
        monkeypatch.setenv(COUNTS, given)
        return fresh_count(ENGINE), fresh_count(INSTANCES)

    assert counts("") == (FRESH[ENGINE], FRESH[INSTANCES])
    assert counts("70") == (70, 70)
    assert counts("1000,5000") == (1_000, 5_000)
    for wrong in ("many", "1,2,3", "-1", "1,"):
        with pytest.raises(pytest.UsageError, match=f"{COUNTS}={wrong} must be"):
            counts(wrong)
