"""The simulation of several instances finds every bug that is planted."""

import logging
from collections.abc import Iterator

import pytest

from sim.bugs.instances import OF_INSTANCES
from sim.instances import ClusterWorld
from sim.replacing import replaced
from sim.simulation import run

BUG_SEEDS = 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _wrong(seed: int) -> bool:
    try:
        return bool(run(seed, of=ClusterWorld).findings)
    except Exception:  # stuck, or an engine contradicts itself
        return True


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", OF_INSTANCES)
def test_a_planted_bug_is_found(bug: str) -> None:
    with replaced(OF_INSTANCES[bug]()):
        assert any(_wrong(seed) for seed in range(1, BUG_SEEDS + 1))
