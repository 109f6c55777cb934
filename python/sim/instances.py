"""Several engines in one thread: instances of a cluster over one store, that see each other late or
not at all, die, sleep, wake up, and call one another over a network that loses, delays and repeats
requests.

Invariants

* As for one engine (`world`): the same seed takes the same steps.
* Between any two operations of the store of one instance another one may take over what it owns.
* An instance that is busy further down on the stack answers no request: it is slow.
* While a step waits briefly, the leader of a group commit whose turn is held further down on the
  stack waits, as its thread would. During a longer wait it is an error (`Stuck`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from random import Random
from threading import Lock
from typing import Any, TypeVar
from unittest.mock import patch

from msgspec import structs

from sim.actors.actor import topic_of
from sim.actors.later import LATER
from sim.bounds.drawing import Bounds
from sim.disk import Disk
from sim.faulty import FaultyStore
from sim.history import Crashed, History, Place
from sim.world import AtOnce, Background, Died, Stuck, VirtualClock, World, quietly
from tms.cluster.cluster import Cluster, RolePlayer
from tms.cluster.fence import InstanceFence
from tms.cluster.fitness import Fitness
from tms.cluster.identity import InstanceIdentity
from tms.cluster.membership import InstanceRecord, MembershipState, MembershipView
from tms.cluster.ownership import Ownership, SharedBy
from tms.engine.engine import Engine
from tms.engine.held_roles import HeldRoles
from tms.errors import NotOwner, StorageUnavailable, TimedOut, TMSError, Unavailable
from tms.log.group_commit import GroupCommit
from tms.log.records import key_after
from tms.model import keys
from tms.model.cluster import ClusterEvent
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.topics import sharding
from tms.topics.compaction.compaction import CompactionLimits
from tms.topics.filtering import FetchBounds as FilterBounds
from tms.topics.sweep import open_metadata

INSTANCES = 3
ROLES = ("transactions", "tables")  # of the coordinator
KEPT = ("groups", "queues", "delayed")  # in shards
SETTLING = 9  # rounds
BRIEF_S = 2.0  # a thread may wait for so long while it keeps others from writing
LEADERLESS_MAX = 300  # requests in a row that no instance could answer
IN_VAIN_MAX = 1_000  # waits without progress
RUNS_MAX = 10_000  # pieces of other work during a wait
OPERATIONS_MAX = 250_000  # of stores in one step; 5,000 are usual, 61,000 were seen to end well
STIRRED = 0.03  # share of store operations between which other instances act
LIFETIME_MS = 25 * 3_600_000
COMMIT_S = 30.0
SESSION_S = 10.0
CUT_SHARE = 0.15  # of the runs: the store stops answering an instance for a while
CUT = 0.4  # of the events
APART_SHARE = 0.15  # of the runs: the clocks of some instances are ahead
AHEAD_MS = (300, 5_000, 60_000)
LOST, UNANSWERED, LATE, TWICE = 0.02, 0.02, 0.01, 0.02  # shares of the requests
T = TypeVar("T")
Reading = Callable[[Engine], bool]  # True if it can be read in the middle of a step


class Member:
    """A `ClusterMember` that sees the others when the world lets it."""

    def __init__(self, record: InstanceRecord) -> None:
        self.record, self.session_s = record, SESSION_S
        self.view = MembershipView()
        self.state = MembershipState.LOST

    def join(self, changed: Callable[[], None]) -> None:
        """Wait for the world to show the instance."""

    def show(self, record: InstanceRecord) -> None:
        """Change the record that the others see."""
        self.record = record

    def leave(self) -> None:
        """Leave; the world removes the instance."""


class InstanceClock:
    """The clock of an instance."""

    def __init__(self, clock: VirtualClock, ahead_ms: int) -> None:
        self._clock, self._ahead_ms = clock, ahead_ms
        self.monotonic_s = clock.monotonic_s

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms


class SingleLock:
    """A lock of engines that are all in one thread: a wait for it would never end."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.release, self.locked = self._lock.release, self._lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; raises `Stuck` instead of waiting without end."""
        if self._lock.acquire(blocking=False):
            return True
        if blocking and timeout < 0:
            raise Stuck("A step waits for a lock that is held below on the stack.")
        return False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class WorldCluster(Cluster):
    """An instance under the control of the world."""

    def __init__(self, instance: "Instance", lifetime_ms: int) -> None:
        metadata = open_metadata(instance.store)
        ownership = Ownership(
            metadata,
            instance.clock,
            instance.id,
            wait=lambda seconds: None,
            shared_by=SharedBy("sim"),
        )
        ownership.take()
        peers = SimPeers(instance)
        super().__init__(metadata, instance.clock, instance.member, ownership, peers, lifetime_ms)
        self._instance = instance
        self.decisions.watch_end = _watch_nothing  # type: ignore[method-assign]
        self.reach_all()
        self._fence = InstanceFence(metadata, instance.id, f"{instance.life:04d}")
        self.name = self._fence.name
        self.rechecks = True  # else what is below on the stack may hold what that needs

    def play(self, player: RolePlayer) -> None:
        self._player = player
        self._fence.join()
        self._ownership.confirm()
        self._read_pins()

    def confirm(self) -> None:
        if not self.rechecks and self._look() is not None:
            raise Unavailable("It is at something else.")
        super().confirm()

    @contextmanager
    def rechecking(self, rechecks: bool) -> Iterator[None]:
        """Within, the instance may check for takeovers by others, or not."""
        before, self.rechecks = self.rechecks, rechecks
        try:
            yield
        finally:
            self.rechecks = before

    def play_no_more(self) -> None:
        self._ended = True

    def reach_all(self) -> None:
        """Everything is reachable, and has been for a session. Peers always answer."""
        record, away_s = self._member.record, self._ownership.away_s
        self._member.show(structs.replace(record, away=False, resigned=False, unreached=()))
        self._fitness = Fitness(self._clock, away_s, SESSION_S, lambda *_: None, AtOnce())
        if self._instance.world.has_cuts:
            self._ownership.reached_s = self._clock.monotonic_s()

    def examine(self) -> None:
        if self._instance.world.cut_off != self._instance.id:
            self._ownership.reached_s = self._clock.monotonic_s()
        super().examine()

    def ask(self, question: Callable[[], None]) -> None:
        self._instance.background.submit(question)


