"""Who should have which partition: a pure function.

Invariants

* Everybody has floor(P/M) or ceil(P/M) partitions, and every partition has somebody.
* Of what is right nothing moves: as few partitions change their owner as balance allows.
* The answer depends on the arguments alone, and is reached step by step: with a part of the moves
  done it is the same again.
"""

from collections.abc import Iterator, Mapping, Sequence


def assign(partitions: int, members: Sequence[str], owners: Mapping[int, str]) -> dict[int, str]:
    """The member for each partition. `members` in the order in which they joined; `owners` has
    those that have one now."""
    if not members:
        return {}
    held: dict[str, list[int]] = {member: [] for member in members}
    free: list[int] = []
    for partition in range(partitions):
        held.get(owners.get(partition, ""), free).append(partition)
    room = _room(partitions, members, held)
    target: dict[int, str] = {}
    for member, mine in held.items():
        target.update(dict.fromkeys(mine[: room[member]], member))
        free += mine[room[member] :]
        room[member] -= min(room[member], len(mine))
    target.update(zip(sorted(free), _takers(room), strict=True))
    return target


def _room(
    partitions: int, members: Sequence[str], held: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """How many each may have. Where it does not come out even, those have one more who have the
    most now."""
    few, extra = divmod(partitions, len(members))
    room = dict.fromkeys(members, few)
    for member in sorted(members, key=lambda name: -len(held[name]))[:extra]:
        room[member] += 1
    return room


def _takers(room: Mapping[str, int]) -> Iterator[str]:
    """Members with room, in turns."""
    left = {member: places for member, places in room.items() if places}
    while left:
        for member in list(left):
            yield member
            left[member] -= 1
            if not left[member]:
                del left[member]
