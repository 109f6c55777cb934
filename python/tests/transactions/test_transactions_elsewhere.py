"""Transactions that were begun elsewhere: they are listed while they hold readers back, and end
here for good."""

import pytest

from tests.shards_kit import shorten_journals
from tests.transactions.test_transactions import A, B, World, commit, world
from tests.waiting import until
from tms.block import encode
from tms.errors import Conflict, TransactionEnded, TransactionNotFound
from tms.model.message import NewBlock
from tms.model.snapshot import POINTERS_PER_MS, Isolation
from tms.model.transaction import Commit, HeldPartition
from tms.transactions import state
from tms.transactions.edits import Barred
from tms.transactions.manager import TransactionManager
from tms.transactions.state import TransactionState

__all__ = ["world"]


def begun_elsewhere(world: World) -> int:
    """A write pointer that another manager assigned."""
    return world.clock.now_ms() * POINTERS_PER_MS - 7


def test_a_transaction_begun_elsewhere_is_listed_while_it_holds_readers(world: World) -> None:
    pointer, own = begun_elsewhere(world), world.tx.begin().transaction_id
    assert [info.transaction_id for info in world.tx.open()] == [own]
    since = world.publish_in(pointer, b"1").first[0]
    world.publish_in(pointer, b"2", name=B)
    listed, _ = world.tx.open()
    assert (listed.transaction_id, listed.outcome) == (pointer, "open")
    assert listed.expires_ms == pointer // POINTERS_PER_MS + world.tx._lifetime_ms
    assert listed.held[0] == HeldPartition(str(A), 0, pointer, since)
    assert [one.topic for one in listed.held] == [str(A), str(B)]
    assert world.tx.describe(pointer) == listed


def test_the_client_of_a_transaction_begun_elsewhere_is_named(world: World) -> None:
    pointer = begun_elsewhere(world)
    world.tx.submit(A, [NewBlock(0, encode([b"1"]))], pointer, "ann").result(5)
    assert world.tx.describe(pointer).client == "ann"


def test_readers_go_on_once_a_transaction_begun_elsewhere_is_invalidated(world: World) -> None:
    pointer, later = begun_elsewhere(world), begun_elsewhere(world) + 1
    published = world.publish_in(pointer, b"never")
    world.publish_in(later, b"later")
    world.publish_in(pointer, b"never")  # it does not yet hold readers
    world.publish(b"plain")
    assert world.tx.invalidate(pointer).outcome == "invalid"
    assert [info.transaction_id for info in world.tx.open()] == [later]
    world.tx.invalidate(later)
    assert world.read() == [b"plain"] and world.tx.open() == []
    assert world.tx.roll_back(published) == 1  # its client may still request it
    world.reopen()
    assert world.tx.describe(pointer).outcome == "invalid"
    assert world.read() == [b"plain"]
    assert world.read(isolation=Isolation.UNCOMMITTED) == [b"never", b"later", b"never", b"plain"]


def test_nothing_more_is_stored_in_what_was_invalidated_here(world: World) -> None:
    pointer = begun_elsewhere(world)
    world.publish_in(pointer, b"never")
    world.tx.invalidate(pointer)
    for _ in range(2):
        with pytest.raises(TransactionEnded):
            world.publish_in(pointer, b"late")
        with pytest.raises(TransactionEnded):
            world.tx.stage(A, [NewBlock(0, encode([b"late"]))], pointer)
        with pytest.raises(TransactionEnded):
            world.tx.refer(A, 0, pointer)
        shorten_journals(world.engine, 0, 0)
        world.reopen()
    world.publish(b"plain")
    assert world.read() == [b"plain"]


def test_an_append_under_way_while_its_transaction_is_invalidated_is_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = begun_elsewhere(world)
    world.publish_in(pointer, b"never")
    world.tx.invalidate(pointer)
    with monkeypatch.context() as earlier:
        earlier.setattr(TransactionManager, "is_barred", lambda self, pointer: False)
        world.publish_in(pointer, b"late")
    world.publish(b"plain")
    until(lambda: world.read() == [b"plain"])


def test_references_of_a_transaction_begun_elsewhere_are_rolled_back(world: World) -> None:
    pointer = begun_elsewhere(world)
    world.tx.stage(A, [NewBlock(0, encode([b"never"]))], pointer)
    with pytest.raises(TransactionNotFound):
        world.tx.describe(pointer)  # staged blocks hold no reader back
    world.tx.refer(A, 0, pointer)
    world.publish(b"plain")
    assert [one.pointer for one in world.tx.describe(pointer).held] == [pointer]
    world.tx.invalidate(pointer)
    assert world.read() == [b"plain"]


def test_a_transaction_of_tms_with_the_number_of_one_elsewhere_stays(world: World) -> None:
    world.tx.commit(commit(b"first"))
    pointer = world.tx.manager.state.next_pointer(world.clock.now_ms())
    world.publish_in(pointer, b"elsewhere")
    assert world.tx.begin().transaction_id == pointer
    world.publish_in(pointer, b"here")
    world.tx.commit(Commit(pointer))
    assert world.read() == [b"first"]
    assert world.tx.invalidate(pointer).outcome == "committed"
    assert world.read() == [b"first", b"here"]


def test_only_its_own_manager_aborts_a_transaction(world: World) -> None:
    pointer = begun_elsewhere(world)
    with pytest.raises(TransactionNotFound):
        world.tx.abort(pointer)
    world.publish_in(pointer, b"1")
    with pytest.raises(Conflict, match=f"tms tx invalidate {pointer}"):
        world.tx.abort(pointer)


def test_a_pointer_under_which_nothing_is_stored_is_unknown(world: World) -> None:
    world.publish_in(begun_elsewhere(world), b"1")
    for ask in (world.tx.describe, world.tx.invalidate):
        with pytest.raises(TransactionNotFound):
            ask(begun_elsewhere(world) - 1)


def test_readiness_warns_of_a_partition_in_which_a_reader_waits(world: World) -> None:
    def warned() -> tuple[int, list[str]]:
        world.engine._tidy()
        return world.engine.stats().partitions_held, world.engine.warnings()

    pointer = begun_elsewhere(world)
    world.publish_in(pointer, b"1")
    world.read(isolation=Isolation.UNCOMMITTED)
    world.tx.open()
    assert warned() == (0, [])  # as if all readers bring snapshots
    world.read()
    held, [warning] = warned()
    assert held == 1 and f"tms tx invalidate {pointer}" in warning and str(A) in warning
    world.tx.invalidate(pointer)
    assert warned() == (0, [])
    world.publish_in(pointer + 1, b"2")
    world.read()
    assert warned()[0] == 1
    world.engine.delete_topic(A)
    assert warned() == (0, [])


def test_the_oldest_barred_pointers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "BARRED_REMEMBERED", 2)
    transactions = TransactionState()
    for pointer in (3, 1, 2, 1):
        transactions.apply(Barred((pointer,)))
    assert list(transactions.barred) == [1, 2]
