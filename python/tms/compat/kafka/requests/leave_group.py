"""LeaveGroup: remove members at once; the others rebalance."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import coordinator_code
from tms.compat.kafka.requests import KafkaCall
from tms.groups.classic_calls import Leaver
from tms.model.access import Access

VERSIONS = (0, 5)
CODE_OF = coordinator_code
LeaveGroupResponse = codec.class_of("LeaveGroupResponse")
_LISTS = 3  # the version from which on a request has several members


async def answer(call: KafkaCall) -> KafkaMessage:
    """The error code of each member; of the only one in older versions."""
    message = call.message
    broker = call.broker
    leavers = [Leaver(message.member_id)]
    if call.version >= _LISTS:
        leavers = [Leaver(one.member_id, one.group_instance_id) for one in message.members]
    key = call.coordinated(message.group_id, Access.CONSUME)
    codes = broker.groups.do(key, lambda groups, now_ms: groups.leave(now_ms, key, leavers))
    await broker.groups.stored(key)
    if call.version < _LISTS:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=one.member, group_instance_id=one.instance, error_code=code
            )
            for one, code in zip(leavers, codes, strict=True)
        ]
    )
