"""Delayed messages when a process dies: each acknowledged one is delivered exactly once, none
early, none that was cancelled, wherever it happens."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count, takewhile
from random import Random
from typing import TypeVar

import pytest

from sim.faulty import CRASHED
from tests.clocks import START_MS, ManualClock
from tests.delay_kit import A, World
from tests.log_kit import HOUR_MS, KeptStore
from tests.run_seed import drawn
from tests.steps import Kind, first_and_last, noting
from tms.block import encode
from tms.delayed.entries import entry_key
from tms.delayed.topic_queue import Taken
from tms.errors import Conflict, StorageUnavailable, TMSError, TooLarge
from tms.model import keys
from tms.model.delayed import DelayedId, DelayedInfo, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability
from tms.store.base import MapRow
from tms.store.memory import MemoryMap

T = TypeVar("T")
KINDS = ("killed", "power", "power by chance")


class Mortal(World):
    """A world that dies at the nth operation on its store, once, and comes back."""

    def __init__(self, shared: bool, how: str, step: int) -> None:
        super().__init__(shared)
        self.how = how
        self.died = False
        self._steps = count()
        self.step = step
        self.store.before = self._before

    def _before(self, operation: str, name: str) -> None:
        if next(self._steps) == self.step:
            self.died = self.store.crashed = True
            raise StorageUnavailable(CRASHED)

    def surely(self, do: Callable[[], T]) -> T:
        """Run an operation, and again after a crash."""
        try:
            found = do()
        except TMSError:
            if not self.store.crashed:
                raise
        else:
            if not self.store.crashed:
                return found
        self.come_back()
        return do()

    def come_back(self) -> None:
        if self.how == "killed":
            self.kill()
        else:
            self.lose_power(Random(self.step) if self.how == "power by chance" else None)


def publish_move_and_cancel(world: Mortal) -> None:
    """Publish, move and cancel as clients do that repeat unanswered requests; and check the
    outcome."""

    def look(*expected: bytes) -> None:
        world.surely(lambda: world.delayed.move())
        assert sorted(world.surely(lambda: world.read())) == sorted(expected), (
            world.how,
            world._last,
        )

    world.surely(
        lambda: world.together({0: [b"1", b"2"], 1: [b"3"]}, Due(at_ms=START_MS + 100), "a")
    )
    (gone,) = world.surely(lambda: world.later(b"gone", delay_ms=5_000, token="b"))
    many = world.surely(lambda: world.later(b"4", b"5", delay_ms=5_000, token="c"))
    look()
    world.clock.pass_ms(100)
    look(b"1", b"2", b"3")
    assert world.surely(lambda: world.delayed.cancel(A, gone))
    assert world.surely(lambda: world.delayed.cancel(A, many[0]))
    world.surely(lambda: world.later(b"6", delay_ms=1, token="d"))
    world.clock.pass_ms(2_000)
    look(b"1", b"2", b"3", b"6")
    world.clock.pass_ms(60_000)
    look(b"1", b"2", b"3", b"5", b"6")
    world.surely(world.restart)
    look(b"1", b"2", b"3", b"5", b"6")
    assert world.delayed.info(A).waiting == 0


def steps_of(story: Callable[[Mortal], None], shared: bool) -> list[Kind]:
    """The kind of each step of a story without a crash."""
    kinds: list[Kind] = []
    world = Mortal(shared, "killed", -1)
    world.store.before = noting(kinds)
    story(world)
    return kinds


def deaths_at_some_steps(story: Callable[[Mortal], None], shared: bool, how: str) -> int:
    """Tell a story once for the first and the last step of each kind, and die there."""
    steps = first_and_last(steps_of(story, shared))
    for step in steps:
        world = Mortal(shared, how, step)
        story(world)
        assert world.died, step
    return len(steps)


def deaths_at_each_step(story: Callable[[Mortal], None], shared: bool, how: str) -> int:
    """Tell a story once for each of its steps, and die there."""

    def dies_at(step: int) -> bool:
        world = Mortal(shared, how, step)
        story(world)
        return world.died

    return len(list(takewhile(dies_at, count())))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(
    "shared", drawn("a death of delayed messages", [False, True], 1), ids=["alone", "shared"]
)
def test_whatever_it_dies_at_each_message_is_delivered_once_and_none_early(
    shared: bool, how: str
) -> None:
    assert deaths_at_some_steps(publish_move_and_cancel, shared, how) > 40


@pytest.mark.long
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_wherever_it_dies_each_message_is_delivered_once_and_none_early(
    shared: bool, how: str
) -> None:
    assert deaths_at_each_step(publish_move_and_cancel, shared, how) > 150


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_whichever_write_fails_each_message_is_delivered_once(shared: bool, stored: bool) -> None:
    """The disk fails, and accepts writes again; the engine goes on running."""

    def again(world: World, do: Callable[[], T]) -> T:
        for _ in range(10):
            try:
                return do()
            except TMSError as error:
                assert error.retriable, error
            world.engine.maintenance.recover()
        raise AssertionError("it does not recover")

    def move(world: World) -> None:
        for _ in range(4):  # a failed topic rests for half a second
            world.delayed.move()
            world.clock.pass_ms(600)
            world.engine.maintenance.recover()

    def fails_at(nth: int) -> bool:
        world = World(shared)
        writes = world.store.writes
        world.store.fail_write(nth + 1, stored=stored)
        again(world, lambda: world.later(b"1", b"2", at_ms=START_MS + 500, token="a"))
        (gone,) = again(world, lambda: world.later(b"-", at_ms=START_MS + HOUR_MS, token="b"))
        move(world)
        assert again(world, lambda: world.delayed.cancel(A, gone))
        again(world, lambda: world.later(b"3", delay_ms=1, token="c"))
        move(world)
        world.clock.pass_ms(HOUR_MS)
        move(world)
        assert sorted(world.read()) == [b"1", b"2", b"3"], nth
        assert world.delayed.info(A).waiting == 0
        return world.store.writes - writes > nth

    assert len(list(takewhile(fails_at, count()))) > 15


def test_what_was_only_written_may_go_with_the_power_but_is_not_delivered_twice() -> None:
    world = World(durability=Durability.WRITTEN)
    for number in range(5):
        world.later(b"%d" % number, delay_ms=number)
    world.clock.pass_ms(2)
    world.delayed.move()
    world.lose_power(Random(1))
    world.clock.pass_ms(10)
    world.delayed.move()
    found = world.read()
    assert found[:3] == [b"0", b"1", b"2"] and len(found) == len(set(found))


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_no_id_is_given_twice(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr("tms.delayed.stored_queue.RESERVED", 3)
    world, ids = World(shared), list[DelayedId]()
    for _ in range(3):
        for many in range(1, 6):
            ids += world.later(*[b"1"] * many, delay_ms=1)
        world.kill()
    assert ids == sorted(set(ids))
    world.clock.pass_ms(1)
    assert world.delayed.move() == len(ids) == 45


@pytest.mark.parametrize("page_bytes", [1, 120, 1 << 20])
def test_of_what_was_moved_nothing_is_left_however_it_is_read(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    """The scheduler dies between its commit and the deletion; the next start has to find all
    entries."""
    monkeypatch.setattr("tms.delayed.stored_queue.SCAN_BYTES", page_bytes)
    world = World()
    for number in range(9):
        (id,) = world.later(b"%d" % number, delay_ms=number // 3)
    world.later(b"far", delay_ms=HOUR_MS)
    assert world.delayed.cancel(A, DelayedId(id.due_ms, id.sequence - 1))
    world.clock.pass_ms(2)
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    world.store.fail_write(1, stored=False, prefix=name)  # a write after the commit
    world.delayed.move()
    assert len(_rows(world)) > 10
    world.kill()
    assert world.delayed.info(A) == DelayedInfo(1, START_MS + HOUR_MS)
    assert [key[:1] for key, _ in _rows(world) if key[:1] == b"d"] == [b"d"]
    assert world.delayed.move() == 0 and len(world.read()) == 8


def test_when_there_are_no_more_ids_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tms.delayed.stored_queue.RESERVED", 2)
    monkeypatch.setattr("tms.delayed.stored_queue.SEQUENCE_MAX", 9)
    world = World()
    world.later(*[b"1"] * 6, delay_ms=1)
    world.later(b"2", delay_ms=1)
    for _ in range(2):
        with pytest.raises(TooLarge, match="The topic a has had too many delayed messages"):
            world.later(b"3", b"3", delay_ms=1)
    assert world.delayed.info(A).waiting == 7


# Two engines that share a store


def test_a_replaced_owner_gets_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tms.delayed.stored_queue.RESERVED", 2)
    two = Two()
    ids = two.one.later(b"1", delay_ms=1)
    ids += two.other.later(b"2", delay_ms=1)
    before = dict(_rows(two.other))
    with pytest.raises(StorageUnavailable, match="taken over") as caught:
        two.one.later(*[b"-"] * 9, delay_ms=1, token="t")
    assert caught.value.details["outcome"] == "unknown"
    assert dict(_rows(two.other)) == before
    ids += two.other.later(b"3", delay_ms=1)
    assert len(set(ids)) == 3


def _rows(world: World) -> list[MapRow]:
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    return [*world.store.open(name, create=False).scan(None, None, 1 << 20)]


class Two:
    """Two engines over one store; the second is opened on demand, and acts at the nth operation of
    the first."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._inner = KeptStore(shared=True)
        self.one = World(inner=self._inner, clock=self.clock)

    @cached_property
    def other(self) -> World:
        """The second engine."""
        return World(inner=self._inner, clock=self.clock)

    def read(self) -> list[bytes | None]:
        """The messages that a new reader gets."""
        return sorted(World(inner=self._inner, clock=self.clock).read())

    def at(
        self, step: int, do: Callable[[], object], act: Callable[[], T]
    ) -> tuple[bool, T | None]:
        """Let the first act, and the second do something meanwhile; returns whether that happened,
        and the first one's result, None if it does not know."""
        steps, came = count(), False

        def before(operation: str, name: str) -> None:
            nonlocal came
            if next(steps) == step:
                came = True
                do()

        self.one.store.before = before
        found: T | None = None
        try:
            found = act()
        except TMSError:
            pass
        finally:
            self.one.store.before = lambda operation, name: None
        return came, found

    def move(self) -> None:
        """Let both schedulers move until nothing is due."""
        for _ in range(4):
            for world in (self.other, self.one):
                self.move_one(world)
            self.clock.pass_ms(6_000)

    def move_one(self, world: World) -> None:
        """Let one scheduler move. It finds out step by step that it has lost the topic, the journal
        of positions and that of transactions, and pauses after each."""
        for _ in range(4):
            world.delayed._scheduler.move()
            self.clock.pass_ms(501)


