"""Fetches and appends of partitions of several owners.

    there is more to read ─▶ each owner is asked for its own
    all was read          ─▶ one is asked for everything, and waits

Invariants

* Who waits asks one instance for everything, which asks the others: else news at one owner would
  wait for the answers of all.
* An answer of parts says of each partition what its owner said.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from tms.api.parameters import TIMEOUT_S
from tms.client.http.addresses import ServiceAddress
from tms.client.transport import FetchRequest, PendingAnswer
from tms.model.message import Appended, Fetched
from tms.runtime.clock import Clock

P = TypeVar("P")
T = TypeVar("T")


class Dividing:
    """The shared state of the fetches of one consumer."""

    def __init__(self) -> None:
        self._behind = True  # there is more to read, as far as is known

    def parts(
        self, request: FetchRequest, owners: Mapping[ServiceAddress, Sequence[int]]
    ) -> list[tuple[ServiceAddress, FetchRequest]]:
        """The request to each owner; `owners` have these positions of the request, by their
        numbers. Empty if one instance is to be asked for all."""
        if len(owners) < 2 or not self._behind:
            return []
        bytes_max = max(1, request.bytes_max // len(owners))
        return [
            (
                address,
                request._replace(
                    positions=[request.positions[number] for number in numbers],
                    bytes_max=bytes_max,
                    wait_s=0.0,
                ),
            )
            for address, numbers in owners.items()
        ]

    def seen(self, fetched: Fetched) -> Fetched:
        """An answer, which says whether there is more."""
        self._behind = not fetched.ended
        return fetched

    def joined(self, parts: Sequence[Fetched]) -> Fetched:
        """The answers of owners as one."""
        return self.seen(
            Fetched(
                sorted(
                    (block for part in parts for block in part.blocks),
                    key=lambda block: block.partition,
                ),
                {partition: at for part in parts for partition, at in part.next.items()},
                {partition: end for part in parts for partition, end in part.ends.items()},
                {partition: end for part in parts for partition, end in part.reached.items()},
            )
        )


def in_order(
    owners: Iterable[Sequence[int]], answers: Iterable[Sequence[Appended]]
) -> list[Appended]:
    """The answers of owners to an append, in the order of its blocks; each owner has those with
    these numbers."""
    placed = {
        number: place
        for numbers, places in zip(owners, answers, strict=True)
        for number, place in zip(numbers, places, strict=True)
    }
    return [placed[number] for number in range(len(placed))]


class PendingParts(Generic[P, T]):
    """A request on its way in one part or several, whose answers `join` makes one; see
    `PendingAnswer`."""

    def __init__(
        self, parts: Sequence[PendingAnswer[P]], join: Callable[[Sequence[P]], T], clock: Clock
    ) -> None:
        self._parts = parts
        self._join = join
        self._clock = clock

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def result(self, timeout_s: float | None = None) -> T:
        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + limit_s
        answers = []
        for part in self._parts:
            answers.append(part.result(max(0.0, deadline_s - self._clock.monotonic_s())))
        return self._join(answers)
