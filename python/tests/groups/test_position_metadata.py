"""Positions with metadata in an engine: over topics, restarts, snapshots and transactions, and
positions by offset, which are kept exactly."""

import pytest

from tests.clocks import ManualClock
from tms.block import Flags, encode
from tms.engine.engine import Engine
from tms.errors import Conflict, Forbidden, Invalid, StorageUnavailable
from tms.groups.group_positions import GroupPositions
from tms.log.groups import Stamp
from tms.model.message import NewBlock
from tms.model.position import OFFSET_MAX, Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import (
    LEADER_EPOCH_MAX,
    METADATA_CHARS_MAX,
    Commit,
    CommittedPosition,
    PositionChange,
    PositionKey,
)
from tms.store.memory import MemoryStore

A, B, C = (TopicName("default", name) for name in "abc")
KEY, SYNCED = PositionKey("g", A, 0), Durability.SYNCED
LONGEST = "\N{SNOWMAN}" * METADATA_CHARS_MAX


class World:
    """An engine over a store that survives it."""

    def __init__(self, shared: bool) -> None:
        self.store, self.clock = MemoryStore(shared=shared), ManualClock()
        self.open()
        for name in (A, B, C):
            self.engine.create_topic(name, TopicSettings(3))

    def open(self) -> None:
        """Start a new process."""
        self.engine = Engine(self.store, self.clock)

    @property
    def positions(self) -> GroupPositions:
        """The positions of the group's shard."""
        return self.engine.groups.of("g").positions

    def at(self, topic: TopicName = A, partition: int = 0) -> CommittedPosition | None:
        """A position of the group."""
        return self.engine.groups.committed("g", [topic])[topic].get(partition)

    def shorten(self) -> None:
        """Write a snapshot of the positions."""
        self.engine.groups.shorten_journals(0, self.engine.shards._commits.durable)
        assert self.positions._journal.length == 0

    def lag(self, to: int) -> int | None:
        """The lag of the group once it is moved to an offset."""
        self.engine.groups.move([moved(to)])
        info = self.engine.groups.describe(A, "g").partitions[0]
        assert info.position == f"offset:{to}"
        return info.lag


def moved(
    to: int,
    metadata: str = "",
    leader_epoch: int = -1,
    *,
    key: PositionKey = KEY,
    expected: str | None = None,
) -> PositionChange:
    return PositionChange(key, Position.offset(to), expected, None, metadata, leader_epoch)


def committed(to: int, metadata: str = "", leader_epoch: int = -1) -> CommittedPosition:
    return CommittedPosition(Position.offset(to), metadata, leader_epoch)


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("tms.groups.group_positions.WAIT_S", 0.02)
    return World(request.param)


# Over topics


def test_a_group_moves_in_many_topics_at_once_all_or_nothing(world: World) -> None:
    keys = [PositionKey("g", topic, partition) for topic in (A, B) for partition in range(3)]
    before = world.positions._journal.length
    groups = world.engine.groups
    groups.move([moved(n, f"of {n}", n, key=key) for n, key in enumerate(keys)])
    assert world.positions._journal.length == before + len(keys)
    wanted = {
        topic: {p: committed(3 * n + p, f"of {3 * n + p}", 3 * n + p) for p in range(3)}
        for n, topic in enumerate((A, B))
    }
    assert groups.committed("g") == wanted
    with pytest.raises(Conflict):
        groups.move([moved(8, key=keys[0]), moved(9, key=keys[5], expected="offset:4")])
    assert groups.committed("g") == wanted


def test_positions_are_shown_of_some_topics_or_of_all_that_exist(world: World) -> None:
    groups = world.engine.groups
    assert groups.committed("g") == {} and groups.committed("g", [A]) == {A: {}}
    groups.move([moved(1, "x"), moved(2, key=PositionKey("g", C, 2))])
    groups.move([moved(7, key=PositionKey("h", B, 0))])
    assert groups.committed("g") == {A: {0: committed(1, "x")}, C: {2: committed(2)}}
    assert groups.committed("g", [C, B]) == {C: {2: committed(2)}, B: {}}
    world.engine.delete_topic(C)
    assert groups.committed("g") == {A: {0: committed(1, "x")}}
    with pytest.raises(Forbidden):
        groups.committed("system:delayed")


def test_some_positions_are_forgotten(world: World) -> None:
    groups = world.engine.groups
    groups.move([moved(p, f"of {p}", key=PositionKey("g", A, p)) for p in range(3)])
    groups.forget_positions(A, "g", [])
    assert len(groups.positions(A, "g")) == 3
    groups.forget_positions(A, "g", [1, 7])
    left = {0: committed(0, "of 0"), 2: committed(2, "of 2")}
    assert groups.committed("g") == {A: left}
    world.open()
    assert world.engine.groups.committed("g") == {A: left}
    world.engine.groups.forget_positions(A, "g")
    assert world.engine.groups.committed("g") == {}


# Metadata


@pytest.mark.parametrize(
    ("metadata", "leader_epoch"),
    [("", -1), ("x", -1), ("", 0), (LONGEST, LEADER_EPOCH_MAX), ("\0\n\U0001f600", 1)],
)
def test_metadata_come_back_after_restarts_and_snapshots(
    world: World, metadata: str, leader_epoch: int
) -> None:
    wanted = committed(5, metadata, leader_epoch)
    world.engine.groups.move([moved(4, "earlier", 7)])
    world.engine.groups.move([moved(5, metadata, leader_epoch)])
    assert world.at() == wanted
    world.open()
    assert world.at() == wanted
    world.shorten()
    world.open()
    assert world.at() == wanted
    info = world.engine.groups.describe(A, "g").partitions
    assert (info[0].metadata, info[0].leader_epoch) == (metadata, leader_epoch)
    assert (info[1].position, info[1].metadata, info[1].leader_epoch) == (None, "", -1)


