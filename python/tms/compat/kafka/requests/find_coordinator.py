"""FindCoordinator: the broker that keeps a group."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import NODE
from tms.compat.kafka.codec import Message
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (0, 6)
FindCoordinatorResponse = codec.class_of("FindCoordinatorResponse")
_GROUP = 0  # a type of key
_LISTS = 4  # the version from which on a request has several keys
_NOT_HERE = "Transactions are not spoken here; begin them with TMS's own clients."


async def answer(call: KafkaCall) -> Message:
    """The only broker, for every group."""
    message, options = call.message, call.broker.options
    keys = message.coordinator_keys if call.version >= _LISTS else [message.key]
    found = []
    for key in keys:
        one = FindCoordinatorResponse.Coordinator(
            key=key, node_id=NODE, host=options.host, port=options.port, error_message=""
        )
        if message.key_type != _GROUP:
            one.node_id, one.host, one.port = -1, "", -1
            one.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            one.error_message = _NOT_HERE
        found.append(one)
    if call.version >= _LISTS:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )
