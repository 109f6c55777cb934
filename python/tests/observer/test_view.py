"""Topics of a shared store, read without owning them: the same messages as the engine shows."""

import random
from collections.abc import Iterator

import pytest

from tests.clocks import ManualClock
from tests.log.test_log_fights import Fight
from tests.log_kit import EARLIEST, MANY, NAME, KeptStore, Seen, block, seen, small
from tests.run_seed import drawn
from tms.engine.engine import Engine
from tms.engine.observer import ObservedPartition, StoreObserver, partition
from tms.errors import TMSError, TopicNotFound
from tms.log import writer
from tms.model.message import NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import Durability, TopicSettings
from tms.model.transaction import Commit, TopicBlock, TopicStaged
from tms.transactions.transactions import Transactions

HOUR_MS = 3_600_000
TOPIC = str(NAME)


def messages(blocks: Iterator[StoredBlock] | list[StoredBlock]) -> list[Seen]:
    return seen(list(blocks))


def view(store: KeptStore, clock: ManualClock, partition: int = 0) -> ObservedPartition:
    return StoreObserver(store, clock).topic(TOPIC).partition(partition)


def everything(one: ObservedPartition) -> list[Seen]:
    return messages(one.blocks((0, 0), one.end().key))


class _World:
    """An engine on a shared store, and an observer of it."""

    def __init__(self, partitions: int = 1, retention_ms: int | None = None) -> None:
        self.clock = ManualClock()
        self.store = KeptStore(shared=True)
        limits = small(segment_bytes=3_000, snapshot_bytes=1_500)
        self.limits = limits
        self.engine = Engine(self.store, self.clock, limits.config())
        settings = TopicSettings(partitions, retention_ms, durability=Durability.WRITTEN)
        self.settings = settings
        self.engine.create_topic(NAME, settings)

    @property
    def tx(self) -> Transactions:
        return self.engine.transactions

    def publish(self, *values: bytes) -> None:
        self.clock.pass_ms(1)
        self.engine.append(NAME, [NewBlock(0, block(*values))])

    def show(self) -> ObservedPartition:
        """The partition as the current image shows it."""
        image = self.tx._image
        assert image is not None
        image._shown = None
        image.write(self.clock.now_ms())
        return view(self.store, self.clock)

    def shown(self) -> list[Seen]:
        found: list[Seen] = []
        position = EARLIEST
        while True:
            fetched = self.engine.fetch(NAME, [PartitionPosition(0, position)], MANY)
            if not fetched.blocks:
                return found
            found += seen(fetched.blocks)
            position = fetched.next[0]


def test_a_view_shows_what_the_engine_shows() -> None:
    world = _World()
    assert everything(world.show()) == []
    assert world.show().end().offset == 0
    world.publish(b"a", b"b")
    world.publish(b"c")
    one = world.show()
    assert everything(one) == world.shown()
    assert (one.start(), one.end().offset) == (0, 3)


