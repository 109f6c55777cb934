"""ListOffsets: the offset of the first message at or after a time, and the ends of partitions."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import TMSError
from tms.model.access import Access
from tms.model.ids import TIME_MS_MAX
from tms.model.message import PartitionPosition
from tms.model.position import EARLIEST, LATEST, Position
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName

VERSIONS = (1, 9)
ListOffsetsResponse = codec.class_of("ListOffsetsResponse")
_Result = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
# Timestamps that stand for a place: local and tiered storage are the same here.
_LATEST = -1
_EARLIEST = -2
_OF_NEWEST_TIME = -3
_EARLIEST_LOCAL = -4
_TIERED = -5


async def answer(call: KafkaCall) -> KafkaMessage:
    """The offset for each partition; each has an error of its own."""
    isolation = Isolation.COMMITTED if call.message.isolation_level else Isolation.UNCOMMITTED
    topics = []
    for topic in call.message.topics:
        results = []
        for part in topic.partitions:
            result = _Result(partition_index=part.partition_index)
            results.append(result)
            try:
                name = call.topic(topic.name, Access.OBSERVE)
                await _fill(call.broker, name, part, isolation, result)
            except TMSError as error:
                result.error_code = code_of(error)
        topics.append(
            ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=results)
        )
    return ListOffsetsResponse(topics=topics)


async def _fill(
    broker: Broker, name: TopicName, part: KafkaMessage, isolation: Isolation, result: KafkaMessage
) -> None:
    wanted = part.timestamp
    partition = part.partition_index
    if wanted in (_EARLIEST, _EARLIEST_LOCAL):
        result.offset = await _offset(broker, name, partition, EARLIEST, Isolation.UNCOMMITTED)
        return
    end = await _offset(broker, name, partition, LATEST, isolation)
    if wanted == _LATEST:
        result.offset = end
    elif wanted == _OF_NEWEST_TIME and end > 0:  # ids ascend, so the last message has it
        await _tell(broker, name, partition, end - 1, result)
    elif 0 <= wanted <= TIME_MS_MAX:
        offset = await _offset(broker, name, partition, Position.time(wanted), isolation)
        if offset < end:
            await _tell(broker, name, partition, offset, result)
    elif wanted not in (_OF_NEWEST_TIME, _TIERED) and wanted < 0:
        result.error_code = ErrorCode.UNSUPPORTED_VERSION


async def _offset(
    broker: Broker, name: TopicName, partition: int, at: Position, isolation: Isolation
) -> int:
    """The offset of a position. Raises `PartitionNotFound`."""
    offsets = await broker.in_thread(lambda: broker.engine.offsets(name, at, isolation))
    if partition not in offsets:
        broker.engine.topics.port(name, partition)  # raises
    return offsets[partition]


async def _tell(
    broker: Broker, name: TopicName, partition: int, offset: int, result: KafkaMessage
) -> None:
    """Fill in an offset with the time of its message, if that is still there."""
    place = [PartitionPosition(partition, Position.offset(offset))]
    fetched = await broker.in_thread(
        lambda: broker.engine.fetch(name, place, 1, 0, Isolation.UNCOMMITTED)
    )
    if fetched.blocks:
        result.offset = offset
        result.timestamp = fetched.blocks[0].time_ms
