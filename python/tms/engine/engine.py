"""The whole engine in one object: topics and their partition logs over one store. The door for
everybody above.

It is synchronous and thread-safe; nothing above it knows stores, segments or caches. Writing to
the namespace `system` is refused here.

Invariants

* Every block that comes in is checked completely before anything of its request is stored.
* What waits to be written is bounded per partition and in total.
* In a store that others can reach it serves only while it owns it (`tms.owner`): once it does not,
  everything in it stops, and every call raises `NotOwner`.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from random import Random

from tms import forks
from tms.clock import Clock
from tms.cluster.ownership import Ownership
from tms.engine.config import EngineConfig, EngineStats
from tms.engine.parts import EngineParts
from tms.errors import Closed, Invalid, TMSError
from tms.events import EventLog
from tms.groups.groups import LogGroups
from tms.log.partition_log import PartitionLog
from tms.log.pending import PendingAppend
from tms.log.visibility import Judge
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.inspection import PartitionInspection
from tms.model.message import Appended, Fetched, NewBlock, PartitionPosition, Readable
from tms.model.position import LATEST, Position
from tms.model.snapshot import Isolation, Snapshot
from tms.model.topic import Durability, PartitionInfo, TopicInfo, TopicName, TopicSettings
from tms.queues import Queues
from tms.queues.queues import QUEUES
from tms.store.base import Store
from tms.topics.inspection import inspect_partition
from tms.topics.registry import TopicRecord, topic_info
from tms.topics.upkeep import CLOSE_TIMEOUT_S

CLOSING_EDITS, CLOSING_POSITIONS = 2_000, 1_000  # journals stay as long as that
_log = EventLog(__name__)


class Engine(EngineParts):
    """An ordered, durable message log over a store. Close it to release the store. `threads` run
    what need not keep a caller waiting, `random` is for what is spread; the engine's own unless
    given. `owner` is the ownership of a shared store (`own`); without one whoever makes the engine
    sees to it that no other serves the same store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: EngineConfig | None = None,
        threads: Executor | None = None,
        random: Random | None = None,
        owner: Ownership | None = None,
    ) -> None:
        super().__init__(store, clock, config or EngineConfig(), threads, owner)
        self.groups = self._make_groups()
        self.queues = Queues(
            self,
            self._registry,
            self._journal(QUEUES),
            self.transactions,
            clock,
            random or Random(),
        )
        self._lock = threading.Lock()
        self._closed = False
        if not store.shared:  # what is stored there outlives its machines
            self.queues.rewind()
        if owner is not None:
            owner.watch(self._step_down)
        forks.in_child(self._forked)

    def _make_groups(self) -> LogGroups:
        return LogGroups(
            self._registry,
            self._partitions,
            self._publisher,
            self._clock,
            self.transactions,
            lambda name, at, cached: (self.fetch_cached if cached else self.fetch)(name, [at], 1),
        )

    def _tidy(self) -> None:
        super()._tidy()
        self.groups.tidy()
        self.queues.shorten_journal()

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
        record, new = self._registry.create(name, settings, properties)
        return topic_info(name, record), new

    def properties(self, name: TopicName) -> Mapping[str, str]:
        """The properties that were said of a topic. Raises `TopicNotFound`."""
        self._require_open()
        return self._registry.find(name).properties

    def settings(self, name: TopicName) -> TopicSettings:
        """A topic's settings, cheaply. Raises `TopicNotFound`."""
        self._require_open()
        return self._registry.find(name).settings

    def growth(self, name: TopicName) -> tuple[int, tuple[int, ...]]:
        """Which life of a topic this is, and how many partitions it has and had, newest first.
        Raises `TopicNotFound`."""
        self._require_open()
        record = self._registry.find(name)
        return record.uid, (record.partitions, *record.outgrown)

    def describe_topic(self, name: TopicName) -> TopicInfo:
        """A topic with its partitions. Raises `TopicNotFound`."""
        self._require_owned()
        record = self._registry.find(name)
        infos = tuple(
            self._describe(self._partitions.get(name, record, partition), record)
            for partition in range(record.partitions)
        )
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
        found = self._registry.page(namespace, after, limit)
        return [topic_info(name, record) for name, record in found]

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
        return topic_info(name, self._registry.update(name, changes, properties))

    def truncate_topic(self, name: TopicName, before: Position) -> TopicInfo:
        """Make all messages before a position unreadable for good, in every partition; `latest`:
        all there are."""
        self._require_owned()
        name.require_writable()
        record = self._registry.find(name)
        for partition in range(record.partitions):
            log = self._partitions.get(name, record, partition)
            log.reader.truncate(before, self._clock.now_ms())
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
        """Delete a topic and free its space; a later topic of this name never shows anything of
        it."""
        self._require_owned()
        name.require_writable()
        self.maintenance.finish_deletion(self._registry.delete(name).uid)

    # -- messages ---------------------------------------------------------------------------------

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None = None
    ) -> PendingAppend:
        """Check blocks and hand them to their partitions; the answer comes as they are stored.
        What needs no sync is written at once by the calling thread if its partition is idle.
        Blocks are filled in where they stand; `durability` None is the topic's own."""
        return self._publisher.submit(name, blocks, durability, self.immediate)

    def count_stored(self, name: TopicName, blocks: Sequence[NewBlock]) -> int:
        """How many of these blocks were stored before, as far as their producers are remembered.
        Waits for partitions that have to be read. Raises `PartitionNotFound`."""
        return self._publisher.count_stored(name, blocks)

    @property
    def immediate(self) -> Durability:
        """The strongest durability that the store gives without keeping the caller waiting."""
        return Durability.NONE if self._store.shared else Durability.WRITTEN

    def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        timeout_s: float = 30.0,
    ) -> list[Appended]:
        """Store blocks and return where they went, in the order given. Raises whatever kept one
        from being stored."""
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
        With a filter only what matches, and what was looked at is bounded; where nothing more is
        there `Fetched.reached` tells.
        Raises `TopicNotFound`, `PartitionNotFound`, `OffsetOutOfRange`."""
        if self._closed or self._owner is not None:
            self._require_owned()
        judge = self._judge(isolation)
        return self._fetcher.fetch(name, positions, bytes_max, wait_s, judge, where)

    def fetch_cached(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
    ) -> Fetched | None:
        """Like `fetch` without waiting and without touching the store; None when that is not
        possible."""
        return self._fetcher.fetch_cached(name, positions, bytes_max, self._judge(isolation))

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
        if isinstance(isolation, Snapshot):
            raise Invalid("Offsets are of committed or uncommitted messages.", field="isolation")
        self._require_owned()
        judge, since_ms = self._judge(isolation), self.transactions.undecided_since_ms
        return self._fetcher.offsets(name, at, judge, since_ms)

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
        held: Mapping[int, int] | None = None,
    ) -> Callable[[], None]:
        """Call `callback`, from any thread and at least once, when something may be there after
        these positions (`Fetched.next`), or when a transaction that holds one back has ended
        (`Fetched.held`). Returns a function that ends the watch."""
        return self._fetcher.watch(name, positions, callback, held)

    def _judge(self, isolation: Isolation | Snapshot) -> Judge | None:
        if isolation is Isolation.COMMITTED:
            return self.transactions.manager.fate
        if isinstance(isolation, Snapshot):
            return lambda pointer, _: isolation.fate(pointer)
        if isolation is Isolation.UNCOMMITTED:
            return None
        raise Invalid("The isolation `snapshot` needs a snapshot.", field="isolation")

    # -- operating -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin cleaning, recovering, compacting and delivering what is due in the background."""
        self.maintenance.start()
        self.compaction.start()
        self.queues.start()
        self.delayed.start()

    def confirm_clock(self) -> None:
        """Let retention and delayed messages believe the wall clock after a jump."""
        self._retention.confirm()
        self.delayed.confirm_clock()

    def inspect(self, name: TopicName, partition: int = 0, limit: int = 20) -> PartitionInspection:
        """How a partition stands in the store, with its newest `limit` blocks."""
        self._require_owned()
        topic = self._registry.find(name)
        log = self._partitions.get(name, topic, partition)
        log.reader.load()
        floor = self._retention.floor(topic.retention_ms)
        return inspect_partition(log.state.chain, floor, limit)

    def readiness(self) -> list[str]:
        """Why this engine is not ready to store, in sentences; empty when it is."""
        reasons = []
        if self._closed:
            reasons.append("The engine is closed.")
        if self._lost is not None:
            reasons.append(self._lost.message)
        unhealthy = self._store.healthy()
        if unhealthy is not None:
            reasons.append(unhealthy)
        return reasons

    def warnings(self) -> list[str]:
        """What is wrong although it stores, in sentences."""
        if self._closed:
            return []
        return [
            *self._store.warnings(),
            *self.delayed.warnings(),
            *self.queues.warnings(),
        ]

    def stats(self) -> EngineStats:
        """Counters and sizes, for metrics."""
        logs = self._partitions.opened()
        counters = [log.state.counters for log in logs]
        now_ms = self._clock.now_ms()
        tx = self.transactions.stats(now_ms)
        return EngineStats(
            messages=sum(c.messages for c in counters),
            blocks=sum(c.blocks for c in counters),
            bytes=sum(c.bytes for c in counters),
            writes=sum(c.writes for c in counters),
            syncs=sum(c.syncs for c in counters),
            partitions_open=len(logs),
            cache_bytes=self._cache.bytes,
            cache_hits=self._fetcher.hits,
            cache_misses=self._fetcher.misses,
            in_flight_bytes=self._in_flight.bytes,
            clock_ahead_ms=max(0, *(log.state.last[0] - now_ms for log in logs), 0),
            retention_held_back_ms=self._retention.held_back_ms(),
            transactions_open=tx.open,
            transactions_oldest_ms=tx.oldest_ms,
            transactions_invalid=tx.invalid,
            partitions_blocked=tx.partitions_blocked,
            transactions_committed=tx.committed,
            delayed_waiting=self.delayed.waiting,
            delayed_delivered=self.delayed.lateness.messages,
            **self.compaction.counters(),
        )

    def close(self) -> None:
        """Write what is queued, note how all stands, release the store; once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.queues.close()
        self.delayed.close()
        if self._lost is None:
            self._shorten_journals()
        self._stop(Closed("The engine is closed; open it again."))
        self._threads.shutdown(wait=True)
        if self._lost is None:
            self.transactions.close()  # when nothing is committed any more
        if self._owner is not None:
            self._owner.release()
        self._store.close()

    def confirm_owner(self) -> None:
        """Raise `NotOwner` if another process owns the store now. What is answered after this, to a
        call that came before it, is not stale."""
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
        self.queues.close()
        self.delayed.close()
        self._stop(reason)

    def _stop(self, reason: TMSError) -> None:
        self._publisher.close(reason)
        self._fetcher.close(reason)
        self.maintenance.stop()
        self.compaction.stop()
        self._partitions.close(CLOSE_TIMEOUT_S, reason)

    def _shorten_journals(self) -> None:
        """Let the next start be short; without that it only takes longer."""
        try:
            self.transactions.shorten_journals(CLOSING_EDITS, CLOSING_POSITIONS)
        except TMSError as error:
            _log.warning("shortening_failed", error=error.message)

    def _forked(self) -> None:
        """Two engines over one store destroy it."""
        doors = self.transactions, self.queues, self.groups, self.delayed, self.tables
        forks.leave(self, *doors, self.compaction, self.maintenance)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("The engine is closed; open it again.")

    def _require_owned(self) -> None:
        self._require_open()
        self.confirm_owner()

    def _describe(self, log: PartitionLog, topic: TopicRecord) -> PartitionInfo:
        log.reader.load()
        floor = self._retention.floor(topic.retention_ms)
        state = log.state
        start_offset, first_id = log.reader.start(floor), log.reader.first_id(floor)
        return PartitionInfo(
            partition=log.partition,
            epoch=state.chain.record.epoch,
            segments=len(state.chain.record.segments),
            stored_bytes=state.chain.stored_bytes(),
            start_offset=start_offset,
            end_offset=state.end_offset,
            first_id=None if first_id is None else str(first_id),
            last_id=None if first_id is None else str(MessageId(*state.last)),
        )
