"""AddOffsetsToTxn: a group whose offsets a transaction commits."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.transactions import attempted, producer_of, require_id
from tms.model.access import Access

VERSIONS = (0, 4)
CONFIRMS = False
AddOffsetsToTxnResponse = codec.class_of("AddOffsetsToTxnResponse")
_FENCED_FROM = 2  # the version from which on a producer is told that it is fenced


async def answer(call: KafkaCall) -> KafkaMessage:
    """Begin the transaction if it has not begun, and add the group. Raises `Invalid`."""
    message = call.message
    group = call.group(message.group_id, Access.CONSUME).group

    def add() -> None:
        require_id(call, message.transactional_id)
        call.broker.engine.transactional_ids.add_group(
            message.transactional_id, producer_of(message), group
        )

    code, _ = await attempted(call, add, _FENCED_FROM)
    return AddOffsetsToTxnResponse(error_code=code)
