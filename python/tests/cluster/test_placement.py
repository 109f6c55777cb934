"""The owners of partitions: spread evenly, equal everywhere, and moved as little as possible."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.cluster.placement import CAPACITY_MAX, SLACK_TENTHS, Instance, Placement
from tms.errors import Invalid

counts = st.integers(1, 12)
sizes = st.integers(1, 70)
uids = st.integers(1, 2**40)


def instances(count: int) -> list[Instance]:
    return [Instance(f"10.0.0.{number}:7070") for number in range(count)]


def moved(before: list[Instance], after: list[Instance], topics: int, partitions: int) -> float:
    """The share of all partitions that have another owner afterwards."""
    old, new = Placement(before), Placement(after)
    pairs = [
        pair
        for uid in range(1, topics + 1)
        for pair in zip(old.owners(uid, partitions), new.owners(uid, partitions), strict=True)
    ]
    return sum(was != becomes for was, becomes in pairs) / len(pairs)


@given(counts, uids, sizes)
def test_no_instance_has_more_than_its_share_of_a_topic_and_a_tenth(
    count: int, uid: int, partitions: int
) -> None:
    owned = Counter(Placement(instances(count)).owners(uid, partitions))
    assert owned.total() == partitions
    assert max(owned.values()) <= -(-partitions * SLACK_TENTHS // (10 * count))


@given(st.permutations(instances(6)), uids, sizes)
def test_the_order_in_which_instances_are_named_makes_no_difference(
    shuffled: list[Instance], uid: int, partitions: int
) -> None:
    assert Placement(shuffled).owners(uid, partitions) == Placement(instances(6)).owners(
        uid, partitions
    )


def test_another_version_of_the_service_computes_the_same_owners() -> None:
    owners = Placement(instances(3)).owners(7, 8)
    assert "".join(owner[-6] for owner in owners) == "10012212"


@pytest.mark.parametrize("partitions", [1, 4, 16, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_a_new_instance_takes_its_share_and_little_else_moves(count: int, partitions: int) -> None:
    before, after = instances(count), instances(count + 1)
    assert moved(before, after, 400, partitions) <= 1 / (count + 1) + 0.1
    assert moved(after, before, 400, partitions) <= 1 / (count + 1) + 0.1


@pytest.mark.parametrize("count", [2, 3, 10])
def test_topics_of_one_partition_are_spread_over_all_instances(count: int) -> None:
    placement = Placement(instances(count))
    owned = Counter(placement.owners(uid, 1)[0] for uid in range(1, 3_001))
    assert max(owned.values()) <= 1.15 * 3_000 / count


@given(st.integers(2, 8), uids, sizes)
def test_a_draining_instance_owns_nothing_as_long_as_another_one_is_there(
    count: int, uid: int, partitions: int
) -> None:
    *others, draining = instances(count)
    drained = Placement([*others, draining._replace(draining=True)]).owners(uid, partitions)
    assert drained == Placement(others).owners(uid, partitions)
    everybody = [instance._replace(draining=True) for instance in instances(count)]
    assert Placement(everybody).owners(uid, 1) == Placement(instances(count)).owners(uid, 1)


@pytest.mark.parametrize("capacities", [(1, 2), (1, 1, 4), (5, 1, 1, 1, 5), (2, 2, 2)])
def test_an_instance_of_twice_the_capacity_owns_twice_as_much(capacities: tuple[int, ...]) -> None:
    unequal = [Instance(f"i{number}", capacity) for number, capacity in enumerate(capacities)]
    placement = Placement(unequal)
    owned = Counter(id for uid in range(1, 201) for id in placement.owners(uid, 24))
    for id, capacity, _ in unequal:
        share = 200 * 24 * capacity / sum(capacities)
        assert 0.85 * share <= owned[id] <= 1.15 * share


@given(counts, uids, st.integers(2, 40), st.data())
def test_a_pinned_partition_stays_where_it_was_pinned_while_that_instance_is_there(
    count: int, uid: int, partitions: int, data: st.DataObject
) -> None:
    ids = [instance.id for instance in instances(count)]
    pins = data.draw(st.dictionaries(st.integers(0, partitions - 1), st.sampled_from(ids)))
    owners = Placement(instances(count)).owners(uid, partitions, {**pins, partitions: ids[0]})
    assert {p: owners[p] for p in pins} == pins
    gone = dict.fromkeys(pins, "gone")
    assert Placement(instances(count)).owners(uid, partitions, gone) == Placement(
        instances(count)
    ).owners(uid, partitions)


@pytest.mark.parametrize(
    "wrong",
    [[], [Instance("a"), Instance("a", 2)], [Instance("a", 0)], [Instance("a", CAPACITY_MAX + 1)]],
)
def test_instances_that_cannot_be_placed_over_are_refused(wrong: list[Instance]) -> None:
    with pytest.raises(Invalid):
        Placement(wrong)
