"""A service with a queue dies before each of its writes in turn: no message is lost, no settled
message comes again, and the output of a transaction is there once."""

from collections import Counter
from collections.abc import Callable

import pytest

from sim.faulty import FaultyStore
from sim.world import shorten
from tests.clocks import ManualClock
from tms.block import encode
from tms.block.received import Delivered
from tms.engine.engine import Engine
from tms.errors import StorageUnavailable, TMSError
from tms.model.message import NewBlock
from tms.model.queue import QueueSettings, Settlement
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock
from tms.store.base import Store
from tms.store.memory import MemoryStore

JOBS, OUT = TopicName("default", "jobs"), TopicName("default", "out")
DEAD = TopicName("default", "jobs-g-dead")
VALUES = [b"%d" % number for number in range(8)]
_WRITES = {"write", "overwrite", "delete", "compare_and_set"}


class Died(StorageUnavailable):
    """The process is gone; its further calls do nothing."""


class World:
    """An engine that dies before its nth write, and a note of the answers before that."""

    def __init__(self, durability: Durability) -> None:
        self.clock = ManualClock()
        self.inner: Store = MemoryStore()
        self.durability = durability
        self.writes = 0
        self.dies_at = 0
        self.dead = False
        self.acked: set[bytes] = set()
        self.tried: set[bytes] = set()  # with a requested acknowledgement
        self.deliveries: Counter[bytes] = Counter()
        self.open()

    def open(self) -> None:
        self.dead = False
        self.dies_at = self.writes = 0
        self.store = FaultyStore(self.inner, self._before)
        self.engine = Engine(self.store, self.clock)
        self.engine.queues._upkeep._stop.set()  # only when the test calls it

    def _before(self, operation: str, name: str) -> None:
        if operation in _WRITES and not self.dead:
            self.writes += 1
            self.dead = self.writes == self.dies_at
        if self.dead:
            raise Died("The process has died.")

    def reopen(self, power: bool) -> None:
        """Open the stored state again; after a power loss only the synced part."""
        self.engine._threads.shutdown()
        if power:
            self.inner = self.store.crash()
        self.clock.pass_ms(3_600_000)
        self.open()

    # -- operations --------------------------------------------------------------------------------

    def begin(self) -> None:
        for name in (JOBS, OUT):
            self.engine.create_topic(name, TopicSettings(durability=self.durability))
        settings = QueueSettings(lease_s=10, deliveries_max=3, jitter=0)
        self.engine.queues.declare(JOBS, "g", settings)
        self.engine.append(JOBS, [NewBlock(0, encode(VALUES))])

    def receive(self, limit: int = 100) -> list[Delivered]:
        found = self.engine.queues.receive(JOBS, "g", limit).messages("jobs")
        for one in found:
            assert one.value is not None
            assert one.value not in self.tried & self.acked, "what was acknowledged came again"
            self.deliveries[one.value] += 1
            if self.durability is Durability.WRITTEN:
                assert one.deliveries >= self.deliveries[one.value]
        return found

    def settle(self, do: Callable[[list[str]], int], *messages: Delivered) -> None:
        assert do([one.token for one in messages]) == len(messages)
        self.acked |= {one.value or b"" for one in messages}

    def ack(self, *messages: Delivered) -> None:
        self.tried |= {one.value or b"" for one in messages}
        self.settle(lambda tokens: self.engine.queues.ack(JOBS, "g", tokens).done, *messages)

    def commit(self, *messages: Delivered) -> None:
        """Copy messages to the topic `out`, and settle them."""

        def do(tokens: list[str]) -> int:
            out = TopicBlock(OUT, NewBlock(0, encode([one.value for one in messages])))
            settlement = Settlement("g", JOBS, tuple(tokens))
            self.engine.transactions.commit(Commit(blocks=(out,), settlements=(settlement,)))
            return len(messages)

        self.settle(do, *messages)

    def reject(self, *messages: Delivered) -> None:
        def do(tokens: list[str]) -> int:
            return self.engine.queues.reject(JOBS, "g", tokens, "no").done

        self.settle(do, *messages)

    def work(self) -> None:
        """Use every operation of a queue."""
        queues = self.engine.queues
        first = self.receive(5)
        self.ack(first[0], first[1])
        queues.nack(JOBS, "g", [first[2].token], 0)
        self.commit(first[3])
        self.reject(first[4])
        queues.tidy()
        (again,) = self.receive(1)
        shorten(queues)
        self.commit(again)
        queues.extend(JOBS, "g", [one.token for one in self.receive(1)], 20)
        self.clock.pass_ms(11_000)
        self.reject(*self.receive(1))
        queues.tidy()
        queues.redrive(JOBS, "g", 1)

    # -- checks ------------------------------------------------------------------------------------

    def read(self, name: TopicName) -> list[bytes]:
        queues = self.engine.queues
        try:
            queues.declare(name, "reader", QueueSettings(deliveries_max=0))
        except TMSError:
            return []
        found = queues.receive(name, "reader", 1_000).messages(str(name))
        queues.delete(name, "reader")
        return [one.value or b"" for one in found]

    def check(self) -> None:
        """Finish everything, and find each message."""
        queues = self.engine.queues
        queues.tidy()
        out, dead, jobs = Counter(self.read(OUT)), Counter(self.read(DEAD)), self.read(JOBS)
        again = Counter(jobs[len(VALUES) :])  # the messages that were moved back
        assert max([*out.values(), *dead.values(), *again.values()], default=0) <= 1
        assert set(again) <= set(dead) and not set(out) & set(dead)
        delivered = Counter[bytes]()
        while found := queues.receive(JOBS, "g", 3).messages("jobs"):
            delivered.update(one.value or b"" for one in found)
            queues.ack(JOBS, "g", [one.token for one in found])
        for value in VALUES:
            settled = out[value] + dead[value]
            expected = again[value] + (not settled)
            if value in self.tried and (value in self.acked or not delivered[value]):
                expected = 0  # it was acknowledged, even if the answer was lost
            assert delivered[value] == expected, (value, self.acked, out, dead, again)
        info = queues.describe(JOBS, "g")
        assert info.leased + info.ready + info.delayed + info.dying + info.backlog == 0


