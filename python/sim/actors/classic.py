"""A group of Kafka's classic protocol: processes that join, sync, send heartbeats, commit, leave,
vanish and come back, and now and then a member of TMS's own protocol that wants the same group.

A request that waits is a `Call`, as the front end has a future for it. The fleet does the work of
that front end: it delivers answers, and lets end what is due.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from random import Random

from sim.history import Assigned, Generation, Moved, Positioned, Present
from sim.world import Stuck, World, quietly
from tms.engine.engine import Engine
from tms.errors import Conflict, Fenced, TMSError
from tms.groups.classic_calls import (
    Answered,
    ClassicKey,
    Client,
    Code,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Sender,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_shard import ClassicShard
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Owner, PositionChange, PositionKey

GROUP = "classics"
TOPIC = TopicName.parse("shared")
KEY = ClassicKey(TOPIC.namespace, GROUP)
PARTITIONS = (0, 1, 2)
SESSIONS_MS, REBALANCES_MS, DELAYS_MS = (6_000, 10_000), (3_000, 5_000, 9_000), (0, 2_000)
WAIT_MS_MAX = max(REBALANCES_MS)  # of a join, and of a sync
# A session, and two rebalances with their syncs; the rest is for steps of a second.
RECOVERED_MS = max(SESSIONS_MS) + 4 * WAIT_MS_MAX + 10_000
PASSING_MS = (50, 400, 1_000, 2_500)
OWN_SESSION_S = 5.0
INSTANCES = (None, None, "x", "y")  # of each process
_REJOINS = (
    Code.MEMBER_ID_REQUIRED,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.REBALANCE_IN_PROGRESS,
    Code.ILLEGAL_GENERATION,
    Code.INCONSISTENT_GROUP_PROTOCOL,
)
_FORGETS = (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID, Code.GROUP_MAX_SIZE_REACHED)


@dataclass(eq=False, slots=True)
class Call:
    """A join or sync, and its answer once there is one."""

    shard: ClassicShard
    engine: Engine
    began_ms: int
    sender: Sender
    answer: JoinAnswer | SyncAnswer | None = None
    is_lost: bool = False  # the process that was to answer has died


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that the coordinator has allowed, and that may still be on its way."""

    sender: Sender
    partition: int


class Phase(Enum):
    AWAY = auto()
    JOINED = auto()
    STABLE = auto()


class Process:
    """A client, as it knows itself."""

    def __init__(self, random: Random, name: str, instance: str | None) -> None:
        self.name, self.instance = name, instance
        self.version = random.choice((5, 9) if instance else (0, 3, 5, 9))
        self.session_ms = random.choice(SESSIONS_MS)
        self.rebalance_ms = random.choice(REBALANCES_MS)
        self.delay_ms = random.choice(DELAYS_MS)
        self.metadata = b"1"
        self.call: Call | None = None
        self.forget()

    def forget(self) -> None:
        """Begin anew: as after a restart, or when the coordinator does not know the member."""
        self.id = ""
        self.go_away()

    def go_away(self) -> None:
        """Leave the generation; the next request is a join."""
        self.phase, self.generation = Phase.AWAY, -1
        self.led: tuple[str, ...] = ()
        self.partitions: tuple[int, ...] = ()

    @property
    def sender(self) -> Sender:
        """The names in its requests."""
        return Sender(self.id, self.generation, self.instance)

    @property
    def request(self) -> JoinRequest:
        """Its join."""
        return JoinRequest(
            self.version,
            Client(self.name, "/127.0.0.1"),
            "consumer",
            (("range", self.metadata), ("sticky", b"")),
            self.session_ms,
            self.rebalance_ms,
            self.id,
            self.instance,
            self.delay_ms,
        )

    def refuse(self, code: Code) -> None:
        """Take an error."""
        if code in _FORGETS:
            self.forget()
        elif code in _REJOINS:
            self.go_away()
        else:
            raise Stuck(f"{self.name} got {code!r}, which no request of its deserves.")

    def take(self, answer: JoinAnswer | SyncAnswer) -> None:
        """Take an answer."""
        if answer.code:
            self.refuse(answer.code)
            if answer.code is Code.MEMBER_ID_REQUIRED and isinstance(answer, JoinAnswer):
                self.id = answer.member
        elif isinstance(answer, JoinAnswer):
            self.phase, self.id, self.generation = Phase.JOINED, answer.member, answer.generation
            leads = answer.leader == answer.member and not answer.skip_assignment
            self.led = tuple(one.member for one in answer.members) if leads else ()
        else:
            self.phase, self.partitions = Phase.STABLE, _read_assignment(answer.assignment)[1]


