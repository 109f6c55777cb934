"""Compaction in a store that others read beside its owner, as Spark reads HBase."""

import pytest

from tests.clocks import ManualClock
from tests.compaction_kit import DAY_MS, NAME, World, compacted
from tests.log_kit import KeptStore
from tms.block import decode
from tms.block.placing import places
from tms.engine.observer import ObservedPartition, StoreObserver
from tms.log.staging import StagedBlocks
from tms.model.message import StoredBlock
from tms.spark.rows import WantedColumns, batches

A, B = b"a", b"b"


def shared() -> World:
    return World(compacted(tombstones_ms=DAY_MS), inner=KeptStore(shared=True))


def look(world: World) -> ObservedPartition:
    image = world.engine.transactions._image
    assert image is not None
    image._shown = None
    image.write(world.clock.now_ms())
    return StoreObserver(world.store.inner, world.clock).topic(str(NAME)).partition(0)


def shown(one: ObservedPartition, start: int, stop: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    for stored in one.blocks(*one.span(start, stop)):
        values = decode(stored.block).values()
        found += [(offset, v) for (offset, _), v in zip(places(stored), values, strict=True)]
    return [each for each in found if start <= each[0] < stop]


def fill(world: World) -> None:
    world.publish((A, b"0"), (B, b"1"))
    world.commit(world.stage((A, b"2"), (B, b"3")))
    world.publish((A, b"4"))
    world.seal()
    world.publish((B, b"5"))


def test_a_reader_beside_sees_what_is_left_and_no_loss() -> None:
    world = shared()
    fill(world)
    world.compact()
    one = look(world)
    assert (one.start(), one.end().offset) == (0, 6)
    assert shown(one, 0, 6) == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert shown(one, 4, 5) == [(4, b"4")]
    blocks: list[StoredBlock] = [*one.blocks(*one.span(0, 6))]
    rows = [
        row for batch in batches(blocks, "t", 0, 6, WantedColumns()) for row in batch.to_pylist()
    ]
    assert [(row["offset"], row["value"]) for row in rows] == shown(one, 0, 6)


def test_a_reader_that_looked_before_reads_on_after() -> None:
    world = shared()
    fill(world)
    one = look(world)
    pages = one.pages(*one.span(0, 6))
    world.compact()
    values = [value for page in pages for stored in page for value in decode(stored.block).values()]
    assert values == [b"3", b"4", b"5"]


def test_staged_blocks_that_go_between_two_looks_are_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = shared()
    fill(world)
    world.publish((A, b"6"), (B, b"7"))
    world.seal()
    one = look(world)
    staged, resolve = one._staged, StagedBlocks.resolve
    compactions = [world.compact]

    def after_compaction(self: StagedBlocks, reference: StoredBlock) -> StoredBlock:
        if self is staged and compactions:
            compactions.pop()()
        return resolve(self, reference)

    monkeypatch.setattr(StagedBlocks, "resolve", after_compaction)
    assert [offset for offset, _ in shown(one, 0, 8)][-2:] == [6, 7]


def test_a_start_stays_where_it_is_when_the_first_messages_go() -> None:
    world = shared()
    for number in range(6):
        world.publish((A, b"%d" % number))
        if number % 2:
            world.seal()
    world.compact()
    assert look(world).start() == 0
    assert world.engine.describe_topic(NAME).partition_infos[0].start_offset == 0
    world.restart()
    assert world.publish((A, b"6")) == [6]
    assert look(world).start() == 0


def test_who_has_lost_the_partition_does_not_compact_it() -> None:
    world = shared()
    fill(world)
    world.log.reader.load()
    other = World.__new__(World)
    other.clock, other.store, other._config = ManualClock(), world.store, world._config
    other.clock.pass_ms(1_000)

    def take_over(operation: str, name: str) -> None:
        if operation == "scan" and name.startswith("t"):
            world.store.before = lambda operation, name: None
            other.open()
            other.publish((A, b"6"))

    world.store.before = take_over
    world.compact()
    assert world.engine.stats().compaction_passes == 0
    assert other.offsets() == [0, 1, 2, 3, 4, 5, 6]
    other.compact()
    assert other.offsets() == [4, 5, 6]
