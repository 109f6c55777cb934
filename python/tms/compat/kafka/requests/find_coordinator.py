"""FindCoordinator: the broker that keeps a group, or a transactional id."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import NODE
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import Invalid, TMSError
from tms.model.access import Access

VERSIONS = (0, 6)
FindCoordinatorResponse = codec.class_of("FindCoordinatorResponse")
_GROUP = 0
_TRANSACTION = 1
_LISTS = 4  # the version from which on a request has several keys
_NOT_HERE = "There are coordinators of groups and of transactional ids only."


async def answer(call: KafkaCall) -> KafkaMessage:
    """The only broker, for every group and every transactional id."""
    message = call.message
    keys = message.coordinator_keys if call.version >= _LISTS else [message.key]
    found = [_coordinator(call, key, message.key_type) for key in keys]
    if call.version >= _LISTS:
        return FindCoordinatorResponse(coordinators=found)
    [one] = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(call: KafkaCall, key: str, kind: int) -> KafkaMessage:
    try:
        if kind == _GROUP:
            call.group(key, Access.OBSERVE)
        elif kind != _TRANSACTION:
            raise Invalid(_NOT_HERE)
    except TMSError as error:
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=code_of(error),
            error_message=error.message,
        )
    options = call.broker.options
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=NODE, host=options.host, port=options.port
    )
