"""Messages that are gone from the log, or damaged in it, are not delivered, and do not hold others
back."""

from collections.abc import Callable

import pytest

from sim.faulty import FaultyStore
from tests.queues.test_queue_keys import erase, expire, truncate
from tests.queues.test_queues import DEAD, JOBS, World
from tms.block import encode, place
from tms.block.received import Delivered
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.errors import DataCorrupt
from tms.log.partition import LogLimits
from tms.model.message import Fetched, PartitionPosition, StoredBlock
from tms.model.position import Position, PositionKind
from tms.model.topic import Durability, TopicName
from tms.queues.reading import Marks, ReadBlock, Scanner
from tms.topics.fetching import Fetcher

GO = pytest.mark.parametrize("go", [erase, truncate, expire])
Go = Callable[[World, Delivered], None]


@GO
@pytest.mark.parametrize("later_ms", [0, 30_000])
def test_what_was_read_ahead_is_not_handed_out_once_it_is_gone(go: Go, later_ms: int) -> None:
    world = World(lease_s=600)
    other = world.queues.declare(JOBS, "other", world.settings)
    assert other.backlog == 0
    world.publish(b"1", b"2")
    world.clock.pass_ms(1)
    world.receive(1)
    _, second = world.queues.receive(JOBS, "other", 9).messages("jobs")
    go(world, second)
    world.clock.pass_ms(later_ms)
    world.publish(b"3")
    assert world.values(1) == [b"3"]


@GO
@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_gone_waits_for_no_worker(go: Go, restarts: bool) -> None:
    world = World(lease_s=600)
    other = world.queues.declare(JOBS, "other", world.settings)
    assert other.backlog == 0
    world.publish(*(b"%d" % n for n in range(100)))
    world.nack(*world.receive(3), delay_s=0)
    last = world.queues.receive(JOBS, "other", 100).messages("jobs")[-1]
    assert world.info().backlog + world.info().ready == 100
    go(world, last)
    if restarts:
        world.reopen()
    waiting = 99 if go is erase else 0  # no number is exact about single messages
    info = world.info()
    assert info.backlog + info.ready in (waiting, waiting + 1)
    world.publish(b"new")
    assert b"new" in world.values(200) + world.values(200)


@GO
def test_a_receive_that_is_full_of_what_is_gone_hands_out_nothing_else_that_is_gone(go: Go) -> None:
    world = World(lease_s=600)
    world.publish(b"1", b"2", b"3")
    first, second = world.receive(2)
    world.nack(first, second, delay_s=0)
    world.clock.pass_ms(30_000)
    erase(world, first)
    go(world, second)
    world.publish(b"4")
    found = world.values(1) + world.values(1)
    assert found == ([b"4"] if go is expire else [b"3", b"4"])


def test_a_receive_goes_on_when_all_that_came_back_is_gone() -> None:
    world = World()
    world.publish(*(b"%d" % n for n in range(30)))
    world.nack(*world.receive(20), delay_s=0)
    world.engine.truncate_topic(JOBS, Position.offset(20))
    assert world.values(5) == [b"20", b"21", b"22", b"23", b"24"]


def test_a_receive_goes_on_behind_what_waits_for_others_of_its_key() -> None:
    world = World(ordered_by="key")
    for _ in range(5):
        world.publish(*[bytes(1_000)] * 500, keys=[b"a"] * 500)
    world.publish(b"z", keys=[b"z"])
    assert len(world.receive(1)) == 1
    assert world.values(1) == [b"z"]


def test_of_marks_too_many_every_other_is_kept_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.queues.reading.MARKS_MAX", 4)
    marks = Marks()
    for n in range(5):
        raw = encode([b"1", b"2", b"3"])
        place(raw, 10 * n)
        for block in ReadBlock.all_of(StoredBlock(0, 1_000 + n, 2, raw)):
            marks.note(block)
    found = {offset: marks.before(offset) for offset in (0, 19, 20, 39, 40, 99)}
    times = {offset: at.id.time_ms for offset, at in found.items() if at and at.id}
    assert times == {0: 1_000, 19: 1_000, 20: 1_002, 39: 1_002, 40: 1_004, 99: 1_004}


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Position]:
    """The positions from which queues read, one read after another."""
    found, fetch = list[Position](), Fetcher.fetch

    def noting(
        fetcher: Fetcher, name: TopicName, positions: list[PartitionPosition], bytes_max: int
    ) -> Fetched:
        found.extend(there.position for there in positions)
        return fetch(fetcher, name, positions, bytes_max)

    monkeypatch.setattr(Fetcher, "fetch", noting)
    return found


