"""The queues of one shard, and their journal.

Invariants

* The journal in `system:_queues` is the truth; it is read when it is first needed, and again after
  a write of it failed.
* A queue belongs to one generation of its topic: if the topic is recreated, the queue starts again
  at the first message with another epoch, and keeps its settings.
* Nothing of a deleted queue is journaled after its deletion: a replay would bring the queue back.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from random import Random
from typing import NamedTuple

import msgspec

from tms.block.received import Received
from tms.errors import StorageUnavailable, TopicNotFound
from tms.log.journaled import Cells, JournalEntry, together, unreadable
from tms.model.position import Position, PositionKind
from tms.model.queue import QueueSettings
from tms.model.topic import Durability, TopicName, strongest
from tms.queues.checks import check_dead_letter, not_found
from tms.queues.entries import NOWHERE, Declared, encode
from tms.queues.journal import QueueJournal
from tms.queues.queue import OpenQueue, QueueServices
from tms.queues.replay import replayed
from tms.queues.settling import Settling
from tms.queues.state import QueueState
from tms.topics.registry import TopicRecord
from tms.topics.sharding import QUEUES
from tms.topics.topics import Topics

ATTEMPTS = 20
BYTES_MAX = 64 << 20  # of the journal that a start reads


class QueueHandle(NamedTuple):
    """An opened queue: everything that a call needs to know of it. It stays current while neither
    the topic, nor the settings, nor the journal change, and the shard is open."""

    shard: "QueueShard"
    queue: OpenQueue
    record: TopicRecord
    declared: Declared
    durability: Durability
    term: object

    def receive(self, limit: int, bytes_max: int) -> Received | None:
        """Lease up to `limit` messages; None if there are none. Goes on if all messages of a pass
        were gone, or blocked by others."""
        while True:
            received, again = self.queue.receive(
                self.record.partitions, limit, bytes_max, self.durability
            )
            if received is not None or not again:
                return received


class QueueShard:
    """The queues of one shard. Thread-safe. `dying` is called if a message is to be moved to the
    dead letters."""

    def __init__(
        self, topics: Topics, number: int, random: Random, dying: Callable[[], None]
    ) -> None:
        self._log = topics.fetcher
        self._registry = topics.registry
        self._clock = topics.clock
        self._topics = topics
        self._random = random
        self._journal = QueueJournal(topics.journal_of_shard(QUEUES, number), self._replay)
        self._services = QueueServices(self._log, self._journal, self._clock, dying)
        self._lock = threading.RLock()  # guards the set of queues
        self._queues: dict[tuple[str, TopicName], OpenQueue] = {}
        self._closed = False  # True if all handles are stale
        self._open_pointers: set[int] = set()  # of the last replay, not followed yet
        self.settling = Settling(
            self._journal, lambda: topics.decisions, self._find, self.known, self.opened
        )

    def opened(self) -> list[OpenQueue]:
        """Every queue that was loaded."""
        with self._lock:
            return [*self._queues.values()]

    def all(self) -> list[OpenQueue]:
        """Every queue, loaded if need be."""
        self.load()
        return self.opened()

    def is_current(self, handle: QueueHandle) -> bool:
        """True if opening the queue of this handle again would give the same handle."""
        queue = handle.queue
        return (
            not (self._closed or queue.deleted)
            and queue.state.declared is handle.declared
            and self._journal.journaled.term is handle.term
            and self._registry.known.get(queue.topic) is handle.record
        )

    def open(self, topic: TopicName, group: str) -> QueueHandle:
        """A queue for the next calls. Raises `QueueNotFound`, `TopicNotFound`."""
        record = self._registry.find(topic)
        term = self._journal.journaled.term  # before the look, so a later one makes it stale
        if not self._journal.journaled.known:
            self.load()
        queue = self._queues.get((group, topic))
        if queue is None:
            raise not_found(group, topic)
        if queue.state.declared.topic_uid != record.uid:
            self._renew(queue, record)
        declared = queue.state.declared
        # a token is good once only, if deliveries are synced where settlements are
        durability = strongest(
            declared.settings.durability or record.durability, Durability.WRITTEN
        )
        return QueueHandle(self, queue, record, declared, durability, term)

    def _find(self, topic: TopicName, group: str) -> tuple[OpenQueue, Durability]:
        handle = self.open(topic, group)
        return handle.queue, handle.durability

    def known(self, topic: TopicName, group: str) -> OpenQueue | None:
        """A queue as last loaded, without reading or waiting."""
        return self._queues.get((group, topic))

    # -- changing them -----------------------------------------------------------------------------

    def declare(self, topic: TopicName, group: str, settings: QueueSettings) -> QueueHandle:
        """The queue, created if it does not exist. Raises `TopicNotFound`."""
        record = self._registry.find(topic)
        self.load()
        with self._lock:
            queue = self._queues.get((group, topic))
            if queue is None:
                queue = self._make(group, topic, record, settings)
        return self.open(topic, group)

    def _make(
        self, group: str, topic: TopicName, record: TopicRecord, settings: QueueSettings
    ) -> OpenQueue:
        starts = self._starts(topic, Position.parse(settings.start))
        epoch = self._random.getrandbits(32)
        declared = Declared(settings, epoch, record.uid, self._clock.now_ms(), starts)
        queue = OpenQueue(group, topic, QueueState(declared), self._services)
        batch = self._journal.add([(queue.key(), encode(declared))], Durability.SYNCED)
        self._queues[group, topic] = queue
        self._journal.wait(batch)
        return queue

    def _starts(self, topic: TopicName, start: Position) -> list[tuple[int, int, int]]:
        if start.kind is PositionKind.EARLIEST:
            return []
        return [
            (partition, offset, NOWHERE)
            for partition, offset in self._log.offsets(topic, start).items()
            if offset
        ]

    def update(self, topic: TopicName, group: str, changes: Mapping[str, object]) -> QueueHandle:
        """Change settings. Raises `QueueNotFound`, `Invalid`."""
        queue = self.open(topic, group).queue
        with queue.lock:
            if queue.deleted:
                raise not_found(group, topic)
            settings = queue.state.settings.changed(changes)
            check_dead_letter(group, topic, settings)
            declared = msgspec.structs.replace(queue.state.declared, settings=settings, starts=[])
            batch = self._journal.add([(queue.key(), encode(declared))], Durability.SYNCED)
            queue.state.change(declared)
        queue.waiters.wake_all()  # more messages may be outstanding now
        self._journal.wait(batch)
        return self.open(topic, group)

    def delete(self, topic: TopicName, group: str) -> None:
        """Delete a queue, also of a deleted topic. Raises `QueueNotFound`."""
        self.load()
        with self._lock:
            queue = self._queues.get((group, topic))
            if queue is None:
                raise not_found(group, topic)
            with queue.lock:
                batch = self._journal.add([(queue.key(), None)], Durability.SYNCED)
                queue.reset(None)
                del self._queues[group, topic]
        queue.waiters.wake_all()
        self._journal.wait(batch)

    def _renew(self, queue: OpenQueue, record: TopicRecord) -> None:
        """Start the queue again for a recreated topic. Raises `QueueNotFound`."""
        with queue.lock:
            if queue.deleted:
                raise not_found(queue.group, queue.topic)
            before = queue.state.declared
            if before.topic_uid >= record.uid:
                return
            declared = msgspec.structs.replace(
                before, epoch=self._random.getrandbits(32), topic_uid=record.uid, starts=[]
            )
            batch = self._journal.add([(queue.key(), encode(declared))], Durability.SYNCED)
            queue.reset(QueueState(declared))
        queue.waiters.wake_all()
        self._journal.wait(batch)

    def rewind(self) -> None:
        """Rewind queues to the end of the log, where a power loss took messages that they had seen:
        their offsets are given to other messages. Call it before anything is stored."""
        for queue in self.all():
            try:
                record = self._registry.find(queue.topic)
            except TopicNotFound:
                continue
            if record.uid == queue.state.declared.topic_uid:
                queue.rewind(range(record.partitions))

    # -- the journal -------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the journal unless it is known."""
        if self._journal.journaled.known:
            return
        with self._lock:
            self._journal.load()
            pointers, self._open_pointers = self._open_pointers, set()
        for pointer in pointers:
            self.settling.follow(pointer)

    def _replay(self, entries: Iterator[JournalEntry]) -> None:
        """Set the queues to the state of the journal."""
        states, self._open_pointers = replayed(entries, self._topics.decisions.learn, self._clock)
        for place, state in states.items():
            if place in self._queues:
                self._queues[place].replace(state)
            else:
                self._queues[place] = OpenQueue(*place, state, self._services)
        for place in [place for place in self._queues if place not in states]:
            self._queues.pop(place).replace(None)

    def shorten(
        self, entries_max: int, durable: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Write a snapshot of every queue if a start would read more than `entries_max` entries or
        `BYTES_MAX` bytes. A crash loses nothing: a replay begins where it began before until every
        queue is written. `durable` is `InternalCommits.durable`."""
        journal = self._journal
        if journal.is_long(entries_max, BYTES_MAX) and journal.journaled.known:
            with closing(self._snapshots(durable)) as snapshots:
                journal.snapshot(snapshots)

    def _snapshots(
        self, durable: Callable[[], AbstractContextManager[None]]
    ) -> Generator[list[Cells], None, None]:
        """Yields the entries of each queue, which stays locked until they are stored: one queue at
        a time. A snapshot is synced, so the commits that it rests on are synced before."""
        term = self._journal.journaled.term
        for queue in self.opened():
            for _ in range(ATTEMPTS):
                ends = self.settling.ends
                with durable(), queue.lock:
                    if self.settling.ends == ends:  # else it may rest on a later commit
                        if not queue.deleted:
                            yield from together(queue.snapshot())
                        break
            else:
                raise StorageUnavailable("Too much is committed now to shorten the journal.")
        if self._journal.journaled.term is not term:
            raise unreadable()

    def close(self) -> None:
        """Wake all waiters: the shard moves to another instance."""
        self._closed = True
        for queue in self.opened():
            queue.waiters.wake_all()
