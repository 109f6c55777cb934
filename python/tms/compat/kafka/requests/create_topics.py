"""CreateTopics: topics with their settings; each has an error of its own."""

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import code_of
from tms.compat.kafka.requests import KafkaCall, repeated
from tms.compat.kafka.topics import described, require_assignable, require_count, settings_of
from tms.errors import Invalid, TMSError, TopicExists, TopicNotFound
from tms.model.access import Access
from tms.model.topic import TopicSettings

VERSIONS = (2, 7)
CreateTopicsResponse = codec.class_of("CreateTopicsResponse")
_Result = CreateTopicsResponse.CreatableTopicResult


async def answer(call: KafkaCall) -> KafkaMessage:
    """Create each topic, or only check it if the request says so."""
    twice = repeated(one.name for one in call.message.topics)
    results = []
    for one in call.message.topics:
        try:
            if one.name in twice:
                raise Invalid("The request names the topic more than once.")
            results.append(await _create(call, one))
        except TMSError as error:
            code = code_of(error)
            results.append(
                _Result(name=one.name, error_code=code, error_message=error.message, configs=None)
            )
    return CreateTopicsResponse(topics=results)


async def _create(call: KafkaCall, one: KafkaMessage) -> KafkaMessage:
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
    if call.message.validate_only:
        return _result(broker, one.name, codec.NO_ID, settings)
    # Two requests at once: `create_new_topic` says which of them created it.
    info, new = await broker.in_thread(lambda: broker.engine.create_new_topic(name, settings))
    if not new:
        raise TopicExists(f"The topic {name} exists.")
    return _result(broker, one.name, broker.id_of(name), info.settings)


def _partitions(broker: Broker, one: KafkaMessage) -> int:
    count = broker.options.partitions if one.num_partitions == -1 else int(one.num_partitions)
    if one.assignments:
        count = len(one.assignments)
        if {two.partition_index for two in one.assignments} != set(range(count)):
            raise Invalid("Partitions are numbered from 0, without gaps.", field="assignments")
        require_assignable(broker.brokers, (two.broker_ids for two in one.assignments))
    elif one.replication_factor not in (-1, 1):
        raise Invalid(
            "A partition has one broker, so the replication factor is 1; the store replicates.",
            field="replication_factor",
        )
    return require_count(count)


def _result(broker: Broker, name: str, id: bytes, settings: TopicSettings) -> KafkaMessage:
    configs = [
        _Result.CreatableTopicConfigs(
            name=setting.name,
            value=setting.value,
            read_only=setting.read_only,
            config_source=setting.source,
        )
        for setting in described(settings, broker.defaults)
    ]
    return _Result(
        name=name,
        topic_id=id,
        error_message=None,
        num_partitions=settings.partitions,
        replication_factor=1,
        configs=configs,
    )
