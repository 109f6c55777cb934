"""Members of groups that are killed or paused, like their service: no message is lost, and with
exactly-once no output is there twice."""

import contextlib
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from tests.faults.clients import free_port
from tests.faults.member import Process
from tests.faults.service import Service, within
from tests.waiting import PATIENCE_S
from tms.client.client import Bus

PARTITIONS = 4
SESSION_S = 1.0
END_S = PATIENCE_S


@contextlib.contextmanager
def publishing(bus: Bus) -> Iterator[list[str]]:
    """Publish numbered messages meanwhile, one after another; yields the list of them."""
    values: list[str] = []
    end = threading.Event()

    def publish() -> None:
        while not end.wait(0.01):
            number = len(values)
            bus.publish("in", b"%d" % number, partition=number % PARTITIONS)
            values.append(str(number))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield values
    finally:
        end.set()
        thread.join()


def made(bus: Bus) -> list[str]:
    """The outputs made of the messages."""
    found = bus.consumer("out", stop_at_end=True)
    return [(message.value or b"").decode() for message in found]


def is_done(bus: Bus) -> bool:
    return bus.describe_group("in", group="g").summary().lag == 0


@pytest.fixture
def bus(fast_path: Path) -> Iterator[Bus]:
    with Service(fast_path / "data") as service, tms.connect(service.url) as bus:
        prepare(bus)
        yield bus


def prepare(bus: Bus) -> None:
    bus.create_topic("in", partitions=PARTITIONS, durability="written")
    bus.create_topic("out", durability="written")


def url_of(bus: Bus) -> str:
    url: str = bus._transport.addresses.now.url  # type: ignore[union-attr]
    return url


@contextlib.contextmanager
def two_members(bus: Bus, delivery: str) -> Iterator[tuple[Process, Process]]:
    with (
        Process(url_of(bus), SESSION_S, delivery) as one,
        Process(url_of(bus), SESSION_S, delivery) as other,
    ):
        yield one, other


@pytest.mark.timeout(120)
def test_members_that_are_killed_lose_nothing_and_double_nothing(bus: Bus) -> None:
    chance = random.Random(7)
    with contextlib.ExitStack() as running:
        members = [
            running.enter_context(Process(url_of(bus), SESSION_S, "exactly-once")) for _ in range(3)
        ]
        with publishing(bus) as values:
            for _ in range(4):
                victim = members.pop(chance.randrange(len(members)))
                before = len(victim.said)
                victim.until(lambda one, n=before: len(one.said) > n + 5)  # type: ignore[misc]
                victim.kill()
                new = Process(url_of(bus), SESSION_S, "exactly-once")
                members.append(running.enter_context(new))
                new.until(lambda one: bool(one.said))
        within(END_S, lambda: is_done(bus))
        assert Counter(made(bus)) == Counter(values)


@pytest.mark.timeout(120)
def test_a_member_that_was_killed_is_replaced_within_its_session(bus: Bus) -> None:
    with two_members(bus, "at-least-once") as (dies, lives):
        with publishing(bus) as values:
            for one in (dies, lives):
                one.until(lambda one: bool(one.said))
        dies.kill()
        for number in range(PARTITIONS):
            bus.publish("in", b"late %d" % number, partition=number)
        within(END_S, lambda: sum("late" in value for value in lives.values()) == PARTITIONS)
        assert set(values) <= set(dies.values() + lives.values())


@pytest.mark.timeout(120)
def test_a_member_that_was_paused_commits_nothing_afterwards(bus: Bus) -> None:
    with two_members(bus, "exactly-once") as (paused, other):
        with publishing(bus) as values:
            for one in (paused, other):
                one.until(lambda one: len(one.said) > 5)
            for _ in range(2):
                paused.send(signal.SIGSTOP)
                within(END_S, lambda: len(bus.describe_group("in", group="g").members) == 1)
                before = len(other.said)
                other.until(lambda one, n=before: len(one.said) > n + 20)  # type: ignore[misc]
                before = len(paused.said)
                paused.send(signal.SIGCONT)
                paused.until(lambda one, n=before: len(one.said) > n + 5)  # type: ignore[misc]
        within(END_S, lambda: is_done(bus))
        assert Counter(made(bus)) == Counter(values)
        assert not set(paused.values("fenced")) - set(made(bus))


@pytest.mark.timeout(120)
def test_members_go_on_when_their_service_is_killed_and_comes_back(fast_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as running, tms.connect(url, timeout_s=60) as bus:
        service = running.enter_context(Service(fast_path / "data", "--port", str(port)))
        prepare(bus)
        members = [running.enter_context(Process(url, 10.0, "exactly-once")) for _ in range(2)]
        with publishing(bus) as values:
            for _ in range(2):
                for one in members:
                    before = len(one.said)
                    one.until(lambda one, n=before: len(one.said) > n + 10)  # type: ignore[misc]
                owners = {
                    one.partition: one.owner
                    for one in bus.describe_group("in", group="g").partitions
                }
                service.kill()
                service = running.enter_context(Service(fast_path / "data", "--port", str(port)))
                found = bus.describe_group("in", group="g").partitions
                assert {one.partition: one.owner for one in found} == owners
        within(END_S, lambda: is_done(bus))
        assert Counter(made(bus)) == Counter(values)
        assert not any(one.values("fenced") for one in members)
