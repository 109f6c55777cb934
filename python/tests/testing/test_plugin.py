"""The plugin for pytest: the promises of its fixtures to tests of programs."""

import asyncio
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import tms
import tms.aio
from tms.testing.clock import MovableClock
from tms.testing.faults import Faults
from tms.testing.memory import MemoryLog, TopicUnderTest
from tms.testing.plugin import (
    tms_aio_bus,
    tms_bus,
    tms_clock,
    tms_faults,
    tms_log,
    tms_service,
    tms_topic,
)
from tms.testing.service import ServiceUnderTest

__all__ = [
    "tms_aio_bus",
    "tms_bus",
    "tms_clock",
    "tms_faults",
    "tms_log",
    "tms_service",
    "tms_topic",
]

PYTHON = Path(__file__).resolve().parents[2]
TEST_MS_MAX, TESTS = 5.0, 20


@pytest.mark.parametrize("value", [b"one", b"two"])
def test_each_test_begins_with_an_empty_log(tms_topic: TopicUnderTest, value: bytes) -> None:
    tms_topic.bus.publish(tms_topic.name, value)
    assert tms_topic.values() == [value]
    assert [info.topic for info in tms_topic.bus.list_topics()] == [str(tms_topic)]


def test_the_mark_gives_the_topic_its_settings(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.tms_topic(partitions=3, retention="1h"))
    topic: TopicUnderTest = request.getfixturevalue("tms_topic")
    settings = topic.bus.describe_topic(topic.name).settings
    assert (settings.partitions, settings.retention_ms) == (3, 3_600_000)


def test_time_stands_still_until_it_is_moved(
    tms_clock: MovableClock, tms_topic: TopicUnderTest
) -> None:
    began = tms_clock.now()
    tms_topic.bus.publish(tms_topic.name, b"x")
    tms_clock.advance("90s")
    tms_topic.bus.publish(tms_topic.name, b"y")
    times = [message.timestamp for message in tms_topic]
    assert times == [began, began + timedelta(seconds=90)]


def test_no_millisecond_is_lost(tms_clock: MovableClock) -> None:
    began_ms = tms_clock.now_ms()
    for passed_ms in range(1, 2_000):
        tms_clock.advance(passed_ms / 1_000)
    assert tms_clock.now_ms() - began_ms == sum(range(1, 2_000))


def test_retention_ends_as_the_clock_is_moved(
    tms_clock: MovableClock, tms_topic: TopicUnderTest
) -> None:
    tms_topic.bus.publish(tms_topic.name, b"old")
    tms_clock.advance("13d")
    assert tms_topic.values() == [b"old"]
    tms_clock.advance("2d")
    assert tms_topic.values() == []


def test_a_delayed_message_comes_as_the_clock_is_moved(
    tms_clock: MovableClock, tms_topic: TopicUnderTest
) -> None:
    tms_topic.bus.publish_later(tms_topic.name, b"later", delay="1h")
    tms_clock.advance("59m")
    assert tms_topic.values() == []
    tms_clock.advance("1m")
    assert tms_topic.values() == [b"later"]


def test_what_is_due_at_once_is_there_at_once(tms_topic: TopicUnderTest) -> None:
    tms_topic.bus.publish_later(tms_topic.name, b"now", delay=0)
    assert tms_topic.values() == [b"now"]


def test_a_lease_ends_as_the_clock_is_moved(
    tms_clock: MovableClock, tms_topic: TopicUnderTest
) -> None:
    queue = tms_topic.bus.queue(tms_topic.name, group="workers", lease_s=60)
    tms_topic.bus.publish(tms_topic.name, b"job")
    [first] = queue.receive()
    assert queue.receive() == []
    tms_clock.advance("61s")
    [second] = queue.receive()
    assert (first.deliveries, second.deliveries) == (1, 2)


def test_a_dead_letter_is_there_when_its_nack_returns(tms_topic: TopicUnderTest) -> None:
    bus = tms_topic.bus
    bus.create_topic("dead")
    queue = bus.queue(
        tms_topic.name, group="workers", lease_s=60, deliveries_max=1, dead_letter="dead"
    )
    bus.publish(tms_topic.name, b"job")
    queue.nack(queue.receive())
    assert TopicUnderTest(bus, "dead").values() == [b"job"]


@pytest.mark.parametrize("error", [None, tms.errors.StorageFull("full"), tms.errors.Invalid("no")])
def test_a_publish_that_fails_says_so_at_once_and_stores_nothing(
    tms_topic: TopicUnderTest, tms_faults: Faults, error: tms.TMSError | None
) -> None:
    tms_faults.fail_next(error=error)
    began_s = time.perf_counter()
    with pytest.raises(tms.errors.Unavailable if error is None else type(error)):
        tms_topic.bus.publish(tms_topic.name, b"x")
    assert time.perf_counter() - began_s < 5
    assert tms_topic.values() == []
    tms_topic.bus.publish(tms_topic.name, b"y")
    assert tms_topic.values() == [b"y"]


