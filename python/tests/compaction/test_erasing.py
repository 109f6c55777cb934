"""Erasing: the bytes of a message are gone from the disk, and everything else is as it was."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tms
from sim.faulty import FaultyStore
from tests.compaction_kit import HOUR_MS, NAME, World, compacted
from tests.http_kit import Served, serving
from tests.log_kit import DAY_MS, KeptStore
from tests.waiting import until
from tms.block import Flags, encode, flags_of
from tms.cli.checks.verify import Severity, Verifier
from tms.errors import (
    BadMessageId,
    DataCorrupt,
    Forbidden,
    Invalid,
    OffsetOutOfRange,
    PartitionNotFound,
    TMSError,
    TopicNotFound,
)
from tms.model import keys
from tms.model.delayed import Due
from tms.model.message import NewBlock
from tms.model.snapshot import Fate, Isolation
from tms.model.topic import Cleanup, Durability, TopicSettings
from tms.model.transaction import Commit
from tms.store.leveldb import LevelDBStore

SECRET, LARGE = b"the secret of user 17", b"a large secret " * 1_000
KEY, OTHER = b"user-17", b"user-18"


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def plain(inner: object = None, retention_ms: int | None = None) -> World:
    settings = compacted(Cleanup.DELETE, durability=Durability.SYNCED)
    return World(replace(settings, retention_ms=retention_ms), inner=inner)  # type: ignore[arg-type]


class EraseContract:
    """Tests that hold for every bus; `path` is where its data are."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "data"

    @pytest.fixture
    def bus(self, path: Path) -> Iterator[tms.Bus]:
        raise NotImplementedError

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_the_bytes_of_a_key_are_gone_from_the_disk(
        self, bus: tms.Bus, path: Path, compression: str
    ) -> None:
        bus.create_topic("t", partitions=2)
        values = [b"%d" % number + bytes(50) for number in range(40)]
        bus.publish_many("t", values, [b"%d" % number for number in range(40)], partition=0)
        for secret in (SECRET, LARGE):
            for partition in (0, 1):
                bus.publish_many(
                    "t",
                    [b"before", secret, b"after"],
                    [OTHER, KEY, OTHER],
                    [{"h": b"1"}, {"name": SECRET}, None],
                    partition=partition,
                    compression=compression,
                )
                bus.publish("t", secret, KEY, partition=partition)
        before = list(bus.consumer("t", stop_at_end=True))
        if compression == "none":
            assert SECRET in on_disk(path)
        assert bus.erase("t", key=KEY) == 8
        assert list(bus.consumer("t", stop_at_end=True)) == [m for m in before if m.key != KEY]
        left = on_disk(path)
        assert SECRET not in left and LARGE[:60] not in left and KEY not in left
        assert bus.erase("t", key=KEY) == 0
        id = bus.publish("t", b"again", KEY, partition=0)
        assert [m.id for m in bus.consumer("t", stop_at_end=True) if m.key == KEY] == [id]

    def test_one_message_is_erased_by_its_id_and_no_other(self, bus: tms.Bus, path: Path) -> None:
        bus.create_topic("t")
        ids = bus.publish_many("t", [b"1", SECRET, b"3"], [KEY, KEY, KEY])
        bus.publish("t", b"4")
        assert bus.erase("t", id=ids[1]) == 1
        assert bus.erase("t", id=ids[1]) == 0
        found = [(m.offset, m.value) for m in bus.consumer("t", stop_at_end=True)]
        assert found == [(0, b"1"), (2, b"3"), (3, b"4")]
        assert SECRET not in on_disk(path)

    def test_what_is_in_a_transaction_counts_once_it_is_in_the_log(
        self, bus: tms.Bus, path: Path
    ) -> None:
        bus.create_topic("t")
        with bus.transaction() as tx:
            tx.send("t", SECRET, KEY)
            tx.send("t", b"other", OTHER)
        with bus.transaction() as tx:
            for _ in range(600):  # too many for one request: staged
                tx.send("t", LARGE, KEY)
            tx.send("t", b"staged", OTHER)
        assert bus.erase("t", key=KEY) == 601
        assert [m.value for m in bus.consumer("t", stop_at_end=True)] == [b"other", b"staged"]
        left = on_disk(path)
        assert SECRET not in left and LARGE[:60] not in left

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_messages_that_wait_are_cancelled_and_their_bytes_gone_from_the_disk(
        self, bus: tms.Bus, path: Path, compression: str
    ) -> None:
        bus.create_topic("t", partitions=2)
        for secret in (SECRET, LARGE):
            bus.publish_later("t", secret, KEY, delay=600)
            bus.publish_later_many(
                "t",
                [b"before", secret, b"after"],
                [OTHER, KEY, OTHER],
                [{"h": b"1"}, {"name": SECRET}, None],
                delay=600,
                compression=compression,
            )
        before = list(bus.list_delayed("t"))
        if compression == "none":
            assert SECRET in on_disk(path)
        assert bus.erase("t", key=KEY) == 4
        assert list(bus.list_delayed("t")) == [m for m in before if m.key != KEY]
        assert bus.describe_delayed("t").waiting == 4
        left = on_disk(path)
        assert SECRET not in left and LARGE[:60] not in left and KEY not in left
        assert bus.erase("t", key=KEY) == 0

    def test_what_cannot_be_erased_is_refused(self, bus: tms.Bus) -> None:
        bus.create_topic("t", partitions=2)
        [id] = bus.publish_many("t", [b"v"], partition=1)
        for what, field in (
            ({}, "key"),
            ({"key": b"k", "id": id}, "key"),
            ({"id": id}, "partition"),
        ):
            with pytest.raises(Invalid) as caught:
                bus.erase("t", **what)  # type: ignore[arg-type]
            assert caught.value.details["field"] == field
        with pytest.raises(PartitionNotFound, match="0 to 1") as missing:
            bus.erase("t", id=id, partition=2)
        assert missing.value.details == {"partition": 2, "partitions": 2}
        with pytest.raises(Invalid, match="partition"):
            bus.erase("t", id=id, partition=-1)
        with pytest.raises(TopicNotFound):
            bus.erase("missing", key=b"k")
        with pytest.raises(Forbidden):
            bus.erase("system:_transactions", key=b"k")
        assert bus.erase("t", id=id, partition=0) == 0
        assert bus.erase("t", id=id, partition=1) == 1
        assert bus.erase("t", key=b"", partition=0) == 0


