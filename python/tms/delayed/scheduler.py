"""Moves due messages into the log.

    take ─▶ one transaction: blocks, and the position behind them ─▶ delete

The transaction decides: after a crash at any moment its entries are moved or not. One thread moves
for all topics, a batch of each in turn, so that a topic where a million messages are due does not
keep the others waiting. Between rounds that found no full batch it rests for some milliseconds:
fewer and larger commits, which a start reads again.

Invariants

* No message is moved before it is due by the wall clock, and a leap of the clock moves messages at
  most an hour early until it is confirmed (`tms.topics.retention.RetentionClock`).
* Memory is bounded: a batch of one topic.
"""

from collections.abc import Callable, Iterator

from tms.delayed.entries import GROUP
from tms.delayed.packing import blocks_of
from tms.delayed.topic_queue import DelayQueue, Taken
from tms.errors import ErrorKind, TimedOut, TMSError, TopicNotFound
from tms.model.topic import Durability
from tms.model.transaction import Commit, PositionChange, PositionKey, TopicBlock
from tms.runtime.background import BackgroundThread
from tms.runtime.events import EventLog
from tms.runtime.histogram import Histogram
from tms.topics.registry import Registry
from tms.transactions.participants import InternalCommits

BATCH_BYTES = 8 << 20
# Upper bounds of the lateness of moved messages, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
_PACE_S = 0.02  # between rounds: messages that become due meanwhile are moved together
_SLEEP_S_MAX = 0.5  # a changed wall clock is noticed within this time
_AGAIN_S, _DAMAGED_S = 0.5, 10.0  # after a failure
_TIDY_S = 30.0
_WAIT_S = 1.0
_log = EventLog(__name__)


