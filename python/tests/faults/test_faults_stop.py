"""Faults 9 and 31: a second start on the same directory; SIGTERM while publishers are at work."""

import contextlib
import threading
from pathlib import Path

import pytest

import tms
from tests.databases import make_directory
from tests.faults.history import read_all
from tests.faults.load import Load
from tests.faults.service import Service, within
from tests.waiting import PATIENCE_S
from tms.errors import AlreadyRunning, TMSError

ALREADY_RUNNING = 75
ROUNDS = 4


def test_fault_9_a_second_service_ends_with_75_and_the_first_one_keeps_its_lock(
    fast_path: Path,
) -> None:
    data = fast_path / "data"
    with Service(data) as first, tms.connect(first.url) as bus:
        bus.create_topic("orders")
        bus.publish("orders", b"1")
        for _ in range(2):
            with Service(data, wait=False) as second:
                assert second.wait() == ALREADY_RUNNING
                assert str(first.pid) in " ".join(second.lines)
        with pytest.raises(AlreadyRunning):
            tms.open(data)
        bus.publish("orders", b"2")
        assert first.stop() == 0
    with tms.open(data) as own:
        assert [m.value for m in own.consumer("orders", stop_at_end=True)] == [b"1", b"2"]
        with pytest.raises(AlreadyRunning), tms.open(data):
            pass
        with Service(data, wait=False) as third:
            assert third.wait() == ALREADY_RUNNING
        assert own.publish("orders", b"3")


def test_fault_9_a_directory_can_be_opened_again_after_its_owner_was_killed(
    fast_path: Path, database: str
) -> None:
    data = make_directory(fast_path / "data")
    with Service(data) as service, tms.connect(service.url) as bus:
        bus.create_topic("orders")
        bus.publish("orders", b"1")
        service.kill()
    with tms.open(data) as bus:
        assert [m.value for m in bus.consumer("orders", stop_at_end=True)] == [b"1"]


def test_fault_31_sigterm_under_load_drains_ends_with_zero_and_loses_nothing(
    fast_path: Path, database: str
) -> None:
    data = make_directory(fast_path / "data")
    loads: list[Load] = []
    for number in range(ROUNDS):
        with Service(data) as service:
            with Load(service.url, f"load-{number}", publishers=4, timeout_s=1) as load:
                loads.append(load)
                poll = wait_for_what_never_comes(service.url, f"load-{number}")
                within(PATIENCE_S, lambda: loads[-1].acknowledged() > 50)
                assert service.stop() == 0
                load.stop()
                poll.join(PATIENCE_S)
                assert not poll.is_alive()
            refused = {error.code for error in load.errors}
            assert refused <= {"unavailable", "timed-out"}, refused
            assert not service.events("drain_incomplete")
    with tms.open(data) as bus:
        for number, load in enumerate(loads):
            messages = read_all(bus, f"load-{number}")
            load.history.check(messages)
            late = sum(error.code == "timed-out" for error in load.errors)
            unacknowledged = len(messages) - load.acknowledged()
            assert unacknowledged <= late, "a stored message was not acknowledged"


def wait_for_what_never_comes(url: str, topic: str) -> threading.Thread:
    """Wait for a message that never comes, with a consumer's long poll; it must not delay the
    service's stop."""

    def poll() -> None:
        with tms.connect(url, timeout_s=1) as bus, contextlib.suppress(TMSError):
            bus.fetch(topic, start="time:253402300799999", wait_s=50)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    return thread
