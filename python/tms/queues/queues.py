"""All queues of an engine: the facade for the rooms above.

Invariants

* A queue is served from its shard; calls for shards of other processes are refused.
* A call uses the handle of its queue only while the handle is current.
"""

import heapq
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from tms.block.received import Received
from tms.errors import Conflict, DataCorrupt, Invalid, QueueNotFound, TMSError, TopicNotFound
from tms.model.dead_letters import LETTERS_MAX, LetterId
from tms.model.lag import PAGE, LagPlace, named_like
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
from tms.queues.checks import check_dead_letter, differences, parse_tokens
from tms.queues.dead_letters import DeadLetters
from tms.queues.peeking import peek
from tms.queues.queue import OpenQueue
from tms.queues.queue_shard import QueueHandle, QueueShard
from tms.queues.reading import readable_ends
from tms.queues.state import QueueState
from tms.queues.upkeep import QueueUpkeep
from tms.runtime.events import EventLog
from tms.topics.sharding import OpenShards
from tms.topics.topics import Topics
from tms.transactions.participants import InternalCommits, InternalPositions

LOOK_S = 5.0  # a waiting receive looks again at least this often
WAIT_S_MAX = 3_600.0
REDRIVE_DEFAULT = 1_000
REDRIVE_MAX = 1_000_000
_log = EventLog(__name__)


