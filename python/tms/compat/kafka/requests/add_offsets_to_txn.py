"""AddOffsetsToTxn: a group whose offsets a transaction commits."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import Message
from tms.compat.kafka.requests import Call
from tms.compat.kafka.transactions import attempted, producer_of

VERSIONS = (0, 4)
AddOffsetsToTxnResponse = codec.class_of("AddOffsetsToTxnResponse")
_FENCED_FROM = 2  # the version from which on a producer is told that it is fenced


async def answer(call: Call) -> Message:
    """Begin the transaction if it has not begun, and add the group. Raises `Invalid`."""
    message, ids = call.message, call.broker.engine.transactional_ids
    group = call.broker.group(message.group_id).group
    code, _ = await attempted(
        call,
        lambda: ids.add_group(message.transactional_id, producer_of(message), group),
        _FENCED_FROM,
    )
    return AddOffsetsToTxnResponse(error_code=code)