def retried(act: Callable[[], T]) -> T:
    """Repeat a failed request as a client does."""
    for _ in range(20):
        try:
            return act()
        except Conflict:
            raise
        except TMSError as error:
            assert error.retriable, error
    raise AssertionError("it does not end")


@pytest.mark.parametrize("before", [[b"0"], []], ids=["", "the first"])
def test_a_takeover_while_messages_are_published_loses_and_doubles_none(
    before: list[bytes],
) -> None:
    def takes_over_at(step: int) -> bool:
        two = Two()
        for value in before:
            two.one.later(value, delay_ms=1_000)

        def publish(world: World) -> list[DelayedId]:
            return world.later(b"1", b"2", delay_ms=1_000, token="t")

        def take_over() -> None:
            two.other.later(b"other", delay_ms=1_000)

        came, found = two.at(step, take_over, lambda: publish(two.one))
        if found is None:
            retried(lambda: publish(two.other))
        two.clock.pass_ms(1_000)
        two.move()
        expected = [*before, b"1", b"2", *([b"other"] if came else [])]
        assert two.read() == expected, step
        return came

    assert len(list(takewhile(takes_over_at, count()))) > 3


def test_two_who_begin_a_topic_at_once_are_both_answered() -> None:
    two, opens = Two(), count()

    def before(operation: str, name: str) -> None:
        if operation == "open" and keys.is_delayed_map(name) and next(opens) == 1:
            two.other.later(b"2", delay_ms=1_000)

    two.one.store.before = before
    two.one.later(b"1", delay_ms=1_000)
    assert next(opens) > 2
    two.clock.pass_ms(1_000)
    assert two.one.delayed.move() == 2 and two.read() == [b"1", b"2"]


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
def test_a_takeover_while_messages_are_moved_loses_and_doubles_none(cancelled: bool) -> None:
    def takes_over_at(step: int) -> bool:
        two = Two()
        two.one.later(b"0", delay_ms=0)
        two.one.delayed.move()
        ids = two.one.later(b"1", b"2", b"3", delay_ms=1_000)
        two.clock.pass_ms(1_000)
        answers: list[bool] = []

        def take_over() -> None:
            if cancelled:
                answers.append(retried(lambda: two.other.delayed.cancel(A, ids[1])))
            else:
                two.other.delayed.move()

        came, _ = two.at(step, take_over, two.one.delayed.move)
        two.move()
        expected = [b"0", b"1", b"2", b"3"]
        if answers and answers[0]:
            expected.remove(b"2")
        assert two.read() == expected, (step, answers)
        return came

    assert len(list(takewhile(takes_over_at, count()))) > 9


def test_a_takeover_while_a_message_is_cancelled_leaves_one_answer() -> None:
    def takes_over_at(step: int) -> bool:
        two = Two()
        (id,) = two.one.later(b"1", delay_ms=1_000)
        two.clock.pass_ms(1_000)
        came, found = two.at(
            step, lambda: two.other.delayed.move(), lambda: two.one.delayed.cancel(A, id)
        )
        if found is None:
            try:
                found = retried(lambda: two.one.delayed.cancel(A, id))
            except Conflict:  # its outcome is unknown
                return came
        two.move()
        assert two.read() == ([] if found else [b"1"]), step
        return came

    assert len(list(takewhile(takes_over_at, count()))) > 3


def test_who_lost_a_topic_takes_it_back_when_nobody_moves_its_messages() -> None:
    two = Two()
    two.one.later(b"1", delay_ms=1_000)
    two.other.later(b"2", delay_ms=1_000)
    two.clock.pass_ms(1_000)
    two.one.delayed._scheduler.move()  # the engine that does not know yet
    assert two.read() == []
    two.clock.pass_ms(4_000)
    two.one.delayed._scheduler.move()
    assert two.read() == []
    assert two.one.delayed._of(A).next_due_ms == START_MS + 6_000
    two.clock.pass_ms(1_001)
    two.move_one(two.one)
    assert two.read() == [b"1", b"2"]


