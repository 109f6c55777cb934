"""The image of all transactions, for programs that read or clean a store without its engine."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tests.transactions.test_transactions import WRITTEN, A, World, commit
from tests.waiting import until
from tms.block import Flags, decode, encode, flags_of
from tms.engine.engine import Engine
from tms.errors import Closed, NotFound, StorageUnavailable
from tms.model import keys
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS, Fate
from tms.model.topic import TopicSettings
from tms.model.transaction_image import Fates, TransactionImage, decode_image
from tms.store.memory import MemoryStore
from tms.topics.sharding import TRANSACTIONS
from tms.transactions.manager import LATE_MS
from tms.transactions.stored_image import IDLE_MS, INTERVAL_MS


@pytest.fixture
def world() -> World:
    return World(shared=True)


def image(world: World) -> TransactionImage:
    raw = world.store.open(keys.METADATA_MAP, create=False).get(keys.TRANSACTIONS_IMAGE)
    assert raw is not None
    return decode_image(raw)


def later(world: World, ms: int = INTERVAL_MS) -> TransactionImage:
    """The image once the engine has had time to write it."""
    world.clock.pass_ms(ms)
    world.tx.tidy()
    return image(world)


def test_a_store_of_one_process_has_no_image() -> None:
    alone = World(shared=False)
    alone.tx.tidy()
    assert alone.store.open(keys.METADATA_MAP, False).get(keys.TRANSACTIONS_IMAGE) is None


def test_the_image_is_there_as_soon_as_the_engine_is(world: World) -> None:
    assert image(world).time_ms == world.clock.now_ms()


def test_the_image_lists_open_and_invalid_and_bounds_committed_transactions(
    world: World,
) -> None:
    open, invalid = world.tx.begin().transaction_id, world.tx.begin().transaction_id
    world.tx.invalidate(invalid)
    done = world.tx.commit(commit(b"1")).transaction_id
    found = later(world)
    assert found.invalid == (invalid,)
    assert [one.pointer for one in found.in_progress] == [open]
    assert found.read_pointer == done
    assert found.time_ms == world.clock.now_ms()


def test_what_was_pruned_stays_in_the_image_for_good(world: World) -> None:
    id = world.tx.begin().transaction_id
    world.tx.invalidate(id)
    world.clock.pass_ms(10)
    assert world.tx.prune(world.clock.now_ms()) == 1
    assert later(world).invalid == (id,)
    world.reopen()
    assert image(world).invalid == (id,)


def test_a_transaction_that_a_crash_forgot_is_lost_in_the_image(world: World) -> None:
    world.publish(b"0")
    manager = world.tx.manager
    id = manager.begin_intended("")
    world.publish_in(id, b"lost")
    world.reopen()
    (span,) = [one for one in image(world).lost if one[0] <= id < one[1]]
    assert span
    assert world.read() == [b"0"]


def test_nothing_is_written_while_nothing_changes_but_for_the_time(world: World) -> None:
    first = later(world)
    assert later(world) == first
    assert later(world, IDLE_MS).time_ms == world.clock.now_ms()


def test_a_manager_that_another_one_followed_asks_its_journal_before_it_writes(
    world: World,
) -> None:
    id = world.tx.begin().transaction_id
    later(world)
    other = Engine(world.store, world.clock)
    other.transactions.invalidate(id)
    world.clock.pass_ms(INTERVAL_MS)
    other.transactions.tidy()
    assert image(world).invalid == (id,)
    world.clock.pass_ms(INTERVAL_MS)
    assert world.tx._image is not None
    with pytest.raises(StorageUnavailable, match="taken over"):
        world.tx._image.write(world.clock.now_ms() + IDLE_MS)  # it takes the transaction for open
    assert image(world).invalid == (id,)
    world.tx._image.write(world.clock.now_ms() + IDLE_MS)
    assert image(world).invalid == (id,)
    assert image(world).in_progress == ()


def test_staged_blocks_say_whose_pointer_they_have(world: World) -> None:
    own = world.tx.begin().transaction_id
    foreign = (world.clock.now_ms() - 1_000) * POINTERS_PER_MS + 7
    for pointer in (own, foreign):
        world.tx.stage(A, [NewBlock(0, encode([b"v"]))], pointer)
    flags = {}
    for name in world.store.names("t"):
        if keys.is_payload_map(name):
            for key, value in world.store.open(name, False).scan(None, None, 1 << 20):
                flags[keys.split_payload_key(key)[0]] = flags_of(value)
    base = Flags.TRANSACTIONAL | Flags.STAGED
    assert flags == {own: base | Flags.ISSUED, foreign: base}


def test_the_note_of_a_deleted_topic_stays_for_those_who_clean_its_rows(world: World) -> None:
    world.publish(b"0")
    uid = world.engine.topics.registry.find(A).uid
    world.engine.delete_topic(A)
    metadata = world.store.open(keys.METADATA_MAP, False)
    assert metadata.get(keys.deleted_key(uid)) is not None
    with pytest.raises(NotFound):
        world.store.open(keys.segment_map(uid, 0, 0), False)
    world.reopen()
    assert metadata.get(keys.deleted_key(uid)) is not None


def test_offsets_in_a_hole_of_a_sealed_segment_lead_to_the_next_message() -> None:
    clock, store = ManualClock(), MemoryStore(shared=True)
    engine = Engine(store, clock)
    engine.create_topic(A, TopicSettings(durability=WRITTEN))
    for number in range(6):
        clock.pass_ms(1)
        engine.append(A, [NewBlock(0, encode([b"%d" % number]))])
    engine._threads.shutdown()
    again = Engine(store, clock)
    uid = again.topics.registry.find(A).uid
    again.describe_topic(A)  # takes the partition over, which seals
    sealed = store.open(keys.segment_map(uid, 0, 0), False)
    rows = sealed.scan(None, None, 1 << 20)
    sealed.delete([rows[2][0], rows[3][0]])
    place = next(iter(again.describe_topic(A).partition_infos))
    assert place.end_offset == 6
    for offset, expected in ((1, b"1"), (2, b"4"), (3, b"4"), (4, b"4"), (5, b"5")):
        from tms.model.message import PartitionPosition

        fetched = again.fetch(A, [PartitionPosition(0, Position.offset(offset))], 1)
        assert decode(fetched.blocks[0].block).values() == [expected]
    third = Engine(store, clock)
    third.append(A, [NewBlock(0, encode([b"6"]))])
    assert third.describe_topic(A).partition_infos[0].end_offset == 7


class _ReadByOthers(MemoryStore):
    """A shared store that its operator has cleaned up to a time."""

    cleaned = 0

    def cleaned_ms(self) -> int | None:
        return self.cleaned


def test_pruning_waits_until_nothing_of_a_transaction_is_left_where_others_read() -> None:
    world = World(shared=True)
    store = _ReadByOthers(shared=True)
    world.store = store
    world.open()
    world.engine.create_topic(A, TopicSettings(durability=WRITTEN))
    id = world.tx.begin().transaction_id
    world.tx.invalidate(id)
    began_ms = world.clock.now_ms()
    world.clock.pass_ms(200 * 3_600_000)
    over_ms = began_ms + 25 * 3_600_000 + LATE_MS  # it cannot have written anything later
    for cleaned_ms, pruned in ((0, 0), (over_ms, 0), (over_ms + 1, 1), (over_ms + 1, 0)):
        store.cleaned = cleaned_ms
        assert world.tx.prune(world.clock.now_ms()) == pruned, cleaned_ms - over_ms


class _Held:
    """Holds back a store's writes to some maps."""

    def __init__(self, store: FaultyStore, prefix: str) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        self._prefix = prefix
        store.before = self._before

    def open(self) -> None:
        self._open.set()

    def _before(self, operation: str, name: str) -> None:
        if operation == "write" and name.startswith(self._prefix):
            self.entered.set()
            assert self._open.wait(10)


