"""DescribeLogDirs: the sizes of partitions, in the only log directory."""

from collections.abc import Iterable, Mapping

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.errors import Invalid, NotFound
from tms.model.topic import TopicName

VERSIONS = (1, 4)
DescribeLogDirsResponse = codec.class_of("DescribeLogDirsResponse")
_Directory = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Directory.DescribeLogDirsTopic
_NAME = "/tms"  # of the directory; clients do not learn where the store is
PAGE = 1_000  # topics that are listed at a time


async def answer(call: KafkaCall) -> KafkaMessage:
    """The wanted partitions, or all; those that are not there are left out."""
    wanted = None
    if call.message.topics is not None:
        wanted = {one.topic: set(one.partitions) for one in call.message.topics}
    directory = await call.broker.in_thread(_described, call.broker, wanted)
    return DescribeLogDirsResponse(results=[directory])


def _described(broker: Broker, wanted: Mapping[str, set[int]] | None) -> KafkaMessage:
    topics = []
    for name in _all(broker) if wanted is None else _named(broker, wanted):
        some = None if wanted is None else wanted[name.topic]
        partitions = _partitions(broker, name, some)
        if partitions:
            topics.append(_Topic(name=name.topic, partitions=partitions))
    directory = _Directory(log_dir=_NAME, topics=topics)
    volume = broker.engine.topics.store.volume()
    if volume is not None:
        directory.total_bytes, directory.usable_bytes = volume
    return directory


def _all(broker: Broker) -> Iterable[TopicName]:
    after: str | None = None
    while True:
        page = broker.engine.list_topics(broker.options.namespace, after, PAGE)
        yield from (info.name for info in page)
        if len(page) < PAGE:
            return
        after = page[-1].topic


def _named(broker: Broker, wanted: Iterable[str]) -> Iterable[TopicName]:
    for text in wanted:
        try:
            yield broker.topic(text)
        except Invalid:  # no topic has such a name
            continue


def _partitions(broker: Broker, name: TopicName, wanted: set[int] | None) -> list[KafkaMessage]:
    """Some partitions of a topic, or all; none if it is gone."""
    try:
        found = broker.engine.describe_topic(name).partition_infos
    except NotFound:
        return []
    return [
        _Topic.DescribeLogDirsPartition(
            partition_index=info.partition, partition_size=info.stored_bytes
        )
        for info in found
        if wanted is None or info.partition in wanted
    ]
