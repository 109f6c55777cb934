"""Bugs to plant in the rules for producers whose sequences count messages."""

from collections.abc import Callable
from typing import Any

from sim.replacing import Replacement
from tms.errors import StaleEpoch
from tms.log import counting
from tms.log.producers import ProducerWindow


def _no_fence_of_epochs() -> list[Replacement]:
    """A block of an earlier epoch is stored."""
    right = counting.find_counted

    def find_counted(*given: Any) -> Any:
        try:
            return right(*given)
        except StaleEpoch:
            return None

    return [(counting, "find_counted", find_counted)]


def _count_again() -> list[Replacement]:
    """A repeated append is stored once more."""
    right = counting.find_counted

    def find_counted(*given: Any) -> Any:
        right(*given)

    return [(counting, "find_counted", find_counted)]


def _count_in_memory() -> list[Replacement]:
    """A snapshot lacks the producers whose sequences count messages."""
    return [(ProducerWindow, "dump_counting", lambda self: {})]


COUNTING: dict[str, Callable[[], list[Replacement]]] = {
    "count-again": _count_again,
    "count-in-memory": _count_in_memory,
    "no-fence-of-epochs": _no_fence_of_epochs,
}
