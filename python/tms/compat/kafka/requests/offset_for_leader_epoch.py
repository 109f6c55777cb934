"""OffsetForLeaderEpoch: the end of partitions, as that of their only leader epoch.

Clients are told no leader epochs: a partition has one leader for ever, and what a crash cuts off
was not acknowledged as synced. A client that asks nevertheless learns the end.
"""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import TMSError
from tms.model.access import Access

VERSIONS = (2, 4)
OffsetForLeaderEpochResponse = codec.class_of("OffsetForLeaderEpochResponse")
_Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EPOCH = 0  # of every partition


async def answer(call: KafkaCall) -> KafkaMessage:
    """The end for each partition; each has an error of its own."""
    topics = []
    for topic in call.message.topics:
        ends = [await _end(call, topic.topic, part) for part in topic.partitions]
        topics.append(_Topic(topic=topic.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=topics)


async def _end(call: KafkaCall, topic: str, part: KafkaMessage) -> KafkaMessage:
    result = _Topic.EpochEndOffset(partition=part.partition)
    broker = call.broker
    end = broker.engine.topics.fetcher.end
    try:
        name = call.topic(topic, Access.OBSERVE)
        call.require_leader(name, part.partition)
        offset, _ = await broker.in_thread(end, name, part.partition)
    except TMSError as error:
        result.error_code = code_of(error)
        return result
    if part.current_leader_epoch > _EPOCH:
        result.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif part.leader_epoch >= _EPOCH:
        result.leader_epoch = _EPOCH
        result.end_offset = offset
    return result
