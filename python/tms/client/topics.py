"""The methods of a bus for topics, apart from their messages."""

from collections.abc import Iterator, Mapping

from tms.client.calls import BusCalls, pages
from tms.client.choices import (
    CleanupChoice,
    DurabilityChoice,
    IsolationChoice,
    PartitionerChoice,
)
from tms.client.cursor import Start, as_position
from tms.errors import Invalid
from tms.model.ids import MessageId
from tms.model.inspection import PartitionInspection, ProducerInfo
from tms.model.keys import Partitioner
from tms.model.quantity import Duration, timeout, whole
from tms.model.snapshot import Isolation, as_isolation
from tms.model.topic import (
    MESSAGE_BYTES_DEFAULT,
    PARTITIONS_MAX,
    RETENTION_DEFAULT,
    RETENTION_MS_DEFAULT,
    Cleanup,
    Durability,
    TopicInfo,
    TopicName,
    TopicSettings,
    parse_cleanup,
    parse_durability,
    parse_partitioner,
    parse_retention,
)

TOPICS_PER_PAGE = 1_000
ERASE_S = 600.0
INSPECTED_MAX = 10_000
PRODUCERS_LISTED_MAX = 1_000
TOMBSTONE_RETENTION = "24h"


class TopicCalls(BusCalls):
    """The part of a bus that creates, describes, changes and deletes topics. Thread-safe."""

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        retention: Duration | None = RETENTION_DEFAULT,
        retention_bytes: int | None = None,
        durability: DurabilityChoice = Durability.SYNCED,
        message_bytes_max: int = MESSAGE_BYTES_DEFAULT,
        cleanup: CleanupChoice = Cleanup.DELETE,
        tombstone_retention: Duration | None = TOMBSTONE_RETENTION,
        partitioner: PartitionerChoice = Partitioner.CRC32C,
    ) -> TopicInfo:
        """Create a topic, `name` or `namespace:name`; a topic that exists with the same settings
        stays as it is.

        `retention` is text such as `"36h"`, seconds, a timedelta, or `"forever"`; `"default"` is
        the retention of the store: `tms.ttl` of the table in HBase, else 14 days. `retention_bytes`
        is per partition. `cleanup` is `delete`, `compact` (keep the newest message of each key,
        without any retention) or `compact,delete`. Compaction keeps a tombstone for
        `tombstone_retention`. `partitioner` is the rule by which keys select their partitions:
        `crc32c`, or `murmur2` as Kafka's clients have it; it cannot be changed later. Raises
        `TopicExists`, `Invalid`, `Forbidden`.
        """
        is_default = retention == RETENTION_DEFAULT
        settings = TopicSettings(
            partitions,
            RETENTION_MS_DEFAULT if is_default else parse_retention(retention),
            retention_bytes,
            parse_durability(durability),
            message_bytes_max,
            parse_cleanup(cleanup),
            parse_retention(tombstone_retention, "tombstone_retention"),
            is_default,
            parse_partitioner(partitioner),
        )
        return self._transport.create_topic(TopicName.parse(topic), settings)

    def describe_topic(self, topic: str) -> TopicInfo:
        """The settings of a topic, and the state of each partition. Raises `TopicNotFound`."""
        return self._transport.describe_topic(TopicName.parse(topic))

    def list_topics(self, namespace: str = "default") -> Iterator[TopicInfo]:
        """All topics of a namespace by name, without the state of their partitions; read in pages
        during the iteration."""
        port = self._transport.list_topics
        return pages(port, namespace, TOPICS_PER_PAGE, lambda info: info.topic)

    def update_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        retention: Duration | None = None,
        retention_bytes: int | str | None = None,
        durability: DurabilityChoice | None = None,
        message_bytes_max: int | None = None,
        cleanup: CleanupChoice | None = None,
        tombstone_retention: Duration | None = None,
    ) -> TopicInfo:
        """Change the given settings of a topic; None leaves a setting as it is. `"forever"` and
        `retention_bytes="unlimited"` lift a limit; `retention="default"` applies the retention of
        the store.

        Raises `TopicNotFound`, `FewerPartitions`, `Invalid`.
        """
        changes: dict[str, object] = {}
        if retention == RETENTION_DEFAULT:
            changes["retention_is_default"] = True
        elif retention is not None:
            changes["retention_ms"] = parse_retention(retention)
        if retention_bytes is not None:
            changes["retention_bytes"] = None if retention_bytes == "unlimited" else retention_bytes
        if durability is not None:
            changes["durability"] = parse_durability(durability)
        if partitions is not None:
            changes["partitions"] = partitions
        if message_bytes_max is not None:
            changes["message_bytes_max"] = message_bytes_max
        if cleanup is not None:
            changes["cleanup"] = parse_cleanup(cleanup)
        if tombstone_retention is not None:
            kept_ms = parse_retention(tombstone_retention, "tombstone_retention")
            changes["tombstone_retention_ms"] = kept_ms
        self._publishing.forget(topic)
        return self._transport.update_topic(TopicName.parse(topic), changes)

    def truncate_topic(
        self, topic: str, before: Start = "latest", partition: int | None = None
    ) -> TopicInfo:
        """Make the messages before a position unreadable, in all partitions or in one; before an
        offset beyond the end, all messages that are there. After a failure, repeat it. Returns the
        topic with the partitions in question. Raises `TopicNotFound`, `PartitionNotFound`,
        `Invalid`."""
        at = as_position(before)
        if partition is not None:
            whole("partition", partition, 0, PARTITIONS_MAX - 1)
        return self._transport.truncate_topic(TopicName.parse(topic), at, partition)

    def erase(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        id: MessageId | None = None,
        partition: int | None = None,
        timeout_s: Duration = ERASE_S,
    ) -> int:
        """Remove the messages with a key, or the one with an id, from a topic for good, and their
        bytes from the store; returns the number of erased messages.

        With a key, delayed messages that are waiting are cancelled and erased, too. With an id, the
        partition must be given unless the topic has only one, and delayed messages are not
        concerned. Messages that are published later, or that a transaction commits later, are not
        erased. The call reads the topic; repeat it after `TimedOut` or another failure. Raises
        `TopicNotFound`, `PartitionNotFound`, `Invalid`.
        """
        name = TopicName.parse(topic)
        if key is not None and type(key) is not bytes:
            raise Invalid(f"A key is bytes, got {type(key).__name__}.", field="key")
        if id is not None and not isinstance(id, MessageId):
            raise Invalid(f"An id is a MessageId, got {id!r:.80}.", field="id")
        limit_s = timeout(timeout_s, ERASE_S)
        return self._transport.erase(name, key, id, partition, limit_s)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages. Raises `TopicNotFound`."""
        self._publishing.forget(topic)
        self._transport.delete_topic(TopicName.parse(topic))

    def offsets(
        self,
        topic: str,
        at: Start = "latest",
        isolation: IsolationChoice | bytes = Isolation.COMMITTED,
    ) -> Mapping[int, int]:
        """For each partition, the offset of the first message at or after a position, or the next
        offset if there is no such message.

        With committed isolation, the offset is never beyond the first undecided message: the
        messages before it never change until their retention ends. Raises `TopicNotFound`,
        `Invalid`.
        """
        return self._transport.offsets(
            TopicName.parse(topic), as_position(at), as_isolation(isolation)
        )

    def list_producers(
        self, topic: str, partition: int = 0, limit: int = 100
    ) -> list[ProducerInfo]:
        """The producers and idempotency keys that a partition remembers, at most 1,000, the one
        that published last first."""
        whole("partition", partition, 0, PARTITIONS_MAX - 1)
        whole("limit", limit, 1, PRODUCERS_LISTED_MAX)
        return self._transport.producers(TopicName.parse(topic), partition, limit)

    def inspect(self, topic: str, partition: int = 0, limit: int = 20) -> PartitionInspection:
        """The state of a partition in the store: its segments and newest blocks."""
        whole("partition", partition, 0, PARTITIONS_MAX - 1)
        whole("limit", limit, 0, INSPECTED_MAX)
        return self._transport.inspect(TopicName.parse(topic), partition, limit)
