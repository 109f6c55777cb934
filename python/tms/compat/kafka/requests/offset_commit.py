"""OffsetCommit: move the positions of a group, all or none of those that can be moved."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.requests import KafkaCall
from tms.errors import Conflict, Fenced, Invalid, TMSError
from tms.groups.classic_calls import Sender
from tms.model.access import Access
from tms.model.position import EARLIEST, LATEST, OFFSET_MAX, Position
from tms.model.transaction import METADATA_CHARS_MAX, Owner, PositionChange, PositionKey

VERSIONS = (2, 9)
_ENDS = {-1: LATEST, -2: EARLIEST}  # that KafkaJS commits to reset a group
OffsetCommitResponse = codec.class_of("OffsetCommitResponse")
_Partition = OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition


async def answer(call: KafkaCall) -> KafkaMessage:
    """Check the member, then every partition, then move the positions."""
    message = call.message
    broker = call.broker
    sender = Sender(
        message.member_id, message.generation_id_or_member_epoch, message.group_instance_id
    )
    code = await may_commit(call, sender)
    topics = []
    changes = []
    moved = []
    for topic in message.topics:
        results = []
        for part in topic.partitions:
            result = _Partition(partition_index=part.partition_index, error_code=code)
            results.append(result)
            if not code:
                try:
                    changes.append(change_of(call, topic.name, part, sender))
                    moved.append(result)
                except TMSError as error:
                    result.error_code = position_code(error)
        topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, partitions=results)
        )
    if changes:
        try:
            await broker.in_thread(lambda: broker.engine.groups.move(changes))
        except TMSError as error:
            for result in moved:
                result.error_code = position_code(error)
    return OffsetCommitResponse(topics=topics)


async def may_commit(call: KafkaCall, sender: Sender, is_transactional: bool = False) -> ErrorCode:
    """The code that refuses the whole commit, or `NONE`."""
    try:
        key = call.coordinated(call.message.group_id, Access.CONSUME)
        shard = call.broker.groups.shard(key)
        return ErrorCode(
            await call.broker.in_thread(shard.may_commit, key, sender, is_transactional)
        )
    except TMSError as error:
        return coordinator_code(error)


def change_of(call: KafkaCall, topic: str, part: KafkaMessage, sender: Sender) -> PositionChange:
    """The change of a position. Raises `Invalid`, `TopicNotFound`, `PartitionNotFound`."""
    broker = call.broker
    name = call.group_of(topic, call.message.group_id, Access.CONSUME)
    broker.engine.topics.port(name, part.partition_index)  # raises if it does not exist
    metadata = part.committed_metadata or ""
    if len(metadata) > METADATA_CHARS_MAX:
        raise Invalid(
            f"The metadata of a position have at most {METADATA_CHARS_MAX} characters, got "
            f"{len(metadata)}.",
            field="metadata",
        )
    offset = part.committed_offset
    if offset not in _ENDS and not 0 <= offset <= OFFSET_MAX:
        raise Invalid(
            f"An offset is 0 to {OFFSET_MAX}, -1 for the end or -2 for the beginning, got {offset}."
        )
    return PositionChange(
        PositionKey(call.message.group_id, name, part.partition_index),
        _ENDS.get(offset) or Position.offset(offset),
        owner=Owner(sender.member, sender.generation) if sender.generation >= 0 else None,
        metadata=metadata,
        leader_epoch=max(-1, part.committed_leader_epoch),
    )


def position_code(error: TMSError) -> ErrorCode:
    """The code of a position that cannot be moved."""
    if isinstance(error, Fenced):
        return ErrorCode.ILLEGAL_GENERATION
    if isinstance(error, Conflict):
        return ErrorCode.UNKNOWN_MEMBER_ID
    return coordinator_code(error)
