"""The whole engine in one object: topics and their partition logs over one store, and everything
over them. It puts them together, and is the way in for everybody above.

It is synchronous and thread-safe; nothing above it knows stores, segments or caches. Writing to
the namespace `system` is refused here.

Invariants

* Every block that comes in is checked completely before anything of its request is stored.
* What waits to be written is bounded per partition and in total.
* In a store that others can reach it serves only while it owns it (`cluster.ownership`): once it
  does not, everything in it stops, and every call raises `NotOwner`.
* In a cluster it opens what it should own, and closes what it should not (`settle_roles`):
  partitions, shards, and transactions. What others keep raises `NotOwner` here.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from random import Random
from typing import Any, TypedDict

from tms import forks
from tms.access.records import AccessRecords
from tms.backup.images import Images
from tms.clock import Clock
from tms.cluster.cluster import Cluster
from tms.cluster.ownership import OwnerLimits, Ownership
from tms.compaction.compaction import Compaction, CompactionLimits
from tms.errors import Closed, Invalid, TMSError, Unavailable
from tms.events import EventLog
from tms.glance import Glance
from tms.log.partition import LogLimits
from tms.log.pending import PendingAppend
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.inspection import PartitionInspection
from tms.model.message import Appended, Fetched, Holder, NewBlock, PartitionPosition, Readable
from tms.model.position import LATEST, Position
from tms.model.snapshot import Isolation, Snapshot
from tms.model.stats import EngineStats
from tms.model.topic import Durability, PartitionInfo, TopicInfo, TopicName, TopicSettings
from tms.options import named_fields
from tms.shards import Commits, ShardStates
from tms.store.base import Store
from tms.tables.tables import Tables
from tms.topics.inspection import inspect_partition
from tms.topics.partitions import TopicLimits
from tms.topics.registry import topic_info
from tms.topics.sharding import SHARD_JOURNALS, TRANSACTIONS
from tms.topics.topics import Topics
from tms.topics.upkeep import CLOSE_TIMEOUT_S, Maintenance
from tms.transactions.transactions import Transactions

__all__ = ["CompactionLimits", "Engine", "EngineConfig", "EngineOptions", "EngineStats"]

_log = EventLog(__name__)
CLOSING_EDITS = 2_000  # the journal of transactions stays as long as that
NUMBER_MAX = (2**31 - 1) * 1_000  # of a configuration: the longest time in ms that CDAP takes
ROLES = ("transactions", "tables")
_LIMITS = {"log": LogLimits, "compaction": CompactionLimits, "owner": OwnerLimits}


class EngineOptions(TypedDict, total=False):
    """Fields of `EngineConfig`, as `tms.open` takes them."""

    cache_bytes: int
    in_flight_bytes: int
    block_bytes: int
    topics: int
    threads: int
    cleaner_interval_s: float
    transaction_lifetime_ms: int
    log: LogLimits
    compaction: CompactionLimits
    owner: OwnerLimits


@named_fields
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Bounds of an engine. Bytes and seconds. Raises `Invalid`."""

    cache_bytes: int = 64 << 20
    in_flight_bytes: int = 128 << 20
    block_bytes: int = 32 << 20  # of one block once decompressed
    topics: int = 100_000
    threads: int = 8
    cleaner_interval_s: float = 30.0
    transaction_lifetime_ms: int = 25 * 3_600_000  # of one whose manager is elsewhere
    log: LogLimits = field(default_factory=LogLimits)
    compaction: CompactionLimits = field(default_factory=CompactionLimits)
    owner: OwnerLimits = field(default_factory=OwnerLimits)  # of a store that others can reach

    def __post_init__(self) -> None:
        for field_ in fields(self):
            value = getattr(self, field_.name)
            kind = _LIMITS.get(field_.name)
            if kind is not None:
                fits, wanted = isinstance(value, kind), f"{kind.__module__}.{kind.__name__}"
            else:
                fits = type(value) in (int, float) and 0 <= value <= NUMBER_MAX
                wanted = f"a number from 0 to {NUMBER_MAX}"
            if not fits:
                raise Invalid(f"{field_.name} is {wanted}, got {value!r:.80}.", field=field_.name)

    def of_topics(self) -> TopicLimits:
        """The bounds of all topics together."""
        return TopicLimits(
            self.topics, self.cache_bytes, self.in_flight_bytes, self.block_bytes, self.log
        )


