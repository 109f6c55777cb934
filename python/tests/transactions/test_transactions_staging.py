"""Blocks that several producers stage in one transaction, and the fate of those that no commit
names."""

from typing import Any

import pytest
from msgspec import structs

from sim.faulty import FaultyStore
from tests.log_kit import DAY_MS, KeptStore
from tests.transactions.test_transactions import A, B, World, world
from tests.waiting import until
from tms.block import BlockHeader, Flags, decode, encode, place, read_header
from tms.errors import Conflict, DataCorrupt, StorageUnavailable
from tms.log.recovery import header_of
from tms.log.staging import StagedBlocks, reference_to
from tms.log.visibility import Fate
from tms.model.keys import is_payload_map, payload_map, segment_map
from tms.model.message import Buffer, NewBlock, PartitionPosition, Staged, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.transaction import Commit, TopicStaged

__all__ = ["world"]


def staged_by(world: World, producers: dict[int, int]) -> int:
    """A transaction in which each of these producers has staged so many blocks."""
    id = world.tx.begin().transaction_id
    for producer, blocks in producers.items():
        for sequence in range(blocks):
            value = b"%d.%d" % (producer, sequence)
            block = encode([value], producer_id=producer, producer_sequence=sequence)
            world.tx.stage(A, [NewBlock(0, block)], id)
    return id


def payloads(world: World, partition: int = 0) -> list[int]:
    """The producers whose staged blocks are kept in a partition."""
    names = [name for name in world.store.names("t") if f"/p{partition:05}/y" in name]
    return [
        header_of(StoredBlock(0, 0, 0, value)).producer_id
        for name in names
        for _, value in world.store.open(name, create=False).scan(b"", None, 1 << 20)
    ]


def request(count: int) -> list[tuple[Buffer, BlockHeader]]:
    blocks = [encode([b"%d" % i], producer_id=7, producer_sequence=i) for i in range(count)]
    return [(block, read_header(block)) for block in blocks]


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

    staged = world.engine.topics.partitions.get(A, world.engine.topics.registry.find(A), 0).staged
    drop = StagedBlocks.drop

    def fail(self: StagedBlocks, *which: Any) -> None:
        if self is staged:
            raise StorageUnavailable("The store has failed.")
        drop(self, *which)

    monkeypatch.setattr(StagedBlocks, "drop", fail)
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 1, (7,)),)))
    until(lambda: payloads(world, 1) == [])
    assert payloads(world) == [7, 8]


def test_what_was_published_before_is_not_removed_though_the_commit_does_not_name_it(
    world: World,
) -> None:
    id = staged_by(world, {7: 1, 8: 1})
    world.tx.refer(A, 0, id)
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 1, (7,)),)))
    world.reopen()  # the background work is done
    assert payloads(world) == [7, 8]
    assert b"8.0" in world.read()


def test_an_abort_removes_what_was_staged(world: World) -> None:
    id = staged_by(world, {7: 2})
    staged_by(world, {9: 1})
    world.tx.abort(id)
    assert payloads(world) == [9]


@pytest.mark.parametrize(
    ("producers", "told"), [((7,), "1 blocks by the producers that"), ((), "2 blocks in partition")]
)
def test_a_commit_that_names_more_blocks_than_were_staged_is_told_how_many_there_are(
    world: World, producers: tuple[int, ...], told: str
) -> None:
    id = staged_by(world, {7: 1, 8: 1})
    with pytest.raises(Conflict, match=f"staged {told}"):
        world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 3, producers),)))


def test_what_a_refused_commit_does_not_name_stays_as_long_as_its_day(world: World) -> None:
    id = staged_by(world, {7: 1, 8: 1})
    with pytest.raises(Conflict):
        world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 2, (7,)),)))
    world.reopen()  # the background work is done
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
    world.reopen()  # and the cache is empty
    monkeypatch.setattr(world.tx.manager, "fate", counted)
    pages, position = list[int](), Position.earliest()
    while True:
        fetched = world.engine.fetch(A, [PartitionPosition(0, position)], 20_000, 0)
        if not fetched.blocks:
            break
        pages.append(sum(len(stored.block) for stored in fetched.blocks))
        position = fetched.next[0]
    assert judged < 3 * blocks
    assert len(world.read()) == blocks
    assert all(size >= 20_000 for size in pages[:-1]), "pages are smaller than was asked for"


@pytest.mark.parametrize("sizes", [(65_536, 65_536), (32_768, 32_768), (32_768, 32_769)], ids=str)
def test_staged_blocks_of_one_millisecond_have_places_however_large_they_are(
    world: World, sizes: tuple[int, int]
) -> None:
    id = world.tx.begin().transaction_id
    for sequence, size in enumerate(sizes):
        block = encode([b""] * size, producer_id=7, producer_sequence=sequence)
        world.tx.stage(A, [NewBlock(0, block)], id)
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 2),)))
    world.reopen()
    assert world.read() == [b""] * sum(sizes)


