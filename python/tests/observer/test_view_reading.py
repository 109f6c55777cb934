"""Reading another owner's partition while it changes: messages that go meanwhile, messages that
come, and the rows that are read."""

import random
from collections.abc import Callable, Iterator

import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import NAME, KeptStore, Seen, block, seen, small
from tms.engine.engine import Engine
from tms.engine.observer import ObservedPartition, StoreObserver, partition
from tms.errors import (
    DataCorrupt,
    OffsetOutOfRange,
    StorageUnavailable,
    TopicNotFound,
)
from tms.log.staging import StagedBlocks
from tms.model import keys
from tms.model.message import NewBlock, StoredBlock
from tms.model.position import Position
from tms.model.topic import Durability, TopicSettings
from tms.model.transaction import Commit, TopicBlock, TopicStaged
from tms.store.base import Map, Store

HOUR_MS = 3_600_000
TOPIC = str(NAME)


class _Table(KeptStore):
    """A store like HBase: a dropped map loses its name; its rows stay until they are cleaned."""

    def __init__(self) -> None:
        super().__init__(shared=True)
        self.left: dict[str, Map] = {}

    def drop(self, name: str) -> None:
        if name.startswith("t"):
            self.left[name] = super().open(name, False)
            self._maps.pop(name)
        else:
            super().drop(name)

    def clean(self) -> None:
        """Remove the rows of dropped maps."""
        for name in [*self.left]:
            rows = self.left.pop(name)
            rows.delete([key for key, _ in rows.scan(None, None, 1 << 30)])


class _World:
    """An engine that publishes, and an observer beside it on a connection of its own."""

    def __init__(self, retention_ms: int | None = None, segment_bytes: int = 3_000) -> None:
        self.clock = ManualClock()
        self.store = _Table()
        self.limits = small(segment_bytes=segment_bytes)
        self.engine = Engine(self.store, self.clock, self.limits.config())
        self.settings = TopicSettings(1, retention_ms, durability=Durability.WRITTEN)
        self.engine.create_topic(NAME, self.settings)
        self.way = _Way(self.store)
        self.view = StoreObserver(self.way, self.clock)

    def publish(self, *values: bytes) -> None:
        self.clock.pass_ms(10)
        self.engine.append(NAME, [NewBlock(0, block(*values))])

    def fill(self, count: int, size: int = 100) -> None:
        for number in range(count):
            self.publish(b"%d" % number + bytes(size))

    def stage(self, *values: bytes) -> None:
        """Stage messages, then commit them."""
        transactions = self.engine.transactions
        id = transactions.begin().transaction_id
        transactions.stage(NAME, [NewBlock(0, block(*values))], id)
        transactions.commit(Commit(id, "", (), staged=(TopicStaged(NAME, 0, 1),)))
        self.show()

    def show(self) -> None:
        image = self.engine.transactions._image
        assert image is not None
        image._shown = None
        image.write(self.clock.now_ms())

    def look(self) -> ObservedPartition:
        return self.view.topic(TOPIC).partition(0)

    def uid(self) -> int:
        return self.engine.topics.registry.find(NAME).uid

    def clean(self) -> None:
        """Remove rows that are not kept any more, as HBase's compaction does."""
        self.store.clean()
        floor = self.view.floor(self.engine.topics.registry.find(NAME))
        for name in self.store.names(keys.topic_prefix(self.uid())):
            rows = self.store.open(name, False)
            rows.delete([k for k, _ in rows.scan(None, keys.block_key(*floor), 1 << 30)])


