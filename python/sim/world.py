"""One engine in one thread: its store, its clock, its background work and its crashes.

Invariants

* Nothing here reads a clock, a thread or chance except through the world: the same seed takes the
  same steps.
* Background work runs between steps, or when a step waits for it; never on its own.
* A crash strikes at an operation of the store, between any two of them; operations of the dying
  engine no longer reach the store.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from random import Random
from threading import Lock
from typing import Any
from unittest.mock import patch

from sim.bounds.drawing import Bounds
from sim.disk import Disk
from sim.faulty import FaultyStore
from sim.history import Clock, Crashed, History, Place
from tms.engine.engine import Engine
from tms.errors import TMSError
from tms.log import pending
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.queues.queue_shard import BYTES_MAX
from tms.queues.queues import Queues
from tms.topics.compaction.compaction import CompactionLimits
from tms.topics.filtering import FetchBounds as FilterBounds

START_MS = 1_700_000_000_000
FOREVER = TopicSettings(2, None, None, Durability.SYNCED)
SHARED_SHARE = 0.25  # of the runs: the store is shared with other writers, so each start seals


class Stuck(Exception):
    """A run does not end though nothing fails any more."""


class Died(BaseException):
    """The process dies at this line."""


class VirtualClock:
    """The clock of an engine, set by the world. The history notes its course."""

    def __init__(self, history: History, ahead_ms: int = 0) -> None:
        self._history = history
        self._ahead_ms = ahead_ms  # how far it is ahead; at most, with instances
        self.wall_ms = START_MS
        self.passed_ms = 0
        self._note()

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.passed_ms / 1000

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.passed_ms += ms
        self.jump_ms(ms)

    def jump_ms(self, ms: int) -> None:
        """Let the wall clock jump."""
        self.wall_ms += ms
        self._note()

    def _note(self) -> None:
        self._history.add(Clock(self._history.now(), self.wall_ms, self._ahead_ms))


class Background(Executor):
    """Work that waits until the world lets it run."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], object]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue it; the future is never read."""
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> bool:
        """Do the oldest piece of work; True if there was one."""
        if not self.waiting:
            return False
        self.waiting.popleft()()
        return True

    def passes(self, gate: Lock, timeout_s: float | None) -> bool:
        """Run queued work until the answer is there; False if the queue runs empty before."""
        while not gate.acquire(blocking=False):
            if not self.run():
                return False
        gate.release()
        return True


class AtOnce(Executor):
    """Runs work immediately."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it; the future is never read."""
        fn(*args, **kwargs)
        return Future()