def writes_of(durability: Durability) -> int:
    world = World(durability)
    world.begin()
    world.writes = 0
    world.work()
    return world.writes


def test_the_whole_work_is_done_when_nothing_fails() -> None:
    world = World(Durability.WRITTEN)
    world.begin()
    world.work()
    assert world.read(OUT) == [b"3", b"2"] and sorted(world.read(DEAD)) == [b"4", b"6"]
    world.clock.pass_ms(60_000)
    world.check()


@pytest.mark.parametrize(
    ("durability", "power"),
    [(Durability.WRITTEN, False), (Durability.SYNCED, False), (Durability.SYNCED, True)],
    ids=["written", "synced", "synced, without power"],
)
def test_it_may_die_before_any_write(durability: Durability, power: bool) -> None:
    died = 0
    for number in range(1, writes_of(durability) + 5):
        world = World(durability)
        world.begin()
        world.writes, world.dies_at = 0, number
        try:
            world.work()
        except TMSError:
            assert world.dead
        died += world.dead
        world.reopen(power)
        world.check()
    assert died >= 25


def test_a_shortened_journal_is_not_newer_than_the_commits_it_rests_on() -> None:
    world = World(Durability.WRITTEN)
    world.begin()
    world.engine.append(JOBS, [NewBlock(0, encode([b"synced"]))], Durability.SYNCED)
    world.commit(*world.receive())
    shorten(world.engine.queues)
    world.reopen(power=True)
    out = world.read(OUT)
    assert sorted([*out, *(one.value or b"" for one in world.receive())]) == [*VALUES, b"synced"]


def test_a_service_that_dies_while_it_starts_loses_nothing() -> None:
    for number in range(1, 12):
        world = World(Durability.WRITTEN)
        world.begin()
        world.work()
        world.reopen(power=False)
        world.dies_at = number
        try:
            world.engine.queues.tidy()
            shorten(world.engine.queues)
        except TMSError:
            assert world.dead
        world.reopen(power=False)
        world.check()


def test_a_message_that_kills_its_service_ends_in_the_dead_letters() -> None:
    world = World(Durability.WRITTEN)
    world.begin()
    for _ in range(3):
        assert world.receive(1)
        world.reopen(power=False)  # the worker's request killed it
    assert [one.value for one in world.receive(1)] != [VALUES[0]]
    world.engine.queues.tidy()
    assert world.read(DEAD) == [VALUES[0]]


def test_a_queue_forgets_messages_that_a_power_loss_took_from_the_log() -> None:
    store = FaultyStore(MemoryStore())
    engine = Engine(store, ManualClock())
    engine.create_topic(JOBS, TopicSettings(durability=Durability.WRITTEN))
    engine.queues.declare(JOBS, "g", QueueSettings(durability=Durability.SYNCED, ordered_by="key"))
    kept = [NewBlock(0, encode([b"kept"], [b"k"]))]
    engine.append(JOBS, kept, Durability.SYNCED)
    engine.append(JOBS, [NewBlock(0, encode([b"lost", b"lost too"], [b"k", b"l"]))])
    [first, other] = engine.queues.receive(JOBS, "g", 10).messages("jobs")
    assert (first.value, other.value) == (b"kept", b"lost too")
    assert engine.queues.ack(JOBS, "g", [first.token]).done == 1

    engine = Engine(FaultyStore(store.crash()), ManualClock())
    assert engine.queues.describe(JOBS, "g").partitions[0].frontier == 1
    new = [NewBlock(0, encode([b"new", b"newer"], [b"k", b"l"]))]
    engine.append(JOBS, new, Durability.SYNCED)
    found = engine.queues.receive(JOBS, "g", 10).messages("jobs")
    assert [one.value for one in found] == [b"new", b"newer"], "their offsets were given before"
    assert engine.queues.ack(JOBS, "g", [other.token]).fenced, "it was of a message that is lost"
    assert engine.queues.ack(JOBS, "g", [one.token for one in found]).done == 2
