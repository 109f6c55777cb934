"""All queues of an engine: the facade for the rooms above.

Invariants

* The journal `system:_queues` is the truth; it is read when it is first needed, and again after a
  write of it failed.
* A queue belongs to one generation of its topic: of a topic that was created anew it begins anew,
  at the first message and with another epoch, and keeps its settings.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from random import Random

import msgspec

from tms.block.received import Received
from tms.errors import Conflict, DataCorrupt, Invalid, TopicNotFound
from tms.journal.journaled import Cells, JournalEntry, together, unreadable
from tms.model.position import Position, PositionKind
from tms.model.queue import (
    DELAY_S_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    RECEIVE_BYTES,
    RECEIVE_MAX,
    QueueInfo,
    QueueSettings,
    TokenResult,
    check_cause,
    check_seconds,
)
from tms.model.topic import SYSTEM_NAMESPACE, Durability, TopicName, strongest
from tms.model.transaction import check_group
from tms.queues.checks import check_dead_letter, differences, not_found, parsed
from tms.queues.dead_letters import DeadLetters
from tms.queues.entries import NOWHERE, Declared, encode
from tms.queues.journal import QueueJournal
from tms.queues.queue import OpenQueue, QueueServices
from tms.queues.reading import readable_ends
from tms.queues.replay import replayed
from tms.queues.settling import Settling
from tms.queues.state import QueueState
from tms.queues.upkeep import QueueUpkeep
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics
from tms.transactions.transactions import Transactions

QUEUES = TopicName(SYSTEM_NAMESPACE, "_queues")
ENTRIES_MAX, BYTES_MAX = 200_000, 64 << 20  # of the journal that a start reads
LOOK_S = 5.0  # how long one waits before looking again, whatever happens
WAIT_S_MAX = 3_600.0
REDRIVE_MAX = 1_000_000


class Queues:
    """The queues of one engine. Thread-safe; see `QueuesApi`."""

    def __init__(self, topics: Topics, transactions: Transactions, random: Random) -> None:
        self._log = topics.fetcher
        self._registry = topics.registry
        self._clock = topics.clock
        self._random = random
        self._manager = transactions.manager
        self._journal = QueueJournal(topics.journal(QUEUES), self._replay)
        self._lock = threading.RLock()  # guards which queues there are
        self._queues: dict[tuple[str, TopicName], OpenQueue] = {}
        self._open_pointers: set[int] = set()  # of the last replay, which nobody follows yet
        self._settling = Settling(
            self._journal,
            self._manager,
            lambda group, topic: self._find(group, topic)[0],
            lambda group, topic: self._queues.get((group, topic)),
            self.opened,
            self._durability,
        )
        transactions.join(self._settling)
        self._dead = DeadLetters(topics, transactions)
        self._upkeep = QueueUpkeep(self._dead, self._known_queues, topics.clock)
        self._services = QueueServices(
            self._log, self._journal, self._clock, random, self._upkeep.kick
        )

    # -- queues ------------------------------------------------------------------------------------

    def declare(self, topic: TopicName, group: str, settings: QueueSettings) -> QueueInfo:
        """Make a queue; one that exists with the same settings is left as it is. Raises `Conflict`,
        `TopicNotFound`, `Invalid`, `Forbidden`."""
        check_group(group)
        topic.require_writable()
        check_dead_letter(group, topic, settings)
        record = self._registry.find(topic)
        self._load()
        with self._lock:
            queue = self._queues.get((group, topic))
            if queue is None:
                queue = self._make(group, topic, record, settings)
        queue, _ = self._find(group, topic)
        if queue.state.settings != settings:
            raise Conflict(
                f"The queue {group} of {topic} exists with other settings: "
                f"{differences(queue.state.settings, settings)}. Update it, or choose another "
                "name.",
                group=group,
                topic=str(topic),
            )
        return self._info(queue)

    def _make(
        self, group: str, topic: TopicName, record: TopicRecord, settings: QueueSettings
    ) -> OpenQueue:
        starts = self._starts(topic, Position.parse(settings.start))
        epoch = self._random.getrandbits(32)
        declared = Declared(settings, epoch, record.uid, self._clock.now_ms(), starts)
        queue = self._opened(group, topic, QueueState(declared))
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

    def _opened(self, group: str, topic: TopicName, state: QueueState) -> OpenQueue:
        return OpenQueue(group, topic, state, self._services)

    def update(self, topic: TopicName, group: str, changes: Mapping[str, object]) -> QueueInfo:
        """Change settings, fields of `QueueSettings`. Raises `QueueNotFound`, `Invalid`."""
        queue, _ = self._find(group, topic)
        with queue.lock:
            settings = queue.state.settings.changed(changes)
            check_dead_letter(group, topic, settings)
            declared = msgspec.structs.replace(queue.state.declared, settings=settings, starts=[])
            batch = self._journal.add([(queue.key(), encode(declared))], Durability.SYNCED)
            queue.state.change(declared)
        self._journal.wait(batch)
        return self._info(queue)

    def describe(self, topic: TopicName, group: str) -> QueueInfo:
        """How a queue stands. Raises `QueueNotFound`, `TopicNotFound`."""
        return self._info(self._find(group, topic)[0])

    def list_queues(self, topic: TopicName) -> list[QueueInfo]:
        """The queues of a topic, by name."""
        self._registry.find(topic)
        self._load()
        groups = sorted(group for group, name in self._queues if name == topic)
        return [self.describe(topic, group) for group in groups]

    def delete(self, topic: TopicName, group: str) -> None:
        """Forget a queue, also of a topic that is gone. Its dead letters stay. Raises
        `QueueNotFound`."""
        self._load()
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

    def _info(self, queue: OpenQueue) -> QueueInfo:
        try:
            ends = self._log.offsets(queue.topic, Position.latest())
        except DataCorrupt:
            partitions = self._registry.find(queue.topic).partitions
            ends = readable_ends(self._log, queue.topic, partitions)
        return queue.info(ends, self._dead.count(queue))

    def stats(self) -> list[QueueInfo]:
        """The queues that are open, without what only the log knows; for metrics."""
        return [queue.info({}, 0) for queue in self.opened()]

    # -- messages ----------------------------------------------------------------------------------

    def receive(
        self,
        topic: TopicName,
        group: str,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        """Up to `limit` messages of about `bytes_max` bytes, leased to the caller; waits up to
        `wait_s` for the first. Raises `QueueNotFound`, `Invalid`."""
        if not 1 <= limit <= RECEIVE_MAX:
            raise Invalid(f"A receive takes 1 to {RECEIVE_MAX} messages.", field="limit")
        check_seconds("wait_s", wait_s, 0, WAIT_S_MAX)
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            queue, record = self._find(group, topic)
            durability = self._durability(queue)  # a token is good once only, if that is synced
            received = queue.receive(record.partitions, limit, max(1, bytes_max), durability)
            left_s = deadline_s - self._clock.monotonic_s()
            if received is not None:
                return received
            if left_s <= 0:
                self._require_readable(queue)
                return Received(queue.state.epoch)
            woken = threading.Event()
            waiter, due_s = queue.watch(record.partitions, woken.set)
            looked = False
            try:
                woken.wait(min(left_s, LOOK_S if due_s is None else due_s))
                looked = True
            finally:
                queue.waiters.remove(waiter, looked)

    def _require_readable(self, queue: OpenQueue) -> None:
        """Nothing was found: raises `DataCorrupt` if some of it cannot be read."""
        for partition, error in queue.damage().items():
            raise DataCorrupt(
                f"The queue {queue.group} cannot read partition {partition} of {queue.topic}; it "
                f"goes on with others. {error.message}"
            )

    def warnings(self) -> list[str]:
        """Which queues cannot read all of their topics, in sentences."""
        return [
            f"The queue {queue.group} cannot read partition {partition} of {queue.topic}: "
            f"{error.message}"
            for queue in self.opened()
            for partition, error in queue.damage().items()
        ]

    def watch(
        self, topic: TopicName, group: str, callback: Callable[[], None]
    ) -> tuple[Callable[[bool], None], float | None]:
        """For those who must not wait: call `callback`, from any thread and once, when a receive
        may find something. Returns what ends the watch, to be told whether the caller receives
        afterwards or goes away; and in how many seconds to receive in any case, None: nothing is
        due."""
        queue, record = self._find(group, topic)
        waiter, due_s = queue.watch(record.partitions, callback)
        return lambda receives: queue.waiters.remove(waiter, receives), due_s

    def ack(self, topic: TopicName, group: str, tokens: Sequence[str]) -> TokenResult:
        """Settle messages: they are never delivered again."""
        parsed_ = parsed(tokens)
        queue, _ = self._find(group, topic)
        return queue.ack(parsed_, self._durability(queue))

    def nack(
        self, topic: TopicName, group: str, tokens: Sequence[str], delay_s: float | None = None
    ) -> TokenResult:
        """Give messages back: they are delivered again after `delay_s`, or the queue's back-off, or
        go to the dead letters if that was their last delivery."""
        if delay_s is not None:
            check_seconds("delay_s", delay_s, 0, DELAY_S_MAX)
        parsed_ = parsed(tokens)
        queue, _ = self._find(group, topic)
        delay_ms = None if delay_s is None else round(delay_s * 1_000)
        return queue.nack(parsed_, delay_ms, self._durability(queue))

    def extend(
        self, topic: TopicName, group: str, tokens: Sequence[str], lease_s: float | None = None
    ) -> TokenResult:
        """Let leases begin anew, for `lease_s` or as long as the queue's."""
        if lease_s is not None:
            check_seconds("lease_s", lease_s, LEASE_S_MIN, LEASE_S_MAX)
        parsed_ = parsed(tokens)
        queue, _ = self._find(group, topic)
        lease_ms = None if lease_s is None else max(1, round(lease_s * 1_000))
        return queue.extend(parsed_, lease_ms, self._durability(queue))

    def reject(
        self, topic: TopicName, group: str, tokens: Sequence[str], cause: str = ""
    ) -> TokenResult:
        """Send messages to the dead letters, with a cause."""
        check_cause(cause)
        parsed_ = parsed(tokens)
        queue, _ = self._find(group, topic)
        return queue.reject(parsed_, cause or "it was rejected", self._durability(queue))

    def redrive(self, topic: TopicName, group: str, limit: int = 1_000) -> int:
        """Publish dead letters to the topic again, up to `limit` of those that were not moved yet;
        how many. Raises `Conflict` when somebody else does it at the same time."""
        if not 1 <= limit <= REDRIVE_MAX:
            raise Invalid(f"A redrive moves 1 to {REDRIVE_MAX} messages.", field="limit")
        return self._dead.redrive(self._find(group, topic)[0], limit)

    # -- operating ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to move dead letters, and to notice ends of leases, in the background."""
        self._upkeep.start()

    def tidy(self) -> int:
        """Do what the background does: let leases end, move what is dying; how many."""
        return self._upkeep.tidy()

    def shorten_journal(self) -> None:
        """Begin the journal anew with every queue as it stands if a start would have to read more
        than `ENTRIES_MAX` entries, or `BYTES_MAX`. Cut anywhere, nothing is lost: a replay begins
        where it began before until every queue is written."""
        journal = self._journal
        if (journal.length > ENTRIES_MAX or journal.bytes > BYTES_MAX) and journal.known:
            with closing(self._snapshots()) as snapshots:
                journal.snapshot(snapshots)

    def _snapshots(self) -> Generator[list[Cells], None, None]:
        """Each queue as it stands, which waits until that is stored: no more than one does. A
        snapshot is synced, so the commits that it rests on are synced before."""
        term = self._journal.term
        for queue in self.opened():
            with self._manager.alone(durable=True), queue.lock:
                if not queue.deleted:
                    yield from together(queue.snapshot())
        if self._journal.term is not term:
            raise unreadable()

    def close(self) -> None:
        """End the background's work, and let everybody who waits look again."""
        self._upkeep.stop()
        for queue in self.opened():
            queue.waiters.wake_all()

    # -- which there are ---------------------------------------------------------------------------

    def opened(self) -> list[OpenQueue]:
        """Every queue that is known by now."""
        with self._lock:
            return [*self._queues.values()]

    def _known_queues(self) -> Iterable[OpenQueue]:
        self._load()
        return self.opened()

    def _find(self, group: str, topic: TopicName) -> tuple[OpenQueue, TopicRecord]:
        record = self._registry.find(topic)
        if not self._journal.known:
            self._load()
        queue = self._queues.get((group, topic))
        if queue is None:
            raise not_found(group, topic)
        if queue.state.declared.topic_uid != record.uid:
            self._renew(queue, record)
        return queue, record

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

    def _durability(self, queue: OpenQueue) -> Durability:
        chosen = queue.state.settings.durability or self._registry.find(queue.topic).durability
        return strongest(chosen, Durability.WRITTEN)

    def rewind(self) -> None:
        """Go back to where the log ends, where a power loss took messages that a queue had seen:
        their offsets are given again. Before anything is stored."""
        self._load()
        for queue in self.opened():
            try:
                record = self._registry.find(queue.topic)
            except TopicNotFound:
                continue
            if record.uid == queue.state.declared.topic_uid:
                queue.rewind(range(record.partitions))

    def _load(self) -> None:
        """Read the journal, unless it is known."""
        if self._journal.known:
            return
        with self._lock:
            self._journal.load()
            pointers, self._open_pointers = self._open_pointers, set()
        for pointer in pointers:
            self._settling.follow(pointer)

    def _replay(self, entries: Iterator[JournalEntry]) -> None:
        """Let the queues stand as the journal says."""
        states, self._open_pointers = replayed(
            entries, lambda pointer: self._manager.fate(pointer, True), self._clock
        )
        for place, state in states.items():
            if place in self._queues:
                self._queues[place].replace(state)
            else:
                self._queues[place] = self._opened(*place, state)
        for place in [place for place in self._queues if place not in states]:
            self._queues.pop(place).replace(None)
