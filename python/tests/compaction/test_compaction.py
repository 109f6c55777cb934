"""Compaction by key: the messages that stay, the messages that go, and everything else
unchanged."""

import threading
from itertools import count, pairwise
from pathlib import Path

import pytest

import tms
from tests.compaction_kit import DAY_MS, NAME, World, compacted, newest
from tests.log_kit import KeptStore
from tms.block import Flags, decode, encode, flags_of, read_header
from tms.block.header import HEADER_BYTES
from tms.cli.checks.verify import Verifier
from tms.errors import BadBlock, Closed, DataCorrupt
from tms.log.records import FIRST_KEY
from tms.model import keys
from tms.model.filter import Filter
from tms.model.message import Appended, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation
from tms.model.topic import Cleanup, Durability, TopicSettings
from tms.model.transaction import Commit
from tms.runtime.clock import SystemClock
from tms.runtime.throttle import Throttle
from tms.store.leveldb import LevelDBStore
from tms.store.memory import MemoryStore
from tms.topics.compaction.newest import Newest

A, B, C = b"a", b"b", b"c" * 40  # one is longer than its hash


def test_the_newest_message_of_each_key_stays_with_its_offset_and_id() -> None:
    world = World()
    world.publish((A, b"1"), (B, b"1"), (A, b"2"))
    world.publish((A, b"3"), (C, b"1"))
    world.publish((C, b"2"))
    before = world.read()
    world.seal()
    world.compact()
    assert world.read() == [one for one in before if one.offset in (1, 3, 5)]
    assert world.engine.stats().compaction_removed == 3
    world.restart()
    assert world.read() == [one for one in before if one.offset in (1, 3, 5)]


def test_the_open_segment_is_not_touched_but_counts_once_it_is_sealed() -> None:
    world = World()
    world.publish((A, b"1"))
    world.seal()
    world.publish((A, b"2"), (A, b"3"))
    world.compact()
    assert world.offsets() == [0, 1, 2]
    world.seal()
    world.compact()
    assert world.offsets() == [2]


def test_a_read_from_an_offset_that_is_gone_begins_with_the_next_message() -> None:
    world = World()
    for key in (B, A, A):  # all within a millisecond
        world.engine.append(NAME, [NewBlock(0, encode([b"v"], [key]))])
    world.seal()
    world.compact()
    assert world.offsets() == [0, 2]
    at = [PartitionPosition(0, Position.offset(1))]
    blocks = world.engine.fetch(NAME, at, 1 << 20).blocks
    assert [read_header(stored.block).base_offset for stored in blocks] == [2]


def test_a_damaged_block_counts_as_there_until_somebody_reads_it() -> None:
    world = World()
    world.publish((A, b"1"), (B, b"1"))
    world.publish((A, b"2"))
    world.seal()
    world.compact()
    before = world.log.reader.first_id(FIRST_KEY)
    [name] = [name for name in world.store.names("t") if name.endswith("/s00000000")]
    segment = world.store.open(name, create=False)
    [(key, row), *_] = segment.scan(None, None, 1)
    assert flags_of(row) & Flags.SPARSE
    segment.overwrite(
        [(key, row[:HEADER_BYTES] + bytes(len(row) - HEADER_BYTES))], Durability.WRITTEN
    )
    world.restart()
    info = world.engine.describe_topic(NAME).partition_infos[0]
    assert before is not None and info.first_id == str(before._replace(sequence=0))
    with pytest.raises((BadBlock, DataCorrupt)):
        world.read()


def test_messages_without_a_key_stay() -> None:
    world = World()
    world.publish((None, b"1"), (A, b"1"), (None, b"2"), (A, b"2"), (None, None))
    world.seal()
    world.compact()
    assert world.offsets() == [0, 2, 3, 4]


def test_a_topic_with_the_cleanup_delete_keeps_all() -> None:
    world = World(compacted(Cleanup.DELETE))
    world.publish((A, b"1"), (A, b"2"))
    world.seal()
    world.compact()
    assert world.offsets() == [0, 1]
    world.engine.update_topic(NAME, {"cleanup": "compact"})
    world.compact()
    assert world.offsets() == [1]


