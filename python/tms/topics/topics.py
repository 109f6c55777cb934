"""The topics of one store: registry, partition logs, publisher and fetcher. One object, which all
rooms above share.

Invariants

* The outcomes of transactions come from one `Decisions`, which is set before anything of a
  transaction is stored or read (`decide_by`).
"""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor

from tms.api.instances import PartitionsApi
from tms.errors import TMSError, TopicNotFound
from tms.log.partition_log import PartitionLog
from tms.model import keys
from tms.model.topic import SYSTEM_NAMESPACE, TopicName
from tms.runtime.clock import Clock
from tms.store.base import Store
from tms.topics.decisions import Decisions, DecisionSource
from tms.topics.fetching import Fetcher
from tms.topics.internal_topic import InternalTopic
from tms.topics.lag import Lags
from tms.topics.own_partitions import OwnPartitions
from tms.topics.owners import Here, OwnerRoute, Owners, Peer
from tms.topics.partitions import Partitions, TopicLimits
from tms.topics.producer_numbers import ProducerNumbers
from tms.topics.publishing import Publisher
from tms.topics.registry import Registry
from tms.topics.retention import RetentionClock
from tms.topics.sharding import Shards, count_shards
from tms.topics.sweep import open_metadata, sweep

RELEASE_TIMEOUT_S = 10.0


class Topics:
    """The topics of one store. Thread-safe. `threads` run work in the background; `owners` know the
    owners in a store that other processes can reach, None where none can."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: TopicLimits,
        threads: Executor,
        owners: Owners | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.run_in_background = threads.submit
        self.metadata = open_metadata(store)
        sweep(store, self.metadata)
        announce = None if owners is None else owners.announce
        self.registry = Registry(store, self.metadata, clock, limits.topics, announce)
        self.partitions = Partitions(self.registry, limits, threads, owners)
        seen = self.metadata.get(keys.RETENTION_CLOCK)
        self.retention = RetentionClock(clock, None if seen is None else int(seen))
        self._source = source = DecisionSource()
        self.publisher = Publisher(self.partitions, self.retention, limits.block_bytes, source)
        self.fetcher = Fetcher(self.partitions, self.retention, source)
        self.lags = Lags(self.fetcher, clock, self.owner_of)
        self.own = OwnPartitions(self)
        self.producer_numbers = ProducerNumbers(self.metadata, clock)
        self.shards = Shards(count_shards(self.metadata), owners)

    def decide_by(self, decisions: Decisions) -> None:
        """Take the outcomes of transactions from these decisions."""
        self.fate = decisions.fate
        self._source.switch(decisions)

    @property
    def decisions(self) -> Decisions:
        """The outcomes of transactions."""
        return self._source.current

    def release_foreign(
        self, reason: Callable[[], TMSError], lose: Callable[[TopicName, int], None]
    ) -> int:
        """Close the logs of partitions that others should own by now; returns their number. `lose`
        is called with each journal before: a state whose journal is closed would not notice a later
        owner."""
        released = 0
        logs = self.partitions.opened()
        names = self.registry.names_of({log.uid for log in logs})
        for log in logs:
            try:
                name = names[log.uid]
                record = self.registry.find(name)
            except (KeyError, TopicNotFound):  # deleted
                continue
            if record.uid == log.uid and not self.partitions.owns(name, record, log.partition):
                if name.namespace == SYSTEM_NAMESPACE:
                    lose(name, log.partition)
                self.partitions.release(log, RELEASE_TIMEOUT_S, reason())
                released += 1
        return released

    def recheck(
        self, reason: Callable[[], TMSError], lose: Callable[[TopicName, int], None]
    ) -> None:
        """Close the logs that others have taken over, and drop cached topics that others have
        changed. `lose` is called with each journal before, as in `release_foreign`. Raises
        `StorageUnavailable`."""
        topics = {record.uid: name for name, record in self.registry.refresh()}
        for log in self.partitions.opened():
            if log.uid not in topics:
                self.partitions.close_topic(log.uid, RELEASE_TIMEOUT_S)
            elif not log.is_owned(self.metadata):
                if topics[log.uid].namespace == SYSTEM_NAMESPACE:
                    lose(topics[log.uid], log.partition)
                self.partitions.release(log, RELEASE_TIMEOUT_S, reason())

    def owner_of(self, name: TopicName, partition: int) -> Peer | None:
        """The other instance that owns a partition; None: this process does. Raises
        `TopicNotFound`, `PartitionNotFound`, `Unavailable`."""
        return self.partitions.peer_of(name, self.registry.find(name), partition)

    def port(self, name: TopicName, partition: int) -> PartitionsApi:
        """The owner of a partition. Raises `TopicNotFound`, `PartitionNotFound`."""
        peer = self.owner_of(name, partition)
        return self.own if peer is None else peer.partitions

    def ports(
        self, name: TopicName, partition: int | None = None
    ) -> Iterator[tuple[PartitionsApi, list[int]]]:
        """The owners of a topic's partitions, or of one, each with its partitions. Raises
        `TopicNotFound`, `PartitionNotFound`, `Unavailable`."""
        wanted = None if partition is None else [partition]
        parts = self.partitions.split(name, self.registry.find(name), wanted)
        if parts.here:
            yield self.own, parts.here
        for peer, some in parts.elsewhere.items():
            yield peer.partitions, some

    def route(self, name: TopicName, partitions: Collection[int]) -> OwnerRoute[int]:
        """The route of an operation on partitions of a topic, as far as this process knows; `Here`
        if the topic has not all of them, as others may have added some. Raises `TopicNotFound`,
        `Unavailable`."""
        if not self.partitions.are_of_several:
            return Here()
        topic = self.registry.known.get(name) or self.registry.find(name)
        if any(not 0 <= partition < topic.partitions for partition in partitions):
            return Here()
        return self.partitions.split(name, topic, partitions).route

    def log(self, name: TopicName, partition: int) -> PartitionLog:
        """The log of one partition of this process. Raises `TopicNotFound`, `PartitionNotFound`,
        `NotOwner`."""
        return self.partitions.get(name, self.registry.find(name), partition)

    def journal(self, name: TopicName) -> InternalTopic:
        """An internal topic of one partition."""
        return InternalTopic(name, self.registry, self.partitions)

    def journal_of_shard(self, name: TopicName, number: int) -> InternalTopic:
        """The partition of a shard in an internal topic."""
        return InternalTopic(name, self.registry, self.partitions, number, self.shards.count)