class Scheduler(BackgroundThread):
    """Moves due messages of one engine. `start` runs it in a thread, `move` moves what is due
    now."""

    def __init__(
        self,
        registry: Registry,
        commits: InternalCommits,
        now_ms: Callable[[], int],
        topics: Callable[[], list[DelayQueue]],
        tidy: Callable[[], None],
    ) -> None:
        super().__init__("tms-delayed")
        self._registry = registry
        self._commits = commits
        self._clock = registry.clock
        self._now_ms = now_ms
        self._topics = topics
        self._tidy = tidy
        self._asleep_until_ms = 0
        self._resting: dict[int, float] = {}  # by topic uid: end of the pause after a failure
        self._troubles: dict[int, str] = {}  # by topic uid: the last failure
        self._tidy_s = self._clock.monotonic_s() + _TIDY_S
        self.lateness = Histogram(SECONDS)

    def forget(self, uid: int) -> None:
        """Drop the state of a deleted topic."""
        self._troubles.pop(uid, None)
        self._resting.pop(uid, None)

    def warnings(self) -> list[str]:
        """Topics whose due messages cannot be delivered, with the reason, in sentences."""
        troubles = (self._troubles.get(waiting.stored.uid) for waiting in self._topics())
        return [text for text in troubles if text is not None]

    def wake(self, due_ms: int) -> None:
        """Wake the thread if it would sleep longer than until `due_ms`."""
        if due_ms < self._asleep_until_ms:
            self._wake.set()

    def look(self) -> None:
        """Load topics that are not loaded; failures are tried again."""
        for waiting in self._topics():
            if self._stop.is_set():
                return
            try:
                waiting.look()
            except TMSError as error:
                _log.warning("looking_failed", topic=str(waiting.stored.name), error=error.message)

    def move(self) -> int:
        """Move all due messages; returns their number, and counts cancelled ones in batches of
        nothing else."""
        total = 0
        while moved := self.move_some():
            total += moved
        return total

    def move_some(self) -> int:
        """Move a batch of each topic with due messages; returns the number of messages."""
        return sum(self._move_of(waiting) for waiting in self._topics())

    def tidy(self) -> None:
        """Delete requests and marks that are remembered no longer."""
        for waiting in self._topics():
            try:
                waiting.tidy()
            except TMSError as error:
                _log.warning("tidying_failed", topic=str(waiting.stored.name), error=error.message)

    def _move_of(self, waiting: DelayQueue) -> int:
        stored, now_ms = waiting.stored, self._now_ms()
        due_ms = waiting.next_due_ms
        if due_ms is None or due_ms > now_ms or self._is_early(stored.uid):
            return 0
        try:
            taken = waiting.take(now_ms, BATCH_BYTES)
            moved = 0 if taken is None else self._commit(waiting, taken)
            self._troubles.pop(stored.uid, None)
            return moved
        except TopicNotFound:
            return 0  # it was deleted meanwhile
        except TMSError as error:
            _log.warning("moving_failed", topic=str(stored.name), error=error.message)
            rest_s = _DAMAGED_S if error.kind is ErrorKind.CORRUPT else _AGAIN_S
            text = error.message
        except Exception as error:
            _log.exception("moving_failed", topic=str(stored.name))
            rest_s, text = _AGAIN_S, type(error).__name__
        self._resting[stored.uid] = self._clock.monotonic_s() + rest_s
        self._troubles[stored.uid] = f"Delayed messages of {stored.name} are not delivered: {text}"
        return 0

    def _commit(self, waiting: DelayQueue, taken: Taken) -> int:
        name = waiting.stored.name
        try:
            blocks, counts = blocks_of(taken.entries, taken.cancelled)
            taken = taken.first(len(counts))
            messages = sum(count for _, count in counts)
            # In a shared store the position also covers cancelled entries, so that a later owner
            # does not take their request for one that was not stored whole.
            counted = bool(blocks) or waiting.stored.shared
            if counted:
                before = taken.before
                change = PositionChange(
                    PositionKey(GROUP, name, 0),
                    taken.moved.position(),
                    str(before.position()) if before.before else "",
                    waiting.stored.position_owner,
                )
                request = Commit(
                    blocks=tuple(TopicBlock(name, new) for new in blocks),
                    positions=(change,),
                    durability=Durability.SYNCED,
                )
                self._carry_out(waiting, request)
        except BaseException:
            waiting.release()
            raise
        now_ms = self._clock.now_ms()
        for due_ms, count in counts:
            self.lateness.observe(max(0, now_ms - due_ms) / 1000, count)
        waiting.done(taken, messages, committed=counted)
        return messages or len(taken.entries)

    def _carry_out(self, waiting: DelayQueue, request: Commit) -> None:
        """Commit, and wait for the outcome, however long it takes: before it is known,
        cancellations cannot be decided."""

        def begun() -> None:
            self._require_alive(waiting)
            waiting.stored.require_owned()

        pending = self._commits.submit_internal(request, begun)
        while True:
            try:
                pending.result(_WAIT_S)
                return
            except TimedOut:
                if pending.done():
                    raise

    def _require_alive(self, waiting: DelayQueue) -> None:
        """Raises `TopicNotFound` if the name belongs to another topic now."""
        name, uid = waiting.stored.name, waiting.stored.uid
        if waiting.retired is not None or self._registry.find(name).uid != uid:
            raise TopicNotFound(f"The topic {name} was deleted.", topic=str(name))

    def _is_early(self, uid: int) -> bool:
        """True if the topic is paused after a failure."""
        until_s = self._resting.get(uid)
        if until_s is None:
            return False
        if self._clock.monotonic_s() < until_s:
            return True
        self._resting.pop(uid, None)
        return False

    def _run(self) -> None:
        self.look()
        while not self._stop.is_set():
            try:
                if self._clock.monotonic_s() >= self._tidy_s:
                    self._tidy_s = self._clock.monotonic_s() + _TIDY_S
                    self._tidy()
                began_ms = self._now_ms()
                moved, learning = self.move_some(), self._learn()
                if moved and not learning and all(due_ms > began_ms for due_ms in self._due_ms()):
                    self._stop.wait(_PACE_S)
                if moved or learning:
                    continue
            except TMSError as error:
                _log.warning("tidying_failed", error=error.message)
            except Exception:
                _log.exception("moving_failed")
            self._sleep()

    def _learn(self) -> bool:
        return any(waiting.learn() for waiting in self._topics())

    def _due_ms(self) -> Iterator[int]:
        """The due times of topics that are not paused after a failure."""
        for waiting in self._topics():
            due_ms = waiting.next_due_ms
            if due_ms is not None and waiting.stored.uid not in self._resting:
                yield due_ms

    def _sleep(self) -> None:
        self._wake.clear()
        now_ms = self._now_ms()
        until_ms = now_ms + int(_SLEEP_S_MAX * 1000)
        self._asleep_until_ms = until_ms
        until_ms = min([until_ms, *self._due_ms()])
        if until_ms > now_ms and not self._stop.is_set():
            self._wake.wait((until_ms - now_ms) / 1000)
        self._asleep_until_ms = 0
