"""Kafka's classic group protocol, case by case, as Kafka's own coordinator answers."""

from dataclasses import replace

import pytest

from tests.groups.classic_kit import (
    BOUNDS,
    DELAY_MS,
    KEY,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    Coordinator,
    Protocols,
)
from tms.groups.classic_calls import (
    ClassicKey,
    Code,
    Description,
    JoinAnswer,
    JoinedMember,
    Leaver,
    Listing,
    Sender,
    State,
    SyncAnswer,
)

ROUND: Protocols = (("roundrobin", b"topics"),)
BOTH: Protocols = (("range", b"topics"), ("roundrobin", b"topics"))
HTOB: Protocols = (("roundrobin", b"topics"), ("range", b"topics"))
OTHER_TOPICS: Protocols = (("range", b"other topics"),)


# -- joining ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"session_ms": 5_999}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, Code.INVALID_SESSION_TIMEOUT),
        ({"member": "client-9"}, Code.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"type": ""}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"key": ClassicKey("default", "")}, Code.INVALID_GROUP_ID),
        ({"key": ClassicKey("default", "a/b")}, Code.INVALID_GROUP_ID),
        ({"key": ClassicKey("default", "system:g")}, Code.INVALID_GROUP_ID),
        ({"protocols": (("range", b"x" * (1 << 20)),)}, Code.MESSAGE_TOO_LARGE),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_leaves_no_group(more: dict, code: Code) -> None:
    kafka = Coordinator()
    answer = kafka.joined(kafka.join(**more))
    assert (answer.code, answer.generation, answer.leader) == (code, -1, "")
    assert (answer.protocol_type, answer.protocol, answer.members) == (None, None, ())
    assert (kafka.groups.size, kafka.groups.next_deadline_ms) == (0, None)
    assert kafka.groups.list_groups("default") == []


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_bounds_of_a_session_are_allowed(session_ms: int) -> None:
    kafka = Coordinator()
    asked = kafka.join(session_ms=session_ms)
    assert kafka.joined(asked).code == Code.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(("version", "needs_id"), [(0, False), (3, False), (4, True), (9, True)])
def test_a_new_member_gets_an_id_first_from_version_4_on(version: int, needs_id: bool) -> None:
    kafka = Coordinator()
    token = kafka.join(version=version)
    assert (token in kafka.answers) == needs_id
    if needs_id:
        assert kafka.joined(token) == JoinAnswer(Code.MEMBER_ID_REQUIRED, "client-1")
        assert kafka.state is State.EMPTY
        token = kafka.join("client-1", version=version)
    kafka.wait(DELAY_MS)
    answer = kafka.joined(token)
    assert (answer.code, answer.member, answer.leader) == (Code.NONE, "client-1", "client-1")


def test_a_static_member_needs_no_second_join() -> None:
    kafka = Coordinator()
    token = kafka.join(instance="i", version=9)
    kafka.wait(DELAY_MS)
    assert kafka.joined(token).member == "i-1"


def test_an_id_that_was_given_out_expires_with_the_session() -> None:
    kafka = Coordinator()
    asked = kafka.joined(kafka.join())
    kafka.wait(SESSION_MS - 1)
    assert kafka.groups.has(KEY)
    kafka.wait(1)
    assert not kafka.groups.has(KEY) and kafka.groups.size == 0
    assert kafka.joined(kafka.join(asked.member)).code == Code.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_belongs_to_a_dynamic_member() -> None:
    kafka = Coordinator()
    asked = kafka.joined(kafka.join())
    refused = kafka.joined(kafka.join(asked.member, instance="i"))
    assert refused.code == Code.UNKNOWN_MEMBER_ID


def test_the_leader_alone_learns_the_members() -> None:
    kafka = Coordinator()
    (a, first), (b, second) = kafka.new(), kafka.new(OTHER_TOPICS)
    kafka.wait(2 * DELAY_MS)
    members = (JoinedMember(a, None, b"topics"), JoinedMember(b, None, b"other topics"))
    common = JoinAnswer(Code.NONE, a, 1, "consumer", "range", a)
    assert kafka.joined(first) == replace(common, members=members)
    assert kafka.joined(second) == replace(common, member=b)


@pytest.mark.parametrize(
    ("protocols", "type", "code"),
    [
        (ROUND, "consumer", Code.INCONSISTENT_GROUP_PROTOCOL),
        (RANGE, "connect", Code.INCONSISTENT_GROUP_PROTOCOL),
        (HTOB, "consumer", Code.MEMBER_ID_REQUIRED),
    ],
)
def test_a_member_shares_type_and_a_protocol_with_all(
    protocols: Protocols, type: str, code: Code
) -> None:
    kafka = Coordinator()
    kafka.stable()
    assert kafka.joined(kafka.join("", protocols, type=type)).code == code


