"""All queues of an engine: the facade for the rooms above.

Invariants

* What concerns a queue is answered from its shard; one that this process does not keep is refused.
"""

import heapq
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random

from tms.block.received import Received
from tms.errors import (
    Conflict,
    DataCorrupt,
    Invalid,
    QueueNotFound,
    TMSError,
    TopicNotFound,
)
from tms.events import EventLog
from tms.model.lag import PAGE, LagPlace
from tms.model.position import Position
from tms.model.queue import (
    DELAY_S_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    PEEK_BYTES,
    PEEK_MAX,
    RECEIVE_BYTES,
    RECEIVE_MAX,
    QueuedMessage,
    QueueInfo,
    QueueSettings,
    QueueSummary,
    TokenResult,
    check_cause,
    check_seconds,
)
from tms.model.topic import TopicName
from tms.model.transaction import check_group
from tms.queues.checks import check_dead_letter, differences, parsed
from tms.queues.dead_letters import DeadLetters
from tms.queues.peeking import peek
from tms.queues.queue import OpenQueue
from tms.queues.queue_shard import QueueShard
from tms.queues.reading import readable_ends
from tms.queues.upkeep import QueueUpkeep
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics
from tms.transactions.participants import OwnCommits, OwnPositions

LOOK_S = 5.0  # how long one waits before looking again, whatever happens
WAIT_S_MAX = 3_600.0
REDRIVE_MAX = 1_000_000
_log = EventLog(__name__)


