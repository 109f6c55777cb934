"""What several producers stage in one transaction, and what becomes of what no commit names."""

import pytest

from tests.log_kit import until
from tests.test_transactions import A, B, World, world
from tms.errors import Conflict, StorageUnavailable
from tms.log.recovery import header_of
from tms.log.visibility import Fate
from tms.model.block import encode
from tms.model.log import NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.transaction import Commit, TopicStaged

__all__ = ["world"]


def staged_by(world: World, producers: dict[int, int]) -> int:
    """A transaction in which each of these producers staged so many blocks."""
    id = world.tx.begin().transaction_id
    for producer, blocks in producers.items():
        for sequence in range(blocks):
            value = b"%d.%d" % (producer, sequence)
            block = encode([value], producer_id=producer, producer_sequence=sequence)
            world.tx.stage(A, [NewBlock(0, block)], id)
    return id


def payloads(world: World, partition: int = 0) -> list[int]:
    """The producers whose blocks are kept as staged in a partition."""
    names = [name for name in world.store.names("t") if f"/p{partition:05}/y" in name]
    return [
        header_of(StoredBlock(0, 0, 0, value)).producer_id
        for name in names
        for _, value in world.store.open(name, create=False).scan(b"", None, 1 << 20)
    ]


def test_a_commit_names_producers_of_before_a_crash(world: World) -> None:
    id = staged_by(world, {7: 2, 8: 1})
    world.reopen()
    request = Commit(id, staged=(TopicStaged(A, 0, 2, (7,)),))
    assert world.tx.commit(request).transaction_id == id
    world.reopen()
    assert world.tx.commit(request).transaction_id == id
    assert world.read() == [b"7.0", b"7.1"]


def test_what_a_commit_does_not_name_is_removed(world: World) -> None:
    id = staged_by(world, {7: 2, 8: 1})
    other = staged_by(world, {9: 1})
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 2, (7,)),)))
    until(lambda: payloads(world) == [7, 7, 9])  # in the background, after the answer
    world.tx.commit(Commit(other, staged=(TopicStaged(A, 0, 1),)))
    assert world.read() == [b"7.0", b"7.1", b"9.0"]


def test_what_a_commit_does_not_name_is_removed_in_each_partition(world: World) -> None:
    id = staged_by(world, {7: 1})
    for producer in (7, 8):
        block = encode([b"x"], producer_id=producer, producer_sequence=0)
        world.tx.stage(A, [NewBlock(1, block)], id)
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 1), TopicStaged(A, 1, 1, (7,)))))
    until(lambda: payloads(world, 1) == [7])
    assert payloads(world) == [7]


def test_what_cannot_be_removed_keeps_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = staged_by(world, {7: 1, 8: 1})
    world.tx.stage(A, [NewBlock(1, encode([b"x"], producer_id=8, producer_sequence=0))], id)

    def fail(*_: object) -> None:
        raise StorageUnavailable("The store has failed.")

    log = world.engine._partitions.get(A, world.engine._registry.find(A), 0)
    monkeypatch.setattr(log.staged, "drop", fail)
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 1, (7,)),)))
    until(lambda: payloads(world, 1) == [])
    assert payloads(world) == [7, 8]


def test_an_abort_removes_what_was_staged(world: World) -> None:
    id = staged_by(world, {7: 2})
    staged_by(world, {9: 1})
    world.tx.abort(id)
    assert payloads(world) == [9]


def test_what_a_refused_commit_does_not_name_stays_as_long_as_its_day(world: World) -> None:
    id = staged_by(world, {7: 1, 8: 1})
    with pytest.raises(Conflict):
        world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 2, (7,)),)))
    world.reopen()  # what was begun in the background is done
    assert payloads(world) == [7, 8] and world.read() == []


def test_a_topic_that_is_gone_and_not_named_hinders_no_commit(world: World) -> None:
    id = staged_by(world, {7: 1, 8: 1})
    world.tx.stage(B, [NewBlock(0, encode([b"b"], producer_id=8))], id)
    world.engine.delete_topic(B)
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 1, (7,)),)))
    assert world.read() == [b"7.0"]


def test_a_read_judges_not_many_more_references_than_it_looks_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, judged = 300, 0
    fate = world.tx.manager.fate

    def counted(*asked: int) -> Fate:
        nonlocal judged
        judged += 1
        return fate(*asked)

    id = staged_by(world, {7: blocks})
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, blocks),)))
    world.reopen()  # and nothing is cached
    monkeypatch.setattr(world.tx.manager, "fate", counted)
    found, position = 0, Position.earliest()
    while True:
        fetched = world.engine.fetch(A, [PartitionPosition(0, position)], 4_000, 0)
        if not fetched.blocks:
            break
        found += len(fetched.blocks)
        position = fetched.next[0]
    assert found == blocks
    assert judged < 3 * blocks
