"""Erasing delayed messages: the messages of a key never come, their bytes are in no row, and
everything else is unchanged, whatever happens meanwhile."""

from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path

import pytest

from sim.faulty import FaultyStore
from tests.clocks import START_MS
from tests.delay_kit import A, AtStep, NotingStore, World
from tests.delayed.test_delay_crashes import (
    KINDS,
    Mortal,
    Two,
    deaths_at_each_step,
    deaths_at_some_steps,
    retried,
)
from tests.log_kit import HOUR_MS
from tests.run_seed import drawn
from tms.block import Compression, decode, encode
from tms.cli.checks.verify import Verifier
from tms.delayed.topic_queue import DelayQueue
from tms.errors import DataCorrupt, TimedOut, TMSError
from tms.model import keys
from tms.model.delayed import DelayedId, DelayedInfo, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore

SECRET = b"the secret of user 17, which is long enough to be found " * 3
KEY, OTHER = b"user-17", b"user-18"
Message = tuple[bytes | None, bytes | None]


class OnDisk(World):
    """A world in a data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(inner=LevelDBStore(path, create=True))

    def restart(self) -> None:
        self.engine.close()
        self.store = FaultyStore(LevelDBStore(self._path, create=False))
        self.open()

    kill = restart  # its lock is held by this process


@pytest.fixture(params=["alone", "shared", "leveldb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "leveldb":
        return OnDisk(tmp_path / "data")
    return World(request.param == "shared")


def later(
    world: World, *messages: Message, due_ms: int = HOUR_MS, token: str = "", partition: int = 0
) -> list[DelayedId]:
    """Publish pairs of key and value in one block, with a header each; returns their ids."""
    (placed,) = world.delayed.publish(
        A, [block_of(messages, partition)], Due(at_ms=START_MS + due_ms), None, token
    )
    return placed.ids()


def block_of(messages: Sequence[Message], partition: int = 0) -> NewBlock:
    names, values = [key for key, _ in messages], [value for _, value in messages]
    return NewBlock(partition, encode(values, names, [{"h": value or b""} for value in values]))


def is_left(world: World) -> bool:
    """True if any row has bytes of the erased messages."""
    store = world.store.inner
    rows = (
        (key, bytes(value))
        for name in store.names("")
        for key, value in store.open(name, create=False).scan(None, None, 1 << 30)
    )
    return any(SECRET[:50] in value or KEY in value for _, value in rows)


def deliver(world: World) -> list[bytes | None]:
    """The messages that were delivered once everything is due."""
    world.clock.pass_ms(2 * HOUR_MS)
    world.delayed.move()
    assert world.delayed.info(A) == DelayedInfo(0, None)
    return sorted(world.read(), key=str)


# Erased and remaining messages


def test_messages_that_wait_are_cancelled_and_the_others_keep_what_they_are(world: World) -> None:
    ids = later(world, (OTHER, b"1"), (KEY, SECRET), (None, b"2"), (KEY, None), (OTHER, None))
    later(world, (KEY, SECRET), (KEY, SECRET), partition=1)
    world.later(SECRET, key=KEY, delay_ms=1)
    world.later(b"3", key=OTHER, delay_ms=1)
    before = world.delayed.messages(A)
    assert is_left(world)
    assert world.engine.erase(A, key=KEY) == 5
    assert not is_left(world)
    assert world.delayed.info(A).waiting == 4
    assert world.delayed.messages(A) == [one for one in before if one.key != KEY]
    assert world.engine.erase(A, key=KEY) == 0
    assert world.engine.stats().erased == 5
    world.restart()
    assert world.delayed.info(A).waiting == 4
    assert world.delayed.cancel(A, ids[2])
    assert deliver(world) == [None, b"1", b"3"]


def test_what_came_already_and_what_waits_are_erased_together(world: World) -> None:
    for due_ms in (1, HOUR_MS):
        later(world, (OTHER, b"%d" % due_ms), (KEY, SECRET), due_ms=due_ms)
    world.clock.pass_ms(1)
    world.delayed.move()
    assert world.engine.erase(A, key=KEY) == 2
    assert not is_left(world)
    assert deliver(world) == [b"1", b"3600000"]


def test_one_partition_may_be_named(world: World) -> None:
    for partition in (0, 1):
        later(world, (KEY, b"%d" % partition), partition=partition)
    assert world.engine.erase(A, key=KEY, partition=1) == 1
    assert deliver(world) == [b"0"]


def test_an_id_of_the_log_names_nothing_that_waits(world: World) -> None:
    later(world, (KEY, b"log"), due_ms=0)
    world.delayed.move()
    last = world.engine.describe_topic(A).partition_infos[0].last_id
    assert last is not None
    later(world, (KEY, b"waits"))
    from tms.model.ids import MessageId

    assert world.engine.erase(A, id=MessageId.parse(last), partition=0) == 1
    assert deliver(world) == [b"waits"]


def test_a_topic_in_which_nothing_ever_waited_has_no_map_afterwards(world: World) -> None:
    assert world.engine.erase(A, key=KEY) == 0
    assert not [name for name in world.store.names("t") if keys.is_delayed_map(name)]


def test_what_was_cancelled_before_loses_its_bytes_and_is_not_counted(world: World) -> None:
    ids = later(world, (KEY, SECRET), (OTHER, b"1"), (KEY, SECRET))
    assert world.delayed.cancel(A, ids[0])
    assert world.engine.erase(A, key=KEY) == 1
    assert not is_left(world) and world.delayed.info(A).waiting == 1
    assert deliver(world) == [b"1"]


def test_a_message_that_was_erased_is_cancelled_for_whoever_asks(world: World) -> None:
    ids = later(world, (KEY, SECRET), (OTHER, b"1")) + later(world, (KEY, SECRET))
    world.engine.erase(A, key=KEY)
    for id in (ids[0], ids[2]):
        assert world.delayed.cancel(A, id)
    assert world.delayed.info(A).waiting == 1


def test_a_repeated_request_is_answered_as_before_and_stores_nothing(world: World) -> None:
    blocks = [[(KEY, SECRET), (OTHER, b"1")], [(KEY, SECRET)]]

    def publish() -> object:
        made = [block_of(messages, partition) for partition, messages in enumerate(blocks)]
        return world.delayed.publish(A, made, Due(delay_ms=HOUR_MS), None, "t")

    first = publish()
    world.engine.erase(A, key=KEY)
    assert publish() == first and not is_left(world)
    world.kill()
    assert publish() == first and not is_left(world)
    assert world.delayed.info(A).waiting == 1
    assert deliver(world) == [b"1"]


@pytest.mark.parametrize("parts", [1, 2])
def test_the_newest_request_of_which_nothing_is_left_is_known_after_a_takeover(
    world: World, parts: int
) -> None:
    def publish() -> object:
        made = [block_of([(KEY, SECRET)], partition) for partition in range(parts)]
        return world.delayed.publish(A, made, Due(delay_ms=HOUR_MS), None, "t")

    world.later(b"1", key=OTHER, delay_ms=HOUR_MS)
    first = publish()
    assert world.engine.erase(A, key=KEY) == parts
    for _ in range(2):
        world.kill()
        assert world.delayed.info(A).waiting == 1
        assert publish() == first
    assert deliver(world) == [b"1"]


def test_a_takeover_does_not_cancel_what_is_left_of_a_request_that_lost_an_entry() -> None:
    """For a new owner, a request with missing entries was never whole."""
    world = World(shared=True)
    made = [block_of([(KEY, SECRET)], 0), block_of([(OTHER, b"1")], 1)]
    world.delayed.publish(A, made, Due(delay_ms=HOUR_MS), None, "t")
    for _ in range(2):
        assert world.engine.erase(A, key=KEY) <= 1
        world.kill()
        assert world.delayed.info(A).waiting == 1
    assert deliver(world) == [b"1"]


def test_the_mover_passes_over_what_is_gone(world: World) -> None:
    later(world, (KEY, SECRET), due_ms=1)
    later(world, (OTHER, b"1"))
    world.engine.erase(A, key=KEY)
    world.clock.pass_ms(1)
    assert world.delayed._scheduler.move() == (1 if world.store.shared else 0)
    assert world.engine.warnings() == []
    assert world.delayed.info(A) == DelayedInfo(1, START_MS + HOUR_MS)
    assert deliver(world) == [b"1"]


def test_a_wholly_erased_request_soon_takes_no_rows(world: World) -> None:
    rows = len(_rows(world))
    later(world, (KEY, SECRET), token="t")
    world.later(b"1", key=OTHER, delay_ms=HOUR_MS)
    world.engine.erase(A, key=KEY)
    world.clock.pass_ms(700_000)
    world.delayed.tidy()
    assert len([key for key in _rows(world) if key[:1] == b"d"]) == rows + 1


def _rows(world: World) -> list[bytes]:
    names = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    maps = [world.store.open(name, create=False) for name in names]
    return [key for one in maps for key, _ in one.scan(None, None, 1 << 20)]


@pytest.mark.parametrize("compression", Compression)
def test_large_entries_are_written_anew_however_they_are_packed(
    world: World, compression: Compression
) -> None:
    values = [b"%d" % number + bytes(90) for number in range(2_000)]
    names = [b"%d" % (number % 10) for number in range(2_000)]
    block = encode(values, names, compression=compression)
    world.delayed.publish(A, [NewBlock(0, block)], Due(delay_ms=1))
    assert world.engine.erase(A, key=b"3") == 200
    (entry,) = world.delayed._of(A).stored.scan(DelayedId(0, 0), None, 1 << 20)
    assert decode(entry.block).compression is compression
    world.clock.pass_ms(1)
    world.delayed.move()
    assert world.read() == [value for number, value in enumerate(values) if number % 10 != 3]


def test_fsck_finds_nothing_wrong_afterwards(tmp_path: Path) -> None:
    world = OnDisk(tmp_path / "data")
    later(world, (KEY, SECRET), (OTHER, b"1"))
    later(world, (KEY, SECRET))
    world.engine.erase(A, key=KEY)
    assert [*Verifier(world.store).run()] == []


def test_a_damaged_message_is_named_instead_of_being_passed_over(world: World) -> None:
    later(world, (KEY, SECRET))
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    there = world.store.open(name, create=False)
    [(key, raw)] = [row for row in there.scan(None, None, 1 << 20) if row[0][:1] == b"d"]
    there.write([(key, raw[:-1] + bytes([raw[-1] ^ 1]))], Durability.SYNCED)
    with pytest.raises(DataCorrupt):
        world.engine.erase(A, key=KEY)


def test_the_topic_is_locked_only_where_there_is_something_to_erase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.delayed.erasing.PAGE_BYTES", 1)
    world = World()
    for number in range(60):
        world.later(b"1", key=KEY if number % 20 == 10 else OTHER, delay_ms=HOUR_MS + number)
    waiting, locked = _waiting(world), list[bool]()

    def note(operation: str, name: str) -> None:
        if keys.is_delayed_map(name):
            locked.append(waiting.writing.locked())

    world.store.before = note
    assert world.delayed.erase(A, KEY) == 3
    assert locked.count(False) > 60
    assert 0 < locked.count(True) < 20


def _waiting(world: World) -> DelayQueue:
    (found,) = world.delayed._topics()
    return found


def test_the_cancel_is_durable_before_messages_are_emptied() -> None:
    """If neither of two writes is synced, a power loss may keep only the second."""
    store = NotingStore()
    world = World(durability=Durability.WRITTEN, inner=store)
    later(world, (OTHER, b"1"), (KEY, SECRET))
    store.noted.clear()
    world.delayed.erase(A, KEY)
    assert store.noted == [(b"n", Durability.SYNCED), (b"d", Durability.SYNCED)]


# While messages are moved


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_what_is_being_moved_is_erased_before_or_behind(shared: bool) -> None:
    def erase_at(step: int) -> bool:
        world = World(shared)
        later(world, (OTHER, b"before"), due_ms=0)
        world.delayed.move()
        later(world, (OTHER, b"1"), (KEY, SECRET), due_ms=1)
        later(world, (KEY, SECRET), due_ms=1)
        later(world, (OTHER, b"2"), (KEY, SECRET))
        world.clock.pass_ms(1)
        erased: list[int] = []
        do = lambda: erased.append(world.engine.erase(A, key=KEY))  # noqa: E731
        with AtStep(world.store, step, do) as at:
            world.delayed.move()
        if at.came:
            assert erased == [3] and not is_left(world), step
            assert deliver(world) == [b"1", b"2", b"before"], step
        return at.came

    assert len(list(takewhile(erase_at, count()))) > 7


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_what_is_moved_while_others_are_erased_comes_once(shared: bool) -> None:
    def move_at(step: int) -> bool:
        world = World(shared)
        later(world, (OTHER, b"1"), (KEY, SECRET), due_ms=1)
        later(world, (OTHER, b"2"), (KEY, SECRET), due_ms=1)
        later(world, (OTHER, b"3"), (KEY, SECRET))
        world.clock.pass_ms(1)
        with AtStep(world.store, step, world.delayed.move) as at:
            world.engine.erase(A, key=KEY)
        assert not is_left(world), step
        assert deliver(world) == [b"1", b"2", b"3"], step
        return at.came

    assert len(list(takewhile(move_at, count()))) > 10


def test_what_the_mover_takes_at_the_last_moment_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    later(world, (OTHER, b"0"), (KEY, SECRET), due_ms=0)
    waiting, waits, rows = _waiting(world), count(), list[list[bytes]]()

    def wait_returned(id: DelayedId, timeout_s: float) -> None:
        rows.append(_rows(world))
        if next(waits) == 0:
            assert waiting.take(START_MS, 1 << 20) is not None
        else:
            waiting.release()

    monkeypatch.setattr(waiting, "wait_returned", wait_returned)
    assert world.delayed.erase(A, KEY) == 1
    assert len(rows) == 2 and rows[0] == rows[1]
    world.delayed.move()
    assert world.read() == [b"0"]


def test_erasing_waits_for_a_move_and_says_so_when_it_does_not_end() -> None:
    world = World()
    later(world, (KEY, SECRET), due_ms=0)
    later(world, (OTHER, b"1"), due_ms=0)
    waiting = _waiting(world)
    taken = waiting.take(START_MS, 1 << 20)
    assert taken is not None
    with pytest.raises(TimedOut):
        world.delayed.erase(A, KEY, timeout_s=0.01)
    waiting.release()
    assert world.delayed.erase(A, KEY) == 1
    world.delayed.move()
    assert world.read() == [b"1"]


# Deaths


def publish_move_and_erase(world: Mortal) -> None:
    """Publish, move and erase as clients do that repeat unanswered requests; and check the
    outcome."""
    both: list[Message] = [(OTHER, b"1"), (KEY, SECRET)]
    blocks = [block_of(both, 0), block_of([(KEY, SECRET)], 1)]

    def publish() -> object:
        return world.delayed.publish(A, blocks, Due(at_ms=START_MS + HOUR_MS), None, "a")

    first = world.surely(publish)
    world.surely(lambda: later(world, (KEY, SECRET), (OTHER, b"2"), due_ms=1, token="b"))
    world.surely(lambda: later(world, (KEY, SECRET), due_ms=HOUR_MS, token="c"))
    world.clock.pass_ms(1)
    world.surely(lambda: world.delayed.move())
    erased = world.surely(lambda: world.engine.erase(A, key=KEY))
    assert erased <= 4 + 1  # the entries of a move that died are in the log, too
    assert not is_left(world), (world.how, world.step)
    assert world.surely(lambda: world.engine.erase(A, key=KEY)) == 0
    assert world.surely(publish) == first
    assert world.surely(lambda: world.delayed.info(A)).waiting == 1
    (left,) = world.surely(lambda: world.delayed.messages(A))
    assert (left.key, left.value, left.headers) == (OTHER, b"1", {"h": b"1"})
    world.surely(world.restart)
    world.clock.pass_ms(2 * HOUR_MS)
    world.surely(lambda: world.delayed.move())
    assert sorted(world.surely(lambda: world.read()), key=str) == [b"1", b"2"], (
        world.how,
        world.step,
    )
    assert world.surely(lambda: world.delayed.info(A)) == DelayedInfo(0, None)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(
    "shared", drawn("a death of erasing", [False, True], 1), ids=["alone", "shared"]
)
def test_whatever_it_dies_at_a_repetition_erases_the_rest(shared: bool, how: str) -> None:
    """No message is delivered torn or twice."""
    assert deaths_at_some_steps(publish_move_and_erase, shared, how) > 50


@pytest.mark.long
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_after_any_death_a_repetition_erases_the_rest_without_duplicates(
    shared: bool, how: str
) -> None:
    assert deaths_at_each_step(publish_move_and_erase, shared, how) > 200


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_what_an_erasing_that_died_leaves_is_delivered_whole_or_not_at_all(
    shared: bool, how: str
) -> None:
    """The erasing is not repeated: the messages of the key are delivered whole, or never."""

    def dies_at(step: int) -> bool:
        world = Mortal(shared, how, -1)
        later(world, (OTHER, b"1"), (KEY, SECRET), (None, b"2"))
        later(world, (KEY, SECRET))
        world._steps, world.step = count(), step
        try:
            world.engine.erase(A, key=KEY)
        except TMSError:
            world.come_back()
        world.store.before = lambda operation, name: None
        waiting = world.delayed.info(A).waiting
        came = deliver(world)
        assert len(came) == waiting, step
        assert [value for value in came if value != SECRET] == [b"1", b"2"], step
        return world.died

    assert len(list(takewhile(dies_at, count()))) > 15


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_whichever_write_fails_a_repetition_erases_the_rest(shared: bool, stored: bool) -> None:
    def fails_at(nth: int) -> bool:
        world = World(shared)
        later(world, (OTHER, b"1"), (KEY, SECRET))
        later(world, (KEY, SECRET))
        writes = world.store.writes
        world.store.fail_write(nth + 1, stored=stored)
        for _ in range(10):
            try:
                world.engine.erase(A, key=KEY)
                break
            except TMSError as error:
                assert error.retriable, error
            world.engine.maintenance.recover()
        assert not is_left(world), nth
        assert world.delayed.info(A).waiting == 1
        came = world.store.writes - writes > nth
        world.store.heal()
        assert deliver(world) == [b"1"], nth
        return came

    assert len(list(takewhile(fails_at, count()))) > 5


# Two engines that share a store


@pytest.mark.parametrize("act", ["moves", "cancels", "publishes", "erases another key"])
def test_a_takeover_while_messages_are_erased_leaves_none_and_tears_nothing(act: str) -> None:
    third = b"user-19"

    def takes_over_at(step: int) -> bool:
        two = Two()
        ids = later(two.one, (OTHER, b"1"), (KEY, SECRET), (third, b"2"), due_ms=1_000)
        later(two.one, (KEY, SECRET), due_ms=1_000)
        two.clock.pass_ms(1_000 if act == "moves" else 0)

        def take_over() -> None:
            if act == "moves":
                two.other.delayed.move()
            elif act == "cancels":
                assert retried(lambda: two.other.delayed.cancel(A, ids[0]))
            elif act == "publishes":
                later(two.other, (OTHER, b"3"), due_ms=1_000)
            else:
                retried(lambda: two.other.delayed.erase(A, third))

        came, erased = two.at(step, take_over, lambda: two.one.delayed.erase(A, KEY))
        world = two.other if came else two.one
        if came or erased is None:
            retried(lambda: world.engine.erase(A, key=KEY))
        assert not is_left(world), step
        two.clock.pass_ms(1_000)
        two.move()
        expected: set[bytes] = {b"1", b"2", b"3"} if act == "publishes" and came else {b"1", b"2"}
        if came and act in ("cancels", "erases another key"):
            expected.discard(b"1" if act == "cancels" else b"2")
        assert two.read() == sorted(expected), step
        return came

    assert len(list(takewhile(takes_over_at, count()))) > 6


def test_who_was_taken_over_does_not_bring_back_what_was_moved_meanwhile() -> None:
    """At the last moment the messages are cancelled, and the entry is about to be rewritten."""
    two = Two()
    later(two.one, (OTHER, b"1"), (KEY, SECRET), due_ms=1_000)

    def before(operation: str, name: str) -> None:
        if operation == "compare_and_set" and keys.is_delayed_map(name):
            two.clock.pass_ms(1_000)
            two.one.store.before = lambda operation, name: None
            two.other.delayed.move()

    two.one.store.before = before
    with pytest.raises(TMSError, match="taken over by another process"):
        two.one.delayed.erase(A, KEY)
    two.clock.jump_ms(-900)
    later(two.other, (OTHER, b"2"), due_ms=150)
    two.clock.pass_ms(10_000)
    two.move()
    assert two.read() == [b"1", b"2"]