def test_a_publish_whose_answer_is_lost_is_stored_all_the_same(
    tms_topic: TopicUnderTest, tms_faults: Faults
) -> None:
    tms_faults.lose_answer(times=1)
    with pytest.raises(tms.errors.TimedOut):
        tms_topic.bus.publish(tms_topic.name, b"x")
    assert tms_topic.values() == [b"x"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_producer_is_told_by_its_flush(
    tms_topic: TopicUnderTest, tms_faults: Faults, stored: bool
) -> None:
    if stored:
        tms_faults.lose_answer()
    else:
        tms_faults.fail_next(error=tms.errors.StorageFull("full"))
    producer = tms_topic.bus.producer(tms_topic.name)
    with pytest.raises(tms.errors.TimedOut if stored else tms.errors.StorageFull):
        producer.send(b"x")
        producer.flush()
    assert tms_topic.values() == ([b"x"] if stored else [])


def test_a_producer_for_asyncio_is_told_too(
    tms_topic: TopicUnderTest, tms_aio_bus: tms.aio.AsyncBus, tms_faults: Faults
) -> None:
    async def program() -> None:
        tms_faults.fail_next(error=tms.errors.StorageFull("full"))
        async with tms_aio_bus.producer("test") as producer:
            await producer.send(b"x")

    with pytest.raises(tms.errors.StorageFull):
        asyncio.run(program())
    assert tms_topic.values() == []


def test_many_published_at_once_fail_together(
    tms_topic: TopicUnderTest, tms_faults: Faults
) -> None:
    tms_faults.fail_next(error=tms.errors.StorageFull("full"))
    with pytest.raises(tms.errors.StorageFull):
        tms_topic.bus.publish_many("test", [b"x", b"y"])
    assert tms_topic.values() == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_commit_fails_as_told(
    tms_topic: TopicUnderTest, tms_faults: Faults, stored: bool
) -> None:
    if stored:
        tms_faults.lose_answer("commit")
    else:
        tms_faults.fail_next("commit")
    with pytest.raises(tms.TMSError), tms_topic.bus.transaction() as tx:
        tx.send(tms_topic.name, b"x")
    assert tms_topic.values() == ([b"x"] if stored else [])


def test_a_service_that_is_away_answers_nothing_and_comes_back(
    tms_topic: TopicUnderTest, tms_faults: Faults
) -> None:
    bus = tms_topic.bus
    bus.publish(tms_topic.name, b"before")
    with tms_faults.away():
        with pytest.raises(tms.errors.Unavailable):
            bus.publish(tms_topic.name, b"x")
        with pytest.raises(tms.errors.Unavailable):
            tms_topic.values()
        with pytest.raises(tms.errors.Unavailable):
            list(bus.list_topics())
    assert tms_topic.values() == [b"before"]


def test_an_operation_that_there_is_not_is_named(tms_faults: Faults) -> None:
    with pytest.raises(tms.errors.Invalid, match="publish, publish_later, fetch"):
        tms_faults.fail_next("publsh")


def test_asyncio_has_the_same_log_and_the_same_faults(
    tms_topic: TopicUnderTest, tms_aio_bus: tms.aio.AsyncBus, tms_faults: Faults
) -> None:
    async def program() -> list[bytes | None]:
        tms_faults.fail_next(error=tms.errors.StorageFull("full"))
        with pytest.raises(tms.errors.StorageFull):
            await tms_aio_bus.publish("test", b"x")
        await tms_aio_bus.publish("test", b"y")
        return [m.value async for m in tms_aio_bus.consumer("test", stop_at_end=True)]

    assert asyncio.run(program()) == [b"y"] == tms_topic.values()


def test_a_program_reaches_the_same_log_over_http(
    tms_service: ServiceUnderTest, tms_topic: TopicUnderTest, tms_clock: MovableClock
) -> None:
    with tms.connect(tms_service.url) as bus:
        bus.publish("test", b"over HTTP")
        assert tms_topic.values() == [b"over HTTP"]
        bus.publish_later("test", b"later", delay="1h")
        tms_clock.advance("1h")
        assert tms_topic.values() == [b"over HTTP", b"later"]


def test_a_test_costs_five_milliseconds_at_most() -> None:
    def ms() -> float:
        began_s = time.process_time()
        log = MemoryLog()
        log.bus.create_topic("test")
        log.bus.publish("test", b"x")
        assert TopicUnderTest(log.bus, "test").values() == [b"x"]
        log.close()
        return (time.process_time() - began_s) * 1_000

    assert min(ms() for _ in range(TESTS)) <= TEST_MS_MAX  # the minimum: others share the machine


PROGRAM = """
import sys
import pytest

def test_nothing_heavy_is_loaded():
    assert not {"tms.engine.engine", "tms.client", "tms.server"} & set(sys.modules)

@pytest.mark.tms_topic(partitions=2)
@pytest.mark.parametrize("number", range(8))
def test_each_has_its_own(tms_topic, number):
    tms_topic.bus.publish("test", b"%d" % number)
    assert tms_topic.values() == [b"%d" % number]
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of an installation: pytest finds the plugin by its entry point."""
    info = tmp_path / "installed" / "tms_log-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tms-log\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[pytest11]\ntms = tms.testing.plugin\n")
    path = f"{info.parent}:{PYTHON}"
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run(program: str, folder: Path, environment: dict[str, str], *options: str) -> str:
    """The output of pytest for the tests in a program."""
    (folder / "test_program.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-c", "/dev/null"]
    for plugin in ("schemathesis", "hypothesispytest", "anyio", "cacheprovider"):
        command += ["-p", f"no:{plugin}"]  # no program needs them, and loading them takes long
    command += ["test_program.py", *options]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_pytest_finds_the_plugin_by_itself(
    tmp_path: Path, installed: dict[str, str], workers: list[str]
) -> None:
    printed = run(PROGRAM, tmp_path, installed, *workers)
    assert "9 passed" in printed, printed


def test_the_tests_of_the_page_pass(tmp_path: Path, installed: dict[str, str]) -> None:
    page = (PYTHON.parent / "docs" / "testing-programs.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    printed = run(program, tmp_path, installed)
    assert f"{program.count('def test_')} passed" in printed, printed
