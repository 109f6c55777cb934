"""Owners of a topic's delayed messages that come while earlier ones are still active: any of their
steps may interleave. An acknowledged message is delivered once, wherever it was repeated."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import pytest

from tests.clocks import ManualClock
from tests.delay_kit import A, World
from tests.log_kit import KeptStore
from tests.run_seed import drawn
from tests.waiting import PATIENCE_S, until
from tms.block import Flags, encode
from tms.delayed.delayed import CLOSE_S
from tms.delayed.entries import GROUP, Moved
from tms.delayed.stored_queue import StoredDelayQueue
from tms.delayed.topic_queue import DelayQueue
from tms.engine.config import EngineConfig
from tms.errors import StorageUnavailable, TMSError
from tms.log.groups import Stamp
from tms.log.pending import Pending
from tms.model import keys
from tms.model.delayed import Deferred, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, PositionChange, PositionKey

SEEDS = 60
SETTLED_S = 0.02  # a thread that came to no step by then waits for another one
TRIES = 40


class Turns:
    """Lets threads go on one at a time, each for one step in a map of delayed messages, in a random
    order."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._lock = threading.Condition()
        self._waiting: list[threading.Event] = []
        self._running = 0

    def before(self, operation: str, name: str) -> None:
        """Wait for the turn. The `before` of a `FaultyStore`."""
        if not keys.is_delayed_map(name) or threading.current_thread().name != "actor":
            return
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._lock.notify_all()
        assert turn.wait(30), "nobody gave a turn"

    def run(self, *acts: Callable[[], None]) -> None:
        """Run all acts to their ends."""

        def ended(act: Callable[[], None]) -> None:
            try:
                act()
            finally:
                with self._lock:
                    self._running -= 1
                    self._lock.notify_all()

        self._running = len(acts)
        threads = [threading.Thread(target=ended, args=(act,), name="actor") for act in acts]
        for thread in threads:
            thread.start()
        with self._lock:
            while self._running:
                self._lock.wait_for(lambda: len(self._waiting) == self._running, SETTLED_S)
                if self._waiting:
                    self._random.shuffle(self._waiting)
                    for _ in range(self._random.choice((1, 1, 1, 2, 5))):  # ahead of others
                        if not self._waiting:
                            break
                        turn = self._waiting.pop()
                        turn.set()
                        self._lock.wait_for(lambda: len(self._waiting) == self._running, SETTLED_S)
        for thread in threads:
            thread.join()


class Succession:
    """Engines over one store, each of which has taken over from the one before; the replaced ones
    do not know it yet, and go on."""

    def __init__(self, seed: int) -> None:
        self.random, self.clock = Random(seed), ManualClock()
        self.turns = Turns(self.random)
        self._inner = KeptStore(shared=True)
        self.engines = [self.newest()]
        self.acknowledged: dict[bytes, bool] = {}

    def newest(self) -> World:
        """Start one more engine, which takes the journals over."""
        world = World(inner=self._inner, clock=self.clock)
        world.store.before = self.turns.before
        return world

    def publish(self, name: bytes) -> None:
        """Publish a message, and repeat it at any engine until it succeeds."""
        values = {part: [name + b"%d" % part] for part in range(self.random.choice((1, 2)))}
        done = False
        for _ in range(TRIES):
            world = self.random.choice(self.engines[-2:])
            try:
                world.together(values, Due(delay_ms=1_000), name.decode())
                done = True
                break
            except TMSError as error:
                assert error.retriable, error
        self.acknowledged |= {value: done for some in values.values() for value in some}

    def move(self, world: World) -> None:
        """Move as a scheduler does; a little later, again."""
        for _ in range(3):
            try:
                world.delayed.move()
            except TMSError as error:
                assert error.retriable, error
            self.clock.pass_ms(self.random.choice((0, 600, 1_500)))

    def succeed(self) -> None:
        """Let others take over, one after another, and move due messages."""
        for _ in range(self.random.choice((1, 2, 3))):
            self.engines.append(self.newest())
            self.move(self.engines[-1])

    def finish(self) -> list[bytes | None]:
        """The messages that were delivered in the end."""
        last = self.newest()
        for _ in range(12):
            last.delayed.move()
            self.clock.pass_ms(6_000)
        return last.read()


@pytest.mark.slow
@pytest.mark.parametrize("seed", drawn("owners of delayed messages", range(SEEDS), 20))
def test_what_is_acknowledged_is_delivered_once_whoever_takes_over_meanwhile(seed: int) -> None:
    owners = Succession(seed)
    first = owners.engines[0]
    if owners.random.random() < 0.7:
        first.later(b"before", delay_ms=owners.random.choice((1, 5_000)), token="before")
        owners.acknowledged[b"before"] = True
    owners.clock.pass_ms(10)
    acts = [partial(owners.publish, name) for name in (b"x", b"y", b"z")]
    owners.turns.run(
        *acts[: owners.random.choice((1, 2, 3))], partial(owners.move, first), owners.succeed
    )
    found = owners.finish()
    for value, acknowledged in owners.acknowledged.items():
        count = found.count(value)
        assert count == 1 or (count == 0 and not acknowledged), (value, found)
    assert set(found) <= set(owners.acknowledged)


