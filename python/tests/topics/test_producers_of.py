"""The producers that a partition remembers, as a list: each kind, the newest first."""

import pytest

from tests.clocks import ManualClock
from tms.block import count_messages, encode
from tms.engine.engine import Engine
from tms.errors import PartitionNotFound, TopicNotFound
from tms.model.inspection import ProducerInfo, ProducerKind
from tms.model.message import KEY_BIT, NewBlock
from tms.model.topic import TopicName, TopicSettings
from tms.store.memory import MemoryStore

A = TopicName("default", "a")
NUMBER, EPOCH = 77, 3


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    engine = Engine(MemoryStore(), clock)
    engine.create_topic(A, TopicSettings(2))
    return engine


def publish(engine: Engine, clock: ManualClock, count: int, id: int = 0, sequence: int = 0) -> int:
    """Publish so many messages of a producer; the time at which."""
    clock.pass_ms(1_000)
    block = encode([b"x"] * count, producer_id=id, producer_sequence=sequence)
    engine.append(A, [NewBlock(1, block)])
    return clock.now_ms()


def test_each_kind_is_told_apart_and_the_newest_comes_first(
    engine: Engine, clock: ManualClock
) -> None:
    publish(engine, clock, 1)
    publish(engine, clock, 2, 5)
    keyed_ms = publish(engine, clock, 1, KEY_BIT | 9)
    blocks_ms = publish(engine, clock, 3, 5, 1)
    clock.pass_ms(1_000)
    block = encode([b"x"] * 4)
    count_messages(block, NUMBER, EPOCH, 100)
    engine.append(A, [NewBlock(1, block)])
    counting = ProducerInfo(NUMBER, ProducerKind.MESSAGES, EPOCH, 103, clock.now_ms(), 11)
    blocks = ProducerInfo(5, ProducerKind.BLOCKS, None, 1, blocks_ms, 7)
    keyed = ProducerInfo(KEY_BIT | 9, ProducerKind.KEY, None, 0, keyed_ms, 4)
    assert engine.producers(A, 1) == [counting, blocks, keyed]
    assert engine.producers(A, 1, 2) == [counting, blocks]
    assert engine.producers(A, 0) == []


def test_many_producers_are_cut_to_the_newest(engine: Engine, clock: ManualClock) -> None:
    for id in range(1, 21):
        publish(engine, clock, 1, id)
        publish(engine, clock, 1, KEY_BIT | id + 100)
    newest = [one.producer_id for one in engine.producers(A, 1, 5)]
    assert newest == [KEY_BIT | 120, 20, KEY_BIT | 119, 19, KEY_BIT | 118]
    publish(engine, clock, 1, 3, 1)
    assert engine.producers(A, 1, 1)[0].producer_id == 3, "it has published again"


def test_a_partition_that_there_is_not(engine: Engine) -> None:
    with pytest.raises(PartitionNotFound):
        engine.producers(A, 2)
    with pytest.raises(TopicNotFound):
        engine.producers(TopicName("default", "b"))
