"""Kafka's groups are kept: members go on after a restart or a move of the shard, and learn nothing
that is not stored."""

import msgspec
import pytest

from sim.faulty import FaultyStore
from tests.gate_kit import in_thread
from tests.groups.classic_kit import DELAY_MS, KEY, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from tests.groups.classic_world import A, B, World
from tests.waiting import PATIENCE_S
from tms.engine.engine import Engine
from tms.errors import Conflict, Fenced, StorageUnavailable, TMSError
from tms.groups import members
from tms.groups.classic_calls import (
    Answered,
    ClassicBounds,
    ClassicKey,
    Client,
    Code,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Sender,
    State,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_member import (
    KeptEntry,
    decode_group,
    decode_kept,
    encode_group,
    encode_kept,
)
from tms.groups.membership import Change, GroupKey, Joined, decode_entry, encode_entry
from tms.model.group import GroupKind
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def held() -> Coordinator:
    """Groups whose journal is slow: only `save` stores."""
    kafka = Coordinator()
    kafka.saves = False
    return kafka


def completing(kafka: Coordinator) -> tuple[str, str]:
    """A group whose two members have joined; returns the leader and the follower."""
    tokens = [kafka.join(version=0), kafka.join(version=0)]
    kafka.wait(2 * DELAY_MS)
    leader, follower = (kafka.joined(token).member for token in tokens)
    return leader, follower


# -- a generation is stored before it is told ------------------------------------------------------


def test_an_assignment_is_told_once_it_is_stored() -> None:
    kafka = held()
    leader, follower = completing(kafka)
    early = kafka.sync(follower)
    mine = kafka.sync(leader, 1, {leader: b"l", follower: b"f"})
    assert not kafka.answers.keys() & {early, mine} and kafka.state is State.COMPLETING
    assert kafka.beat(follower) == Code.NONE
    assert kafka.may_commit(follower, 1) == Code.REBALANCE_IN_PROGRESS
    assert not kafka.groups.is_current(KEY, Sender(follower, 1))
    kafka.sync(leader, 1, {leader: b"other", follower: b"other"})  # the first one counts
    kafka.save()
    assert kafka.synced(early).assignment == b"f" and kafka.state is State.STABLE
    assert [one.assignment for one in kafka.stored[KEY].members] == [b"l", b"f"]
    assert kafka.may_commit(follower, 1) == Code.NONE
    assert not kafka.groups.has_unsaved


def test_heartbeats_commits_and_late_syncs_store_nothing() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    kafka.saves = False
    kafka.beat(leader)
    kafka.may_commit(leader, 1)
    kafka.sync(follower)
    kafka.join(follower)  # its answer was lost
    assert not kafka.groups.has_unsaved and not kafka.groups.wants_saving


def test_an_assignment_that_cannot_be_stored_is_not_told_and_members_join_again() -> None:
    kafka = held()
    leader, follower = completing(kafka)
    syncs = [kafka.sync(follower), kafka.sync(leader, 1, {follower: b"f"})]
    kafka.save(is_stored=False)
    codes = {kafka.synced(token).code for token in syncs}
    assert codes == {Code.COORDINATOR_NOT_AVAILABLE}
    assert kafka.state is State.PREPARING
    assert kafka.beat(leader) == kafka.beat(follower) == Code.REBALANCE_IN_PROGRESS
    kafka.saves = True
    tokens = [kafka.join(id, version=0) for id in (leader, follower)]
    assert {kafka.joined(token).generation for token in tokens} == {2}
    assert kafka.synced(kafka.sync(leader, 2, {leader: b"l"})).assignment == b"l"
    assert kafka.stored[KEY].generation == 2


def test_members_that_do_not_come_back_after_a_failure_are_not_waited_for() -> None:
    kafka = held()
    leader, follower = completing(kafka)
    kafka.sync(leader, 1, {})
    kafka.save(is_stored=False)
    again = kafka.join(leader, version=0)
    kafka.wait(SESSION_MS)
    assert kafka.joined(again).code == Code.NONE
    assert kafka.beat(follower) == Code.UNKNOWN_MEMBER_ID


def test_nobody_waits_for_a_journal_longer_than_for_a_rebalance() -> None:
    kafka = held()
    leader, follower = completing(kafka)
    syncs = [kafka.sync(follower), kafka.sync(leader, 1, {follower: b"f"})]
    kafka.wait(REBALANCE_MS - 1)
    assert not kafka.answers.keys() & {*syncs}
    kafka.wait(1)
    assert {kafka.synced(token).code for token in syncs} == {Code.REBALANCE_IN_PROGRESS}
    kafka.save()
    assert kafka.state is State.PREPARING


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_rebalance_that_begins_meanwhile_is_not_ended_by_it(is_stored: bool) -> None:
    kafka = held()
    leader, follower = completing(kafka)
    synced = kafka.sync(leader, 1, {follower: b"f"})
    new = kafka.join(version=0)
    assert kafka.synced(synced).code == Code.REBALANCE_IN_PROGRESS
    kafka.save(is_stored)
    assert kafka.state is State.PREPARING and new not in kafka.answers
    for id in (leader, follower):
        kafka.join(id, version=0)
    assert kafka.joined(new).generation == 2
    kafka.sync(leader, 2, {follower: b"g"})
    assert kafka.state is State.COMPLETING
    kafka.save()
    assert kafka.state is State.STABLE and kafka.stored[KEY].generation == 2


def test_a_late_word_of_an_earlier_write_does_not_end_a_later_generation() -> None:
    kafka = held()
    leader, follower = completing(kafka)
    kafka.sync(leader, 1, {})
    taken = kafka.groups.take_unsaved()
    for id in (follower, leader):
        kafka.join(id, (("range", b"others"),), version=0)
    mine = kafka.sync(leader, 2, {leader: b"new"})
    kafka.tell(kafka.groups.saved(kafka.now_ms, taken, True))
    assert mine not in kafka.answers and kafka.state is State.COMPLETING
    kafka.save()
    assert kafka.synced(mine).assignment == b"new"


# -- static members --------------------------------------------------------------------------------


def test_a_new_id_of_a_static_member_is_told_once_it_is_stored() -> None:
    kafka = Coordinator()
    _, old = kafka.stable(RANGE, RANGE, instances=["l", "f"])
    kafka.saves = False
    joined = kafka.join(instance="f")
    assert joined not in kafka.answers
    assert kafka.beat(old, 1, "f") == Code.FENCED_INSTANCE_ID
    kafka.save()
    answer = kafka.joined(joined)
    assert (answer.code, answer.generation) == (Code.NONE, 1)
    kafka.restart()
    assert kafka.beat(answer.member, 1, "f") == Code.NONE
    assert kafka.beat(old, 1, "f") == Code.FENCED_INSTANCE_ID
    assert kafka.synced(kafka.sync(answer.member, instance="f")).assignment == b"a1"


def test_a_new_id_that_cannot_be_stored_is_not_told() -> None:
    kafka = Coordinator()
    kafka.stable(RANGE, RANGE, instances=["l", "f"])
    kafka.saves = False
    joined = kafka.join(instance="f")
    kafka.save(is_stored=False)
    assert kafka.joined(joined) == JoinAnswer(Code.COORDINATOR_NOT_AVAILABLE, "")
    assert kafka.state is State.STABLE
    again = kafka.join(instance="f")
    kafka.save()
    assert kafka.joined(again).code == Code.NONE


def test_of_two_new_ids_of_an_instance_the_second_is_told_and_stored() -> None:
    kafka = Coordinator()
    kafka.stable(RANGE, RANGE, instances=["l", "f"])
    kafka.saves = False
    first = kafka.join(instance="f")
    taken = kafka.groups.take_unsaved()
    second = kafka.join(instance="f")
    assert kafka.joined(first).code == Code.FENCED_INSTANCE_ID
    kafka.tell(kafka.groups.saved(kafka.now_ms, taken, True))
    assert second not in kafka.answers, "only the first id is stored"
    kafka.save()
    id = kafka.joined(second).member
    assert [one.id for one in kafka.stored[KEY].members if one.instance == "f"] == [id]


def test_a_new_id_waits_like_others_if_a_rebalance_begins() -> None:
    kafka = Coordinator()
    leader, _ = kafka.stable(RANGE, RANGE, instances=["l", "f"])
    kafka.saves = False
    joined = kafka.join(instance="f")
    kafka.join(version=0)
    kafka.save()
    assert joined not in kafka.answers
    kafka.join(leader, instance="l")
    assert kafka.joined(joined).generation == 2


def test_a_new_id_waits_for_a_journal_no_longer_than_for_a_session() -> None:
    kafka = Coordinator()
    leader, _ = kafka.stable(RANGE, RANGE, instances=["l", "f"])
    kafka.saves = False
    joined = kafka.join(instance="f")
    kafka.keep(SESSION_MS // 2, leader)
    kafka.wait(SESSION_MS // 2 - 1)
    assert joined not in kafka.answers
    kafka.wait(1)
    assert kafka.joined(joined) == JoinAnswer(Code.UNKNOWN_MEMBER_ID, "")
    again = kafka.join(instance="f")
    kafka.join(leader, instance="l")
    assert kafka.joined(again).generation == 2


# -- restoring -------------------------------------------------------------------------------------


def test_a_restored_group_is_as_it_was() -> None:
    kafka = Coordinator()
    both = (("range", b"r"), ("sticky", b"s"))
    leader, follower = kafka.stable(both, both, instances=["l", None])
    before, size = kafka.groups.describe(KEY), kafka.groups.size
    kafka.restart()
    assert (kafka.groups.describe(KEY), kafka.groups.size) == (before, size)
    assert kafka.beat(follower) == kafka.beat(leader, 1, "l") == Code.NONE
    assert kafka.may_commit(follower, 1) == Code.NONE
    assert kafka.beat(follower, 2) == Code.ILLEGAL_GENERATION
    assert kafka.beat(follower, 1, "l") == Code.FENCED_INSTANCE_ID
    assert kafka.synced(kafka.sync(follower)).assignment == b"a1"
    again = kafka.joined(kafka.join(follower, both))
    assert (again.generation, again.leader) == (1, leader), "the same metadata: no rebalance"
    assert kafka.groups.size == size and not kafka.groups.has_unsaved


def test_a_restored_member_has_a_new_session_and_the_others_get_its_partitions() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    kafka.wait(SESSION_MS - 1)
    kafka.restart()
    kafka.wait(SESSION_MS - 1)
    assert kafka.beat(leader) == Code.NONE
    kafka.wait(1)
    assert kafka.beat(follower) == Code.UNKNOWN_MEMBER_ID
    assert kafka.joined(kafka.join(leader)).generation == 2


def test_a_member_of_a_rebalance_that_was_cut_short_joins_again() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    new = kafka.join(version=0)
    for id in (leader, follower):
        kafka.join(id)
    lost = kafka.joined(new).member  # in generation 2, which nobody was assigned in
    kafka.restart()
    assert kafka.beat(lost, 2) == Code.UNKNOWN_MEMBER_ID
    assert kafka.beat(follower, 2) == Code.ILLEGAL_GENERATION
    assert kafka.synced(kafka.sync(follower, 2)).code == Code.ILLEGAL_GENERATION
    assert kafka.beat(follower) == Code.NONE
    began_ms = kafka.now_ms
    new = kafka.join(version=0)
    for id in (leader, follower):
        kafka.join(id)
    assert kafka.joined(new).generation == 2 and kafka.now_ms == began_ms


def test_a_group_without_members_is_not_kept() -> None:
    kafka = Coordinator()
    leader, follower = kafka.stable()
    assert kafka.leave(Leaver(leader), Leaver(follower)) == [Code.NONE, Code.NONE]
    assert not kafka.stored
    kafka.stable()
    kafka.wait(10 * SESSION_MS)
    assert not kafka.stored and not kafka.groups.has(KEY)


def test_a_group_is_not_kept_for_one_who_may_join_it() -> None:
    kafka = Coordinator()
    ids = kafka.stable()
    new = kafka.joined(kafka.join()).member
    kafka.leave(*map(Leaver, ids))
    assert kafka.groups.has(KEY) and not kafka.stored
    kafka.saves = False
    kafka.join(new)
    assert not kafka.groups.has_unsaved, "it has gone already"


def test_a_generation_whose_members_have_left_is_not_stored() -> None:
    kafka = held()
    leader, follower = completing(kafka)
    kafka.sync(leader, 1, {})
    kafka.join()
    kafka.leave(Leaver(leader), Leaver(follower))
    kafka.save()
    assert kafka.groups.has(KEY) and not kafka.stored


def test_a_group_that_cannot_be_removed_is_tried_again_but_not_at_once() -> None:
    kafka = Coordinator()
    ids = kafka.stable()
    kafka.saves = False
    kafka.leave(*map(Leaver, ids))
    kafka.save(is_stored=False)
    assert kafka.groups.has_unsaved and not kafka.groups.wants_saving
    kafka.save()
    assert not kafka.groups.has_unsaved and not kafka.stored


def test_a_group_that_begins_again_is_not_removed_by_its_former_end() -> None:
    kafka = Coordinator()
    ids = kafka.stable()
    kafka.saves = False
    kafka.leave(*map(Leaver, ids))
    taken = kafka.groups.take_unsaved()
    token = kafka.join(version=0)
    kafka.wait(DELAY_MS)
    member = kafka.joined(token).member
    kafka.sync(member, 1, {member: b"new"})
    kafka.save()
    kafka.tell(kafka.groups.saved(kafka.now_ms, taken, False))
    kafka.save()
    assert [one.id for one in kafka.stored[KEY].members] == [member]


def test_a_group_that_was_never_stable_stores_nothing() -> None:
    kafka = Coordinator()
    kafka.leave(*map(Leaver, kafka.stable()))
    kafka.saves = False
    token = kafka.join(version=0)
    kafka.wait(DELAY_MS)
    kafka.leave(Leaver(kafka.joined(token).member))
    assert not kafka.groups.has(KEY) and not kafka.groups.has_unsaved


def test_a_group_of_the_journal_is_not_removed_by_an_earlier_end_of_it() -> None:
    kafka = Coordinator()
    ids = kafka.stable()
    kept = kafka.stored[KEY]
    kafka.saves = False
    kafka.leave(*map(Leaver, ids))
    kafka.groups.restore(kafka.now_ms, {KEY: kept})  # of another owner of the journal
    assert not kafka.groups.wants_saving, "nothing is left to save"
    kafka.save()
    assert kafka.stored == {KEY: kept} and kafka.beat(ids[0]) == Code.NONE


def test_a_shard_that_moved_restores_nothing() -> None:
    kafka = Coordinator()
    ids = kafka.stable()
    kafka.tell(kafka.groups.close())
    kafka.groups.restore(kafka.now_ms, kafka.stored)
    assert kafka.beat(ids[0]) == Code.NOT_COORDINATOR and not kafka.groups.has(KEY)


# -- in a shard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loses", [False, True])
def test_members_go_on_after_a_restart(world: World, loses: bool) -> None:
    member = world.stable()
    world.commit(5, member, 1)
    world.restart(loses)
    assert world.kind is GroupKind.CLASSIC
    assert world.beat(member) == Code.NONE
    assert world.classic.may_commit(KEY, Sender(member, 1)) == Code.NONE
    world.commit(6, member, 1)
    owner = Owner(member, 1)
    change = PositionChange(PositionKey("g", A, 0), Position.offset(7), None, owner)
    world.engine.transactions.commit(Commit(positions=(change,)))
    with pytest.raises(Fenced):
        world.commit(8, member, 2)
    assert world.position() == "offset:7"
    with pytest.raises(Conflict):
        world.poll()


def test_a_move_of_the_shard_loses_no_member(world: World) -> None:
    member, former = world.stable("i"), world.classic
    number = world.engine.topics.shards.of_group("g")
    world.engine.groups.close(number)
    with former.locked() as (groups, now_ms):
        code = groups.heartbeat(now_ms, KEY, Sender(member, 1, "i"))
    assert code == Code.NOT_COORDINATOR, "a thread that still had the shard"
    world.engine.groups.open(number)
    assert world.beat(member, 1, "i") == Code.NONE
    assert world.beat("other", 1, "i") == Code.FENCED_INSTANCE_ID


def test_the_clock_of_the_wall_ends_no_restored_session(world: World) -> None:
    member = world.stable()
    world.clock.jump_ms(10 * 86_400_000)
    world.restart()
    world.clock.jump_ms(-20 * 86_400_000)
    assert world.expire() == [] and world.beat(member) == Code.NONE
    world.clock.pass_ms(10_000)
    assert world.expire() == [] and world.beat(member) == Code.UNKNOWN_MEMBER_ID


def test_groups_of_services_without_kafka_end_by_themselves(world: World) -> None:
    world.stable()
    world.restart()
    world.clock.pass_ms(10_000)
    world.engine.groups.tidy()
    world.poll()
    world.restart()
    assert world.kind is GroupKind.TMS


def test_an_embedded_engine_forgets_members_that_were_in_another_process(world: World) -> None:
    world.stable()
    world.restart()
    world.engine.groups.forget_members()
    assert world.kind is None
    world.restart()
    assert world.kind is None


def test_a_group_is_either_of_tms_or_of_kafka_also_after_a_crash(world: World) -> None:
    """The last member of Kafka leaves, and one of TMS joins before that is stored."""
    world.leave(world.stable())
    world.poll()
    world.restart()
    assert world.kind is GroupKind.TMS


def test_members_of_tms_that_come_and_go_bring_no_member_of_kafka_back(world: World) -> None:
    world.leave(world.stable())
    world.poll()
    world.engine.groups.leave(A, "g", "m")
    world.restart()
    assert world.kind is None


def test_a_group_that_was_deleted_does_not_return(world: World) -> None:
    world.leave(world.stable())
    assert world.classic.delete(KEY) == Code.GROUP_ID_NOT_FOUND
    world.restart()
    assert world.kind is None


def test_a_deletion_that_cannot_be_stored_is_refused() -> None:
    world = World()
    world.leave(world.stable())
    world.store.fail_write(1, stored=False)
    with pytest.raises(TMSError):
        world.classic.delete(KEY)
    world.store.heal()
    world.engine.groups.tidy()
    world.restart()
    assert world.kind is None


@pytest.mark.parametrize("stored", [False, True])
def test_a_failed_write_refuses_the_sync_and_the_members_go_on(stored: bool) -> None:
    world = World()
    member = world.stable()
    assert [answer.code for _, answer in world.join("again", member)] == [Code.NONE]
    assert world.sync(member, 2) == []
    world.store.fail_write(1, stored=stored)
    assert world.classic.save() == [("sync", SyncAnswer(Code.COORDINATOR_NOT_AVAILABLE))]
    assert world.beat(member, 2) == Code.REBALANCE_IN_PROGRESS
    world.store.heal()
    world.engine.groups.forget_positions(A, "g")  # reads the journals again
    if stored:  # which had it all the same: the member is in that generation
        world.engine.groups.of("g").members.load()
        assert world.beat(member, 2) == Code.NONE
    else:
        assert [answer.code for _, answer in world.join("once more", member)] == [Code.NONE]
        assert world.sync(member, 3) == []
        ((_, answer),) = world.classic.save()
        assert answer.code == Code.NONE and world.beat(member, 3) == Code.NONE


def test_a_save_that_the_journal_has_overtaken_answers_who_waits() -> None:
    world = World()
    member = world.stable()
    world.join("again", member)
    world.sync(member, 2)
    world.store.fail_write(1, stored=True)
    world.classic.save()
    world.store.heal()
    world.join("once more", member)
    assert world.sync(member, 3) == []
    world.engine.groups.forget_positions(A, "g")
    world.engine.groups.of("g").members.load()  # as a member of TMS's own does
    assert world.classic.save() == [("sync", SyncAnswer(Code.NOT_COORDINATOR))]
    with world.classic.locked() as (groups, _):
        assert not groups.wants_saving
    assert world.beat(member, 2) == Code.NONE


def test_a_journal_that_cannot_be_read_refuses_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> None:
        raise StorageUnavailable("The store is gone.")

    world = World()
    member = world.stable()
    world.join("again", member)
    world.sync(member, 2)
    monkeypatch.setattr(world.engine.groups.of("g").members._journaled, "load", unreadable)
    assert world.classic.save() == [("sync", SyncAnswer(Code.COORDINATOR_NOT_AVAILABLE))]


def test_nobody_is_told_until_the_disk_has_answered(world: World) -> None:
    member = world.stable()
    world.join("again", member)
    with world.gate.holding("write"):
        assert world.sync(member, 2) == []
        saving = in_thread(world.classic.save)
        world.gate.wait_reached()
        assert not saving.done()
        assert world.beat(member, 2) == Code.NONE, "heartbeats do not wait for the disk"
    assert [token for token, _ in saving.result(PATIENCE_S)] == ["sync"]


def test_one_generation_is_one_write_and_heartbeats_are_none(world: World) -> None:
    journal = world.engine.groups.of("g").members._journal
    member = world.stable()
    before = journal.length
    for _ in range(10):
        world.beat(member)
        world.classic.may_commit(KEY, Sender(member, 1))
    assert journal.length == before
    world.join("again", member)
    world.sync(member, 2)
    world.classic.save()
    world.classic.save()
    assert journal.length == before + 1


def test_groups_that_end_rebalances_together_are_stored_together() -> None:
    world = World()
    keys = [ClassicKey("default", f"g{number}") for number in range(1_000)]
    request = JoinRequest(0, Client("c", "h"), "consumer", (("range", b""),), 10_000, 10_000)
    for key in keys:
        assert world.engine.groups.of(key.group).classic.join(key, key, request) == []
    world.clock.pass_ms(3_000)
    ids: dict[ClassicKey, str] = {}
    writes = 0
    for classic in world.engine.groups.classic_shards():
        with classic.locked() as (groups, now_ms):
            for key, answer in groups.expire(now_ms):
                assert isinstance(key, ClassicKey) and isinstance(answer, JoinAnswer)
                ids[key] = answer.member
                sync = SyncRequest(Sender(answer.member, 1), {answer.member: b"all"})
                assert groups.sync(now_ms, key, key, sync) == []
        before = world.store.writes
        assert {answer.code for _, answer in classic.save()} == {Code.NONE}
        writes += world.store.writes - before
    assert len(ids) == len(keys) and writes < 100
    world.restart()
    for key in keys:
        with world.engine.groups.of(key.group).classic.locked() as (groups, now_ms):
            assert groups.heartbeat(now_ms, key, Sender(ids[key], 1)) == Code.NONE


def test_deleted_topics_end_no_membership(world: World) -> None:
    member = world.stable()
    world.engine.delete_topic(A)
    world.engine.delete_topic(B)
    world.restart()
    assert world.beat(member) == Code.NONE


def test_a_group_that_is_too_large_is_not_kept_and_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    member = world.stable()
    world.classic._bounds = ClassicBounds(kept_bytes_max=10_000)
    world.join("large", member, metadata=b"x" * 10_000)
    assert world.sync(member, 2) == []
    ((_, answer),) = world.classic.save()
    assert answer.code == Code.NONE and world.beat(member, 2) == Code.NONE
    assert "kafka_group_too_large" in caplog.text
    world.restart()
    assert world.kind is None, "neither half of it, nor an earlier generation"


def test_the_journal_is_shortened_and_keeps_the_groups(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "JOURNAL_BYTES", 1_000)
    member = world.stable(metadata=b"m" * 500)
    for generation in range(2, 8):
        world.join("again", member, metadata=b"m" * 500)
        world.sync(member, generation)
        world.classic.save()
    world.engine.groups.tidy()
    assert world.engine.groups.of("g").members._journal.bytes == 0
    world.restart()
    assert world.beat(member, 7) == Code.NONE


def test_another_owner_of_the_journal_is_followed(world: World) -> None:
    """The shard was elsewhere meanwhile: there the group came to another generation."""
    member = world.stable()
    world.restart()
    world.join("again", member)
    world.sync(member, 2)
    ours = world.engine.groups.of("g").members
    kept = ours._journaled.state.classic
    before = kept[KEY]
    world.classic.save()
    elsewhere = kept[KEY]
    ours.keep(lambda: [KeptEntry(KEY, before)])
    world.restart()
    ours = world.engine.groups.of("g").members
    assert world.beat(member) == Code.NONE and world.join("waiting") == []
    ours._journal.write([encode_kept(KeptEntry(KEY, elsewhere))], Durability.SYNCED)
    ours._journaled.invalidate()  # as after a refused write
    ours.load()
    assert world.beat(member, 2) == Code.NONE and world.beat(member) == Code.ILLEGAL_GENERATION
    answers: list[Answered] = []
    world.engine.groups.deliver_classic(answers.extend)
    world.engine.groups.tidy()
    assert [(token, one.code) for token, one in answers] == [("waiting", Code.NOT_COORDINATOR)]
    ours._journal.write([encode_kept(KeptEntry(KEY, None))], Durability.SYNCED)
    ours._journaled.invalidate()
    ours.load()
    assert world.beat(member, 2) == Code.UNKNOWN_MEMBER_ID


def test_a_shard_whose_journal_cannot_be_read_tells_members_to_come_again() -> None:
    world = World()
    member = world.stable()
    is_broken = True

    def fail(operation: str, name: str) -> None:
        if is_broken and operation == "scan" and name != "metadata":
            raise StorageUnavailable("The store is gone.")

    world.engine._threads.shutdown()
    world.engine = Engine(FaultyStore(world.store.inner, before=fail), world.clock)
    assert world.beat(member) == Code.NOT_COORDINATOR
    assert [one.code for _, one in world.sync(member)] == [Code.NOT_COORDINATOR]
    with world.classic.locked() as (groups, now_ms):
        assert groups.leave(now_ms, KEY, [Leaver(member)]) == ([Code.NOT_COORDINATOR], [])
        assert groups.may_commit(now_ms, KEY, Sender(member, 1)) == Code.NOT_COORDINATOR
    is_broken = False
    world.engine.groups.of("g").members.load()
    assert world.beat(member) == Code.NONE


# -- the format ------------------------------------------------------------------------------------

ENTRY_KEY = b"g/default:_kafka"


def test_an_entry_has_this_format() -> None:
    kafka = Coordinator()
    kafka.stable(RANGE, instances=["i"])
    kept = kafka.stored[KEY]
    entry = KeptEntry(KEY, encode_group(kept))
    key, value = encode_kept(entry)
    assert key == ENTRY_KEY
    member = ["i-1", "i", ["client", "/127.0.0.1"], [["range", b"topics"]], 10_000, 60_000, b"a0"]
    assert msgspec.msgpack.decode(value) == [0, [], [1, 1, "consumer", "range", "i-1", [member]]]
    assert decode_kept(key, value) == entry and decode_group(value) == kept
    gone = KeptEntry(KEY, None)
    assert decode_kept(*encode_kept(gone)) == gone
    assert msgspec.msgpack.decode(encode_kept(gone)[1]) == [0, [], None]


def test_an_earlier_release_takes_an_entry_for_a_change_of_nothing() -> None:
    kafka = Coordinator()
    kafka.stable()
    for entry in (KeptEntry(KEY, encode_group(kafka.stored[KEY])), KeptEntry(KEY, None)):
        key, change = decode_entry(*encode_kept(entry))
        assert (key, change) == (GroupKey("g", TopicName("default", "_kafka")), Change(0, ()))


def test_a_group_of_tms_in_a_topic_of_that_name_is_one_of_tms() -> None:
    change = GroupKey("g", TopicName("default", "_kafka")), Change(1, (Joined("m", 1.0),))
    assert decode_kept(*encode_entry(*change)) is None


@pytest.mark.parametrize(
    "group",
    [
        [2, "a later format"],
        [1, 1, "consumer", "range", "m", []],
        [1, 1, "consumer", "range", "m", [["m", None, ["c", "h"], [["o", b""]], 1, 1, b""]]],
        "text",
    ],
    ids=["later", "empty", "unsupported", "text"],
)
def test_members_of_an_entry_of_another_format_join_again(world: World, group: object) -> None:
    value = msgspec.msgpack.encode([0, [], group])
    world.engine.groups.of("g").members.keep(lambda: [KeptEntry(KEY, value)])
    world.restart()
    assert world.kind is None and world.beat("m") == Code.UNKNOWN_MEMBER_ID
    member = world.stable()
    world.restart()
    assert world.beat(member) == Code.NONE


def test_members_that_joined_by_an_earlier_release_are_those_of_the_group(world: World) -> None:
    """Its journal has a group of Kafka still, which that release did not know."""
    world.stable()
    journal = world.engine.groups.of("g").members._journal
    change = GroupKey("g", A), Change(1, (Joined("m", 10.0),))
    journal.write([encode_entry(*change)], Durability.SYNCED)
    world.restart()
    assert world.kind is GroupKind.TMS
