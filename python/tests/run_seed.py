"""The run seed: every random choice of the tests follows from this text, in every process of a run.

`TMS_TEST_SEED`, else the commit, else the version of the package. It decides hypothesis' examples,
schemathesis' requests, the bounds of the drawn contracts, and which fresh seeds the simulation runs
(`TMS_TEST_SEEDS` of them). pytest prints at its end how to repeat a run.

A plugin for pytest: the process that the user started decides, its workers and the processes that
tests start inherit the decision by the environment.
"""

import os
from collections.abc import Iterable, MutableMapping, Sequence
from pathlib import Path
from random import Random

import pytest

import tms
from sim.corpus.seeds import ENGINE, INSTANCES, Kind, commit, number

SEED, COUNTS = "TMS_TEST_SEED", "TMS_TEST_SEEDS"
FRESH = {ENGINE: 100, INSTANCES: 120}  # seeds of the simulation in one run of the tests
_SEEDS_MAX = 1 << 64


def decide(environment: MutableMapping[str, str], directory: Path) -> str:
    """The run seed of tests in this directory; the environment has it from then on."""
    decided = environment.get(SEED) or commit(directory) or tms.__version__
    environment[SEED] = decided
    return decided


def run_seed() -> str:
    """The run seed of this run."""
    return decide(os.environ, Path(__file__).parent)


def seed_for(purpose: str) -> int:
    """A seed for a tool that draws by itself."""
    return number(run_seed(), purpose, _SEEDS_MAX)


def one_of(purpose: str, names: Sequence[str]) -> str:
    """The name that the run seed draws."""
    return names[seed_for(purpose) % len(names)]


def drawn(purpose: str, choices: Iterable[object], count: int) -> list[object]:
    """Parameters of a test: `count` of the choices in a landing, drawn from the run seed; the
    others run in `make test-long`."""
    every = list(choices)
    landing = Random(seed_for(purpose)).sample(range(len(every)), count)
    return [
        choice if number in landing else pytest.param(choice, marks=pytest.mark.long)
        for number, choice in enumerate(every)
    ]


def examples(landing: int, long: int) -> list[object]:
    """The number of examples of a property of hypothesis: `landing` in a landing, `long` in `make
    test-long`. Parameters of a test that gives them to hypothesis."""
    return [landing, pytest.param(long, marks=pytest.mark.long)]


def fresh_count(kind: Kind) -> int:
    """The number of fresh seeds of this kind in a run."""
    given = os.environ.get(COUNTS, "")
    if not given:
        return FRESH[kind]
    counts = given.split(",")
    if len(counts) > len(FRESH) or not all(count.isdigit() for count in counts):
        raise pytest.UsageError(
            f"{COUNTS}={given} must be a number of fresh seeds, or two, as in 1000,5000: of one"
            " engine and of several instances."
        )
    return int(counts[0] if kind == ENGINE else counts[-1])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Decide, and configure hypothesis, unless the command line has."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed_for("hypothesis"))
    else:
        run_seed()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how to repeat the drawn choices."""
    variables = [f"{SEED}={run_seed()}"]
    if given := os.environ.get(COUNTS):
        variables.append(f"{COUNTS}={given}")
    seed = f"Run seed {run_seed()}; `{' '.join(variables)} make test` draws everything again."
    terminalreporter.write_line(seed)
