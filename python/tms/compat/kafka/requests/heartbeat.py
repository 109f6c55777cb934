"""Heartbeat: keep a member's session alive, and learn that it has to join again."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import coordinator_code
from tms.compat.kafka.requests import KafkaCall
from tms.groups.classic_calls import Sender
from tms.model.access import Access

VERSIONS = (0, 4)
CODE_OF = coordinator_code
HeartbeatResponse = codec.class_of("HeartbeatResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """The state of the group, as an error code."""
    message = call.message
    broker = call.broker
    sender = Sender(message.member_id, message.generation_id, message.group_instance_id)
    key = call.coordinated(message.group_id, Access.CONSUME)
    code = broker.groups.do(key, lambda groups, now_ms: (groups.heartbeat(now_ms, key, sender), ()))
    return HeartbeatResponse(error_code=code)
