"""Fetches of partitions of several owners.

    there is more to read ─▶ each owner is asked for its own
    all was read          ─▶ one is asked for everything, and waits

Invariants

* Who waits asks one instance for everything, which asks the others: else news at one owner would
  wait for the answers of all.
* An answer of parts says of each partition what its owner said.
"""

from collections.abc import Mapping, Sequence

from tms.client.http.addresses import ServiceAddress
from tms.client.transport import FetchRequest, PendingAnswer
from tms.clock import Clock
from tms.model.message import Fetched


class Dividing:
    """What the fetches of one consumer have in common."""

    def __init__(self) -> None:
        self._behind = True  # there is more to read, as far as is known

    def parts(
        self, request: FetchRequest, owners: Mapping[ServiceAddress, Sequence[int]]
    ) -> list[tuple[ServiceAddress, FetchRequest]]:
        """What to ask each owner; `owners` have these positions of the request, by their numbers.
        Empty if one instance is to be asked for all."""
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


class PendingFetch:
    """A fetch on its way, in one part or several; see `PendingAnswer`."""

    def __init__(
        self, dividing: Dividing, parts: Sequence[PendingAnswer[Fetched]], clock: Clock
    ) -> None:
        self._dividing = dividing
        self._parts = parts
        self._clock = clock

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def result(self, timeout_s: float | None = None) -> Fetched:
        answers, deadline_s = list[Fetched](), None
        if timeout_s is not None:
            deadline_s = self._clock.monotonic_s() + timeout_s
        for part in self._parts:
            left_s = None
            if deadline_s is not None:
                left_s = max(0.0, deadline_s - self._clock.monotonic_s())
            answers.append(part.result(left_s))
        return self._dividing.joined(answers)