def test_what_comes_again_is_read_from_the_mark_before_it_on(fetched: list[Position]) -> None:
    """The log is read block by block, from the end of the one before; from far away it finds the
    position sooner."""
    world = World()
    for n in range(20):
        world.publish(b"%d" % n)
    first = Scanner(world.engine.topics.fetcher, JOBS)
    first.accept(first.read([PartitionPosition(0, Position.earliest())]))
    (mark, *_) = first.ahead[0]
    for offset in range(20):
        scanner = Scanner(world.engine.topics.fetcher, JOBS)
        scanner._marks.setdefault(mark.partition, Marks()).note(mark)
        fetched.clear()
        [(block, some)], gone, _, left = scanner.find(0, [offset], 1)
        assert (block.base, some, gone, left) == (offset, [offset], [], [])
        kinds = [PositionKind.ID, *[PositionKind.AFTER] * 15][: offset + 1]
        assert [at.kind for at in fetched] == kinds + [PositionKind.OFFSET] * (offset >= 16)
        assert len(set(fetched)) == len(fetched)


def test_behind_a_block_of_which_nothing_is_left_it_is_read_on(fetched: list[Position]) -> None:
    """Offsets 5 to 9 of a block are erased, and the log is truncated before 7."""
    world = World()
    world.publish(*(b"%d" % n for n in range(10)))
    world.publish(b"10", b"11")
    for message in world.receive()[5:10]:
        erase(world, message)
    world.engine.truncate_topic(JOBS, Position.offset(7))
    scanner = Scanner(world.engine.topics.fetcher, JOBS)
    for offsets, found in (([3], []), ([3, 11], [([11], 10)])):
        fetched.clear()
        pieces, gone, _, left = scanner.find(0, offsets, 1)
        assert [(some, block.base) for block, some in pieces] == found
        assert (gone, left) == ([3], [])
        assert fetched[:2] == [Position.offset(3), Position.offset(7)]
        scanner = Scanner(world.engine.topics.fetcher, JOBS)  # without marks
    world.clock.pass_ms(40_000)
    assert world.values() == [b"10", b"11"]


# Damage


class _Faulty(FaultyStore):
    def close(self) -> None:
        """Do nothing: a new engine opens the store around it."""


class Damaged(World):
    """A queue over two partitions, a block of which gets damaged: a store that checks its values
    cannot read it, in another store the block's CRC is wrong."""

    def __init__(self, checked: bool, segment_bytes: int = 1) -> None:
        self.checked, self.segment_bytes = checked, segment_bytes
        self.corrupt: set[tuple[str, bytes]] = set()
        super().__init__(2)

    def open(self) -> None:
        faulty = _Faulty(self.store)
        faulty.corrupt = self.corrupt
        config = EngineConfig(log=LogLimits(self.segment_bytes))
        self.engine = Engine(faulty, self.clock, config)
        self.queues = self.engine.queues

    def damage(self, partition: int, offset: int, topic: TopicName = JOBS) -> None:
        """Damage the block with this message where it is stored, and start again."""
        there = [PartitionPosition(partition, Position.offset(offset))]
        block = bytes(self.engine.fetch(topic, there, 1).blocks[0].block)
        self.engine.maintenance.clean()
        for name in self.store.names("t"):
            rows = self.store.open(name, False)
            for key, value in list(rows.scan(b"", b"\xff" * 40, 1 << 30)):
                if bytes(value) != block:
                    continue
                if self.checked:
                    self.corrupt.add((name, key))
                else:
                    flipped = block[:-1] + bytes([block[-1] ^ 1])
                    rows.overwrite([(key, flipped)], Durability.SYNCED)
        self.engine.close()
        self.open()


@pytest.fixture(params=[True, False], ids=["the store says so", "the block says so"])
def damaged(request: pytest.FixtureRequest) -> Damaged:
    return Damaged(request.param)


def test_a_damaged_block_keeps_back_only_what_stands_behind_it(damaged: Damaged) -> None:
    for n in range(4):
        damaged.publish(b"a%d" % n)
    damaged.publish(b"b0", partition=1)
    damaged.damage(0, 2)
    found: list[bytes | None] = []
    with pytest.raises(DataCorrupt, match="queue g cannot read partition 0 of jobs"):
        while True:
            found += damaged.values()
    assert sorted(one or b"" for one in found) == [b"a0", b"a1", b"b0"]
    (warning,) = damaged.engine.warnings()
    assert "queue g cannot read partition 0 of jobs" in warning
    assert damaged.info().leased == 3
    damaged.publish(b"b1", partition=1)
    assert damaged.values() == [b"b1"]
    damaged.engine.truncate_topic(JOBS, Position.latest())
    damaged.publish(b"a4")
    assert damaged.values() == [b"a4"] and damaged.engine.warnings() == []


