"""The partition logs that are open in this process; each is opened at its first use."""

import threading
from collections.abc import Callable, Collection, Iterable
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
from tms.log.segments import SegmentChain, SoleOwner
from tms.log.staging import StagedBlocks
from tms.log.writer import PartitionWriter
from tms.model import keys
from tms.model.topic import TopicName
from tms.topics.bulkhead import Bulkhead
from tms.topics.owners import Owners, Peer
from tms.topics.registry import Registry, TopicRecord


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds of all topics together. `block_bytes`: of one block when decompressed;
    `failing_threads`: for partitions whose last write failed."""

    topics: int
    cache_bytes: int
    in_flight_bytes: int
    block_bytes: int
    log: LogLimits
    failing_threads: int


class _TopicOfPartition:
    """The retention of a partition's topic, and the checks of the partition's owner, as
    `log.segments.OwnerCheck` requires."""

    __slots__ = ("_name", "_owners", "_registry", "_uid")

    def __init__(
        self, registry: Registry, name: TopicName, uid: int, owners: Owners | SoleOwner
    ) -> None:
        self._registry = registry
        self._name = name
        self._uid = uid
        self._owners = owners

    @property
    def name(self) -> str:
        """The name of the instance as which this process owns partitions."""
        return self._owners.name

    def require_owner(self) -> None:
        """Raise `NotOwner`."""
        self._owners.require_owner()

    def fence(self, owners: Collection[str]) -> None:
        """Stop these instances from answering requests about the partition from memory."""
        self._owners.fence(owners)

    def require_topic(self) -> None:
        """Raise `TopicNotFound`."""
        self._registry.require_life(self._name, self._uid)

    def retention(self) -> tuple[int | None, int | None]:
        """The retention in milliseconds and in bytes; None: without a limit."""
        record = self._registry.known.get(self._name)
        if record is None or record.uid != self._uid:
            return None, None
        return record.retention_ms, record.retention_bytes


class Partitions:
    """Opens partition logs and holds them. Thread-safe."""

    def __init__(
        self, registry: Registry, limits: TopicLimits, background: Executor, owners: Owners | None
    ) -> None:
        self.cache = BlockCache(limits.cache_bytes)
        self.in_flight = InFlight(limits.in_flight_bytes)
        self.registry = registry
        self._store = registry.store
        self._limits = limits.log
        self._background = background
        self.failing = Bulkhead(background, limits.failing_threads)  # what waits for failing writes
        self.owners = owners
        self.are_of_several = owners is not None and bool(owners.name)  # instances
        self.logs: dict[tuple[int, int], PartitionLog] = {}  # open ones, by uid and partition
        self._deleted: set[int] = set()
        self._releasing: dict[tuple[int, int], TMSError] = {}  # why logs are being closed
        self._closed: TMSError | None = None
        self._lock = threading.Lock()

    def confirm(self) -> None:
        """As `Owners.confirm`."""
        if self.owners is not None:
            self.owners.confirm()

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
            if log is None and (topic.uid, partition) in self._releasing:
                raise again(self._releasing[topic.uid, partition])
            if log is None:
                log = self._make(name, topic.uid, partition)
                self.logs[topic.uid, partition] = log
        return log

    def peer_of(self, name: TopicName, topic: TopicRecord, partition: int) -> Peer | None:
        """The owner of a partition, None: this process. Raises `PartitionNotFound`."""
        if not 0 <= partition < topic.partitions:
            raise PartitionNotFound(
                f"The topic {name} has partitions 0 to {topic.partitions - 1}, not {partition}.",
                partition=partition,
                partitions=topic.partitions,
            )
        if self.owners is None:
            return None
        return self.owners.peer_of(name, (topic.uid, partition), topic.partitions)

    def find(self, name: TopicName, topic: TopicRecord, partition: int) -> PartitionLog | Peer:
        """The log of a partition, or its owner. Raises `PartitionNotFound`, `TopicNotFound`."""
        return self.peer_of(name, topic, partition) or self.get(name, topic, partition)

    def by_owner(
        self, name: TopicName, topic: TopicRecord, partitions: Iterable[int] | None = None
    ) -> dict[Peer | None, list[int]]:
        """Some partitions, or all, by owner; None: this process."""
        owners: dict[Peer | None, list[int]] = {}
        for partition in range(topic.partitions) if partitions is None else partitions:
            owners.setdefault(self.peer_of(name, topic, partition), []).append(partition)
        return owners

    def elsewhere(
        self, name: TopicName, topic: TopicRecord, partitions: Iterable[int]
    ) -> dict[str, list[int]]:
        """Those of these partitions that others own, by the URL of the owner; empty while owners
        are unknown."""
        try:
            owners = self.by_owner(name, topic, partitions)
        except Unavailable:
            return {}
        return {peer.address: some for peer, some in owners.items() if peer is not None}

    def owns(self, name: TopicName, topic: TopicRecord, partition: int) -> bool:
        """True if this process owns a partition; False while the owner is unknown."""
        try:
            return self.peer_of(name, topic, partition) is None
        except Unavailable:
            return False

    def opened(self) -> list[PartitionLog]:
        """All open logs."""
        with self._lock:
            return list(self.logs.values())

    def staged_places(self) -> list[tuple[int, int]]:
        """Topic uid and partition of all partitions that have maps of staged blocks."""
        names = self._store.names("t")
        return sorted({keys.payload_place(name) for name in names if keys.is_payload_map(name)})

    def close_topic(self, uid: int, timeout_s: float) -> None:
        """Close the logs of a deleted topic and wake readers that wait for its messages."""
        with self._lock:
            self._deleted.add(uid)
            gone = [key for key in self.logs if key[0] == uid]
            logs = [self.logs.pop(key) for key in gone]
        for log in logs:
            log.close(timeout_s, TopicNotFound("The topic was deleted."))

    def release(self, log: PartitionLog, timeout_s: float, reason: TMSError) -> None:
        """Close the log of a partition that this process no longer owns; it may be opened again
        afterwards. Until then `get` raises the reason: the end of this log closes the maps that
        another one would have opened. If another thread releases it, this call does not wait for
        that: requests that have the log may go on, and no later one gets it."""
        place = (log.uid, log.partition)
        with self._lock:
            if self.logs.get(place) is not log:  # another thread releases it
                return
            del self.logs[place]
            self._releasing[place] = reason
        try:
            log.release(timeout_s, reason)
            self._store.close_maps(keys.partition_prefix(log.uid, log.partition))
        finally:
            with self._lock:
                del self._releasing[place]

    def abandon(self, reason: TMSError) -> int:
        """Close all logs at once; queued tickets fail with this reason. Returns the number of
        logs."""
        logs = self.opened()
        for log in logs:
            self.release(log, 0, reason)
        return len(logs)

    def close(self, timeout_s: float, reason: TMSError | None = None) -> None:
        """Write queued tickets, refuse new ones, and wake waiting readers; every later call gets
        `reason`."""
        reason = reason or Closed("The engine is closed; open it again.")
        with self._lock:
            self._closed = reason
            logs = list(self.logs.values())
        for log in logs:
            log.close(timeout_s, reason)

    def _make(self, name: TopicName, uid: int, partition: int) -> PartitionLog:
        topic = _TopicOfPartition(self.registry, name, uid, self.owners or SoleOwner())
        metadata, clock = self.registry.metadata, self.registry.clock
        maps = PartitionMaps(self._store)
        chain = SegmentChain(maps, metadata, uid, partition, topic)
        state = PartitionState(
            chain, metadata, self.cache, self._limits, topic.retention, clock.monotonic_s
        )
        writer = PartitionWriter(
            state,
            clock,
            self.in_flight.room(partition, self._limits.queue_bytes),
            partial(self._run_in_background, state),
        )
        staged = StagedBlocks(maps, uid, partition)
        return PartitionLog(state, writer, staged, maps)

    def _run_in_background(self, state: PartitionState, work: Callable[[], None]) -> None:
        if state.failed:
            self.failing.submit(work)
        else:
            self._background.submit(work)