def test_a_known_member_cannot_change_to_a_protocol_that_others_do_not_support() -> None:
    kafka = Coordinator()
    _, follower = kafka.stable()
    assert kafka.joined(kafka.join(follower, ROUND)).code == Code.INCONSISTENT_GROUP_PROTOCOL
    assert kafka.state is State.STABLE


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [
        ((BOTH,), "range"),
        ((BOTH, HTOB, HTOB), "roundrobin"),  # the most votes
        ((BOTH, HTOB), "range"),  # the first member's, if votes are equal
        ((BOTH, BOTH, ROUND), "roundrobin"),  # only what all support
        ((HTOB, (("new", b""), *BOTH), (("new", b""), *BOTH)), "range"),
        (((("range", b"1"), ("range", b"2")), RANGE), "range"),  # named twice, counted once
    ],
)
def test_members_vote_among_the_protocols_that_all_support(
    protocols: tuple[Protocols, ...], chosen: str
) -> None:
    kafka = Coordinator()
    ids = kafka.stable(*protocols)
    assert kafka.groups.describe(KEY).protocol == chosen
    metadata = [member.metadata for member in kafka.groups.describe(KEY).members]
    assert metadata == [next(data for name, data in mine if name == chosen) for mine in protocols]
    assert len(set(ids)) == len(protocols)


def test_what_only_a_lost_member_did_not_support_is_a_candidate_again() -> None:
    kafka = Coordinator()
    leader, other = kafka.stable(HTOB, RANGE)
    assert kafka.groups.describe(KEY).protocol == "range"
    kafka.leave(Leaver(other))
    token = kafka.join(leader, HTOB)
    assert kafka.joined(token).protocol == "roundrobin"


# -- the first rebalance ---------------------------------------------------------------------------


def test_the_first_rebalance_waits_for_more_members() -> None:
    kafka = Coordinator()
    token = kafka.join(version=0)
    kafka.wait(DELAY_MS - 1)
    assert token not in kafka.answers and kafka.state is State.PREPARING
    kafka.wait(1)
    assert kafka.joined(token).code == Code.NONE and kafka.state is State.COMPLETING


def test_each_member_that_comes_meanwhile_prolongs_the_delay_up_to_the_rebalance_timeout() -> None:
    kafka = Coordinator()
    tokens, rebalance_ms = [kafka.join(version=0, rebalance_ms=8_000)], 8_000
    for _ in range(2):
        kafka.wait(DELAY_MS - 500)
        tokens.append(kafka.join(version=0, rebalance_ms=rebalance_ms))
    kafka.wait(DELAY_MS - 500)  # 7.5 s in all
    tokens.append(kafka.join(version=0, rebalance_ms=rebalance_ms))
    assert not kafka.answers
    kafka.wait(499)
    assert not kafka.answers
    kafka.wait(1)
    assert {kafka.joined(token).generation for token in tokens} == {1}


def test_no_delay_begins_the_generation_at_once() -> None:
    kafka = Coordinator()
    token = kafka.join(version=0, delay_ms=0)
    assert kafka.joined(token).generation == 1


def test_an_id_that_was_given_out_does_not_prolong_the_first_delay() -> None:
    kafka = Coordinator()
    token = kafka.join(version=0)
    kafka.join()
    kafka.wait(DELAY_MS)
    assert kafka.joined(token).generation == 1


# -- rebalances ------------------------------------------------------------------------------------


def test_a_rebalance_waits_until_all_members_have_joined() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    new, third = kafka.new()
    assert kafka.state is State.PREPARING
    assert kafka.beat(leader) == kafka.beat(follower) == Code.REBALANCE_IN_PROGRESS
    assert kafka.synced(kafka.sync(leader)).code == Code.REBALANCE_IN_PROGRESS
    first = kafka.join(leader)
    assert kafka.answers.keys().isdisjoint({first, third})
    second = kafka.join(follower)
    answers = [kafka.joined(token) for token in (first, second, third)]
    assert [(one.member, one.generation, one.leader) for one in answers] == [
        (id, 2, leader) for id in (leader, follower, new)
    ]


def test_a_rebalance_waits_for_ids_that_were_given_out() -> None:
    kafka = Coordinator()
    (leader,) = kafka.stable(RANGE)
    pending = kafka.joined(kafka.join()).member
    token = kafka.join(leader)
    assert token not in kafka.answers
    assert kafka.leave(Leaver(pending)) == [Code.NONE]
    assert kafka.joined(token).generation == 2


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    token = kafka.join(leader)
    kafka.keep(REBALANCE_MS - 5_000, follower)
    assert token not in kafka.answers
    kafka.wait(5_000)
    assert [one.member for one in kafka.joined(token).members] == [leader]
    assert kafka.beat(follower, 2) == Code.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_a_member_counts() -> None:
    kafka = Coordinator()
    timeouts_ms = (20_000, 40_000, 20_000)
    first = [kafka.join(version=0, rebalance_ms=ms, session_ms=90_000) for ms in timeouts_ms]
    kafka.wait(2 * DELAY_MS)
    leader, second, silent = (kafka.joined(token).member for token in first)
    for member in (silent, second, leader):
        kafka.sync(member)
    again = [
        kafka.join(leader, session_ms=90_000, rebalance_ms=20_000),
        kafka.join(second, session_ms=90_000, rebalance_ms=40_000),
    ]
    kafka.wait(40_000 - 1)
    assert kafka.answers.keys().isdisjoint(again)
    kafka.wait(1)
    assert [one.member for one in kafka.joined(again[0]).members] == [leader, second]


def test_a_leader_that_does_not_join_again_is_replaced() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    token = kafka.join(follower, OTHER_TOPICS)
    kafka.wait(SESSION_MS)
    answer = kafka.joined(token)
    assert (answer.leader, answer.generation) == (follower, 2)
    assert [one.member for one in answer.members] == [follower]
    assert kafka.beat(leader, 2) == Code.UNKNOWN_MEMBER_ID