class Waiting(Background):
    """Work that waits; raises `Stuck` if the awaited answer depends on no queued work."""

    def __init__(self) -> None:
        super().__init__()
        self.in_vain = 0
        self._brief = 0  # waits on the stack that end soon by themselves
        self._put_off: list[Callable[[], object]] = []

    def puts_off(self, work: Callable[[], object], leader: GroupCommit[Any]) -> bool:
        """Put the work of a leader off until a brief wait is over if its turn is held meanwhile;
        True if so."""
        if not self._brief or not leader._turn.locked():
            return False
        self._put_off.append(work)
        return True

    def passes(self, gate: Lock, timeout_s: float | None) -> bool:
        brief = timeout_s is not None and timeout_s <= BRIEF_S
        self._brief += brief
        try:
            return self._passes(gate)
        finally:
            self._brief -= brief
            self.waiting.extendleft(reversed(self._put_off))
            self._put_off.clear()

    def _passes(self, gate: Lock) -> bool:
        passed, runs = gate.acquire(blocking=False), 0
        while not passed and self.run():
            passed, runs = gate.acquire(blocking=False), runs + 1
            if runs > RUNS_MAX:
                raise Stuck("A step waits for an answer, and the others go round in circles.")
        if passed:
            gate.release()
        self.in_vain = 0 if passed else self.in_vain + 1
        if self.in_vain > IN_VAIN_MAX:
            raise Stuck("A step waits for an answer on which no process works.")
        return passed


class InstanceBackground(Background):
    """The background work of one process; none of it runs once the process has died."""

    def __init__(self, instance: "Instance") -> None:
        super().__init__()
        self._instance, self._life = instance, instance.life

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        instance, life, background = self._instance, self._life, self._instance.world.background
        assert isinstance(background, Waiting), "instances share work that may be put off"
        leader = getattr(fn, "__self__", None)

        def work() -> None:
            if instance.life != life or instance.engine is None:
                return
            if isinstance(leader, GroupCommit) and background.puts_off(work, leader):
                return
            instance.world.aside(partial(fn, *args, **kwargs))

        return background.submit(work)


