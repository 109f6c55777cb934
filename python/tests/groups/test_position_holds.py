"""Positions that a transaction has prepared: no other change moves them until it has ended, and a
change that meets them asks for the outcome."""

import threading

import pytest

from tests.clocks import ManualClock
from tests.waiting import until
from tms.block import Flags
from tms.engine.engine import Engine
from tms.errors import Fenced, StorageUnavailable, TransactionConflict
from tms.groups.group_positions import GroupPositions
from tms.log.groups import Stamp
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey
from tms.store.memory import MemoryStore

A = TopicName("default", "a")
KEY, OURS = PositionKey("g", A, 0), PositionKey("system:test", A, 0)
SYNCED = Durability.SYNCED


class World:
    """An engine over a store that survives it, and a transaction that is open."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), ManualClock()
        self.open()
        self.engine.create_topic(A, TopicSettings(1))
        self.id = self.engine.transactions.begin(long=True).transaction_id

    def open(self) -> None:
        """Start a new process."""
        self.engine = Engine(self.store, self.clock)

    @property
    def positions(self) -> GroupPositions:
        """The positions of the group's shard."""
        return self.engine.groups.of("g").positions

    def prepare(self, to: int, id: int = 0, owner: Owner | None = None) -> None:
        """Prepare as the owner of the shard does for a commit."""
        id = id or self.id
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, id)
        self.positions.prepare([moved(to, owner)], id, SYNCED, stamp, SYNCED).result(5)

    def at(self) -> str:
        """The position of the group."""
        return str(self.engine.groups.positions(A, "g").get(0, ""))


def moved(to: int, owner: Owner | None = None, key: PositionKey = KEY) -> PositionChange:
    return PositionChange(key, Position.offset(to), None, owner)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("tms.groups.group_positions.WAIT_S", 0.02)
    return World()


def test_no_other_commit_moves_a_held_position(world: World) -> None:
    world.engine.groups.move([moved(1)])
    world.prepare(2)
    assert world.at() == "offset:1"
    with pytest.raises(StorageUnavailable, match="does not end"):
        world.engine.groups.move([moved(3)])
    with pytest.raises(StorageUnavailable, match="does not end"):
        world.engine.groups.forget_positions(A, "g")
    with pytest.raises(TransactionConflict):
        world.engine.transactions.commit(Commit(positions=(moved(4),)))
    assert world.at() == "offset:1"


@pytest.mark.parametrize("restarted", [False, True], ids=["", "read again"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
def test_a_reader_of_a_held_position_asks_for_the_outcome(
    world: World, restarted: bool, committed: bool
) -> None:
    """The commit does not name the position, so its end is not announced."""
    world.engine.groups.move([moved(1)])
    world.prepare(2)
    if restarted:
        world.open()
        assert world.at() == "offset:1" and world.positions.load().prepared
    if committed:
        world.engine.transactions.commit(Commit(world.id))
    else:
        world.engine.transactions.abort(world.id)
    assert world.at() == ("offset:2" if committed else "offset:1")
    world.engine.groups.move([moved(3)])
    world.open()
    assert world.at() == "offset:3"


def test_what_is_held_is_moved_by_who_waits_once_it_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.groups.group_positions.WAIT_S", 20.0)
    world.prepare(2)
    mover = threading.Thread(target=lambda: world.engine.groups.move([moved(3)]))
    mover.start()
    world.engine.transactions.commit(Commit(world.id))
    mover.join(10)
    assert not mover.is_alive() and world.at() == "offset:3"


def test_a_partition_changes_its_owner_when_what_it_committed_is_known(world: World) -> None:
    poll = world.engine.groups.poll
    mine = poll(A, "g", "a").partitions
    world.prepare(2, owner=Owner("a", mine[0]))
    world.clock.pass_ms(60_000)  # its session is over
    with pytest.raises(StorageUnavailable):
        poll(A, "g", "b")
    world.engine.transactions.commit(Commit(world.id))
    yours = poll(A, "g", "b").partitions
    assert yours[0] > mine[0] and world.at() == "offset:2"
    with pytest.raises(Fenced):
        world.engine.groups.move([moved(3, Owner("a", mine[0]))])


def test_a_journal_is_not_shortened_while_something_is_held(world: World) -> None:
    for to in range(5):
        world.engine.groups.move([moved(to)])
    world.prepare(7)
    world.engine.groups.shorten_journals(0, world.engine.shards._commits.durable)
    assert world.positions._journal.length == 6
    world.engine.transactions.commit(Commit(world.id))
    world.engine.groups.shorten_journals(0, world.engine.shards._commits.durable)
    assert world.positions._journal.length == 0 and world.at() == "offset:7"
    world.open()
    assert world.at() == "offset:7"


def test_what_began_before_somebody_took_a_position_moves_it_no_more(world: World) -> None:
    groups, commit = world.engine.groups, world.engine.transactions.commit
    first, at = groups.take(OURS)
    assert at is None
    commit(Commit(positions=(moved(1, first, OURS),)))
    second, at = groups.take(OURS)
    assert at == Position.offset(1)
    with pytest.raises(Fenced):
        commit(Commit(positions=(moved(2, first, OURS),)))
    with pytest.raises(Fenced):
        commit(Commit(positions=(moved(2, None, OURS),)))
    commit(Commit(positions=(moved(3, second, OURS),)))
    world.open()
    with pytest.raises(Fenced):
        world.engine.transactions.commit(Commit(positions=(moved(4, second, OURS),)))
    assert world.engine.groups.take(OURS)[1] == Position.offset(3)


def test_a_position_is_taken_when_what_holds_it_has_ended(world: World) -> None:
    owner, _ = world.engine.groups.take(OURS)
    positions = world.engine.groups._positions_of(A, OURS.group)
    stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, world.id)
    positions.prepare([moved(1, owner, OURS)], world.id, SYNCED, stamp, SYNCED).result(5)
    with pytest.raises(StorageUnavailable, match="does not end"):
        world.engine.groups.take(OURS)
    world.engine.transactions.commit(Commit(world.id))
    until(lambda: world.engine.groups.take(OURS)[1] == Position.offset(1))