def test_a_leader_that_joins_asks_for_a_rebalance_and_a_follower_repeats() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    repeated = kafka.joined(kafka.join(follower))
    assert (repeated.generation, repeated.leader, repeated.members) == (1, leader, ())
    assert kafka.state is State.STABLE
    kafka.join(follower, OTHER_TOPICS)
    assert kafka.state is State.PREPARING

    kafka = Coordinator()
    leader, follower = kafka.stable()
    kafka.join(leader)
    assert kafka.state is State.PREPARING


def test_a_join_while_assignments_are_made_repeats_the_answer_unless_it_brings_news() -> None:
    kafka = Coordinator()
    (leader, first), (follower, second) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    assert kafka.joined(kafka.join(leader)) == kafka.joined(first)
    assert kafka.joined(kafka.join(follower)) == kafka.joined(second)
    waiting = kafka.sync(follower)
    kafka.join(leader, OTHER_TOPICS)
    assert kafka.synced(waiting) == SyncAnswer(Code.REBALANCE_IN_PROGRESS)
    assert kafka.state is State.PREPARING


def test_a_join_on_another_connection_ends_the_earlier_one() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    earlier = kafka.join(leader)
    later = kafka.join(leader)
    assert kafka.joined(earlier).code == Code.REBALANCE_IN_PROGRESS
    kafka.join(follower)
    assert kafka.joined(later).generation == 2


def test_a_member_that_is_lost_while_joins_wait_ends_the_waiting() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    token = kafka.join(leader)
    kafka.wait(SESSION_MS)
    assert kafka.joined(token).generation == 2
    assert kafka.beat(follower, 2) == Code.UNKNOWN_MEMBER_ID


def test_a_new_member_waits_five_minutes_at_most() -> None:
    kafka = Coordinator()
    long_ms = 2 * BOUNDS.new_member_ms
    tokens = [kafka.join(version=0, rebalance_ms=long_ms, session_ms=1_800_000)]
    kafka.wait(DELAY_MS)
    leader = kafka.joined(tokens[0]).member
    kafka.sync(leader, 1, {leader: b"all"})
    token = kafka.join(version=0, rebalance_ms=long_ms)
    kafka.wait(BOUNDS.new_member_ms - 1)
    assert token not in kafka.answers
    kafka.wait(1)
    assert kafka.joined(token) == JoinAnswer(Code.UNKNOWN_MEMBER_ID, "")
    assert kafka.state is State.PREPARING  # for the leader, which has its session


# -- syncs -----------------------------------------------------------------------------------------


def test_followers_wait_for_the_leader_and_later_ones_do_not() -> None:
    kafka = Coordinator()
    (leader, _), (early, _), (late, _) = kafka.new(), kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    waiting = kafka.sync(early)
    assert waiting not in kafka.answers
    mine = kafka.sync(leader, 1, {leader: b"l", early: b"e", "stranger": b"s"})
    after = kafka.sync(late)
    answers = [kafka.synced(token).assignment for token in (mine, waiting, after)]
    assert answers == [b"l", b"e", b""]
    assert kafka.synced(mine) == SyncAnswer(Code.NONE, "consumer", "range", b"l")
    assert kafka.state is State.STABLE


def test_assignments_of_a_follower_do_not_count() -> None:
    kafka = Coordinator()
    (leader, _), (follower, _) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    kafka.sync(follower, 1, {leader: b"x", follower: b"x"})
    assert kafka.state is State.COMPLETING
    assert kafka.synced(kafka.sync(leader, 1, {leader: b"l"})).assignment == b"l"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"member": "client-9"}, Code.UNKNOWN_MEMBER_ID),
        ({"generation": 2}, Code.ILLEGAL_GENERATION),
        ({"generation": 0}, Code.ILLEGAL_GENERATION),
        ({"type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "roundrobin"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"type": "consumer", "protocol": "range"}, Code.NONE),
        ({"instance": "i"}, Code.UNKNOWN_MEMBER_ID),
        ({"key": ClassicKey("other", "g")}, Code.UNKNOWN_MEMBER_ID),
        ({"assignments": {"client-1": b"x" * ((1 << 20) + 1)}}, Code.MESSAGE_TOO_LARGE),
    ],
)
@pytest.mark.parametrize("is_stable", [False, True])
def test_a_sync_is_checked(more: dict, code: Code, is_stable: bool) -> None:
    kafka = Coordinator()
    leader, token = kafka.new()
    kafka.wait(2 * DELAY_MS)
    assert kafka.joined(token).leader == leader == "client-1"
    if is_stable:
        kafka.sync(leader, 1, {leader: b"all"})
    state = kafka.state
    answer = kafka.synced(kafka.sync(**{"member": leader, **more}))
    assert answer.code == code and (code == Code.NONE or answer == SyncAnswer(code))
    assert kafka.state is (State.STABLE if code == Code.NONE else state)


def test_a_leader_that_does_not_sync_is_removed_and_the_followers_rebalance() -> None:
    kafka = Coordinator()
    (leader, _), (follower, _) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    waiting = kafka.sync(follower)
    kafka.keep(REBALANCE_MS, leader)
    assert kafka.synced(waiting).code == Code.REBALANCE_IN_PROGRESS
    assert kafka.beat(leader) == Code.UNKNOWN_MEMBER_ID
    again = kafka.joined(kafka.join(follower))
    assert (again.generation, again.leader) == (2, follower)


