"""The recipes in `examples/`: no loss and no duplicate, wherever they are cut."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa

import tms
from tms.client.client import Bus

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Cut(Exception):
    """The program dies here."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with tms.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    return sa.create_engine(f"sqlite:///{tmp_path / 'rows.db'}")


@contextmanager
def cut_at_commit(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, dies: Callable[[], bool], answered: bool
) -> Iterator[None]:
    """The program dies within the block: at a commit where `dies` is true, before it or, with
    `answered`, right after it; or at an earlier `Cut` of its own."""
    right = bus._transport.transactions.commit

    def commit(request: Any, timeout_s: float = 0) -> Any:
        if not dies():
            return right(request)
        if answered:
            right(request)
        raise Cut

    with monkeypatch.context() as patched, pytest.raises(Cut):
        patched.setattr(bus._transport.transactions, "commit", commit)
        yield


def values(bus: Bus, topic: str) -> list[bytes | None]:
    return [message.value for message in bus.consumer(topic, stop_at_end=True)]


@pytest.mark.parametrize("name", ["outbox", "inbox", "event_sourcing", "job_queue", "fan_out"])
def test_a_recipe_runs_as_its_readers_run_it(name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "messages" in done.stdout, done.stderr


@pytest.mark.parametrize("answered", [False, True])
def test_a_relay_that_dies_between_the_commits_neither_loses_nor_repeats(
    bus: Bus, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    outbox: Any = load("outbox")
    database = outbox.prepare(engine, bus)
    for number in range(7):
        outbox.pay(engine, "ann", number)
    commits = count(1)
    with cut_at_commit(bus, monkeypatch, lambda: next(commits) == 2, answered):
        outbox.relay(bus, database, 3)
    outbox.pay(engine, "ann", 7)
    outbox.relay(bus, database, 3)
    assert values(bus, "payments") == [b"ann paid %d" % number for number in range(8)]
    assert outbox.relay(bus, database) == 0


def test_a_payment_that_fails_leaves_no_message(bus: Bus, engine: sa.Engine) -> None:
    outbox: Any = load("outbox")
    database = outbox.prepare(engine, bus)
    with pytest.raises(sa.exc.SQLAlchemyError):
        outbox.pay(engine, "ann", None)
    assert outbox.relay(bus, database) == 0
    assert values(bus, "payments") == []


@pytest.mark.parametrize("where", ["before the effect", "after the effect"])
def test_a_consumer_that_dies_before_its_position_moves_has_each_effect_once(
    bus: Bus, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    inbox: Any = load("inbox")
    inbox.prepare(engine)
    bus.create_topic("words")
    for word in (b"a", b"b", b"a"):
        bus.publish("words", word)
    right = inbox.handle
    handled = 0

    def handle(engine: sa.Engine, message: tms.Message) -> bool:
        nonlocal handled
        handled += 1
        if handled == 2 and where == "before the effect":
            raise Cut
        done: bool = right(engine, message)
        if handled == 2:
            raise Cut
        return done

    with monkeypatch.context() as patched:
        patched.setattr(inbox, "handle", handle)
        with pytest.raises(Cut):
            inbox.consume(bus, engine)
    inbox.consume(bus, engine)
    with engine.connect() as connection:
        totals = {row.word: row.times for row in connection.execute(sa.select(inbox.TOTALS))}
    assert totals == {"a": 2, "b": 1}


@pytest.mark.parametrize("where", ["in the job", "before the commit", "after the commit"])
def test_a_worker_that_dies_leaves_each_job_one_result(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    jobs: Any = load("job_queue")
    queue = jobs.prepare(bus, lease_s=0.2)
    bus.publish_many("images", [b"%d.png" % number for number in range(5)])
    calls = 0

    def render(image: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 3 and where == "in the job":
            raise Cut
        return image

    with cut_at_commit(bus, monkeypatch, lambda: calls == 3, where == "after the commit"):
        jobs.work(bus, queue, render)
    jobs.work(bus, queue, lambda image: image)
    assert sorted(map(str, values(bus, "thumbnails"))) == [f"b'{n}.png'" for n in range(5)]


def test_a_worker_that_was_too_slow_publishes_nothing(bus: Bus) -> None:
    jobs: Any = load("job_queue")
    queue = jobs.prepare(bus)
    bus.publish("images", b"1.png")
    [late] = queue.receive()
    queue.nack(late, delay_s=0)
    [again] = queue.receive(1, 10)
    assert not jobs.do(bus, queue, late, lambda image: b"late")
    assert jobs.do(bus, queue, again, lambda image: b"again")
    assert values(bus, "thumbnails") == [b"again"]