@pytest.mark.parametrize("looked", [False, True], ids=["", "looked into"])
def test_a_topic_that_another_began_is_left_to_it_as_long_as_it_delivers(looked: bool) -> None:
    two = Two()
    other = two.other  # opened before anything waits
    two.one.later(b"1", delay_ms=1_000)
    if looked:
        assert other.delayed.info(A).waiting == len(other.delayed.messages(A)) == 1
    other.delayed.tidy()
    two.one.later(b"2", delay_ms=1_000)
    two.clock.pass_ms(1_000)
    assert other.delayed.move() == 0
    assert two.one.delayed.move() == 2
    two.one.later(b"3", delay_ms=0)
    two.clock.pass_ms(5_001)
    other.delayed.tidy()
    assert other.delayed.move() == 1 and two.read() == [b"1", b"2", b"3"]


def test_what_was_delivered_is_not_cancelled_though_a_late_write_brings_it_back() -> None:
    world = World(shared=True)
    (id,) = world.later(b"1", delay_ms=1)
    world.later(b"2", delay_ms=HOUR_MS)
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    rows, key = world.store.open(name, create=False), entry_key(id)
    stored = rows.get(key)
    world.clock.pass_ms(1)
    assert world.delayed.move() == 1 and stored is not None and rows.get(key) is None
    rows.write([(key, stored)], Durability.SYNCED)
    assert not world.delayed.cancel(A, id)
    for _ in range(2):
        assert world.delayed.info(A).waiting == 1
        assert world.delayed.move() == 0 and world.read() == [b"1"]
        world.kill()


