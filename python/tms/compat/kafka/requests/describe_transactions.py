"""DescribeTransactions: the producer of each transactional id, and its open transaction."""

from functools import partial

from tms.access.decisions import topic_resource
from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.transactions import attempted, require_owner
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.transactions.transactional_state import RefusalCode, TransactionalRecord

VERSIONS = (0, 0)
DescribeTransactionsResponse = codec.class_of("DescribeTransactionsResponse")
_State = DescribeTransactionsResponse.TransactionState
_NEVER = -1  # began a transaction that is not open


async def answer(call: KafkaCall) -> KafkaMessage:
    """The state of each id, once; each has an error of its own. An id of another principal is not
    found."""
    states = []
    for id in dict.fromkeys(call.message.transactional_ids):
        code, record = await attempted(call, partial(_found, call, id))
        state = _State(transactional_id=id, error_code=code)
        states.append(state if record is None else _filled(call, state, record))
    return DescribeTransactionsResponse(transaction_states=states)


def _found(call: KafkaCall, id: str) -> TransactionalRecord:
    record = call.broker.engine.transactional_ids.find(id)
    require_owner(call, record.owner, RefusalCode.TRANSACTIONAL_ID_NOT_FOUND)
    return record


def _filled(call: KafkaCall, state: KafkaMessage, record: TransactionalRecord) -> KafkaMessage:
    state.transaction_state = record.phase
    state.transaction_timeout_ms = record.timeout_ms
    state.transaction_start_time_ms = record.began_ms or _NEVER
    state.producer_id, state.producer_epoch = record.producer
    for text, partitions in record.partitions.items():
        name = TopicName.parse(text)
        if name.namespace == call.broker.options.namespace and call.may(
            Access.OBSERVE, topic_resource(name)
        ):
            state.topics.append(_State.TopicData(topic=name.topic, partitions=list(partitions)))
    return state