class Instance:
    """A process, which may be dead."""

    def __init__(self, world: "ClusterWorld", id: str, ahead_ms: int) -> None:
        self.world = world
        self.clock = InstanceClock(world.clock, ahead_ms)
        self.id = id
        self.life = 0
        self.engine: Engine | None = None
        self.store: FaultyStore
        self.member: Member
        self.cluster: WorldCluster
        self.background: InstanceBackground

    def start(self) -> None:
        """Start a new process, which no other instance sees yet."""
        world = self.world
        self.life += 1
        self.store = FaultyStore(world.disk, partial(world.before, self))
        self.member = Member(InstanceRecord(self.id, f"sim://{self.id}", "0"))
        self.background = InstanceBackground(self)
        with world.inside(self):
            self.cluster = WorldCluster(self, LIFETIME_MS)
            engine = Engine(
                self.store,
                self.clock,
                world.config,
                self.background,
                world.random,
                owner=self.cluster,
            )
        engine.topics.fetcher.bounds = world.filtering
        self.engine = engine

    def settle(self) -> None:
        """Read the membership, and open and close roles accordingly."""
        engine, world = self.engine, self.world
        if engine is None or world.busy[self.id]:
            return
        if self.id in world.present:
            self.member.view, self.member.state = world.view(), MembershipState.MEMBER
        before = engine.shards.held
        with world.inside(self):
            if world.has_cuts:
                self.cluster.examine()
            quietly(self.cluster.settle)
        world.era += before != engine.shards.held  # leases begin anew


class SimPeer:
    """A peer of an instance. Requests may be lost, come late or twice."""

    def __init__(self, caller: Instance, target: Instance) -> None:
        self._caller, self._target = caller, target
        self.name, self.address = target.id, f"sim://{target.id}"
        self.partitions = SimPartitions(self)

    def fetch(self, name: TopicName, positions: Any, *more: Any) -> Any:
        def fetch(engine: Engine) -> Any:
            for partition, _ in positions:
                engine.topics.log(name, partition)
            return engine.fetch(name, positions, *more)

        return self.ask(fetch)

    def watch(self, name: TopicName, positions: Any, callback: Callable[[], None], _: Any) -> Any:
        """Tell the caller immediately: the simulation does not wait."""
        callback()
        return lambda: None

    def erase_own(self, *given: Any) -> int:
        return self.ask(lambda engine: engine.compaction.erase_own(*given))

    def erase_delayed(self, *given: Any) -> int:
        return self.ask(lambda engine: engine.delayed.erase(*given))

    def undecided_since_ms(self, foreign: bool) -> int:
        ask = partial(_undecided_since_ms, foreign)
        return self.ask(ask, reading=_at_rest)

    def answer_tephra(self, message: bytes) -> bytes:
        raise NotImplementedError

    def answer_kafka(self, message: bytes) -> bytes:
        raise NotImplementedError

    def events(self) -> list[ClusterEvent]:
        raise NotImplementedError

    def verify_share(self, *given: Any) -> Durability:
        return self.ask(lambda engine: engine.shards.verify_share(*given))

    def prepare_share(self, *given: Any) -> Any:
        return self.ask(lambda engine: engine.shards.prepare_share(*given), once=True)

    def commit_own(self, request: Any) -> Any:
        def commit(engine: Engine) -> Any:  # a copy is sent
            transactions = engine.transactions
            blocks = tuple(
                one._replace(new=structs.replace(one.new, block=bytearray(one.new.block)))
                for one in request.blocks
            )
            sent = structs.replace(request, blocks=blocks)
            pending = transactions.submit_commit(sent, Durability.SYNCED, lambda: None)
            return pending.result(COMMIT_S)[0]

        with self._caller.world.waiting(self._caller):
            return self.ask(commit, once=True)

    def sync_commits(self) -> None:
        def sync(engine: Engine) -> None:
            with engine.transactions.manager.alone(durable=True):
                pass

        self.ask(sync)

    def list_queues_of(self, *given: Any) -> Any:
        raise NotImplementedError

    def forget_topic(self, *given: Any) -> Any:
        raise NotImplementedError

    def list_groups_of(self, *given: Any) -> Any:
        raise NotImplementedError

    def queues_of(self, *given: Any) -> Any:
        raise NotImplementedError

    def groups_of(self, *given: Any) -> Any:
        raise NotImplementedError

    def delayed_of(self, *given: Any) -> Any:
        raise NotImplementedError

    def load(self) -> Any:
        raise NotImplementedError

    def set_log_level(self, *given: Any) -> Any:
        raise NotImplementedError

    def own_history(self, *given: Any) -> Any:
        raise NotImplementedError

    def own_backlogs(self) -> Any:
        raise NotImplementedError

    def own_topic_history(self, *given: Any) -> Any:
        raise NotImplementedError

    def own_group_history(self, *given: Any) -> Any:
        raise NotImplementedError

    def lags(self, places: Any) -> Any:
        return self.ask(lambda engine: engine.topics.lags.here(places), reading=_at_rest)

    def sizes(self, names: Any) -> Any:
        return self.ask(lambda engine: engine.topics.own.sizes(names), reading=_at_rest)

    def answers(self, timeout_s: float) -> None:
        """Return: a live instance answers."""

    def ask_once(self) -> None:
        """Return: the simulation has no drain."""

    def give_up(self) -> None:
        """Return: the simulation does not wait."""

    def fates(self, pointers: Any) -> Any:
        return self.ask(
            lambda engine: engine.transactions.manager.fates(pointers), reading=_at_rest
        )

    def ask(
        self, do: Callable[[Engine], T], reading: Reading | None = None, once: bool = False
    ) -> T:
        """The instance's answer; in the middle of another step only if it is `reading` and needs no
        lock that may be held there. Raises `Unavailable`, `TimedOut`, and the errors of the
        instance. A request with `once` is never repeated."""
        if self._caller.world.calm:
            return self._answered(do, reading)
        random = self._caller.world.random
        chance = random.random()
        if chance < LOST:
            raise Unavailable("The question was lost.")
        chance -= LOST
        if chance < LATE:
            self._later(do)
            raise TimedOut("No answer came.", outcome="unknown")
        chance -= LATE
        if chance < TWICE and not once:
            quietly(lambda: self._answered(do, reading))
        answer = self._answered(do, reading)
        if random.random() < UNANSWERED:
            raise Unavailable("The answer was lost.", outcome="unknown")
        return answer

    def _answered(self, do: Callable[[Engine], T], reading: Reading | None) -> T:
        world, target = self._caller.world, self._target
        engine = target.engine
        # An instance that waits for its own commit is on the stack twice, and busy with nothing
        # else.
        busy = world.busy[target.id] > 2 * world.waits[target.id]
        if engine is None or (busy and not (reading and reading(engine))):
            raise Unavailable("It does not answer.", outcome="unknown")
        with world.inside(self._caller):
            try:
                with world.inside(target), target.cluster.rechecking(not busy):
                    engine.confirm_owner()
                    return do(engine)
            except Died:
                world.bury_unless_below()
                raise Unavailable("It has died.", outcome="unknown") from None

    def _later(self, do: Callable[[Engine], object]) -> None:
        self._caller.world.background.submit(lambda: quietly(lambda: self._answered(do, None)))