@pytest.mark.parametrize("seed", drawn("histories of a view", range(30), 10))
def test_a_view_shows_what_the_engine_shows_of_any_history(seed: int) -> None:
    chance = random.Random(seed)
    world = _World(retention_ms=10 * HOUR_MS)
    open_: list[int] = []
    for step in range(60):
        what = chance.random()
        value = b"%d" % step + bytes(chance.randint(0, 200))
        world.clock.pass_ms(chance.choice([0, 1, 1_000, HOUR_MS // 2]))
        try:
            if what < 0.35:
                world.publish(*[value] * chance.randint(1, 3))
            elif what < 0.5:
                open_.append(world.tx.begin(long=True).transaction_id)
            elif what < 0.7 and open_:
                world.tx.submit(NAME, [NewBlock(0, block(value))], chance.choice(open_)).result(5)
            elif what < 0.75 and open_:
                world.tx.stage(NAME, [NewBlock(0, block(value, value))], chance.choice(open_))
            elif what < 0.85 and open_:
                id = open_.pop(chance.randrange(len(open_)))
                staged = len(world.tx._uncommitted.references(NAME, 0, id))
                extra = (TopicStaged(NAME, 0, staged),) if staged else ()
                world.tx.commit(
                    Commit(id, "", (TopicBlock(NAME, NewBlock(0, block(value))),), staged=extra)
                )
            elif what < 0.88 and open_:
                world.tx.abort(open_.pop(0))
            elif what < 0.91 and open_:
                world.tx.invalidate(open_.pop(0))
            elif what < 0.92:
                foreign = (world.clock.now_ms() - 24 * HOUR_MS) * POINTERS_PER_MS + step
                world.tx.submit(NAME, [NewBlock(0, block(value))], foreign).result(5)
            elif what < 0.95:
                world.engine.truncate_topic(NAME, Position.offset(chance.randint(0, step)))
            elif what < 0.97:
                world.engine.delete_topic(NAME)
                world.engine.create_topic(NAME, world.settings)
                open_.clear()
            else:
                world.engine.close()
                world.engine = Engine(world.store, world.clock, world.limits.config())
        except TMSError:
            open_.clear()
        one = world.show()
        shown = world.shown()
        assert everything(one) == shown
        assert {0: one.end().offset} == world.engine.offsets(NAME, Position.latest())
        for at in (EARLIEST, Position.time(world.clock.now_ms() - HOUR_MS), Position.offset(step)):
            assert {0: one.offset_at(at)} == world.engine.offsets(NAME, at)
        if shown:
            some = chance.choice(shown)
            found = messages(one.blocks(one.locate(some.offset), one.end().key))
            assert next(m for m in found if m.offset >= some.offset) == some
    world.engine.close()


def test_what_an_image_does_not_know_is_not_shown() -> None:
    world = _World()
    world.publish(b"a")
    world.show()
    id = world.tx.begin().transaction_id
    world.publish(b"b")
    world.tx.commit(Commit(id, "", (TopicBlock(NAME, NewBlock(0, block(b"t"))),)))
    world.publish(b"c")
    one = view(world.store, world.clock)
    assert [m.value for m in everything(one)] == [b"a", b"b"]
    assert one.end().offset == 2


def test_an_engine_that_is_closed_has_shown_everything() -> None:
    world = _World()
    world.clock.pass_ms(10)
    for value in (b"1", b"2"):
        world.tx.commit(Commit(0, value.decode(), (TopicBlock(NAME, NewBlock(0, block(value))),)))
    shown = world.shown()
    assert everything(view(world.store, world.clock)) == []
    world.engine.close()
    assert everything(view(world.store, world.clock)) == shown
    assert len(shown) == 2


def test_a_topic_that_is_not_there_is_an_error() -> None:
    world = _World()
    with pytest.raises(TopicNotFound):
        StoreObserver(world.store, world.clock).topic("nowhere")
    assert [str(name) for name in StoreObserver(world.store, world.clock).names("default")] == [
        TOPIC
    ]


# -- beside owners that fight ----------------------------------------------------------------------


class _Watched(Fight):
    """A fight with an observer that looks before each operation of the owners on the store."""

    def __init__(self, seed: int, most: int) -> None:
        self.looks: list[list[Seen]] = []
        self.eyes = random.Random(seed)
        super().__init__(seed, most)

    def look(self) -> None:
        if self.eyes.random() < 0.1:
            self.both.clock.pass_ms(self.eyes.choice([1, 2, 100]))
        if self.eyes.random() < 0.05:
            one = view(self.both.kept, self.both.clock)
            self.looks.append(everything(one))


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("seed", drawn("fights that are looked at", range(12), 4))
def test_a_view_never_shows_what_an_owner_takes_back(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 1)
    monkeypatch.setattr(partition, "_PAUSE_S", 0)
    monkeypatch.setattr(partition, "_ATTEMPTS", 4)
    fight = _Watched(seed, most)
    for _ in range(40):
        fight.step(fight.random.randrange(2))
    final = fight.end()
    assert len(fight.looks) > 10
    for looked in fight.looks:
        assert looked == final[: len(looked)]
    assert any(looked for looked in fight.looks)
