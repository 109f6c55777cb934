"""Commits that are repeated, while the first attempt is in progress or after a crash in it: done
once and answered alike."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import tms
from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.gate_kit import StoreGate, in_thread
from tests.log_kit import KeptStore
from tests.shards_kit import shorten_journals
from tests.waiting import PATIENCE_S, until
from tms import Bus
from tms.block import decode, encode
from tms.engine.engine import Engine
from tms.errors import (
    StorageUnavailable,
    TimedOut,
    TMSError,
    TransactionEnded,
    WrongLastId,
)
from tms.log.pending import Pending
from tms.model.ids import MessageId
from tms.model.keys import segment_map
from tms.model.message import NOTHING, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS, Isolation
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import (
    Commit,
    CommitResult,
    PositionChange,
    PositionKey,
    TopicBlock,
)
from tms.store.base import Store
from tms.topics.sharding import TRANSACTIONS
from tms.transactions.edits import Edit

TOPIC, OTHER = TopicName("default", "a"), TopicName("default", "b")
SYNCED, WRITTEN = Durability.SYNCED, Durability.WRITTEN


class World:
    """An engine over a store with a gate."""

    def __init__(self, shared: bool = False) -> None:
        self.gate = StoreGate()
        self.clock = ManualClock()
        self.kept: Store = KeptStore(shared=shared)
        self.open()
        self.engine.create_topic(TOPIC, TopicSettings(1, durability=WRITTEN))

    def open(self) -> None:
        self.clock.pass_ms(1)
        self.store = FaultyStore(self.kept, self.gate)
        self.engine = Engine(self.store, self.clock)
        self.tx = self.engine.transactions

    def restart(self) -> None:
        self.engine.close()
        self.open()

    def segments(self, name: TopicName = TOPIC, partition: int = 0) -> str:
        """The prefix of the names of a partition's segments."""
        return segment_map(self.engine.topics.registry.find(name).uid, partition, 0)[:-1]

    def read(self) -> list[bytes | None]:
        return values(self.engine)

    def last_id(self) -> MessageId:
        at = [PartitionPosition(0, Position.earliest())]
        stored = self.engine.fetch(TOPIC, at, 1 << 20).blocks[-1]
        return MessageId(stored.time_ms, stored.last_sequence)


def values(
    engine: Engine, isolation: Isolation = Isolation.COMMITTED, topic: TopicName = TOPIC
) -> list[bytes | None]:
    """The values that a reader sees."""
    found: list[bytes | None] = []
    position = Position.earliest()
    while True:
        fetched = engine.fetch(topic, [PartitionPosition(0, position)], 1 << 20, 0, isolation)
        for stored in fetched.blocks:
            found += decode(stored.block).values()
        if fetched.next[0] == position or not fetched.blocks:
            return found
        position = fetched.next[0]


def commit(value: bytes, id: int = 0, token: str = "", expect: MessageId | None = None) -> Commit:
    return Commit(id, token, (TopicBlock(TOPIC, NewBlock(0, encode([value]), expect)),))


def both(
    world: World, operation: str, maps: str, request: Callable[[], Commit]
) -> list["Future[CommitResult]"]:
    """Repeat a commit while its first attempt is held at the gate; the outcomes of the two."""
    with world.gate.holding(operation, maps):
        first = in_thread(lambda: world.tx.commit(request()))
        world.gate.wait_reached()
        second = world.tx.submit_commit(request(), SYNCED)
        assert not second.done(), "it does not wait for the first attempt"
    return [first, in_thread(lambda: second.result(PATIENCE_S)[0])]


def assert_done_once(attempts: Sequence["Future[CommitResult]"]) -> None:
    first, second = (one.result(PATIENCE_S) for one in attempts)
    assert first == second and len(first.appended) == 1


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.fixture(params=["token", "id"])
def named(request: pytest.FixtureRequest, world: World) -> dict[str, object]:
    """The arguments by which the attempts name their transaction."""
    if request.param == "token":
        return {"token": "t"}
    return {"id": world.tx.begin().transaction_id}


def test_a_commit_repeated_while_its_first_attempt_looks_at_the_log_is_done_once(
    world: World, named: dict[str, object]
) -> None:
    world.engine.append(TOPIC, [NewBlock(0, encode([b"0"]))])
    last = world.last_id()
    world.restart()
    attempts = both(world, "scan", world.segments(), lambda: commit(b"1", expect=last, **named))
    assert_done_once(attempts)
    assert world.read() == [b"0", b"1"]