def test_an_engine_that_closes_shows_what_is_committed_while_it_does() -> None:
    kept = KeptStore(shared=True)
    store = FaultyStore(kept)
    clock = ManualClock()
    engine = Engine(store, clock)
    engine.create_topic(A, TopicSettings(durability=WRITTEN))
    engine.transactions.commit(commit(b"0"))
    clock.pass_ms(INTERVAL_MS)
    journal = engine.topics.registry.find(TRANSACTIONS).uid
    held = _Held(store, keys.topic_prefix(journal))
    with ThreadPoolExecutor(2) as threads:
        committing = threads.submit(engine.transactions.commit, commit(b"1"))
        assert held.entered.wait(10)
        closing = threads.submit(engine.close)
        until(lambda: engine.topics.partitions._closed is not None)
        held.open()
        id = committing.result(10).transaction_id
        closing.result(10)
    raw = kept.open(keys.METADATA_MAP, create=False).get(keys.TRANSACTIONS_IMAGE)
    assert raw is not None
    assert Fates(decode_image(raw), 0).of(id, True) is Fate.VISIBLE


def test_an_engine_closes_although_the_image_cannot_be_written() -> None:
    store = FaultyStore(KeptStore(shared=True))
    clock = ManualClock()
    engine = Engine(store, clock)
    engine.create_topic(A, TopicSettings(durability=WRITTEN))
    engine.transactions.commit(commit(b"0"))
    clock.pass_ms(INTERVAL_MS)
    store.fail_write(1, stored=False, prefix=keys.METADATA_MAP, refusals=1_000)
    engine.close()
    with pytest.raises(Closed):
        engine.describe_topic(A)


def test_an_engine_that_closes_writes_no_image_that_says_nothing_new(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.store, "close", lambda: None)
    world.tx.commit(commit(b"0"))
    raw = later(world)
    world.clock.pass_ms(1)
    world.engine.close()
    assert image(world) == raw