class SimPartitions:
    """The partitions of another instance."""

    def __init__(self, peer: SimPeer) -> None:
        self._peer = peer

    def store(self, name: TopicName, blocks: Any, *more: Any) -> Any:
        def store(engine: Engine) -> Any:  # a copy is sent
            sent = [structs.replace(new, block=bytearray(new.block)) for new in blocks]
            return engine.topics.own.store(name, sent, *more)

        return self._peer.ask(store, once=True)

    def reaches(self, name: TopicName, partition: int, end_offset: int) -> bool:
        return self._peer.ask(
            lambda engine: engine.topics.own.reaches(name, partition, end_offset), _owns_nothing
        )

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *given, **named: self._peer.ask(
            lambda engine: getattr(engine.topics.own, method)(*given, **named)
        )


class AtKeeper:
    """Groups, queues or delayed messages, as actors know them: those of the instance that keeps the
    shard of a call, or of any instance."""

    def __init__(self, world: "ClusterWorld", role: str) -> None:
        self._world = world
        self._role = role

    def __getattr__(self, method: str) -> Any:
        world, role = self._world, self._role

        def call(*given: Any, **named: Any) -> Any:
            number = _shard_of(world.shards, role, method, given)
            if number is not None:
                return getattr(getattr(world.keeper(number), role), method)(*given, **named)
            for engine in world.every():
                quietly(partial(getattr(getattr(engine, role), method), *given, **named))
            return None

        if method.startswith("_"):  # private parts of the only topic that has delayed messages
            engine = world.keeper(world.shards.of_delayed(topic_of(LATER[0])))
            return getattr(getattr(engine, role), method)
        return call


class AnyInstance:
    """The engine as actors know it: any instance for requests that all of them answer, and for the
    others the keeper."""

    def __init__(self, world: "ClusterWorld") -> None:
        object.__setattr__(self, "_world", world)

    def __getattr__(self, name: str) -> Any:
        if name == "open_channel":  # the simulation has no network
            raise AttributeError(name)
        world: ClusterWorld = object.__getattribute__(self, "_world")
        if name in KEPT:
            return AtKeeper(world, name)
        return getattr(world.coordinator() if name in ROLES else world.some(), name)


