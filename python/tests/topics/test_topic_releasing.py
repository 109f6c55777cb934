"""A partition that another process takes over is closed before this one may open it again, and
after the role whose journal it is."""

from unittest.mock import Mock, patch

import pytest

from tests.log_kit import NAME, block
from tests.owners_kit import Processes
from tms.errors import NotOwner, TMSError, TopicNotFound
from tms.log.partition_log import PartitionLog
from tms.model.message import NewBlock
from tms.model.topic import SYSTEM_NAMESPACE, TopicName, TopicSettings
from tms.topics.partitions import Partitions
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics

TAKEN_OVER = NotOwner("Another instance has taken this over. Try again.", owner=None)


def partition_0(topics: Topics) -> PartitionLog:
    return topics.partitions.get(NAME, topics.registry.find(NAME), 0)


def test_a_partition_is_not_opened_again_before_it_is_closed() -> None:
    topics = Processes(1).engines[0].topics
    before = partition_0(topics)
    release = PartitionLog.release

    def late(log: PartitionLog, timeout_s: float, reason: TMSError) -> None:
        with pytest.raises(NotOwner, match="taken this over"):
            partition_0(topics)
        release(log, timeout_s, reason)

    with patch.object(PartitionLog, "release", late):
        topics.partitions.release(before, 1, TAKEN_OVER)
    assert partition_0(topics) is not before


def test_a_partition_that_could_not_be_closed_whole_is_opened_again() -> None:
    topics = Processes(1).engines[0].topics
    before = partition_0(topics)
    with (
        patch.object(PartitionLog, "release", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        topics.partitions.release(before, 1, TAKEN_OVER)
    assert partition_0(topics) is not before


def test_a_log_that_was_released_is_not_released_in_place_of_a_later_one() -> None:
    topics = Processes(1).engines[0].topics
    before = partition_0(topics)
    topics.partitions.release(before, 1, TAKEN_OVER)
    later = partition_0(topics)
    topics.partitions.release(before, 1, TAKEN_OVER)
    assert partition_0(topics) is later


def test_the_role_of_a_journal_is_closed_before_the_journal_that_others_have_taken_over() -> None:
    both = Processes()
    for engine in both.engines:
        pointer = engine.transactions.begin().transaction_id
        engine.append(NAME, [NewBlock(0, block(b"1"))], None, 10)
        engine.transactions.abort(pointer)
    topics = both.engines[0].topics
    lost: list[tuple[TopicName, bool]] = []

    def lose(journal: TopicName, number: int) -> None:
        log = topics.partitions.get(journal, topics.registry.find(journal), number)
        lost.append((journal, log.state.retired is None))

    topics.recheck(lambda: TAKEN_OVER, lose)
    assert lost and all(still_open for _, still_open in lost)
    assert {journal.namespace for journal, _ in lost} == {SYSTEM_NAMESPACE}
    assert not {log.uid for log in topics.partitions.opened()} & {
        topics.registry.find(journal).uid for journal, _ in lost
    }


def test_partitions_are_released_though_a_topic_is_deleted_meanwhile() -> None:
    engine = Processes(1).engines[0]
    topics, names = engine.topics, [TopicName("default", f"t{number}") for number in range(30)]
    for name in names:
        engine.create_topic(name, TopicSettings(1))
        topics.log(name, 0)
    gone, find, reads = names[7], topics.registry.find, Mock(wraps=topics.registry.all)

    def deleting(name: TopicName) -> TopicRecord:
        if name == gone:
            raise TopicNotFound("It was deleted by another process.")
        return find(name)

    topics.registry.known.clear()
    with (
        patch.object(Partitions, "owns", return_value=False),
        patch.object(topics.registry, "find", deleting),
        patch.object(topics.registry, "all", reads),
    ):
        assert topics.release_foreign(lambda: TAKEN_OVER, Mock()) >= len(names) - 1
    assert reads.call_count <= 1, "however many partitions are open"
    opened = {log.uid for log in topics.partitions.opened()}
    assert opened == {find(gone).uid}