class TornStore(KeptStore):
    """A shared store in which only some rows of a write to a map of delayed messages arrive."""

    def __init__(self) -> None:
        super().__init__(shared=True)
        self.keep: Callable[[Sequence[MapRow]], Sequence[MapRow]] | None = None

    def open(self, name: str, create: bool) -> MemoryMap:
        found = super().open(name, create)
        if keys.is_delayed_map(name) and "write" not in vars(found):
            write = found.write

            def torn(rows: Sequence[MapRow], durability: Durability) -> None:
                if self.keep is None:
                    return write(rows, durability)
                keep, self.keep = self.keep, None
                write(keep(rows), durability)
                raise StorageUnavailable("The connection broke.")

            found.write = torn  # type: ignore[method-assign]
        return found


@pytest.mark.parametrize("writes_before", [0, 1])
@pytest.mark.parametrize("kept", range(6))
@pytest.mark.parametrize("killed", [0, 1, 2], ids=["goes on", "killed", "killed again"])
def test_a_request_that_arrived_by_halves_is_stored_once_when_it_is_repeated(
    writes_before: int, kept: int, killed: int
) -> None:
    store = TornStore()
    world = World(inner=store)
    world.later(b"0", delay_ms=1_000)
    blocks = {0: [b"1", b"2"], 1: [b"3"]}
    left = [writes_before]

    def keep(rows: Sequence[MapRow]) -> Sequence[MapRow]:
        return sorted(rows)[kept % 3 :] if kept < 3 else sorted(rows)[: kept % 3 + 1]

    def arm(operation: str, name: str) -> None:
        if operation == "write" and keys.is_delayed_map(name):
            if left[0] == 0:
                store.keep = keep
            left[0] -= 1

    world.store.before = arm
    with pytest.raises(StorageUnavailable):
        world.together(blocks, Due(delay_ms=1_000), "t")
    world.store.before = lambda operation, name: None
    for _ in range(killed):
        world.kill()
        world.later(b"0", delay_ms=1_000, token="u")  # the newest request is then another one
    world.clock.pass_ms(100)
    world.together(blocks, Due(delay_ms=1_000), "t")
    world.clock.pass_ms(5_000)
    world.delayed.move()
    assert sorted(world.read()) == [b"0", *[b"0"] * (killed > 0), b"1", b"2", b"3"]


@pytest.mark.parametrize("kept", [0, 1])
def test_of_requests_written_together_only_incomplete_ones_are_stored_again(
    kept: int,
) -> None:
    store = TornStore()
    world = World(inner=store)
    world.later(b"0", delay_ms=1_000)
    writes = count()

    def arm(operation: str, name: str) -> None:
        if operation == "write" and keys.is_delayed_map(name) and next(writes) == 1:
            store.keep = lambda rows: sorted(rows)[kept : kept + 1]

    world.store.before = arm
    values = (b"1", b"2")
    with world.delayed._of(A).writing:
        pending = [
            world.delayed.submit(
                A, [NewBlock(0, encode([value]))], Due(delay_ms=1_000), None, value.decode()
            )
            for value in values
        ]
    for one in pending:
        with pytest.raises(StorageUnavailable):
            one.result(5)
    world.kill()
    for value in values:
        world.later(value, delay_ms=1_000, token=value.decode())
    world.clock.pass_ms(1_000)
    world.delayed.move()
    assert sorted(world.read()) == [b"0", b"1", b"2"]


def test_an_entry_from_before_a_takeover_is_not_delivered_twice() -> None:
    """The replaced process writes on after the other has begun: its request was there, its entry
    comes late."""
    two = Two()
    two.one.later(b"0", delay_ms=HOUR_MS)
    block = [NewBlock(0, encode([b"1"]))]
    writes = count()

    def before(operation: str, name: str) -> None:
        if operation == "write" and keys.is_delayed_map(name) and next(writes) == 1:
            two.other.delayed.publish(A, block, Due(delay_ms=1_000), None, "t")

    two.one.store.before = before
    with pytest.raises(StorageUnavailable):
        two.one.delayed.publish(A, block, Due(delay_ms=1_000), None, "t")
    two.one.store.before = lambda operation, name: None
    two.clock.pass_ms(1_000)
    two.move()
    assert two.read() == [b"1"]


