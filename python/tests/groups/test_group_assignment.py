"""Assignments of partitions are balanced, with as few moves as balance allows."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tms.groups.assignment import assign

MEMBERS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)
PARTITIONS = st.integers(0, 40)
OWNERS = st.lists(st.sampled_from([None, *"abcdefghxyz"]), max_size=46).map(
    lambda names: {at: name for at, name in enumerate(names) if name is not None}
)


def moves_needed(partitions: int, members: list[str], owners: dict[int, str]) -> int:
    """The least number of moves, by counting: each member keeps as many as it may, and the largest
    ones get the larger shares."""
    few, extra = divmod(partitions, len(members))
    counts = Counter(o for p, o in owners.items() if p < partitions and o in members)
    most = sorted((counts[member] for member in members), reverse=True)
    kept = sum(min(n, few + (place < extra)) for place, n in enumerate(most))
    return partitions - kept


@given(PARTITIONS, MEMBERS, OWNERS)
def test_each_member_has_an_equal_number_give_or_take_one(
    partitions: int, members: list[str], owners: dict[int, str]
) -> None:
    target = assign(partitions, members, owners)
    if not members:
        assert target == {}
        return
    assert sorted(target) == list(range(partitions))
    counts = Counter(target.values())
    few, extra = divmod(partitions, len(members))
    assert sorted((counts[m] for m in members), reverse=True) == [few + 1] * extra + [few] * (
        len(members) - extra
    )


@given(PARTITIONS, MEMBERS.filter(bool), OWNERS)
def test_no_more_partitions_move_than_balance_asks_for(
    partitions: int, members: list[str], owners: dict[int, str]
) -> None:
    target = assign(partitions, members, owners)
    moved = sum(owners.get(p) != member for p, member in target.items())
    assert moved == moves_needed(partitions, members, owners)


@given(PARTITIONS, MEMBERS.filter(bool), OWNERS, st.data())
def test_a_target_is_not_changed_by_going_there_step_by_step(
    partitions: int, members: list[str], owners: dict[int, str], data: st.DataObject
) -> None:
    target = assign(partitions, members, owners)
    done = data.draw(st.sets(st.integers(0, max(0, partitions - 1))))
    halfway = {**owners, **{p: member for p, member in target.items() if p in done}}
    after = assign(partitions, members, halfway)
    left = sum(halfway.get(p) != member for p, member in after.items())
    assert left == sum(halfway.get(p) != member for p, member in target.items())


def test_a_member_that_joins_takes_from_those_who_have_most_and_nothing_else_moves() -> None:
    owners = assign(64, [f"m{n:02}" for n in range(15)], {})
    members = [f"m{n:02}" for n in range(16)]
    target = assign(64, members, owners)
    moved = {p for p in target if target[p] != owners[p]}
    assert len(moved) == 4 and {target[p] for p in moved} == {"m15"}
    assert set(Counter(target.values()).values()) == {4}
