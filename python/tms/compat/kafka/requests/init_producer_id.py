"""InitProducerId: the number of an idempotent producer."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (0, 5)
InitProducerIdResponse = codec.class_of("InitProducerIdResponse")
_EPOCH_MAX = 2**15 - 2


async def answer(call: KafkaCall) -> KafkaMessage:
    """A new number with the epoch 0; of a producer that has one, the same with the next epoch."""
    message = call.message
    broker = call.broker
    if message.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if message.producer_id > 0 and 0 <= message.producer_epoch <= _EPOCH_MAX:
        epoch = message.producer_epoch + 1
        return InitProducerIdResponse(producer_id=message.producer_id, producer_epoch=epoch)
    number = await broker.in_thread(broker.engine.new_producer)
    return InitProducerIdResponse(producer_id=number, producer_epoch=0)