def test_a_damaged_message_that_comes_again_keeps_no_other_back() -> None:
    damaged = Damaged(checked=False)
    damaged.publish(b"a0")
    damaged.publish(b"a1")
    damaged.nack(*damaged.receive(), delay_s=0)
    damaged.damage(0, 0)
    assert damaged.values(1) == [b"a1"]
    with pytest.raises(DataCorrupt, match="partition 0"):
        damaged.receive()
    damaged.publish(b"a2")
    assert damaged.values(1) == [b"a2"]
    assert len(damaged.engine.warnings()) == 1
    damaged.engine.truncate_topic(JOBS, Position.offset(1))
    damaged.clock.pass_ms(40_000)
    assert damaged.values() == [b"a1", b"a2"] and damaged.engine.warnings() == []


def test_beside_damage_what_is_gone_is_settled_and_no_more_is_read_than_has_room() -> None:
    damaged = Damaged(checked=False)
    for n in range(5):
        damaged.publish(b"a%d" % n)
    messages = damaged.receive()
    damaged.nack(*messages, delay_s=0)
    damaged.engine.erase(JOBS, id=messages[2].id, partition=0)
    damaged.damage(0, 0)
    (queue,) = damaged.queues.opened()
    found = queue._scanner.find_readable(0, [*range(5)], 1)
    assert ([*found.damaged], found.left) == ([0], [2, 3, 4])
    assert damaged.values() == [b"a1", b"a3", b"a4"]
    info = damaged.info()
    assert (info.leased, info.ready + info.delayed) == (3, 1)


def test_where_every_partition_is_damaged_a_receive_says_so_until_one_can_be_read() -> None:
    damaged = Damaged(checked=False)
    for partition in range(2):
        damaged.publish(b"%d" % partition, partition=partition)
        damaged.damage(partition, 0)
    for _ in range(2):
        with pytest.raises(DataCorrupt, match="partition"):
            damaged.receive()
    damaged.engine.truncate_topic(JOBS, Position.latest())
    damaged.publish(b"2")
    assert damaged.values() == [b"2"]


def test_a_damaged_message_that_dies_keeps_no_other_from_the_dead_letters() -> None:
    damaged = Damaged(checked=False)
    damaged.publish(b"a0")
    damaged.publish(b"a1")
    damaged.reject(*damaged.receive())
    damaged.damage(0, 0)
    damaged.queues.tidy()
    assert [one.value for one in damaged.read(DEAD)] == [b"a1"] and damaged.info().dying == 1


def test_a_partition_whose_end_is_damaged_lets_its_engine_open_and_the_others_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged = Damaged(checked=True, segment_bytes=1 << 20)
    damaged.publish(b"b0")
    damaged.publish(b"a0", partition=1)
    assert damaged.ack(*damaged.receive()).done == 2
    damaged.damage(1, 0)
    damaged.publish(b"b1")
    assert damaged.values() == [b"b1"]
    assert damaged.declare().leased == 1 and damaged.queues.list_queues(JOBS)
    with pytest.raises(DataCorrupt, match="partition 1"):
        damaged.receive()
    told = [text for text in caplog.messages if text.startswith("queue_cannot_read")]
    assert len(told) == 1 and "partition=1" in told[0], "operators are told once"
    damaged.corrupt.clear()  # the block was restored
    damaged.publish(b"a1", partition=1)
    assert damaged.values() == [b"a1"] and damaged.engine.warnings() == []


def test_a_receive_that_fails_while_it_takes_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.publish(b"1", b"2", b"3")
    world.nack(*world.receive(1), delay_s=0)

    def fail(*args: object) -> int:
        raise DataCorrupt("A stored block cannot be unpacked.")

    for method in ("bytes_of", "fitting"):
        monkeypatch.setattr(ReadBlock, method, fail)
        with pytest.raises(DataCorrupt):
            world.receive()
        monkeypatch.undo()
    assert world.values() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_queue_whose_dead_letters_are_damaged_is_described_and_goes_on(
    damaged: Damaged, number: int
) -> None:
    for n in range(3):
        damaged.publish(b"%d" % n)
        damaged.reject(*damaged.receive())
        damaged.queues.tidy()
    assert damaged.info().dead == 3
    damaged.damage(0, number, DEAD)
    assert damaged.info().dead in ((3, 0) if number == 2 else (3,))  # its end is not known
    assert damaged.queues.declare(JOBS, "g", damaged.settings).group == "g"
    assert [one.group for one in damaged.queues.list_queues(JOBS)] == ["g"]
    damaged.publish(b"3")
    assert damaged.values() == [b"3"]
