"""The placement of partitions on instances, which every process computes from the view.

    partition ─▶ a score with every instance ─▶ the best of those that have room for it

Invariants

* It is a function of the instances, the topic's uid and its number of partitions: the same in every
  process. Other topics make no difference, so no process has to know them all.
* An instance owns at most its share of a topic's partitions and a tenth more, rounded up: a topic
  is spread over instances even if it has few partitions. Pinned partitions may be more.
* An instance that is draining owns nothing, unless all are.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

from tms.errors import Invalid

SLACK_TENTHS = 11  # of a share
CAPACITY_MAX = 64
_MULTIPLIER, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Instance(NamedTuple):
    """An instance of the service. One of capacity 2 owns twice as much as one of 1."""

    id: str
    capacity: int = 1
    draining: bool = False


class Placement:
    """The owners of all partitions while these instances are there. Raises `Invalid` if there are
    none, or two with one id, or for a capacity that is none."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        present = sorted(instances)
        if not present or len({instance.id for instance in present}) < len(present):
            raise Invalid(f"A placement is over instances with different ids, got {present}.")
        for instance in present:
            if not 1 <= instance.capacity <= CAPACITY_MAX:
                raise Invalid(
                    f"The capacity of {instance.id} is 1 to {CAPACITY_MAX}, "
                    f"got {instance.capacity}.",
                    field="capacity",
                )
        taking = [instance for instance in present if not instance.draining] or present
        self._ids = [instance.id for instance in taking]
        self._capacities = [instance.capacity for instance in taking]
        self._capacity = sum(self._capacities)
        self._seeds: list[int] = []  # of an instance as many as its capacity
        self._index_of: list[int] = []  # of each seed, that of its instance
        for index, instance in enumerate(taking):
            for number in range(instance.capacity):
                self._seeds.append(_hash(f"{instance.id} {number}"))
                self._index_of.append(index)

    def owners(
        self, uid: int, partitions: int, pins: Mapping[int, str] = MappingProxyType({})
    ) -> list[str]:
        """The owner of each partition of a topic; `pins` are owners that people have chosen, as
        long as they are there."""
        tenths = 10 * self._capacity
        room = [-(-partitions * one * SLACK_TENTHS // tenths) for one in self._capacities]
        pinned = {p: id for p, id in pins.items() if id in self._ids and p < partitions}
        for id in pinned.values():
            room[self._ids.index(id)] -= 1
        return [
            pinned.get(partition) or self._choose(_hash(f"{uid} {partition}"), room)
            for partition in range(partitions)
        ]

    def _choose(self, partition: int, room: list[int]) -> str:
        scores = [(partition ^ seed) * _MULTIPLIER & _MASK for seed in self._seeds]
        best = scores.index(max(scores))
        while room[self._index_of[best]] <= 0 and max(scores) >= 0:
            scores[best] = -1
            best = scores.index(max(scores))
        index = self._index_of[best]
        room[index] -= 1
        return self._ids[index]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
