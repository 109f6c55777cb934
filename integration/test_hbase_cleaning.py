"""The rows of TMS in HBase once the files were rewritten: all that readers may need, and nothing
else; and the rows that other programs see."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest

import tms
from integration import coprocessor
from integration.cluster import Endpoint
from integration.install import install
from tests.hbase_kit import read_row
from tms.block import encode
from tms.engine.engine import Engine
from tms.model.message import NewBlock
from tms.model.snapshot import TransactionType, encode_snapshot
from tms.model.topic import TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock, TopicStaged
from tms.runtime.clock import SystemClock
from tms.store.hbase.admin import Admin, Region
from tms.store.hbase.pool import HBasePlace
from tms.store.hbase.store import HBaseStore
from tms.transactions.uncommitted import StoredRange

WAIT_S = 60
RAW = {b"tms.isolation": b"uncommitted"}
COMMITTED = {b"tms.isolation": b"committed"}
KEPT, GONE, SHORT, CUT = (TopicName("default", name) for name in ("kept", "gone", "short", "cut"))


def until(happens: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.2)


class World:
    """A namespace with the coprocessor, and an engine on it."""

    def __init__(self, hbase: Endpoint, namespace: str) -> None:
        self.hbase = hbase
        self.namespace = namespace
        install(hbase.url(namespace), coprocessor.build())
        self.open()

    def open(self) -> None:
        self.store = HBaseStore(self.hbase.url(self.namespace))
        self.engine = Engine(self.store, SystemClock())
        self.tx = self.engine.transactions

    def restart(self) -> None:
        """Restart, so that every partition that is opened gets its open segment sealed."""
        self.engine.close()
        self.open()
        for info in self.engine.list_topics("default"):
            self.engine.describe_topic(TopicName(info.namespace, info.topic))

    def publish(self, name: TopicName, *values: bytes) -> None:
        self.engine.append(name, [NewBlock(0, encode([value])) for value in values])

    def publish_in(self, pointer: int, value: bytes) -> StoredRange:
        (place,) = self.tx.submit(KEPT, [NewBlock(0, encode([value]))], pointer).result(10)
        return StoredRange.of(KEPT, place, pointer)

    def rewrite(self) -> None:
        """Let the coprocessor read the engine's state, then have all files rewritten."""
        assert self.tx._image is not None
        self.tx._image.write(self.engine.topics.clock.now_ms())
        self.engine.maintenance.clean()
        self.wait_until_all_is_read()
        for table in ("messages", "payloads"):
            self.hbase.admin().run("flush", f"{self.namespace}:{table}")
            self.hbase.admin().run("major_compact", f"{self.namespace}:{table}")

    def wait_until_all_is_read(self) -> None:
        """Wait until every region knows the engine's current state."""
        began_s = time.monotonic()
        admin = Admin(HBasePlace.parse(self.hbase.url(self.namespace)), SystemClock())

        def known(region: Region) -> bool:
            probe = admin.probe(region)
            assert probe is not None
            ages_ms = (probe.metadata_age_ms, probe.topics_age_ms)
            passed_ms = (time.monotonic() - began_s) * 1000
            return all(age_ms is not None and age_ms < passed_ms for age_ms in ages_ms)

        try:
            for table in ("messages", "payloads"):
                for region in admin.regions(table):
                    until(partial(known, region), "the metadata was read")
        finally:
            admin.close()

    def uid(self, name: TopicName) -> int:
        return self.engine.topics.registry.find(name).uid

    def rows(
        self, table: str = "messages", attributes: Mapping[bytes, bytes] = RAW
    ) -> dict[int, list[bytes]]:
        """The blocks that a scan finds, by topic uid."""
        found: dict[int, list[bytes]] = {}
        with self.hbase.connect() as gateway:
            for row, cells in gateway.scan(f"{self.namespace}:{table}", attributes).items():
                key = read_row(table, row.decode())
                assert key is not None
                found.setdefault(key.uid, []).append(cells[b"m:b"])
        return found

    def values(self, attributes: Mapping[bytes, bytes] = RAW) -> list[bytes]:
        """The values in the blocks of the topic `kept` that a scan finds."""
        from tms.block import Flags, decode, flags_of

        blocks = self.rows(attributes=attributes).get(self.uid(KEPT), [])
        return [
            b"staged" if flags_of(block) & Flags.STAGED else (decode(block).values()[0] or b"")
            for block in blocks
        ]


@pytest.fixture
def world(hbase: Endpoint, hbase_namespace: str) -> Iterator[World]:
    made = World(hbase, hbase_namespace)
    yield made
    made.engine.close()


