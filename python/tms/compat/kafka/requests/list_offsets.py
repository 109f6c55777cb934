"""ListOffsets: the offset of the first message at or after a time, and the ends of partitions.

The log is searched by publish time. A message is seldom published before its event time, so the
first one that was published at a time comes at or before the first one that has it as event time.
From there on `LOOK_BYTES` are searched for it; if it is further away, the first one is the answer:
a reader may see some earlier messages, and misses none.
"""

from tms.block import decode, read_header
from tms.block.placing import offsets
from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import OffsetOutOfRange, TMSError
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
LOOK_BYTES = 1 << 20  # of messages, in which an event time is searched


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
                call.require_leader(name, part.partition_index)
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
        await _tell(broker, name, PartitionPosition(partition, Position.offset(end - 1)), result)
    elif 0 <= wanted <= TIME_MS_MAX:
        offset = await _offset(broker, name, partition, Position.time(wanted), isolation)
        if offset < end:
            place = PartitionPosition(partition, Position.offset(offset))
            await _tell(broker, name, place, result, wanted)
    elif wanted not in (_OF_NEWEST_TIME, _TIERED) and wanted < 0:
        result.error_code = ErrorCode.UNSUPPORTED_VERSION


async def _offset(
    broker: Broker, name: TopicName, partition: int, at: Position, isolation: Isolation
) -> int:
    """The offset of a position. Raises `PartitionNotFound`."""
    look = broker.engine.topics.fetcher.offsets_here  # only at this partition
    return (await broker.in_thread(look, name, [partition], at, isolation))[partition]


async def _tell(
    broker: Broker,
    name: TopicName,
    place: PartitionPosition,
    result: KafkaMessage,
    from_ms: int = 0,
) -> None:
    """Fill in the offset and the time of the message at a place, or of one soon after it that has a
    later time, if it is still there."""
    found = await broker.in_thread(lambda: _first(broker, name, place, from_ms))
    if found is not None:
        result.offset, result.timestamp = found


def _first(
    broker: Broker, name: TopicName, place: PartitionPosition, from_ms: int
) -> tuple[int, int] | None:
    """Offset and time of the first message near a place with this time or a later one; of the first
    one at all if no message has such a time, None if there is none."""
    size = LOOK_BYTES if from_ms else 1
    try:
        fetched = broker.engine.fetch(name, [place], size, 0, Isolation.UNCOMMITTED)
    except OffsetOutOfRange:  # truncated, or expired
        return None
    first = None
    for stored in fetched.blocks:
        columns = decode(stored.block)
        numbers = offsets(read_header(stored.block).base_offset, columns.index)
        for offset, time_ms in zip(numbers, columns.event_times(stored.time_ms), strict=True):
            if offset < place.position.number:
                continue
            first = first or (offset, time_ms or 0)
            if time_ms is not None and time_ms >= from_ms:
                return offset, time_ms
    return first