def test_what_is_dropped_of_a_transaction_is_not_staged_any_more(world: World) -> None:
    staged = StagedBlocks(world.store, 1, 0)
    staged.add(request(3), 5, 1_000)
    staged.add(request(3), 6, 1_000)
    staged.drop(5, staged.of(5)[1:])
    assert [one.producer_sequence for one in staged.of(5)] == [0]
    for _ in range(2):
        staged.drop(5)
        assert staged.of(5) == []
    assert [one.producer_sequence for one in staged.of(6)] == [0, 1, 2]


def test_what_a_transaction_has_staged_is_read_from_the_store_once(world: World) -> None:
    StagedBlocks(world.store, 1, 0).add(request(1), 5, 1_000)
    store = FaultyStore(world.store)
    scans: list[str] = []
    store.before = lambda operation, name: scans.append(name) if operation == "scan" else None
    staged = StagedBlocks(store, 1, 0)
    assert [staged.of(5) for _ in range(3)] == [staged.of(5)] * 3
    assert len(scans) == 1


@pytest.mark.parametrize("stored", [True, False])
def test_a_transaction_goes_on_staging_after_a_write_that_failed(
    world: World, stored: bool
) -> None:
    store = FaultyStore(world.store)
    staged = StagedBlocks(store, 1, 0)
    staged.add(request(1), 5, 1_000)
    store.fail_write(1, stored=stored)
    with pytest.raises(StorageUnavailable):
        staged.add(request(3)[1:2], 5, 1_000)
    for _ in range(2):
        staged.add(request(3), 5, 1_000)
    for there in (staged, StagedBlocks(world.store, 1, 0)):
        assert [one.producer_sequence for one in there.of(5)] == [0, 1, 2]


def test_what_was_staged_long_ago_is_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.log.staging.TRANSACTIONS_KNOWN", 1)
    first, other = staged_by(world, {7: 2}), staged_by(world, {8: 1})
    repeated = encode([b"7.1"], producer_id=7, producer_sequence=1)
    world.tx.stage(A, [NewBlock(0, repeated)], first)
    for id, blocks in ((other, 1), (first, 2)):
        world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, blocks),)))
    assert world.read() == [b"8.0", b"7.0", b"7.1"]


def referring(staged: Staged, pointer: int) -> StoredBlock:
    """The reference in the log to a staged block."""
    block = reference_to(staged)
    place(block, 0, Flags.TRANSACTIONAL | Flags.STAGED, pointer)
    return StoredBlock(0, 1_000, 0, block)


def test_a_staged_block_says_which_transaction_it_is_of(world: World) -> None:
    staged = StagedBlocks(world.store, 1, 0)
    staged.add(request(1), 5, 1_000, Flags.TRANSACTIONAL | Flags.ISSUED)
    found = world.store.open(payload_map(1, 0, 5), create=False)
    ((_, block),) = found.scan(None, None, 1 << 20)
    header = read_header(block)
    assert header.write_pointer == 5
    assert header.flags == Flags.TRANSACTIONAL | Flags.ISSUED | Flags.STAGED


def test_what_never_commits_is_dropped_also_by_who_did_not_stage_it(world: World) -> None:
    StagedBlocks(world.store, 1, 0).add(request(3), 5, 1_000)
    (first, *others) = StagedBlocks(world.store, 1, 0).of(5)
    StagedBlocks(world.store, 1, 0).drop(5, others)
    assert StagedBlocks(world.store, 1, 0).of(5) == [first]


def test_staged_blocks_go_day_by_day_once_their_day_is_over(
    world: World,
) -> None:
    staged = StagedBlocks(world.store, 2, 1)
    day = DAY_MS * POINTERS_PER_MS
    pointers = [day + 1, 2 * day - 1, 2 * day, 3 * day]
    for pointer in pointers:
        staged.add(request(2), pointer, 1_000)
    StagedBlocks(world.store, 2, 0).add(request(2), day, 1_000)
    StagedBlocks(world.store, 1, 1).add(request(2), day, 1_000)
    world.store.open(segment_map(2, 1, 0), create=True)
    references = {pointer: referring(staged.of(pointer)[0], pointer) for pointer in pointers}
    assert staged.drop_before(payload_map(2, 1, 2 * day)) == 1
    assert staged.drop_before(payload_map(2, 1, 2 * day)) == 0
    for there in (staged, StagedBlocks(world.store, 2, 1)):
        assert [len(there.of(pointer)) for pointer in pointers] == [0, 0, 2, 2]
        for pointer in pointers[:2]:
            with pytest.raises(DataCorrupt, match="was staged, but"):
                there.resolve(references[pointer])
        for pointer in pointers[2:]:
            assert decode(there.resolve(references[pointer]).block).values() == [b"0"]
    assert len(StagedBlocks(world.store, 2, 0).of(day)) == 2
    assert len(StagedBlocks(world.store, 1, 1).of(day)) == 2
    world.store.open(segment_map(2, 1, 0), create=False)  # is there
    staged.add(request(2), day + 1, 1_000)  # it is not a repetition
    assert len(StagedBlocks(world.store, 2, 1).of(day + 1)) == 2


