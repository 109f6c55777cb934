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
_Message = tuple[int, int | None]  # offset and time


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
    elif wanted == _OF_NEWEST_TIME:  # ids ascend, so the last message has it
        begin = await _offset(broker, name, partition, EARLIEST, Isolation.UNCOMMITTED)
        found = await broker.in_thread(lambda: _last(broker, name, partition, (begin, end)))
        _tell(result, found)
    elif 0 <= wanted <= TIME_MS_MAX:
        offset = await _offset(broker, name, partition, Position.time(wanted), isolation)
        if offset < end:
            found = await broker.in_thread(
                lambda: _first(broker, name, (partition, offset), wanted)
            )
            _tell(result, found)
    elif wanted != _TIERED and wanted < 0:
        result.error_code = ErrorCode.UNSUPPORTED_VERSION


async def _offset(
    broker: Broker, name: TopicName, partition: int, at: Position, isolation: Isolation
) -> int:
    """The offset of a position. Raises `PartitionNotFound`."""
    look = broker.engine.topics.fetcher.offsets_here  # only at this partition
    return (await broker.in_thread(look, name, [partition], at, isolation))[partition]


def _tell(result: KafkaMessage, found: _Message | None) -> None:
    if found is not None:
        result.offset = found[0]
        result.timestamp = found[1] or 0


def _first(
    broker: Broker, name: TopicName, place: tuple[int, int], from_ms: int
) -> _Message | None:
    """The first message near a partition's offset with this time or a later one; the first one at
    all if no message has such a time, None if there is none."""
    messages = _messages(broker, name, place, LOOK_BYTES if from_ms else 1)
    late = (one for one in messages if one[1] is not None and one[1] >= from_ms)
    return next(late, messages[0] if messages else None)


def _last(
    broker: Broker, name: TopicName, partition: int, between: tuple[int, int]
) -> _Message | None:
    """The last message from one offset up to another; None if there is none. The last ones may be
    erased: bisection then finds the one before them."""
    low, high = between
    found = None
    at = high - 1
    while low < high:
        there = [one for one in _messages(broker, name, (partition, at), 1) if one[0] < high]
        if there:
            found = there[-1]
            low = found[0] + 1
        else:
            high = at
        at = (low + high) // 2
    return found


def _messages(broker: Broker, name: TopicName, place: tuple[int, int], size: int) -> list[_Message]:
    """The messages of the first page behind a partition's offset that has some."""
    partition, offset = place
    at = PartitionPosition(partition, Position.offset(offset))
    while True:
        try:
            fetched = broker.engine.fetch(name, [at], size, 0, Isolation.UNCOMMITTED)
        except OffsetOutOfRange:  # truncated, or expired
            return []
        found: list[_Message] = []
        for stored in fetched.blocks:
            columns = decode(stored.block)
            numbers = offsets(read_header(stored.block).base_offset, columns.index)
            found += zip(numbers, columns.event_times(stored.time_ms), strict=True)
        found = [one for one in found if one[0] >= offset]
        if found or fetched.reached[partition] >= fetched.ends[partition]:
            return found
        at = PartitionPosition(partition, fetched.next[partition])
