"""Publishing to a topic: counters, lookups, and open partitions."""

import threading
from collections.abc import Iterator

import pytest

from tests.log_kit import NAME, Bench, block
from tms.errors import PartitionNotFound
from tms.log.partition_log import PartitionLog
from tms.model.message import NOTHING, NewBlock
from tms.model.topic import TopicSettings
from tms.model.transaction import Commit, TopicBlock
from tms.topics.registry import Registry


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(TopicSettings(partitions=2)) as made:
        yield made


def test_those_blocks_are_counted_that_their_partitions_have(bench: Bench) -> None:
    places = [(0, 7, 0), (0, 7, 1), (1, 8, 0)]
    for partition, producer, sequence in places:
        bench.publish(b"v", partition=partition, producer=producer, sequence=sequence)
    absent = [(1, 7, 0), (0, 7, 2), (0, 7, 9), (0, 9, 0)]
    asked = [
        NewBlock(partition, block(b"v", producer=producer, sequence=sequence))
        for partition, producer, sequence in (*absent[:2], *places, *absent[2:])
    ]
    assert bench.engine.topics.publisher.count_stored(NAME, asked) == 3
    bench.restart()
    assert bench.engine.topics.publisher.count_stored(NAME, asked) == 3
    assert bench.engine.topics.publisher.count_stored(NAME, asked[:2]) == 0


def test_an_expectation_on_a_missing_partition_is_an_error_that_names_its_topic(
    bench: Bench,
) -> None:
    precondition = NewBlock(2, block(b"v"), NOTHING)
    with pytest.raises(PartitionNotFound, match=f"The topic {NAME} has partitions 0 to 1"):
        bench.engine.transactions.commit(Commit(blocks=(TopicBlock(NAME, precondition),)))


def test_who_asks_for_a_partition_at_the_same_time_gets_the_same(bench: Bench) -> None:
    partitions = bench.engine.topics.partitions
    topic = bench.engine.topics.registry.find(NAME)
    looked, found = threading.Semaphore(0), list[PartitionLog]()

    class Open(dict[tuple[int, int], PartitionLog]):
        def get(self, *args: object) -> PartitionLog | None:  # type: ignore[override]
            looked.release()
            return super().get(*args)  # type: ignore[call-overload, no-any-return]

    partitions.logs = Open(partitions.logs)
    asking = [
        threading.Thread(target=lambda: found.append(partitions.get(NAME, topic, 0)))
        for _ in range(2)
    ]
    with partitions._lock:
        for thread in asking:
            thread.start()
        assert all(looked.acquire(timeout=10) for _ in asking), "nobody looked"
    for thread in asking:
        thread.join(10)
    assert len(found) == 2 and found[0] is found[1]


def test_the_partitions_of_a_topic_that_another_process_deleted_are_closed(bench: Bench) -> None:
    bench.publish(b"v")
    metadata = bench.store.open("metadata", create=False)
    another = Registry(bench.store, metadata, bench.clock, 10)
    another.drop_maps(another.delete(NAME).uid)
    bench.engine.maintenance.clean()
    assert bench.engine.stats().partitions_open == 0