class Queues:
    """The queues of one engine. Thread-safe; see `QueuesApi`."""

    def __init__(
        self, topics: Topics, commits: OwnCommits, positions: OwnPositions, random: Random
    ) -> None:
        self._topics = topics
        self._log = topics.fetcher
        self._registry = topics.registry
        self._clock = topics.clock
        self._commits = commits
        self._random = random
        self._lock = threading.Lock()  # held by who changes what is kept
        self._kept: dict[int, QueueShard] = {}
        self._dead = DeadLetters(topics, commits, positions)
        self._upkeep = QueueUpkeep(self._dead, self._known_queues, topics.clock)

    # -- shards ------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Keep a shard. In a store of several the journal is taken over now, else it is read when
        it is needed, or has to be rewound. Raises what keeps it from being read."""
        shard = QueueShard(self._topics, number, self._random, self._upkeep.kick)
        if self._topics.partitions.are_of_several:
            shard.load()
        if not self._topics.store.shared:  # what is stored there outlives its machines
            shard.rewind()
        with self._lock:
            self._kept = {**self._kept, number: shard}

    def close(self, number: int) -> None:
        """Keep it no more: who waits looks again."""
        with self._lock:
            shard = self._kept.get(number)
            self._kept = {n: kept for n, kept in self._kept.items() if n != number}
        if shard is not None:
            shard.close()

    def at(self, number: int) -> QueueShard:
        """A shard that is kept here. Raises `NotOwner`, `Unavailable`."""
        shard = self._kept.get(number)
        if shard is None:
            raise self._topics.shards.missing(number)
        return shard

    def _of(self, topic: TopicName, group: str) -> QueueShard:
        return self.at(self._topics.shards.of_queue(topic, group))

    def _find(self, group: str, topic: TopicName) -> tuple[OpenQueue, TopicRecord]:
        return self._of(topic, group).find(group, topic)

    # -- queues ------------------------------------------------------------------------------------

    def declare(self, topic: TopicName, group: str, settings: QueueSettings) -> QueueInfo:
        """Make a queue; one that exists with the same settings is left as it is. Raises `Conflict`,
        `TopicNotFound`, `Invalid`, `Forbidden`."""
        check_group(group)
        topic.require_writable()
        check_dead_letter(group, topic, settings)
        queue = self._of(topic, group).declare(topic, group, settings)
        if queue.state.settings != settings:
            raise Conflict(
                f"The queue {group} of {topic} exists with other settings: "
                f"{differences(queue.state.settings, settings)}. Update it, or choose another "
                "name.",
                group=group,
                topic=str(topic),
            )
        return self._info(queue)

    def update(self, topic: TopicName, group: str, changes: Mapping[str, object]) -> QueueInfo:
        """Change settings, fields of `QueueSettings`. Raises `QueueNotFound`, `Invalid`."""
        return self._info(self._of(topic, group).update(topic, group, changes))

    def describe(self, topic: TopicName, group: str) -> QueueInfo:
        """How a queue stands. Raises `QueueNotFound`, `TopicNotFound`."""
        return self._info(self._find(group, topic)[0])

    def list_queues(self, topic: TopicName, shards: Iterable[int] | None = None) -> list[QueueInfo]:
        """The queues of a topic, by name, in some shards or in all. Raises `NotOwner` for one that
        is not kept here."""
        self._registry.find(topic)
        numbers = range(self._topics.shards.count) if shards is None else shards
        queues = [queue for number in numbers for queue in self.at(number).all()]
        groups = sorted(queue.group for queue in queues if queue.topic == topic)
        return [self.describe(topic, group) for group in groups]

    def delete(self, topic: TopicName, group: str) -> None:
        """Forget a queue, also of a topic that is gone. Its dead letters stay. Raises
        `QueueNotFound`."""
        self._of(topic, group).delete(topic, group)

    def page(
        self,
        namespace: str,
        after: tuple[str, str] | None = None,
        limit: int = PAGE,
        shards: Iterable[int] | None = None,
    ) -> list[QueueSummary]:
        """Up to `limit` queues of the topics of a namespace, by topic and group, after the one of a
        topic and a group, in some shards or in all. Raises `NotOwner`."""
        numbers = range(self._topics.shards.count) if shards is None else shards
        begin = after or ("", "")
        queues = [queue for number in numbers for queue in self.at(number).all()]
        places = {
            (queue.topic.topic, queue.group): queue.topic
            for queue in queues
            if queue.topic.namespace == namespace
        }
        exist = {topic for topic in {*places.values()} if self._exists(topic)}
        behind = (at for at, topic in places.items() if at > begin and topic in exist)
        return self._summaries((places[at], at[1]) for at in heapq.nsmallest(limit, behind))

    def oldest(self, limit: int) -> list[QueueSummary]:
        """The queues that are kept here and were made first, up to `limit`; for metrics. Where
        nothing can be told: none."""
        queues = heapq.nsmallest(limit, self.opened(), key=_age)
        try:
            return self._summaries((queue.topic, queue.group) for queue in queues)
        except TMSError as error:
            _log.warning("queues_unknown", why=str(error))
            return []

    def _summaries(self, places: Iterable[tuple[TopicName, str]]) -> list[QueueSummary]:
        infos: list[QueueInfo] = []
        bounds: dict[TopicName, Mapping[int, tuple[int, int]]] = {}
        for topic, group in places:
            with suppress(QueueNotFound, TopicNotFound):  # deleted meanwhile
                queue = self._find(group, topic)[0]
                if topic not in bounds:
                    bounds[topic] = self._bounds(topic)
                infos.append(self._info(queue, bounds[topic]))
        first = [_first_unsettled(info) for info in infos]
        lags = self._topics.lags.of(place for some in first for place in some)
        return [
            info.summary([lags[place] for place in some])
            for info, some in zip(infos, first, strict=True)
        ]

    def _exists(self, topic: TopicName) -> bool:
        try:
            self._registry.find(topic)
        except TopicNotFound:
            return False
        return True

    def _info(
        self, queue: OpenQueue, bounds: Mapping[int, tuple[int, int]] | None = None
    ) -> QueueInfo:
        self._of(queue.topic, queue.group).settling.learn(queue)
        bounds = self._bounds(queue.topic) if bounds is None else bounds
        return queue.info(bounds, self._dead.count(queue))

    def _bounds(self, topic: TopicName) -> Mapping[int, tuple[int, int]]:
        """The offsets within which the partitions of a topic can be read; of a damaged one from 0
        on."""
        try:
            starts = self._log.offsets(topic, Position.earliest())
            ends = self._log.offsets(topic, Position.latest())
        except DataCorrupt:
            starts = {}
            ends = readable_ends(self._log, topic, self._registry.find(topic).partitions)
        return {number: (starts.get(number, 0), end) for number, end in ends.items()}

    def stats(self) -> list[QueueInfo]:
        """The queues that are open, without what only the log knows; for metrics."""
        return [queue.info({}, 0) for queue in self.opened()]

    def is_at_rest(self, topic: TopicName, group: str, receives: bool = False) -> bool:
        """Whether tokens are settled, or messages received, without waiting for anybody and reading
        anything, as far as can be seen. Never waits."""
        if self._topics.partitions.are_of_several:
            return False
        shard = self._kept.get(self._topics.shards.of_queue(topic, group))
        queue = None if shard is None else shard.known(topic, group)
        return queue is not None and queue.is_at_rest(receives)

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
            shard = self._of(topic, group)
            queue, record = shard.find(group, topic)
            shard.settling.learn(queue)
            durability = shard.durability(queue)  # a token is good once only, if that is synced
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

    def peek(self, topic: TopicName, group: str, limit: int = 10) -> list[QueuedMessage]:
        """Up to `limit` messages that are not settled, about 4 MiB of them, without leasing them:
        first those that were delivered before. Raises `QueueNotFound`, `Invalid`."""
        if not 1 <= limit <= PEEK_MAX:
            raise Invalid(f"A look takes 1 to {PEEK_MAX} messages, got {limit}.", field="limit")
        shard = self._of(topic, group)
        queue, record = shard.find(group, topic)
        shard.settling.learn(queue)
        return peek(queue, self._log, record.partitions, limit, PEEK_BYTES)

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
        shard = self._of(topic, group)
        queue, _ = shard.find(group, topic)
        return queue.ack(parsed_, shard.durability(queue))

    def nack(
        self,
        topic: TopicName,
        group: str,
        tokens: Sequence[str],
        delay_s: float | None = None,
        cause: str = "",
    ) -> TokenResult:
        """Give messages back: they are delivered again after `delay_s`, or the queue's back-off, or
        go to the dead letters, with the cause, if that was their last delivery."""
        check_cause(cause)
        if delay_s is not None:
            check_seconds("delay_s", delay_s, 0, DELAY_S_MAX)
        parsed_ = parsed(tokens)
        shard = self._of(topic, group)
        queue, _ = shard.find(group, topic)
        delay_ms = None if delay_s is None else round(delay_s * 1_000)
        return queue.nack(parsed_, delay_ms, cause, shard.durability(queue))

    def extend(
        self, topic: TopicName, group: str, tokens: Sequence[str], lease_s: float | None = None
    ) -> TokenResult:
        """Let leases begin anew, for `lease_s` or as long as the queue's."""
        if lease_s is not None:
            check_seconds("lease_s", lease_s, LEASE_S_MIN, LEASE_S_MAX)
        parsed_ = parsed(tokens)
        shard = self._of(topic, group)
        queue, _ = shard.find(group, topic)
        lease_ms = None if lease_s is None else max(1, round(lease_s * 1_000))
        return queue.extend(parsed_, lease_ms, shard.durability(queue))

    def reject(
        self, topic: TopicName, group: str, tokens: Sequence[str], cause: str = ""
    ) -> TokenResult:
        """Send messages to the dead letters, with a cause."""
        check_cause(cause)
        parsed_ = parsed(tokens)
        shard = self._of(topic, group)
        queue, _ = shard.find(group, topic)
        return queue.reject(parsed_, cause or "it was rejected", shard.durability(queue))

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

    def shorten_journals(self, entries_max: int) -> None:
        """Let a start read the queues as they are now where it had more entries to read."""
        for shard in self._kept.values():
            shard.settling.learn_all()
            shard.shorten(entries_max, self._commits.durable)

    def stop(self) -> None:
        """End the background's work, and let everybody who waits look again."""
        self._upkeep.stop()
        for shard in self._kept.values():
            shard.close()

    def opened(self) -> list[OpenQueue]:
        """Every queue that is kept here and known by now."""
        return [queue for shard in self._kept.values() for queue in shard.opened()]

    def _known_queues(self) -> list[OpenQueue]:
        return [queue for shard in self._kept.values() for queue in shard.all()]


def _age(queue: OpenQueue) -> tuple[int, TopicName, str]:
    return queue.state.declared.created_ms, queue.topic, queue.group


def _first_unsettled(info: QueueInfo) -> list[LagPlace]:
    return [
        LagPlace(info.topic, part.partition, Position.offset(part.cursor))
        for part in info.partitions
        if part.cursor < part.end
    ]
