"""Transactions on an engine: all or nothing for every reader, whatever happens."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tests.owners_kit import Later as NoThread
from tests.shards_kit import shorten_journals
from tms.block import decode, encode
from tms.engine.engine import Engine
from tms.errors import (
    Closed,
    Conflict,
    Fenced,
    Invalid,
    InvalidTruncateTime,
    StorageUnavailable,
    TooLarge,
    TopicNotFound,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
    TransactionTimedOut,
)
from tms.log.recovery import header_of
from tms.model.message import Holder, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation, TransactionType
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey, TopicBlock
from tms.store.memory import MemoryStore
from tms.topics.sharding import TRANSACTIONS
from tms.transactions.uncommitted import StoredRange
from tms.transactions.writes import UncommittedWrites

A, B = TopicName("default", "a"), TopicName("default", "b")
WRITTEN = Durability.WRITTEN


class World:
    """An engine over a store that survives it."""

    def __init__(self, shared: bool = False) -> None:
        self.store = MemoryStore(shared=shared)
        self.clock = ManualClock()
        self.open()
        for name in (A, B):
            self.engine.create_topic(name, TopicSettings(2, durability=WRITTEN))

    def open(self) -> None:
        self.engine = Engine(self.store, self.clock)
        self.tx = self.engine.transactions

    def reopen(self) -> None:
        """Open the store again without closing it: as after a crash of the process."""
        self.engine._threads.shutdown()
        self.clock.pass_ms(1)
        self.open()

    def read(
        self,
        name: TopicName = A,
        isolation: Isolation = Isolation.COMMITTED,
        start: Position | None = None,
    ) -> list[bytes | None]:
        """The values that partition 0 shows."""
        found: list[bytes | None] = []
        position = start or Position.earliest()
        while True:
            fetched = self.engine.fetch(
                name, [PartitionPosition(0, position)], 1 << 20, 0, isolation
            )
            if not fetched.blocks:
                return found
            for stored in fetched.blocks:
                found += decode(stored.block).values()
            position = fetched.next[0]

    def publish(self, *values: bytes, name: TopicName = A) -> None:
        self.engine.append(name, [NewBlock(0, encode(list(values)))])

    def publish_in(self, pointer: int, *values: bytes, name: TopicName = A) -> StoredRange:
        (place,) = self.tx.submit(name, [NewBlock(0, encode(list(values)))], pointer).result(5)
        return StoredRange.of(name, place, pointer)


def commit(*values: bytes, id: int = 0, token: str = "", name: TopicName = A) -> Commit:
    blocks = tuple(TopicBlock(name, NewBlock(0, encode([value]))) for value in values)
    return Commit(id, token, blocks)


def moved(to: int, expected: str | None = None, group: str = "g") -> PositionChange:
    return PositionChange(PositionKey(group, A, 0), Position.offset(to), expected)


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


# Commit


def test_a_commit_over_topics_is_visible_with_its_answer(world: World) -> None:
    blocks = (
        TopicBlock(A, NewBlock(0, encode([b"1", b"2"]))),
        TopicBlock(A, NewBlock(1, encode([b"3"]))),
        TopicBlock(B, NewBlock(0, encode([b"4"]))),
    )
    result = world.tx.commit(Commit(blocks=blocks))
    assert [(one.topic, one.place.partition, one.place.count) for one in result.appended] == [
        (A, 0, 2),
        (A, 1, 1),
        (B, 0, 1),
    ]
    assert world.read(A) == [b"1", b"2"] and world.read(B) == [b"4"]
    assert world.tx.describe(result.transaction_id).outcome == "committed"


def test_a_commit_that_fails_halfway_is_never_seen(world: World) -> None:
    world.publish(b"before")
    gone = TopicName("default", "gone")
    blocks = (
        TopicBlock(A, NewBlock(0, encode([b"1"]))),
        TopicBlock(gone, NewBlock(0, encode([b"2"]))),
    )
    with pytest.raises(TopicNotFound):
        world.tx.commit(Commit(blocks=blocks, durability=WRITTEN))
    world.publish(b"after")
    assert world.read() == [b"before", b"after"]
    assert world.read(isolation=Isolation.UNCOMMITTED) == [b"before", b"1", b"after"]
    world.reopen()
    assert world.read() == [b"before", b"after"]


def test_a_repeated_commit_is_answered_alike_and_done_once(world: World) -> None:
    first = world.tx.commit(commit(b"1", token="t"))
    assert world.tx.commit(commit(b"1", token="t")) == first
    id = world.tx.begin().transaction_id
    second = world.tx.commit(commit(b"2", id=id))
    assert world.tx.commit(commit(b"2", id=id)) == second
    assert world.read() == [b"1", b"2"]
    world.reopen()
    assert world.tx.commit(commit(b"1", token="t")).transaction_id == first.transaction_id
    assert world.tx.commit(commit(b"2", id=id)).transaction_id == id
    assert world.read() == [b"1", b"2"]


def test_a_late_commit_touches_nothing(world: World) -> None:
    with pytest.raises(TransactionNotFound):
        world.tx.commit(commit(b"x", id=12_345))
    id = world.tx.begin(timeout_s=5).transaction_id
    other = world.tx.begin().transaction_id
    world.tx.abort(other)
    with pytest.raises(TransactionEnded):
        world.tx.commit(commit(b"x", id=other))
    world.clock.pass_ms(5_001)
    world.tx.manager.expire()
    with pytest.raises(TransactionTimedOut):
        world.tx.commit(commit(b"x", id=id))
    assert world.read(isolation=Isolation.UNCOMMITTED) == []


def test_of_two_that_change_the_same_the_later_is_refused(world: World) -> None:
    one, other = (world.tx.begin().transaction_id for _ in range(2))
    world.tx.commit(Commit(one, changes=(b"k", b"l"), durability=WRITTEN))
    with pytest.raises(TransactionConflict):
        world.tx.commit(Commit(other, blocks=commit(b"x").blocks, changes=(b"l",)))
    assert world.read() == []
    world.tx.commit(Commit(changes=(b"l",), durability=WRITTEN))


def test_what_the_engine_itself_commits_is_as_large_as_its_topic_once_allowed(
    world: World,
) -> None:
    """For example delayed messages that are due after their topic became stricter."""
    world.engine.update_topic(A, {"message_bytes_max": 10})
    with pytest.raises(TooLarge):
        world.tx.commit(commit(bytes(11)))
    world.tx.submit_commit(commit(bytes(11)), Durability.SYNCED, lambda: None).result(5)
    assert world.read() == [bytes(11)]


# Reading


def test_a_reader_stops_at_an_open_transaction_and_goes_on_in_order(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.publish(b"1")
    world.publish_in(id, b"2")
    world.publish(b"3")
    assert world.read() == [b"1"]
    assert world.read(isolation=Isolation.UNCOMMITTED) == [b"1", b"2", b"3"]
    world.tx.commit(Commit(id, durability=WRITTEN))
    assert world.read() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("end", ["abort", "invalidate", "expire"])
def test_a_transaction_that_ends_otherwise_is_stepped_over(world: World, end: str) -> None:
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"x")
    world.publish(b"1")
    if end == "expire":
        world.clock.pass_ms(30_001)
        assert world.tx.manager.expire() == 1
    else:
        getattr(world.tx, end)(id)
    assert world.read() == [b"1"]
    with pytest.raises(TransactionEnded):
        world.publish_in(id, b"late")
    world.reopen()
    assert world.read() == [b"1"]


def test_a_waiting_reader_is_woken_by_the_commit(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"1")
    found: list[int] = []

    def wait() -> None:
        at = [PartitionPosition(0, Position.earliest())]
        found.append(len(world.engine.fetch(A, at, 1 << 20, 10).blocks))

    thread = threading.Thread(target=wait)
    thread.start()
    while not world.tx.manager._watchers:
        pass
    world.tx.commit(Commit(id, durability=WRITTEN))
    thread.join(5)
    assert found == [1]


def test_a_foreign_transaction_is_open_until_it_is_rolled_back_or_too_old(world: World) -> None:
    foreign = world.clock.now_ms() * 1_000_000 + 77
    range = world.publish_in(foreign, b"x")
    world.publish(b"1")
    assert world.read() == []
    world.clock.pass_ms(1)
    assert world.tx.begin().transaction_id > foreign  # and its own earlier pointers
    assert world.tx.roll_back(range) == 1
    assert world.read() == [b"1"]
    world.publish_in(foreign + 1, b"y")
    world.publish(b"2")
    assert world.read() == [b"1"]
    world.clock.pass_ms(25 * 3_600_000 + 1)
    assert world.read() == [b"1", b"2"]


def test_what_is_taken_back_is_one_append_and_not_the_next_of_its_transaction(
    world: World,
) -> None:
    id = world.tx.begin().transaction_id
    first, second = world.publish_in(id, b"1", b"2"), world.publish_in(id, b"3")
    assert first.last[0] == second.first[0], "they are of one millisecond"
    assert world.tx.roll_back(first) == 1
    world.tx.commit(Commit(id))
    assert world.read() == [b"3"]


def offsets(world: World, at: str = "latest", name: TopicName = A) -> int:
    return world.engine.offsets(name, Position.parse(at))[0]


def test_the_offset_of_latest_is_where_everything_before_is_decided(world: World) -> None:
    world.publish(b"1")
    aborted, open = (world.tx.begin(long=True).transaction_id for _ in range(2))
    world.publish_in(aborted, b"a", b"b")
    world.publish_in(open, b"c")
    world.publish(b"2")
    assert offsets(world) == offsets(world, "offset:4") == 1
    world.tx.abort(aborted)
    assert offsets(world) == 3
    world.reopen()
    assert offsets(world) == 3, "what was stored before the start is not known"
    assert world.engine.offsets(A, Position.latest(), Isolation.UNCOMMITTED) == {0: 5, 1: 0}
    world.tx.commit(Commit(open))
    assert offsets(world) == 5
    assert offsets(world, "earliest") == 0


def test_the_offset_of_latest_waits_for_foreign_transactions_also_after_a_start(
    world: World,
) -> None:
    foreign = world.clock.now_ms() * 1_000_000 + 77
    world.publish(b"1")
    range = world.publish_in(foreign, b"x")
    world.publish(b"2")
    world.clock.pass_ms(10 * 3_600_000)
    world.reopen()
    assert offsets(world) == 1
    world.engine.update_topic(A, {"retention": "30d"})
    world.reopen()
    assert offsets(world) == 1
    world.tx.roll_back(range)
    assert offsets(world) == 3


def test_offsets_read_only_what_may_be_undecided(world: World) -> None:
    for _ in range(20):
        world.publish(bytes(1_000))
        world.clock.pass_ms(600_000)
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"x")
    world.reopen()
    read: list[int] = []
    reader = world.engine.topics.partitions.get(A, world.engine.topics.registry.find(A), 0).reader
    scan = reader._scan

    def counted(*of: Any) -> Any:
        found = scan(*of)
        read.extend(header.base_offset for header in map(header_of, found))
        return found

    reader._scan = counted  # type: ignore[method-assign]
    assert [offsets(world) for _ in range(3)] == [20] * 3
    assert min(read) >= 13, "an hour before the transaction began is six messages"
    assert read.count(14) == 1, "what is decided was read again"


def test_a_snapshot_decides_for_readers_whose_transactions_run_elsewhere(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"own")
    other = world.tx.begin().transaction_id
    world.publish_in(other, b"other")
    snapshot = world.tx.manager.snapshot(id)
    at = [PartitionPosition(0, Position.earliest())]
    fetched = world.engine.fetch(A, at, 1 << 20, 0, snapshot)
    assert [decode(one.block).values() for one in fetched.blocks] == [[b"own"]]
    assert fetched.held == {0: Holder(other, True)}


# Positions


def test_positions_move_with_their_transaction_or_not_at_all(world: World) -> None:
    world.tx.commit(Commit(blocks=commit(b"1").blocks, positions=(moved(5),)))
    assert world.engine.groups.positions(A, "g") == {0: Position.offset(5)}
    with pytest.raises(Conflict):
        world.tx.commit(Commit(blocks=commit(b"2").blocks, positions=(moved(9, "offset:4"),)))
    world.tx.commit(Commit(positions=(moved(7, "offset:5"),)))
    assert world.read() == [b"1"]
    world.reopen()
    assert world.engine.groups.positions(A, "g") == {0: Position.offset(7)}
    assert world.engine.groups.of("g").positions.groups() == [("g", A)]
    world.engine.groups.move([moved(8)])
    world.engine.groups.forget_positions(A, "g")
    world.reopen()
    assert world.engine.groups.of("g").positions.groups() == []


def test_of_two_that_move_a_position_from_the_same_place_one_commits(world: World) -> None:
    one, other = (world.tx.begin().transaction_id for _ in range(2))
    world.tx.commit(Commit(one, positions=(moved(1),)))
    with pytest.raises(TransactionConflict):
        world.tx.commit(Commit(other, positions=(moved(1),)))


def test_who_has_lost_a_partition_moves_no_position_of_it(world: World) -> None:
    world.engine.groups.move([moved(1)])
    lost = replace(moved(2), owner=Owner("somebody", 1))
    with pytest.raises(Fenced):
        world.tx.commit(Commit(blocks=commit(b"1").blocks, positions=(lost,)))
    with pytest.raises(Fenced):
        world.engine.groups.move([lost])
    assert world.read() == [] and world.engine.groups.positions(A, "g") == {0: Position.offset(1)}
    world.engine.groups.of("g").members._journaled.invalidate()
    assert not world.tx.is_ready(Commit(positions=(moved(2),)))


# Restarts


def test_open_transactions_go_on_after_a_restart(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"1")
    world.reopen()
    assert world.read() == []
    assert [one.transaction_id for one in world.tx.open()] == [id]
    world.tx.commit(commit(b"2", id=id))
    assert world.read() == [b"1", b"2"]


def test_what_is_published_after_a_restart_blocks_its_partitions_too(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.reopen()
    world.publish_in(id, b"1")
    assert world.tx.stats(world.clock.now_ms()).partitions_blocked == 1
    world.tx.commit(Commit(id))
    assert world.tx.stats(world.clock.now_ms()).partitions_blocked == 0


def test_attempts_that_are_refused_are_not_remembered_for_ever(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.tx.commit(Commit(changes=(b"k",)))
    with pytest.raises(TransactionConflict):
        world.tx.commit(Commit(id, changes=(b"k",)))
    assert not world.tx._uncommitted.writes._writes


def test_a_commit_cut_off_by_a_crash_is_never_seen(world: World) -> None:
    id = world.tx.manager.begin_intended("token")
    world.publish_in(id, b"x")
    world.publish(b"1")
    world.reopen()
    assert world.read() == [b"1"]
    with pytest.raises(TransactionEnded):
        world.tx.commit(commit(b"x", id=id))
    assert world.tx.commit(commit(b"x", token="token")).transaction_id > id
    assert world.read() == [b"1", b"x"]


def test_pointers_are_never_given_twice(world: World) -> None:
    given: list[int] = []
    for life in range(4):
        given += [world.tx.begin().transaction_id for _ in range(3)]
        world.clock.jump_ms(-3_600_000 * life)
        world.reopen()
    assert given == sorted(set(given))


def test_edits_that_no_block_could_hold_together_are_written_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.journal.ENTRY_BYTES", 10)
    ids = [world.tx.begin().transaction_id for _ in range(3)]
    world.tx.manager.expire()
    world.tx.commit(commit(b"1", token="t"))
    world.reopen()
    assert [one.transaction_id for one in world.tx.open()] == ids and world.read() == [b"1"]


def test_an_abort_of_what_is_invalid_leaves_it_so(world: World) -> None:
    id = world.tx.begin(long=True).transaction_id
    world.publish_in(id, b"x")
    for _ in range(2):
        assert world.tx.abort(id).outcome == "invalid"
    assert id in world.tx.manager.state.invalid


def test_what_was_rolled_back_is_never_seen_though_nobody_remembers_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 1)
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"x")
    assert world.tx.abort(id).outcome == "aborted"
    for _ in range(2):
        world.tx.abort(world.tx.begin().transaction_id)
    assert id not in world.tx.manager.state.ended and world.read() == []


def test_an_abort_of_what_may_be_half_committed_makes_it_invalid(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.tx.manager.intend(id, [])  # its messages may be in flight
    assert world.tx.abort(id).outcome == "invalid"


def test_an_append_that_comes_as_its_transaction_ends_is_refused_and_hinders_no_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = world.tx.begin().transaction_id
    in_progress, enter = world.tx.manager.state.in_progress, UncommittedWrites.enter

    def enter_as_it_ends(self: UncommittedWrites[object], id: int) -> None:
        enter(self, id)
        monkeypatch.delitem(in_progress, id)

    monkeypatch.setattr(UncommittedWrites, "enter", enter_as_it_ends)
    with pytest.raises(TransactionEnded, match="nothing can be published") as caught:
        world.publish_in(id, b"late")
    assert caught.value.details["transaction"] == id
    monkeypatch.undo()
    assert world.tx.abort(id).outcome == "aborted"


@pytest.mark.parametrize("remembered", [1, 1_000])
def test_what_is_committed_cannot_be_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """This holds however many transactions have ended since."""
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", remembered)
    id = world.tx.begin().transaction_id
    range = world.publish_in(id, b"1")
    world.tx.commit(Commit(id))
    for _ in (1, 2):
        world.tx.abort(world.tx.begin().transaction_id)
    with pytest.raises(TransactionEnded, match="is committed") as caught:
        world.tx.roll_back(range)
    assert caught.value.details == {"transaction": id, "outcome": "committed"}
    world.reopen()
    assert world.read() == [b"1"]


def test_an_abort_misses_nothing_of_a_topic_that_is_gone(world: World) -> None:
    id = world.tx.begin().transaction_id
    for name in (B, A):
        world.publish_in(id, b"x", name=name)
    world.engine.delete_topic(B)
    assert world.tx.abort(id).outcome == "aborted"
    assert world.read() == []


def test_what_was_taken_back_may_be_taken_back_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without the first answer repeats it, however many transactions have ended since."""
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 1)
    id = world.tx.begin().transaction_id
    range = world.publish_in(id, b"1")
    for _ in (1, 2):
        assert world.tx.roll_back(range) == 1
        world.tx.abort(id)
        world.tx.abort(world.tx.begin().transaction_id)
    assert world.read() == []


