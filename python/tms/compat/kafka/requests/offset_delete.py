"""OffsetDelete: forget positions of a group in topics that its members do not read."""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.primitives import require_left
from tms.compat.kafka.requests import KafkaCall
from tms.errors import Malformed, TMSError
from tms.groups.classic_calls import Description, State
from tms.model.access import Access

VERSIONS = (0, 0)
CODE_OF = coordinator_code
OffsetDeleteResponse = codec.class_of("OffsetDeleteResponse")
_Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_CONSUMER = "consumer"  # the protocol type of members that subscribe to topics
_SUBSCRIPTION = Struct(">hi")  # version, number of topics
_LENGTH = Struct(">h")  # of a topic's name, which follows


async def answer(call: KafkaCall) -> KafkaMessage:
    """Forget each position; each has an error of its own."""
    message = call.message
    broker = call.broker
    key = call.coordinated(message.group_id, Access.MANAGE)
    group = broker.groups.do(key, lambda groups, _: (groups.describe(key), ()))
    is_empty = group.state in (State.DEAD, State.EMPTY)
    if not is_empty and group.protocol_type != _CONSUMER:
        return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
    subscribed = set() if is_empty else _subscribed(group)
    forget = broker.engine.groups.forget_positions
    topics = []
    for topic in message.topics:
        numbers = [one.partition_index for one in topic.partitions]
        code = ErrorCode.NONE
        try:
            name = call.group_of(topic.name, message.group_id, Access.MANAGE)
            if subscribed is None or topic.name in subscribed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                await broker.in_thread(forget, name, message.group_id, numbers)
        except TMSError as error:
            code = coordinator_code(error)
        parts = [
            _Topic.OffsetDeleteResponsePartition(partition_index=number, error_code=code)
            for number in numbers
        ]
        topics.append(_Topic(name=topic.name, partitions=parts))
    return OffsetDeleteResponse(topics=topics)


def _subscribed(group: Description) -> set[str] | None:
    """The topics that the members of a group read; None if that is unknown, as during a
    rebalance."""
    if group.state is not State.STABLE:
        return None
    try:
        return {topic for member in group.members for topic in _topics_of(member.metadata)}
    except (Malformed, StructError, UnicodeDecodeError):
        return None


def _topics_of(metadata: bytes) -> Iterator[str]:
    """The topics in the metadata of a member. Raises `Malformed`, `struct.error`."""
    _, count = _SUBSCRIPTION.unpack_from(metadata)
    at = _SUBSCRIPTION.size
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if size < 0:
            raise Malformed("A member reads a topic without a name.")
        require_left(metadata, at + size)
        yield metadata[at : at + size].decode()
        at += size
