"""A group has members of TMS's own protocol or of Kafka's, and not of both at once; the positions
of its shard are for both."""

from concurrent.futures import Future, wait

import pytest

from tests.gate_kit import in_thread
from tests.groups.classic_world import KEY, OTHER, A, B, World
from tests.waiting import PATIENCE_S
from tms.errors import Conflict, Fenced, NotOwner, Unavailable
from tms.groups.classic_calls import (
    Answered,
    ClassicKey,
    Client,
    Code,
    JoinAnswer,
    JoinRequest,
    Sender,
    State,
)
from tms.model.group import GroupKind
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey


@pytest.fixture
def world() -> World:
    return World()


def refused(member: str = "") -> list[Answered]:
    return [("join", JoinAnswer(Code.INCONSISTENT_GROUP_PROTOCOL, member))]


@pytest.mark.parametrize("topic", [A, B])
def test_a_group_with_members_of_tms_takes_none_of_kafka(world: World, topic: TopicName) -> None:
    assert world.kind is None
    world.poll(topic)
    assert world.kind is GroupKind.TMS
    assert world.join() == refused()
    assert world.classic.may_commit(KEY, Sender("")) == Code.UNKNOWN_MEMBER_ID
    assert world.classic.delete(KEY) == Code.NON_EMPTY_GROUP
    world.engine.groups.leave(topic, "g", "m")
    assert world.kind is None
    assert world.classic.may_commit(KEY, Sender("")) == Code.NONE
    assert world.join() == []


@pytest.mark.parametrize("topic", [A, B])
def test_a_group_with_members_of_kafka_takes_none_of_tms(world: World, topic: TopicName) -> None:
    member = world.stable()
    assert world.kind is GroupKind.CLASSIC
    with pytest.raises(Conflict, match="has members of Kafka's protocol now") as caught:
        world.poll(topic)
    assert caught.value.details == {"group": "g", "namespace": "default"}
    assert caught.value.code == "conflict" and not caught.value.retriable
    world.engine.groups.leave(topic, "g", "m")  # nothing to leave
    world.leave(member)
    assert world.kind is None
    world.poll(topic)


def test_a_group_is_shown_with_the_protocol_of_its_members(world: World) -> None:
    groups = world.engine.groups
    for topic in (A, B, OTHER):
        groups.move([PositionChange(PositionKey("g", topic, 0), Position.offset(0))])

    def kinds() -> list[GroupKind | None]:
        """Of the group in `A`, `B` and `OTHER`; both ways to look at it agree."""
        described = [groups.describe(topic, "g").kind for topic in (A, B, OTHER)]
        assert described == [groups.list_groups(topic)[0].kind for topic in (A, B, OTHER)]
        assert described == [groups.describe(topic, "g").summary().kind for topic in (A, B, OTHER)]
        return described

    assert kinds() == [None, None, None]
    world.poll(A)
    assert kinds() == [GroupKind.TMS, GroupKind.TMS, None]
    groups.leave(A, "g", "m")
    member = world.stable()
    assert kinds() == [GroupKind.CLASSIC, GroupKind.CLASSIC, None]
    world.leave(member)
    assert kinds() == [None, None, None]


def test_a_group_of_the_same_name_in_another_namespace_is_another_group(world: World) -> None:
    world.poll(OTHER)
    member = world.stable()
    world.poll(OTHER)
    with world.classic.locked() as (groups, _):
        assert groups.describe(KEY).state is State.STABLE
        assert groups.describe(ClassicKey("other", "g")).state is State.DEAD
    assert world.engine.groups.of("g").kind(ClassicKey("other", "g")) is GroupKind.TMS
    world.leave(member)


def test_a_group_that_kafka_members_lose_is_free_again(world: World) -> None:
    world.stable()
    world.clock.pass_ms(10_000)
    assert world.expire() == [] and world.kind is None
    world.poll()


def test_a_kafka_join_waits_for_the_first_member_of_tms_and_is_refused(world: World) -> None:
    with world.gate.holding("write"):
        polling = in_thread(world.poll)
        world.gate.wait_reached()
        joining = in_thread(world.join)
        assert not wait([joining], 0.2).done
    polling.result(PATIENCE_S)
    assert joining.result(PATIENCE_S) == refused()