class TestEmbedded(EraseContract):
    @pytest.fixture
    def bus(self, path: Path) -> Iterator[tms.Bus]:
        with tms.open(path) as bus:
            yield bus


class TestHttp(EraseContract):
    @pytest.fixture
    def served(self, path: Path) -> Iterator[Served]:
        with serving(store=LevelDBStore(path, create=True)) as served:
            yield served

    @pytest.fixture
    def bus(self, served: Served) -> Iterator[tms.Bus]:
        with tms.connect(served.url) as bus:
            yield bus

    def test_curl_can_erase(self, bus: tms.Bus, served: Served) -> None:
        bus.create_topic("t")
        id = bus.publish("t", SECRET, b"k")
        bus.publish("t", SECRET, "Zürich".encode())
        client, path = served.connect(), "/v2/namespaces/default/topics/t/erase"

        def erase(**body: object) -> object:
            answer = client.request("POST", path, json.dumps(body).encode())
            return answer.json if answer.status == 200 else answer.problem

        assert erase(key="Zürich") == {"erased": 1}
        assert erase(id=str(id)) == {"erased": 1}
        assert erase(key="a2s=", encoding="base64") == {"erased": 0}
        assert erase(key="k", encoding="base64") == "bad-encoding"
        assert erase(id="0") == BadMessageId.code
        assert erase() == "invalid"


@pytest.mark.parametrize("by", ["key", "id"])
def test_a_message_that_was_delayed_is_gone_once_it_has_come(tmp_path: Path, by: str) -> None:
    with tms.open(tmp_path) as bus:
        bus.create_topic("t")
        for secret in (SECRET, LARGE):
            bus.publish_later("t", secret, KEY, delay=0.05)
        consumer = iter(bus.consumer("t"))
        came = [next(consumer) for _ in range(2)]
        assert [message.value for message in came] == [SECRET, LARGE]
        waiting = bus._transport._store.open(keys.delayed_map(1), create=False)  # type: ignore
        until(lambda: all(SECRET not in row for _, row in waiting.scan(None, None, 1 << 30)))
        until(lambda: all(LARGE[:60] not in row for _, row in waiting.scan(None, None, 1 << 30)))
        if by == "key":
            assert bus.erase("t", key=KEY) == 2
        else:
            assert [bus.erase("t", id=message.id) for message in came] == [1, 1]
        left = on_disk(tmp_path)
        assert SECRET not in left and LARGE[:60] not in left