class ClusterWorld(World):
    """The world of several instances. `engine` is any of them."""

    crowded = True
    wakes = False  # a session may have ended, and outcomes are not announced
    steps = 110

    def __init__(self, seed: int, topics: tuple[str, ...], bounds: Bounds) -> None:
        self.random = Random(f"instances {seed}")
        self.config = bounds.config(compaction=bounds.make(CompactionLimits, dirty_ratio=0.0))
        self.producers_max = self.config.log.producers
        self.filtering = bounds.make(FilterBounds)
        self.history = History()
        ahead = _apart(Random(f"apart {seed}"))
        self.clock = VirtualClock(self.history, max(ahead))
        self.background: Waiting = Waiting()
        self.life = self.era = 0
        self.between = lambda: None
        self.busy: Counter[str] = Counter()  # instances, with their number of frames on the stack
        self.waits: Counter[str] = Counter()  # instances, and how many own commits each awaits
        self.asked: set[str] = set()  # instances asked in this step, which may still be busy
        self.present: set[str] = set()  # according to ZooKeeper
        self.calm = True  # True if the network loses nothing
        self.cuts = Random(f"cut {seed}")
        self.has_cuts = self.cuts.random() < CUT_SHARE
        self.cut_off = ""  # the id of the instance that the store does not answer
        self._seen = MembershipView()
        self._leaderless = 0
        self._dies_in = -1
        self._operations = 0  # of stores, in this step
        self._dying: Instance | None = None
        self._inside = False
        self.disk = Disk(shared=True)
        self.shards = sharding.Shards(sharding.SHARDS)
        self.instances = [Instance(self, f"i{n}", ahead[n]) for n in range(INSTANCES)]
        self._waits = self.background.passes
        self.step(self._begin)
        self.engine = AnyInstance(self)  # type: ignore[assignment]
        for topic in topics:
            settings = TopicSettings(2, None, None, Durability.SYNCED)
            self.engine.create_topic(TopicName.parse(topic), settings)

    def _begin(self) -> None:
        for instance in self.instances:
            instance.start()
            self.present.add(instance.id)
        self._settle_all()

    @property
    def store(self) -> FaultyStore:  # type: ignore[override]
        """The store of some instance."""
        return self.random.choice(self._alive()).store

    def answering(self, random: Random) -> Engine | None:
        alive = self.engines()
        return random.choice(alive) if alive else None

    def engines(self) -> list[Engine]:
        return [one.engine for one in self.instances if one.engine is not None]

    def close_shard(self, group: str) -> None:
        """Do nothing: instances take shards from each other by themselves."""

    def hold_shard(self, group: str) -> None:
        """Do nothing: instances take shards by themselves."""

    def lives(self, engine: Engine) -> bool:
        return any(one.engine is engine for one in self.instances)

    def at(self, engine: Engine) -> AbstractContextManager[None]:
        (instance,) = [one for one in self.instances if one.engine is engine]
        return self.inside(instance)

    # -- who answers ---------------------------------------------------------------------------

    def some(self) -> Engine:
        """An instance that answers, or will."""
        for _ in range(20):
            free = [one for one in self._alive() if not self.busy[one.id]]
            if not free:
                break
            having = [one for one in free if self._has_open(one, self.looked_through)]
            instance = self.random.choice(having or free)
            assert instance.engine is not None
            if instance.member.state is not MembershipState.LOST:
                try:
                    with self.inside(instance):
                        instance.engine.confirm_owner()
                except NotOwner:
                    if instance.id in self.asked:
                        break
                    self._let_die(instance)  # the caller starts it anew
                    continue
                self.asked.add(instance.id)
                return instance.engine
            instance.settle()
        raise Unavailable("No instance answers.")

    def coordinator(self) -> Engine:
        """An instance that believes that it coordinates transactions."""
        return self._having(lambda engine: engine.coordinates)

    def keeper(self, number: int) -> Engine:
        """The engine that holds a shard, as far as it knows."""
        return self._having(lambda engine: engine.shards.holds(number))

    def every(self) -> list[Engine]:
        """All instances that are not busy and answer."""
        engines: list[Engine] = []
        for one in self._alive():
            if one.engine is not None and not self.busy[one.id]:
                with suppress(TMSError), self.inside(one):
                    one.engine.confirm_owner()
                    self.asked.add(one.id)
                    engines.append(one.engine)
        return engines

    def _having(self, has: Callable[[Engine], bool]) -> Engine:
        for attempt in range(6):
            free = [one for one in self._alive() if not self.busy[one.id]]
            found = [one for one in free if one.engine and has(one.engine)]
            if found:
                instance = self.random.choice(found)
                engine = instance.engine
                assert engine is not None
                try:
                    with self.inside(instance):
                        engine.confirm_owner()
                except TMSError:
                    continue
                if has(engine):
                    self.asked.add(instance.id)
                    self._leaderless = 0
                    return engine
            elif attempt > 2 and not self._inside:  # else each step of this would settle all
                self._settle_all()
        if not self._inside and not any(self.busy.values()):
            self._leaderless += 1
        if self._leaderless > LEADERLESS_MAX:
            raise Stuck("No instance can keep the requested role.")
        raise Unavailable("No instance keeps it.")

    # -- what happens to them ------------------------------------------------------------------

    def stir(self) -> None:
        """Let an event happen between the instances."""
        random, self.calm = self.random, False
        instance = random.choice(self.instances)
        match random.randrange(8):
            case 0:  # its session ends, unknown to it
                if len(self.present) > 1:
                    self.present.discard(instance.id)
            case 1:  # its session ends, known to it
                if instance.id not in self.present and instance.engine is not None:
                    instance.member.state = MembershipState.LOST
                    quietly(instance.cluster.settle)
            case 2:
                instance.member.state = MembershipState.SUSPENDED
            case 3 | 4:
                if instance.engine is None:
                    self._start(instance)
                self.present.add(instance.id)
            case 5:
                topics = instance.cluster._metadata and self._topics(instance)
                if topics:
                    uid, partition = random.choice(topics)
                    to = random.choice(self.instances).id
                    quietly(lambda: instance.cluster.pin(f"{uid}/{partition}", to))
            case _:
                instance.settle()
        if self.has_cuts and self.cuts.random() < CUT:
            self._cut_or_heal(self.cuts.choice(self.instances))

    def _cut_or_heal(self, instance: Instance) -> None:
        """Cut an instance off from the store, or heal it; a session passes. ZooKeeper sees the
        instance all the time. If the instance learns late what it has lost, its state stays. Raises
        `Stuck` if the others do not serve what a cut instance owned."""
        cut = not self.cut_off
        if cut and (instance.engine is None or len(self._alive()) < INSTANCES):
            return
        self.cut_off, life = instance.id if cut else "", instance.life
        late = patch.object(HeldRoles, "resign") if self.cuts.random() < 0.5 else nullcontext()
        for one in self._alive():
            self.present.add(one.id)
        with late:
            for _ in range(2 * round(SESSION_S)):
                self.clock.pass_ms(1_000)
                for one in self._alive():
                    one.member.view, one.member.state = self.view(), MembershipState.MEMBER
                    one.cluster.examine()
            for _ in range(SETTLING):
                for one in self._alive():
                    self.aside(one.settle)
        if cut and instance.life == life and not self._others_serve(instance):
            raise Stuck("An instance that the store does not answer is left with what it owned.")

    def _others_serve(self, instance: Instance) -> bool:
        """True if the others serve all that an instance owned, or were disturbed."""
        others = [one for one in self._alive() if one is not instance]
        views = [one.member.view for one in others if one.id in self.present]
        if not views or any(view != self.view() for view in views):
            return True
        clusters = [one.cluster for one in others]
        named = {
            cluster.role_owner(role).id
            for cluster in clusters
            for role in range(1 + self.shards.count)
        }
        return instance.id not in named

    def view(self) -> MembershipView:
        """The members, as ZooKeeper sees them."""
        there = tuple(one.member.record for one in self.instances if one.id in self.present)
        if there != self._seen.instances:
            self._seen = MembershipView(self._seen.number + 1, there)
        return self._seen

    def before(self, instance: Instance, operation: str, name: str) -> None:
        """Act before an instance uses its store."""
        if instance.id == self.cut_off:
            raise StorageUnavailable("It is cut off.")
        if self._dies_in > 0:
            self._dies_in -= 1
            if self._dies_in == 0:
                self._dies_in, self._dying = -1, instance
                instance.store.crashed = True
                raise Died
        self._operations += 1
        if self._operations > OPERATIONS_MAX:
            raise Stuck("A step reads or writes without end.")
        if self._inside or len(self.instances) < INSTANCES:
            return
        self._inside = True
        if operation == "scan":
            self.looked_through = self._place(instance, name)
        elif name != keys.METADATA_MAP:  # there the instance next records what it has found
            self.looked_through = None
        try:
            with self.inside(instance):
                self.aside(lambda: quietly(self.between))
                if self.random.random() < STIRRED:
                    self._stir_others()
        finally:
            self._inside = False

    def _stir_others(self) -> None:
        """Begin or end the session of another instance while one is busy, and let the others see
        it."""
        if self.random.random() < 0.5 and not self.calm:
            id = self.random.choice(self.instances).id
            if id not in self.present:
                self.present.add(id)
            elif len(self.present) > 1:
                self.present.remove(id)
        other = self.random.choice(self.instances)
        if not self.busy[other.id]:
            self.aside(other.settle)

    @contextmanager
    def inside(self, instance: Instance) -> Iterator[None]:
        """Within, the instance is busy."""
        self.busy[instance.id] += 1
        try:
            yield
        finally:
            self.busy[instance.id] -= 1

    @contextmanager
    def waiting(self, instance: Instance) -> Iterator[None]:
        """The instance waits for a commit of its own, and is at nothing else."""
        self.waits[instance.id] += 1
        try:
            with self.inside(instance):
                yield
        finally:
            self.waits[instance.id] -= 1

    def aside(self, work: Callable[[], object]) -> None:
        """Do work of another process: its death does not end the waiting one."""
        try:
            work()
        except Died:
            self.bury_unless_below()

    def bury_unless_below(self) -> None:
        """Bury the process that was to die; raise the error again if it is busy further down on the
        stack, so that those frames end, too."""
        assert self._dying is not None
        if self.busy[self._dying.id] or self._dying.id in self.asked:
            raise Died
        self.bury()

    def bury(self) -> None:
        """Mark the process that was to die as dead."""
        assert self._dying is not None
        self._let_die(self._dying)
        self._dying = None

    def _let_die(self, instance: Instance) -> None:
        instance.life += 1
        instance.engine = None
        instance.store.crashed = True
        self.life += 1
        self.era += 1
        self.history.add(Crashed(self.history.now(), False))
        if self.random.random() < 0.5:
            self.present.discard(instance.id)

    def _start(self, instance: Instance) -> None:
        inside, self._inside = self._inside, True  # nothing else happens meanwhile
        try:
            instance.start()
        except Died:
            self.bury()
        except TMSError:
            instance.engine = None
        finally:
            self._inside = inside

    def _alive(self) -> list[Instance]:
        alive = [one for one in self.instances if one.engine is not None]
        while not alive:
            for one in self.instances:
                self._start(one)
                self.present.add(one.id)
            alive = [one for one in self.instances if one.engine is not None]
        return alive

    def settle_roles(self) -> None:
        if not self._all_is_kept():
            self._settle_all()

    def _settle_all(self) -> None:
        for one in self.instances:
            if one.engine is not None:
                self.present.add(one.id)
        for _ in range(SETTLING):
            for one in self._alive():
                self.aside(one.settle)
            if self._all_is_kept():
                return

    def _all_is_kept(self) -> bool:
        """True if every role is kept by an instance; while calm, by its designated keeper and by no
        other."""
        present = [(one.engine, one.cluster) for one in self.instances if one.engine is not None]
        kept = frozenset[int]().union(*(engine.shards.held for engine, _ in present))
        counts = {engine.topics.shards.count for engine, _ in present}
        settled = not self.calm or all(
            engine.shards.held == cluster.shards() and engine.coordinates is cluster.coordinates
            for engine, cluster in present
        )
        return settled and any(one.coordinates for one, _ in present) and {len(kept)} == counts

    def drop_unreadable(self) -> None:
        """Act as the coprocessor during HBase's compaction: remove rows behind the end of a sealed
        segment, written by an owner that had been replaced."""
        for one in self._alive():
            assert one.engine is not None
            for log in one.engine.topics.partitions.opened():
                for segment in log.state.chain.record.segments:
                    if segment.last is not None:
                        log.state.chain.cut(segment, key_after(segment.last))
                        log.state.chain.reclaim(segment, lambda: None)

    def _place(self, instance: Instance, name: str) -> Place | None:
        """The partition of a map."""
        if instance.engine is None or "/s" not in name:
            return None
        uid, partition = keys.payload_place(name)
        known = instance.engine.topics.registry.known.items()
        topic = next((name.topic for name, record in known if record.uid == uid), None)
        return None if topic is None else (topic, partition)

    def _has_open(self, instance: Instance, place: Place | None) -> bool:
        """True if an instance writes to a partition without asking another one."""
        if place is None or instance.engine is None:
            return False
        topics = instance.engine.topics
        record = topics.registry.known.get(TopicName.parse(place[0]))
        return record is not None and (record.uid, place[1]) in topics.partitions.logs

    def _topics(self, instance: Instance) -> list[tuple[int, int]]:
        engine = instance.engine
        if engine is None:
            return []
        known = engine.topics.registry.known.values()
        return [(one.uid, number) for one in known for number in range(one.partitions)]

    # -- as of one engine ----------------------------------------------------------------------

    def step(self, work: Callable[[], None]) -> None:
        """Run a step; an instance that dies during it is dead afterwards."""
        from tms.log import pending

        waits, pending._passes = pending._passes, self.background.passes
        self._operations = 0
        try:
            with patch("threading.Lock", SingleLock):
                work()
        except Died:
            self.bury()
        except TMSError:  # an actor without an answer asks again
            if self.calm:
                raise
        finally:
            self.busy.clear()
            self.waits.clear()
            self.asked.clear()
            pending._passes = waits

    def die_soon(self, operations: int, power: bool) -> None:
        self._dies_in = operations

    def close(self) -> None:
        """Let an instance end in order, and start anew."""
        instance = self.random.choice(self._alive())
        engine = instance.engine
        assert engine is not None
        try:
            quietly(engine.close)
        finally:  # also if another instance dies meanwhile
            instance.life += 1
            self.life += 1
            self.era += 1
            instance.engine = None
            self.present.discard(instance.id)
        self._start(instance)

    def restart(self) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """End all faults: every instance lives, is seen, and has its roles."""
        self._dies_in, self.between, self.calm = -1, lambda: None, True
        self.cut_off = ""
        for one in self.instances:
            if one.engine is None:
                self._start(one)
            one.store.heal()
            one.cluster.reach_all()
        while self.background.run():
            pass
        self._settle_all()
        for one in self._alive():
            assert one.engine is not None
            quietly(one.engine.maintenance.recover)


