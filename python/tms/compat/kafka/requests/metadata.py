"""Metadata: the brokers, and topics with their partitions; creates a topic that is asked for."""

from contextlib import suppress

from tms.access.decisions import topic_resource
from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import NO_ID, KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.topics import settings_of
from tms.errors import TMSError, TopicExists, TopicNotFound
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.topics.registry import TopicRecord

VERSIONS = (0, 13)
PAGE = 1_000  # topics that are listed at a time
MetadataResponse = codec.class_of("MetadataResponse")
_Topic = MetadataResponse.MetadataResponseTopic


async def answer(call: KafkaCall) -> KafkaMessage:
    """The topics that the request names, or all; those that are not there with an error each."""
    broker = call.broker
    message = call.message
    options = broker.options
    everything = message.topics is None or (call.version == 0 and not message.topics)
    if everything:
        topics = await broker.in_thread(lambda: _all(call))
    else:
        creates = options.creates_topics and message.allow_auto_topic_creation
        # A name that is repeated is answered once: else the answer could have any size.
        wanted = dict.fromkeys((one.name, one.topic_id) for one in message.topics)
        topics = [await _one(call, *one, creates) for one in wanted]
    made = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        brokers=[made(node_id=id, host=host, port=port) for id, host, port in broker.brokers.all()],
        cluster_id=broker.cluster_id,
        controller_id=broker.brokers.controller,
        topics=topics,
    )


def _all(call: KafkaCall) -> list[KafkaMessage]:
    """All topics that the caller may see."""
    broker = call.broker
    found: list[KafkaMessage] = []
    after: str | None = None
    while True:
        page = broker.engine.list_topics(broker.options.namespace, after, PAGE)
        for info in page:
            if call.may(Access.OBSERVE, topic_resource(info.name)):
                with suppress(TopicNotFound):  # it has been deleted since
                    found.append(_topic(broker, info.name, broker.record(info.name)))
        if len(page) < PAGE:
            return found
        after = page[-1].topic


async def _one(call: KafkaCall, name: str | None, id: bytes, creates: bool) -> KafkaMessage:
    broker = call.broker
    try:
        topic = await call.named(name or "", NO_ID if name is not None else id, Access.OBSERVE)
        try:
            return _topic(broker, topic, await broker.in_thread(lambda: broker.record(topic)))
        except TopicNotFound:
            if not creates:
                raise
        call.topic(topic.topic, Access.MANAGE)
        settings = settings_of({}, broker.options.partitions)
        with suppress(TopicExists):  # another client has created it meanwhile
            await broker.in_thread(broker.engine.create_topic, topic, settings)
        return _topic(broker, topic, broker.record(topic))
    except TMSError as error:
        code = code_of(error)
        if name is None and isinstance(error, TopicNotFound):
            code = ErrorCode.UNKNOWN_TOPIC_ID
        return _Topic(error_code=code, name=name, topic_id=id)


def _topic(broker: Broker, name: TopicName, record: TopicRecord) -> KafkaMessage:
    return _Topic(
        name=name.topic,
        topic_id=broker.topic_id(name, record.uid, record.generation),
        partitions=[_partition(broker, name, record, at) for at in range(record.partitions)],
    )


def _partition(broker: Broker, name: TopicName, record: TopicRecord, number: int) -> KafkaMessage:
    made = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
    leader = broker.brokers.leader(name, record, number)
    if leader is None:
        code = ErrorCode.LEADER_NOT_AVAILABLE
        return made(error_code=code, partition_index=number, leader_id=-1)
    nodes = [leader.id]
    return made(partition_index=number, leader_id=leader.id, replica_nodes=nodes, isr_nodes=nodes)
