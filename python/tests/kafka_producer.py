"""A transactional producer that sends one request after another, in any version."""

from collections.abc import Sequence
from typing import Any

from tests.kafka_kit import KafkaConnection, batch, fetched, producing, records_in
from tms.compat.kafka import codec
from tms.compat.kafka.errors import ErrorCode


class TransactionalProducer:
    """The producer of a transactional id. Its methods return Kafka's codes. `versions` are of
    requests that are not sent in their newest version."""

    def __init__(self, kafka: KafkaConnection, id: str, **versions: int) -> None:
        self.kafka = kafka
        self.id = id
        self.number, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}
        self._versions = versions

    def initialise(self, timeout_ms: int = 60_000, goes_on: bool = False) -> ErrorCode:
        """Get a number and an epoch, or with `goes_on` the next epoch."""
        number, epoch = (self.number, self.epoch) if goes_on else (-1, -1)
        answer = self.kafka.ask(
            "InitProducerId",
            self._versions.get("InitProducerId", 5),
            transactional_id=self.id,
            transaction_timeout_ms=timeout_ms,
            producer_id=number,
            producer_epoch=epoch,
        )
        if not answer.error_code:
            self.number, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return ErrorCode(answer.error_code)

    def add(self, topic: str, *partitions: int) -> ErrorCode:
        """Add partitions of a topic."""
        codes = set(self.added({topic: partitions}).values())
        assert len(codes) == 1
        return codes.pop()

    def added(self, topics: dict[str, Sequence[int]]) -> dict[tuple[str, int], ErrorCode]:
        """The codes of partitions that are added."""
        made = codec.class_of("AddPartitionsToTxnRequest").AddPartitionsToTxnTopic
        answer = self.kafka.ask(
            "AddPartitionsToTxn",
            self._versions.get("AddPartitionsToTxn", 3),
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.number,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                made(name=name, partitions=list(some)) for name, some in topics.items()
            ],
        )
        return {
            (topic.name, part.partition_index): ErrorCode(part.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }

    def produce(
        self, topic: str, *values: bytes, partition: int = 0, transactional: bool = True
    ) -> ErrorCode:
        """Publish values as the next batch; a refused batch leaves the sequence as it was."""
        place = (topic, partition)
        sequence = self.sequences.get(place, 0)
        result = self.send(place, values, sequence, transactional)
        if not result.error_code:
            self.sequences[place] = sequence + len(values)
        return ErrorCode(result.error_code)

    def send(
        self,
        place: tuple[str, int],
        values: Sequence[bytes],
        sequence: int,
        transactional: bool = True,
    ) -> Any:
        """The answer to a batch of these values with this sequence."""
        topic, partition = place
        producer = (self.number, self.epoch, sequence)
        records = batch([(None, value) for value in values], producer, 0, transactional)
        id = self.id if transactional else None
        fields = producing(topic, {partition: records}, transactional_id=id)
        answer = self.kafka.ask("Produce", self._versions.get("Produce", 11), **fields)
        return answer.responses[0].partition_responses[0]

    def add_group(self, group: str) -> ErrorCode:
        """Add a group."""
        answer = self.kafka.ask(
            "AddOffsetsToTxn",
            self._versions.get("AddOffsetsToTxn", 4),
            transactional_id=self.id,
            producer_id=self.number,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return ErrorCode(answer.error_code)

    def move(
        self, group: str, topic: str, offset: int, partition: int = 0, **fields: Any
    ) -> ErrorCode:
        """Move an offset of a group in the transaction; `fields` are of the member."""
        made = codec.class_of("TxnOffsetCommitRequest").TxnOffsetCommitRequestTopic
        part = made.TxnOffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_metadata=fields.pop("metadata", ""),
        )
        answer = self.kafka.ask(
            "TxnOffsetCommit",
            self._versions.get("TxnOffsetCommit", 4),
            transactional_id=self.id,
            group_id=group,
            producer_id=self.number,
            producer_epoch=self.epoch,
            topics=[made(name=topic, partitions=[part])],
            **({"generation_id": -1} | fields),
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, committed: bool = True) -> ErrorCode:
        """End the transaction."""
        answer = self.kafka.ask(
            "EndTxn",
            self._versions.get("EndTxn", 4),
            transactional_id=self.id,
            producer_id=self.number,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return ErrorCode(answer.error_code)


def values(kafka: KafkaConnection, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values that a reader of committed messages gets."""
    return [value for _, _, value in records_in(committed(kafka, topic, 0, partition).records)]


def committed(kafka: KafkaConnection, topic: str, offset: int = 0, partition: int = 0) -> Any:
    """The answer to a fetch of committed messages."""
    found = fetched(kafka, topic, offset, partition, isolation_level=1)
    assert not found.error_code, found
    return found


def offset_of(
    kafka: KafkaConnection, group: str, topic: str, partition: int = 0, stable: bool = False
) -> int | ErrorCode:
    """The committed offset of a group, -1 for none, or the code that refuses to tell it."""
    made = codec.class_of("OffsetFetchRequest").OffsetFetchRequestGroup
    asked = made(
        group_id=group,
        topics=[made.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])],
    )
    [answer] = kafka.ask("OffsetFetch", 8, groups=[asked], require_stable=stable).groups
    assert not answer.error_code
    part = answer.topics[0].partitions[0]
    return ErrorCode(part.error_code) if part.error_code else int(part.committed_offset)
