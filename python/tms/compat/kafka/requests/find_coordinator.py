"""FindCoordinator: the broker that keeps a group."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import NODE, Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (0, 6)
FindCoordinatorResponse = codec.class_of("FindCoordinatorResponse")
_GROUP = 0  # a type of key
_LISTS = 4  # the version from which on a request has several keys
_NOT_HERE = "Transactions are not spoken here; begin them with TMS's own clients."


async def answer(call: KafkaCall) -> KafkaMessage:
    """The only broker, for every group."""
    broker = call.broker
    message = call.message
    keys = message.coordinator_keys if call.version >= _LISTS else [message.key]
    found = [_coordinator(broker, key, message.key_type) for key in keys]
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


def _coordinator(broker: Broker, key: str, kind: int) -> KafkaMessage:
    if kind != _GROUP:
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            error_message=_NOT_HERE,
        )
    options = broker.options
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=NODE, host=options.host, port=options.port
    )
