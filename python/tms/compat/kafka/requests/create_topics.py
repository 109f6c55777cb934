"""CreateTopics: topics with their settings; each has an error of its own."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.topics import described, settings_of
from tms.errors import Invalid, TMSError, TopicExists, TopicNotFound
from tms.model.access import Access
from tms.model.topic import PARTITIONS_MAX, TopicSettings

VERSIONS = (2, 7)
CreateTopicsResponse = codec.class_of("CreateTopicsResponse")
_Result = CreateTopicsResponse.CreatableTopicResult
_DYNAMIC_TOPIC = 1
_DEFAULT = 5


class _Refused(Exception):
    """A topic is not created, for a reason that Kafka has a code for."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def answer(call: KafkaCall) -> KafkaMessage:
    """Create each topic, or only check it if the request says so."""
    names = [one.name for one in call.message.topics]
    results = []
    for one in call.message.topics:
        try:
            if names.count(one.name) > 1:
                raise _Refused(
                    ErrorCode.INVALID_REQUEST, "The request names the topic more than once."
                )
            results.append(await _create(call, one))
        except _Refused as refused:
            results.append(_refusal(one.name, refused.code, str(refused)))
        except TMSError as error:
            results.append(_refusal(one.name, code_of(error), error.message))
    return CreateTopicsResponse(topics=results)


async def _create(call: KafkaCall, one: KafkaMessage) -> KafkaMessage:
    broker = call.broker
    name = call.topic(one.name, Access.MANAGE)
    partitions = _partitions(one, broker.options.partitions)
    try:
        settings = settings_of({two.name: two.value for two in one.configs}, partitions)
    except Invalid as error:
        raise _Refused(ErrorCode.INVALID_CONFIG, error.message) from None
    try:
        await broker.in_thread(lambda: broker.record(name))
    except TopicNotFound:
        pass
    else:
        raise TopicExists(f"The topic {name} exists.")
    if call.message.validate_only:
        return _result(one.name, codec.NO_ID, settings)
    # Two requests at once: `create_new_topic` says which of them created it.
    info, new = await broker.in_thread(lambda: broker.engine.create_new_topic(name, settings))
    if not new:
        raise TopicExists(f"The topic {name} exists.")
    return _result(one.name, broker.id_of(name), info.settings)


def _partitions(one: KafkaMessage, default: int) -> int:
    if one.assignments:
        numbers = sorted(two.partition_index for two in one.assignments)
        if numbers != list(range(len(numbers))):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Partitions are numbered from 0, without gaps.",
            )
        return len(numbers)
    if one.num_partitions == -1:
        return default
    if not 1 <= one.num_partitions <= PARTITIONS_MAX:
        raise _Refused(
            ErrorCode.INVALID_PARTITIONS, f"A topic has 1 to {PARTITIONS_MAX} partitions."
        )
    if one.replication_factor not in (-1, 1):
        raise _Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "There is one broker, so the replication factor is 1; the store replicates.",
        )
    return int(one.num_partitions)


def _result(name: str, id: bytes, settings: TopicSettings) -> KafkaMessage:
    configs = [
        _Result.CreatableTopicConfigs(
            name=setting.name,
            value=setting.value,
            config_source=_DEFAULT if setting.is_default else _DYNAMIC_TOPIC,
        )
        for setting in described(settings)
    ]
    return _Result(
        name=name,
        topic_id=id,
        error_message=None,
        num_partitions=settings.partitions,
        replication_factor=1,
        configs=configs,
    )


def _refusal(name: str, code: ErrorCode, message: str) -> KafkaMessage:
    return _Result(name=name, error_code=code, error_message=message, configs=None)