def test_a_follower_that_does_not_sync_is_removed_though_the_group_is_stable() -> None:
    kafka = Coordinator()
    (leader, _), (follower, _) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    kafka.sync(leader, 1, {})
    kafka.keep(REBALANCE_MS - 10_000, leader, follower)
    assert kafka.state is State.STABLE
    kafka.keep(10_000, leader, follower)
    assert kafka.state is State.PREPARING
    assert kafka.beat(follower) == Code.UNKNOWN_MEMBER_ID


def test_a_leader_that_is_lost_before_its_sync_lets_the_followers_rebalance() -> None:
    kafka = Coordinator()
    _, (follower, _) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    waiting = kafka.sync(follower)
    kafka.wait(SESSION_MS)
    assert kafka.synced(waiting).code == Code.REBALANCE_IN_PROGRESS
    assert kafka.joined(kafka.join(follower)).leader == follower


def test_no_session_ends_while_its_member_waits() -> None:
    kafka = Coordinator()
    (leader, _), (follower, _) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    waiting = kafka.sync(follower)
    kafka.keep(3 * SESSION_MS, leader)
    kafka.sync(leader, 1, {follower: b"f"})
    assert kafka.synced(waiting).assignment == b"f"
    kafka.wait(SESSION_MS - 1)
    assert kafka.beat(follower) == Code.NONE


# -- deadlines -------------------------------------------------------------------------------------

LONG_MS = BOUNDS.session_ms_max


def test_a_shorter_rebalance_timeout_counts_for_the_syncs_that_follow() -> None:
    kafka = Coordinator()
    members = kafka.stable()
    for member in members:
        kafka.join(member, OTHER_TOPICS, session_ms=LONG_MS)
    for member in members:
        kafka.sync(member, 2)
    kafka.wait(2 * REBALANCE_MS)  # only the sessions, which are long, are to end
    for member in members:
        kafka.join(member, OTHER_TOPICS, session_ms=LONG_MS, rebalance_ms=1_000)
    kafka.wait(999)
    assert kafka.state is State.COMPLETING
    kafka.wait(1)
    assert not kafka.groups.has(KEY)


def test_a_session_passes_again_once_its_member_is_answered() -> None:
    kafka = Coordinator()
    _, follower = kafka.stable(RANGE, RANGE, instances=["l", None])
    leader = kafka.joined(kafka.join(instance="l", session_ms=LONG_MS)).member
    kafka.join(follower, OTHER_TOPICS)
    kafka.wait(2 * SESSION_MS)
    kafka.join(leader, instance="l", session_ms=LONG_MS)
    kafka.sync(leader, 2, instance="l")
    kafka.wait(SESSION_MS - 1)
    assert kafka.state is State.STABLE
    kafka.wait(1)
    assert kafka.state is State.PREPARING


def test_a_loop_that_is_late_ends_first_what_was_due_first() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    token = kafka.join(leader)
    kafka.now_ms += REBALANCE_MS  # both the follower's session and the joins are over
    kafka.tell(kafka.groups.expire(kafka.now_ms))
    assert kafka.joined(token).generation == 2 and kafka.state is State.COMPLETING
    assert kafka.beat(follower, 2) == Code.UNKNOWN_MEMBER_ID


# -- heartbeats, leaving ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "code"),
    [
        (("client-9", 1, None), Code.UNKNOWN_MEMBER_ID),
        (("client-1", 2, None), Code.ILLEGAL_GENERATION),
        (("client-1", 1, "i"), Code.UNKNOWN_MEMBER_ID),
        (("client-1", 1, None), Code.NONE),
    ],
)
def test_a_heartbeat_is_checked(sender: tuple[str, int, str | None], code: Code) -> None:
    kafka = Coordinator()
    assert kafka.beat(*sender) == Code.UNKNOWN_MEMBER_ID  # no group
    kafka.stable(RANGE)
    assert kafka.beat(*sender) == code


def test_heartbeats_keep_a_session_alive_and_silence_ends_it() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    kafka.keep(10 * SESSION_MS, leader, follower)
    assert kafka.state is State.STABLE
    kafka.wait(SESSION_MS - 1)
    assert kafka.beat(leader) == Code.NONE
    kafka.wait(1)
    assert kafka.beat(leader) == Code.REBALANCE_IN_PROGRESS
    assert kafka.beat(follower) == Code.UNKNOWN_MEMBER_ID


def test_members_are_alive_between_their_join_and_their_sync() -> None:
    kafka = Coordinator()
    leader, _ = kafka.new()
    kafka.wait(2 * DELAY_MS)
    assert kafka.beat(leader) == Code.NONE and kafka.state is State.COMPLETING


def test_a_batch_of_members_leaves_each_with_its_own_answer() -> None:
    kafka = Coordinator()
    kafka.stable(RANGE, RANGE, RANGE, RANGE, instances=[None, "a", "b", "c"])
    pending = kafka.joined(kafka.join()).member
    codes = kafka.leave(
        Leaver("", "a"),  # an operator's
        Leaver("b-3", "b"),
        Leaver("b-9", "c"),
        Leaver("", "a"),
        Leaver("", None),
        Leaver("client-9"),
        Leaver(pending),
        Leaver("client-1"),
    )
    assert codes == [
        Code.NONE,
        Code.NONE,
        Code.FENCED_INSTANCE_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.NONE,
        Code.NONE,
    ]
    assert [one.instance for one in kafka.groups.describe(KEY).members] == ["c"]
    assert kafka.leave() == [] and kafka.state is State.PREPARING