class SimPeers:
    """A `PeerConnector` that makes peers of the records of other instances."""

    def __init__(self, caller: Instance) -> None:
        self._caller = caller
        self.identity = InstanceIdentity(caller.id, caller.world.clock)

    def __call__(self, record: InstanceRecord) -> SimPeer:
        instances = self._caller.world.instances
        return SimPeer(self._caller, next(one for one in instances if one.id == record.id))


def _watch_nothing(pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
    """Watch nothing: a waiting client asks again by itself."""
    return lambda: None


def _shard_of(
    shards: sharding.Shards, role: str, method: str, given: tuple[Any, ...]
) -> int | None:
    """The shard of an actor's call, None: any."""
    if method in ("committed", "of"):
        return shards.of_group(given[0])
    if method == "move":
        return shards.of_group(given[0][0].key.group)
    if not given or not isinstance(given[0], TopicName):
        return None
    if role == "delayed":
        return shards.of_delayed(given[0])
    if role == "queues":
        return shards.of_queue(given[0], given[1])
    if method == "positions":
        return shards.of_position(given[0], given[1])
    return shards.of_group(given[1])


def _apart(random: Random) -> list[int]:
    """How far each instance's clock is ahead."""
    if random.random() >= APART_SHARE:
        return [0] * INSTANCES
    return [random.choice((0, *AHEAD_MS)) for _ in range(INSTANCES)]


def _undecided_since_ms(foreign: bool, engine: Engine) -> int:
    return engine.transactions.undecided_since_ms(foreign)


def _at_rest(engine: Engine) -> bool:
    """True if asking for outcomes needs no lock that a frame on the stack may hold."""
    if not engine.coordinates or _is_checking(engine):
        return False
    writing = any(waiting.writing.locked() for waiting in engine.delayed._waiting.values())
    return engine.transactions.manager.known and not writing


def _owns_nothing(engine: Engine) -> bool:
    """True if asking for the end of a log needs no lock that a frame on the stack may hold."""
    topics = engine.topics
    owned = any(log.state.owner.locked() for log in topics.partitions.logs.values())
    looking = topics.registry._lock.locked() or topics.partitions._lock.locked()
    return not owned and not looking and not _is_checking(engine)


def _is_checking(engine: Engine) -> bool:
    assert engine.cluster is not None
    return engine.cluster._checking.locked()
