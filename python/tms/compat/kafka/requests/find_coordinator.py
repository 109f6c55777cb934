"""FindCoordinator: the broker that keeps a group, or a transactional id."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import Invalid, TMSError, Unavailable
from tms.model.access import Access

VERSIONS = (0, 6)
CONFIRMS = False
FindCoordinatorResponse = codec.class_of("FindCoordinatorResponse")
_GROUP = 0
_TRANSACTION = 1
_LISTS = 4  # the version from which on a request has several keys
_NOT_HERE = "There are coordinators of groups and of transactional ids only."


async def answer(call: KafkaCall) -> KafkaMessage:
    """The broker for each group and each transactional id."""
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
    brokers = call.broker.brokers
    try:
        if kind == _GROUP:
            found = brokers.coordinator_of_group(call.group(key, Access.OBSERVE).group)
        elif kind == _TRANSACTION:
            found = brokers.coordinator_of_transactions()
        else:
            raise Invalid(_NOT_HERE)
    except TMSError as error:
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=_code(error),
            error_message=error.message,
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=found.id, host=found.host, port=found.port
    )


def _code(error: TMSError) -> ErrorCode:
    is_missing = isinstance(error, Unavailable)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_missing else code_of(error)
