"""Rows of a SQL database in transactions: all or nothing, wherever the process dies between the two
commits."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

import tms
from tests.sql_kit import World
from tms.client.client import Bus
from tms.errors import CommitUnfinished, Conflict, Invalid, StorageFull, Unavailable
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import (
    GROUP_CHARS_MAX,
    Commit,
    Owner,
    PositionChange,
    PositionKey,
)
from tms.sql import SqlDatabase, _sure

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
META = sa.MetaData()
ROWS = sa.Table("things", META, sa.Column("name", sa.String))
FENCE = sa.table("tms_fence", sa.column("token"), sa.column("created_s"))


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with tms.open(tmp_path / "data") as opened:
        for topic in ("in", "out"):
            opened.create_topic(topic)
        yield opened


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'things.db'}")
    META.create_all(made)
    return made


@pytest.fixture
def database(engine: sa.Engine) -> SqlDatabase:
    return SqlDatabase(engine)


def names(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return [name for (name,) in connection.execute(sa.select(ROWS.c.name))]


def fences(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(sa.select(FENCE)).all())


def values(bus: Bus, topic: str) -> list[bytes | None]:
    return [message.value for message in bus.consumer(topic, stop_at_end=True)]


def test_the_table_of_positions_has_room_for_the_longest_names(database: SqlDatabase) -> None:
    longest = TopicName.of("n" * 128, "t" * 249)
    columns = {
        one["name"]: one["type"]
        for one in sa.inspect(database._engine).get_columns("tms_positions")
    }
    assert columns["topic"].length == len(str(longest))
    assert columns["consumer_group"].length == GROUP_CHARS_MAX


def write(bus: Bus, database: SqlDatabase, name: str) -> None:
    with bus.transaction() as tx:
        tx.join(database.rows()).execute(ROWS.insert().values(name=name))
        tx.send("out", name.encode())


@contextmanager
def cut(bus: Bus, *, done: bool) -> Iterator[None]:
    """Within, a commit gets no answer, whether it takes effect or not."""
    right = bus._transport.transactions.commit

    def commit(request: object, timeout_s: float = 0) -> object:
        if done:
            right(request)  # type: ignore[arg-type]
        raise Invalid("the process dies here")  # this error is not repeated

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bus._transport.transactions, "commit", commit)
        with pytest.raises(CommitUnfinished):
            yield


def test_rows_and_messages_commit_together(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    write(bus, database, "a")
    assert (names(engine), values(bus, "out"), fences(engine)) == (["a"], [b"a"], 0)


def test_an_exception_leaves_neither(bus: Bus, engine: sa.Engine, database: SqlDatabase) -> None:
    with pytest.raises(ZeroDivisionError), bus.transaction() as tx:
        tx.join(database.rows()).execute(ROWS.insert().values(name="a"))
        tx.send("out", b"a")
        _ = 1 / 0
    assert (names(engine), values(bus, "out"), fences(engine)) == ([], [], 0)


def test_a_database_that_refuses_leaves_neither(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    with pytest.raises(sa.exc.OperationalError), bus.transaction() as tx:
        tx.send("out", b"a")
        tx.join(database.rows()).execute(sa.text("INSERT INTO nowhere VALUES (1)"))
    assert (values(bus, "out"), fences(engine)) == ([], 0)


@pytest.mark.parametrize("done", [False, True])
def test_what_died_between_the_commits_is_sent_by_recover_once(
    bus: Bus,
    engine: sa.Engine,
    database: SqlDatabase,
    done: bool,
) -> None:
    with cut(bus, done=done):
        write(bus, database, "a")
    assert (names(engine), fences(engine)) == (["a"], 1)
    assert database.recover(bus) == 1
    assert database.recover(bus) == 0
    assert (names(engine), values(bus, "out"), fences(engine)) == (["a"], [b"a"], 0)


def test_a_recovery_that_fails_can_be_repeated(
    bus: Bus, engine: sa.Engine, database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut(bus, done=False):
        write(bus, database, "a")

    def unavailable(request: object, timeout_s: float = 0) -> object:
        raise Unavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr(bus._transport.transactions, "commit", unavailable)
        with pytest.raises(Unavailable):
            database.recover(bus)
    assert database.recover(bus) == 1
    assert values(bus, "out") == [b"a"]


def test_of_two_consumers_with_one_input_only_one_commits_its_rows(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    bus.publish("in", b"1")
    both = [bus.consumer("in", group="g", stop_at_end=True) for _ in range(2)]
    assert [[m.value for m in one] for one in both] == [[b"1"], [b"1"]]
    for number, consumer in enumerate(both):
        tx = bus.transaction()
        tx.join(database.rows()).execute(ROWS.insert().values(name=f"by {number}"))
        tx.send("out", b"made")
        tx.ack(consumer)
        if number == 0:
            tx.commit()
        else:
            with pytest.raises(Conflict):
                tx.commit()
    assert (names(engine), values(bus, "out"), fences(engine)) == (["by 0"], [b"made"], 0)


def test_a_group_that_was_set_back_by_hand_begins_anew_once_the_database_forgets_it(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    bus.publish("in", b"1")

    def process() -> None:
        consumer = bus.consumer("in", group="g", stop_at_end=True)
        for message in consumer:
            with bus.transaction() as tx:
                name = (message.value or b"").decode()
                tx.join(database.rows()).execute(ROWS.insert().values(name=name))
                tx.ack(consumer)

    process()
    bus.set_positions("in", {0: "earliest"}, group="g")
    with pytest.raises(Conflict):
        process()
    database.forget_positions("in", group="g")
    process()
    assert names(engine) == ["1", "1"]


def test_nothing_else_may_refuse_a_transaction_that_the_database_decides(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    with pytest.raises(Invalid), bus.transaction() as tx:
        tx.join(database.rows()).execute(ROWS.insert().values(name="a"))
        tx.change(b"key")
    assert (names(engine), fences(engine)) == ([], 0)


def test_a_request_too_old_to_be_sure_of_is_left_to_people(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    with cut(bus, done=False):
        write(bus, database, "a")
    with engine.begin() as connection:
        connection.execute(sa.update(FENCE).values(created_s=int(time.time()) - 90_000))
    with pytest.raises(Conflict, match="older than 24 hours"):
        database.recover(bus)
    assert fences(engine) == 1


def test_rows_belong_to_one_transaction(bus: Bus, database: SqlDatabase) -> None:
    rows = database.rows()
    with bus.transaction() as tx:
        tx.join(rows)
    with pytest.raises(Invalid), bus.transaction() as tx:
        tx.join(rows)


@pytest.mark.timeout(300)
def test_wherever_the_process_dies_everything_is_there_once(fast_path: Path) -> None:
    """It dies before and after each call to the bus, each statement and each commit, and at any
    step of the recovery."""

    def work(bus: Bus, engine: sa.Engine) -> None:
        database = SqlDatabase(engine)
        database.recover(bus)
        consumer = bus.consumer("in", group="g", stop_at_end=True)
        for message in consumer:
            with bus.transaction() as tx:
                name = (message.value or b"").decode()
                tx.join(database.rows()).execute(ROWS.insert().values(name=name))
                tx.send("out", name.encode())
                tx.ack(consumer)

    random = Random(7)
    for die_at in range(1_000):
        place = fast_path / str(die_at)
        place.mkdir()
        world = World(place)
        bus = world.bus()
        for topic in ("in", "out"):
            bus.create_topic(topic)
        bus.publish_many("in", [b"a", b"b", b"c"])
        with world.database() as engine:
            META.create_all(engine)
        dead = world.run(work, die_at).dead
        for _ in range(random.randrange(3)):
            if random.random() < 0.5:
                world.restart()
            world.run(work, random.randrange(30))
        world.run(work)
        with world.database() as engine:
            found = names(engine), values(world.bus(), "out"), fences(engine)
        assert found == (["a", "b", "c"], [b"a", b"b", b"c"], 0), f"died at {die_at}"
        world.end()
        if not dead:
            break
    assert die_at > 30


def test_rows_without_messages_are_committed(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    with bus.transaction() as tx:
        tx.join(database.rows()).execute(ROWS.insert().values(name="a"))
    assert (names(engine), fences(engine)) == (["a"], 0)


def test_messages_to_rows_that_are_there_are_synced(
    bus: Bus, database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power loss takes the messages, and their fence row is gone."""
    bus.update_topic("out", durability="written")
    right, asked = bus._transport.transactions.commit, []

    def commit(request: Commit, timeout_s: float = 30) -> object:
        asked.append(request.durability)
        return right(request, timeout_s)

    monkeypatch.setattr(bus._transport.transactions, "commit", commit)
    write(bus, database, "a")
    assert asked == ["synced"]