def test_leaving_a_group_that_is_not_there_is_answered_for_each_member() -> None:
    codes = Coordinator().leave(Leaver("client-1"), Leaver("", "i"))
    assert codes == [Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("is_joining", [True, False])
def test_a_member_that_leaves_on_another_connection_is_answered_where_it_waits(
    is_joining: bool,
) -> None:
    kafka = Coordinator()
    _, (follower, _) = kafka.new(), kafka.new()
    kafka.wait(2 * DELAY_MS)
    waiting = kafka.join(follower, OTHER_TOPICS) if is_joining else kafka.sync(follower)
    kafka.leave(Leaver(follower))
    assert kafka.answers[waiting].code == Code.UNKNOWN_MEMBER_ID


def test_a_leader_that_leaves_is_replaced() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    kafka.leave(Leaver(leader))
    assert kafka.state is State.PREPARING
    assert kafka.joined(kafka.join(follower)).leader == follower


def test_nothing_remains_of_a_group_without_members() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    assert kafka.groups.size > 0
    kafka.leave(Leaver(leader), Leaver(follower))
    assert not kafka.groups.has(KEY) and kafka.state is State.DEAD
    assert (kafka.groups.size, kafka.groups.next_deadline_ms) == (0, None)


# -- static members --------------------------------------------------------------------------------


def static(kafka: Coordinator) -> tuple[str, str]:
    """A stable group of the static leader `l` and the static follower `f`; returns their ids."""
    leader, follower = kafka.stable(RANGE, RANGE, instances=["l", "f"])
    return leader, follower


def test_a_static_follower_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    kafka = Coordinator()
    leader, old = static(kafka)
    answer = kafka.joined(kafka.join(instance="f"))
    assert answer == JoinAnswer(Code.NONE, "f-3", 1, "consumer", "range", leader)
    assert kafka.state is State.STABLE
    assert kafka.synced(kafka.sync("f-3", instance="f")).assignment == b"a1"
    for code in (
        kafka.beat(old, 1, "f"),
        kafka.synced(kafka.sync(old, 1, instance="f")).code,
        kafka.joined(kafka.join(old, instance="f")).code,
        kafka.may_commit(old, 1, "f"),
        kafka.leave(Leaver(old, "f"))[0],
    ):
        assert code == Code.FENCED_INSTANCE_ID
    assert kafka.beat(old) == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_that_restarts_does_not_assign(version: int) -> None:
    kafka = Coordinator()
    old, follower = static(kafka)
    answer = kafka.joined(kafka.join(instance="l", version=version))
    assert (answer.member, answer.generation) == ("l-3", 1)
    if version < 9:
        assert (answer.leader, answer.members, answer.skip_assignment) == (old, (), False)
    else:
        assert (answer.leader, answer.skip_assignment) == ("l-3", True)
        assert [one.member for one in answer.members] == [follower, "l-3"]
    assert kafka.synced(kafka.sync("l-3", instance="l")).assignment == b"a0"
    assert kafka.state is State.STABLE
    kafka.join("l-3", instance="l")  # it is the leader: a join of it is a rebalance
    assert kafka.state is State.PREPARING


def test_a_static_member_that_changes_the_choice_of_protocol_causes_a_rebalance() -> None:
    kafka = Coordinator()
    kafka.stable(BOTH, BOTH, HTOB, instances=["l", "f", "g"])
    same = kafka.join("", (("range", b"news"), ("roundrobin", b"")), instance="f")
    assert kafka.joined(same).generation == 1 and kafka.state is State.STABLE
    token = kafka.join("", HTOB, instance="f")
    assert token not in kafka.answers and kafka.state is State.PREPARING
    kafka.join("l-1", HTOB, instance="l")
    kafka.join("g-3", HTOB, instance="g")
    assert kafka.joined(token).protocol == "roundrobin"


def test_a_static_member_that_restarts_before_the_assignment_causes_a_rebalance() -> None:
    kafka = Coordinator()
    first, second = kafka.join(instance="l"), kafka.join(instance="f")
    kafka.wait(2 * DELAY_MS)
    waiting = kafka.sync(kafka.joined(second).member, instance="f")
    token = kafka.join(instance="f")
    assert kafka.synced(waiting).code == Code.FENCED_INSTANCE_ID
    assert kafka.state is State.PREPARING
    again = kafka.join(kafka.joined(first).member, instance="l")
    assert kafka.joined(again).generation == kafka.joined(token).generation == 2


def test_a_second_static_member_fences_the_one_that_waits() -> None:
    kafka = Coordinator()
    leader, old, third = kafka.stable(RANGE, RANGE, RANGE, instances=["l", "f", None])
    kafka.join(leader, instance="l")
    waiting = kafka.join(old, instance="f")
    twin = kafka.join(instance="f")
    assert kafka.joined(waiting) == JoinAnswer(Code.FENCED_INSTANCE_ID, old)
    assert twin not in kafka.answers
    kafka.join(third)
    assert kafka.joined(twin).generation == 2


def test_an_instance_has_another_id_after_each_restart() -> None:
    kafka = Coordinator()
    static(kafka)
    ids = [kafka.joined(kafka.join(instance="f")).member for _ in range(5)]
    assert len(set(ids)) == 5
    assert len(kafka.groups.describe(KEY).members) == 2


def test_a_static_member_outlives_a_rebalance_that_it_missed_but_not_its_session() -> None:
    kafka = Coordinator()
    leader, _ = static(kafka)
    long = kafka.joined(kafka.join(instance="f", session_ms=3 * REBALANCE_MS)).member
    kafka.sync(long, instance="f")
    token = kafka.join(leader, instance="l")
    kafka.wait(REBALANCE_MS)
    assert [one.member for one in kafka.joined(token).members] == [leader, long]
    kafka.sync(leader, 2, {long: b"kept"}, instance="l")
    late = kafka.joined(kafka.join(long, instance="f", session_ms=3 * REBALANCE_MS))
    assert late.generation == 2
    assert kafka.synced(kafka.sync(long, 2, instance="f")).assignment == b"kept"


def test_a_static_leader_that_missed_a_rebalance_does_not_lead() -> None:
    kafka = Coordinator()
    _, follower = kafka.stable(RANGE, RANGE, instances=["l", None])
    long = kafka.joined(kafka.join(instance="l", session_ms=3 * REBALANCE_MS)).member
    token = kafka.join(follower, OTHER_TOPICS)
    kafka.wait(REBALANCE_MS)
    answer = kafka.joined(token)
    assert (answer.leader, len(answer.members)) == (follower, 2)
    kafka.sync(follower, 2, {long: b"kept"})
    assert kafka.synced(kafka.sync(long, 2, instance="l")).assignment == b"kept"


def test_who_joins_does_not_wait_for_a_static_member_longer_than_a_rebalance_may_take() -> None:
    kafka = Coordinator()
    _, follower = kafka.stable(RANGE, RANGE, instances=["l", None])
    kafka.join(instance="l", session_ms=10 * REBALANCE_MS)
    kafka.leave(Leaver(follower))
    kafka.wait(REBALANCE_MS + 1_000)
    token = kafka.join(version=0)
    kafka.wait(REBALANCE_MS - 1_001)
    assert token not in kafka.answers
    kafka.wait(1)
    assert len(kafka.joined(token).members) == 2


def test_static_members_of_whom_none_rejoins_are_removed_with_their_sessions() -> None:
    kafka = Coordinator()
    _, follower = kafka.stable(RANGE, RANGE, instances=["l", None])
    long_ms = 2 * REBALANCE_MS
    kafka.join(instance="l", session_ms=long_ms)
    kafka.leave(Leaver(follower))
    kafka.wait(long_ms - 1)
    assert kafka.state is State.PREPARING
    kafka.wait(1)
    assert not kafka.groups.has(KEY)


def test_a_restart_before_the_sync_leaves_the_sync_to_the_new_id() -> None:
    kafka = Coordinator()
    first, second = kafka.join(instance="l"), kafka.join(instance="f")
    kafka.wait(2 * DELAY_MS)
    leader, old = kafka.joined(first).member, kafka.joined(second).member
    kafka.sync(leader, 1, {old: b"f"}, instance="l")
    new = kafka.joined(kafka.join(instance="f")).member
    assert kafka.synced(kafka.sync(new, instance="f")).assignment == b"f"
    kafka.keep(2 * REBALANCE_MS, leader, new)
    assert kafka.state is State.STABLE


def test_a_new_id_that_does_not_sync_is_removed_as_the_old_one_would_have_been() -> None:
    kafka = Coordinator()
    first, second = kafka.join(instance="l"), kafka.join(instance="f")
    kafka.wait(2 * DELAY_MS)
    leader, old = kafka.joined(first).member, kafka.joined(second).member
    kafka.sync(leader, 1, {old: b"f"}, instance="l")
    new = kafka.joined(kafka.join(instance="f")).member
    kafka.keep(REBALANCE_MS, leader, new)
    assert kafka.beat(new, instance="f") == Code.UNKNOWN_MEMBER_ID


# -- commits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "codes"),  # of a commit and of one in a transaction, by state of the group
    [
        (
            ("", -1, None),
            {
                State.DEAD: (Code.NONE, Code.NONE),
                State.EMPTY: (Code.NONE, Code.NONE),
                State.PREPARING: (Code.UNKNOWN_MEMBER_ID, Code.NONE),
                State.COMPLETING: (Code.UNKNOWN_MEMBER_ID, Code.NONE),
                State.STABLE: (Code.UNKNOWN_MEMBER_ID, Code.NONE),
            },
        ),
        (
            ("client-1", 1, None),
            {
                State.DEAD: (Code.ILLEGAL_GENERATION, Code.ILLEGAL_GENERATION),
                State.EMPTY: (Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID),
                State.PREPARING: (Code.NONE, Code.NONE),
                State.COMPLETING: (Code.REBALANCE_IN_PROGRESS, Code.NONE),
                State.STABLE: (Code.NONE, Code.NONE),
            },
        ),
        (
            ("client-1", 7, None),
            {
                State.PREPARING: (Code.ILLEGAL_GENERATION, Code.ILLEGAL_GENERATION),
                State.COMPLETING: (Code.ILLEGAL_GENERATION, Code.ILLEGAL_GENERATION),
                State.STABLE: (Code.ILLEGAL_GENERATION, Code.ILLEGAL_GENERATION),
            },
        ),
        (
            ("client-1", -1, None),
            {
                State.EMPTY: (Code.NONE, Code.NONE),
                State.STABLE: (Code.ILLEGAL_GENERATION, Code.ILLEGAL_GENERATION),
            },
        ),
        (
            ("client-1", 1, "i"),
            {State.STABLE: (Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID)},
        ),
        (
            ("", -1, "i"),
            {
                State.EMPTY: (Code.NONE, Code.NONE),
                State.STABLE: (Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID),
            },
        ),
    ],
)
def test_a_commit_is_checked(
    sender: tuple[str, int, str | None], codes: dict[State, tuple[Code, Code]]
) -> None:
    for state, expected in codes.items():
        kafka = Coordinator()
        if state is State.EMPTY:
            kafka.join()
        elif state is not State.DEAD:
            leader, _ = kafka.new()
            kafka.wait(2 * DELAY_MS)
            if state is not State.COMPLETING:
                kafka.sync(leader, 1, {leader: b"all"})
            if state is State.PREPARING:
                kafka.new()
        assert kafka.state is state
        found = (kafka.may_commit(*sender), kafka.may_commit(*sender, in_txn=True))
        assert found == expected, state