def test_a_tombstone_stays_for_its_time_after_the_pass_that_made_it_the_last() -> None:
    world = World(compacted(tombstones_ms=DAY_MS))
    world.publish((A, b"1"), (B, b"1"))
    world.publish((A, None))
    world.seal()
    world.clock.pass_ms(2 * DAY_MS)  # published long ago, but a reader may have seen A only now
    world.compact()
    assert world.offsets() == [1, 2]
    world.clock.pass_ms(DAY_MS - 1_000)
    world.publish((B, b"2"))
    world.seal()
    world.compact()
    assert world.offsets() == [2, 3]
    world.clock.pass_ms(2_000)
    world.publish((B, b"3"))
    world.seal()
    world.compact()
    assert world.offsets() == [4]


def test_with_unlimited_retention_tombstones_stay_for_ever() -> None:
    world = World(compacted(tombstones_ms=None))
    world.publish((A, None))
    for number in range(3):
        world.publish((B, b"%d" % number))
        world.seal()
        world.compact()
        world.clock.pass_ms(365 * DAY_MS)
    assert world.offsets() == [0, 3]


def test_a_clock_that_jumps_forward_drops_no_tombstone_early() -> None:
    world = World(compacted(tombstones_ms=DAY_MS))
    world.publish((A, b"1"), (A, None))
    world.seal()
    world.compact()
    world.clock.jump_ms(10 * DAY_MS)
    world.publish((B, b"1"))
    world.seal()
    world.compact()
    assert world.offsets() == [1, 2]


def test_what_was_rolled_back_goes_and_what_is_invalid_does_not_count() -> None:
    world = World()
    tx = world.engine.transactions
    world.publish((A, b"1"), (B, b"1"))
    aborted, invalid = tx.begin().transaction_id, tx.begin().transaction_id
    for id, key in ((aborted, A), (invalid, B)):
        tx.submit(NAME, [NewBlock(0, encode([b"never"], [key]))], id).result(5)
    tx.abort(aborted)
    tx.invalidate(invalid)
    world.seal()
    world.compact()
    assert world.offsets() == [0, 1]
    assert [one.offset for one in world.read(isolation=Isolation.UNCOMMITTED)] == [0, 1]


def test_nothing_behind_a_message_that_is_not_decided_is_touched() -> None:
    world = World()
    tx = world.engine.transactions
    world.publish((A, b"1"), (A, b"2"))
    world.seal()
    open = tx.begin(timeout_s=600).transaction_id
    (place,) = tx.submit(NAME, [NewBlock(0, encode([b"3"], [A]))], open).result(5)
    world.publish((A, b"4"), (A, b"5"))
    world.seal()
    world.compact()
    everything = [one.offset for one in world.read(isolation=Isolation.UNCOMMITTED)]
    assert everything == [1, 2, 3, 4]
    from tms.transactions.uncommitted import StoredRange

    assert StoredRange.of(NAME, place, open)
    tx.abort(open)
    world.compact()
    assert world.offsets() == [4]


def test_a_pass_that_learns_nothing_new_changes_nothing() -> None:
    """For example while the first of the new messages is undecided."""
    world = World()
    world.publish((A, b"1"), (A, b"2"))
    world.seal()
    world.compact()
    tx = world.engine.transactions
    open = tx.begin(timeout_s=600).transaction_id
    tx.submit(NAME, [NewBlock(0, encode([b"3"], [A]))], open).result(5)
    world.seal()
    record = world.store.open(keys.METADATA_MAP, create=False)
    before = record.get(keys.compaction_key(1, 0))
    world.clock.pass_ms(1)
    world.compact()
    assert record.get(keys.compaction_key(1, 0)) == before
    tx.commit(Commit(open))
    world.compact()
    assert world.offsets() == [2]


def test_readers_at_the_tail_are_answered_from_the_cache_after_a_pass() -> None:
    world = World()
    world.publish((A, b"1"), (A, b"2"))
    world.seal()
    world.publish((A, b"3"), (B, b"4"))
    last = world.read()[1]
    tail = [PartitionPosition(0, Position.after(last.id))]
    world.compact()
    world.store.before = lambda operation, name: pytest.fail(f"{operation} {name}")
    (block,) = world.engine.fetch(NAME, tail, 1 << 20).blocks
    assert decode(block.block).values() == [b"3", b"4"]


def test_staged_blocks_are_thinned_where_they_stand() -> None:
    world = World()
    world.publish((A, b"1"))
    id = world.stage((A, b"2"), (B, b"2"), (C, b"2"))
    world.commit(id)
    other = world.stage((A, b"3"), (A, b"4"))
    world.commit(other)
    before = world.read()
    world.publish((B, b"5"))
    world.seal()
    world.compact()
    assert world.offsets() == [3, 5, 6]
    world.publish((A, b"6"))
    world.seal()
    world.compact()
    assert world.offsets() == [3, 6, 7]
    assert world.read()[0] == before[3]
    world.restart()
    assert world.offsets() == [3, 6, 7]