def test_erasing_goes_through_sealed_open_and_truncated_segments() -> None:
    world = plain()
    world.publish((KEY, b"0"), (OTHER, b"1"))
    world.seal()
    world.publish((KEY, b"2"), (OTHER, b"3"))
    world.engine.truncate_topic(NAME, tms.Position.offset(1))
    assert world.engine.erase(NAME, key=KEY) == 2
    assert world.offsets() == [1, 3]
    world.restart()
    assert world.offsets() == [1, 3]
    assert world.publish((KEY, b"4")) == [4]


def test_the_right_one_of_several_blocks_of_a_millisecond_is_erased_by_its_id() -> None:
    world = plain()
    pair = [NewBlock(0, encode([b"a", b"b"], [KEY, OTHER])) for _ in range(3)]
    places = world.engine.append(NAME, pair)
    assert {place.time_ms for place in places} == {places[0].time_ms}
    middle = places[1].ids()[1]
    assert world.engine.erase(NAME, id=middle, partition=0) == 1
    assert world.offsets() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("before, left", [(2, [3, 4, 6]), (4, [4, 6]), (5, [6]), (7, [])])
def test_a_block_of_which_messages_are_gone_is_truncated_in_the_middle(
    before: int, left: list[int]
) -> None:
    world = plain()
    erased = {0, 2, 5}
    world.publish(*((KEY if at in erased else OTHER, b"%d" % at) for at in range(7)))
    assert world.engine.erase(NAME, key=KEY) == 3
    world.engine.truncate_topic(NAME, tms.Position.offset(before))
    for _ in range(2):
        assert world.offsets() == left
        assert [value for *_, value in world.read()] == [b"%d" % at for at in left]
        world.restart()


@pytest.mark.parametrize("before", range(6))
def test_a_partition_starts_at_its_truncation_even_before_erased_messages(
    before: int,
) -> None:
    world = plain()
    world.publish(*((OTHER, b"%d" % at) for at in range(5)))
    world.publish((KEY, b"5"))
    world.publish((OTHER, b"6"))
    assert world.engine.erase(NAME, key=KEY) == 1
    world.engine.truncate_topic(NAME, tms.Position.offset(before))
    for _ in range(2):
        assert start_and_end(world) == (before, 7)
        for offset in range(before):
            with pytest.raises(OffsetOutOfRange):
                world.read(tms.Position.offset(offset))
        world.restart()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("sealed", [False, True])
def test_readers_go_on_at_the_end_of_a_partition_of_which_nothing_is_left(
    sealed: bool, count: int
) -> None:
    world, end = plain(), 2 + count
    world.publish((OTHER, b"0"), (OTHER, b"1"))
    if sealed:
        world.seal()
    world.publish(*[(KEY, b"gone")] * count)
    world.engine.truncate_topic(NAME, tms.Position.offset(2))
    assert world.engine.erase(NAME, key=KEY) == count
    for _ in range(2):
        assert start_and_end(world) == (2, end)
        for offset in range(2, end + 1):
            assert world.read(tms.Position.offset(offset)) == []
        world.restart()
    world.engine.truncate_topic(NAME, tms.Position.latest())
    assert start_and_end(world) == (end, end)
    assert world.publish((OTHER, b"next")) == [end]
    assert [one.value for one in world.read(tms.Position.offset(end))] == [b"next"]


def test_readers_of_a_segment_that_was_emptied_go_on_in_the_next() -> None:
    world = plain()
    world.publish((KEY, b"0"), (KEY, b"1"))
    for number in (2, 3):
        world.seal()
        world.publish((OTHER, b"%d" % number))
    world.seal()
    maps = [name for name in world.store.names("t") if "/s" in name]
    assert world.engine.erase(NAME, key=KEY) == 2
    assert maps[0] not in world.store.names("t")
    for _ in range(2):
        assert start_and_end(world) == (0, 4)
        for offset in range(3):
            assert [one.offset for one in world.read(tms.Position.offset(offset))] == [2, 3]
        world.restart()