def test_a_commit_keeps_a_session_alive() -> None:
    kafka = Coordinator()
    (leader,) = kafka.stable(RANGE)
    for _ in range(3):
        kafka.wait(SESSION_MS - 1)
        assert kafka.may_commit(leader, 1) == Code.NONE
    kafka.wait(SESSION_MS - 1)
    kafka.may_commit(leader, 1, in_txn=True)
    kafka.wait(1)
    assert not kafka.groups.has(KEY)


def test_a_member_is_current_while_it_may_commit_its_assignment() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()

    def are_current(generation: int) -> list[bool]:
        senders = [Sender(leader, generation), Sender(follower, generation)]
        return [kafka.groups.is_current(KEY, sender) for sender in senders]

    assert are_current(1) == [True, True] and are_current(2) == [False, False]
    kafka.join(leader)
    assert are_current(1) == [True, True]  # the last commits before the next generation
    kafka.join(follower)
    assert are_current(1) == are_current(2) == [False, False]
    kafka.sync(leader, 2, {})
    assert are_current(2) == [True, True]


# -- bounds ----------------------------------------------------------------------------------------


def test_a_full_group_takes_no_member_and_a_static_one_may_restart() -> None:
    kafka = Coordinator(replace(BOUNDS, members_max=2))
    ids = kafka.stable(RANGE, RANGE, instances=["l", None])
    assert kafka.joined(kafka.join()) == JoinAnswer(Code.GROUP_MAX_SIZE_REACHED, "")
    assert kafka.joined(kafka.join(instance="l")).code == Code.NONE
    kafka.leave(Leaver(ids[1]))
    assert kafka.joined(kafka.join()).code == Code.MEMBER_ID_REQUIRED