def test_what_is_staged_outlives_a_loss_of_power() -> None:
    store = FaultyStore(KeptStore())
    StagedBlocks(store, 1, 0).add(request(3), 5, 1_000)
    assert len(StagedBlocks(store.crash(), 1, 0).of(5)) == 3


def test_what_is_taken_out_of_staged_blocks_does_not_come_back_with_a_loss_of_power() -> None:
    store = FaultyStore(KeptStore())
    staged = StagedBlocks(store, 1, 0)
    staged.add(request(3), 5, 1_000)
    thinned = staged.resolve(referring(staged.of(5)[0], 5))
    changed = encode([b"x"], producer_id=7, producer_sequence=0)
    place(changed, 0, header_of(thinned).flags, 5)
    staged.rewrite([structs.replace(thinned, block=changed)], [])
    left = StagedBlocks(store.crash(), 1, 0)
    block = left.resolve(referring(left.of(5)[0], 5)).block
    assert decode(block).values() == [b"x"]


def test_staged_blocks_that_were_taken_out_are_not_committed(world: World) -> None:
    staged = StagedBlocks(world.store, 1, 0)
    staged.add(request(3), 5, 1_000)
    _, middle, _ = staged.of(5)
    staged.rewrite([], [staged.resolve(referring(middle, 5))])
    for there in (staged, StagedBlocks(world.store, 1, 0)):
        assert [one.producer_sequence for one in there.of(5)] == [0, 2]


@pytest.mark.parametrize("change", ["rewrite", "reclaim"])
def test_staged_blocks_are_taken_out_after_a_write_that_failed(world: World, change: str) -> None:
    store = FaultyStore(world.store)
    staged = StagedBlocks(store, 1, 0)
    staged.add(request(2), 5, 1_000)
    gone = staged.resolve(referring(staged.of(5)[0], 5))
    store.fail_write(1, stored=False)
    with pytest.raises(StorageUnavailable):
        staged.add(request(3), 5, 1_000)
    if change == "reclaim":
        staged.reclaim(staged.map_of(gone), lambda: None)
    staged.rewrite([], [gone])
    assert [one.producer_sequence for one in staged.of(5)] == [1]


def test_after_a_write_that_failed_a_map_recovers_once(world: World) -> None:
    store = FaultyStore(world.store)
    staged = StagedBlocks(store, 1, 0)
    store.fail_write(1, stored=False)
    with pytest.raises(StorageUnavailable):
        staged.add(request(1), 5, 1_000)
    operations: list[str] = []
    store.before = lambda operation, name: operations.append(operation)
    for count in (1, 2, 3):
        staged.add(request(count), 5, 1_000)
    assert operations.count("recover") == 1


def test_recently_used_transactions_need_no_look_into_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.log.staging.TRANSACTIONS_KNOWN", 2)
    store = FaultyStore(world.store)
    staged = StagedBlocks(store, 1, 0)
    for pointer in (5, 6):
        staged.add(request(2), pointer, 1_000)
    staged.of(5)
    staged.add(request(2), 7, 1_000)
    scans: list[str] = []
    store.before = lambda operation, name: scans.append(name) if operation == "scan" else None
    assert len(staged.of(7)) == len(staged.of(5)) == 2
    assert scans == []


@pytest.mark.parametrize("cached", [False, True])
def test_committed_messages_whose_staged_blocks_are_lost_are_damage_and_not_left_out(
    world: World, cached: bool
) -> None:
    id = staged_by(world, {7: 2})
    world.tx.commit(Commit(id, staged=(TopicStaged(A, 0, 2),)))
    if not cached:
        world.reopen()
    [name] = [name for name in world.store.names("t") if is_payload_map(name)]
    found = world.store.open(name, create=False)
    found.delete([key for key, _ in found.scan(None, None, 1 << 20)])
    with pytest.raises(DataCorrupt, match="was staged, but"):
        world.read()