def test_an_expired_partition_starts_at_its_end_even_if_that_is_erased() -> None:
    world = plain(retention_ms=DAY_MS)
    world.publish((OTHER, b"0"), (OTHER, b"1"))
    world.publish((KEY, b"2"))
    assert world.engine.erase(NAME, key=KEY) == 1
    assert start_and_end(world) == (0, 3)
    world.clock.pass_ms(2 * DAY_MS)
    assert start_and_end(world) == (3, 3)


def start_and_end(world: World) -> tuple[int, int]:
    (info,) = world.engine.describe_topic(NAME).partition_infos
    return info.start_offset, info.end_offset


@pytest.mark.parametrize("sealed", [False, True])
def test_erasing_looks_through_every_page_and_touches_no_other_block(
    monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    for module in ("erasing", "rewriting"):
        monkeypatch.setattr(f"tms.topics.compaction.{module}.PAGE_BYTES", 1)
    world = plain()
    for number in range(20):
        world.publish((b"%d" % number, SECRET), (OTHER, b"1"))
    if sealed:
        world.seal()
        world.publish((OTHER, b"last"))
    before = world.read()
    assert world.engine.erase(NAME, key=b"missing") == 0
    assert len(world.log.state.chain.record.segments) == 1 + sealed, "a segment for nothing"
    assert world.engine.erase(NAME, key=b"13") == 1
    assert world.read() == [one for one in before if one.key != b"13"]
    for one in before[4:8]:
        assert world.engine.erase(NAME, id=one.id) == 1
        assert world.engine.erase(NAME, id=one.id) == 0
    assert world.read() == [one for one in before[:4] + before[8:] if one.key != b"13"]
    assert world.engine.stats().erased == 5
    assert b"".join(everything(world)).count(SECRET) == 20 - 3


def test_a_partition_that_erasing_opens_first_goes_by_the_retention_of_its_topic() -> None:
    world = World(TopicSettings(1, retention_bytes=1 << 20, retention_ms=8 * HOUR_MS))
    world.publish((OTHER, b"1"))
    state = world.log.state
    before = state.segment_bytes_max(), state.segment_ms()
    world.restart()
    assert world.engine.erase(NAME, key=KEY) == 0
    state = world.log.state
    assert (state.segment_bytes_max(), state.segment_ms()) == before


def test_a_message_of_a_large_segment_is_erased_by_its_id_without_reading_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.topics.compaction.rewriting.PAGE_BYTES", 1)
    world = plain()
    for number in range(100):
        world.publish((KEY, b"%d" % number))
    world.seal()
    ids = [one.id for one in world.read()]
    scans = list[str]()
    world.store.before = lambda operation, name: (
        scans.append(name) if operation == "scan" and name != keys.METADATA_MAP else None
    )
    assert world.engine.erase(NAME, id=ids[1], partition=0) == 1
    assert 0 < len(scans) < 20


def test_a_message_that_was_rolled_back_is_erased_and_one_that_is_open_too() -> None:
    world = plain()
    tx = world.engine.transactions
    back, open = (tx.begin(timeout_s=600).transaction_id for _ in range(2))
    for id in (back, open):
        block = encode([SECRET, b"other"], [KEY, OTHER])
        tx.submit(NAME, [NewBlock(0, block)], id).result(5)
    tx.abort(back)
    assert world.engine.erase(NAME, key=KEY) == 2
    tx.abort(open)  # marks the rest of its block
    raw = [value for value in everything(world) if SECRET in value]
    assert raw == []
    assert world.read(isolation=Isolation.COMMITTED) == []


def test_missing_staged_blocks_are_damage_unless_no_reader_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = plain()
    world.publish((OTHER, b"0"))
    world.commit(world.stage((OTHER, b"1"), (OTHER, b"2")))
    world.publish((KEY, SECRET))
    (staged,) = (name for name in world.store.names("t") if keys.is_payload_map(name))
    rows = world.store.open(staged, create=False)
    rows.delete([key for key, _ in rows.scan(None, None, 1 << 20)])
    with pytest.raises(DataCorrupt):
        world.engine.erase(NAME, key=KEY)
    monkeypatch.setattr(
        world.engine.compaction,
        "_fate_of",
        lambda pointer, issued: Fate.SKIPPED if pointer else Fate.VISIBLE,
    )
    assert world.engine.erase(NAME, key=KEY) == 1


@pytest.mark.parametrize(
    ("issued", "end", "shown"),
    [
        (True, "invalidate", False),
        (True, "commit", True),
        (False, "goes on", True),
        (False, "is too old", False),
    ],
)
def test_missing_staged_blocks_are_an_error_while_their_transaction_may_be_visible(
    issued: bool, end: str, shown: bool
) -> None:
    """Its staged blocks are gone: that is damage if a reader may still see them. A transaction
    begun elsewhere is open until it is too old."""
    world = plain()
    tx = world.engine.transactions
    id = tx.begin(timeout_s=600).transaction_id
    pointer = id if issued else id + 999
    tx.stage(NAME, [NewBlock(0, encode([b"1"], [OTHER]))], pointer)
    tx.refer(NAME, 0, pointer)
    world.publish((KEY, SECRET))
    if end == "invalidate":
        tx.invalidate(id)
    elif end == "commit":
        tx.commit(Commit(id))
    elif end == "is too old":
        world.clock.pass_ms(2 * DAY_MS)
    world.restart()  # nothing of it is cached
    (staged,) = (name for name in world.store.names("t") if keys.is_payload_map(name))
    rows = world.store.open(staged, create=False)
    rows.delete([key for key, _ in rows.scan(None, None, 1 << 20)])
    if shown:
        with pytest.raises(DataCorrupt):
            world.engine.erase(NAME, key=KEY)
    else:
        assert world.engine.erase(NAME, key=KEY) == 1


def test_what_is_rolled_back_while_it_is_erased_stays_rolled_back() -> None:
    world = plain()
    tx = world.engine.transactions
    id = tx.begin(timeout_s=600).transaction_id
    tx.submit(NAME, [NewBlock(0, encode([SECRET, b"other"], [KEY, OTHER]))], id).result(5)
    world.seal()
    segment = keys.segment_map(world.log.uid, 0, 0)
    came = list[str]()

    def abort(operation: str, name: str) -> None:
        if (operation, name, came) == ("scan", segment, []):
            came.append(operation)
        elif operation == "compare_and_set" and came == ["scan"]:
            came.append(operation)  # the page was looked at, and is not written yet
            tx.abort(id)

    world.store.before = abort
    assert world.engine.erase(NAME, key=KEY) == 1
    assert len(came) == 2
    stored = world.store.inner.open(segment, create=False).scan(None, None, 1 << 20)
    assert [flags_of(block) & Flags.ROLLED_BACK for _, block in stored] == [Flags.ROLLED_BACK]
    assert world.read(isolation=Isolation.COMMITTED) == []
    world.publish((OTHER, b"next"))
    assert [one.value for one in world.read()] == [b"next"]
    world.restart()
    assert [one.value for one in world.read()] == [b"next"]
    assert [*Verifier(world.store).run()] == []


def everything(world: World) -> list[bytes]:
    store = world.store.inner
    names = store.names("")
    return [
        bytes(value)
        for name in names
        for _, value in store.open(name, create=False).scan(None, None, 1 << 30)
    ]


def test_the_cache_forgets_what_was_erased_and_readers_at_the_tail_go_on() -> None:
    world = plain()
    world.publish((KEY, SECRET), (OTHER, b"1"))
    before = world.read()
    world.engine.erase(NAME, key=KEY)
    tail = world.log.state.tail
    assert all(SECRET not in bytes(one.block) for one in tail._blocks)
    world.publish((OTHER, b"2"))
    after = tms.Position.after(before[-1].id)
    assert [one.offset for one in world.read(after)] == [2]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("step", range(1, 20))
def test_an_erasing_that_dies_anywhere_can_be_repeated(step: int, shared: bool) -> None:
    world = plain(KeptStore(shared=shared))
    world.publish((KEY, SECRET), (OTHER, b"1"))
    world.seal()
    world.commit(world.stage((OTHER, b"2"), (KEY, SECRET)))
    world.publish((KEY, SECRET))
    world.publish((OTHER, b"5"), (KEY, SECRET))
    world.commit(world.stage((KEY, SECRET)))
    before = world.read()
    operations = ("overwrite", "delete", "reclaim", "compare_and_set", "write", "open")
    with world.dying_at(step, operations):
        world.engine.erase(NAME, key=KEY)
    world.crash()
    kept = [one for one in before if one.key != KEY]
    for isolation in (Isolation.COMMITTED, Isolation.UNCOMMITTED):
        assert [one for one in world.read(isolation=isolation) if one.key != KEY] == kept
    findings = [*Verifier(world.store).run()]
    assert [one for one in findings if one.severity is not Severity.NOTE] == []
    world.engine.erase(NAME, key=KEY)
    assert world.read() == kept
    assert not any(SECRET in value for value in everything(world))
    assert world.publish((KEY, b"8")) == [8]


def test_what_a_crash_left_to_reclaim_is_reclaimed_by_the_next_round(tmp_path: Path) -> None:
    world = plain(LevelDBStore(tmp_path / "data", create=True))
    world.publish((KEY, LARGE), (OTHER, LARGE[:10_000]))

    def fail(operation: str, name: str) -> None:
        if operation == "reclaim":
            raise TMSError("it dies here")

    world.store.before = fail
    with pytest.raises(TMSError):
        world.engine.erase(NAME, key=KEY)
    assert KEY in on_disk(tmp_path)
    world.engine.close()
    store = LevelDBStore(tmp_path / "data", create=False)
    assert [*Verifier(store).run()] == []
    world.store = FaultyStore(store)
    world.open()
    world.compact()
    assert KEY not in on_disk(tmp_path)
    assert len(world.read()) == 1
    world.engine.close()


def test_what_a_crash_left_of_messages_that_waited_is_reclaimed_by_the_next_round(
    tmp_path: Path,
) -> None:
    """None of them was ever in the log: no segment shows that there is anything to do."""
    world = plain(LevelDBStore(tmp_path / "data", create=True))
    block = NewBlock(0, encode([SECRET, b"1"], [KEY, OTHER]))
    world.engine.delayed.publish(NAME, [block], Due(delay_ms=1_000))

    operations: list[str] = []

    def fail(operation: str, name: str) -> None:
        if "overwrite" in operations:
            raise TMSError("it dies here, when the message is cancelled and emptied")
        operations.append(operation)

    world.store.before = fail
    with pytest.raises(TMSError):
        world.engine.erase(NAME, key=KEY)
    world.store.before = lambda operation, name: None
    assert KEY in on_disk(tmp_path)
    world.engine.close()
    world.store = FaultyStore(LevelDBStore(tmp_path / "data", create=False))
    world.open()
    world.compact()
    assert KEY not in on_disk(tmp_path) and SECRET not in on_disk(tmp_path)
    assert world.engine.delayed.info(NAME).waiting == 1
    world.engine.close()


def test_a_publish_that_is_repeated_after_its_message_was_erased_is_not_stored_again() -> None:
    world = plain()

    def block() -> bytearray:
        return encode([SECRET, b"1"], [KEY, OTHER], producer_id=9, producer_sequence=0)

    first = world.engine.append(NAME, [NewBlock(0, block())])[0]
    world.engine.erase(NAME, key=KEY)
    world.restart()
    again = world.engine.append(NAME, [NewBlock(0, block())])[0]
    assert (again.duplicate, again.base_offset) == (True, first.base_offset)
    assert world.offsets() == [1]


def test_a_publish_that_expects_an_id_of_before_an_erasing_is_told_to_read_on() -> None:
    world = plain()
    world.publish((OTHER, b"0"))
    [known] = world.read()
    world.publish((OTHER, b"1"))
    world.engine.erase(NAME, key=OTHER)
    late = NewBlock(0, encode([b"2"], [OTHER]), known.id)
    with pytest.raises(tms.errors.WrongLastId):
        world.engine.append(NAME, [late])
