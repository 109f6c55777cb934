"""DescribeLogDirs: the sizes of the partitions that this broker leads, in its only log
directory."""

from collections.abc import Iterable, Mapping

from tms.access.decisions import topic_resource
from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import CLUSTER, KafkaCall
from tms.errors import Forbidden, Invalid, NotFound, NotOwner
from tms.model.access import Access
from tms.model.topic import TopicName

VERSIONS = (1, 4)
DescribeLogDirsResponse = codec.class_of("DescribeLogDirsResponse")
_Directory = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Directory.DescribeLogDirsTopic
_NAME = "/tms"  # of the directory; clients do not learn where the store is
PAGE = 1_000  # topics that are listed at a time


async def answer(call: KafkaCall) -> KafkaMessage:
    """The wanted partitions, or all; those that are not there, or that the caller may not see, are
    left out."""
    wanted = None
    if call.message.topics is not None:
        wanted = {one.topic: set(one.partitions) for one in call.message.topics}
    directory = await call.broker.in_thread(_described, call, wanted)
    return DescribeLogDirsResponse(results=[directory])


def _described(call: KafkaCall, wanted: Mapping[str, set[int]] | None) -> KafkaMessage:
    broker = call.broker
    topics = []
    for name in _all(call) if wanted is None else _named(call, wanted):
        some = None if wanted is None else wanted[name.topic]
        partitions = _partitions(broker, name, some)
        if partitions:
            topics.append(_Topic(name=name.topic, partitions=partitions))
    directory = _Directory(log_dir=_NAME, topics=topics)
    volume = broker.engine.topics.store.volume()
    if volume is not None and call.may(Access.OBSERVE, CLUSTER):
        directory.total_bytes, directory.usable_bytes = volume
    return directory


def _all(call: KafkaCall) -> Iterable[TopicName]:
    """The topics that the caller may see."""
    broker = call.broker
    after: str | None = None
    while True:
        page = broker.engine.list_topics(broker.options.namespace, after, PAGE)
        yield from (
            info.name for info in page if call.may(Access.OBSERVE, topic_resource(info.name))
        )
        if len(page) < PAGE:
            return
        after = page[-1].topic


def _named(call: KafkaCall, wanted: Iterable[str]) -> Iterable[TopicName]:
    for text in wanted:
        try:
            yield call.topic(text, Access.OBSERVE)
        except (Invalid, Forbidden):  # no topic has such a name, or no grant covers it
            continue


def _partitions(broker: Broker, name: TopicName, wanted: set[int] | None) -> list[KafkaMessage]:
    """Some partitions of a topic, or all; none if it is gone."""
    try:
        record = broker.record(name)
        led = [
            number
            for number in range(record.partitions)
            if broker.brokers.leads(name, record, number) and (wanted is None or number in wanted)
        ]
        found = broker.engine.topics.own.describe(name, led)
    except (NotFound, NotOwner):  # it has been deleted, or a partition has moved, meanwhile
        return []
    return [
        _Topic.DescribeLogDirsPartition(
            partition_index=info.partition, partition_size=info.stored_bytes
        )
        for info in found
    ]
