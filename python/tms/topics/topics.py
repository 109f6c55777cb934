"""The topics of one store: which there are, their partition logs, the way in and the way out. One
object, which all rooms above share.

Invariants

* What became of a transaction is asked of one `Decisions`, which is known before anything of a
  transaction is stored or read (`decide_by`).
"""

from collections.abc import Callable
from concurrent.futures import Executor

from tms.clock import Clock
from tms.log.partition_log import PartitionLog
from tms.log.visibility import FateOf
from tms.model import keys
from tms.model.topic import TopicName
from tms.store.base import Store
from tms.topics.fetching import Decisions, Fetcher
from tms.topics.internal_topic import InternalTopic
from tms.topics.partitions import Partitions, TopicLimits
from tms.topics.publishing import Publisher
from tms.topics.registry import Registry
from tms.topics.retention import RetentionClock
from tms.topics.sweep import open_metadata, sweep


class Topics:
    """The topics of one store. Thread-safe. `threads` run what need not keep a caller waiting;
    `require_owner` raises `NotOwner` if another process owns the store, None where none can."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: TopicLimits,
        threads: Executor,
        require_owner: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.run_in_background = threads.submit
        self.metadata = open_metadata(store)
        sweep(store, self.metadata)
        self.registry = Registry(store, self.metadata, clock, limits.topics)
        self.partitions = Partitions(self.registry, limits, threads, require_owner)
        seen = self.metadata.get(keys.RETENTION_CLOCK)
        self.retention = RetentionClock(clock, None if seen is None else int(seen))
        self.publisher = Publisher(self.registry, self.partitions, limits.block_bytes)
        self.fetcher = Fetcher(self.registry, self.partitions, self.retention, clock, require_owner)

    def decide_by(self, decisions: Decisions) -> None:
        """Take the outcomes of transactions from these decisions."""
        self.fate = decisions.fate
        self.publisher.fate_of = decisions.fate
        self.fetcher.decisions = decisions

    def log(self, name: TopicName, partition: int) -> PartitionLog:
        """The log of one partition. Raises `TopicNotFound`, `PartitionNotFound`."""
        return self.partitions.get(name, self.registry.find(name), partition)

    def journal(self, name: TopicName, fate_of: FateOf | None = None) -> InternalTopic:
        """An internal topic, which replays the transactions that `fate_of` shows; None: all."""
        return InternalTopic(name, self.registry, self.partitions, self.publisher, fate_of)
