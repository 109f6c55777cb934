"""JoinGroup: become a member of a group, or join again; the answer waits for the other members."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.requests import KafkaCall
from tms.groups.classic_calls import Client, JoinRequest
from tms.model.access import Access

VERSIONS = (0, 9)
CODE_OF = coordinator_code
JoinGroupResponse = codec.class_of("JoinGroupResponse")
_WITH_REBALANCE_TIMEOUT = 1  # the version from which on a request has one
_NULLABLE = 7  # the version from which on there may be no protocol


async def answer(call: KafkaCall) -> KafkaMessage | None:
    """The generation, and for the leader the metadata of all members."""
    message = call.message
    broker = call.broker
    key = call.coordinated(message.group_id, Access.CONSUME)
    rebalance_ms = message.rebalance_timeout_ms
    if call.version < _WITH_REBALANCE_TIMEOUT:
        rebalance_ms = message.session_timeout_ms
    request = JoinRequest(
        call.version,
        Client(call.client, f"/{call.connection.peer[0]}"),
        message.protocol_type,
        tuple((one.name, one.metadata) for one in message.protocols),
        message.session_timeout_ms,
        rebalance_ms,
        message.member_id,
        message.group_instance_id,
        broker.options.rebalance_delay_ms,
    )
    joined = await broker.groups.join(call.connection, key, request)
    if joined is None:
        return JoinGroupResponse(
            error_code=ErrorCode.NOT_COORDINATOR, member_id=message.member_id, protocol_name=""
        )
    missing = None if call.version >= _NULLABLE else ""
    return JoinGroupResponse(
        error_code=joined.code,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=missing if joined.protocol is None else joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=one.member, group_instance_id=one.instance, metadata=one.metadata
            )
            for one in joined.members
        ],
    )
