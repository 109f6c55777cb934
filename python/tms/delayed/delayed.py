"""The delayed messages of an engine, over all topics.

Invariants

* No waiting message of a deleted topic is ever delivered.
* A message that was acknowledged is stored as durably as its topic says.
"""

import threading
from collections.abc import Collection, Sequence
from hashlib import blake2b
from itertools import islice

from tms.block import BlockHeader, decode
from tms.delayed.changes import Addition, CheckedBlock
from tms.delayed.entries import hashed
from tms.delayed.erasing import DelayedEraseTarget, DelayedErasing
from tms.delayed.scheduler import Scheduler
from tms.delayed.stored_queue import StoredDelayQueue
from tms.delayed.topic_queue import DelayQueue
from tms.errors import Closed, Invalid, TMSError, TopicNotFound, again
from tms.log.pending import Pending
from tms.model import keys
from tms.model.delayed import (
    Deferred,
    DelayedId,
    DelayedInfo,
    DelayedMessage,
    DelayedPage,
    DelayedSummary,
    Due,
)
from tms.model.lag import PAGE
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName
from tms.runtime.histogram import Histogram
from tms.topics.retention import RetentionClock
from tms.topics.topics import Topics
from tms.transactions.participants import InternalCommits, InternalPositions

LIST_MAX = 10_000
LIST_BYTES = 8 << 20
_SCAN_BYTES = 1 << 20
CLOSE_S = 0.5
_TIMEOUT_S = 30.0