def test_closing_a_shard_does_not_wait_for_a_store_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An instance that does not reach the store resigns its roles while a write hangs there."""
    monkeypatch.setattr("tms.delayed.delayed.CLOSE_S", 0.01)
    world = World()
    world.later(b"1", delay_ms=1_000)
    shards, delayed = world.engine.shards, world.engine.delayed
    [queue] = delayed._topics()
    number = world.engine.topics.shards.of_delayed(A)
    with queue.writing:  # of a thread in the store
        closing = threading.Thread(target=lambda: shards.close(number), daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive() and queue.retired is not None
    assert queue.take(world.clock.now_ms() + 10_000, 1) is None
    with pytest.raises(TMSError):
        queue.info()


def test_closing_a_shard_of_many_topics_waits_no_longer_than_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, waits = World(), list[float]()
    engine, shards = world.engine, world.engine.topics.shards
    number = shards.of_delayed(A)
    monkeypatch.setattr(shards, "of_delayed", lambda name: number)
    for topic in ("b", "c", "d"):
        name = TopicName("default", f"many-{topic}")
        engine.create_topic(name, TopicSettings(1))
        engine.delayed.publish(name, [NewBlock(0, encode([b"1"]))], Due(delay_ms=1_000))

    def retire(queue: DelayQueue, reason: TMSError, timeout_s: float) -> None:
        waits.append(timeout_s)
        world.clock.pass_ms(round(timeout_s * 1_000))

    monkeypatch.setattr(DelayQueue, "retire", retire)
    engine.shards.close(number)
    assert len(waits) >= 3 and sum(waits) == CLOSE_S


class Held(World):
    """A topic whose delayed messages must be read again while an open transaction moves their
    position. The engine has one thread in the background."""

    def __init__(self) -> None:
        super().__init__(config=EngineConfig(threads=1))
        self.later(b"1", delay_ms=1_000)
        (self.queue,) = self.delayed._topics()
        self.id = self.engine.transactions.begin(long=True).transaction_id
        change = PositionChange(
            PositionKey(GROUP, A, 0), Moved().position(), None, self.queue.stored.position_owner
        )
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, self.id)
        positions = self.engine.groups._positions_of(A, GROUP)
        synced = Durability.SYNCED
        positions.prepare([change], self.id, synced, stamp, synced).result(PATIENCE_S)
        self.queue.release()

    def look_and_publish(self) -> tuple[threading.Thread, Pending[list[Deferred]]]:
        """A thread that waits for the transaction, with the turn of a leader that waits, and the
        publish that this leader will write."""
        looking = threading.Thread(target=lambda: suppressed(self.queue.look), daemon=True)
        looking.start()
        until(self.queue.writing.locked)
        pending = self.delayed.submit(A, [NewBlock(0, encode([b"2"]))], Due(delay_ms=1_000))
        assert self.queue._changes.busy
        return looking, pending


def suppressed(do: Callable[[], object]) -> None:
    with suppress(TMSError):
        do()


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
def test_a_transaction_ends_while_a_thread_and_a_leader_behind_it_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    monkeypatch.setattr("tms.groups.group_positions.WAIT_S", 3 * PATIENCE_S)
    world = Held()
    looking, pending = world.look_and_publish()
    if committed:
        world.engine.transactions.commit(Commit(world.id))
    else:
        world.engine.transactions.abort(world.id)
    assert len(pending.result(PATIENCE_S)[0]) == 1
    looking.join(PATIENCE_S)
    assert not looking.is_alive() and world.delayed.info(A).waiting == 2


def test_a_leader_waits_no_longer_than_its_turn_and_itself_for_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.groups.group_positions.WAIT_S", 0.2)
    world = Held()
    looking, pending = world.look_and_publish()
    with pytest.raises(StorageUnavailable, match="does not end"):
        pending.result(PATIENCE_S)
    looking.join(PATIENCE_S)
    assert not looking.is_alive() and not world.queue.stored.trusted
    world.engine.transactions.abort(world.id)
    world.later(b"3", delay_ms=1_000)
    assert world.delayed.info(A).waiting == 2


class CountingLock:
    """A lock that counts the threads that have come for it."""

    def __init__(self) -> None:
        self._lock, self.came = threading.Lock(), 0
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("recovers", [False, True], ids=["", "recovers"])
@pytest.mark.parametrize("look", ["info", "alone"])
def test_threads_that_wait_for_a_load_that_fails_do_not_each_load_again(
    monkeypatch: pytest.MonkeyPatch, look: str, recovers: bool
) -> None:
    """Each attempt waits for a transaction, so the last thread would wait as often as there are
    threads."""
    monkeypatch.setattr("tms.groups.group_positions.WAIT_S", 0.02)
    world, errors, loads = Held(), list[TMSError](), list[object]()
    queue, turn, load = world.queue, CountingLock(), StoredDelayQueue.ready

    def counting(stored: StoredDelayQueue, create: bool) -> bool:
        loads.append(stored)
        return load(stored, create)

    def come() -> None:
        try:
            queue.info() if look == "info" else queue.alone(lambda: None)
        except TMSError as error:
            errors.append(error)

    monkeypatch.setattr(StoredDelayQueue, "ready", counting)
    monkeypatch.setattr(queue, "writing", turn)
    threads = [threading.Thread(target=come, daemon=True) for _ in range(4)]
    with turn:
        for thread in threads:
            thread.start()
        until(lambda: turn.came == 5)
        with pytest.raises(StorageUnavailable, match="does not end"):
            queue._ready(create=False)
        if recovers:
            world.engine.transactions.abort(world.id)
            queue._ready(create=False)
    for thread in threads:
        thread.join(PATIENCE_S)
    if recovers:
        assert not errors and len(loads) == 2
        return
    assert len(loads) == 1
    assert [error.message for error in errors] == [queue._failure.message] * 4
    world.engine.transactions.abort(world.id)
    assert queue.info().waiting == 1, "a caller that comes later loads"
