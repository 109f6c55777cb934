"""Kafka's classic groups under churn: whatever clients join, sync, vanish, come back, leave and
pause, and whenever the service is killed or cannot store, a group has one generation at a time, all
who wait are answered, and nothing remains."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.groups.classic_kit import BOUNDS, DELAY_MS, KEY, Coordinator, Protocols
from tests.run_seed import examples
from tms.groups.classic_calls import ENTRY_BYTES, Code, JoinAnswer, Leaver, State, SyncAnswer
from tms.groups.classic_member import KeptGroup

SESSIONS_MS, REBALANCES_MS = (6_000, 20_000), (0, 1_000, 15_000)
WAIT_MS_MAX = max(REBALANCES_MS) + DELAY_MS
ENOUGH_MS = 4 * (max(SESSIONS_MS) + WAIT_MS_MAX)
PROTOCOLS: tuple[Protocols, ...] = (
    (("range", b"1"),),
    (("range", b"2"), ("sticky", b"3")),
    (("sticky", b"4"), ("range", b"5")),
)
INSTANCES = (None, None, None, "x", "y", "x")  # of each process; two run with the same one
NUMBERS = st.integers(0, len(INSTANCES) - 1)
SOME = st.lists(NUMBERS, unique=True, min_size=2)
VERSIONS = st.sampled_from([3, 5, 9])


@dataclass
class Process:
    """A client, as it knows itself."""

    instance: str | None
    id: str = ""
    generation: int = -1
    members: tuple[str, ...] = ()  # if it leads
    sent: dict[int, tuple[str, int]] = field(default_factory=dict)  # its id, and when


class Churn(RuleBasedStateMachine):
    """Processes that send any request at any time, as what they know of themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.kafka = Coordinator(replace(BOUNDS, members_max=4))
        self.processes = [Process(instance) for instance in INSTANCES]
        self.life = 0  # of the group; generations begin anew in each
        self.owners: dict[str, int] = {}  # the process that each id was given to
        self.fenced: set[str] = set()
        self.current: dict[str, str] = {}  # ids by instance
        self.generations: dict[tuple[int, int], tuple[str | None, str | None]] = {}
        self.leaders: dict[tuple[int, int], str] = {}
        self.assigned: dict[tuple[int, int], dict[str, bytes]] = {}
        self.latest = 0
        self.stored: KeptGroup | None = None
        self.gone: set[str] = set()  # fenced ids that a stored group did not have any more

    # -- requests ----------------------------------------------------------------------------------

    @rule(
        number=NUMBERS,
        protocols=st.sampled_from(PROTOCOLS),
        version=VERSIONS,
        session_ms=st.sampled_from(SESSIONS_MS),
        rebalance_ms=st.sampled_from(REBALANCES_MS),
    )
    def join(
        self, number: int, protocols: Protocols, version: int, session_ms: int, rebalance_ms: int
    ) -> None:
        process = self.processes[number]
        self.send(
            process,
            lambda: self.kafka.join(
                process.id,
                protocols,
                instance=process.instance,
                version=version,
                session_ms=session_ms,
                rebalance_ms=rebalance_ms,
            ),
        )

    @rule(number=NUMBERS, leaves_out=st.booleans())
    def sync(self, number: int, leaves_out: bool) -> None:
        process = self.processes[number]
        life, generation = self.life, process.generation
        members = process.members[leaves_out:]
        mine = {id: f"{life}.{generation}.{process.id}.{id}".encode() for id in members}
        is_leader = self.leaders.get((life, generation)) == process.id
        if self.kafka.state is State.COMPLETING and is_leader:
            self.assigned.setdefault((life, generation), mine)
        self.send(
            process,
            lambda: self.kafka.sync(process.id, generation, mine, instance=process.instance),
        )

    @rule(number=NUMBERS)
    def beat(self, number: int) -> None:
        process = self.processes[number]
        code = self.kafka.beat(process.id, process.generation, process.instance)
        self.check_alive(process, code)

    @rule(number=NUMBERS)
    def commit(self, number: int) -> None:
        process = self.processes[number]
        if process.generation >= 0:
            code = self.kafka.may_commit(process.id, process.generation, process.instance)
            self.check_alive(process, code)

    @rule(number=NUMBERS, names_id=st.booleans())
    def leave(self, number: int, names_id: bool) -> None:
        process = self.processes[number]
        self.kafka.leave(Leaver(process.id if names_id else "", process.instance))
        self.learn()

    @rule(number=NUMBERS, forgets=st.booleans())
    def disconnect(self, number: int, forgets: bool) -> None:
        """The connection closes; the process may have died and starts again."""
        process = self.processes[number]
        for token in process.sent:
            self.kafka.tell(self.kafka.groups.drop(self.kafka.now_ms, KEY, token))
        process.sent.clear()
        if forgets:
            process.id, process.generation, process.members = "", -1, ()
        self.learn()

    @rule(ms=st.sampled_from([1, 500, DELAY_MS, 7_000, 16_000]))
    def wait(self, ms: int) -> None:
        self.store(is_stored=True)
        self.kafka.wait(ms)
        self.learn()

    @rule()
    def hold(self) -> None:
        """The journal is slow: requests come before it has stored, but no time passes."""
        self.kafka.saves = False

    @rule(is_stored=st.booleans())
    def store(self, is_stored: bool) -> None:
        self.kafka.saves = True
        self.kafka.save(is_stored)
        self.kafka.save()
        self.learn()

    @rule()
    def kill(self) -> None:
        """The service is killed and starts again. A restored group is a life of its own: later
        generations may begin again with the same numbers."""
        for process in self.processes:
            process.sent.clear()
        self.kafka.saves = True
        self.kafka.restart()
        self.life, self.latest = self.life + 1, 0
        self.current.clear()
        kept = self.kafka.stored.get(KEY)
        assert (kept is None) == (self.kafka.state is State.DEAD)
        if kept is not None:
            ids = {one.id for one in kept.members}
            assert self.kafka.state is State.STABLE and not ids & self.gone
            self.fenced -= ids  # those of a rebalance that was cut short
            self.latest, place = kept.generation, (self.life, kept.generation)
            self.generations[place] = kept.protocol_type, kept.protocol
            self.leaders[place] = kept.leader
            self.assigned[place] = {one.id: one.assignment for one in kept.members}
            self.current |= {one.instance: one.id for one in kept.members if one.instance}
            for one in kept.members:
                code = self.kafka.beat(one.id, kept.generation, one.instance)
                assert code == Code.NONE, "a member goes on as if nothing had happened"
        self.learn()

    @initialize(numbers=SOME, steps=st.integers(2, 6), version=VERSIONS)
    def begin(self, numbers: list[int], steps: int, version: int) -> None:
        self.behave(numbers, steps, version)

    @rule(numbers=SOME, steps=st.integers(1, 6), version=VERSIONS)
    def behave(self, numbers: list[int], steps: int, version: int) -> None:
        """Some processes, in any order, take the steps of a client that wants to read."""
        for _ in range(steps):
            for number in numbers:
                process = self.processes[number]
                if process.sent:
                    continue
                code = self.kafka.beat(process.id, process.generation, process.instance)
                self.check_alive(process, code)
                if code != Code.NONE:
                    self.join(number, PROTOCOLS[number % 2 * 2], version, 20_000, 15_000)
                elif self.kafka.state is State.COMPLETING:
                    self.sync(number, leaves_out=False)
            self.wait(DELAY_MS)

    @rule(ms=st.sampled_from([1, DELAY_MS, 30_000]))
    def pause(self, ms: int) -> None:
        """The coordinator's loop is late: several deadlines pass at once."""
        self.store(is_stored=True)
        self.kafka.now_ms += ms
        self.kafka.tell(self.kafka.groups.expire(self.kafka.now_ms))
        self.learn()

    # -- answers -----------------------------------------------------------------------------------

    def send(self, process: Process, request: Callable[[], int]) -> None:
        id = process.id
        process.sent[request()] = (id, self.kafka.now_ms)
        self.learn()

    def learn(self) -> None:
        """Look at what was stored, and hand the answers out to the processes."""
        kept = self.kafka.stored.get(KEY)
        if kept is not None and kept is not self.stored:
            sent = self.assigned[(self.life, kept.generation)]
            assert all(one.assignment in {b"", *sent.values()} for one in kept.members)
            ids = {one.id for one in kept.members}
            assert not ids & self.gone
            self.gone |= self.fenced - ids
        self.stored = kept
        for number, process in enumerate(self.processes):
            for token in sorted(process.sent.keys() & self.kafka.answers.keys()):
                id, _ = process.sent.pop(token)
                answer = self.kafka.answers[token]
                if isinstance(answer, JoinAnswer):
                    self.learn_join(number, answer)
                else:
                    self.learn_sync(id, process, answer)
        if not self.kafka.groups.has(KEY):
            self.life, self.latest = self.life + 1, 0
            self.current.clear()

    def learn_join(self, number: int, answer: JoinAnswer) -> None:
        process, place = self.processes[number], (self.life, answer.generation)
        if answer.code in (Code.NONE, Code.MEMBER_ID_REQUIRED):
            assert self.owners.setdefault(answer.member, number) == number, "an id of two"
            process.id = answer.member
        elif answer.code == Code.UNKNOWN_MEMBER_ID:
            process.id, process.generation, process.members = "", -1, ()
        if answer.code != Code.NONE:
            return
        assert answer.member not in self.fenced
        if process.instance is not None:
            former = self.current.get(process.instance)
            if former not in (None, answer.member):
                self.fenced.add(str(former))
            self.current[process.instance] = answer.member
        both = (answer.protocol_type, answer.protocol)
        assert self.generations.setdefault(place, both) == both
        assert answer.generation >= self.latest
        self.latest = answer.generation
        process.generation = answer.generation
        if process.instance is None or answer.members:
            self.leaders[place] = answer.leader
        process.members = tuple(one.member for one in answer.members)
        assert bool(process.members) == (answer.leader == answer.member)
        assert not process.members or answer.member in process.members

    def learn_sync(self, id: str, process: Process, answer: SyncAnswer) -> None:
        if answer.code != Code.NONE:
            assert answer == SyncAnswer(answer.code)
            return
        assert id not in self.fenced
        place = (self.life, self.latest)
        assert (answer.protocol_type, answer.protocol) == self.generations[place]
        sent = self.assigned[place]
        if process.instance is None:
            assert answer.assignment == sent.get(id, b"")
        else:  # perhaps that of its former id
            assert answer.assignment in {b"", *sent.values()}

    def check_alive(self, process: Process, code: Code) -> None:
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            assert process.generation == self.latest and process.id not in self.fenced

    # -- invariants --------------------------------------------------------------------------------

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        for process in self.processes:
            for _, since_ms in process.sent.values():
                assert self.kafka.now_ms - since_ms <= WAIT_MS_MAX

    @invariant()
    def what_is_over_has_ended(self) -> None:
        self.kafka.wait(0)  # a deadline may have moved on since it was noted: the loop looks again
        self.learn()
        due_ms = self.kafka.groups.next_deadline_ms
        if self.kafka.saves:
            assert (due_ms is not None) == self.kafka.groups.has(KEY)
        assert due_ms is None or due_ms > self.kafka.now_ms

    @invariant()
    def an_assignment_is_stored_before_it_is_told(self) -> None:
        kept, group = self.kafka.stored.get(KEY), self.kafka.groups._groups.get(KEY)
        if self.kafka.state is State.STABLE and group is not None:
            assert kept is not None and kept.generation == group.generation == self.latest
        if self.kafka.saves and group is None:
            assert kept is None

    @invariant()
    def bytes_are_those_of_members_and_ids(self) -> None:
        groups = self.kafka.groups._groups.values()
        members = sum(one.size for group in groups for one in group._members.values())
        ids = sum(ENTRY_BYTES + len(id) for group in groups for id in group._pending)
        assert self.kafka.groups.size == members + ids

    @invariant()
    def the_group_is_what_it_says(self) -> None:
        group = self.kafka.groups.describe(KEY)
        ids = [one.member for one in group.members]
        instances = [one.instance for one in group.members if one.instance is not None]
        assert len(ids) == len(set(ids)) and len(instances) == len(set(instances))
        assert bool(ids) == (group.state in (State.PREPARING, State.COMPLETING, State.STABLE)) or (
            group.state is State.PREPARING  # ids are still given out
        )
        assert (self.kafka.groups.size > 0) == (group.state is not State.DEAD)
        if group.state is State.STABLE:
            assert all(one.metadata for one in group.members)
            for one in group.members:
                assert one.instance or one.assignment in {
                    b"",
                    self.assigned[(self.life, self.latest)].get(one.member, b""),
                }

    def teardown(self) -> None:
        """Once all processes are gone, nothing remains."""
        self.store(is_stored=True)
        for number in range(len(INSTANCES)):
            self.disconnect(number, forgets=True)
        self.kafka.wait(ENOUGH_MS)
        assert not self.kafka.groups.has(KEY) and self.kafka.groups.size == 0
        assert self.kafka.groups.next_deadline_ms is None and not self.kafka.stored


@pytest.mark.parametrize("count", examples(150, 2_000))
def test_whatever_clients_do_a_generation_is_one_and_all_are_answered(count: int) -> None:
    run_state_machine_as_test(
        Churn, settings=settings(max_examples=count, stateful_step_count=50, deadline=None)
    )