class _Way(FaultyStore):
    """The reader's way to the store: it can go on reading an opened map after the map has lost its
    name."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.opened: dict[str, Map] = {}
        self.read: list[tuple[str, int]] = []

    def open(self, name: str, create: bool) -> Map:  # type: ignore[override]
        found = self.opened.get(name)
        if found is None:
            found = self.opened[name] = _Counted(super().open(name, create), name, self.read)
        return found


class _Counted:
    """A map that notes the number of rows of each scan."""

    value_bytes_max = 64 << 20

    def __init__(self, inner: Map, name: str, read: list[tuple[str, int]]) -> None:
        self._inner, self._name, self._read = inner, name, read
        self.get = inner.get

    def scan(
        self, start: bytes | None, stop: bytes | None, bytes_max: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = self._inner.scan(start, stop, bytes_max, reverse)
        if self._name != "metadata":
            self._read.append((self._name, len(found)))
        return found

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"somebody who only reads called {name}")


def read(one: ObservedPartition) -> list[Seen]:
    return seen(list(one.blocks((0, 0), one.end().key)))


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "READ_BYTES", 1_000)
    monkeypatch.setattr(partition, "_PAUSE_S", 0)


def after_pages(one: ObservedPartition, count: int, do: Callable[[], object]) -> Iterator[Seen]:
    """The messages that are read if something happens after some pages."""
    for number, page in enumerate(one.pages((0, 0), one.end().key)):
        yield from seen(page)
        if number + 1 == count:
            do()


def test_a_topic_that_is_deleted_under_the_reader_is_an_error_and_never_a_part_of_it() -> None:
    world = _World()
    world.fill(40)

    with pytest.raises(TopicNotFound):
        list(after_pages(world.look(), 2, lambda: world.engine.delete_topic(NAME)))


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_topic_that_is_created_anew_under_the_reader_is_an_error(cleaned: bool) -> None:
    world = _World()
    world.fill(40)

    def renew() -> None:
        world.engine.delete_topic(NAME)
        world.engine.create_topic(NAME, world.settings)
        world.fill(50)
        if cleaned:
            world.clean()

    shown: list[Seen] = []
    with pytest.raises(TopicNotFound, match="anew"):
        for one in after_pages(world.look(), 2, renew):
            shown.append(one)
    assert [one.offset for one in shown] == list(range(len(shown)))
    assert 0 < len(shown) < 40


@pytest.mark.parametrize("cleaned", [False, True])
def test_messages_that_are_truncated_before_they_are_read_are_an_error(cleaned: bool) -> None:
    world = _World()
    world.fill(60)

    def truncate() -> None:
        world.engine.truncate_topic(NAME, Position.offset(50))
        if cleaned:
            world.clean()

    with pytest.raises(OffsetOutOfRange) as raised:
        list(after_pages(world.look(), 1, truncate))
    assert raised.value.details["earliest"] == 50


def test_messages_that_are_truncated_after_they_were_read_are_none() -> None:
    world = _World()
    world.fill(60)
    one = world.look()
    pages = len(list(one.pages((0, 0), one.end().key)))
    found = after_pages(
        world.look(), pages - 1, lambda: world.engine.truncate_topic(NAME, Position.offset(40))
    )
    assert len(list(found)) == 60


def test_messages_that_expire_before_they_are_read_are_an_error() -> None:
    world = _World(retention_ms=HOUR_MS)
    world.fill(30)
    world.clock.pass_ms(HOUR_MS // 2)
    world.fill(30)

    def expire() -> None:
        world.clock.pass_ms(HOUR_MS // 2 + 1_000)
        world.engine.maintenance.clean()
        world.clean()

    with pytest.raises(OffsetOutOfRange) as raised:
        list(after_pages(world.look(), 1, expire))
    assert raised.value.details["earliest"] == 30


def test_what_has_expired_when_reading_begins_is_left_out_though_its_rows_are_there() -> None:
    world = _World(retention_ms=HOUR_MS)
    world.fill(10)
    world.clock.pass_ms(HOUR_MS // 2)
    world.fill(10)
    world.clock.pass_ms(HOUR_MS // 2 + 1_000)
    one = world.look()
    assert (one.start(), one.end().offset) == (10, 20)
    assert [m.offset for m in read(one)] == list(range(10, 20))


def test_a_reader_whose_clock_is_behind_expires_what_the_service_does() -> None:
    """Otherwise it would take rows that HBase has cleaned for a gap."""
    world = _World(retention_ms=HOUR_MS, segment_bytes=1 << 20)
    world.fill(10)
    world.clock.pass_ms(HOUR_MS // 2)
    world.fill(10)
    judged_ms = world.clock.now_ms() + HOUR_MS // 2 + 1_000
    metadata = world.store.open("metadata", False)
    metadata.write([(keys.RETENTION_CLOCK, b"%d" % judged_ms)], Durability.SYNCED)
    assert world.look().start() == 10


def test_staged_messages_that_go_with_their_topic_are_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _World()
    world.stage(b"a", b"b")
    assert [m.value for m in read(world.look())] == [b"a", b"b"]
    one = world.look()
    stop, resolve = one.end().key, StagedBlocks.resolve

    def too_late(self: StagedBlocks, reference: StoredBlock) -> StoredBlock:
        world.engine.delete_topic(NAME)
        world.store.clean()
        return resolve(self, reference)

    monkeypatch.setattr(StagedBlocks, "resolve", too_late)
    with pytest.raises(TopicNotFound):
        list(one.blocks((0, 0), stop))


def test_staged_messages_that_are_missing_while_their_topic_is_there_are_damage() -> None:
    world = _World()
    world.stage(b"a", b"b")
    for name in world.store.names("t"):
        if keys.is_payload_map(name):
            world.store.drop(name)
    with pytest.raises(DataCorrupt, match="staged"):
        read(world.look())


def test_a_segment_whose_map_is_missing_is_damage() -> None:
    world = _World()
    world.fill(40)
    world.store.drop(keys.segment_map(world.uid(), 0, 0))
    with pytest.raises(DataCorrupt, match="fsck"):
        read(world.look())


def test_nothing_behind_a_seal_is_shown() -> None:
    world = _World()
    world.fill(5)
    other = Engine(world.store, world.clock, world.limits.config())
    other.describe_topic(NAME)  # takes over and seals
    late = block(b"late")
    segment = world.store.open(keys.segment_map(world.uid(), 0, 0), False)
    segment.write([(keys.block_key(world.clock.now_ms() + 5, 0), late)], Durability.SYNCED)
    assert len(read(world.look())) == 5
    world.clock.pass_ms(10)
    other.append(NAME, [NewBlock(0, block(b"5"))])
    assert [m.offset for m in read(world.look())] == list(range(6))


def test_holes_in_sealed_segments_are_where_something_was_cleaned_away() -> None:
    world = _World()
    world.fill(40)
    record = world.look()._record
    number = record.segments[1].number
    rows = world.store.open(keys.segment_map(world.uid(), 0, number), False)
    gone = [key for key, _ in rows.scan(None, None, 1 << 30)][:3]
    rows.delete(gone)
    base = record.segments[1].base_offset
    one = world.look()
    assert [m.offset for m in read(one)] == [o for o in range(40) if not base <= o < base + 3]
    for offset in range(base, base + 4):
        found = one.find(offset)
        assert found is not None
        assert found.base_offset == base + 3


def test_a_transaction_that_was_rolled_back_after_the_image_is_not_shown() -> None:
    world = _World()
    tx = world.engine.transactions
    world.publish(b"a")
    id = tx.begin(long=False).transaction_id
    tx.submit(NAME, [NewBlock(0, block(b"b"))], id).result(5)
    world.publish(b"c")
    world.show()
    before = world.look()
    assert before.end().offset == 1
    tx.abort(id)
    world.show()
    assert [m.value for m in read(world.look())] == [b"a", b"c"]


def test_what_is_rolled_back_while_somebody_looks_is_not_shown() -> None:
    """An image newer than the rows would call it committed: it is neither in progress nor invalid
    any more, and the rows that were read do not have the mark yet."""
    for operation in range(1, 40):
        world = _World()
        tx = world.engine.transactions
        world.publish(b"a")
        id = tx.begin().transaction_id
        tx.submit(NAME, [NewBlock(0, block(b"b"))], id).result(5)
        world.publish(b"c")
        world.show()
        left = operation

        def roll_back(_: str, name: str, world: _World = world, id: int = id) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                world.engine.transactions.abort(id)
                world.show()

        world.way.before = roll_back
        assert [m.value for m in read(world.look())] in ([b"a"], [b"a", b"c"])
        if left > 0:
            break
    assert operation > 8


def test_a_clock_that_went_back_makes_an_error_and_no_wrong_message() -> None:
    """A transaction writes with a time before its own begin, where the reader does not look."""
    world = _World()
    id = world.engine.transactions.begin(long=True).transaction_id
    world.clock.jump_ms(-HOUR_MS)
    world.publish(b"plain")
    world.engine.transactions.submit(NAME, [NewBlock(0, block(b"open"))], id).result(5)
    world.clock.jump_ms(HOUR_MS)
    world.show()
    one = world.look()
    assert one.end().offset == 2  # the reader did not look that far back
    with pytest.raises(StorageUnavailable, match="clock"):
        read(one)
    world.engine.transactions.commit(Commit(id, "", (TopicBlock(NAME, NewBlock(0, block(b"x"))),)))
    world.show()
    assert [m.value for m in read(world.look())] == [b"plain", b"open", b"x"]


def test_the_end_is_looked_for_where_it_was_before() -> None:
    world = _World(segment_bytes=1 << 20)
    world.fill(50)
    world.show()
    assert world.look().end().offset == 50
    world.way.read.clear()
    world.fill(3)
    world.show()
    assert world.look().end().offset == 53
    assert sum(rows for _, rows in world.way.read[1:]) <= 4  # besides the look for the open end


def test_an_end_never_goes_back_within_one_view() -> None:
    world = _World(segment_bytes=1 << 20)  # a roll in the background would change the record
    world.fill(5)
    world.show()
    ends = [world.look().end().offset]
    record = world.look()._record
    key = keys.partition_key(world.uid(), 0)
    metadata = world.store.open("metadata", False)
    raw = metadata.get(key)
    assert raw is not None
    taken = raw.replace(b'{"epoch":%d' % record.epoch, b'{"epoch":%d' % (record.epoch + 1), 1)
    assert metadata.compare_and_set(key, raw, taken)  # another owner takes over, and dies
    ends.append(world.look().end().offset)
    assert StoreObserver(world.store, world.clock).topic(TOPIC).partition(0).end().offset < 5
    assert ends == [5, 5]


def test_nothing_is_written_and_no_epoch_raised() -> None:
    world = _World()
    world.fill(20)
    world.engine._threads.shutdown(wait=True)  # its background work is done
    before = {
        name: world.store.open(name, False).scan(None, None, 1 << 30)
        for name in world.store.names("")
    }
    read(world.look())  # `_Counted` refuses all operations except reads
    after = {
        name: world.store.open(name, False).scan(None, None, 1 << 30)
        for name in world.store.names("")
    }
    assert before == after


@pytest.mark.parametrize(("pauses", "expected"), [(0.0, 7), (0.02, 25), (0.5, 25)])
@pytest.mark.parametrize("seed", range(2))
def test_an_offset_is_found_with_few_looks(seed: int, pauses: float, expected: int) -> None:
    chance = random.Random(seed)
    world = _World(segment_bytes=1 << 20)
    for number in range(400):
        if chance.random() < pauses:
            world.clock.pass_ms(chance.randint(1, HOUR_MS))
        world.publish(*[b"%d" % number] * chance.randint(1, 9))
    one = world.look()
    end = one.end().offset
    looks = []
    for _ in range(100):
        offset = chance.randrange(end)
        world.way.read.clear()
        found = one.find(offset)
        looks.append(len(world.way.read))
        assert found is not None
        assert found.base_offset <= offset < found.end_offset
        assert all(rows <= 1 for _, rows in world.way.read)
    assert sum(looks) / len(looks) < expected
    assert one.find(end) is None


def test_topics_are_listed_by_namespace() -> None:
    world = _World()
    for name in ("other", "top"):
        world.engine.create_topic(type(NAME).parse(f"billing:{name}"), TopicSettings())
    world.publish(b"a")
    world.engine.transactions.begin()  # this makes the topics of the namespace system
    assert [str(name) for name in world.view.names("default")] == ["topic"]
    assert [str(name) for name in world.view.names("billing")] == ["billing:other", "billing:top"]
