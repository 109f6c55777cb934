"""EndTxn: commit or abort a transaction."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.transactions import attempted, producer_of, require_id

VERSIONS = (0, 4)
CONFIRMS = False
EndTxnResponse = codec.class_of("EndTxnResponse")
_FENCED_FROM = 2  # the version from which on a producer is told that it is fenced


async def answer(call: KafkaCall) -> KafkaMessage:
    """End the transaction; a repeated request is answered like the first."""
    message = call.message

    def end() -> None:
        require_id(call, message.transactional_id)
        call.broker.engine.transactional_ids.end(
            message.transactional_id, producer_of(message), message.committed
        )

    code, _ = await attempted(call, end, _FENCED_FROM)
    return EndTxnResponse(error_code=code)
