"""The assignment of partitions to members: a pure function.

Invariants

* Every member has floor(P/M) or ceil(P/M) partitions, and every partition has a member.
* As few partitions change their owner as balance allows.
* The result depends on the arguments alone, and is the same again after a part of the moves was
  made.
"""

from collections.abc import Iterator, Mapping, Sequence


def assign(partitions: int, members: Sequence[str], owners: Mapping[int, str]) -> dict[int, str]:
    """The member for each partition. `members` are in the order in which they joined; `owners` has
    the present owners."""
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
    target.update(zip(sorted(free), _in_turns(room), strict=True))
    return target


def _room(
    partitions: int, members: Sequence[str], held: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The number of partitions of each member. If the division leaves a remainder, the members that
    own most now get one more."""
    few, extra = divmod(partitions, len(members))
    room = dict.fromkeys(members, few)
    for member in sorted(members, key=lambda name: -len(held[name]))[:extra]:
        room[member] += 1
    return room


def _in_turns(room: Mapping[str, int]) -> Iterator[str]:
    """Members with room, in turns."""
    left = {member: places for member, places in room.items() if places}
    while left:
        for member in list(left):
            yield member
            left[member] -= 1
            if not left[member]:
                del left[member]
