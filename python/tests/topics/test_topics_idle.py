"""The cost of unused topics."""

import gc
import tracemalloc

import pytest

from tests.clocks import ManualClock
from tms.engine.engine import Engine
from tms.model.topic import TopicName, TopicSettings
from tms.store.memory import MemoryStore

TOPICS, PARTITIONS = 100, 4
PARTITION_BYTES = 4 << 10


def _loaded(engine: Engine, topics: range) -> None:
    for number in topics:
        name = TopicName("default", f"t{number}")
        engine.create_topic(name, TopicSettings(PARTITIONS))
        for partition in range(PARTITIONS):
            engine.topics.log(name, partition).load()


@pytest.mark.slow
def test_an_idle_partition_takes_4_kib() -> None:
    """The bound is on Python's memory, with the partition's part of the topic's record; the store
    has its own."""
    engine = Engine(MemoryStore(), ManualClock())
    try:
        _loaded(engine, range(TOPICS))  # caches are filled then
        gc.collect()
        tracemalloc.start()
        _loaded(engine, range(TOPICS, 2 * TOPICS))
        gc.collect()
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/tms/*")])
    finally:
        tracemalloc.stop()
        engine.close()
    taken = sum(trace.size for trace in ours.traces)
    assert 1 << 10 < taken / (TOPICS * PARTITIONS) <= PARTITION_BYTES
