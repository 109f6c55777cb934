"""FindCoordinator: the broker that keeps a group, or a transactional id."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import NODE
from tms.compat.kafka.codec import Message
from tms.compat.kafka.errors import Code
from tms.compat.kafka.requests import Call

VERSIONS = (0, 6)
FindCoordinatorResponse = codec.class_of("FindCoordinatorResponse")
_GROUP, _TRANSACTION = 0, 1  # types of keys
_LISTS = 4  # the version from which on a request has several keys
_NOT_HERE = "There are coordinators of groups and of transactional ids only."


async def answer(call: Call) -> Message:
    """The only broker, for every group and every transactional id."""
    message, options = call.message, call.broker.options
    keys = message.coordinator_keys if call.version >= _LISTS else [message.key]
    found = []
    for key in keys:
        one = FindCoordinatorResponse.Coordinator(
            key=key, node_id=NODE, host=options.host, port=options.port, error_message=""
        )
        if message.key_type not in (_GROUP, _TRANSACTION):
            one.node_id, one.host, one.port = -1, "", -1
            one.error_code, one.error_message = Code.INVALID_REQUEST, _NOT_HERE
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
