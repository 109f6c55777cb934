"""Queues under random work, with bounds drawn from the seed: in the end they come to rest."""

import threading
from collections import Counter
from importlib import import_module
from random import Random

import pytest

from sim.faulty import FaultyStore
from sim.world import shorten
from tests.queue_liveness import drain, require_totals, require_unblocked, require_woken
from tests.queues.test_queues import DEAD, JOBS, World
from tms.block import Compression, encode
from tms.block.received import Delivered
from tms.engine import shards
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.errors import Fenced, TMSError
from tms.log.partition import LogLimits
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import QueueSettings

# Every bound of queues, with the rooms that use it; drawn between 1 and its default.
BOUNDS = {
    "BLOCKED_MAX": ("queues.partition", "queues.delivering"),
    "EXPIRE_MAX": ("queues.partition",),
    "_STALE_MAX": ("queues.partition",),
    "RUNS_MAX": ("queues.partition",),
    "SNAPSHOT_BYTES": ("log.journaled",),
    "AHEAD_BYTES": ("queues.reading",),
    "AGAIN_BYTES": ("queues.reading",),
    "MARKS_MAX": ("queues.reading",),
    "_STEPS_MAX": ("queues.reading",),
    "_HASHED": ("queues.reading",),
    "RECENT_MAX": ("queues.queue",),
    "DAMAGED_MS": ("queues.queue",),
    "MOVED_MAX": ("queues.dead_letters",),
    "MOVED_BYTES": ("queues.dead_letters",),
    "_AT_ONCE": ("queues.dead_letters",),
    "ENTRIES_MAX": ("engine.shards",),
    "BYTES_MAX": ("queues.queue_shard",),
}
STEPS, PARTITIONS = 60, 2
WORK_S = 0.5  # time for other work while a commit is in flight
KEYS = [None, *(b"%d" % n for n in range(15))]


def log_uniform(random: Random, least: float, most: float) -> float:
    return least * (most / least) ** random.random()


