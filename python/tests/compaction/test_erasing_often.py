"""Erasing again and again from a topic in use: the number of segments stays small, erased messages
stay erased, and a crash at any step loses nothing."""

from contextlib import suppress
from pathlib import Path

import pytest

from sim.faulty import FaultyStore
from tests.compaction_kit import NAME, World, compacted
from tests.log_kit import DAY_MS
from tms.cli.checks.verify import Severity, Verifier
from tms.errors import StorageUnavailable, TMSError
from tms.log.records import FIRST_KEY
from tms.log.segments import KEY_END, SegmentChain
from tms.model.position import Position
from tms.model.topic import Cleanup, Durability
from tms.store.base import Store
from tms.store.leveldb import LevelDBStore
from tms.topics.compaction import merging

OTHER = b"other"
OPERATIONS = ("overwrite", "delete", "reclaim", "compare_and_set", "write", "open", "drop")


def secret(number: int) -> bytes:
    return b"the secret of user %d." % number


def plain(inner: Store | None = None) -> World:
    return World(compacted(Cleanup.DELETE, durability=Durability.SYNCED), inner=inner)


def segments(world: World) -> int:
    return len(world.log.state.chain.record.segments)


def publish(world: World, number: int) -> None:
    world.publish((b"user-%d" % number, secret(number)), (OTHER, b"%d" % number))
    world.publish((OTHER, b"again %d" % number))


def erase(world: World, number: int) -> int:
    return world.engine.erase(NAME, key=b"user-%d" % number)


def stored(world: World) -> bytes:
    """All bytes in all maps."""
    found = []
    for name in world.store.names(""):
        if name.startswith("t"):
            rows = world.store.open(name, create=False).scan(None, None, 1 << 30)
            found += [bytes(value) for _, value in rows]
    return b"".join(found)


def values(count: int) -> list[bytes]:
    return [text for n in range(count) for text in (b"%d" % n, b"again %d" % n)]


@pytest.mark.parametrize("leveldb", [False, True])
def test_erasing_often_leaves_few_segments(tmp_path: Path, leveldb: bool) -> None:
    world = plain(LevelDBStore(tmp_path / "data", create=True) if leveldb else None)
    rounds = 40
    for number in range(rounds):
        publish(world, number)
        offsets = [one.offset for one in world.read()]
        assert erase(world, number) == 1
        assert segments(world) <= 4, number
        assert [one.offset for one in world.read()] == [o for o in offsets if o != 3 * number]
    assert [one.value for one in world.read()] == values(rounds)
    world.engine.close()
    if leveldb:
        world.store = FaultyStore(LevelDBStore(tmp_path / "data", create=False))
    world.open()
    assert [one.value for one in world.read()] == values(rounds)
    assert b"secret" not in stored(world)
    read = world.read()
    assert [one.value for one in world.read(Position.at(read[31].id))] == values(rounds)[31:]
    assert [*Verifier(world.store).run()] == []
    world.engine.close()


def test_segments_that_are_large_or_of_another_day_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    world = plain()
    for number in range(3):
        publish(world, number)
        erase(world, number)
        world.clock.pass_ms(DAY_MS + 1)
    assert segments(world) == 3  # the second began when the first one ended
    world = plain()
    monkeypatch.setattr(merging, "MERGED_BYTES_MAX", 10)
    for number in range(3):
        publish(world, number)
        erase(world, number)
    assert segments(world) == 4


def test_many_segments_that_erasing_left_before_become_fewer() -> None:
    world = plain()
    for number in range(30):
        publish(world, number)
        world.seal()
    assert segments(world) == 31
    for number in range(4):
        erase(world, number)
    assert segments(world) <= 4
    assert [one.value for one in world.read() if one.key == OTHER] == values(30)
    assert world.engine.compaction._noted() == set(), "merged maps are looked at for ever"


def test_segments_in_use_are_not_merged() -> None:
    world = plain()
    publish(world, 0)
    world.seal()
    publish(world, 1)
    with world.engine.compaction._working_on(world.log):
        erase(world, 1)
        assert segments(world) == 3
    erase(world, 0)
    assert segments(world) == 2


def test_a_reader_that_meets_a_merging_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    world = plain()
    for number in range(3):
        publish(world, number)
        world.seal()
    world.restart()
    world.log.reader.load()
    chain = world.log.state.chain
    before = SegmentChain._rows
    merged = []

    def merged_first(*given: object) -> object:
        patch.undo()
        page = before(*given)  # type: ignore[arg-type]
        merged.append(merging.merge_small(world.log, world.engine.topics.metadata))
        return page

    with monkeypatch.context() as patch:
        patch.setattr(SegmentChain, "_rows", merged_first)
        blocks = chain.scan(FIRST_KEY, KEY_END, 1 << 20)
    assert merged == [2] and segments(world) == 2
    assert len(blocks) == 6
    assert blocks == chain.scan(FIRST_KEY, KEY_END, 1 << 20)


def interrupted(world: World, operation: str, prefix: str) -> None:
    """Erase the user 1, and fail after the blocks of user 2's segment were copied."""
    copied = False

    def fail(called: str, name: str) -> None:
        nonlocal copied
        if copied and called == operation and name.startswith(prefix):
            raise StorageUnavailable("It dies here.")
        copied = copied or (called == "write" and name.startswith("t"))

    world.store.before = fail
    with suppress(TMSError):
        merging.merge_small(world.log, world.engine.topics.metadata)
    assert copied
    world.store.before = lambda operation, name: None


@pytest.mark.parametrize(
    ("operation", "prefix"), [("compare_and_set", "metadata"), ("drop", "t")], ids=str
)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_erased_after_an_interrupted_merging_is_in_neither_map(
    operation: str, prefix: str, restarted: bool
) -> None:
    world = plain()
    publish(world, 0)
    world.seal()
    publish(world, 1)
    world.seal()
    publish(world, 2)
    interrupted(world, operation, prefix)
    if restarted:
        world.crash()
    with world.engine.compaction._working_on(world.log):  # so that nothing is merged
        assert erase(world, 1) == 1
    assert secret(1) not in stored(world)
    assert erase(world, 0) == 1
    assert [one.value for one in world.read() if one.key == OTHER] == values(3)
    assert secret(1) not in stored(world)


@pytest.mark.parametrize("step", range(1, 41))
def test_a_crash_at_any_step_of_erasing_and_merging_loses_nothing(step: int) -> None:
    world = plain()
    for number in range(2):
        publish(world, number)
        world.seal()
    publish(world, 2)
    with world.dying_at(step, OPERATIONS):
        erase(world, 2)
    world.crash()
    assert [one.value for one in world.read() if one.key == OTHER] == values(3)
    for number in range(3):
        erase(world, number)
    assert [one.value for one in world.read()] == values(3)
    assert b"secret" not in stored(world)
    found = [one for one in Verifier(world.store).run() if one.severity is not Severity.NOTE]
    assert found == []
    publish(world, 3)
    assert [one.value for one in world.read() if one.key == OTHER] == values(4)