def test_a_pass_looks_through_every_page_of_every_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cleaning", "rewriting"):
        monkeypatch.setattr(f"tms.topics.compaction.{module}.PAGE_BYTES", 1)
    world = World()
    for round in range(2):
        for number in range(12):
            world.publish((b"%d" % number, b"%d" % round), (None, b"stays"))
            if number % 5 == 4:
                world.seal()
    world.seal()
    before = world.read()
    pauses = count()
    world.engine.compaction.run(lambda: next(pauses) and None)
    assert world.read() == [one for one in before if one.key is None or one.offset >= 24]
    stats = world.engine.stats()
    assert (stats.compaction_passes, stats.compaction_removed) == (1, 12)
    assert stats.compaction_reclaimed_bytes > 0
    assert next(pauses) >= 24, "publishers wait"


def test_more_keys_than_fit_take_more_passes() -> None:
    world = World(keys_max=10)
    for round in range(3):
        for number in range(35):
            world.publish((b"%d" % number, b"%d" % round))
    world.seal()
    world.compact()
    assert world.offsets() == [*range(70, 105)]
    assert world.engine.stats().compaction_passes > 3


def test_every_position_leads_to_the_next_message_that_is_left() -> None:
    world = World()
    for number in range(40):
        world.publish(*[(b"%d" % (number % 7), b"%d" % number)] * (1 + number % 3))
    everything = world.read()
    world.seal()
    world.publish((b"tail", b""))
    world.compact()
    left = world.read()
    assert len(left) == 8
    assert all(one < other for one, other in pairwise(left))
    for one in everything:
        wanted = [each for each in left if each.offset >= one.offset]
        assert world.read(Position.offset(one.offset)) == wanted
        assert world.read(Position.at(one.id)) == wanted
        assert world.read(Position.after(one.id)) == [w for w in wanted if w.id > one.id]
        at = [each for each in left if each.id.time_ms >= one.id.time_ms]
        assert world.read(Position.time(one.id.time_ms)) == at
        found = world.engine.offsets(NAME, Position.time(one.id.time_ms))[0]
        assert found <= at[0].offset
        assert world.read(Position.offset(found)) == at
    info = world.engine.describe_topic(NAME).partition_infos[0]
    assert (info.start_offset <= left[0].offset, info.end_offset) == (True, left[-1].offset + 1)


def test_a_filter_reads_what_compaction_has_left() -> None:
    world = World()
    world.publish((A, b"1"), (B, b"1"), (A, b"2"), (C, b"1"))
    world.seal()
    world.compact()
    fetched = world.engine.fetch(
        NAME,
        [PartitionPosition(0, Position.earliest())],
        1 << 20,
        where=Filter.parse("key = a"),
    )
    assert [flags_of(one.block) & Flags.SPARSE for one in fetched.blocks] == [Flags.SPARSE]
    assert fetched.reached == fetched.ends == {0: 4}


