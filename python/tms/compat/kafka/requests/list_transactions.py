"""ListTransactions: the transactional ids that this broker coordinates, by the state of their
transactions."""

from functools import partial

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.transactions import attempted
from tms.engine.engine import Engine
from tms.transactions.transactional_state import TransactionalRecord, TransactionPhase

VERSIONS = (0, 1)
ListTransactionsResponse = codec.class_of("ListTransactionsResponse")
# States that Kafka's transactions have and those of TMS have not.
_NEVER_HERE = {"PrepareCommit", "Dead", "PrepareEpochFence"}


async def answer(call: KafkaCall) -> KafkaMessage:
    """The ids in the wanted states, of the wanted producers, and open for long enough."""
    message = call.message
    broker = call.broker
    code, records = await attempted(call, partial(_all, broker.engine))
    states = set(message.state_filters)
    numbers = set(message.producer_id_filters)
    began_ms = broker.engine.topics.clock.now_ms() - message.duration_filter
    found = [
        ListTransactionsResponse.TransactionState(
            transactional_id=id, producer_id=one.producer.number, transaction_state=one.phase
        )
        for id, one in sorted(records or [])
        if call.owns(one.owner)
        and (not states or one.phase in states)
        and (not numbers or one.producer.number in numbers)
        and (message.duration_filter < 0 or 0 < one.began_ms <= began_ms)
    ]
    return ListTransactionsResponse(
        error_code=code,
        unknown_state_filters=sorted(states - set(TransactionPhase) - _NEVER_HERE),
        transaction_states=found,
    )


def _all(engine: Engine) -> list[tuple[str, TransactionalRecord]]:
    """All ids with their records; none while another broker coordinates them."""
    if engine.cluster is not None and not engine.coordinates:
        return []
    return engine.transactional_ids.all()