class Engine:
    """An ordered, durable message log over a store. Close it to release the store. `threads` run
    what need not keep a caller waiting, `random` is for what is spread; the engine's own unless
    given. `owner` is the ownership of a shared store (`cluster.ownership.own`), or a cluster of
    those who share it; without one whoever makes the engine sees to it that no other serves the
    same store."""

    transactions: Transactions  # this and the next only while this process keeps them
    tables: Tables

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
        self._store, self._clock, self._owner = store, clock, owner
        self.cluster = owner if isinstance(owner, Cluster) else None  # as one of its instances
        self._random, self._lifetime_ms = random or Random(), config.transaction_lifetime_ms
        self._threads = threads or ThreadPoolExecutor(config.threads, "tms-append")
        self.topics = topics = Topics(store, clock, config.of_topics(), self._threads, owner)
        self._publisher, self._fetcher = topics.publisher, topics.fetcher
        self.access = AccessRecords(topics.metadata, clock, self.cluster)
        self.backups, self._losses = Images(store, clock), 0  # times that it coordinated no more
        self._kept: Transactions | None = None
        self._unopened: dict[str, str] = {}  # what should be kept and is not, and why
        commits = Commits(lambda: self._kept, self.cluster)
        self.shards = ShardStates(topics, commits, self._random, self.cluster)
        self.queues, self.groups, self.delayed = self.shards.doors()
        self.glance = Glance(topics, self.groups, self.queues, self)
        if self.cluster is None:
            self._coordinate()
            for number in range(topics.shards.count):
                self.shards.open(number)
        else:
            topics.decide_by(self.cluster.decisions)
            topics.shards.missing = self.cluster.not_keeper
        self.compaction = Compaction(topics, config.compaction, self._erase_delayed)
        self.maintenance = Maintenance(
            topics, config.cleaner_interval_s, self._tidy, self.delayed.forget
        )
        self._lock, self._closed = threading.Lock(), False
        if owner is not None:
            owner.watch(self._step_down)
        if self.cluster is not None:
            self.cluster.play(self)
        forks.in_child(self._forked)

    def _tidy(self) -> None:
        """What maintenance does each time."""
        if self._kept is not None:
            self._kept.tidy()
        self.shards.tidy()
        self.backups.tidy()
        self._fetcher.look_again()

    def _erase_delayed(self, name: TopicName, key: bytes, partition: int | None) -> int:
        number = self.topics.shards.of_delayed(name)
        if self.cluster is None or number in self.shards.kept:
            return self.delayed.erase(name, key, partition)
        return self.cluster.keeper(number).erase_delayed(name, key, partition)

    # -- roles ---------------------------------------------------------------------------------

    def _coordinate(self) -> None:
        """Open what one process keeps for all."""
        share, reloaded = self.shards.shares, self.shards.invalidate
        kept = Transactions(self.topics, self._lifetime_ms, share, reloaded)
        self.transactions, self.tables = kept, Tables(self._store, kept.manager)
        self._kept = kept

    def _coordinate_no_more(self, cluster: Cluster) -> None:
        self._losses += 1
        kept, self._kept = self._kept, None
        self.topics.decide_by(cluster.decisions)
        if kept is not None:
            self.tables.close()
            for role in ROLES:
                delattr(self, role)
            kept.manager.wake_all()

    def __getattr__(self, name: str) -> Any:
        """Raises `NotOwner` for what is kept elsewhere."""
        if name in ROLES and self.cluster is not None:
            raise self.cluster.not_coordinator()
        raise AttributeError(name)

    @property
    def coordinates(self) -> bool:
        """Whether this process keeps transactions."""
        return self._kept is not None

    def resign(self, cluster: Cluster, reason: TMSError | None = None) -> None:
        """Close what others should keep; with a reason all partitions, too. Asks no store."""
        if self._kept is not None and not cluster.coordinates:
            self._coordinate_no_more(cluster)
        for number in sorted(self.shards.kept - cluster.shards()):
            self.shards.close(number)
        if reason is not None:
            cluster.released += self.topics.partitions.abandon(reason)

    def settle_roles(self, cluster: Cluster) -> None:
        """Open what this process should own, close what others should. One at a time calls it.
        Raises what keeps something from being opened; it may be called again."""
        self.access.refresh()
        wanted, failed = cluster.shards(), dict[str, TMSError]()
        self.resign(cluster)
        if cluster.coordinates and self._kept is None:
            before = self._losses
            try:
                self._coordinate()
                if self._losses != before:  # in another thread, which left what was not there yet
                    raise Unavailable("Transactions were lost while they were read. Try again.")
            except BaseException as why:
                self._coordinate_no_more(cluster)
                if not isinstance(why, TMSError):
                    raise
                failed["transactions"] = why
        for number in sorted(wanted - self.shards.kept):
            try:
                self.shards.open(number)
            except TMSError as why:
                failed[f"shard {number} (groups, queues, delayed messages)"] = why
        self._unopened = {role: why.message for role, why in failed.items()}
        lose = partial(self._lose, cluster)
        cluster.released += self.topics.release_foreign(cluster.not_owner, lose)
        for error in failed.values():
            raise error

    def recheck(self, cluster: Cluster) -> None:
        """Others have changed something: forget what was before. Raises `StorageUnavailable`."""
        self.access.refresh()
        for name, number in self.topics.recheck(cluster.not_owner):
            self._lose(cluster, name, number)
            cluster.settle_again()

    def _lose(self, cluster: Cluster, journal: TopicName, number: int) -> None:
        """Others keep what this journal is of: close that here."""
        if journal == TRANSACTIONS:
            self._coordinate_no_more(cluster)
        elif journal in SHARD_JOURNALS:
            self.shards.close(number)

    # -- topics --------------------------------------------------------------------------------

    def create_topic(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        """Create a topic; one that exists with the same settings is left as it is. Raises
        `TopicExists`, `Forbidden`."""
        return self.create_new_topic(name, settings)[0]

    def create_new_topic(
        self, name: TopicName, settings: TopicSettings, properties: Mapping[str, str] | None = None
    ) -> tuple[TopicInfo, bool]:
        """Like `create_topic`, with properties to be kept, and whether it is new."""
        self._require_owned()
        name.require_writable()
        record, new = self.topics.registry.create(name, settings, properties)
        return topic_info(name, record), new

    def properties(self, name: TopicName) -> Mapping[str, str]:
        """The properties that were said of a topic. Raises `TopicNotFound`."""
        self._require_open()
        return self.topics.registry.find(name).properties

    def settings(self, name: TopicName) -> TopicSettings:
        """A topic's settings, cheaply. Raises `TopicNotFound`."""
        self._require_open()
        return self.topics.registry.find(name).settings

    def growth(self, name: TopicName) -> tuple[int, tuple[int, ...]]:
        """Which life of a topic this is, and how many partitions it has and had, newest first.
        Raises `TopicNotFound`."""
        self._require_open()
        record = self.topics.registry.find(name)
        return record.uid, (record.partitions, *record.outgrown)

    def describe_topic(self, name: TopicName) -> TopicInfo:
        """A topic with its partitions. Raises `TopicNotFound`."""
        self._require_owned()
        record = self.topics.registry.find(name)
        described: list[PartitionInfo] = []
        for peer, some in self.topics.partitions.by_owner(name, record).items():
            port = self.topics.own if peer is None else peer.partitions
            described += port.describe(name, some)
        infos = tuple(sorted(described, key=lambda one: one.partition))
        info = topic_info(name, record)
        return TopicInfo(
            info.namespace, info.topic, info.generation, info.created_ms, info.settings, infos
        )

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

    def truncate_topic(self, name: TopicName, before: Position) -> TopicInfo:
        """Make all messages before a position unreadable for good, in every partition; `latest`:
        all there are."""
        self._require_owned()
        name.require_writable()
        record = self.topics.registry.find(name)
        for peer, some in self.topics.partitions.by_owner(name, record).items():
            port = self.topics.own if peer is None else peer.partitions
            port.truncate(name, some, before)
        return self.describe_topic(name)

    def erase(
        self,
        name: TopicName,
        key: bytes | None = None,
        id: MessageId | None = None,
        partition: int | None = None,
        timeout_s: float = 30.0,
    ) -> int:
        """Take the messages of a key, also those that are not due yet, or the one with an id, out
        of topic and store for good; how many there were. After a failure, repeat it; here nothing
        ends it before it is done, but for a move of delayed messages that does not end. Raises
        `Invalid`, `TopicNotFound`, `PartitionNotFound`."""
        self._require_owned()
        return self.compaction.erase(name, key, id, partition)

    def delete_topic(self, name: TopicName) -> None:
        """Delete a topic and free its space; no later topic of its name shows anything of it."""
        self._require_owned()
        name.require_writable()
        self.maintenance.finish_deletion(self.topics.registry.delete(name).uid)

    # -- messages ---------------------------------------------------------------------------------

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        inline: Durability | None = None,
    ) -> PendingAppend:
        """Check blocks, which are filled in where they stand, and hand them to their partitions.
        Those that are idle the calling thread writes to, what needs at most `inline`, or no sync.
        `durability` None is the topic's own."""
        return self._publisher.submit(name, blocks, durability, inline or self.immediate)

    def count_stored(self, name: TopicName, blocks: Sequence[NewBlock]) -> int:
        """How many of these blocks were stored before, as far as their producers are remembered.
        Waits for partitions that have to be read. Raises `PartitionNotFound`."""
        return self._publisher.count_stored(name, blocks)

    @property
    def immediate(self) -> Durability:
        """The strongest durability that the store gives at once."""
        return self._store.immediate

    def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        timeout_s: float = 30.0,
    ) -> list[Appended]:
        """Store blocks; where they went, in their order. Raises what kept one from being stored."""
        return self._publisher.submit(name, blocks, durability, Durability.SYNCED).result(timeout_s)

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0.0,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Fetched:
        """Blocks from these positions on, about `bytes_max` bytes of them but at least one if there
        is one; waits up to `wait_s` for the first. `isolation` says what is shown of transactions.
        With a filter only what matches, and what was looked at is bounded; `Fetched.reached` tells
        the end. Raises `TopicNotFound`, `PartitionNotFound`, `OffsetOutOfRange`."""
        return self._fetcher.fetch(name, positions, bytes_max, wait_s, isolation, where)

    def fetch_cached(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> Fetched | None:
        """`fetch` without waiting and without touching the store; None where that cannot be."""
        return self._fetcher.fetch_cached(name, positions, bytes_max, isolation)

    def offsets(
        self,
        name: TopicName,
        at: Position = LATEST,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> dict[int, int]:
        """By partition, the offset of the first message at or after a position, or of the next one
        where there is none. Of committed messages, never beyond the first that is not decided:
        what lies before will always be read as it is now, until its retention ends. Raises
        `TopicNotFound`, `Invalid` for a snapshot."""
        return self._fetcher.offsets(name, at, isolation)

    def end(self, name: TopicName, partition: int) -> tuple[int, MessageId | None]:
        """The offset behind the last message of a partition, committed or not, and its id. Reads
        nothing but the partition's end. Raises `DataCorrupt`."""
        return self._fetcher.end(name, partition)

    def kept(self, name: TopicName, partitions: Iterable[int]) -> dict[int, Readable]:
        """What may still be shown of messages that were fetched before, by partition; cheaply.
        Raises `TopicNotFound`."""
        return self._fetcher.kept(name, partitions)

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        held: Mapping[int, Holder] | None = None,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> Callable[[], None]:
        """Call `callback`, from any thread and at least once, when something may be there after
        these positions (`Fetched.next`), or when a transaction that holds one back has ended
        (`Fetched.held`). Returns a function that ends the watch."""
        return self._fetcher.watch(name, positions, callback, held, isolation)

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

    def inspect(self, name: TopicName, partition: int = 0, limit: int = 20) -> PartitionInspection:
        """How a partition stands in the store, with its newest `limit` blocks."""
        self._require_owned()
        topic = self.topics.registry.find(name)
        log = self.topics.partitions.get(name, topic, partition)
        log.reader.load()
        floor = self.topics.retention.floor(topic.retention_ms)
        return inspect_partition(log.state.chain, floor, limit)

    def readiness(self) -> list[str]:
        """Why this engine is not ready to store, in sentences; empty when it is."""
        reasons = ["The engine is closed."] if self._closed else []
        if self._lost is not None:
            reasons.append(self._lost.message)
        if self._owner is not None:
            reasons += self._owner.reasons()
        reasons += [f"Not open yet: {role}. {why}" for role, why in self._unopened.items()]
        unhealthy = self._store.healthy()
        return reasons if unhealthy is None else [*reasons, unhealthy]

    def warnings(self) -> list[str]:
        """What is wrong although it stores, in sentences."""
        parts = () if self._closed else (self._store, self.shards, self._fetcher)
        return [warning for part in parts for warning in part.warnings()]

    def stats(self) -> EngineStats:
        """Counters and sizes, for metrics."""
        logs = self.topics.partitions.opened()
        counters = [log.state.counters for log in logs]
        now_ms = self._clock.now_ms()
        kept = {} if self._kept is None else self._kept.stats(now_ms).named()
        return EngineStats(
            messages=sum(c.messages for c in counters),
            blocks=sum(c.blocks for c in counters),
            bytes=sum(c.bytes for c in counters),
            writes=sum(c.writes for c in counters),
            syncs=sum(c.syncs for c in counters),
            partitions_open=len(logs),
            cache_bytes=self.topics.partitions.cache.bytes,
            cache_hits=self._fetcher.hits,
            cache_misses=self._fetcher.misses,
            in_flight_bytes=self.topics.partitions.in_flight.bytes,
            partitions_held=len(self._fetcher.held),
            clock_ahead_ms=max(0, *(log.state.last[0] - now_ms for log in logs), 0),
            retention_held_back_ms=self.topics.retention.held_back_ms(),
            **kept,
            delayed_waiting=self.delayed.waiting,
            delayed_delivered=self.delayed.lateness.messages,
            **({} if self.cluster is None else self.cluster.stats(self)),
            **self.compaction.counters(),
        )

    def close(self) -> None:
        """Write what is queued, note how all stands, release the store; once."""
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
        if self._lost is None and self._kept is not None:
            self._kept.close()  # when nothing is committed any more
        if self._owner is not None:
            self._owner.release()
        self.backups.close()
        self._store.close()

    def _shorten_journals(self) -> None:
        """Let the next start be short; without that it only takes longer."""
        try:
            self.shards.shorten_journals()
            if self._kept is not None:
                self._kept.manager.shorten(CLOSING_EDITS)
        except TMSError as error:
            _log.warning("shortening_failed", error=error.message)

    def confirm_owner(self) -> None:
        """Raise `NotOwner` if another process owns the store now: else no answer is stale."""
        if self._owner is not None:
            self._owner.confirm()

    @property
    def is_disputed(self) -> bool:
        """Whether another process may take the store over."""
        return self._owner is not None

    @property
    def _lost(self) -> TMSError | None:
        return None if self._owner is None else self._owner.lost

    def _step_down(self, reason: TMSError) -> None:
        """Another process owns the store: nothing here works on by itself, and who waits is told
        so."""
        self.shards.stop()
        if self._kept is not None:
            self._kept.manager.wake_all()
        self._stop(reason)

    def _stop(self, reason: TMSError) -> None:
        self._publisher.close(reason)
        self._fetcher.close(reason)
        self.maintenance.stop()
        self.compaction.stop()
        self.topics.partitions.close(CLOSE_TIMEOUT_S, reason)

    def _forked(self) -> None:
        """Two engines over one store destroy it."""
        kept = () if self._kept is None else (self._kept, self.tables)
        doors = (*self.shards.doors(), self.glance)
        forks.leave(self, *kept, *doors, self.compaction, self.maintenance)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("The engine is closed; open it again.")

    def _require_owned(self) -> None:
        self._require_open()
        self.confirm_owner()
