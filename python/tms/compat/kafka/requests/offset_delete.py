"""OffsetDelete: forget positions of a group without members that read the topic."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import TMSError
from tms.groups.classic_calls import State
from tms.model.access import Access

VERSIONS = (0, 0)
OffsetDeleteResponse = codec.class_of("OffsetDeleteResponse")
_Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic


async def answer(call: KafkaCall) -> KafkaMessage:
    """Forget each position; each has an error of its own."""
    message = call.message
    broker = call.broker
    key = call.group(message.group_id, Access.MANAGE)
    state = broker.groups.do(key, lambda groups, _: (groups.describe(key).state, ()))
    if state not in (State.DEAD, State.EMPTY):
        return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
    forget = broker.engine.groups.forget_positions
    topics = []
    for topic in message.topics:
        numbers = [one.partition_index for one in topic.partitions]
        code = ErrorCode.NONE
        try:
            name = call.group_of(topic.name, message.group_id, Access.MANAGE)
            await broker.in_thread(forget, name, message.group_id, numbers)
        except TMSError as error:
            code = code_of(error)
        parts = [
            _Topic.OffsetDeleteResponsePartition(partition_index=number, error_code=code)
            for number in numbers
        ]
        topics.append(_Topic(name=topic.name, partitions=parts))
    return OffsetDeleteResponse(topics=topics)