class Queues:
    """The queues of one engine. Thread-safe; see `QueuesApi`."""

    def __init__(
        self, topics: Topics, commits: InternalCommits, positions: InternalPositions, random: Random
    ) -> None:
        self._topics = topics
        self._log = topics.fetcher
        self._registry = topics.registry
        self._clock = topics.clock
        self._commits = commits
        self._random = random
        self._open_shards = OpenShards[QueueShard](topics.shards)
        self._handles: dict[tuple[TopicName, str], QueueHandle] = {}  # of queues that exist
        self._dead = DeadLetters(topics, commits, positions)
        self._upkeep = QueueUpkeep(self._dead, self._known_queues, topics.clock)

    # -- shards ------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Open a shard. A shared store takes the journal over now; otherwise it is read when it is
        needed, or rewound. Raises an error if the journal cannot be read."""
        shard = QueueShard(self._topics, number, self._random, self._upkeep.kick)
        if self._topics.partitions.are_of_several:
            shard.load()
        if not self._topics.store.shared:  # a power loss takes nothing from a shared store
            shard.rewind()
        self._open_shards.open(number, shard)

    def close(self, number: int) -> None:
        """Close a shard: waiters look again."""
        shard = self._open_shards.close(number)
        if shard is not None:
            shard.close()
        self._handles.clear()  # of this shard and others, which are opened again

    def at(self, number: int) -> QueueShard:
        """An open shard. Raises `NotOwner`, `Unavailable`."""
        return self._open_shards.at(number)

    def _of(self, topic: TopicName, group: str) -> QueueShard:
        return self._open_shards.at(self._topics.shards.of_queue(topic, group))

    def _open(self, topic: TopicName, group: str) -> QueueHandle:
        """The handle of a queue, which is opened unless the last one is current. Raises
        `QueueNotFound`, `TopicNotFound`, `NotOwner`, `Unavailable`."""
        handle = self._handles.get((topic, group))
        if handle is None or not handle.shard.is_current(handle):
            self._handles.pop((topic, group), None)
            handle = self._handles[topic, group] = self._of(topic, group).open(topic, group)
        return handle

    # -- queues ------------------------------------------------------------------------------------

    def declare(self, topic: TopicName, group: str, settings: QueueSettings) -> QueueInfo:
        """Create a queue; an existing one with the same settings stays. Raises `Conflict`,
        `TopicNotFound`, `Invalid`, `Forbidden`."""
        check_group(group)
        topic.require_writable()
        check_dead_letter(group, topic, settings)
        handle = self._of(topic, group).declare(topic, group, settings)
        current = handle.declared.settings
        if current != settings:
            raise Conflict(
                f"The queue {group} of {topic} exists with other settings: "
                f"{differences(current, settings)}. Update it, or choose another name.",
                group=group,
                topic=str(topic),
            )
        return self._info(handle)

    def update(self, topic: TopicName, group: str, changes: Mapping[str, object]) -> QueueInfo:
        """Change settings, fields of `QueueSettings`. Raises `QueueNotFound`, `Invalid`."""
        return self._info(self._of(topic, group).update(topic, group, changes))

    def describe(self, topic: TopicName, group: str) -> QueueInfo:
        """Describe a queue. Raises `QueueNotFound`, `TopicNotFound`."""
        return self._info(self._open(topic, group))

    def list_queues(self, topic: TopicName, shards: Iterable[int] | None = None) -> list[QueueInfo]:
        """The queues of a topic, by name, in some shards or in all. Raises `NotOwner` for a shard
        of another instance."""
        self._registry.find(topic)
        infos: list[QueueInfo] = []
        for group in sorted(queue.group for queue in self._all(shards) if queue.topic == topic):
            with suppress(QueueNotFound):  # deleted meanwhile
                infos.append(self.describe(topic, group))
        return infos

    def delete(self, topic: TopicName, group: str) -> None:
        """Delete a queue, also of a deleted topic; its dead letters stay. Raises
        `QueueNotFound`."""
        self._of(topic, group).delete(topic, group)
        self._handles.pop((topic, group), None)

    def page(
        self,
        namespace: str,
        after: tuple[str, str] | None = None,
        limit: int = PAGE,
        shards: Iterable[int] | None = None,
        search: str | None = None,
    ) -> list[QueueSummary]:
        """Up to `limit` queues of the topics of a namespace whose `TOPIC/GROUP` contains a text, by
        topic and group, after the one of a topic and a group, in some shards or in all. Raises
        `NotOwner`."""
        is_wanted = named_like(search)
        owned = (
            (one.topic, one.group)
            for one in self._all(shards)
            if one.topic.namespace == namespace and is_wanted(f"{one.topic.topic}/{one.group}")
        )
        return self._registry.page_of(owned, after, limit, self._summaries)

    def oldest(self, limit: int) -> list[QueueSummary]:
        """Up to `limit` queues of this instance, those created first, for metrics; empty if they
        cannot be read."""
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
                handle = self._open(topic, group)
                if topic not in bounds:
                    bounds[topic] = self._bounds(topic)
                infos.append(self._info(handle, bounds[topic]))
        first = [_first_unsettled(info) for info in infos]
        lags = self._topics.lags.of(place for some in first for place in some)
        return [
            info.summary([lags[place] for place in some])
            for info, some in zip(infos, first, strict=True)
        ]

    def _info(
        self, handle: QueueHandle, bounds: Mapping[int, tuple[int, int]] | None = None
    ) -> QueueInfo:
        queue = handle.queue
        handle.shard.settling.learn(queue)
        bounds = self._bounds(queue.topic) if bounds is None else bounds
        return queue.info(bounds, self._dead.count(queue))

    def _bounds(self, topic: TopicName) -> Mapping[int, tuple[int, int]]:
        """The readable offsets of the partitions of a topic; a damaged topic is taken to begin at
        0."""
        try:
            starts = self._log.offsets(topic, Position.earliest())
            ends = self._log.offsets(topic, Position.latest())
        except DataCorrupt:
            starts = {}
            ends = readable_ends(self._log, topic, self._registry.find(topic).partitions)
        return {number: (starts.get(number, 0), end) for number, end in ends.items()}

    def stats(self) -> list[QueueInfo]:
        """The loaded queues without numbers that only the log has, for metrics."""
        return [queue.info({}, 0) for queue in self.opened()]

    def at_rest(self, topic: TopicName, group: str, receives: bool = False) -> QueueHandle | None:
        """The handle of a queue whose tokens can be settled, or whose messages can be received,
        without waiting or reading; None for others. Never waits."""
        if self._topics.partitions.are_of_several:
            return None
        handle = self._handles.get((topic, group))
        if handle is None or not handle.shard.is_current(handle):
            return None
        return handle if handle.queue.is_at_rest(receives) else None

    # -- messages ----------------------------------------------------------------------------------

    def receive(
        self,
        topic: TopicName,
        group: str,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        """Lease up to `limit` messages of about `bytes_max` bytes to the caller; waits up to
        `wait_s` for the first. Raises `QueueNotFound`, `Invalid`."""
        if not 1 <= limit <= RECEIVE_MAX:
            raise Invalid(f"A receive takes 1 to {RECEIVE_MAX} messages.", field="limit")
        check_seconds("wait_s", wait_s, 0, WAIT_S_MAX)
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            handle = self._open(topic, group)
            queue = handle.queue
            handle.shard.settling.learn(queue)
            received = handle.receive(limit, max(1, bytes_max))
            if received is not None:
                return received
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                self._require_readable(queue)
                return Received(queue.state.epoch)
            woken = threading.Event()
            waiter, due_s = queue.watch(handle.record.partitions, woken.set)
            looked = False
            try:
                woken.wait(min(left_s, LOOK_S if due_s is None else due_s))
                looked = True
            finally:
                queue.waiters.remove(waiter, looked)

    def peek(self, topic: TopicName, group: str, limit: int = 10) -> list[QueuedMessage]:
        """Up to `limit` unsettled messages, about 4 MiB of them, without leasing them: first those
        that were delivered before. Raises `QueueNotFound`, `Invalid`."""
        if not 1 <= limit <= PEEK_MAX:
            raise Invalid(f"A look takes 1 to {PEEK_MAX} messages, got {limit}.", field="limit")
        handle = self._open(topic, group)
        handle.shard.settling.learn(handle.queue)
        return peek(handle.queue, self._log, handle.record.partitions, limit, PEEK_BYTES)

    def _require_readable(self, queue: OpenQueue) -> None:
        """Raises `DataCorrupt` if a part of the queue cannot be read."""
        for partition, error in queue.damage().items():
            raise DataCorrupt(
                f"The queue {queue.group} cannot read partition {partition} of {queue.topic}; it "
                f"goes on with others. {error.message}"
            )

    def warnings(self) -> list[str]:
        """Queues that cannot read all of their topics, in sentences."""
        return [
            f"The queue {queue.group} cannot read partition {partition} of {queue.topic}: "
            f"{error.message}"
            for queue in self.opened()
            for partition, error in queue.damage().items()
        ]

    def watch(
        self, topic: TopicName, group: str, callback: Callable[[], None]
    ) -> tuple[Callable[[bool], None], float | None]:
        """Call `callback` once, from any thread, when a receive may find a message; for callers
        that must not wait. Returns a function that ends the watch, whose argument is True if the
        caller receives afterwards; and in how many seconds to receive in any case, None if nothing
        is due."""
        handle = self._open(topic, group)
        queue = handle.queue
        waiter, due_s = queue.watch(handle.record.partitions, callback)
        return lambda receives: queue.waiters.remove(waiter, receives), due_s

    def ack(self, topic: TopicName, group: str, tokens: Sequence[str]) -> TokenResult:
        """Settle messages: they are never delivered again."""
        parsed = parse_tokens(tokens)
        handle = self._open(topic, group)
        return handle.queue.change(QueueState.settle, parsed, handle.durability, settles=True)

    def nack(
        self,
        topic: TopicName,
        group: str,
        tokens: Sequence[str],
        delay_s: float | None = None,
        cause: str = "",
    ) -> TokenResult:
        """Return messages: they are delivered again after `delay_s`, or the queue's back-off, or go
        to the dead letters, with the cause, if that was their last delivery."""
        check_cause(cause)
        if delay_s is not None:
            check_seconds("delay_s", delay_s, 0, DELAY_S_MAX)
        parsed = parse_tokens(tokens)
        handle = self._open(topic, group)
        delay_ms = None if delay_s is None else round(delay_s * 1_000)
        when_ms, random = self._clock.now_ms(), self._random
        return handle.queue.change(
            lambda state, tokens: state.nack(tokens, delay_ms, cause, when_ms, random),
            parsed,
            handle.durability,
        )

    def release(self, topic: TopicName, group: str, tokens: Sequence[str]) -> TokenResult:
        """Return messages that no worker has handled: they are delivered again at once, and this
        delivery does not count."""
        parsed = parse_tokens(tokens)
        handle = self._open(topic, group)
        return handle.queue.change(QueueState.release, parsed, handle.durability)

    def extend(
        self, topic: TopicName, group: str, tokens: Sequence[str], lease_s: float | None = None
    ) -> TokenResult:
        """Extend leases to `lease_s` from now, or to the lease of the queue."""
        if lease_s is not None:
            check_seconds("lease_s", lease_s, LEASE_S_MIN, LEASE_S_MAX)
        parsed = parse_tokens(tokens)
        handle = self._open(topic, group)
        lease_s = handle.declared.settings.lease_s if lease_s is None else lease_s
        lease_ms = max(1, round(lease_s * 1_000))
        return handle.queue.change(
            lambda state, tokens: state.extend(tokens, lease_ms, self._clock.now_ms()),
            parsed,
            handle.durability,
        )

    def reject(
        self, topic: TopicName, group: str, tokens: Sequence[str], cause: str = ""
    ) -> TokenResult:
        """Send messages to the dead letters, with a cause."""
        check_cause(cause)
        parsed = parse_tokens(tokens)
        handle = self._open(topic, group)
        reject = partial(QueueState.reject, cause=cause or "it was rejected")
        return handle.queue.change(reject, parsed, handle.durability)

    def redrive(
        self,
        topic: TopicName,
        group: str,
        limit: int = REDRIVE_DEFAULT,
        letters: Sequence[LetterId] = (),
    ) -> int:
        """Publish dead letters to the topic again: these, or up to `limit` of the oldest; returns
        how many. Those that were moved back or discarded before, or are gone, are passed over.
        Raises `Conflict` if others are settled at the same time."""
        return self._settle_dead(topic, group, limit, letters, moves=True)

    def discard(
        self,
        topic: TopicName,
        group: str,
        limit: int = REDRIVE_DEFAULT,
        letters: Sequence[LetterId] = (),
    ) -> int:
        """Settle dead letters without moving them, as `redrive` does: they stay in their topic,
        and are neither counted nor moved back any more."""
        return self._settle_dead(topic, group, limit, letters, moves=False)

    def _settle_dead(
        self, topic: TopicName, group: str, limit: int, letters: Sequence[LetterId], moves: bool
    ) -> int:
        if not 1 <= limit <= REDRIVE_MAX:
            raise Invalid(f"The limit is 1 to {REDRIVE_MAX} dead letters.", field="limit")
        if len(letters) > LETTERS_MAX:
            raise Invalid(f"One call takes at most {LETTERS_MAX} dead letters.", field="letters")
        queue = self._open(topic, group).queue
        if letters:
            return self._dead.settle(queue, letters, moves)
        return self._dead.settle_first(queue, limit, moves)

    # -- operating ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that ends leases and moves dead letters."""
        self._upkeep.start()

    def tidy(self) -> int:
        """One pass of the background thread: end leases, move dying messages; returns how many were
        moved."""
        return self._upkeep.tidy()

    def shorten_journals(self, entries_max: int) -> None:
        """Write snapshots of journals from which a start would read more than `entries_max`
        entries."""
        for shard in self._open_shards.parts.values():
            shard.settling.learn_all()
            shard.shorten(entries_max, self._commits.durable)

    def stop(self) -> None:
        """Stop the background thread, and wake all waiters."""
        self._upkeep.stop()
        for shard in self._open_shards.parts.values():
            shard.close()

    def opened(self) -> list[OpenQueue]:
        """Every loaded queue of this instance."""
        return [queue for shard in self._open_shards.parts.values() for queue in shard.opened()]

    def _all(self, shards: Iterable[int] | None) -> list[OpenQueue]:
        """The queues of some shards, or of all. Raises `NotOwner` for a shard of another
        instance."""
        return [queue for shard in self._open_shards.some(shards) for queue in shard.all()]

    def _known_queues(self) -> list[OpenQueue]:
        return [queue for shard in self._open_shards.parts.values() for queue in shard.all()]


def _age(queue: OpenQueue) -> tuple[int, TopicName, str]:
    return queue.state.declared.created_ms, queue.topic, queue.group


def _first_unsettled(info: QueueInfo) -> list[LagPlace]:
    return [
        LagPlace(info.topic, part.partition, Position.offset(part.cursor))
        for part in info.partitions
        if part.cursor < part.end
    ]