def test_a_full_group_keeps_those_that_join_first() -> None:
    kafka = Coordinator(replace(BOUNDS, members_max=2))
    leader, follower = kafka.stable()
    late = kafka.join(follower, OTHER_TOPICS)
    _, new = kafka.new()
    refused = kafka.joined(kafka.join(leader))
    assert refused == JoinAnswer(Code.GROUP_MAX_SIZE_REACHED, "")
    assert {kafka.joined(late).generation, kafka.joined(new).generation} == {2}


def test_given_out_ids_are_bounded_in_each_group() -> None:
    kafka = Coordinator()
    codes = [kafka.joined(kafka.join()).code for _ in range(BOUNDS.members_max + 1)]
    assert codes[-2:] == [Code.MEMBER_ID_REQUIRED, Code.COORDINATOR_NOT_AVAILABLE]
    kafka.wait(SESSION_MS)
    assert kafka.joined(kafka.join()).code == Code.MEMBER_ID_REQUIRED


def test_the_number_of_groups_is_bounded() -> None:
    kafka = Coordinator(replace(BOUNDS, groups_max=2))
    keys = [ClassicKey("default", f"g{number}") for number in range(3)]
    codes = [kafka.joined(kafka.join(key=key)).code for key in keys]
    assert codes == [Code.MEMBER_ID_REQUIRED] * 2 + [Code.COORDINATOR_NOT_AVAILABLE]
    kafka.wait(SESSION_MS)
    assert kafka.joined(kafka.join(key=keys[2])).code == Code.MEMBER_ID_REQUIRED


def test_the_bytes_of_all_groups_are_bounded_and_a_member_may_repeat_its_join() -> None:
    kafka = Coordinator(replace(BOUNDS, bytes_max=10_000))
    large: Protocols = (("range", b"x" * 6_000),)
    (leader,) = kafka.stable(large)
    assert kafka.joined(kafka.join("", large)).code == Code.COORDINATOR_NOT_AVAILABLE
    assert kafka.joined(kafka.join(leader, large)).generation == 2
    full = kafka.sync(leader, 2, {leader: b"y" * 6_000, "stranger": b"y"})
    assert kafka.synced(full).code == Code.COORDINATOR_NOT_AVAILABLE
    fits = kafka.sync(leader, 2, {leader: b"y" * 2_000, "stranger": b"y" * 9_000})
    assert kafka.synced(fits).code == Code.NONE and kafka.groups.size < 10_000


def test_members_cost_their_bytes_until_they_are_gone() -> None:
    kafka = Coordinator()
    for _ in range(3):
        leader, follower = kafka.stable((("range", b"x" * 1_000),), RANGE)
        before = kafka.groups.size
        kafka.join(leader, (("range", b"x" * 5_000),))
        assert kafka.groups.size == before + 4_000
        kafka.join(follower)
        assert kafka.groups.size == before + 4_000
        kafka.sync(leader, 2, {follower: b"y" * 300})
        assert kafka.groups.size == before + 4_000 + 300 - 4  # and not the two of generation 1
        kafka.leave(Leaver(leader), Leaver(follower))
        assert kafka.groups.size == 0


