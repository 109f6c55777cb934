"""The whole engine in one object: topics and their partition logs over one store, and everything
over them. This file composes the parts; callers reach each through an attribute.

The engine is synchronous and thread-safe; nothing above it knows stores, segments or caches.

Invariants

* Writes that wait are bounded per partition and in total.
* In a store that others can reach it serves only while it owns the store (`cluster.ownership`).
  Once it does not, everything in it stops, and every call raises `NotOwner`.
* In a cluster it opens the partitions and roles that it should own, and closes the others
  (`held_roles`). Requests for those raise `NotOwner`.
"""

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random

from tms.access.records import AccessRecords
from tms.cluster.cluster import Cluster
from tms.cluster.ownership import Ownership
from tms.engine.config import EngineConfig
from tms.engine.glance import Glance
from tms.engine.held_roles import HeldRoles
from tms.engine.stats import engine_stats
from tms.engine.topic_operations import TopicOperations
from tms.errors import Closed, TMSError
from tms.model.stats import EngineStats
from tms.model.topic import Durability
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.store.backup.images import Images
from tms.store.base import Store
from tms.topics.compaction.compaction import Compaction
from tms.topics.topics import Topics
from tms.topics.upkeep import CLOSE_TIMEOUT_S, Maintenance
from tms.transactions.tables import Tables
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactions import Transactions

_log = EventLog(__name__)
CLOSING_EDITS = 2_000  # the journal of transactions stays as long as that


class Engine(TopicOperations):
    """An ordered, durable message log over a store. Close it to release the store. `threads` run
    work that need not keep a caller waiting, `random` spreads what should not come at once; the
    engine makes its own unless they are given. `owner` is the ownership of a shared store
    (`cluster.ownership.own`), or a cluster of the processes that share it. Without one the caller
    sees to it that no other process serves the store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: EngineConfig | None = None,
        threads: Executor | None = None,
        random: Random | None = None,
        owner: Ownership | Cluster | None = None,
    ) -> None:
        config = config or EngineConfig()
        self._store = store
        self._owner = owner
        self._threads = threads or ThreadPoolExecutor(config.threads, "tms-append")
        self._lock = threading.Lock()
        self.cluster = owner if isinstance(owner, Cluster) else None  # as one of its instances
        topics = Topics(store, clock, config.of_topics(), self._threads, owner)
        self.access = AccessRecords(topics.metadata, clock, self.cluster)
        self.backups = Images(store, clock)
        self.roles = HeldRoles(
            topics,
            self.access,
            config.transaction_lifetime_ms,
            random or Random(),
            self.cluster,
        )
        self._coordination = self.roles.coordination
        self.shards = self.roles.shards
        self.queues = self.shards.queues
        self.groups = self.shards.groups
        self.delayed = self.shards.delayed
        self.glance = Glance(topics, self.groups, self.queues, self.delayed, self)
        if self.cluster is None:
            self.roles.open_all()
        super().__init__(
            topics,
            Compaction(topics, config.compaction, self.shards.erase_delayed),
            Maintenance(topics, config.cleaner_interval_s, self._tidy, self.delayed.forget),
        )
        if owner is not None:
            owner.watch(self._step_down)
        if self.cluster is not None:
            self.cluster.play(self.roles)
        forks.in_child(self._forked)

    @property
    def transactions(self) -> Transactions:
        """Transactions, while this process coordinates them. Raises `NotOwner`."""
        role = self._coordination
        return (role.held or role.get()).transactions

    @property
    def tables(self) -> Tables:
        """Tables, while this process coordinates transactions. Raises `NotOwner`."""
        return self._coordination.get().tables

    @property
    def transactional_ids(self) -> TransactionalIds:
        """The transactional ids of Kafka's producers, while this process coordinates transactions.
        Raises `NotOwner`."""
        return self._coordination.get().transactional_ids

    @property
    def coordinates(self) -> bool:
        """True if this process coordinates transactions."""
        return self.roles.coordinates

    # -- operating -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin cleaning, recovering, compacting and delivering what is due in the background."""
        self.maintenance.start()
        self.compaction.start()
        self.shards.start()

    def confirm_clock(self) -> None:
        """Let retention and delayed messages believe the wall clock after a jump."""
        self.topics.retention.confirm()
        self.delayed.confirm_clock()

    def readiness(self) -> list[str]:
        """The reasons why this engine is not ready to store, in sentences; empty when it is."""
        reasons = ["The engine is closed."] if self._closed else []
        if self._lost is not None:
            reasons.append(self._lost.message)
        if self._owner is not None:
            reasons += self._owner.reasons()
        reasons += self.roles.failures()
        unhealthy = self._store.healthy()
        return reasons if unhealthy is None else [*reasons, unhealthy]

    def warnings(self) -> list[str]:
        """Faults that do not stop the engine from storing, in sentences."""
        parts = () if self._closed else (self._store, self.shards, self.topics.fetcher)
        return [warning for part in parts for warning in part.warnings()]

    def stats(self) -> EngineStats:
        """Counters and sizes, for metrics."""
        return engine_stats(self.topics, self.roles, self.compaction, self.cluster)

    @property
    def immediate(self) -> Durability:
        """The strongest durability that the store gives at once."""
        return self._store.immediate

    @property
    def is_disputed(self) -> bool:
        """True if another process may take the store over."""
        return self._owner is not None

    @property
    def _lost(self) -> TMSError | None:
        return None if self._owner is None else self._owner.lost

    def _tidy(self) -> None:
        """Do the engine's part of each round of maintenance."""
        coordination = self._coordination.held
        if coordination is not None:
            coordination.transactions.tidy()
            coordination.transactional_ids.tidy()
        self.shards.tidy()
        self.backups.tidy()
        self.topics.fetcher.look_again()

    # -- closing -------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is queued, shorten the journals, release the store; once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self.cluster is not None:
            self.cluster.play_no_more()
        self.shards.stop()
        if self._lost is None:
            self._shorten_journals()
        self._stop(Closed("The engine is closed; open it again."))
        self._threads.shutdown(wait=True)
        coordination = self._coordination.held
        if self._lost is None and coordination is not None:
            coordination.transactions.close()  # when nothing is committed any more
        if self._owner is not None:
            self._owner.release()
        self.backups.close()
        self._store.close()

    def _shorten_journals(self) -> None:
        """Let the next start be short; without that it only takes longer."""
        try:
            self.shards.shorten_journals()
            coordination = self._coordination.held
            if coordination is not None:
                coordination.transactional_ids.tidy()
                coordination.transactions.manager.shorten(CLOSING_EDITS)
        except TMSError as error:
            _log.warning("shortening_failed", error=error.message)

    def _step_down(self, reason: TMSError) -> None:
        """Another process owns the store: stop all background work, and wake every waiting caller
        with the reason."""
        self.shards.stop()
        coordination = self._coordination.held
        if coordination is not None:
            coordination.transactions.manager.wake_all()
        self._stop(reason)

    def _stop(self, reason: TMSError) -> None:
        self.topics.publisher.close(reason)
        self.topics.fetcher.close(reason)
        self.maintenance.stop()
        self.compaction.stop()
        self.topics.partitions.close(CLOSE_TIMEOUT_S, reason)

    def _forked(self) -> None:
        """Leave the engine to the parent: two engines over one store destroy it."""
        coordination = self._coordination.held or ()
        ports = (self.queues, self.groups, self.delayed, self.glance)
        forks.leave(self, *coordination, *ports, self.compaction, self.maintenance)