class DelayedMessages:
    """The delayed messages of an engine. Thread-safe."""

    def __init__(
        self, topics: Topics, commits: InternalCommits, positions: InternalPositions
    ) -> None:
        self._shards = topics.shards
        self._store = topics.store
        self._registry = topics.registry
        self._publisher = topics.publisher
        self._positions = positions
        self._clock = topics.clock
        self._time = RetentionClock(topics.clock, None)
        self._run_in_background = topics.run_in_background
        self._lock = threading.Lock()  # guards what follows
        self._shards_here: frozenset[int] = frozenset()
        self._waiting: dict[int, DelayQueue] = {}  # by topic uid
        self._gone: TMSError | None = None
        self._deleted: set[int] = set()
        self._scheduler = Scheduler(
            topics.registry, commits, self._time.now_ms, self._topics, self.tidy
        )

    # -- shards ------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Open the delayed messages of the topics of a shard."""
        with self._lock:
            self._shards_here |= {number}
        self.find(at_start=True)

    def close(self, number: int) -> None:
        """Close the delayed messages of the topics of a shard. Waits at most `CLOSE_S` for all of
        their writers: if the store does not answer one, the epoch of the next owner refuses it."""
        with self._lock:
            self._shards_here -= {number}
            gone = [
                self._waiting.pop(uid)
                for uid, waiting in [*self._waiting.items()]
                if self._shards.of_delayed(waiting.stored.name) == number
            ]
        self._retire(gone, self._shards.missing(number), CLOSE_S)

    def _retire(self, gone: Sequence[DelayQueue], reason: TMSError, timeout_s: float = -1) -> None:
        until_s = self._clock.monotonic_s() + timeout_s
        for waiting in gone:
            left_s = max(0.0, until_s - self._clock.monotonic_s()) if timeout_s >= 0 else -1
            waiting.retire(reason, left_s)
            self._scheduler.forget(waiting.stored.uid)
            self._store.close_maps(keys.delayed_map(waiting.stored.uid))

    @property
    def lateness(self) -> Histogram:
        """The lateness of moved messages, in seconds."""
        return self._scheduler.lateness

    @property
    def waiting(self) -> int:
        """The number of waiting messages in all open topics."""
        return sum(queue.stored.waiting for queue in self._topics())

    def warnings(self) -> list[str]:
        """Topics whose due messages cannot be delivered, with the reason, in sentences."""
        return self._scheduler.warnings()

    # -- publishing and cancelling -----------------------------------------------------------------

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None = None,
        token: str = "",
        may_wait: bool = False,
    ) -> Pending[list[Deferred]]:
        """Check blocks and store them until they are due; the calling thread writes, and waits for
        others that write, only if it may. With a token a repetition within ten minutes gets the
        first answer, and stores nothing. Raises an error for invalid blocks."""
        name.require_writable()
        if not blocks:
            raise Invalid("There is nothing to publish: give at least one block.")
        if durability is None:
            durability = self._registry.find(name).durability
        headers = self._publisher.check(name, blocks)
        due.after(self._time.now_ms())  # raises `Invalid` for a time that cannot be stored
        addition = Addition(
            [
                CheckedBlock(new.partition, header.count, new.block)
                for new, header in zip(blocks, headers, strict=True)
            ],
            due,
            durability,
            hashed(token) if token else b"",
            _digest(blocks, headers, due),
        )
        self._of(name).submit(addition, may_wait)
        return addition.answer

    def publish(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None = None,
        token: str = "",
        timeout_s: float = _TIMEOUT_S,
    ) -> list[Deferred]:
        """Store blocks until they are due, and wait until they are stored; returns the outcome of
        each block, in the order given."""
        pending = self.submit(name, blocks, due, durability, token, may_wait=True)
        return pending.result(timeout_s)[0]

    def cancel(self, name: TopicName, id: DelayedId, timeout_s: float = _TIMEOUT_S) -> bool:
        """Cancel a message; True if it is never delivered, False if it is too late or does not
        exist. A repetition gets the same answer for at least ten minutes."""
        name.require_writable()
        durability = self._registry.find(name).durability
        return self._of(name).cancel(id, durability, timeout_s)

    def erase(
        self,
        name: TopicName,
        key: bytes,
        partition: int | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> int:
        """Cancel the waiting messages with a key, of one partition or of all, and remove their
        bytes from the store; returns how many. Messages that are being moved meanwhile are in the
        log when this returns. Repeat it after a failure."""
        name.require_writable()
        return DelayedErasing(self._of(name), DelayedEraseTarget(key, partition), timeout_s).run()

    # -- looking -----------------------------------------------------------------------------------

    def topics(
        self,
        namespace: str,
        after: str | None = None,
        limit: int = PAGE,
        shards: Collection[int] | None = None,
    ) -> list[DelayedSummary]:
        """Up to `limit` topics of a namespace of which messages wait, by name, after the one named
        `after`, in some shards or in all. Raises `NotOwner`, `Unavailable`."""
        wanted = range(self._shards.count) if shards is None else shards
        for number in wanted:
            if number not in self._shards_here:
                raise self._shards.missing(number)
        queues = {
            name.topic: queue
            for queue in self._topics()
            if (name := queue.stored.name).namespace == namespace
            and name.topic > (after or "")
            and self._shards.of_delayed(name) in wanted
        }
        summaries = (_summary(queues[topic]) for topic in sorted(queues))
        return list(islice((one for one in summaries if one is not None), limit))

    def info(self, name: TopicName) -> DelayedInfo:
        """The number of waiting messages of a topic, and the time at which the first is due."""
        return self._of(name).info()

    def page(
        self, name: TopicName, after: DelayedId | None = None, limit: int = 100
    ) -> DelayedPage:
        """The number of waiting messages of a topic, the time at which the first is due, and up to
        `limit` of them."""
        info = self.info(name)
        messages = self.messages(name, after, limit) if limit else []
        return DelayedPage(info.waiting, info.next_due_ms, messages)

    def messages(
        self, name: TopicName, after: DelayedId | None = None, limit: int = 100
    ) -> list[DelayedMessage]:
        """Up to `limit` waiting messages after the one with the id `after`, by due time; fewer if
        they are large, but at least one if there is one."""
        if not 0 < limit <= LIST_MAX:
            raise Invalid(f"limit is 1 to {LIST_MAX}, got {limit}.", field="limit")
        waiting = self._of(name)
        messages: list[DelayedMessage] = []
        if waiting.info().next_due_ms is None:
            return messages
        stored, start = waiting.stored, after or DelayedId(0, 0)
        held = stored.holding(start) if after is not None else None
        start = start if held is None else held.id
        left = LIST_BYTES
        while len(messages) < limit and (left > 0 or not messages):
            entries = stored.scan(start, None, _SCAN_BYTES)
            if not entries:
                break
            start = entries[-1].end
            cancelled = stored.cancelled(entries[0].id, start)
            for entry in entries:
                if stored.moved.covers(entry.id):
                    continue
                if left <= 0 and messages:
                    return messages[:limit]
                gone, columns = entry.places_of(cancelled), decode(entry.block)
                left -= columns.cell_bytes
                cells = zip(
                    columns.keys(),
                    columns.values(),
                    columns.headers(),
                    columns.event_times(),
                    strict=True,
                )
                messages += [
                    DelayedMessage(id, entry.partition, *cell)
                    for at, cell in enumerate(cells)
                    if at not in gone and (id := entry.id_at(at)) > (after or ())
                ]
        return messages[:limit]

    # -- the scheduler, and the end ----------------------------------------------------------------

    def start(self) -> None:
        """Begin moving what is due in the background."""
        self._scheduler.start()

    def move(self) -> int:
        """Move what is due now; how many messages."""
        self._scheduler.look()
        return self._scheduler.move()

    def find(self, at_start: bool = False) -> None:
        """Know the topics of which something may wait. What others have begun since the start is
        left to them, as long as they deliver it."""
        uids = {keys.topic_of_map(n) for n in self._store.names("t") if keys.is_delayed_map(n)}
        if uids <= self._waiting.keys():
            return
        for name, record in self._registry.all():
            with self._lock:
                is_kept = self._shards.of_delayed(name) in self._shards_here
                if is_kept and record.uid in uids - self._waiting.keys() - self._deleted:
                    queue = self._waiting[record.uid] = self._make(name, record.uid)
                    if at_start:
                        queue.stored.lost = False

    def tidy(self) -> None:
        """Delete what is remembered no longer; in a store of several, look what others began."""
        self._scheduler.tidy()
        if self._store.shared:
            self.find()
            self._scheduler.look()

    def confirm_clock(self) -> None:
        """Believe the wall clock after a jump."""
        self._time.confirm()

    def forget(self, uid: int) -> None:
        """The topic is deleted: nothing of it comes in or goes out any more."""
        with self._lock:
            self._deleted.add(uid)
            gone = self._waiting.pop(uid, None)
        if gone is not None:
            gone.retire(TopicNotFound("The topic was deleted."))
            self._scheduler.forget(uid)

    def stop(self) -> None:
        """Stop moving, and let nothing new in."""
        reason = Closed("The engine is closed; open it again.")
        with self._lock:
            self._gone = reason
        self._scheduler.stop()
        self._retire(self._topics(), reason)

    # -- parts -------------------------------------------------------------------------------------

    def _of(self, name: TopicName) -> DelayQueue:
        uid = self._registry.find(name).uid
        queue = self._waiting.get(uid)
        if queue is not None:
            return queue
        number = self._shards.of_delayed(name)
        with self._lock:
            if self._gone is not None:
                raise again(self._gone)
            if number not in self._shards_here:
                raise self._shards.missing(number)
            if uid in self._deleted:
                raise TopicNotFound(f"The topic {name} was deleted.", topic=str(name))
            return self._waiting.setdefault(uid, self._make(name, uid))

    def _make(self, name: TopicName, uid: int) -> DelayQueue:
        return DelayQueue(
            StoredDelayQueue(self._store, name, uid, self._positions),
            self._clock,
            self._time.now_ms,
            self._run_in_background,
            self._scheduler.wake,
        )

    def _topics(self) -> list[DelayQueue]:
        with self._lock:
            return list(self._waiting.values())


def _summary(queue: DelayQueue) -> DelayedSummary | None:
    """A topic with its delayed messages; None if there are none, or it is being deleted."""
    try:
        info = queue.info()
    except TopicNotFound:
        return None
    if info.next_due_ms is None:
        return None
    return DelayedSummary(str(queue.stored.name), info.waiting, info.next_due_ms)


def _digest(blocks: Sequence[NewBlock], headers: Sequence[BlockHeader], due: Due) -> str:
    """A digest that a repetition of a request shares with the request."""
    parts = [
        (new.partition, header.count, header.crc)
        for new, header in zip(blocks, headers, strict=True)
    ]
    text = repr((due.at_ms, due.delay_ms, parts))
    return blake2b(text.encode(), digest_size=12).hexdigest()