def test_a_move_without_metadata_removes_them(world: World) -> None:
    world.engine.groups.move([moved(5, "x", 3)])
    world.engine.groups.move([moved(5)])
    assert world.at() == committed(5)


def test_an_expected_position_has_no_metadata(world: World) -> None:
    groups = world.engine.groups
    groups.move([moved(5, "x", 3, expected="")])
    groups.move([moved(6, "y", expected="offset:5")])
    with pytest.raises(Conflict) as caught:
        groups.move([moved(7, "y", expected="offset:5")])
    assert caught.value.details["position"] == "offset:6"


@pytest.mark.parametrize("restarted", [False, True], ids=["", "read again"])
@pytest.mark.parametrize("visible", [True, False], ids=["committed", "aborted"])
def test_metadata_in_a_transaction_count_if_it_commits(
    world: World, visible: bool, restarted: bool
) -> None:
    groups, transactions = world.engine.groups, world.engine.transactions
    groups.move([moved(1, "before", 1)])
    id = transactions.begin(long=True).transaction_id
    stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, id)
    world.positions.prepare([moved(2, "within", 2)], id, SYNCED, stamp, SYNCED).result(5)
    if restarted:
        world.open()
    groups, transactions = world.engine.groups, world.engine.transactions
    assert world.at() == committed(1, "before", 1)
    for topics in ([A], None):
        with pytest.raises(StorageUnavailable, match="does not end"):
            groups.committed("g", topics, stable=True)
    assert groups.committed("g", [B], stable=True) == {B: {}}
    if visible:
        transactions.commit(Commit(id))
    else:
        transactions.abort(id)
    after = committed(2, "within", 2) if visible else committed(1, "before", 1)
    assert groups.committed("g", stable=True) == {A: {0: after}}
    world.open()
    assert world.at() == after


def test_a_commit_moves_positions_of_many_topics_with_metadata(world: World) -> None:
    changes = (moved(1, "a", 1), moved(2, "b", 2, key=PositionKey("g", B, 1)))
    world.engine.transactions.commit(Commit(positions=changes))
    wanted = {A: {0: committed(1, "a", 1)}, B: {1: committed(2, "b", 2)}}
    assert world.engine.groups.committed("g") == wanted
    world.open()
    assert world.engine.groups.committed("g") == wanted


def test_taking_a_position_keeps_its_metadata(world: World) -> None:
    """Only TMS's own groups are taken; the record is general."""
    key = PositionKey("system:test", A, 0)
    owner, _ = world.engine.groups.take(key)
    change = PositionChange(key, Position.offset(1), None, owner, "x", 3)
    world.engine.groups.move([change])
    assert world.engine.groups.take(key)[1] == Position.offset(1)
    world.open()
    positions = world.engine.groups._positions_of(A, key.group)
    assert positions.of(key.group, A) == {0: committed(1, "x", 3)}


@pytest.mark.parametrize(
    ("metadata", "leader_epoch", "field"),
    [
        (LONGEST + "x", -1, "metadata"),
        ("\ud800", -1, "metadata"),
        (b"bytes", -1, "metadata"),
        ("", -2, "leader_epoch"),
        ("", LEADER_EPOCH_MAX + 1, "leader_epoch"),
        ("x", "1", "leader_epoch"),
    ],
)
def test_metadata_that_are_none_are_refused(metadata: str, leader_epoch: int, field: str) -> None:
    for build in (moved, committed):
        with pytest.raises(Invalid) as caught:
            build(1, metadata, leader_epoch)
        assert caught.value.details["field"] == field


# Offsets


@pytest.mark.parametrize("offset", [0, 1, 5, 2**31, 2**53 + 1, OFFSET_MAX])
def test_an_offset_is_kept_exactly_wherever_it_points(world: World, offset: int) -> None:
    world.engine.append(A, [NewBlock(0, encode([b"x"] * 3))])
    world.engine.groups.move([moved(offset)])
    world.engine.transactions.commit(Commit(positions=(moved(offset, key=PositionKey("g", A, 1)),)))
    for _ in range(2):
        assert world.at() == world.at(partition=1) == committed(offset)
        assert world.engine.groups.positions(A, "g")[0] == Position.offset(offset)
        world.open()
    world.shorten()
    world.open()
    assert world.at() == committed(offset)


def test_the_lag_of_an_offset_outside_of_the_partition_counts_readable_messages(
    world: World,
) -> None:
    world.engine.append(A, [NewBlock(0, encode([b"x"] * 10))])
    assert [world.lag(to) for to in (0, 3, 9, 10, 11, OFFSET_MAX)] == [10, 7, 1, 0, 0, 0]
    world.engine.truncate_topic(A, Position.offset(4))
    assert [world.lag(to) for to in (0, 3, 4, 9, 10, 11)] == [6, 6, 6, 1, 0, 0]
    world.engine.append(A, [NewBlock(0, encode([b"x"] * 5))])
    assert [world.lag(to) for to in (0, 11, 14, 15)] == [11, 4, 1, 0]