@pytest.fixture(params=range(24))
def random(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Random:
    """The choices of a seed; its bounds are set."""
    random = Random(request.param)
    share = random.choice((0.0, 0.5, 1.0))  # one bound may hide effects of another one
    for name, rooms in BOUNDS.items():
        most = getattr(import_module(f"tms.{rooms[0]}"), name)
        drawn = round(log_uniform(random, 1, most))
        for room in rooms if random.random() < share else ():
            monkeypatch.setattr(f"tms.{room}.{name}", drawn)
    monkeypatch.setattr("tms.queues.queues.LOOK_S", 60.0)  # only a wake-up comes soon enough
    return random


class Work(World):
    """A queue, the operations on it, and the state that they must lead to."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.config = EngineConfig(
            cache_bytes=round(log_uniform(random, 1, 64 << 20)),
            log=LogLimits(segment_bytes=round(log_uniform(random, 1, 256 << 20))),
        )
        self.settings_drawn = {
            "lease_s": log_uniform(random, 0.001, 30),
            "deliveries_max": random.choice((0, 1, 3, 16)),
            "backoff_first_s": random.choice((0.0, 1.0)),
            "ordered_by": random.choice(("", "key")),
            "outstanding_max": round(log_uniform(random, 1, 1_000_000)),
        }
        super().__init__(PARTITIONS, **self.settings_drawn)
        self.published: dict[bytes, tuple[int, int, bytes | None]] = {}  # with position and key
        self.leased: list[Delivered] = []
        self.seen: list[Delivered] = []
        self.acked: set[bytes] = set()
        self.tried: set[bytes] = set()  # acknowledgement requested
        self.gone: set[bytes] = set()
        self.perhaps_gone: set[bytes] = set()
        self.rejected: set[bytes] = set()

    def open(self) -> None:
        self.faulty = FaultyStore(self.store)
        self.engine = Engine(self.faulty, self.clock, self.config)
        self.queues = self.engine.queues

    # -- operations --------------------------------------------------------------------------------

    def step(self) -> None:
        does = [
            *[self.publish_some] * 3,
            *[self.take] * 4,
            *[self.ack_some] * 2,
            self.nack_some,
            self.reject_some,
            self.extend_some,
            self.commit_some,
            *[self.commit_while_others_work] * 2,
            self.erase_one,
            self.truncate,
            self.fail_soon,
            self.crash,
            self.pass_time,
            self.maintain,
        ]
        try:
            self.random.choice(does)()
        except TMSError:
            self.faulty.heal()
            self.engine.maintenance.recover()
        for queue in self.queues.opened():
            require_totals(queue.state)
            for state in queue.state.partitions.values():
                require_unblocked(state)

    def publish_some(self) -> None:
        random, first = self.random, len(self.published)
        count = round(log_uniform(random, 1, 50))
        size = round(log_uniform(random, 1, 3_000))
        values = [b"%d:" % n + bytes(size) for n in range(first, first + count)]
        keys = [random.choice(KEYS) for _ in values]
        block = encode(values, keys, compression=random.choice([*Compression]))
        partition = random.randrange(PARTITIONS)
        places = dict(zip(values, [(partition, -1, key) for key in keys], strict=True))
        self.published.update(places)
        self.perhaps_gone.update(values)  # until they are known to be stored
        (there,) = self.engine.append(JOBS, [NewBlock(partition, block)])
        for at, value in enumerate(values):
            self.published[value] = (partition, there.base_offset + at, keys[at])
        self.perhaps_gone.difference_update(values)

    def take(self) -> None:
        random = self.random
        bytes_max = round(log_uniform(random, 1, 4 << 20))
        for message in self.receive(round(log_uniform(random, 1, 1_000)), bytes_max):
            value = message.value or b""
            assert value not in self.acked, "what was acknowledged came again"
            assert value not in self.gone, "what is gone was handed out"
            self.require_first_of_its_key(message)
            self.leased.append(message)
            self.seen.append(message)

    def require_first_of_its_key(self, message: Delivered) -> None:
        dies = self.settings.deliveries_max > 0
        if self.settings.ordered_by != "key" or dies or message.key is None:
            return
        done = self.tried | self.gone | self.perhaps_gone | self.rejected
        for value, (partition, offset, key) in self.published.items():
            if (partition, key) == (message.partition, message.key) and offset >= 0:
                assert offset >= message.offset or value in done, "out of order"

    def some(self) -> list[Delivered]:
        random = self.random
        random.shuffle(self.leased)
        count = round(log_uniform(random, 1, len(self.leased) + 1))
        some, self.leased = self.leased[:count], self.leased[count:]
        return some

    def ack_some(self) -> None:
        if some := self.some():
            self.tried.update(one.value or b"" for one in some)
            late = {*self.ack(*some).fenced}
            self.acked.update(one.value or b"" for one in some if one.token not in late)

    def nack_some(self) -> None:
        if some := self.some():
            self.nack(*some, delay_s=self.random.choice((None, 0, 5)))

    def reject_some(self) -> None:
        if some := self.some()[:3]:
            self.rejected.update(one.value or b"" for one in some)
            self.reject(*some)

    def extend_some(self) -> None:
        if some := self.some():
            self.queues.extend(JOBS, "g", [one.token for one in some])
            self.leased += some

    def commit_some(self) -> None:
        if some := self.some():
            self.tried.update(one.value or b"" for one in some)
            try:
                self.engine.transactions.commit(self.settle(*some, out=b"done"))
            except Fenced:
                return
            self.acked.update(one.value or b"" for one in some)

    def commit_while_others_work(self) -> None:
        """Between the commit's write and its decision, others publish and receive. If the thread
        that decides writes the journal that they need, they continue after it."""
        commits = self.engine.transactions.manager.commits
        errors: list[BaseException] = []
        threads: list[threading.Thread] = []

        def work() -> None:
            try:
                self.publish_some()
                self.take()
            except TMSError:
                return
            except BaseException as error:
                errors.append(error)

        def commit(*args: object) -> None:
            del commits.submit  # type: ignore[misc]  # the class's again
            others = threading.Thread(target=work)
            threads.append(others)
            others.start()
            others.join(WORK_S)
            commits.submit(*args)  # type: ignore[arg-type]

        commits.submit = commit  # type: ignore[method-assign, assignment]
        try:
            self.commit_some()
        finally:
            vars(commits).pop("submit", None)
            for others in threads:
                others.join()
        if errors:
            raise errors[0]
        if self.random.random() < 0.5:
            self.crash()

    def erase_one(self) -> None:
        if self.seen:
            message = self.random.choice(self.seen)
            self.perhaps_gone.add(message.value or b"")
            self.engine.erase(JOBS, id=message.id, partition=message.partition)
            self.gone.add(message.value or b"")

    def truncate(self) -> None:
        if self.random.random() < 0.7 or not self.published:
            return
        stop = self.random.choice([*self.published.values()])[1]
        gone = {value for value, (_, offset, _) in self.published.items() if offset < stop}
        self.perhaps_gone |= gone
        self.engine.truncate_topic(JOBS, Position.offset(max(0, stop)))
        self.gone |= {value for value in gone if self.published[value][1] >= 0}

    def fail_soon(self) -> None:
        self.faulty.fail_write(self.random.randint(1, 8), stored=self.random.random() < 0.5)

    def crash(self) -> None:
        self.faulty.heal()
        self.reopen(self.random.choice((1, 40_000)))

    def pass_time(self) -> None:
        self.clock.pass_ms(round(log_uniform(self.random, 1, 60_000)))

    def maintain(self) -> None:
        shorten(self.queues, self.random.choice((shards.ENTRIES_MAX, 0)))
        self.queues.tidy()

    # -- checks ------------------------------------------------------------------------------------

    def finish(self) -> None:
        self.faulty.heal()
        self.engine.maintenance.recover()
        if self.random.random() < 0.5:
            self.crash()
        rounds_max = 10 * len(self.published) + 200
        last = drain(self.queues, self.clock, "g", JOBS, rounds_max)
        drained = {one.value or b"" for one in last}
        assert not drained & self.acked, "what was acknowledged came again"
        assert not drained & self.gone, "what is gone was handed out"
        letters = Counter(one.value or b"" for one in self.dead_letters())
        assert max(letters.values(), default=0) <= 1, "a message died twice"
        assert not letters.keys() & drained, "it is dead, and was delivered"
        known = drained | {*letters} | self.tried | self.gone | self.perhaps_gone
        assert self.published.keys() <= known, "lost"

    def dead_letters(self) -> list[Delivered]:
        if self.info().dead == 0:
            return []
        self.queues.declare(DEAD, "all", QueueSettings())
        return drain(self.queues, self.clock, "all", DEAD, 10 * len(self.published) + 200)


def test_after_quiet_time_every_message_is_settled_or_dead_and_nobody_waits(random: Random) -> None:
    work = Work(random)
    for _ in range(STEPS):
        work.step()
    work.finish()
    (queue,) = (one for one in work.queues.opened() if one.group == "g")
    require_woken(
        queue,
        lambda: len(work.queues.receive(JOBS, "g", 1, 30).messages("jobs")),
        lambda: World.publish(work, b"after", partition=1),
    )
