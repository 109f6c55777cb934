"""The queues of one shard: which there are, and their journal.

Invariants

* The journal in `system:_queues` is the truth; it is read when it is first needed, and again after
  a write of it failed.
* A queue belongs to one generation of its topic: of a topic that was created anew it begins anew,
  at the first message and with another epoch, and keeps its settings.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from random import Random

import msgspec

from tms.errors import StorageUnavailable, TopicNotFound
from tms.journal.journaled import Cells, JournalEntry, together, unreadable
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


class QueueShard:
    """The queues of one shard. Thread-safe. `dying` is called when something is to go to the dead
    letters."""

    def __init__(
        self, topics: Topics, number: int, random: Random, dying: Callable[[], None]
    ) -> None:
        self._log = topics.fetcher
        self._registry = topics.registry
        self._clock = topics.clock
        self._topics = topics
        self._random = random
        self._journal = QueueJournal(topics.journal_of_shard(QUEUES, number), self._replay)
        self._services = QueueServices(self._log, self._journal, self._clock, random, dying)
        self._lock = threading.RLock()  # guards which queues there are
        self._queues: dict[tuple[str, TopicName], OpenQueue] = {}
        self._open_pointers: set[int] = set()  # of the last replay, which nobody follows yet
        self.settling = Settling(
            self._journal,
            lambda: topics.decisions,
            lambda group, topic: self.find(group, topic)[0],
            lambda group, topic: self.known(topic, group),
            self.opened,
            self.durability,
        )

    def opened(self) -> list[OpenQueue]:
        """Every queue that is known by now."""
        with self._lock:
            return [*self._queues.values()]

    def all(self) -> list[OpenQueue]:
        """Every queue."""
        self.load()
        return self.opened()

    def find(self, group: str, topic: TopicName) -> tuple[OpenQueue, TopicRecord]:
        """A queue, and its topic. Raises `QueueNotFound`, `TopicNotFound`."""
        record = self._registry.find(topic)
        if not self._journal.known:
            self.load()
        queue = self._queues.get((group, topic))
        if queue is None:
            raise not_found(group, topic)
        if queue.state.declared.topic_uid != record.uid:
            self._renew(queue, record)
        return queue, record

    def known(self, topic: TopicName, group: str) -> OpenQueue | None:
        """A queue as it was known last, without reading or waiting."""
        return self._queues.get((group, topic))

    def durability(self, queue: OpenQueue) -> Durability:
        """How durable what it does has to be."""
        chosen = queue.state.settings.durability or self._registry.find(queue.topic).durability
        return strongest(chosen, Durability.WRITTEN)

    # -- changing them -----------------------------------------------------------------------------

    def declare(self, topic: TopicName, group: str, settings: QueueSettings) -> OpenQueue:
        """The queue, which is made if there is none. Raises `TopicNotFound`."""
        record = self._registry.find(topic)
        self.load()
        with self._lock:
            queue = self._queues.get((group, topic))
            if queue is None:
                queue = self._make(group, topic, record, settings)
        return self.find(group, topic)[0]

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

    def update(self, topic: TopicName, group: str, changes: Mapping[str, object]) -> OpenQueue:
        """Change settings. Raises `QueueNotFound`, `Invalid`."""
        queue, _ = self.find(group, topic)
        with queue.lock:
            settings = queue.state.settings.changed(changes)
            check_dead_letter(group, topic, settings)
            declared = msgspec.structs.replace(queue.state.declared, settings=settings, starts=[])
            batch = self._journal.add([(queue.key(), encode(declared))], Durability.SYNCED)
            queue.state.change(declared)
        self._journal.wait(batch)
        return queue

    def delete(self, topic: TopicName, group: str) -> None:
        """Forget a queue, also of a topic that is gone. Raises `QueueNotFound`."""
        self.load()
        with self._lock:
            queue = self._queues.get((group, topic))
            if queue is None:
                raise not_found(group, topic)
            with queue.lock:
                batch = self._journal.add([(queue.key(), None)], Durability.SYNCED)
                queue.begin_anew(None)
                del self._queues[group, topic]
        queue.waiters.wake_all()
        self._journal.wait(batch)

    def _renew(self, queue: OpenQueue, record: TopicRecord) -> None:
        """The topic was created anew."""
        with queue.lock:
            before = queue.state.declared
            if before.topic_uid >= record.uid:
                return
            declared = msgspec.structs.replace(
                before, epoch=self._random.getrandbits(32), topic_uid=record.uid, starts=[]
            )
            batch = self._journal.add([(queue.key(), encode(declared))], Durability.SYNCED)
            queue.begin_anew(QueueState(declared))
        queue.waiters.wake_all()
        self._journal.wait(batch)

    def rewind(self) -> None:
        """Go back to where the log ends, where a power loss took messages that a queue had seen:
        their offsets are given again. Before anything is stored."""
        for queue in self.all():
            try:
                record = self._registry.find(queue.topic)
            except TopicNotFound:
                continue
            if record.uid == queue.state.declared.topic_uid:
                queue.rewind(range(record.partitions))

    # -- the journal -------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the journal, unless it is known."""
        if self._journal.known:
            return
        with self._lock:
            self._journal.load()
            pointers, self._open_pointers = self._open_pointers, set()
        for pointer in pointers:
            self.settling.follow(pointer)

    def _replay(self, entries: Iterator[JournalEntry]) -> None:
        """Let the queues stand as the journal says."""
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
        """Begin the journal anew with every queue as it stands if a start would have to read more
        than so many entries, or `BYTES_MAX`. Cut anywhere, nothing is lost: a replay begins where
        it began before until every queue is written. For `durable` see `OwnCommits`."""
        journal = self._journal
        if journal.is_long(entries_max, BYTES_MAX) and journal.known:
            with closing(self._snapshots(durable)) as snapshots:
                journal.snapshot(snapshots)

    def _snapshots(
        self, durable: Callable[[], AbstractContextManager[None]]
    ) -> Generator[list[Cells], None, None]:
        """Each queue as it stands, which waits until that is stored: no more than one does. A
        snapshot is synced, so the commits that it rests on are synced before."""
        term = self._journal.term
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
        if self._journal.term is not term:
            raise unreadable()

    def close(self) -> None:
        """It is kept here no more: let everybody who waits look again."""
        for queue in self.opened():
            queue.waiters.wake_all()
