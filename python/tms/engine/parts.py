"""What an engine is made of, below its door: everything over one store, put together."""

from concurrent.futures import Executor, ThreadPoolExecutor

from tms.clock import Clock
from tms.cluster.ownership import Ownership
from tms.compaction.compaction import Compaction
from tms.delayed.delayed import DelayedMessages
from tms.engine.config import EngineConfig
from tms.log.cache import BlockCache
from tms.log.inflight import InFlight
from tms.model import keys
from tms.model.snapshot import Fate
from tms.model.topic import TopicName
from tms.store.base import Store
from tms.tables.tables import Tables
from tms.topics.fetching import Fetcher
from tms.topics.internal_topic import InternalTopic
from tms.topics.partitions import Partitions
from tms.topics.publishing import Publisher
from tms.topics.registry import Registry
from tms.topics.retention import RetentionClock
from tms.topics.sweep import open_metadata, sweep
from tms.topics.upkeep import Maintenance
from tms.transactions.transactions import Transactions


class EngineParts:
    """All parts. Not to be used by itself: see `Engine`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: EngineConfig,
        threads: Executor | None,
        owner: Ownership | None,
    ) -> None:
        self._config = config
        self._store = store
        self._owner = owner
        self._clock = clock
        self._metadata = open_metadata(store)
        sweep(store, self._metadata)
        self._registry = Registry(store, self._metadata, clock, self._config.topics)
        self._cache = BlockCache(self._config.cache_bytes)
        self._in_flight = InFlight(self._config.in_flight_bytes)
        self._threads = threads or ThreadPoolExecutor(self._config.threads, "tms-append")
        self._partitions = self._make_partitions()
        judged = self._metadata.get(keys.RETENTION_CLOCK)
        self._retention = RetentionClock(clock, None if judged is None else int(judged))
        self.maintenance = self._make_maintenance()
        self._publisher = self._make_publisher()
        self.transactions = self._make_transactions()
        self.delayed = self._make_delayed()
        self.tables = Tables(store, self.transactions.manager)
        self.compaction = self._make_compaction()
        self._fetcher = Fetcher(
            self._registry,
            self._partitions,
            self._retention,
            clock,
            self.transactions.manager.watch_end,
        )

    def _make_maintenance(self) -> Maintenance:
        return Maintenance(
            self._metadata,
            self._clock,
            self._registry,
            self._partitions,
            self._retention,
            self._config.cleaner_interval_s,
            self._tidy,
            lambda uid: self.delayed.forget(uid),
        )

    def _make_delayed(self) -> DelayedMessages:
        return DelayedMessages(
            self._store,
            self._registry,
            self._publisher,
            self.transactions,
            self._clock,
            self._threads.submit,
        )

    def _make_transactions(self) -> Transactions:
        return Transactions(
            self._registry,
            self._partitions,
            self._publisher,
            self._clock,
            self._threads.submit,
            self._config.transaction_lifetime_ms,
            self._metadata if self._store.shared else None,
            self._store.cleaned_ms,
        )

    def _make_compaction(self) -> Compaction:
        return Compaction(
            self._metadata,
            self._clock,
            self._registry,
            self._partitions,
            self.transactions.manager.fate,
            self._retention.now_ms,
            self._config.compaction,
            self.delayed.erase,
        )

    def _journal(self, name: TopicName) -> InternalTopic:
        return InternalTopic(name, self._registry, self._partitions, self._publisher)

    def _make_partitions(self) -> Partitions:
        return Partitions(
            self._store,
            self._metadata,
            self._clock,
            self._registry,
            self._cache,
            self._config.log,
            self._in_flight,
            self._threads,
            _undisputed if self._owner is None else self._owner.confirm,
        )

    def _make_publisher(self) -> Publisher:
        def judge(pointer: int, issued: bool) -> Fate:
            return self.transactions.manager.fate(pointer, issued)

        return Publisher(self._registry, self._partitions, self._config.block_bytes, judge)

    def _tidy(self) -> None:
        """What maintenance does each time."""
        self.transactions.tidy()


def _undisputed() -> None:
    """Nobody else can own the store, or whoever made the engine sees to it."""
