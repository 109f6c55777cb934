"""The members of a group: each partition has one owner at any time, whichever members join, leave,
pause or get no answer."""

from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.run_seed import examples
from tms.groups.membership import (
    GroupKey,
    Membership,
    Poll,
    decode_entry,
    encode_entry,
)
from tms.model.group import MemberAssignment
from tms.model.topic import TopicName
from tms.model.transaction import Owner

KEY = GroupKey("g", TopicName("default", "t"))


class Group:
    """A membership and its journal."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.state = Membership()
        self.journal: list[tuple[bytes, bytes]] = []

    def poll(
        self,
        member: str,
        holding: Mapping[int, int] | None = None,
        leaving: bool = False,
        ended: tuple[str, ...] = (),
    ) -> MemberAssignment:
        poll = Poll(member, 10.0, holding or {}, leaving)
        change = self.state.decide(poll, self.partitions, ended, self.state.generation + 1)
        if change is not None:
            self.journal.append(encode_entry(KEY, change))
            self.state.apply(change)
        return self.state.assignment(member, self.partitions)


def test_a_lone_member_has_everything_at_once() -> None:
    group = Group(3)
    assignment = group.poll("a")
    assert assignment.partitions == {0: 1, 1: 1, 2: 1}
    assert (assignment.release, assignment.members, assignment.coming) == (frozenset(), 1, 0)


def test_a_heartbeat_changes_and_journals_nothing() -> None:
    group = Group(3)
    assignment = group.poll("a")
    assert (
        group.poll("a", assignment.partitions)
        == group.poll("a", assignment.partitions)
        == assignment
    )
    assert len(group.journal) == 1


def test_a_partition_moves_when_its_owner_has_let_it_go_and_not_before() -> None:
    group = Group(4)
    mine = dict(group.poll("a").partitions)
    new = group.poll("b")
    assert (new.partitions, new.coming) == ({}, 2)
    told = group.poll("a", mine)
    assert told.release == {2, 3} and told.partitions == mine
    assert group.poll("b").partitions == {}
    del mine[3]
    assert group.poll("a", mine).release == {2}
    assert group.poll("b").partitions == {3: group.state.generation}
    del mine[2]
    assert group.poll("a", mine).partitions == {0: 1, 1: 1}
    assert group.poll("b", {3: 3}).partitions == {3: 3, 2: 4}


def test_what_is_not_to_move_is_given_again_to_a_member_that_forgot_it() -> None:
    group = Group(2)
    assert group.poll("a").partitions == group.poll("a", {}).partitions == {0: 1, 1: 1}


def test_who_leaves_lets_go_of_everything_at_once() -> None:
    group = Group(2)
    group.poll("a")
    group.poll("b")
    assert group.poll("a", {0: 1, 1: 1}, leaving=True).partitions == {}
    assert group.poll("b").partitions == {0: 3, 1: 3}


def test_a_member_whose_session_ended_is_replaced_and_comes_back_as_a_new_one() -> None:
    group = Group(2)
    mine = group.poll("a").partitions
    assert group.poll("b", ended=("a",)).partitions == {0: 2, 1: 2}
    assert group.state.owners[0] == Owner("b", 2)
    back = group.poll("a", mine)
    assert (back.partitions, back.coming, list(group.state.sessions)) == ({}, 1, ["b", "a"])


def test_partitions_that_a_topic_got_or_lost_follow() -> None:
    group = Group(1)
    mine = group.poll("a").partitions
    group.partitions = 3
    mine = group.poll("a", mine).partitions
    assert sorted(mine) == [0, 1, 2]
    group.partitions = 1  # deleted, and recreated with fewer
    assert sorted(group.poll("a", mine).partitions) == [0]
    assert sorted(group.state.owners) == [0]


def test_more_members_than_partitions_wait_and_step_in() -> None:
    group = Group(1)
    group.poll("a")
    for name in "bc":
        assignment = group.poll(name)
        assert (assignment.partitions, assignment.coming) == ({}, 0)
    group.poll("a", {0: 1}, leaving=True)
    assert [sorted(group.poll(name).partitions) for name in "bc"] == [[0], []]


NAMES = ("a", "b", "c", "d")


class Members(RuleBasedStateMachine):
    """Members that behave as the client does, lost answers, ending sessions, restarts from the
    journal."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(7)
        self.holding: dict[str, dict[int, int]] = {}  # as each member believes
        self.dead: dict[str, dict[int, int]] = {}  # as it believed before its session ended

    @rule(name=st.sampled_from(NAMES), lost=st.booleans(), keeps=st.integers(0, 7))
    def poll(self, name: str, lost: bool, keeps: int) -> None:
        """Poll, and release at most so many partitions; the answer may be lost."""
        believed = self.dead.get(name) or self.holding.setdefault(name, {})
        told = self.group.poll(name, believed)
        if lost:
            self.holding.setdefault(name, {})
            return
        self.dead.pop(name, None)
        mine = dict(told.partitions)
        for partition in sorted(told.release)[keeps:]:
            del mine[partition]
        self.holding[name] = mine

    @rule(name=st.sampled_from(NAMES))
    @precondition(lambda self: self.holding)
    def leave(self, name: str) -> None:
        self.holding.pop(name, None)
        self.dead.pop(name, None)
        self.group.poll(name, leaving=True)

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES))
    @precondition(lambda self: self.holding)
    def end(self, name: str, other: str) -> None:
        """End a session; another member's poll notices it."""
        if name == other or name not in self.group.state.sessions:
            return
        self.dead[name] = self.holding.pop(name, {})
        believed = self.dead.get(other) or self.holding.setdefault(other, {})
        self.group.poll(other, believed, ended=(name,))

    @rule()
    def restart(self) -> None:
        """Read the state from the journal."""
        before = self.group.state
        self.group.state = Membership()
        for raw in self.group.journal:
            key, change = decode_entry(*raw)
            assert key == KEY
            self.group.state.apply(change)
        assert self.group.state.owners == before.owners
        assert list(self.group.state.sessions.items()) == list(before.sessions.items())
        kept = Membership()
        kept.apply(decode_entry(*encode_entry(KEY, self.group.state.snapshot()))[1])
        assert (kept.owners, kept.sessions) == (before.owners, before.sessions)
        assert kept.generation == before.generation

    @invariant()
    def nobody_reads_what_another_one_reads(self) -> None:
        for name, mine in self.holding.items():
            for partition, epoch in mine.items():
                assert self.group.state.owners[partition] == Owner(name, epoch)

    @invariant()
    def every_partition_has_an_owner_while_there_is_a_member(self) -> None:
        state = self.group.state
        assert sorted(state.owners) == (list(range(7)) if state.sessions else [])
        assert {owner.member for owner in state.owners.values()} <= set(state.sessions)

    @invariant()
    def no_epoch_is_given_twice(self) -> None:
        given: dict[tuple[int, int], str] = {}
        for raw in self.group.journal:
            for edit in decode_entry(*raw)[1].edits:
                if getattr(edit, "epoch", 0):
                    place = (edit.partition, edit.epoch)  # type: ignore[union-attr]
                    assert place not in given
                    given[place] = edit.member

    def teardown(self) -> None:
        """Once all members go on undisturbed, the group is balanced soon."""
        for _ in range(4):
            for name in list(self.holding):
                told = self.group.poll(name, self.holding[name])
                self.holding[name] = {
                    p: e for p, e in told.partitions.items() if p not in told.release
                }
        sizes = sorted(map(len, self.holding.values())) or [0]
        silent = set(self.group.state.sessions) - set(self.holding)
        assert silent or sizes[-1] - sizes[0] <= 1
        assert silent or sum(sizes) == (7 if self.holding else 0)


@pytest.mark.parametrize("count", examples(60, 200))
def test_whatever_happens_a_partition_has_one_owner_and_all_are_owned(count: int) -> None:
    run_state_machine_as_test(
        Members, settings=settings(max_examples=count, stateful_step_count=40)
    )
