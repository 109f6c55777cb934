"""Transactions and losses of power: promised messages are there, with the requested durability."""

from collections.abc import Callable

import pytest

from tests.shards_kit import shorten_journals
from tests.transactions.test_transactions_repeated import SYNCED, TOPIC, WRITTEN, World, values
from tms.block import encode
from tms.engine.engine import Engine
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import QueueSettings, Settlement
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import (
    Commit,
    PositionChange,
    PositionKey,
    TopicBlock,
    TopicStaged,
)

OTHER = TopicName("default", "b")


@pytest.fixture
def world() -> World:
    """A world with a topic that is not synced, and one that is."""
    world = World()
    world.engine.create_topic(OTHER, TopicSettings(1, durability=SYNCED))
    return world


def lose_power(world: World) -> None:
    world.kept = world.store.crash()
    world.engine._threads.shutdown()
    world.open()


def block(value: bytes, topic: TopicName = TOPIC) -> TopicBlock:
    return TopicBlock(topic, NewBlock(0, encode([value])))


def settled(world: World) -> Commit:
    """A commit that settles a message of a queue without syncs, with output in a topic with
    syncs."""
    settings = QueueSettings(durability=WRITTEN)
    world.engine.queues.declare(TOPIC, "g", settings)
    world.engine.append(TOPIC, [NewBlock(0, encode([b"job"]))], SYNCED)
    received = world.engine.queues.receive(TOPIC, "g")
    settlement = Settlement("g", TOPIC, tuple(received.tokens()))
    return Commit(blocks=(block(b"1", OTHER),), settlements=(settlement,))


def staged(world: World) -> Commit:
    """A synced commit that publishes staged blocks in a topic without syncs."""
    id = world.tx.begin().transaction_id
    world.tx.stage(TOPIC, [block(b"1").new], id)
    return Commit(id, staged=(TopicStaged(TOPIC, 0, 1),), durability=SYNCED)


def plain(world: World) -> Commit:
    """A commit over two topics, one of which is synced."""
    return Commit(blocks=(block(b"1"), block(b"1", OTHER)))


@pytest.mark.parametrize("made", [settled, staged, plain])
def test_a_commit_is_as_durable_as_it_says_or_the_strictest_of_its_topics(
    world: World, made: Callable[[World], Commit]
) -> None:
    topics = {one.topic for one in world.tx.commit(made(world)).appended}
    lose_power(world)
    assert topics
    for topic in topics:
        assert values(world.engine, topic=topic)[-1] == b"1"


def test_a_commit_over_a_topic_that_was_deleted_is_not_taken_for_torn(world: World) -> None:
    world.tx.commit(Commit(blocks=(block(b"1"), block(b"2", OTHER)), durability=SYNCED))
    world.engine.delete_topic(OTHER)
    lose_power(world)
    assert world.read() == [b"1"]


@pytest.mark.parametrize(("second", "expected"), [(SYNCED, 2), (WRITTEN, 1)])
def test_a_position_is_moved_as_durably_as_is_asked(
    world: World, second: Durability, expected: int
) -> None:
    for to, durability in ((1, SYNCED), (2, second)):
        position = Position.offset(to)
        world.engine.groups.move([PositionChange(PositionKey("g", TOPIC, 0), position)], durability)
        assert world.engine.groups.positions(TOPIC, "g") == {0: position}
    lose_power(world)
    assert world.engine.groups.positions(TOPIC, "g") == {0: Position.offset(expected)}


def sync_journal(world: World) -> None:
    """Sync the whole journal of transactions, but no message."""
    world.tx.invalidate(world.tx.begin().transaction_id)


def test_a_commit_that_lost_a_message_with_the_power_is_invalid_and_no_other_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither message needs a sync; another client synced one of them, and the journal. The commits
    of messages in the same partition stay committed, at every later start, too."""
    kept = world.tx.commit(Commit(blocks=(block(b"1"),), durability=SYNCED))
    torn = world.tx.commit(Commit(blocks=(block(b"2"), block(b"2", OTHER)), durability=WRITTEN))
    world.engine.append(OTHER, [NewBlock(0, encode([b"3"]))], SYNCED)
    sync_journal(world)
    lose_power(world)
    for _ in range(3):
        assert world.read() == [b"1"] and values(world.engine, topic=OTHER) == [b"3"]
        assert world.tx.describe(kept.transaction_id).outcome == "committed"
        assert world.tx.describe(torn.transaction_id).outcome == "invalid"
        world.restart()
    told = [one for one in caplog.records if "lost_with_the_power" in one.getMessage()]
    assert len(told) == 1, "operators are told once"


def test_a_commit_that_lost_a_position_with_the_power_is_invalid_too(world: World) -> None:
    moved = (PositionChange(PositionKey("g", OTHER, 0), Position.offset(7)),)
    request = Commit(blocks=(block(b"1"),), positions=moved, durability=WRITTEN)
    torn = world.tx.commit(request).transaction_id
    world.engine.append(TOPIC, [block(b"2").new], SYNCED)
    sync_journal(world)
    lose_power(world)
    assert world.tx.describe(torn).outcome == "invalid"
    assert world.engine.groups.positions(OTHER, "g") == {}
    assert world.read() == [b"2"]


def test_a_lost_message_is_missed_though_one_before_it_was_committed_later(world: World) -> None:
    early = world.tx.begin().transaction_id
    world.tx.submit(TOPIC, [block(b"1").new], early).result(5)
    torn = world.tx.commit(Commit(blocks=(block(b"2"),), durability=WRITTEN)).transaction_id
    world.tx.commit(Commit(early, durability=SYNCED))
    lose_power(world)
    world.engine.append(TOPIC, [block(b"3").new], SYNCED)
    assert world.tx.describe(torn).outcome == "invalid"
    assert world.read() == [b"1", b"3"]


def test_what_is_kept_of_the_journal_outlives_no_message_of_its_commits(world: World) -> None:
    """A start does not look for the messages of earlier commits."""
    world.tx.commit(Commit(blocks=(block(b"1"),), durability=WRITTEN))
    shorten_journals(world.engine, 0, 0)
    lose_power(world)
    assert world.read() == [b"1"]


def test_a_position_that_is_kept_outlives_no_message_that_was_committed_with_it(
    world: World,
) -> None:
    moved = (PositionChange(PositionKey("g", OTHER, 0), Position.offset(7)),)
    world.tx.commit(Commit(blocks=(block(b"1"),), positions=moved, durability=WRITTEN))
    shorten_journals(world.engine, 1_000, 0)
    lose_power(world)
    assert world.engine.groups.positions(OTHER, "g") == {0: Position.offset(7)}
    assert world.read() == [b"1"]


def test_what_is_kept_outlives_no_message_of_the_process_before(world: World) -> None:
    """The process died, not the machine: its writes are there, but not synced."""
    world.tx.commit(Commit(blocks=(block(b"1"),), durability=WRITTEN))
    world.engine._threads.shutdown()
    world.engine = Engine(world.store, world.clock)
    shorten_journals(world.engine, 0, 0)
    lose_power(world)
    assert world.read() == [b"1"]