class World:
    """The state that the actors of a simulation share."""

    steps = 220  # of a run
    crowded = False  # True if others publish while an actor is in the middle of a step

    wakes = True  # True if a waiting reader is woken as soon as there are messages

    looked_through: Place | None = None  # the partition that is about to be scanned

    def __init__(self, seed: int, topics: tuple[str, ...], bounds: Bounds) -> None:
        self.random = Random(seed)
        self._config = bounds.config(compaction=bounds.make(CompactionLimits, dirty_ratio=0.0))
        self.producers_max = self._config.log.producers
        self._filtering = bounds.make(FilterBounds)
        self.history = History()
        self.clock = VirtualClock(self.history)
        self.background = Background()
        self.life = 0  # of the engine: a crash begins the next
        self.era = 0  # within an era the clock tells leases: no crash, no jump
        self.between: Callable[[], None] = lambda: None  # happens before operations of the store
        self._dies_in = -1
        self._with_power = False
        self._inside = False
        self.disk = Disk(shared=self.random.random() < SHARED_SHARE)
        self.store = FaultyStore(self.disk, self._before)
        self.engine = self._open()
        for topic in topics:
            durability = self.random.choice((Durability.SYNCED, Durability.WRITTEN))
            settings = TopicSettings(2, None, None, durability)
            self.engine.create_topic(TopicName.parse(topic), settings)

    def answering(self, random: Random) -> Engine | None:
        """An engine that answers followers."""
        return self.engine

    def lives(self, engine: Engine) -> bool:
        """True if the engine's process lives."""
        return engine is self.engine

    def at(self, engine: Engine) -> AbstractContextManager[None]:
        """Within, the engine does something."""
        return nullcontext()

    def engines(self) -> list[Engine]:
        """The engines that live."""
        return [self.engine]

    def close_shard(self, group: str) -> None:
        """Close the shard of a group, as before another instance takes it."""
        self.engine.shards.close(self.engine.topics.shards.of_group(group))

    def hold_shard(self, group: str) -> None:
        """Open the shard of a group unless it is open. Raises an error if the disk fails."""
        self.engine.shards.open(self.engine.topics.shards.of_group(group))

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Within, nothing happens between operations of the store: the other events of a run, and
        its crashes, are as they would be without these operations."""
        before, self._inside, self._dies_in = (self._inside, self._dies_in), True, -1
        try:
            yield
        finally:
            self._inside, self._dies_in = before

    def stir(self) -> None:
        """Let an event happen between engines, in a world of several."""

    def settle_roles(self) -> None:
        """Do the work that instances do by themselves within a second, in a world of several."""

    def die_soon(self, operations: int, power: bool) -> None:
        """Let the process die this many operations of the store later."""
        self._dies_in = operations
        self._with_power = power and not self.store.shared  # others keep the writes

    def jump(self, ms: int) -> None:
        """Let the wall clock jump."""
        self.clock.jump_ms(ms)
        self.era += 1

    def step(self, work: Callable[[], None]) -> None:
        """Run a step; if the process dies during it, start a new one."""
        waits, pending._passes = pending._passes, self.background.passes
        try:
            work()
        except Died:
            self.restart()
        finally:
            pending._passes = waits

    def restart(self) -> None:
        """Start again, after a crash, on the rows that the store still has."""
        while True:
            self.life += 1
            self.era += 1
            self.background.waiting.clear()
            self.history.add(Crashed(self.history.now(), self._with_power))
            if self._with_power:
                with self.disk.losing():
                    self.store = FaultyStore(self.store.crash(self.random), self._before)
            self.store.crashed = False
            if self.random.random() < 0.15:  # it dies again during recovery
                self.die_soon(self.random.randint(1, 40), self.random.random() < 0.5)
            try:
                self.store.heal()
                self.engine = self._open()
                return
            except Died:
                continue

    def close(self) -> None:
        """Let the process end in order, and start the next."""
        while self.background.run():
            pass
        quietly(self.engine.close)
        self.era += 1
        self.life += 1
        self.store.heal()
        self.engine = self._open()

    def drop_unreadable(self) -> None:
        """Do nothing: no rows are behind the end of a sealed segment."""

    def settle(self) -> None:
        """End all faults, and finish the work in progress."""
        self._dies_in, self.between = -1, lambda: None
        self.store.heal()
        while self.background.run():
            pass
        self.engine.maintenance.recover()

    def _open(self) -> Engine:
        waits, pending._passes = pending._passes, self.background.passes
        self._inside = True  # no actor reads while it opens
        try:
            engine = Engine(self.store, self.clock, self._config, self.background, self.random)
            engine.topics.fetcher.bounds = self._filtering
            return engine
        finally:
            self._inside = False
            pending._passes = waits

    def _before(self, operation: str, name: str) -> None:
        if self._dies_in > 0:
            self._dies_in -= 1
            if self._dies_in == 0:
                self._dies_in = -1
                self.store.crashed = True
                raise Died
        if not self._inside:
            self._inside = True
            try:
                self.between()
            finally:
                self._inside = False


def shorten(queues: Queues, entries_max: int = 0, bytes_max: int = BYTES_MAX) -> None:
    """Compact the journals of queues that are longer than this."""
    with patch.multiple("tms.queues.queue_shard", BYTES_MAX=bytes_max):
        queues.shorten_journals(entries_max)


def shorten_positions(engine: Engine, entries_max: int) -> None:
    """Compact the journals of positions that are longer than this."""
    with patch.multiple("tms.engine.shards", CLOSING_MAX=entries_max):
        engine.shards.shorten_journals()


def quietly(work: Callable[[], object]) -> None:
    """Run work whose failure does no harm."""
    with suppress(TMSError):
        work()
