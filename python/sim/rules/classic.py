"""The rules of groups of Kafka's classic protocol.

    generations   the members of one generation follow one plan, and share no partition
    fencing       a commit of a generation that was over when it began, or of a static member that
                  had been replaced, does not land
    positions     the newest acknowledged commit stands, and nothing else
    kinds         a group has no member of another protocol while it has members of one

A generation is over once a member is in another one, if both were answered by one shard, or if a
commit of the other one was acknowledged: an instance that has been replaced, and does not know it
yet, may begin generations of its own, but nothing that it does lands.
"""

from collections import defaultdict
from collections.abc import Iterator

from sim.history import Assigned, Generation, History, Moved, Positioned, Present
from sim.rules.findings import NEVER, Finding, Kind


class Classic:
    """The history of such groups, request by request."""

    def __init__(self, history: History) -> None:
        self._generations = history.of(Generation)
        self._assigned = history.of(Assigned)
        self._moved = history.of(Moved)
        self._positioned = history.of(Positioned)
        self._present = history.of(Present)
        self._numbers = {(one.group, one.partition, one.number): one for one in self._moved}

    def findings(self) -> Iterator[Finding]:
        """All violations."""
        yield from self._owners()
        yield from self._fencing()
        yield from self._positions()
        yield from self._kinds()

    def _owners(self) -> Iterator[Finding]:
        plans: dict[tuple[str, int, int], int] = {}
        owners: dict[tuple[str, int, int, int], Assigned] = {}
        for one in self._assigned:
            generation = one.group, one.life, one.generation
            if one.plan and plans.setdefault(generation, one.plan) != one.plan:
                what = f"generation {one.generation} of {one.group} has several plans at {one.at}"
                yield Finding(Kind.OWNERS, what)
            for partition in one.partitions:
                owner = owners.setdefault((*generation, partition), one)
                replaced = one.instance is not None and one.instance == owner.instance
                if owner.member != one.member and not replaced:
                    what = f"{owner.member} and {one.member} own {partition} of {one.group}"
                    yield Finding(Kind.OWNERS, what)

    def _fencing(self) -> Iterator[Finding]:
        seen = {(one.group, one.partition, one.number) for one in self._positioned}
        sure: dict[tuple[str, int, int], int] = {}  # when a generation's first commit was answered
        for one in self._moved:
            if one.done:
                generation = one.group, one.life, one.generation
                sure[generation] = min(sure.get(generation, NEVER), one.ended)
        for one in self._moved:
            if one.done or (one.group, one.partition, one.number) in seen:
                came = self._came(one)
                for other in self._generations:
                    if other.group == one.group and came < other.at < one.at:
                        at = sure.get((other.group, other.life, other.generation), NEVER)
                        genuine = other.life == one.life or at < one.at
                        if genuine and _ends(other, one):
                            yield Finding(Kind.FENCED, f"{one.number} of {one.member} at {one.at}")
                            break

    def _came(self, moved: Moved) -> int:
        """When a member was last told that it is in the generation that it commits for."""
        mine = (moved.group, moved.member, moved.generation)
        return max(
            (
                one.at
                for one in self._generations
                if (one.group, one.member, one.generation) == mine and one.at < moved.at
            ),
            default=0,
        )

    def _positions(self) -> Iterator[Finding]:
        done: dict[tuple[str, int], list[Moved]] = defaultdict(list)
        for moved in self._moved:
            if moved.done:
                done[moved.group, moved.partition].append(moved)
        for look in self._positioned:
            found = self._numbers.get((look.group, look.partition, look.number))
            place = f"{look.group} of {look.partition} at {look.at}"
            invented = found is None or found.done is False or found.at > look.ended
            if look.number and (invented or look.metadata != f"{look.number}"):
                yield Finding(Kind.INVENTED, f"{look.number} in {place}")
            for moved in done[look.group, look.partition]:
                is_newer = found is None or (found.done and found.ended < moved.at)
                if moved.ended < look.at and is_newer and found is not moved:
                    yield Finding(Kind.REGRESSION, f"{look.number} in {place}, not {moved.number}")
                    break

    def _kinds(self) -> Iterator[Finding]:
        told: dict[tuple[str, int, str, str], list[Present]] = defaultdict(list)
        for one in self._present:
            told[one.group, one.shard, one.kind, one.who].append(one)
        for (group, shard, kind, who), presents in told.items():
            first, last = min(one.ended for one in presents), max(one.at for one in presents)
            for other in self._present:
                if (other.group, other.shard) != (group, shard) or other.kind == kind:
                    continue
                if first < other.at and other.ended < last:
                    yield Finding(Kind.KINDS, f"{other.who} beside {who} in {group} at {other.at}")
                    break


def _ends(other: Generation, moved: Moved) -> bool:
    """True if a member that is told of a generation later shows that a commit is too late."""
    if other.generation != moved.generation:
        return True
    return (
        other.instance is not None
        and other.instance == moved.instance
        and other.member != moved.member
    )
