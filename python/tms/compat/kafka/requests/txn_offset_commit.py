"""TxnOffsetCommit: positions of a group that a transaction moves if it commits."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.requests.offset_commit import change_of, may_commit, position_code
from tms.compat.kafka.transactions import attempted, producer_of, require_id
from tms.errors import TMSError
from tms.groups.classic_calls import Sender
from tms.model.transaction import PositionChange

VERSIONS = (0, 4)
TxnOffsetCommitResponse = codec.class_of("TxnOffsetCommitResponse")
_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = _Topic.TxnOffsetCommitResponsePartition
_NEVER = VERSIONS[1] + 1  # is a producer told that it is fenced: its epoch is invalid, as in Kafka


async def answer(call: KafkaCall) -> KafkaMessage:
    """Check the member, then every partition, then add the positions to the transaction."""
    message = call.message
    sender = Sender(message.member_id, message.generation_id, message.group_instance_id)
    code = await may_commit(call, sender, is_transactional=True)
    topics: list[KafkaMessage] = []
    changes: list[PositionChange] = []
    added: list[KafkaMessage] = []
    for topic in message.topics:
        results = []
        for part in topic.partitions:
            result = _Partition(partition_index=part.partition_index, error_code=code)
            results.append(result)
            try:
                if not code:
                    changes.append(change_of(call, topic.name, part, sender))
                    added.append(result)
            except TMSError as error:
                result.error_code = position_code(error)
        topics.append(_Topic(name=topic.name, partitions=results))
    if changes:
        id = message.transactional_id
        group = message.group_id

        def add() -> None:
            require_id(call, id)
            call.broker.producers.add_positions(id, producer_of(message), group, changes)

        code, _ = await attempted(call, add, _NEVER)
        for result in added:
            result.error_code = code
    return TxnOffsetCommitResponse(topics=topics)
