"""Workers of a queue that are killed or paused, like their service, and messages that kill every
worker that handles them: no message is lost, and the output of a message is there once."""

import contextlib
import signal
from collections import Counter
from pathlib import Path

import pytest

import tms
from tests.faults.clients import free_port
from tests.faults.member import Process
from tests.faults.service import Service, within
from tests.faults.test_faults_groups import END_S, made, prepare, publishing
from tms.client.client import Bus

LEASE_S = 1.0


def is_done(bus: Bus) -> bool:
    """True if the queue is empty."""
    now = bus.queue("in", group="g").describe()
    return now.backlog + now.leased + now.ready + now.delayed + now.dying == 0


@pytest.mark.timeout(120)
def test_killed_and_paused_workers_and_a_killed_service_lose_and_double_nothing(
    fast_path: Path,
) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as running, tms.connect(url, timeout_s=60) as bus:
        service = running.enter_context(Service(fast_path / "data", "--port", port))
        prepare(bus)
        workers = [running.enter_context(Process(url, LEASE_S, "queue")) for _ in range(3)]
        with publishing(bus) as values:
            for worker in workers:
                worker.until(lambda one: len(one.said) > 5)
            killed, paused, last = workers
            killed.kill()
            paused.send(signal.SIGSTOP)
            before = len(last.said)
            last.until(lambda one: len(one.said) > before + 100)  # longer than the lease
            paused.send(signal.SIGCONT)
            service.kill()
            running.enter_context(Service(fast_path / "data", "--port", port))
            running.enter_context(Process(url, LEASE_S, "queue"))
            before_pause = len(paused.said)
            paused.until(lambda one: len(one.said) > before_pause + 5)
        within(END_S, lambda: is_done(bus))
        assert Counter(made(bus)) == Counter(values)


@pytest.mark.timeout(120)
def test_a_message_that_kills_its_workers_is_a_dead_letter_once(fast_path: Path) -> None:
    with contextlib.ExitStack() as running:
        service = running.enter_context(Service(fast_path / "data"))
        bus = running.enter_context(tms.connect(service.url))
        prepare(bus)
        bus.publish("in", b"poison")
        good = [b"%d" % number for number in range(20)]
        bus.publish_many("in", good)
        for _ in range(3):
            worker = running.enter_context(Process(service.url, LEASE_S, "queue"))
            within(END_S, lambda one=worker: one.died)  # type: ignore[misc]
        running.enter_context(Process(service.url, LEASE_S, "queue"))
        within(END_S, lambda: is_done(bus))
        [dead] = bus.consumer("in-g-dead", stop_at_end=True)
        assert (dead.value, dead.headers["tms-dead-deliveries"]) == (b"poison", b"3")
        assert Counter(made(bus)) == Counter(one.decode() for one in good)
