"""AddPartitionsToTxn: the partitions that a transaction publishes to, all or none."""

from collections.abc import Callable
from typing import Any

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.transactions import attempted, require_id
from tms.errors import TMSError
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.transactions.transactional_state import ProducerEpoch

VERSIONS = (0, 3)
AddPartitionsToTxnResponse = codec.class_of("AddPartitionsToTxnResponse")
_Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Partition = _Topic.AddPartitionsToTxnPartitionResult
_FENCED_FROM = 2  # the version from which on a producer is told that it is fenced
_Codes = dict[tuple[str, int], ErrorCode]  # by topic and partition


async def answer(call: KafkaCall) -> KafkaMessage:
    """Begin the transaction if it has not begun, and add the partitions."""
    message = call.message
    wanted = [
        (one.name, number) for one in message.v3_and_below_topics for number in one.partitions
    ]
    producer = ProducerEpoch(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)

    def add() -> _Codes:
        unknown: _Codes = {}
        places: list[tuple[TopicName, int]] = []
        for topic, number in wanted:
            try:
                places.append((call.topic(topic, Access.PUBLISH), number))
                call.broker.engine.topics.port(*places[-1])  # raises if it does not exist
            except TMSError as error:
                unknown[topic, number] = code_of(error)
        if not unknown:
            require_id(call, message.v3_and_below_transactional_id)
            call.broker.engine.transactional_ids.add_partitions(
                message.v3_and_below_transactional_id, producer, places
            )
        return unknown

    code, unknown = await attempted(call, add, _FENCED_FROM)
    rest = ErrorCode.OPERATION_NOT_ATTEMPTED if unknown else code
    return _response(message, lambda place: (unknown or {}).get(place, rest))


def _response(message: KafkaMessage, code: Callable[[tuple[str, int]], ErrorCode]) -> Any:
    topics = []
    for topic in message.v3_and_below_topics:
        results = [
            _Partition(partition_index=number, partition_error_code=code((topic.name, number)))
            for number in topic.partitions
        ]
        topics.append(_Topic(name=topic.name, results_by_partition=results))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