def test_a_commit_repeated_while_its_blocks_are_stored_is_done_once(
    world: World, named: dict[str, object]
) -> None:
    attempts = both(world, "write", world.segments(), lambda: commit(b"1", **named))
    assert_done_once(attempts)
    assert world.read() == [b"1"]


def test_a_commit_that_takes_long_is_not_given_up_meanwhile(
    world: World, named: dict[str, object]
) -> None:
    with world.gate.holding("write", world.segments()):
        first = in_thread(lambda: world.tx.commit(commit(b"1", **named)))
        world.gate.wait_reached()
        world.clock.pass_ms(60_000)
        assert world.tx.manager.expire() == 0
    assert first.result(PATIENCE_S).appended
    assert world.read() == [b"1"]


def test_the_first_commit_after_a_start_repeated_at_once_is_done_once(
    world: World, named: dict[str, object]
) -> None:
    world.tx.commit(commit(b"0"))
    world.restart()
    attempts = both(world, "write", world.segments(TRANSACTIONS), lambda: commit(b"1", **named))
    assert_done_once(attempts)
    assert world.read() == [b"0", b"1"]


def test_who_repeats_a_commit_that_is_refused_is_told_the_same(
    world: World, named: dict[str, object]
) -> None:
    world.engine.append(TOPIC, [NewBlock(0, encode([b"0"]))])
    old = world.last_id()
    world.engine.append(TOPIC, [NewBlock(0, encode([b"1"]))])
    world.restart()
    attempts = both(world, "scan", world.segments(), lambda: commit(b"never", expect=old, **named))
    for one in attempts:
        with pytest.raises(WrongLastId):
            one.result(PATIENCE_S)
    with pytest.raises(WrongLastId):
        world.tx.commit(commit(b"never", expect=old, **named))
    assert world.tx.commit(commit(b"2", **named)).appended
    assert world.read() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("where", ["look", "submit"])
