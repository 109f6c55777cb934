"""DeleteRecords: the messages before an offset, of each partition; they are unreadable for good."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import OffsetOutOfRange, TMSError
from tms.model.access import Access
from tms.model.position import LATEST, Position
from tms.model.topic import Cleanup, TopicName

VERSIONS = (0, 2)
DeleteRecordsResponse = codec.class_of("DeleteRecordsResponse")
_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult
_HIGH_WATERMARK = -1  # as the offset: all messages that are there


async def answer(call: KafkaCall) -> KafkaMessage:
    """Truncate each partition; each has an error of its own. A crash may leave some of them as they
    were: the request may be repeated."""
    topics = []
    for topic in call.message.topics:
        results = [await _delete(call, topic.name, part) for part in topic.partitions]
        topics.append(_Topic(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _delete(call: KafkaCall, topic: str, part: KafkaMessage) -> KafkaMessage:
    broker = call.broker
    result = _Partition(partition_index=part.partition_index, low_watermark=-1)
    try:
        name = call.topic(topic, Access.MANAGE)
        call.require_leader(name, part.partition_index)
        record = await broker.in_thread(lambda: broker.record(name))
        if record.cleanup is Cleanup.COMPACT:  # its newest message of each key stays
            result.error_code = ErrorCode.POLICY_VIOLATION
            return result
        result.low_watermark = await broker.in_thread(
            _truncate, broker, name, part.partition_index, part.offset
        )
    except TMSError as error:
        result.error_code = code_of(error)
    return result


def _truncate(broker: Broker, name: TopicName, partition: int, offset: int) -> int:
    """The offset of the first message that is left, or the end. Raises `OffsetOutOfRange`,
    `PartitionNotFound`, `TopicNotFound`."""
    engine = broker.engine
    before = LATEST
    if offset != _HIGH_WATERMARK:
        end, _ = engine.topics.fetcher.end(name, partition)
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(
                f"Offset {offset} of partition {partition} is not there: the end is {end}."
            )
        before = Position.offset(offset)
    [info] = engine.truncate_topic(name, before, partition).partition_infos
    return info.start_offset