class OwnMember:
    """A member of TMS's own protocol in the same group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.holding: Mapping[int, int] = {}
        self._came = 0
        self.is_in = False  # it may be a member

    def poll(self, shard_of: Callable[[], int]) -> None:
        """Join, or poll again."""
        if not self.is_in:
            self._came += 1
        history, shard, began = self._world.history, shard_of(), self._world.history.now()
        name = f"own-{self._came}"
        self.is_in = True
        try:
            assignment = self._world.engine.groups.poll(
                TOPIC, GROUP, name, OWN_SESSION_S, self.holding
            )
        except Conflict:
            self.is_in, self.holding = False, {}
            return
        released = assignment.release
        self.holding = {p: e for p, e in assignment.partitions.items() if p not in released}
        if self.holding and shard == shard_of():
            who = f"{name} {sorted(self.holding.items())}"
            history.add(Present(began, GROUP, shard, "tms", who, history.now()))

    def leave(self) -> None:
        """Leave the group."""
        if self.is_in:
            self._world.engine.groups.leave(TOPIC, GROUP, f"own-{self._came}")
            self.is_in, self.holding = False, {}


class Fleet:
    """The processes of the group, the member of TMS's own, and the front end between them and the
    group, which has at most `members_max` members."""

    def __init__(self, world: World, random: Random, members_max: int) -> None:
        self._world, self._random = world, random
        self._members_max = members_max
        self._calls: list[Call] = []
        self._shards: list[ClassicShard] = []  # that have answered, in that order
        self._lives: dict[ClassicShard, int] = {}  # the number of the group that each has
        self._lived = 0
        self._commits: list[Commit] = []  # on their way
        self._ghosts: list[Commit] = []  # what processes that have vanished may still commit
        self._numbers = 0
        self._made = 0
        self._own = OwnMember(world)
        self._since_ms: int | None = None  # nothing has happened to the group since
        self._processes = [self._process(instance) for instance in INSTANCES]

    def _process(self, instance: str | None) -> Process:
        self._made += 1
        return Process(self._random, f"k{self._made}", instance)

    # -- a run -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let some time pass, and some processes do something."""
        random = self._random
        if random.random() < 0.35:
            self._world.clock.pass_ms(random.choice(PASSING_MS))
        self._turn()
        chance = random.random()
        if chance < 0.02:
            self._world.close_shard(GROUP)
        elif chance < 0.03:
            for process in self._processes:
                quietly(partial(self._vanish, process))
        elif chance < 0.12:
            quietly(self._go_own)
        elif chance < 0.2:
            quietly(self._haunt)
        elif chance < 0.24:
            quietly(self._look)
        for _ in range(random.randint(1, 5)):
            process = random.choice(self._processes)
            quietly(partial(self._go, process))

    def _go(self, process: Process) -> None:
        """Take a process's next step, or a false one."""
        random, chance = self._random, self._random.random()
        if chance < 0.02:
            self._vanish(process)
        elif process.call is not None:
            if not self._receive(process) and chance < 0.04:
                process.call = None  # it waits no longer, and sends a join again
        elif process.phase is not Phase.STABLE or chance < 0.4:
            self._request(process)
        elif chance < 0.43:
            self._leave(process)
        elif chance < 0.46:
            process.metadata += b"1"
            self._join(process)
        elif chance < 0.8:
            self._allow(process)
        elif self._commits:
            self._commit(self._commits.pop(random.randrange(len(self._commits))))

    def _go_own(self) -> None:
        if self._own.is_in and self._random.random() < 0.3:
            self._own.leave()
        else:
            self._own.poll(lambda: self._number(self._shard()))

    def _haunt(self) -> None:
        """A process that was taken for dead goes on: it sends a heartbeat, or what it has done."""
        if self._ghosts:
            ghost = self._random.choice(self._ghosts)
            if self._random.random() < 0.3:
                self._beat(ghost.sender)
            else:
                self._commit(ghost)

    def settle(self) -> bool:
        """Let some processes vanish for good; True once the others have everything. Raises `Stuck`
        if that takes longer than sessions and rebalances can last."""
        if self._since_ms is None:
            self._ghosts, self._commits, self._since_ms = [], [], self._now_ms
            for process in self._random.sample(self._processes, len(self._processes) - 1):
                if self._random.random() < 0.4:
                    self._processes.remove(process)
                    quietly(partial(self._vanish, process))
        self._turn()
        quietly(self._own.leave)
        shards = len(self._shards)
        quietly(lambda: self._number(self._shard()))
        if self._own.is_in or shards != len(self._shards):
            self._since_ms = self._now_ms
        for process in self._processes:
            quietly(partial(self._go_on, process))
        if self._has_everything():
            quietly(self._look)
            return True
        if self._now_ms - self._since_ms > RECOVERED_MS:
            states = [(one.name, one.phase.name, one.partitions) for one in self._processes]
            raise Stuck(f"A group of Kafka's protocol does not recover: {states}.")
        return False

    def _go_on(self, process: Process) -> None:
        for _ in range(3):
            if process.call is not None and not self._receive(process):
                return
            self._request(process)
            if process.phase is Phase.STABLE:
                return

    def _has_everything(self) -> bool:
        """True if the processes that fit into the group share all partitions, and can commit."""
        there = [one for one in self._processes if one.phase is Phase.STABLE]
        if len(there) < min(len(self._processes), self._members_max):
            return False
        held = sorted(partition for one in there for partition in one.partitions)
        if held != list(PARTITIONS) or len({one.generation for one in there}) != 1:
            return False
        return all(self._confirms(one) for one in there)

    def _confirms(self, process: Process) -> bool:
        """True if a member commits for each of its partitions."""
        commits = [Commit(process.sender, partition) for partition in process.partitions]
        return all(self._commit(commit) for commit in commits)

    # -- requests of processes ---------------------------------------------------------------------

    def _request(self, process: Process) -> None:
        match process.phase:
            case Phase.AWAY:
                self._join(process)
            case Phase.JOINED:
                self._sync(process)
            case Phase.STABLE:
                if code := self._beat(process.sender):
                    process.refuse(code)

    def _join(self, process: Process) -> None:
        call = self._call(process.sender)
        process.go_away()
        answers = call.shard.join(call, KEY, process.request)
        self._wait(process, call, answers)

    def _sync(self, process: Process) -> None:
        call = self._call(process.sender)
        plan = self._plan(process)
        with call.shard.locked() as (groups, now_ms):
            answers = groups.sync(now_ms, call, KEY, SyncRequest(process.sender, plan))
        self._wait(process, call, answers)

    def _plan(self, process: Process) -> dict[str, bytes]:
        """Assign each partition to a member; the plan has a number of its own."""
        self._numbers += 1
        owned: dict[str, list[int]] = {id: [] for id in process.led}
        for number, partition in enumerate(PARTITIONS if owned else ()):
            owned[process.led[number % len(owned)]].append(partition)
        return {
            id: f"{self._numbers} {' '.join(map(str, some))}".encode() for id, some in owned.items()
        }

    def _beat(self, sender: Sender) -> Code:
        shard, history = self._shard(), self._world.history
        began = history.now()
        with shard.locked() as (groups, now_ms):
            code = groups.heartbeat(now_ms, KEY, sender)
        self._note_present(code, shard, sender, began)
        return code

    def _allow(self, process: Process) -> None:
        """Ask whether a commit may be made; it is on its way then."""
        shard, history = self._shard(), self._world.history
        began = history.now()
        code = shard.may_commit(KEY, process.sender)
        self._note_present(code, shard, process.sender, began)
        if code:
            process.refuse(code)
        elif process.partitions:
            partition = self._random.choice(process.partitions)
            commit = Commit(process.sender, partition)
            if self._random.random() < 0.5:
                self._commit(commit)
            else:
                self._commits = [*self._commits[-3:], commit]

    def _commit(self, commit: Commit) -> bool | None:
        """Move a position; None if the outcome is unknown."""
        self._numbers += 1
        history, number, sender = self._world.history, self._numbers, commit.sender
        key, owner = PositionKey(GROUP, TOPIC, commit.partition), Owner(*sender[:2])
        change = PositionChange(key, Position.offset(number), owner=owner, metadata=f"{number}")
        life = self._lives.get(self._shard(), 0)
        began, done = history.now(), None
        names = commit.partition, number, *sender, life

        def note() -> None:
            history.add(Moved(began, GROUP, *names, history.now(), done))

        try:
            self._world.engine.groups.move([change])
            done = True
        except (Fenced, Conflict):
            done = False
        except TMSError:
            pass
        finally:  # also if the process dies
            note()
        return done

    def _leave(self, process: Process) -> None:
        shard, leaver = self._shard(), Leaver(process.id, process.instance)
        with shard.locked() as (groups, now_ms):
            _, answers = groups.leave(now_ms, KEY, [leaver])
        self._deliver(answers)
        process.forget()

    def _vanish(self, process: Process) -> None:
        """A process dies, and another one begins in its place. The connection of the dead one may
        be closed, or not."""
        call, process.call = process.call, None
        if process.partitions:
            ghost = Commit(process.sender, process.partitions[0])
            self._ghosts = [*self._ghosts[-5:], ghost]
        process.forget()
        closes = self._random.random() < 0.5
        if call is not None and call in self._calls and closes:
            self._calls.remove(call)
            with call.shard.locked() as (groups, now_ms):
                answers = groups.drop(now_ms, KEY, call)
            self._deliver(answers)

    # -- the front end -----------------------------------------------------------------------------

    @property
    def _now_ms(self) -> int:
        return int(self._world.clock.monotonic_s() * 1_000)

    def _shard(self) -> ClassicShard:
        return self._world.engine.groups.of(GROUP).classic

    def _life(self, shard: ClassicShard) -> int:
        """The number of the group in a shard: one without members is forgotten, and its generations
        begin anew."""
        if shard not in self._lives:
            self._lived += 1
            self._lives[shard] = self._lived
        return self._lives[shard]

    def _number(self, shard: ClassicShard) -> int:
        """The number of a shard, each time that it is opened another one."""
        if shard not in self._shards:
            self._shards.append(shard)
        return self._shards.index(shard)

    def _call(self, sender: Sender) -> Call:
        shard = self._shard()
        for engine in self._world.engines():
            if shard in engine.groups.classic_shards():
                engine.groups.deliver_classic(self._deliver)  # it may have started since
                return Call(shard, engine, self._now_ms, sender)
        raise Conflict("The shard has moved.")

    def _wait(self, process: Process, call: Call, answers: Sequence[Answered]) -> None:
        self._calls.append(call)
        process.call = call
        self._deliver(answers)

    def _receive(self, process: Process) -> bool:
        """True if a process's call is over."""
        call = process.call
        assert call is not None
        if call.answer is None and not call.is_lost:
            return False
        process.call = None
        if call.answer is None:
            process.go_away()
        else:
            process.take(call.answer)
        return True

    def _turn(self) -> None:
        """End what is due, and see that all who should have an answer have one."""
        quietly(lambda: self._world.hold_shard(GROUP))
        for engine in self._world.engines():
            engine.groups.deliver_classic(self._deliver)
            for shard in engine.groups.classic_shards():
                with shard.locked() as (groups, now_ms):
                    answers = groups.expire(now_ms)
                    wants_saving = groups.wants_saving
                self._deliver(answers)
                if wants_saving:
                    self._deliver(shard.save())
        for call in self._calls:
            if call.answer is None and not self._world.lives(call.engine):
                call.is_lost = True
        self._calls = [call for call in self._calls if call.answer is None and not call.is_lost]
        for call in self._calls:
            waited_ms = self._now_ms - call.began_ms
            is_open = call.shard in call.engine.groups.classic_shards()
            if not is_open or waited_ms > WAIT_MS_MAX:
                raise Stuck(f"{call.sender} of a classic group has waited for {waited_ms} ms.")

    def _deliver(self, answers: Sequence[Answered]) -> None:
        history = self._world.history
        for call, answer in answers:
            assert isinstance(call, Call)
            if call.answer is not None:
                raise Stuck(f"{call.sender} of a classic group was answered twice.")
            call.answer = answer
            life, at = self._life(call.shard), history.now()
            if answer.code:
                continue
            if isinstance(answer, JoinAnswer):
                sender = Sender(answer.member, answer.generation, call.sender.instance)
                history.add(Generation(at, GROUP, *sender, life))
                self._note_present(Code.NONE, call.shard, sender, at)
            else:
                plan, partitions = _read_assignment(answer.assignment)
                history.add(Assigned(at, GROUP, *call.sender, life, plan, partitions))
        for shard in [one for one in self._lives if not one.has(KEY)]:
            del self._lives[shard]

    def _note_present(self, code: Code, shard: ClassicShard, sender: Sender, began: int) -> None:
        if not code:
            history, who = self._world.history, f"{sender.member} {sender.generation}"
            history.add(Present(began, GROUP, self._number(shard), "classic", who, history.now()))

    def _look(self) -> None:
        history = self._world.history
        began = history.now()
        found = self._world.engine.groups.committed(GROUP, [TOPIC])[TOPIC]
        ended = history.now()
        for partition in PARTITIONS:
            at = found.get(partition)
            number, metadata = (0, "") if at is None else (at.position.number, at.metadata)
            history.add(Positioned(began, GROUP, partition, number, metadata, ended))


def _read_assignment(data: bytes) -> tuple[int, tuple[int, ...]]:
    """The number of the plan, and the partitions."""
    plan, *partitions = map(int, data.split() or (b"0",))
    return plan, tuple(partitions)