def test_an_attempt_that_is_interrupted_leaves_nobody_waiting(
    world: World, named: dict[str, object], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control-C interrupts it before its messages are stored or while they are."""
    reached, go = threading.Event(), threading.Event()
    expect = NOTHING if where == "look" else None
    request = commit(b"1", expect=expect, **named)  # type: ignore[arg-type]

    right = getattr(world.tx._parts.publisher, where)

    def interrupt(name: TopicName, *more: Any, **options: Any) -> object:
        if name != TOPIC:  # the journal's
            return right(name, *more, **options)
        reached.set()
        assert go.wait(PATIENCE_S)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(world.tx._parts.publisher, where, interrupt)
        first = in_thread(lambda: world.tx.commit(request))
        assert reached.wait(PATIENCE_S)
        second = world.tx.submit_commit(request, SYNCED)
        go.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(PATIENCE_S)
    with pytest.raises(TimedOut, match="interrupted"):
        second.result(PATIENCE_S)
    world.tx.manager.expire()
    with suppress(TransactionEnded):
        world.tx.commit(request)
    assert world.read() in ([b"1"], [])
    assert not world.tx.manager._committing and not world.tx.open()


def test_what_begins_with_the_token_of_a_commit_that_looks_at_the_log_is_one_with_it(
    world: World,
) -> None:
    world.engine.append(TOPIC, [NewBlock(0, encode([b"0"]))])
    last = world.last_id()
    world.restart()
    with world.gate.holding("scan", world.segments()):
        first = in_thread(lambda: world.tx.commit(commit(b"1", token="t", expect=last)))
        world.gate.wait_reached()
        id = world.tx.begin(token="t").transaction_id
    with pytest.raises(TimedOut, match="began with this token"):
        first.result(PATIENCE_S)
    assert world.tx.commit(commit(b"1", token="t", expect=last)).transaction_id == id
    assert world.tx.commit(commit(b"1", id=id, expect=last)).transaction_id == id
    assert world.read() == [b"0", b"1"]


def test_what_began_with_a_token_is_committed_by_it_once_though_the_process_dies(
    world: World,
) -> None:
    """Its begin is in the journal already: so its commit must be, too, before its messages are."""
    for nth in range(1, 100):
        token = f"t{nth}"
        world.tx.begin(token=token)
        if not dies_at(world, nth, token=token):
            break
    assert world.read() == [b"%d" % number for number in range(1, nth + 1)]
    assert nth > 3, "nothing was cut off"


def test_a_commit_in_a_large_journal_write_is_done_once_over_a_crash(
    world: World, named: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edits are written in parts: the process dies between any two of them."""
    monkeypatch.setattr("tms.transactions.journal.ENTRY_BYTES", 10)
    for nth in range(1, 100):
        if "id" in named:
            named = {"id": world.tx.begin().transaction_id}
        else:
            named = {"token": f"t{nth}"}
        if not dies_at(world, nth, **named):
            break
    assert world.read() == [b"%d" % number for number in range(1, nth + 1)]
    assert nth > 3, "nothing was cut off"


def dies_at(world: World, nth: int, **named: object) -> bool:
    """Commit `nth`, in a process that dies before its nth operation on the store, and repeat that
    in the next one until it is done; True if the process died."""
    operations = 0

    def count(*_: str) -> None:
        nonlocal operations
        operations += 1
        if operations == nth:
            world.store.crashed = True
            raise StorageUnavailable("The process is gone.")

    world.store.before = count
    died = True
    try:
        world.tx.commit(commit(b"%d" % nth, **named))
        died = False
    except TMSError:
        world.engine._threads.shutdown()
    if died:
        world.open()
        try:
            world.tx.commit(commit(b"%d" % nth, **named))
        except TransactionEnded:
            world.tx.commit(commit(b"%d" % nth, token=f"again {nth}"))
    world.store.before = world.gate
    return died


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_commits_journaled_together_in_parts_are_done_once_over_a_crash(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begins and ends of all of them are in one write, during which the process dies."""
    monkeypatch.setattr("tms.transactions.journal.ENTRY_BYTES", 50)
    tokens = [f"t{number}" for number in range(6)]
    unanswered = -1
    for nth in range(1, 100):
        world = World(shared)
        attempts = together(world, tokens, nth)
        answers = {token: one.result() for token, one in attempts.items() if not one.exception()}
        unanswered = len(tokens) - len(answers)
        world.engine._threads.shutdown()
        world.open()
        again = {token: world.tx.commit(commit(token.encode(), token=token)) for token in tokens}
        for token, answer in answers.items():
            assert again[token].transaction_id == answer.transaction_id
        found = world.read()
        assert sorted(found) == [token.encode() for token in tokens], nth
        if not unanswered:
            break
    assert nth > 5 and not unanswered, "the write was not in parts"


def together(world: World, tokens: list[str], nth: int) -> dict[str, "Future[CommitResult]"]:
    """Commits that wait for the journal together, in a process that dies before the nth operation
    on the store from then on; their outcomes."""
    left = nth

    def count(*_: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            world.store.crashed = True
            raise StorageUnavailable("The process is gone.")

    world.tx.begin()
    with world.gate.holding("write", world.segments(TRANSACTIONS)):
        begun = in_thread(world.tx.begin)
        world.gate.wait_reached()
        attempts = {}
        for number, token in enumerate(tokens):
            request = commit(token.encode(), token=token)
            attempts[token] = in_thread(lambda request=request: world.tx.commit(request))
            until(lambda: len(world.tx.manager.commits) == number + 1)  # noqa: B023
        world.store.before = count
    for one in (begun, *attempts.values()):
        one.exception(PATIENCE_S)
    return attempts


def test_a_commit_whose_end_could_not_be_journaled_is_answered_with_its_ids(world: World) -> None:
    """The write failed but took effect: the repetition finds it committed."""
    world.tx.commit(commit(b"0"))
    world.store.fail_write(1, stored=True, prefix=world.segments(TRANSACTIONS))
    with pytest.raises(StorageUnavailable):
        world.tx.commit(commit(b"1", token="t"))
    found = world.tx.commit(commit(b"1", token="t"))
    assert len(found.appended) == 1
    assert world.read() == [b"0", b"1"]


def test_a_commit_that_began_while_the_journal_failed_may_be_repeated(world: World) -> None:
    """Its begin was part of the journal's write that failed."""
    world.tx.commit(commit(b"0"))
    with world.gate.holding("write", world.segments()):
        first = in_thread(lambda: world.tx.commit(commit(b"1", token="t")))
        world.gate.wait_reached()
        world.store.fail_write(1, stored=False, prefix=world.segments(TRANSACTIONS))
        with pytest.raises(StorageUnavailable):
            world.tx.begin()
    with pytest.raises(StorageUnavailable, match="failed meanwhile"):
        first.result(PATIENCE_S)
    world.tx.commit(commit(b"1", token="t"))
    assert world.read() == [b"0", b"1"]


def test_an_intention_that_could_not_be_journaled_is_not_under_way_for_ever(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.store.fail_write(1, stored=True, prefix=world.segments(TRANSACTIONS))
    with pytest.raises(StorageUnavailable):
        world.tx.commit(commit(b"1", id=id))
    world.tx.manager.expire()
    assert not world.tx.manager._committing
    with pytest.raises(TransactionEnded):
        world.tx.commit(commit(b"1", id=id))
    assert world.read() == []


def test_a_journal_that_could_not_be_shortened_forgets_no_commit(world: World) -> None:
    """A transaction that began during the compaction is only in the new journal."""
    world.tx.begin()
    with world.gate.holding("write", world.segments()):
        first = in_thread(lambda: world.tx.commit(commit(b"1", token="t")))
        world.gate.wait_reached()
        world.store.fail_write(1, stored=False, prefix=world.segments(TRANSACTIONS))
        with pytest.raises(StorageUnavailable):
            world.tx.manager.shorten(0)
    try:
        acknowledged = first.result(PATIENCE_S) is not None
    except StorageUnavailable:
        acknowledged = False
    world.engine._threads.shutdown()
    world.open()
    assert world.read() == [b"1"] * acknowledged


def test_a_commit_by_id_is_done_once_though_the_power_took_its_intention() -> None:
    """Its messages need no sync; another client's sync covers them, but not the journal."""
    world = World()
    id = world.tx.begin().transaction_id
    world.tx.commit(replace(commit(b"0"), durability=SYNCED))
    world.tx.commit(replace(commit(b"1", id=id), durability=WRITTEN))
    world.engine.append(TOPIC, [NewBlock(0, encode([b"2"]))], SYNCED)
    world.kept = world.store.crash()
    world.engine._threads.shutdown()
    world.open()
    with suppress(TransactionEnded):
        world.tx.commit(commit(b"1", id=id))
    assert world.read() in ([b"0", b"2"], [b"0", b"1", b"2"])


# Early messages


@pytest.mark.parametrize("issued", [False, True], ids=["foreign", "issued"])
def test_what_was_staged_and_is_published_twice_at_once_is_there_once(
    world: World, issued: bool
) -> None:
    """CDAP's clients do this. The repeating client needs the places, to roll them back."""
    begun = world.tx.begin().transaction_id
    pointer = begun if issued else begun + 999
    for number in range(2):
        world.tx.stage(TOPIC, [NewBlock(0, encode([b"%d" % number]))], pointer)
    with world.gate.holding("write", world.segments()):
        first = in_thread(lambda: world.tx.refer(TOPIC, 0, pointer))
        world.gate.wait_reached()
        second = in_thread(lambda: world.tx.refer(TOPIC, 0, pointer))
    expected = world.tx.refer(TOPIC, 0, pointer)
    assert first.result(PATIENCE_S) == second.result(PATIENCE_S) == expected
    assert len(first.result()) == 2
    world.tx.stage(TOPIC, [NewBlock(0, encode([b"2"]))], pointer)
    assert len(world.tx.refer(TOPIC, 0, pointer)) == 1
    assert values(world.engine, Isolation.UNCOMMITTED) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("issued", [False, True], ids=["foreign", "issued"])
def test_what_was_staged_and_is_published_again_after_a_restart_is_there_once(
    world: World, issued: bool
) -> None:
    elsewhere = (world.clock.now_ms() - 1_000) * POINTERS_PER_MS
    pointer = world.tx.begin().transaction_id if issued else elsewhere
    for number in range(2):
        world.tx.stage(TOPIC, [NewBlock(0, encode([b"%d" % number]))], pointer)
    places = world.tx.refer(TOPIC, 0, pointer)
    world.engine.append(TOPIC, [NewBlock(0, encode([b"other"]))])
    for _ in range(2):
        world.restart()
        assert world.tx.refer(TOPIC, 0, pointer) == places
    world.tx.stage(TOPIC, [NewBlock(0, encode([b"2"]))], pointer)
    assert len(world.tx.refer(TOPIC, 0, pointer)) == 1
    found = values(world.engine, Isolation.UNCOMMITTED)
    assert found == [b"0", b"1", b"other", b"2"]


# Embedded, through a bus


@pytest.mark.parametrize("stored", [False, True])
def test_a_bus_repeats_a_commit_after_the_store_failed(stored: bool) -> None:
    store = FaultyStore(KeptStore())
    bus = Bus(Engine(store, ManualClock()))
    bus.create_topic("a", durability="written")
    uid = bus._transport.topics.registry.find(TOPIC).uid  # type: ignore[attr-defined]
    for number, maps in enumerate((segment_map(uid, 0, 0), "t")):
        for nth in (1, 2):
            store.fail_write(nth, stored=stored, prefix=maps)
            with bus.transaction() as tx:
                tx.send("a", b"%d.%d" % (number, nth))
            store.heal()
    found = [message.value for message in bus.consumer("a", stop_at_end=True)]
    assert found == [b"0.1", b"0.2", b"1.1", b"1.2"]
    assert isinstance(bus, tms.Bus)


def test_a_commit_repeated_after_a_restart_is_answered_with_the_places_of_the_first(
    world: World, named: dict[str, object]
) -> None:
    world.engine.create_topic(OTHER, TopicSettings(2, durability=WRITTEN))

    def request() -> Commit:  # encoding fills blocks in place
        blocks = (
            TopicBlock(OTHER, NewBlock(1, encode([b"2", b"3"]))),
            TopicBlock(TOPIC, NewBlock(0, encode([b"1"]))),
            TopicBlock(OTHER, NewBlock(1, encode([b"4"]))),
        )
        moved = (PositionChange(PositionKey("g", TOPIC, 0), Position.latest()),)
        return replace(commit(b"1", **named), blocks=blocks, positions=moved)

    first = world.tx.commit(request())
    world.restart()
    for _ in range(2):
        assert world.tx.commit(request()) == first
        shorten_journals(world.engine, 0, 0)  # the places are in the older part of the log
        world.restart()
    assert [one.place.count for one in first.appended] == [2, 1, 1]
    assert world.read() == [b"1"]


def test_what_a_transaction_published_before_its_commit_is_no_answer_to_it(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.tx.submit(TOPIC, [NewBlock(0, encode([b"0"]))], id).result(PATIENCE_S)
    first = world.tx.commit(commit(b"1", id))
    world.restart()
    assert world.tx.commit(commit(b"1", id)) == first
    assert len(first.appended) == 1


def test_who_repeats_a_commit_whose_places_nobody_knows_any_more_is_told_so() -> None:
    """Long after the commit, or when one of its topics is gone: it is committed, but its ids are
    unknown."""
    world = World()
    with Bus(world.engine, clock=world.clock) as bus, bus.transaction() as tx:
        tx.send("a", b"1")
        repeated = tx._request([])
    world.open()
    world.engine.delete_topic(TOPIC)
    assert world.tx.commit(repeated) == CommitResult(world.tx.manager.of_token(tx._token))
    with pytest.raises(TransactionEnded, match="is committed") as caught:
        tx._ids(world.tx.commit(repeated))
    assert caught.value.details["outcome"] == "committed"


def test_who_is_interrupted_while_it_writes_for_others_leaves_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tx.commit(commit(b"0"))
    commits, behind = world.tx.manager.commits, list[Pending[CommitResult]]()
    decide = commits._decide

    def interrupt(*_: object) -> list[Edit]:
        monkeypatch.setattr(commits, "_decide", decide)
        behind.append(world.tx.submit_commit(commit(b"2", token="2"), SYNCED))
        until(lambda: len(commits) > 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(commits, "_decide", interrupt)
    with pytest.raises((KeyboardInterrupt, TimedOut)):  # in either thread
        world.tx.commit(commit(b"1", token="1"))
    behind[0].result(PATIENCE_S)
    world.tx.commit(commit(b"3", token="3"))
    assert world.read() == [b"0", b"2", b"3"]