# -- callers that are gone, and groups that move ---------------------------------------------------


def test_a_caller_whose_connection_is_closed_gets_no_answer_and_its_member_may_come_back() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    gone = kafka.join(leader)
    kafka.tell(kafka.groups.drop(kafka.now_ms, KEY, gone))
    waiting = kafka.join(follower)
    assert waiting not in kafka.answers
    back = kafka.join(leader)
    assert gone not in kafka.answers
    assert kafka.joined(waiting).generation == kafka.joined(back).generation == 2


def test_a_member_whose_connection_is_closed_has_its_session_to_come_back() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    gone = kafka.join(leader)
    kafka.tell(kafka.groups.drop(kafka.now_ms, KEY, gone))
    waiting = kafka.join(follower)
    kafka.wait(SESSION_MS - 1)
    assert waiting not in kafka.answers
    kafka.wait(1)
    assert kafka.joined(waiting).leader == follower


def test_a_new_member_that_cannot_know_its_id_goes_with_its_connection() -> None:
    kafka = Coordinator()
    (leader,) = kafka.stable(RANGE)
    gone = kafka.join(version=0)
    kafka.tell(kafka.groups.drop(kafka.now_ms, KEY, gone))
    answer = kafka.joined(kafka.join(leader))
    assert [one.member for one in answer.members] == [leader] and gone not in kafka.answers


def test_a_connection_may_wait_for_several_members() -> None:
    kafka = Coordinator()
    (leader,) = kafka.stable(RANGE)
    pending = kafka.joined(kafka.join()).member
    shared = kafka.join(version=0)
    kafka.join(version=0, token=shared)
    waiting = kafka.join(leader)
    kafka.tell(kafka.groups.drop(kafka.now_ms, KEY, shared))
    kafka.leave(Leaver(pending))
    assert [one.member for one in kafka.joined(waiting).members] == [leader]
    assert shared not in kafka.answers
    assert kafka.groups.drop(kafka.now_ms, KEY, shared) == []
    assert kafka.groups.drop(kafka.now_ms, ClassicKey("other", "g"), shared) == []


def test_all_who_wait_are_answered_when_the_groups_move_to_another_instance() -> None:
    kafka = Coordinator()
    leader, _ = kafka.stable()
    joining = kafka.join(leader)
    other = ClassicKey("default", "h")
    member = kafka.join(version=0, key=other)
    kafka.wait(DELAY_MS)
    first = kafka.joined(member).member
    second = kafka.join(version=0, key=other)
    kafka.tell(kafka.groups.close())
    assert kafka.joined(joining).code == kafka.joined(second).code == Code.NOT_COORDINATOR
    assert (kafka.groups.size, kafka.groups.next_deadline_ms) == (0, None)
    assert kafka.joined(kafka.join()).code == Code.NOT_COORDINATOR
    assert kafka.beat(first) == kafka.may_commit(first, 1) == Code.NOT_COORDINATOR
    assert kafka.synced(kafka.sync(first)).code == Code.NOT_COORDINATOR
    assert kafka.leave(Leaver(first)) == [Code.NOT_COORDINATOR]


# -- looking ---------------------------------------------------------------------------------------


def test_a_group_is_described_with_metadata_and_assignments_once_it_is_stable() -> None:
    kafka = Coordinator()
    assert kafka.groups.describe(KEY) == Description(State.DEAD)
    leader, _ = kafka.new()
    before = kafka.groups.describe(KEY)
    assert (before.state, before.protocol_type, before.protocol) == (
        State.PREPARING,
        "consumer",
        "",
    )
    assert [(one.member, one.metadata) for one in before.members] == [(leader, b"")]
    kafka.wait(2 * DELAY_MS)
    kafka.sync(leader, 1, {leader: b"all"})
    stable = kafka.groups.describe(KEY)
    assert (stable.state, stable.protocol) == (State.STABLE, "range")
    (member,) = stable.members
    assert (member.client.id, member.client.host) == ("client", "/127.0.0.1")
    assert (member.metadata, member.assignment) == (b"topics", b"all")


def test_groups_are_listed_by_namespace() -> None:
    kafka = Coordinator()
    kafka.stable()
    kafka.join(key=ClassicKey("default", "h"), type="connect")
    kafka.join(key=ClassicKey("other", "g"))
    assert kafka.groups.list_groups("default") == [
        Listing("g", "consumer", State.STABLE),
        Listing("h", "", State.EMPTY),
    ]
    assert [one.group for one in kafka.groups.list_groups("other")] == ["g"]


def test_only_a_group_without_members_is_deleted() -> None:
    kafka = Coordinator()
    assert kafka.groups.delete(KEY) == Code.GROUP_ID_NOT_FOUND
    pending = kafka.joined(kafka.join()).member
    assert kafka.groups.delete(KEY) == Code.NONE and not kafka.groups.has(KEY)
    assert kafka.joined(kafka.join(pending)).code == Code.UNKNOWN_MEMBER_ID
    kafka.stable()
    assert kafka.groups.delete(KEY) == Code.NON_EMPTY_GROUP
    assert kafka.state is State.STABLE
