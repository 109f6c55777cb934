"""DescribeConfigs: the settings of topics, and those few of the broker that tools ask for."""

from collections.abc import Iterable, Iterator

from tms.compat.kafka import codec
from tms.compat.kafka.broker import NODE, Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import code_of
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.topics import BOOLEAN, INT, LONG, STRING, Setting, described
from tms.errors import Invalid, TMSError
from tms.model.topic import MESSAGE_BYTES_DEFAULT, RETENTION_MS_DEFAULT

VERSIONS = (1, 4)
DescribeConfigsResponse = codec.class_of("DescribeConfigsResponse")
_Result = DescribeConfigsResponse.DescribeConfigsResult
_TOPIC = 2
_BROKER = 4
_DYNAMIC_TOPIC = 1
_DEFAULT = 5


async def answer(call: KafkaCall) -> KafkaMessage:
    """The settings of each resource; each has an error of its own."""
    results = []
    for one in call.message.resources:
        result = _Result(resource_type=one.resource_type, resource_name=one.resource_name)
        try:
            settings = await _settings(call.broker, one)
            result.configs = list(_configs(settings, one.configuration_keys))
        except TMSError as error:
            result.error_code = code_of(error)
            result.error_message = error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


async def _settings(broker: Broker, one: KafkaMessage) -> Iterable[Setting]:
    if one.resource_type == _TOPIC:
        name = broker.topic(one.resource_name)
        return described((await broker.in_thread(lambda: broker.record(name))).settings)
    if one.resource_type == _BROKER and one.resource_name in ("", str(NODE)):
        return _of_broker(broker)
    raise Invalid("Settings are those of topics, and of the broker 0.")


def _of_broker(broker: Broker) -> Iterator[Setting]:
    creates = "true" if broker.options.creates_topics else "false"
    yield Setting("auto.create.topics.enable", creates, BOOLEAN, False)
    yield Setting("broker.id", str(NODE), INT, True)
    yield Setting("default.replication.factor", "1", INT, True)
    yield Setting("delete.topic.enable", "true", BOOLEAN, True)
    yield Setting("inter.broker.protocol.version", "4.0", STRING, True)
    yield Setting("log.message.timestamp.type", "CreateTime", STRING, True)
    yield Setting("log.retention.ms", str(RETENTION_MS_DEFAULT), LONG, True)
    yield Setting("message.max.bytes", str(MESSAGE_BYTES_DEFAULT), INT, True)
    yield Setting("min.insync.replicas", "1", INT, True)
    yield Setting("num.partitions", str(broker.options.partitions), INT, False)


def _configs(settings: Iterable[Setting], wanted: list[str] | None) -> Iterator[KafkaMessage]:
    for setting in settings:
        if wanted is None or not wanted or setting.name in wanted:
            yield _Result.DescribeConfigsResourceResult(
                name=setting.name,
                value=setting.value,
                config_source=_DEFAULT if setting.is_default else _DYNAMIC_TOPIC,
                config_type=setting.type,
                documentation=None,
            )