def test_both_cleanups_together_drop_what_is_old_as_well() -> None:
    world = World(TopicSettings(1, DAY_MS, durability=Durability.WRITTEN, cleanup=Cleanup.BOTH))
    world.publish((A, b"1"), (B, b"1"))
    world.seal()
    world.clock.pass_ms(DAY_MS // 2)
    world.publish((B, b"2"))
    world.seal()
    world.compact()
    assert world.offsets() == [0, 2]
    world.clock.pass_ms(DAY_MS * 3 // 4)
    assert world.offsets() == [2]


def test_a_segment_of_which_nothing_is_left_goes_and_the_last_one_stays() -> None:
    world = World()
    for number in range(5):
        world.publish((A, b"%d" % number))
        world.seal()
    world.compact()
    assert world.offsets() == [4]
    assert len(world.log.state.chain.record.segments) == 2
    assert len(world.store.inner.names("t")) == 2
    world.restart()
    assert world.publish((A, b"5")) == [5]
    assert world.offsets() == [4, 5]


def test_a_topic_that_transactions_of_others_write_to_is_left_alone() -> None:
    world = World()
    world.publish((A, b"1"), (A, b"2"))
    world.engine.topics.registry.note_foreign(NAME)
    world.seal()
    world.compact()
    assert world.offsets() == [0, 1]


def test_a_publish_that_expects_does_not_pass_over_a_forgotten_tombstone() -> None:
    from tms.errors import WrongLastId

    world = World(compacted(tombstones_ms=DAY_MS))
    world.publish((A, b"1"))
    [first] = world.read()
    world.publish((A, None))
    for _ in range(2):
        world.seal()
        world.compact()
        world.clock.pass_ms(2 * DAY_MS)
        world.publish((B, b"x"))
    world.seal()
    world.compact()
    assert [one.key for one in world.read()] == [B]
    late = NewBlock(0, encode([b"2"], [A]), first.id)
    with pytest.raises(WrongLastId):
        world.engine.append(NAME, [late])
    known = world.read()[-1].id
    world.engine.append(NAME, [NewBlock(0, encode([b"2"], [A]), known)])


def test_space_comes_back_and_fsck_finds_nothing_wrong(tmp_path: Path) -> None:
    world = World(inner=LevelDBStore(tmp_path / "data", create=True))
    for round in range(20):
        again = [(b"%d" % number, bytes(9_000)) for number in range(20)]
        world.publish(*again, (b"once-%d" % round, bytes(9_000)))
        world.publish((A, b"%d" % round))
        if round % 5 == 4:
            world.seal()
    before = sum(file.stat().st_size for file in tmp_path.rglob("*"))
    segments = world.log.state.chain.stored_bytes()
    world.compact()
    left = world.read()
    assert len(left) == 41
    given_back = world.engine.stats().compaction_reclaimed_bytes
    assert given_back == segments - world.log.state.chain.stored_bytes() > segments / 2
    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < before / 5
    world.engine.close()
    store = LevelDBStore(tmp_path / "data", create=False)
    verifier = Verifier(store)
    assert [*verifier.run()] == []
    assert verifier.totals.messages == 41
    world.store = type(world.store)(store)
    world.open()
    assert world.read() == left
    world.engine.close()


def test_readers_at_the_tail_and_from_the_start_miss_nothing_while_it_runs() -> None:
    world = World()
    for number in range(300):
        world.publish((b"%d" % (number % 50), b"%d" % number))
        if number % 60 == 59:
            world.seal()
    expected = newest(world.read())
    wrong: list[object] = []

    def read() -> None:
        for _ in range(30):
            seen = world.read(bytes_max=700)
            if newest(seen) != expected or any(a >= b for a, b in pairwise(seen)):
                wrong.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    world.compact()
    reader.join()
    assert not wrong
    assert len(world.read()) == 50


def test_newest_knows_keys_of_any_length_and_says_when_it_is_full() -> None:
    found = Newest(3)
    long = [b"x" * 16, b"x" * 17, b"x" * 1_000]
    found.add([*long[:2], None], [5, 6, 7])
    assert not found.full
    found.add([long[2], long[0]], [8, 9])
    assert found.full and len(found) == 3
    assert [found.has_newer(key, 6) for key in long] == [True, False, True]
    assert not found.has_newer(b"other", 0)


def test_the_throttle_takes_its_share_of_the_time_and_ends_when_told() -> None:
    class Clock(SystemClock):
        now_s = 100.0

        def monotonic_s(self) -> float:
            return self.now_s

    class Stop(threading.Event):
        waited = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited += timeout
            clock.now_s += timeout
            return self.is_set()

    clock, stop = Clock(), Stop()
    throttle = Throttle(clock, 0.2, stop)
    throttle.begin()
    for _ in range(10):
        clock.now_s += 0.05
        throttle.pause()
    assert stop.waited == pytest.approx(2.0)
    stop.set()
    with pytest.raises(Closed):
        throttle.pause()


def test_the_thread_compacts_by_itself_and_ends_with_the_engine(tmp_path: Path) -> None:
    from tests.waiting import until
    from tms.client.client import Bus
    from tms.engine.config import EngineConfig
    from tms.engine.engine import Engine
    from tms.topics.compaction.compaction import CompactionLimits

    limits = CompactionLimits(interval_s=0.01, share=1.0, dirty_ratio=0.1)
    engine = Engine(MemoryStore(), SystemClock(), EngineConfig(compaction=limits))
    with Bus(engine) as bus:
        engine.start()
        bus.create_topic("t", cleanup="compact")
        for number in range(50):
            bus.publish("t", b"%d" % number, b"key")
        log = engine.topics.partitions.get(NAME, engine.topics.registry.find(NAME), 0)
        with log.state.changing():
            log.state.roll(1)
        until(lambda: engine.stats().compaction_removed == 49)
        view: list[tms.Message] = list(bus.consumer("t", stop_at_end=True))
        assert [(message.offset, message.value) for message in view] == [(49, b"49")]
    assert engine.compaction._thread is not None and not engine.compaction._thread.is_alive()


@pytest.mark.parametrize("ordered_by", ["", "key"])
def test_a_queue_hands_out_each_message_that_is_left_once(ordered_by: str) -> None:
    from tms.model.queue import QueueSettings

    world = World()
    for number in range(30):
        world.publish(*[(b"%d" % (at % 11), b"%d" % number) for at in range(number, number + 5)])
    world.seal()
    world.compact()
    left = {one.offset for one in world.read()}
    assert len(left) == 11
    queues = world.engine.queues
    queues.declare(NAME, "g", QueueSettings(lease_s=10, ordered_by=ordered_by))
    seen: list[int] = []
    for _ in range(3):
        found = queues.receive(NAME, "g", 4)
        seen += [one.offset for one in found.messages("t")]
        world.clock.pass_ms(11_000)  # nothing is acknowledged: all comes again
    assert set(seen) <= left and len(seen) > 4
    done: list[int] = []
    while len(done) < len(left):
        world.clock.pass_ms(30_000)
        some = list(queues.receive(NAME, "g", 4).messages("t"))
        queues.ack(NAME, "g", [one.token for one in some])
        done += [one.offset for one in some]
    assert sorted(done) == sorted(left)


def test_an_offset_is_found_when_the_last_messages_are_gone() -> None:
    world = World()
    world.publish((None, b"0"), (None, b"1"))
    world.publish((A, b"2"))
    world.seal()
    world.publish((A, b"3"))
    world.engine.erase(NAME, key=A)
    assert [one.offset for one in world.read(Position.offset(1))] == [1]
    assert world.read(Position.offset(2)) == world.read(Position.offset(3)) == []
    world.publish((None, b"4"))
    assert [one.offset for one in world.read(Position.offset(2))] == [4]


def test_a_compacted_topic_is_the_same_through_http() -> None:
    from tests.http_kit import serving

    with serving() as served, tms.connect(served.url) as bus:
        made = bus.create_topic("t", cleanup="compact", tombstone_retention="2h")
        assert bus.create_topic("t", cleanup="compact", tombstone_retention="2h") == made
        assert made.settings.cleanup is Cleanup.COMPACT
        bus.publish_many("t", [b"%d" % n for n in range(40)], [b"%d" % (n % 4) for n in range(40)])
        expected = list(bus.consumer("t", stop_at_end=True))[36:]
        bus.publish_many("t", [b"x"] * 3, [b"x"] * 3, compression="zstd")
        expected.append(list(bus.consumer("t", stop_at_end=True))[-1])
        engine = served.service.engine
        log = engine.topics.partitions.get(NAME, engine.topics.registry.find(NAME), 0)
        with log.state.changing():
            log.state.roll(1)
        engine.compaction.run()
        assert list(bus.consumer("t", stop_at_end=True)) == expected
        assert [batch.to_arrow().num_rows for batch in bus.fetch("t").batches] == [4, 1]
        client = served.connect()
        path = "/v2/namespaces/default/topics/t/messages?start=offset:38&limit=1"
        first = client.request("GET", path).json
        assert [message["offset"] for message in first["messages"]] == [38]
        rest = client.request("GET", f"{path.partition('?')[0]}?start={first['next']}").json
        assert [message["offset"] for message in rest["messages"]] == [39, 42]
        changed = bus.update_topic("t", cleanup="compact,delete", retention="1d").settings
        assert (changed.cleanup, changed.retention_ms) == (Cleanup.BOTH, DAY_MS)


def test_a_block_that_was_compacted_away_is_not_stored_again_after_owners_that_died() -> None:
    world = World(inner=KeptStore(shared=True))

    def publish() -> Appended:
        block = encode([b"1"], [b"a"], producer_id=7, producer_sequence=0)
        (place,) = world.engine.append(NAME, [NewBlock(0, block)], Durability.SYNCED)
        return place

    first = publish()
    world.crash()
    world.publish((b"a", b"2"))
    world.crash()
    world.log.reader.load()
    world.compact()
    assert [one.value for one in world.read()] == [b"2"]
    world.crash()
    assert publish().base_offset == first.base_offset
    assert [one.value for one in world.read()] == [b"2"]
