"""The operations of an engine on topics and their messages: `TopicsApi`, and what a client in the
same process uses besides.

Invariants

* Every block that comes in is checked completely before anything of its request is stored.
* The namespace `system` is not written to here: such a request raises `Forbidden`.
* Topics are looked up and changed only after the owner of the store has been confirmed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from tms.errors import Closed
from tms.log.pending import PendingAppend
from tms.model.ids import MessageId
from tms.model.inspection import PartitionInspection, ProducerInfo
from tms.model.message import Appended, Holder, NewBlock, PartitionPosition
from tms.model.position import LATEST, Position
from tms.model.snapshot import Isolation, Snapshot
from tms.model.topic import Durability, PartitionInfo, TopicInfo, TopicName, TopicSettings
from tms.topics.compaction.compaction import Compaction
from tms.topics.inspection import inspect_partition, producers_of
from tms.topics.registry import topic_info
from tms.topics.topics import Topics
from tms.topics.upkeep import Maintenance


class TopicOperations:
    """Topics and their messages, until `_closed` is set. Thread-safe."""

    def __init__(self, topics: Topics, compaction: Compaction, maintenance: Maintenance) -> None:
        self.topics = topics
        self.compaction = compaction
        self.maintenance = maintenance
        self.fetch = topics.fetcher.fetch
        self.fetch_cached = topics.fetcher.fetch_cached
        self.offsets = topics.fetcher.offsets
        self._closed = False

    # -- topics --------------------------------------------------------------------------------

    def create_topic(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        """Create a topic; one that exists with the same settings is left as it is. Raises
        `TopicExists`, `Forbidden`."""
        return self.create_new_topic(name, settings)[0]

    def create_new_topic(
        self, name: TopicName, settings: TopicSettings, properties: Mapping[str, str] | None = None
    ) -> tuple[TopicInfo, bool]:
        """Create a topic with properties; returns it, and True if it is new."""
        self._require_owned()
        name.require_writable()
        record, new = self.topics.registry.create(name, settings, properties)
        return topic_info(name, record), new

    def properties(self, name: TopicName) -> Mapping[str, str]:
        """The properties of a topic. Raises `TopicNotFound`."""
        self._require_open()
        return self.topics.registry.find(name).properties

    def settings(self, name: TopicName) -> TopicSettings:
        """A topic's settings, from memory if they are known. Raises `TopicNotFound`."""
        self._require_open()
        return self.topics.registry.find(name).settings

    def growth(self, name: TopicName) -> tuple[int, tuple[int, ...]]:
        """The uid of a topic's generation, and the numbers of partitions that it has and had,
        newest first. Raises `TopicNotFound`."""
        self._require_open()
        record = self.topics.registry.find(name)
        return record.uid, (record.partitions, *record.outgrown)

    def describe_topic(self, name: TopicName) -> TopicInfo:
        """A topic with its partitions. Raises `TopicNotFound`."""
        self._require_owned()
        return self._described(name)

    def list_topics(
        self, namespace: str, after: str | None = None, limit: int = 1000
    ) -> list[TopicInfo]:
        """Up to `limit` topics of a namespace in the order of their names, beginning after the one
        named `after`."""
        self._require_owned()
        page = self.topics.registry.page(namespace, after, limit)
        return [topic_info(name, record) for name, record in page]

    def update_topic(
        self,
        name: TopicName,
        changes: Mapping[str, object],
        properties: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Change settings (the fields of `TopicSettings`, or `retention`), and replace the
        properties if there are some. Raises `Invalid`, `FewerPartitions`."""
        self._require_owned()
        name.require_writable()
        return topic_info(name, self.topics.registry.update(name, changes, properties))

    def truncate_topic(
        self, name: TopicName, before: Position = LATEST, partition: int | None = None
    ) -> TopicInfo:
        """Make all messages before a position unreadable for good, in every partition or in one;
        before `latest`, or an offset beyond the end, every message. After a failure some partitions
        may be truncated; repeat it. Returns the topic with the partitions in question. Raises
        `TopicNotFound`, `PartitionNotFound`."""
        self._require_owned()
        name.require_writable()
        for port, some in self.topics.ports(name, partition):
            port.truncate(name, some, before)
        return self._described(name, partition)

    def erase(
        self,
        name: TopicName,
        key: bytes | None = None,
        id: MessageId | None = None,
        partition: int | None = None,
        timeout_s: float = 30.0,
    ) -> int:
        """Take the messages of a key, also those that are not due yet, or the message with an id,
        out of topic and store for good; returns how many there were. After a failure, repeat it.
        `timeout_s` has no effect here: only a move of delayed messages that does not end can end
        the call early. Raises `Invalid`, `TopicNotFound`, `PartitionNotFound`."""
        self._require_owned()
        return self.compaction.erase(name, key, id, partition)

    def delete_topic(self, name: TopicName) -> None:
        """Delete a topic and free its space. No later topic of its name shows its messages."""
        self._require_owned()
        name.require_writable()
        self.maintenance.finish_deletion(self.topics.registry.delete(name).uid)

    def new_producer(self) -> int:
        """The number of a new producer whose sequence counts messages, for `count_messages`;
        no other producer of the store has it, nor ever will. A call in a thousand writes to
        the store. Raises `StorageUnavailable`."""
        self._require_open()
        return self.topics.producer_numbers.next()

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        inline: Durability | None = None,
    ) -> PendingAppend:
        """Check blocks, which are filled in where they stand, and hand them to their partitions.
        The calling thread writes to idle partitions if that takes at most the durability `inline`;
        None: what the store gives at once. `durability` None is the topic's own."""
        return self.topics.publisher.submit(
            name, blocks, durability, inline or self.topics.store.immediate
        )

    def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        timeout_s: float = 30.0,
    ) -> list[Appended]:
        """Store blocks; returns their places, in the order of the blocks. Raises the error of the
        first block that was not stored."""
        return self.topics.publisher.submit(name, blocks, durability, Durability.SYNCED).result(
            timeout_s
        )

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        held: Mapping[int, Holder] | None = None,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> Callable[[], None]:
        """Call `callback`, from any thread and at least once, when messages may have come after
        these positions (`Fetched.next`), or when a transaction that holds a partition back has
        ended (`Fetched.held`). Returns a function that ends the watch."""
        return self.topics.fetcher.watch(name, positions, callback, held, isolation)

    def inspect(self, name: TopicName, partition: int = 0, limit: int = 20) -> PartitionInspection:
        """The state of a partition in the store, with its newest `limit` blocks."""
        self._require_owned()
        topic = self.topics.registry.find(name)
        log = self.topics.partitions.get(name, topic, partition)
        log.reader.load()
        floor = self.topics.retention.floor(topic.retention_ms)
        return inspect_partition(log.state.chain, floor, limit)

    def producers(
        self, name: TopicName, partition: int = 0, limit: int = 100
    ) -> list[ProducerInfo]:
        """Up to `limit` producers that a partition remembers, the one that published last first.
        Raises `TopicNotFound`, `PartitionNotFound`."""
        self._require_owned()
        log = self.topics.log(name, partition)
        log.reader.load()
        return producers_of(log, limit)

    def confirm_owner(self) -> None:
        """Raise `NotOwner` if another process owns the store now. Otherwise no answer to a call
        that came before this one is stale."""
        self.topics.partitions.confirm()

    def _described(self, name: TopicName, partition: int | None = None) -> TopicInfo:
        """A topic with its partitions, or with one of them."""
        info = topic_info(name, self.topics.registry.find(name))
        described: list[PartitionInfo] = []
        for port, some in self.topics.ports(name, partition):
            described += port.describe(name, some)
        described.sort(key=attrgetter("partition"))
        return replace(info, partition_infos=tuple(described))

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("The engine is closed; open it again.")

    def _require_owned(self) -> None:
        self._require_open()
        self.confirm_owner()
