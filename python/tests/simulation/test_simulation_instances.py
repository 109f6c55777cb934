"""The simulation of several instances: nothing is found in these seeds."""

import logging
from collections.abc import Iterator

import pytest

from sim.instances import ClusterWorld
from sim.simulation import run

SEEDS, CHUNK = 5_000, 25


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_nothing_is_found_in_these_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            findings = run(seed, of=ClusterWorld).findings
        except Exception as error:
            raise AssertionError(f"make sim SIM_FLAGS=--instances SEED={seed}") from error
        assert not findings, f"make sim SIM_FLAGS=--instances SEED={seed}: {findings[:3]}"
