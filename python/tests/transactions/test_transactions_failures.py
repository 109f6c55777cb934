"""Transactions whose appends fail: it is unknown whether a refused message is stored, so it must
never become visible."""

import threading
from collections.abc import Callable

import pytest

from tests.transactions.test_transactions_repeated import TOPIC, World, commit
from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.errors import StorageUnavailable, TransactionEnded
from tms.log.pending import PendingAppend
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.transaction import PositionChange, PositionKey
from tms.topics.sharding import POSITIONS, TRANSACTIONS


@pytest.fixture(params=[False, True], ids=["lost", "stored"])
def stored(request: pytest.FixtureRequest) -> bool:
    """True if the failed append has stored its message."""
    return bool(request.param)


def publish(world: World, id: int, value: bytes) -> None:
    world.tx.submit(TOPIC, [NewBlock(0, encode([value]))], id).result(PATIENCE_S)


def fail_to_publish(world: World, id: int, stored: bool) -> None:
    """Let an append of a transaction fail, and the journal when the transaction is to become
    invalid: as on a full disk."""
    world.store.fail_write(1, stored=stored, prefix=world.segments())
    world.store.fail_write(1, stored=False, prefix=world.segments(TRANSACTIONS))
    with pytest.raises(StorageUnavailable):
        publish(world, id, b"refused")
    assert world.tx.describe(id).outcome == "open"


def publish_under_way(world: World) -> tuple[int, PendingAppend]:
    """A transaction and its publish, which has no answer yet."""
    id = world.tx.begin().transaction_id
    pending = PendingAppend(1)
    with world.tx._uncommitted._storing(id) as storing:
        storing.follow(TOPIC, pending)
    return id, pending


def test_the_writer_of_a_partition_does_not_wait_for_the_journal_of_transactions() -> None:
    """A thread that writes the journal may wait for the partition: to learn how far it reaches."""
    world = World()
    id, pending = publish_under_way(world)
    refused = StorageUnavailable("The disk is full.")
    writer = threading.Thread(target=lambda: pending.fail(1, refused), daemon=True)
    with world.tx.manager._journal.writing:
        writer.start()
        writer.join(PATIENCE_S)
        assert not writer.is_alive()
        assert id in world.tx.manager.state.open
    until(lambda: world.tx.describe(id).outcome == "invalid", "the transaction is invalid")
    with pytest.raises(TransactionEnded):
        natively(world, id)


def by_tephra(world: World, id: int) -> None:
    world.tx.tephra.commit(id, id)


def natively(world: World, id: int) -> None:
    world.tx.commit(commit(b"with it", id=id))


@pytest.mark.parametrize("finish", [by_tephra, natively])
def test_a_commit_waits_until_the_transaction_of_a_refused_message_is_invalid(
    finish: Callable[[World, int], None],
) -> None:
    """The publish is answered before the transaction is: the commit may come in between."""
    world = World()
    id, pending = publish_under_way(world)
    errors: list[TransactionEnded] = []

    def end() -> None:
        with pytest.raises(TransactionEnded, match="invalid") as refused:
            finish(world, id)
        errors.append(refused.value)

    committer = threading.Thread(target=end, daemon=True)
    with world.tx.manager._journal.writing:
        pending.fail(1, StorageUnavailable("The disk is full."))
        assert pending.done()
        committer.start()
        committer.join(0.05)
        assert committer.is_alive() and world.tx.describe(id).outcome == "open"
    committer.join(PATIENCE_S)
    assert errors


def test_reading_the_journal_again_wakes_readers_with_its_outcome() -> None:
    world = World()
    id = world.tx.begin().transaction_id
    publish(world, id, b"before")
    world.store.fail_write(1, stored=True, prefix=world.segments(TRANSACTIONS))
    with pytest.raises(StorageUnavailable):
        natively(world, id)
    woken = threading.Event()
    world.tx.manager.watch_end(id, woken.set)
    assert not woken.is_set()
    world.tx.begin()
    assert woken.wait(PATIENCE_S)
    assert world.tx.describe(id).outcome != "open"


@pytest.mark.parametrize("finish", [by_tephra, natively])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_transaction_that_was_refused_a_message_never_commits(
    stored: bool, finish: Callable[[World, int], None], restarted: bool
) -> None:
    world = World()
    id = world.tx.begin().transaction_id
    publish(world, id, b"before")
    if restarted:
        world.restart()
    fail_to_publish(world, id, stored)
    publish(world, id, b"later")
    for _ in range(2):
        with pytest.raises(TransactionEnded, match="invalid"):
            finish(world, id)
    world.engine.append(TOPIC, [NewBlock(0, encode([b"after"]))])
    assert world.read() == [b"after"]


def test_what_a_refused_message_left_is_never_seen_though_nobody_remembers_its_end(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 1)
    world = World()
    native, other = (world.tx.begin().transaction_id for _ in range(2))
    fail_to_publish(world, native, stored)
    assert world.tx.abort(native).outcome == "invalid"
    world.store.fail_write(1, stored=stored, prefix=world.segments())
    with pytest.raises(StorageUnavailable):
        publish(world, other, b"refused")
    world.tx.tephra.abort(other, long=False, checkpoints=())
    for _ in range(3):
        world.tx.abort(world.tx.begin().transaction_id)
    assert world.read() == []


def test_what_could_not_be_taken_back_is_invalid(stored: bool) -> None:
    world = World()
    id = world.tx.begin().transaction_id
    publish(world, id, b"x")
    world.store.fail_write(1, stored=stored, prefix=world.segments())
    assert world.tx.abort(id).outcome == "invalid"
    world.engine.append(TOPIC, [NewBlock(0, encode([b"after"]))])
    assert world.read() == [b"after"]
    assert id in world.tx.manager.state.invalid


def test_a_position_of_which_nobody_knows_whether_it_moved_is_looked_up(stored: bool) -> None:
    world = World()
    key = PositionKey("g", TOPIC, 0)
    world.engine.groups.move([PositionChange(key, Position.offset(1))])
    shard = world.engine.topics.shards.of_group("g")
    world.store.fail_write(1, stored=stored, prefix=world.segments(POSITIONS, shard))
    with pytest.raises(StorageUnavailable):
        world.engine.groups.move([PositionChange(key, Position.offset(2))])
    assert world.engine.groups.positions(TOPIC, "g") == {0: Position.offset(2 if stored else 1)}
    world.engine.groups.move([PositionChange(key, Position.offset(3))])
    world.restart()
    assert world.engine.groups.positions(TOPIC, "g") == {0: Position.offset(3)}
