"""InitProducerId: the number and epoch of a producer, which may be that of a transactional id."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import TRANSACTIONS, KafkaCall
from tms.compat.kafka.transactions import attempted, producer_of
from tms.model.access import Access
from tms.transactions.transactional_state import ProducerEpoch, RefusalCode, Refused

VERSIONS = (0, 5)
CONFIRMS = False
InitProducerIdResponse = codec.class_of("InitProducerIdResponse")
_EPOCH_MAX = 2**15 - 2
_FENCED_FROM = 4  # the version from which on a producer is told that it is fenced


async def answer(call: KafkaCall) -> KafkaMessage:
    """A new number with the epoch 0; of a producer that has one, the same with the next epoch."""
    message = call.message
    broker = call.broker
    if message.transactional_id is not None:
        return await _of_id(call)
    call.some_topic(Access.PUBLISH)
    if message.producer_id > 0 and 0 <= message.producer_epoch <= _EPOCH_MAX:
        epoch = message.producer_epoch + 1
        return InitProducerIdResponse(producer_id=message.producer_id, producer_epoch=epoch)
    number = await broker.in_thread(broker.engine.new_producer)
    return InitProducerIdResponse(producer_id=number, producer_epoch=0)


async def _of_id(call: KafkaCall) -> KafkaMessage:
    message = call.message
    named = producer_of(message)
    timeout_ms = message.transaction_timeout_ms
    expected = None if named == ProducerEpoch(-1, -1) else named
    if expected is not None and min(expected) < 0:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    id = message.transactional_id
    call.some_topic(Access.PUBLISH)

    def initialise() -> ProducerEpoch:
        takes_over = call.may(Access.OPERATE, TRANSACTIONS)
        try:
            return call.broker.engine.transactional_ids.initialise(
                id, timeout_ms, expected, call.principal, takes_over
            )
        except Refused as refused:
            if refused.code is RefusalCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                call.require(Access.OPERATE, TRANSACTIONS)  # for the audit log
            raise

    code, producer = await attempted(call, initialise, _FENCED_FROM)
    if producer is None:
        return InitProducerIdResponse(error_code=code)
    return InitProducerIdResponse(producer_id=producer.number, producer_epoch=producer.epoch)
