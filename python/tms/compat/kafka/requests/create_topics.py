"""CreateTopics: topics with their settings; each has an error of its own."""

from functools import partial

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall, each_once
from tms.compat.kafka.topics import described, require_assignable, require_count, settings_of
from tms.errors import Invalid, TopicExists, TopicNotFound
from tms.model.access import Access

VERSIONS = (2, 7)
CreateTopicsResponse = codec.class_of("CreateTopicsResponse")
_Result = CreateTopicsResponse.CreatableTopicResult


async def answer(call: KafkaCall) -> KafkaMessage:
    """Create each topic, or only check it if the request says so."""
    made = partial(_Result, error_message=None, configs=None)
    results = await each_once(call.message.topics, ("name",), made, partial(_create, call))
    return CreateTopicsResponse(topics=results)


async def _create(call: KafkaCall, one: KafkaMessage, result: KafkaMessage) -> None:
    broker = call.broker
    name = call.topic(one.name, Access.MANAGE)
    partitions = _partitions(broker, one)
    settings = settings_of({two.name: two.value for two in one.configs}, partitions)
    try:
        await broker.in_thread(lambda: broker.record(name))
    except TopicNotFound:
        pass
    else:
        raise TopicExists(f"The topic {name} exists.")
    if not call.message.validate_only:
        # Two requests at once: `create_new_topic` says which of them created it.
        info, new = await broker.in_thread(lambda: broker.engine.create_new_topic(name, settings))
        if not new:
            raise TopicExists(f"The topic {name} exists.")
        settings = info.settings
        result.topic_id = broker.id_of(name)
    result.num_partitions = settings.partitions
    result.replication_factor = 1
    result.configs = [
        setting.shown(_Result.CreatableTopicConfigs)
        for setting in described(settings, broker.defaults)
    ]


def _partitions(broker: Broker, one: KafkaMessage) -> int:
    count = broker.options.partitions if one.num_partitions == -1 else int(one.num_partitions)
    if one.assignments:
        count = len(one.assignments)
        if {two.partition_index for two in one.assignments} != set(range(count)):
            raise Invalid("Partitions are numbered from 0, without gaps.", field="assignments")
        require_assignable(broker.brokers, (two.broker_ids for two in one.assignments))
    elif one.replication_factor != -1:
        brokers = len(broker.brokers.all())
        if not 1 <= one.replication_factor <= brokers:
            raise Invalid(
                f"The replication factor is 1 to {brokers}, the number of brokers, got "
                f"{one.replication_factor}. It has no effect: the store replicates.",
                field="replication_factor",
            )
    return require_count(count)
