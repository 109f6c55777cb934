"""DeleteTopics: topics by name or, in newer versions, by id."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import NO_ID, KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.engine.engine import Engine
from tms.errors import TMSError, TopicNotFound
from tms.model.access import Access
from tms.model.topic import TopicName

VERSIONS = (1, 6)
DeleteTopicsResponse = codec.class_of("DeleteTopicsResponse")
_BY_ID = 6  # the version from which on topics may be named by id


async def answer(call: KafkaCall) -> KafkaMessage:
    """Delete each topic; each has an error of its own."""
    message = call.message
    if call.version < _BY_ID:
        wanted = [(name, NO_ID) for name in message.topic_names]
    else:
        wanted = [(one.name, one.topic_id) for one in message.topics]
    return DeleteTopicsResponse(responses=[await _delete(call, *one) for one in wanted])


def _delete_with_positions(engine: Engine, topic: TopicName) -> None:
    """Delete a topic, and the positions of its groups: offsets mean nothing in a later topic of the
    name. Raises `TopicNotFound`."""
    engine.delete_topic(topic)
    engine.shards.forget_topic(topic)


async def _delete(call: KafkaCall, name: str | None, id: bytes) -> KafkaMessage:
    broker = call.broker
    result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=id)
    try:
        topic = await call.named(name or "", id if name is None else NO_ID, Access.MANAGE)
        await broker.in_thread(_delete_with_positions, broker.engine, topic)
        result.name = topic.topic
    except TMSError as error:
        result.error_code = code_of(error)
        result.error_message = error.message
        if name is None and isinstance(error, TopicNotFound):
            result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
    return result
