"""SyncGroup: the leader brings the assignments, and each member gets its own."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.requests import KafkaCall
from tms.groups.classic_calls import Sender, SyncRequest
from tms.model.access import Access

VERSIONS = (0, 5)
CODE_OF = coordinator_code
SyncGroupResponse = codec.class_of("SyncGroupResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """The assignment of the member, once the leader has brought it."""
    message = call.message
    broker = call.broker
    key = call.coordinated(message.group_id, Access.CONSUME)
    request = SyncRequest(
        Sender(message.member_id, message.generation_id, message.group_instance_id),
        {one.member_id: one.assignment for one in message.assignments},
        message.protocol_type,
        message.protocol_name,
    )
    synced = await broker.groups.sync(call.connection, key, request)
    if synced is None:
        return SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    return SyncGroupResponse(
        error_code=synced.code,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
