"""DescribeConfigs: the settings of topics, and those few of the broker that tools ask for."""

from collections.abc import Iterable, Iterator
from functools import partial

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import CLUSTER, RESOURCE, KafkaCall, each_once
from tms.compat.kafka.topics import (
    BOOLEAN,
    BROKER_RESOURCE,
    INT,
    LONG,
    STRING,
    TOPIC_RESOURCE,
    Setting,
    Source,
    described,
)
from tms.errors import Invalid
from tms.model.access import Access
from tms.model.topic import MESSAGE_BYTES_DEFAULT

VERSIONS = (1, 4)
DescribeConfigsResponse = codec.class_of("DescribeConfigsResponse")
_Result = DescribeConfigsResponse.DescribeConfigsResult


async def answer(call: KafkaCall) -> KafkaMessage:
    """The settings of each resource; each has an error of its own."""
    work = partial(_describe, call)
    results = await each_once(call.message.resources, RESOURCE, _Result, work)
    return DescribeConfigsResponse(results=results)


async def _describe(call: KafkaCall, one: KafkaMessage, result: KafkaMessage) -> None:
    settings = await _settings(call, one)
    wanted = one.configuration_keys or None
    result.configs = [
        _config(setting, call.message.include_synonyms)
        for setting in settings
        if wanted is None or setting.name in wanted
    ]


async def _settings(call: KafkaCall, one: KafkaMessage) -> Iterable[Setting]:
    broker = call.broker
    if one.resource_type == TOPIC_RESOURCE:
        name = call.topic(one.resource_name, Access.OBSERVE)
        record = await broker.in_thread(lambda: broker.record(name))
        return described(record.settings, broker.defaults)
    number = str(broker.brokers.own.id)
    if one.resource_type == BROKER_RESOURCE and one.resource_name in ("", number):
        call.require(Access.OBSERVE, CLUSTER)
        return _of_broker(broker, number)
    raise Invalid(f"Settings are those of topics, and here of the broker {number}.")


def _of_broker(broker: Broker, number: str) -> Iterator[Setting]:
    options = broker.options
    chosen = Source.STATIC_BROKER
    default = Source.DEFAULT
    creates = "true" if options.creates_topics else "false"
    for name, value, type, source in (
        ("auto.create.topics.enable", creates, BOOLEAN, chosen),
        ("broker.id", number, INT, default),
        ("default.replication.factor", "1", INT, default),
        ("delete.topic.enable", "true", BOOLEAN, default),
        ("inter.broker.protocol.version", "4.0", STRING, default),
        ("log.message.timestamp.type", "CreateTime", STRING, default),
        ("log.retention.ms", str(broker.defaults.retention_ms), LONG, default),
        ("message.max.bytes", str(MESSAGE_BYTES_DEFAULT), INT, default),
        ("min.insync.replicas", "1", INT, default),
        ("num.partitions", str(options.partitions), INT, chosen),
    ):
        yield Setting.of_broker(name, value, type, source)


def _config(setting: Setting, with_synonyms: bool) -> KafkaMessage:
    made = _Result.DescribeConfigsResourceResult
    return setting.shown(
        made,
        synonyms=[
            made.DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in (setting.synonyms if with_synonyms else ())
        ],
        config_type=setting.type,
        documentation=None,
    )
