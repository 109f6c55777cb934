"""Delayed messages in HBase's tables: rows of the table metadata, one owner at a time."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.contracts.bus_contract import KAFKA_NAMES
from tests.delay_kit import A, World
from tests.fake_hbase import FakeHBase
from tests.log_kit import HOUR_MS
from tms.block import encode
from tms.errors import StorageUnavailable
from tms.model.delayed import DelayedInfo, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.store.base import Store
from tms.store.hbase.store import HBaseStore


class Tables(FakeHBase):
    """A `Pool` that never fails."""

    write_failure = read_failure = None
    succeeded_s = 0.0

    def attempt(self, method: str, *arguments: Any, **options: Any) -> Any:
        return True if method == "tableExists" else super().attempt(method, *arguments, **options)

    def close(self) -> None:
        """Do nothing: the stored rows stay."""


class _Admin:
    """An `Admin` of tables without a retention."""

    def table(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(ttl_ms=None)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@pytest.fixture
def hbase(monkeypatch: pytest.MonkeyPatch) -> Tables:
    made = Tables()
    monkeypatch.setattr("tms.store.hbase.store.Pool", lambda *_: made)
    monkeypatch.setattr("tms.store.hbase.store.Admin", lambda *_: _Admin())
    return made


@pytest.fixture
def world(hbase: Tables) -> World:
    return World(inner=_store())


def _store() -> Store:
    return HBaseStore("hbase://localhost:9090", watched=False)


def test_messages_wait_in_the_table_metadata_and_leave_it(world: World, hbase: Tables) -> None:
    ids = world.later(b"1", b"2", delay_ms=1_000, token="t")
    world.later(b"3", delay_ms=1_000)
    assert world.delayed.cancel(A, ids[0])
    rows = [row for row in hbase.rows("tms:metadata") if row.startswith(b"t00000001/delayed:d")]
    assert len(rows) == 2
    world.clock.pass_ms(1_000)
    assert world.delayed.move() == 2
    assert world.read() == [b"2", b"3"]
    rows = [row for row in hbase.rows("tms:metadata") if row.startswith(b"t00000001/delayed:d")]
    assert rows == [] and world.delayed.info(A) == DelayedInfo(0, None)


@pytest.mark.parametrize("name", KAFKA_NAMES, ids=lambda name: name[:20])
def test_a_topic_with_a_name_of_kafka_is_one_in_hbase(world: World, name: str) -> None:
    kafkas = TopicName.parse(name)
    world.engine.create_topic(kafkas, TopicSettings(2))
    world.engine.append(kafkas, [NewBlock(1, encode([b"1"]))])
    world.later(b"2", delay_ms=1_000, name=kafkas)
    new = World(inner=_store(), clock=world.clock)
    new.clock.pass_ms(1_000)
    new.delayed.move()
    assert kafkas in [info.name for info in new.engine.list_topics(kafkas.namespace)]
    info = new.engine.describe_topic(kafkas)
    assert [one.end_offset for one in info.partition_infos] == [1, 1]
    new.engine.delete_topic(kafkas)
    assert kafkas not in [info.name for info in new.engine.list_topics(kafkas.namespace)]


def test_erased_messages_leave_no_cell_and_the_others_wait_on(world: World, hbase: Tables) -> None:
    block = encode([b"secret", b"1"], [b"user-17", b"user-18"])
    (placed,) = world.delayed.publish(A, [NewBlock(0, block)], Due(delay_ms=1_000), None, "t")
    world.later(b"secret", key=b"user-17", delay_ms=1_000)
    assert world.engine.erase(A, key=b"user-17") == 2
    cells = [value for row in hbase.rows("tms:metadata").values() for value in row.values()]
    assert not [value for value in cells if b"secret" in value or b"user-17" in value]
    new = World(inner=_store(), clock=world.clock)
    (left,) = new.delayed.messages(A)
    assert (left.id, left.value) == (placed.ids()[1], b"1")
    new.clock.pass_ms(1_000)
    new.delayed.move()
    assert new.read() == [b"1"] and new.delayed.info(A) == DelayedInfo(0, None)


def test_a_new_service_goes_on_where_the_old_one_was(world: World) -> None:
    world.later(b"1", delay_ms=1_000)
    (id,) = world.later(b"2", delay_ms=2_000, token="t")
    world.clock.pass_ms(1_000)
    world.delayed.move()
    new = World(inner=_store(), clock=world.clock)
    assert new.delayed.move() == 0 and new.delayed.info(A).waiting == 1
    assert new.later(b"2", delay_ms=2_000, token="t") == [id]
    with pytest.raises(StorageUnavailable):  # it learns that it was replaced
        world.later(b"old", delay_ms=1_000)
    new.clock.pass_ms(10_000)
    new.delayed.move()
    world.delayed.move()
    assert sorted(World(inner=_store(), clock=world.clock).read()) == [b"1", b"2"]


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("write", [1, 2])
def test_a_write_without_an_answer_that_lands_late_doubles_nothing(
    world: World, hbase: Tables, done: bool, write: int
) -> None:
    world.later(b"0", delay_ms=HOUR_MS)
    block = [NewBlock(0, encode([b"1"]))]
    puts = [0]
    attempt = hbase.attempt

    def fails(method: str, *arguments: Any, **options: Any) -> Any:
        if method == "putMultiple" and b"delayed" in arguments[1][0].row:
            puts[0] += 1
            if puts[0] == write:
                hbase.fail("putMultiple", done=done)
        return attempt(method, *arguments, **options)

    hbase.attempt = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        world.delayed.publish(A, block, Due(delay_ms=1_000), None, "t")
    hbase.attempt = attempt  # type: ignore[method-assign]
    world.delayed.publish(A, block, Due(delay_ms=1_000), None, "t")
    hbase.deliver()
    world.clock.pass_ms(1_000)
    world.delayed.move()
    hbase.deliver()
    world.kill()
    world.delayed.move()
    assert world.read() == [b"1"]


def test_the_durability_of_a_topic_does_not_matter_there(hbase: Tables) -> None:
    world = World(inner=_store(), durability=Durability.WRITTEN)
    hbase.puts()
    world.later(b"1", delay_ms=1_000)
    assert all(synced for row, synced in hbase.puts() if b"delayed" in row)
