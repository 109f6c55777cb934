"""Log groups of an engine: sessions, restarts, the journal and the fence, with a clock that tests
set and a store that fails."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from random import Random

import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.gate_kit import in_thread
from tests.waiting import PATIENCE_S
from tms.block import encode
from tms.engine.engine import Engine
from tms.errors import Fenced, GroupNotFound, Overloaded, TMSError, TopicNotFound
from tms.groups import members
from tms.groups.membership import GroupKey
from tms.model.group import MemberAssignment, MemberInfo
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey, TopicBlock
from tms.store.base import Store
from tms.store.memory import MemoryStore

IN_TIME_S = 2.0
A, B = TopicName("default", "a"), TopicName("default", "b")


class World:
    """An engine over a store that survives it."""

    def __init__(self, shared: bool = False) -> None:
        self.clock = ManualClock()
        self.open(MemoryStore(shared=shared))
        for name in (A, B):
            self.engine.create_topic(name, TopicSettings(4, durability=Durability.WRITTEN))

    def open(self, store: Store) -> None:
        self.store = FaultyStore(store)
        self.engine = Engine(self.store, self.clock)

    def restart(self, lose: bool = False) -> None:
        """Restart as after a crash of the process, or a power loss."""
        self.engine._threads.shutdown()
        self.clock.pass_ms(1)
        self.open(self.store.crash(Random(1)) if lose else self.store.inner)

    def poll(
        self,
        member: str,
        holding: Mapping[int, int] | None = None,
        *,
        group: str = "g",
        session_s: float = 10,
        topic: TopicName = A,
        reading: bool = False,
    ) -> MemberAssignment:
        return self.engine.groups.poll(
            topic, group, member, session_s, holding or {}, reading=reading
        )

    def leave(self, member: str, group: str = "g") -> None:
        self.engine.groups.leave(A, group, member)

    def owners(self) -> dict[int, str | None]:
        found = self.engine.groups.describe(A, "g")
        return {one.partition: one.owner for one in found.partitions}

    @property
    def journaled(self) -> int:
        """Entries of the journal since it was shortened."""
        return sum(
            shard.members._journal.length
            for shard in self.engine.groups._open_shards.parts.values()
        )

    def groups(self) -> list[GroupKey]:
        """The groups that have members."""
        kept = self.engine.groups._open_shards.parts.values()
        return [key for shard in kept for key in shard.members.groups()]

    def move(self, to: int, owner: Owner | None, partition: int = 0) -> None:
        key = PositionKey("g", A, partition)
        self.engine.groups.move([PositionChange(key, Position.offset(to), None, owner)])

    def position(self, partition: int = 0) -> str:
        return str(self.engine.groups.positions(A, "g")[partition])


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


# Sessions


def test_a_member_that_others_wait_for_is_replaced_when_its_session_ends(world: World) -> None:
    mine = world.poll("a").partitions
    world.clock.pass_ms(5_000)
    world.poll("a", mine)
    assert world.poll("b").coming == 2
    world.clock.pass_ms(9_999)
    assert world.poll("b").partitions == {}
    world.clock.pass_ms(1)
    assert sorted(world.poll("b").partitions) == [0, 1, 2, 3]
    assert world.poll("a", mine).partitions == {}


def test_the_wall_clock_ends_no_session(world: World) -> None:
    mine = world.poll("a").partitions
    world.clock.jump_ms(10 * 86_400_000)
    assert world.poll("b").partitions == {}
    assert world.poll("a", mine).release == {2, 3}


def test_a_member_that_nobody_waits_for_may_be_late(world: World) -> None:
    mine = world.poll("a").partitions
    world.clock.pass_ms(30_000)
    assert world.engine.groups.describe(A, "g").members == ()
    world.move(1, Owner("a", mine[0]))
    assert world.poll("a", mine).partitions == mine
    assert [one.member for one in world.engine.groups.describe(A, "g").members] == ["a"]


def test_a_member_that_never_comes_back_is_forgotten(world: World) -> None:
    world.poll("a")
    world.poll("b", topic=B)
    world.clock.pass_ms(69_000)
    world.engine.groups.tidy()
    assert len(world.groups()) == 2
    world.engine.delete_topic(B)
    world.clock.pass_ms(10_000)
    world.engine.groups.tidy()
    assert world.groups() == []
    with pytest.raises(GroupNotFound):
        world.engine.groups.describe(A, "g")


def test_leaving_is_not_waiting_and_may_be_repeated(world: World) -> None:
    world.poll("a")
    world.poll("b")
    for _ in range(2):
        world.leave("a")
    assert sorted(world.poll("b").partitions) == [0, 1, 2, 3]
    world.leave("b")
    world.leave("nobody")
    assert world.groups() == []


def test_who_reads_up_to_the_end_is_counted_for_the_others(world: World) -> None:
    mine = world.poll("a", reading=True)
    assert mine.reading == 0
    assert world.poll("b").reading == 1
    world.poll("a", mine.partitions)
    assert world.poll("b").reading == 0
    world.poll("a", mine.partitions, reading=True)
    world.clock.pass_ms(10_000)
    assert world.poll("b").reading == 0


def test_a_topic_that_is_not_there_has_no_members(world: World) -> None:
    with pytest.raises(TopicNotFound):
        world.poll("a", topic=TopicName("default", "nowhere"))


def test_a_group_and_a_shard_take_so_many_members_and_no_more(
    one_shard: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MEMBERS_MAX", 2)
    mine = world.poll("a").partitions
    world.poll("b")
    with pytest.raises(Overloaded):
        world.poll("c")
    assert world.poll("a", mine).members == 2
    monkeypatch.setattr(members, "GROUPS_MAX", 1)
    with pytest.raises(Overloaded):
        world.poll("a", group="h")


def test_a_group_shows_who_has_what_how_long_each_may_be_silent_and_where_it_stands(
    world: World,
) -> None:
    mine = dict(world.poll("a", session_s=10).partitions)
    world.clock.pass_ms(1_500)
    world.poll("b", session_s=20)
    del mine[2], mine[3]
    world.clock.pass_ms(250)
    world.poll("a", mine)
    yours = world.poll("b", session_s=20).partitions
    world.clock.pass_ms(500)
    world.move(7, Owner("a", mine[1]), partition=1)
    found = world.engine.groups.describe(A, "g")
    assert (found.group, found.topic) == ("g", "a")
    assert found.members == (
        MemberInfo("a", 10, 9.5, (0, 1)),
        MemberInfo("b", 20, 19.5, (2, 3)),
    )
    assert [(one.owner, one.epoch, one.position) for one in found.partitions] == [
        ("a", mine[0], None),
        ("a", mine[1], "offset:7"),
        ("b", yours[2], None),
        ("b", yours[3], None),
    ]
    assert found.generation == max(yours.values())
    world.clock.pass_ms(9_001)
    assert [one.left_s for one in world.engine.groups.describe(A, "g").members] == [0.499, 10.499]
    with pytest.raises(GroupNotFound) as caught:
        world.engine.groups.describe(A, "h")
    assert caught.value.details == {"group": "h", "topic": "a"}


def test_metrics_look_at_groups_as_long_as_their_partitions_fit(world: World) -> None:
    for group in ("g", "h", "i"):
        world.poll("a", group=group)
    here = world.engine.groups.lags_here
    assert [([one.group for one in here(n)[0]], here(n)[1]) for n in (3, 11, 12)] == [
        ([], 3),
        (["g", "h"], 1),
        (["g", "h", "i"], 0),
    ]
    assert [one.members for one in here(12)[0]] == [1, 1, 1]
    world.clock.pass_ms(10_001)
    assert [one.members for one in here(12)[0]] == [0, 0, 0]


# Restarts and failures


@pytest.mark.parametrize("lose", [False, True])
def test_a_restart_changes_no_owner_and_begins_every_session_anew(world: World, lose: bool) -> None:
    mine = dict(world.poll("a").partitions)
    world.poll("b")
    del mine[3]
    world.poll("a", mine)
    yours = world.poll("b").partitions
    world.clock.pass_ms(9_000)
    world.restart(lose)
    world.clock.pass_ms(9_999)
    assert world.poll("b", yours).partitions == yours
    assert world.poll("a", mine).partitions == mine
    world.clock.pass_ms(10_000)
    assert sorted(world.poll("b", yours).partitions) == [0, 1, 2, 3]


def test_members_of_a_process_that_is_gone_can_be_forgotten(world: World) -> None:
    old = world.poll("a", session_s=1_800).partitions
    world.restart()
    world.engine.groups.forget_members()
    new = world.poll("b").partitions
    assert sorted(new) == [0, 1, 2, 3] and min(new.values()) > max(old.values())


@pytest.mark.parametrize("stored", [False, True])
def test_a_poll_whose_journal_fails_changes_nothing_or_all(world: World, stored: bool) -> None:
    world.poll("a")
    world.poll("b")
    world.store.fail_write(1, stored=stored)
    with pytest.raises(TMSError):
        world.leave("a")
    world.engine.maintenance.recover()
    assert set(world.owners().values()) in ({"a"}, {"b"})
    world.leave("a")
    owned = world.poll("b").partitions
    assert sorted(owned) == [0, 1, 2, 3]
    world.restart()
    assert world.poll("b", owned).partitions == owned


def test_heartbeats_go_on_while_the_store_is_full(world: World) -> None:
    mine = world.poll("a").partitions
    world.store.fill()
    for _ in range(3):
        world.clock.pass_ms(9_000)
        assert world.poll("a", mine).partitions == mine
    with pytest.raises(TMSError):
        world.poll("b")
    world.store.release()
    world.engine.maintenance.recover()
    assert world.poll("b").coming == 2


def test_the_journal_is_shortened_and_forgets_groups_without_members(
    one_shard: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ENTRIES_MAX", 10)
    for number in range(20):
        world.poll("a", group=f"g{number}")
        if number % 2:
            world.leave("a", f"g{number}")
    before = {n: world.poll("a", group=f"g{n}").partitions for n in range(0, 20, 2)}
    assert world.journaled > 10
    world.engine.groups.tidy()
    assert world.journaled == 0
    world.restart()
    assert world.journaled <= 11
    after = {n: world.poll("a", group=f"g{n}").partitions for n in range(0, 20, 2)}
    assert before == after and world.journaled <= 11
    fresh = world.poll("a", group="g1").partitions
    assert min(fresh.values()) > max(max(one.values()) for one in before.values())


# The fence


def test_only_the_owner_of_a_partition_moves_its_position(world: World) -> None:
    mine = world.poll("a").partitions
    owner = Owner("a", mine[0])
    world.move(1, owner)
    for wrong in (Owner("b", mine[0]), Owner("a", mine[0] - 1), Owner("a", mine[0] + 1)):
        with pytest.raises(Fenced) as caught:
            world.move(2, wrong)
        assert caught.value.details["member"] == wrong.member
    world.move(3, None)  # by an operator
    assert world.position() == "offset:3"
    world.restart()
    world.move(4, owner)
    world.leave("a")
    with pytest.raises(Fenced):
        world.move(5, owner)
    assert world.position() == "offset:4"


def test_nothing_of_a_transaction_is_seen_whose_member_was_replaced(world: World) -> None:
    owner = Owner("a", world.poll("a").partitions[0])
    key = PositionKey("g", A, 0)

    def request(token: str) -> Commit:
        block = TopicBlock(B, NewBlock(0, encode([token.encode()])))
        change = PositionChange(key, Position.offset(1), "", owner)
        return Commit(token=token, blocks=(block,), positions=(change,))

    world.poll("b")
    world.clock.pass_ms(10_000)
    world.poll("b")
    with pytest.raises(Fenced):
        world.engine.transactions.commit(request("late"))
    assert world.engine.offsets(B, Position.latest())[0] == 0
    assert world.engine.groups.positions(A, "g") == {}


def test_a_member_replaced_during_its_commit_commits_all_or_nothing(
    world: World,
) -> None:
    """Its owner is checked again when the commit is decided, and changes at no other moment."""
    owner = Owner("a", world.poll("a").partitions[0])
    world.poll("b")
    world.clock.pass_ms(10_000)
    change = PositionChange(PositionKey("g", A, 0), Position.offset(1), "", owner)
    blocks = [(TopicBlock(B, NewBlock(0, encode([b"x"]))),) for _ in range(2)]
    world.engine.transactions.commit(Commit(blocks=blocks[0]))  # pointers are reserved now
    begun = threading.Event()
    replacing: list[Future[object]] = []
    in_time: list[bool] = []

    def before(operation: str, name: str) -> None:
        if operation == "write" and not begun.is_set():  # its blocks are about to be stored
            begun.set()
            replacing.append(in_thread(lambda: world.poll("b")))
            # If another thread had the turn to write, the positions are prepared before the blocks
            # are stored, and the other member waits for the commit.
            in_time.append(bool(wait(replacing, IN_TIME_S).done))

    world.store.before = before
    fenced = False
    try:
        world.engine.transactions.commit(Commit(blocks=blocks[1], positions=(change,)))
    except Fenced:
        fenced = True
    world.store.before = lambda operation, name: None
    replacing[0].result(PATIENCE_S)
    assert fenced == in_time[0] and world.owners()[0] == "b"
    moved = {} if fenced else {0: Position.offset(1)}
    assert world.engine.groups.positions(A, "g") == moved
    found = world.engine.fetch(B, [PartitionPosition(0, Position.earliest())], 1 << 20)
    assert len(found.blocks) == (1 if fenced else 2)


# Lag


def test_the_lag_counts_what_is_before_a_group_and_how_old_it_is(world: World) -> None:
    def lags() -> list[tuple[int, int]]:
        found = world.engine.groups.describe(A, "g").partitions
        return [(one.lag, one.lag_ms) for one in found]

    for count in (3, 2):
        world.engine.append(A, [NewBlock(0, encode([b"x"] * count))])
        world.clock.pass_ms(1_000)
    world.engine.groups.move(
        [PositionChange(PositionKey("g", A, p), Position.earliest()) for p in range(2)]
    )
    assert lags() == [(5, 2_000), (0, 0), (0, 0), (0, 0)]
    for to, lag in (
        (1, (4, 2_000)),
        (2, (3, 2_000)),
        (3, (2, 1_000)),
        (4, (1, 1_000)),
        (5, (0, 0)),
    ):
        world.move(to, None)
        assert lags()[0] == lag
    (summary,) = world.engine.groups.list_groups(A)
    assert (summary.group, summary.lag, summary.lag_ms) == ("g", 0, 0)
    world.engine.append(A, [NewBlock(0, encode([b"x"]))])
    world.clock.pass_ms(700)
    assert lags()[0] == (1, 700)
    assert [one.summary().lag for one in world.engine.groups.lags_here(4)[0]] == [1]
    world.engine.delete_topic(A)
    assert world.engine.groups.lags_here(100) == ([], 0)


def test_what_was_rolled_back_is_no_lag(world: World) -> None:
    world.move(0, None)
    transactions = world.engine.transactions
    id = transactions.begin().transaction_id
    transactions.submit(A, [NewBlock(0, encode([b"x"]))], id).result(5)
    transactions.invalidate(id)
    assert world.engine.groups.describe(A, "g").partitions[0].lag == 0