def test_a_member_of_tms_waits_for_the_first_join_of_kafka_and_is_refused(world: World) -> None:
    members = world.engine.groups.of("g").members

    def begin() -> list[Answered]:
        polling.append(in_thread(world.poll))
        assert not wait(polling, 0.2).done
        with world.classic.locked() as (groups, now_ms):
            request = JoinRequest(0, Client("c", "h"), "t", (("p", b""),), 10_000, 10_000)
            return groups.join(now_ms, "join", KEY, request)

    polling: list[Future[None]] = []
    assert members.without(KEY, begin) == []
    with pytest.raises(Conflict):
        polling[0].result(PATIENCE_S)


def test_both_positions_are_those_of_the_group(world: World) -> None:
    member = world.stable()
    world.commit(5, member, 1)
    world.leave(member)
    world.poll()
    assert world.position() == "offset:5"


@pytest.mark.parametrize("is_rebalanced", [False, True])
def test_a_commit_of_an_earlier_generation_does_not_count(
    world: World, is_rebalanced: bool
) -> None:
    member = world.stable()
    world.commit(5, member, 1)
    for stranger, generation in [(member, 2), (member, 0), ("c-9", 1)]:
        with pytest.raises(Fenced):
            world.commit(6, stranger, generation)
    if is_rebalanced:
        assert [token for token, _ in world.join("again", member)] == ["again"]
    else:
        world.leave(member)
    with pytest.raises(Fenced):
        world.commit(6, member, 1)
    assert world.position() == "offset:5"


def test_a_transaction_moves_a_position_for_a_member_of_the_present_generation(
    world: World,
) -> None:
    member = world.stable()
    for generation in (1, 2):
        owner = Owner(member, generation)
        change = PositionChange(PositionKey("g", A, 0), Position.offset(7), None, owner)
        if generation == 1:
            world.engine.transactions.commit(Commit(positions=(change,)))
        else:
            with pytest.raises(Fenced):
                world.engine.transactions.commit(Commit(positions=(change,)))
    assert world.position() == "offset:7"


def test_the_groups_of_all_open_shards_are_found(world: World) -> None:
    world.join()
    listed = []
    for classic in world.engine.groups.classic_shards():
        with classic.locked() as (groups, now_ms):
            listed += groups.list_groups("default")
            assert groups.next_deadline_ms in (None, now_ms + 3_000)
    assert [one.group for one in listed] == ["g"]


def test_one_instance_coordinates_a_group_and_holds_its_positions(world: World) -> None:
    shards = world.engine.topics.shards
    for group in ("g", "h", "billing"):
        number = shards.of_group(group)
        assert {shards.of_position(topic, group) for topic in (A, B, OTHER)} == {number}
        assert world.engine.groups.of(group) is world.engine.groups.at(number)


def test_callers_that_wait_are_told_when_the_shard_moves(world: World) -> None:
    groups, delivered = world.engine.groups, list[Answered]()
    groups.deliver_classic(delivered.extend)
    assert world.join() == []
    classic, number = world.classic, world.engine.topics.shards.of_group("g")
    groups.close(number)
    ((token, answer),) = delivered
    assert (token, answer.code) == ("join", Code.NOT_COORDINATOR)
    with pytest.raises((NotOwner, Unavailable)):
        groups.of("g")
    request = JoinRequest(0, Client("c", "h"), "consumer", (("range", b""),), 10_000, 10_000)
    ((_, late),) = classic.join("late", KEY, request)  # by a thread that still had the shard
    assert late.code == Code.NOT_COORDINATOR
    groups.open(number)
    assert world.kind is None  # it was never stable


def test_ids_of_members_differ(world: World) -> None:
    world.join()
    world.join("second")
    with world.classic.locked() as (groups, _):
        ids = [one.member for one in groups.describe(KEY).members]
    assert len(set(ids)) == 2 and all(id.startswith("c-") and len(id) == 38 for id in ids)
