"""Fault 1: kill -9 at every write step of a publisher that has the engine in its own process."""

from pathlib import Path

import pytest

from tests.faults import publisher
from tests.faults.history import check_bus, read_ledger
from tests.faults.killing import CALLS, Publishers

POINTS = 4  # of each call in each step


@pytest.mark.parametrize("step", publisher.STEPS)
def test_fault_1_a_publisher_killed_at_any_write_step_has_lost_nothing_acknowledged(
    step: str, fast_path: Path, database: str
) -> None:
    killed = 0
    with Publishers() as publishers:
        counts = publishers.count(fast_path / "whole", fast_path / "whole.ledger", step)
        for call in CALLS:
            for nth in points(counts[call]):
                place = fast_path / f"{call}.{nth}"
                ledger = place.with_suffix(f".{nth}.ledger")
                killed += publishers.kill(place, ledger, step, call, nth) == -9
                with publisher.open_bus(place) as bus:
                    check_bus(bus, read_ledger(ledger.read_bytes()))
    assert killed >= 10, f"only {killed} kills took place"


def points(count: int) -> list[int]:
    """The first call, the last one, and some in between."""
    return sorted({1 + (count - 1) * n // (POINTS - 1) for n in range(POINTS)} if count else set())