def test_what_nobody_may_read_is_dropped_and_everything_else_stays(world: World) -> None:
    for name in (KEPT, GONE, CUT):
        world.engine.create_topic(name, TopicSettings())
    world.engine.create_topic(SHORT, TopicSettings(retention_ms=1_000))
    world.publish(KEPT, b"plain 1", b"plain 2")
    world.publish(GONE, b"gone")
    world.publish(SHORT, b"short")
    world.publish(CUT, b"cut 1", b"cut 2")
    uids = {name: world.uid(name) for name in (KEPT, GONE, SHORT, CUT)}
    back, invalid, open = (world.tx.begin(timeout_s=3_600).transaction_id for _ in range(3))
    world.tx.roll_back(world.publish_in(back, b"rolled back"))
    world.publish_in(invalid, b"invalid")
    world.tx.commit(Commit(blocks=(TopicBlock(KEPT, NewBlock(0, encode([b"committed"]))),)))
    staged = world.tx.begin().transaction_id
    dropped = world.tx.begin().transaction_id
    for id in (staged, dropped):
        world.tx.stage(KEPT, [NewBlock(0, encode([b"staged %d" % id]))], id)
    world.tx.commit(Commit(staged, staged=(TopicStaged(KEPT, 0, 1),)))
    world.publish_in(open, b"open")
    world.tx.invalidate(invalid)
    world.tx.manager.invalidate(dropped)
    world.engine.delete_topic(GONE)
    world.engine.truncate_topic(CUT, tms.Position.latest())
    world.publish(CUT, b"cut 3")
    before = _read(world)
    time.sleep(1.5)  # until the messages of `short` are expired
    world.restart()
    world.rewrite()

    rows = world.rows()
    assert uids[GONE] not in rows
    assert uids[SHORT] not in rows
    assert len(rows[uids[CUT]]) == 1
    assert world.values() == [b"plain 1", b"plain 2", b"committed", b"staged", b"open"]
    assert len(world.rows("payloads")[uids[KEPT]]) == 1
    assert _read(world) == before
    assert world.values(COMMITTED) == [b"plain 1", b"plain 2", b"committed", b"staged"]
    world.publish(KEPT, b"after")
    world.tx.abort(open)
    assert [value for _, value in _read(world)][-1] == b"after"


def test_nothing_of_an_open_segment_is_dropped_and_its_end_is_found(world: World) -> None:
    world.engine.create_topic(KEPT, TopicSettings())
    world.publish(KEPT, b"1")
    id = world.tx.begin().transaction_id
    world.publish_in(id, b"invalid")
    world.tx.invalidate(id)
    world.publish(KEPT, b"2", b"3")
    world.rewrite()
    assert world.values() == [b"1", b"invalid", b"2", b"3"]
    assert world.values(COMMITTED) == [b"1", b"2", b"3"]
    world.restart()
    assert world.engine.describe_topic(KEPT).partition_infos[0].end_offset == 4
    world.rewrite()
    assert world.values() == [b"1", b"2", b"3"]
    assert [value for _, value in _read(world)] == [b"1", b"2", b"3"]


def test_a_scan_with_a_snapshot_sees_what_that_transaction_may_see(world: World) -> None:
    world.engine.create_topic(KEPT, TopicSettings())
    world.publish(KEPT, b"plain")
    mine = world.tx.tephra.start(TransactionType.SHORT, None)
    other = world.tx.begin().transaction_id
    world.publish_in(other, b"later")
    world.tx.commit(Commit(other))
    seen = {b"tms.snapshot": encode_snapshot(mine)}
    assert world.values(seen) == [b"plain"]
    newer = {b"tms.snapshot": encode_snapshot(world.tx.tephra.start(TransactionType.SHORT, None))}
    assert world.values(newer) == [b"plain", b"later"]


def test_the_watch_says_nothing_when_all_is_well_and_pruning_follows_the_regions(
    world: World,
) -> None:
    watch = world.store._coprocessor
    watch._began_s = float("-inf")  # long ago, so that old records count
    world.engine.create_topic(KEPT, TopicSettings())
    world.publish(KEPT, b"1")
    until(lambda: watch.look() == [], "the coprocessor answers everywhere, with fresh records")
    began_ms = world.engine.topics.clock.now_ms()
    world.restart()
    world.rewrite()
    until(lambda: world.store.cleaned_ms() > 0, "every region has noted what it cleaned")
    assert began_ms - 60_000 < world.store.cleaned_ms() <= world.engine.topics.clock.now_ms()


def _read(world: World) -> list[tuple[str, bytes | None]]:
    from tms.client.client import Bus

    return [
        (str(one.id), one.value) for one in Bus(world.engine).consumer("kept", stop_at_end=True)
    ]