def test_an_abort_of_what_stored_nothing_waits_for_no_sync(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = world.tx.begin().transaction_id
    monkeypatch.setattr(world.tx.manager, "invalidate", lambda id: pytest.fail("it is synced"))
    assert world.tx.abort(id).outcome == "aborted"


def test_a_pointer_of_this_engine_stays_its_own_after_its_end_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold readers back until it is too old: invalid ones, also by a checkpoint,
    and those lost in a crash."""
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 1)
    seen = world.tx.tephra.start(TransactionType.SHORT, None)
    checkpoint = world.tx.tephra.checkpoint(seen).write_pointer
    world.tx.invalidate(seen.transaction_id)
    world.tx.abort(world.tx.begin().transaction_id)
    world.reopen()
    lost = world.tx.manager.state.lost[-1][0]
    for pointer in (seen.transaction_id, checkpoint, lost):
        assert pointer not in world.tx.manager.state.ended
        with pytest.raises(TransactionEnded):
            world.publish_in(pointer, b"late")
    world.publish(b"1")
    assert world.read() == [b"1"]


def test_what_was_open_before_a_start_times_out_though_nothing_is_begun(world: World) -> None:
    id = world.tx.begin(timeout_s=5).transaction_id
    world.publish_in(id, b"x")
    world.publish(b"1")
    world.reopen()
    ended: list[int] = []
    world.tx.manager.watch_end(id, lambda: ended.append(id))
    world.clock.pass_ms(5_001)
    assert world.tx.manager.expire() == 1
    assert ended == [id], "who waits for it is woken"
    assert world.tx.describe(id).outcome == "timed-out" and world.read() == [b"1"]


def test_journals_are_kept_once_they_have_grown_and_not_again(world: World) -> None:
    for _ in range(5):
        world.tx.commit(commit(b"1"))
    shorten_journals(world.engine, 5, 5)
    first = world.tx._registry.journal_start(world.tx._registry.find(TRANSACTIONS).uid, 0)
    assert first is not None
    for _ in range(2):
        shorten_journals(world.engine, 5, 5)
        again = world.tx._registry.journal_start(world.tx._registry.find(TRANSACTIONS).uid, 0)
        assert again == first


def test_a_commit_is_ready_when_it_needs_to_read_nothing(world: World) -> None:
    assert world.tx.is_ready(commit(b"1", token="t"))
    world.tx.begin(token="t")
    assert not world.tx.is_ready(commit(b"1", token="t"))
    assert world.tx.is_ready(Commit(positions=(moved(1),)))
    world.engine.groups.of("g").positions.invalidate()
    assert not world.tx.is_ready(Commit(positions=(moved(1),)))
    assert world.tx.is_ready(commit(b"1"))


def test_watchers_of_a_transaction_are_called_when_it_ends(world: World) -> None:
    """This also holds for the pointer of a checkpoint."""
    manager, ended = world.tx.manager, list[str]()
    seen = world.tx.tephra.start(TransactionType.SHORT, None)
    own = world.tx.tephra.checkpoint(seen).write_pointer
    manager.watch_end(own, lambda: ended.append("own"))
    manager.watch_end(own, lambda: ended.append("cancelled"))()
    assert ended == []
    world.tx.abort(seen.transaction_id)
    assert ended == ["own"]
    manager.watch_end(own, lambda: ended.append("late"))
    assert ended == ["own", "late"]


def test_what_is_in_progress_bounds_what_is_decided_for_everybody(world: World) -> None:
    id = world.tx.begin().transaction_id
    assert world.tx.manager.bound() < id
    world.tx.abort(id)
    assert world.tx.manager.bound() >= id


def test_where_nothing_was_begun_nothing_expires(world: World) -> None:
    assert world.tx.manager.expire() == 0


def test_fault_23_what_comes_late_cannot_touch_the_next_transaction(world: World) -> None:
    late = world.tx.begin().transaction_id
    world.publish_in(late, b"late")
    world.tx.commit(Commit(late))
    after = world.tx.begin().transaction_id
    world.publish_in(after, b"next")
    with pytest.raises(TransactionEnded):
        world.publish_in(late, b"too late")
    with pytest.raises(TransactionEnded):
        world.tx.abort(late)
    world.tx.commit(Commit(late))  # with the answer of the first time
    assert world.tx.describe(after).outcome == "open"
    assert world.read() == [b"late"]
    world.tx.commit(Commit(after))
    assert world.read() == [b"late", b"next"]


def test_fault_24_readers_move_on_when_a_transaction_is_never_finished(world: World) -> None:
    id = world.tx.begin(timeout_s=5).transaction_id
    world.publish_in(id, b"never")
    world.publish(b"plain")
    assert world.read() == []
    world.clock.pass_ms(5_001)
    world.tx.manager.expire()
    assert world.read() == [b"plain"]
    assert world.tx.describe(id).outcome == "timed-out"


def test_fault_25_what_is_written_late_by_a_pruned_transaction_is_never_seen(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"before")
    world.tx.invalidate(id)
    assert world.tx.prune(world.clock.now_ms() + 1_000) == 1
    assert world.tx.prune(world.clock.now_ms() + 1_000) == 0
    with pytest.raises(TransactionEnded):
        world.publish_in(id, b"after")
    world.publish(b"plain")
    assert world.read() == [b"plain"]
    world.reopen()
    with pytest.raises(TransactionEnded):
        world.publish_in(id, b"after")
    assert world.read() == [b"plain"]


def test_pruning_waits_for_what_is_in_progress(world: World) -> None:
    world.tx.begin()
    with pytest.raises(InvalidTruncateTime):
        world.tx.prune(world.clock.now_ms() + 1_000)


def test_what_stands_is_counted(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"waits")
    world.tx.invalidate(world.tx.begin().transaction_id)
    for _ in range(2):
        world.tx.commit(commit(b"1"))
    world.clock.pass_ms(700)
    found = world.tx.stats(world.clock.now_ms())
    assert (found.open, found.invalid, found.committed, found.partitions_blocked) == (1, 1, 2, 1)
    assert 700 <= found.oldest_ms < 800
    world.tx.abort(id)
    found = world.tx.stats(world.clock.now_ms())
    assert (found.open, found.oldest_ms, found.partitions_blocked) == (0, 0, 0)


def test_a_start_reads_the_journals_from_where_their_state_was_kept(world: World) -> None:
    world.tx.commit(Commit(positions=(moved(3),)))
    done = world.tx.commit(commit(b"1", token="t")).transaction_id
    open, gone = (world.tx.begin(token=name).transaction_id for name in ("open", "gone"))
    world.publish_in(open, b"2")
    world.publish_in(gone, b"never")
    world.tx.invalidate(gone)
    shorten_journals(world.engine, 0, 0)
    world.tx.commit(commit(b"3", name=B))
    first = next(world.tx.manager._journal._topic.replay()).value or b""
    assert first.startswith(b'[["kept"')
    world.reopen()
    assert len(list(world.engine.groups.of("g").positions._journal.replay())) == 1
    assert world.engine.groups.positions(A, "g") == {0: Position.offset(3)}
    assert world.tx.describe(done).outcome == "committed"
    assert world.tx.commit(commit(b"1", token="t")).transaction_id == done
    assert world.read() == [b"1"] and world.read(B) == [b"3"]
    world.tx.commit(Commit(open))
    assert world.read() == [b"1", b"2"]
    assert world.tx.describe(gone).outcome == "invalid"


def test_a_start_after_a_close_does_not_read_long_journals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.engine.engine.CLOSING_EDITS", 20)
    monkeypatch.setattr("tms.engine.shards.CLOSING_MAX", 20)
    store, clock = KeptStore(), ManualClock()
    engine = Engine(store, clock)
    engine.create_topic(A, TopicSettings(1))
    done = [engine.transactions.commit(Commit(positions=(moved(n),))) for n in range(30)]
    engine.close()
    engine = Engine(store, clock)
    assert engine.transactions.manager._journal._transactions.length < 5
    assert engine.groups.of("g").positions._journal.length == 1
    assert engine.groups.positions(A, "g") == {0: Position.offset(29)}
    assert {engine.transactions.describe(one.transaction_id).outcome for one in done} == {
        "committed"
    }


def test_a_full_disk_does_not_keep_an_engine_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.engine.engine.CLOSING_EDITS", 1)
    store, clock = FaultyStore(KeptStore()), ManualClock()
    engine = Engine(store, clock)
    engine.create_topic(A, TopicSettings(1))
    engine.transactions.commit(commit(b"1"))
    store.fill()
    engine.close()
    with pytest.raises(Closed):
        engine.list_topics(A.namespace)
    assert Engine(store.inner, clock).describe_topic(A).partition_infos[0].end_offset == 1


def test_how_a_transaction_ended_is_known_for_a_day(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 2)
    committed = world.tx.commit(commit(b"1")).transaction_id
    aborted, late = world.tx.begin().transaction_id, world.tx.begin(timeout_s=1).transaction_id
    world.tx.abort(aborted)
    world.clock.pass_ms(2_000)
    world.tx.manager.expire()
    for number in range(5):
        world.tx.commit(commit(b"%d" % number))
    shorten_journals(world.engine, 0, 0)
    world.reopen()
    assert committed not in world.tx.manager.state.ended
    assert world.tx.describe(committed).outcome == "committed"
    assert world.tx.describe(aborted).outcome == "aborted"
    assert world.tx.describe(late).outcome in ("timed-out", "invalid")
    with pytest.raises(TransactionNotFound):
        world.tx.describe(committed - 1)
    world.clock.pass_ms(60 * 3_600_000)
    world.tx.commit(commit(b"later"))
    shorten_journals(world.engine, 0, 0)
    with pytest.raises(TransactionNotFound):
        world.tx.describe(committed)


def test_a_pointer_from_the_future_would_hold_readers_back_and_is_refused(world: World) -> None:
    ahead = (world.clock.now_ms() + 7_200_000) * 1_000_000
    with pytest.raises(Invalid, match="ahead of the clock"):
        world.publish_in(ahead, b"1")
    assert world.read(isolation=Isolation.UNCOMMITTED) == []


@pytest.mark.parametrize("pointer", [-1, 0, 1 << 63, 1 << 64])
def test_what_is_no_pointer_is_refused_by_whoever_stores_or_takes_back(
    world: World, pointer: int
) -> None:
    with pytest.raises(Invalid, match="63 bits"):
        world.publish_in(pointer, b"1")
    with pytest.raises(Invalid, match="63 bits"):
        world.tx.stage(A, [NewBlock(0, encode([b"1"]))], pointer)
    with pytest.raises(Invalid, match="63 bits"):
        world.tx.roll_back(StoredRange(A, 0, (0, 0), (1, 0), pointer))


def test_commits_of_many_threads_go_on_while_journals_are_kept(world: World) -> None:
    """A thread that owns a partition never waits for the journal while the journal's owner waits
    for the partition."""
    done: list[int] = []
    stop = threading.Event()

    def keep() -> None:
        while not stop.is_set():
            shorten_journals(world.engine, 0, 0)
            world.engine.maintenance.clean()

    def work(number: int) -> None:
        how = Durability.SYNCED if number % 2 else WRITTEN
        for turn in range(40):
            blocks = tuple(TopicBlock(name, NewBlock(0, encode([b"x"]))) for name in (A, B))
            request = Commit(token=f"{number}.{turn}", blocks=blocks, durability=how)
            done.append(world.tx.commit(request).transaction_id)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    keeper = threading.Thread(target=keep, daemon=True)
    for thread in (*threads, keeper):
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    keeper.join(60)
    assert len(set(done)) == 320, "somebody waits for ever"
    world.reopen()
    assert len(world.read(A)) == len(world.read(B)) == 320


def test_a_replaced_owner_does_not_take_the_commits_of_others_for_lost() -> None:
    world = World(shared=True)
    world.tx.commit(commit(b"1"))
    other = Engine(world.store, world.clock)
    other.transactions.commit(commit(b"2"))
    with pytest.raises(StorageUnavailable):
        world.tx.commit(commit(b"never"))
    world.tx.abort(world.tx.begin().transaction_id)  # it reads the journal again
    world.open()
    assert world.read() == [b"1", b"2"]


def test_a_journal_whose_write_failed_goes_on_though_no_thread_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Background threads may wait for the very lock that is held meanwhile."""
    monkeypatch.setattr("tms.topics.internal_topic.TIMEOUT_S", 0.1)
    store = FaultyStore(KeptStore())
    engine = Engine(store, ManualClock(), threads=NoThread())
    engine.transactions.begin()
    store.fail_write(1, stored=False)
    with pytest.raises(StorageUnavailable):
        engine.transactions.begin(token="t")
    assert engine.transactions.begin(token="t").transaction_id
