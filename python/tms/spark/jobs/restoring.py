"""Archive → topic, in one transaction.

    rows ─▶ those of a source partition together, in order ─▶ the sink

Invariants

* Readers see all of it at once, or nothing.
* The messages of a source partition are published by one task, in their order. They keep their
  partition when the topic has as many as there were; else each goes where its key belongs, and
  those without a key stay together.
* Offsets, ids and publish times are new: they belong to the topic, not to the message.
"""

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from tms.client.http.transport import HttpTransport, transport_to
from tms.errors import Conflict, NotFound, TopicNotFound
from tms.model.position import Position
from tms.model.topic import TopicName, TopicSettings
from tms.spark.jobs.archive_layout import archived, begun
from tms.spark.jobs.place import Subject, errors_told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Restored(NamedTuple):
    """The number of published messages, and whether all kept their partitions."""

    messages: int
    partitions: int
    same_partitions: bool


def restore(
    spark: "SparkSession",
    directory: str,
    topic: str,
    url: str,
    *,
    token: str | None = None,
    source: str | None = None,
    append: bool = False,
) -> Restored:
    """Publish the archived messages of `source` (by default the same name) to `topic`, with keys,
    values, headers and event times, in one transaction. The topic is made when it is not there.

    Raises `NotFound` when the archive does not have them, `Conflict` when the topic has messages
    already, unless `append`.
    """
    subject = Subject.of(topic, url, token, None)
    name = TopicName.parse(topic)
    wanted = str(TopicName.parse(source or topic))
    there = begun(spark, directory.rstrip("/"))
    if wanted not in there:
        raise NotFound(
            f"The archive in {directory} has no topic {wanted}. It has: "
            f"{', '.join(sorted(there)) or 'nothing'}.",
            topic=wanted,
        )
    rows = archived(spark, directory).where(f"topic = '{wanted}'")
    with closing(transport_to(url, token=token or "", tls=subject.place.tls)) as transport:
        partitions = _prepared(transport, name, there[wanted], append)
    same = partitions == there[wanted]
    partition = (
        "partition" if same else f"IF(key IS NULL, partition % {partitions}, NULL) AS partition"
    )
    with errors_told():
        messages = rows.count()
        in_order = rows.repartition(there[wanted], "partition").sortWithinPartitions(
            "partition", "timestamp", "offset"
        )
        columns = ("key", "value", "headers", "event_time", partition)
        options = {key: value for key, value in subject.options.items() if key != "subscribe"}
        writer = in_order.selectExpr(*columns).write.format("tms").mode("append")
        writer.options(**options, topic=subject.topics[0]).save()
    return Restored(messages, partitions, same)


def _prepared(transport: HttpTransport, name: TopicName, partitions: int, append: bool) -> int:
    """The number of partitions of the target topic, which is made if it does not exist."""
    try:
        info = transport.describe_topic(name)
    except TopicNotFound:
        info = transport.create_topic(name, TopicSettings(partitions=partitions))
        return info.settings.partitions
    ends = transport.offsets(name, Position.latest())
    if not append and ends != transport.offsets(name, Position.earliest()):
        raise Conflict(
            f"The topic {name} has messages already, and those of the archive would follow them. "
            "Restore to another topic, or with --append (append=True).",
            topic=str(name),
        )
    return info.settings.partitions
