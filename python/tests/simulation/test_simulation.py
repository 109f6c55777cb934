"""The simulation, of one engine and of several instances: without findings in the seeds of the
corpus, and in fresh ones that the run seed draws; and a seed always gives one run."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sim.corpus.seeds import ENGINE, INSTANCES, KINDS, Kind, corpus, fresh
from sim.disk import Disk
from tests.run_seed import fresh_count, run_seed
from tms.model.topic import Durability

CHUNK = {ENGINE: 25, INSTANCES: 20}  # seeds of a test: some ten seconds of a processor
PYTHON = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("no_logs")


def _chunks(kind: Kind, seeds: Sequence[int]) -> Iterator[object]:
    """Parameters of tests whose names do not depend on the seeds."""
    for start in range(0, len(seeds), CHUNK[kind]):
        chunk = seeds[start : start + CHUNK[kind]]
        yield pytest.param(kind, chunk, id=f"{kind.name}-{start + 1}-{start + len(chunk)}")


def _kept(kind: Kind) -> list[int]:
    return [kept.seed for kept in corpus(kind)]


def _fresh(kind: Kind) -> Sequence[int]:
    return fresh(kind, run_seed(), fresh_count(kind))


def _check(kind: Kind, seeds: Sequence[int]) -> None:
    for seed in seeds:
        print(kind.command(seed))  # the last one, if this is stuck
        kind.check(seed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "seeds"), [chunk for kind in KINDS for chunk in _chunks(kind, _kept(kind))]
)
def test_nothing_is_found_in_the_corpus(kind: Kind, seeds: Sequence[int]) -> None:
    _check(kind, seeds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "seeds"), [chunk for kind in KINDS for chunk in _chunks(kind, _fresh(kind))]
)
def test_nothing_is_found_in_fresh_seeds(kind: Kind, seeds: Sequence[int]) -> None:
    _check(kind, seeds)


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


def test_the_disk_of_a_simulation_tells_a_text_from_a_longer_one_that_begins_with_it() -> None:
    disk = Disk()
    one = disk.open("one", create=True)
    one.write([(b"a", b"x-1"), (b"b", b"x-12"), (b"c", b"x-12x-1")], Durability.SYNCED)
    assert disk.holds(["x-1", "x-12", "x-2"]) == ("x-1", "x-12")
    one.delete([b"a", b"c"])
    one.reclaim()
    assert disk.holds(["x-1", "x-12"]) == ("x-12",)
