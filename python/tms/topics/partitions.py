"""The partition logs that are open in this process, opened when first asked for."""

import threading
from collections.abc import Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from tms.errors import (
    Closed,
    NotOwner,
    PartitionNotFound,
    TMSError,
    TopicNotFound,
    Unavailable,
    again,
)
from tms.log.cache import BlockCache
from tms.log.inflight import InFlight
from tms.log.maps import PartitionMaps
from tms.log.partition import LogLimits, PartitionState
from tms.log.partition_log import PartitionLog
from tms.log.segments import SegmentChain, Undisputed
from tms.log.staging import StagedBlocks
from tms.log.writer import PartitionWriter
from tms.model import keys
from tms.model.topic import TopicName
from tms.topics.owners import Owners, Peer
from tms.topics.registry import Registry, TopicRecord


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds of all topics together. `block_bytes`: of one block once decompressed."""

    topics: int
    cache_bytes: int
    in_flight_bytes: int
    block_bytes: int
    log: LogLimits


class _OwnerCheck:
    """What the owner of a partition has to check; see `log.segments.OwnerCheck`."""

    __slots__ = ("_name", "_owners", "_registry", "_uid")

    def __init__(
        self, registry: Registry, name: TopicName, uid: int, owners: Owners | Undisputed
    ) -> None:
        self._registry = registry
        self._name = name
        self._uid = uid
        self._owners = owners

    @property
    def name(self) -> str:
        """As which instance this process owns partitions."""
        return self._owners.name

    def require_owner(self) -> None:
        """Raise `NotOwner`."""
        self._owners.require_owner()

    def fence(self, owners: Collection[str]) -> None:
        """Let these answer nothing by what they know of the partition."""
        self._owners.fence(owners)

    def require_topic(self) -> None:
        """Raise `TopicNotFound`."""
        self._registry.require_life(self._name, self._uid)


class Partitions:
    """Opens partition logs and keeps them. Thread-safe."""

    def __init__(
        self,
        registry: Registry,
        limits: TopicLimits,
        background: Executor,
        owners: Owners | None,
    ) -> None:
        self.cache = BlockCache(limits.cache_bytes)
        self.in_flight = InFlight(limits.in_flight_bytes)
        self._registry = registry
        self._store = registry.store
        self._limits = limits.log
        self._background = background
        self._owners = owners
        self.are_of_several = owners is not None and bool(owners.name)  # processes
        self.logs: dict[tuple[int, int], PartitionLog] = {}  # that are open, by uid and partition
        self._deleted: set[int] = set()
        self._closed: TMSError | None = None
        self._lock = threading.Lock()

    def confirm(self) -> None:
        """See `Owners.confirm`."""
        if self._owners is not None:
            self._owners.confirm()

    def get(self, name: TopicName, topic: TopicRecord, partition: int) -> PartitionLog:
        """The log of one partition that this process owns. Raises `PartitionNotFound`,
        `TopicNotFound`, `NotOwner`."""
        log = self.logs.get((topic.uid, partition))
        if log is not None:
            return log
        peer = self.peer_of(name, topic, partition)
        if peer is not None:
            raise NotOwner(
                f"Partition {partition} of {name} is owned by {peer.name} at {peer.address}. Ask "
                "there.",
                owner=peer.name,
                address=peer.address,
            )
        with self._lock:
            if self._closed is not None:
                raise again(self._closed)
            if topic.uid in self._deleted:
                raise TopicNotFound(f"The topic {name} was deleted.", topic=str(name))
            log = self.logs.get((topic.uid, partition))
            if log is None:
                log = self._make(name, topic.uid, partition)
                self.logs[topic.uid, partition] = log
        return log

    def peer_of(self, name: TopicName, topic: TopicRecord, partition: int) -> Peer | None:
        """Who owns a partition, None: this process. Raises `PartitionNotFound`."""
        if not 0 <= partition < topic.partitions:
            raise PartitionNotFound(
                f"The topic {name} has partitions 0 to {topic.partitions - 1}, not {partition}.",
                partition=partition,
                partitions=topic.partitions,
            )
        if self._owners is None:
            return None
        return self._owners.peer_of(name, (topic.uid, partition), topic.partitions)

    def find(self, name: TopicName, topic: TopicRecord, partition: int) -> PartitionLog | Peer:
        """The log of a partition, or who owns it. Raises `PartitionNotFound`, `TopicNotFound`."""
        return self.peer_of(name, topic, partition) or self.get(name, topic, partition)

    def by_owner(
        self, name: TopicName, topic: TopicRecord, partitions: Iterable[int] | None = None
    ) -> dict[Peer | None, list[int]]:
        """Some partitions, or all, by who owns them; None: this process."""
        owners: dict[Peer | None, list[int]] = {}
        for partition in range(topic.partitions) if partitions is None else partitions:
            owners.setdefault(self.peer_of(name, topic, partition), []).append(partition)
        return owners

    def elsewhere(
        self, name: TopicName, topic: TopicRecord, partitions: Iterable[int]
    ) -> dict[str, list[int]]:
        """Which of these partitions others own, by where those are reached; empty while nobody can
        tell."""
        try:
            owners = self.by_owner(name, topic, partitions)
        except Unavailable:
            return {}
        return {peer.address: some for peer, some in owners.items() if peer is not None}

    def owns(self, name: TopicName, topic: TopicRecord, partition: int) -> bool:
        """Whether this process owns a partition; False while nobody can tell."""
        try:
            return self.peer_of(name, topic, partition) is None
        except Unavailable:
            return False

    def opened(self) -> list[PartitionLog]:
        """Every open log."""
        with self._lock:
            return list(self.logs.values())

    def staged_places(self) -> list[tuple[int, int]]:
        """Topic uid and partition of all that have maps of staged blocks."""
        names = self._store.names("t")
        return sorted({keys.payload_place(name) for name in names if keys.is_payload_map(name)})

    def forget(self, uid: int, timeout_s: float) -> None:
        """Close the logs of a deleted topic and wake who waits for its messages."""
        with self._lock:
            self._deleted.add(uid)
            gone = [key for key in self.logs if key[0] == uid]
            logs = [self.logs.pop(key) for key in gone]
        for log in logs:
            log.close(timeout_s, TopicNotFound("The topic was deleted."))

    def release(self, log: PartitionLog, timeout_s: float, reason: TMSError) -> None:
        """Close the log of a partition that this process owns no more; it may be opened again."""
        with self._lock:
            if self.logs.get((log.uid, log.partition)) is log:
                del self.logs[log.uid, log.partition]
        log.release(timeout_s, reason)
        self._store.let_go(keys.partition_prefix(log.uid, log.partition))

    def abandon(self, reason: TMSError) -> int:
        """Close all logs at once, what waits to be written with this reason; how many."""
        logs = self.opened()
        for log in logs:
            self.release(log, 0, reason)
        return len(logs)

    def close(self, timeout_s: float, reason: TMSError | None = None) -> None:
        """Write what is queued, let nothing new in, and wake who waits; `reason` is what everybody
        gets from then on."""
        reason = reason or Closed("The engine is closed; open it again.")
        with self._lock:
            self._closed = reason
            logs = list(self.logs.values())
        for log in logs:
            log.close(timeout_s, reason)

    def _make(self, name: TopicName, uid: int, partition: int) -> PartitionLog:
        standing = _OwnerCheck(self._registry, name, uid, self._owners or Undisputed())
        metadata, clock = self._registry.metadata, self._registry.clock
        maps = PartitionMaps(self._store)
        chain = SegmentChain(maps, metadata, uid, partition, standing)
        retention = partial(self._retention, name, uid)
        state = PartitionState(
            chain, metadata, self.cache, self._limits, retention, clock.monotonic_s
        )
        writer = PartitionWriter(
            state,
            clock,
            self.in_flight.room(partition, self._limits.queue_bytes),
            self._background.submit,
        )
        staged = StagedBlocks(maps, uid, partition)
        return PartitionLog(uid, partition, state, writer, staged, maps)

    def _retention(self, name: TopicName, uid: int) -> tuple[int | None, int | None]:
        """For how long and how many bytes a topic keeps messages; None: without a limit."""
        record = self._registry.known.get(name)
        if record is None or record.uid != uid:
            return None, None
        return record.retention_ms, record.retention_bytes