def test_positions_tell_what_was_done_when_its_token_is_forgotten(
    bus: Bus, engine: sa.Engine, database: SqlDatabase
) -> None:
    bus.publish("in", b"a")
    consumer = bus.consumer("in", group="g", stop_at_end=True)
    list(consumer)
    with cut(bus, done=True), bus.transaction() as tx:
        tx.join(database.rows()).execute(ROWS.insert().values(name="a"))
        tx.send("out", b"a")
        tx.ack(consumer)
    bus._transport.transactions.manager.state.tokens.clear()  # type: ignore[attr-defined]
    assert database.recover(bus) == 1
    assert (names(engine), values(bus, "out"), fences(engine)) == (["a"], [b"a"], 0)


def test_rows_that_are_committed_are_not_to_be_written_again(
    bus: Bus, engine: sa.Engine, database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> object:
        raise StorageFull("The disk is full.")

    impatient = tms.Bus(bus._transport, timeout_s=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(bus._transport.transactions, "commit", full)
        with pytest.raises(CommitUnfinished, match="recover") as caught:
            write(impatient, database, "a")
    assert not caught.value.retriable and isinstance(caught.value.__cause__, StorageFull)
    assert database.recover(bus) == 1
    assert (names(engine), values(bus, "out"), fences(engine)) == (["a"], [b"a"], 0)


@pytest.mark.parametrize("done", [False, True])
def test_a_commit_of_the_database_without_an_answer_is_found_out_by_recovery(
    bus: Bus,
    engine: sa.Engine,
    database: SqlDatabase,
    monkeypatch: pytest.MonkeyPatch,
    done: bool,
) -> None:
    right = engine.dialect.do_commit

    def commit(connection: object) -> None:
        if done:
            right(connection)  # type: ignore[arg-type]
        engine.dialect.do_commit = right  # type: ignore[method-assign]
        raise OSError("the connection ended")

    engine.dialect.do_commit = commit  # type: ignore[method-assign]
    with pytest.raises(CommitUnfinished if done else OSError):
        write(bus, database, "a")
    assert values(bus, "out") == []
    assert database.recover(bus) == done
    assert (names(engine), values(bus, "out")) == ((["a"], [b"a"]) if done else ([], []))


def test_a_database_decides_alone(bus: Bus, database: SqlDatabase) -> None:
    with pytest.raises(Invalid, match="the only one"), bus.transaction() as tx:
        tx.join(database.rows())
        bus.table("t").within(tx)


def test_orders_are_processed_exactly_once_by_a_worker_that_is_killed() -> None:
    command = [sys.executable, EXAMPLES / "orders.py", "--orders", "2000", "--kills", "25"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each order is one row, one invoice and one shipment" in done.stdout


def test_a_request_that_may_be_sent_at_any_time_keeps_metadata() -> None:
    key, at = PositionKey("g", TopicName("default", "in"), 0), Position.offset(1)
    change = PositionChange(key, at, "offset:0", Owner("m", 1), "x", 3)
    assert _sure(Commit(positions=(change,))).positions == (
        PositionChange(key, at, None, None, "x", 3),
    )