def test_messages_counted_during_a_reload_are_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something fails between the commit of a move and the writes after it."""
    world = World()
    for delay_ms in (0, 1_000, 2_000):
        world.later(b"1", delay_ms=delay_ms)
    waiting = world.delayed._of(A)
    done = waiting.done

    def read_again(taken: Taken, messages: int, committed: bool) -> None:
        waiting.stored.trusted = False
        assert waiting.info().waiting == 2
        done(taken, messages, committed)

    monkeypatch.setattr(waiting, "done", read_again)
    assert world.delayed.move() == 1
    assert world.delayed.info(A) == DelayedInfo(2, START_MS + 1_000)
    world.kill()
    assert world.delayed.info(A) == DelayedInfo(2, START_MS + 1_000)


def test_what_a_failed_write_has_stored_while_a_move_ends_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.later(b"1", delay_ms=0)
    waiting = world.delayed._of(A)
    first = waiting.stored.first

    def fails_meanwhile(start: DelayedId) -> DelayedId | None:
        following = first(start)
        monkeypatch.undo()
        world.store.fail_write(1, stored=True)
        with pytest.raises(TMSError):
            world.later(b"2", delay_ms=1_000)
        return following

    monkeypatch.setattr(waiting.stored, "first", fails_meanwhile)
    assert world.delayed.move() == 1
    world.clock.pass_ms(1_000)
    assert world.delayed._scheduler.move() == 1
    assert world.read() == [b"1", b"2"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_request_is_remembered_after_an_earlier_message_was_moved(
    shared: bool,
) -> None:
    """The clock goes back in between."""
    world = World(shared)
    world.later(b"1", delay_ms=0, token="t")
    world.delayed.move()
    world.clock.jump_ms(-1_000)
    world.later(b"2", delay_ms=0)
    world.delayed.move()
    world.kill()
    world.later(b"1", delay_ms=0, token="t")
    world.delayed.move()
    assert world.read() == [b"1", b"2"]


def test_what_is_counted_after_a_failed_move_is_what_waits_also_in_a_shared_store() -> None:
    world = World(shared=True)
    world.later(b"1", delay_ms=0)
    world.later(b"2", delay_ms=HOUR_MS)
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    world.store.fail_write(1, stored=False, prefix=name)  # a write after the commit
    world.delayed.move()
    world.engine.maintenance.recover()
    assert world.delayed.info(A).waiting == len(world.delayed.messages(A)) == 1
    assert world.read() == [b"1"]


def test_the_count_outlives_a_power_loss_right_after_a_failed_move_was_looked_into() -> None:
    world = World()
    world.later(b"1", b"2", delay_ms=0)
    world.later(b"3", delay_ms=HOUR_MS)
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    world.store.fail_write(1, stored=False, prefix=name)  # a write after the commit
    world.delayed.move()
    assert world.delayed.info(A).waiting == 1
    world.lose_power()
    assert world.delayed.info(A).waiting == 1


def test_a_repetition_after_a_power_loss_delivers_nothing_again() -> None:
    """The request was not synced, and no write after its commit reached the store."""
    world = World(durability=Durability.WRITTEN)
    world.later(b"1", delay_ms=0, token="t")
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    writes = count()

    def before(operation: str, map_name: str) -> None:
        if map_name == name and operation == "write" and world.read():
            next(writes)
            raise StorageUnavailable(CRASHED)

    world.store.before = before
    world.delayed.move()
    assert next(writes) > 0
    world.lose_power()
    world.later(b"1", delay_ms=0, token="t")
    world.delayed.move()
    assert world.read() == [b"1"]


def test_a_request_all_of_which_was_cancelled_is_known_to_the_next_owner() -> None:
    world = World(shared=True)
    [id] = world.later(b"x", delay_ms=10, token="t")
    assert world.delayed.cancel(A, id)
    world.clock.pass_ms(20)
    world.delayed.move()
    world.kill()
    assert world.later(b"x", delay_ms=10, token="t") == [id]
    world.clock.pass_ms(20)
    world.delayed.move()
    assert world.read() == []
