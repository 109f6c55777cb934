"""Fault 1: kill -9 at every write step of a publisher that has the engine in its own process."""

from pathlib import Path

import pytest

from tests.faults import publisher
from tests.faults.history import check_bus, read_ledger
from tests.faults.killing import CALLS, Publishers

POINTS = [2, pytest.param(4, marks=pytest.mark.long)]  # of each call in each step


@pytest.mark.parametrize("most", POINTS)
@pytest.mark.parametrize("step", publisher.STEPS)
def test_fault_1_a_publisher_killed_at_any_write_step_has_lost_nothing_acknowledged(
    step: str, most: int, fast_path: Path, database: str
) -> None:
    killed = 0
    with Publishers() as publishers:
        counts = publishers.count(fast_path / "whole", fast_path / "whole.ledger", step)
        for call in CALLS:
            for nth in points(counts[call], most):
                place = fast_path / f"{call}.{nth}"
                ledger = place.with_suffix(f".{nth}.ledger")
                killed += publishers.kill(place, ledger, step, call, nth) == -9
                with publisher.open_bus(place) as bus:
                    check_bus(bus, read_ledger(ledger.read_bytes()))
    assert killed >= 2 * most, f"only {killed} kills took place"


def points(count: int, most: int) -> list[int]:
    """The first call, the last one, and some in between."""
    return sorted({1 + (count - 1) * n // (most - 1) for n in range(most)} if count else set())
