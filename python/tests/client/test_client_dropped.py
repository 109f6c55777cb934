"""Objects that a program drops, or does not close before it ends: their threads and descriptors
end, and accepted messages are sent or reported as lost."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.client.test_client_faults import TOPIC, pretending
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S, until
from tms.client import producer, view
from tms.errors import Invalid

ROOT = Path(__file__).resolve().parents[3]
DROPPED = 20


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        served.create("t", durability="written")
        yield served


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads check often whether they are still needed."""
    monkeypatch.setattr(producer, "IDLE_S", 0.01)
    monkeypatch.setattr(view, "WAIT_S", 0.05)


def _stored(served: Served) -> int:
    with tms.connect(served.url) as bus, bus.consumer("t", stop_at_end=True) as consumer:
        return len(list(consumer))


def _threads() -> int:
    return sum(thread.name.startswith("tms-") for thread in threading.enumerate())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", text, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


# -- a program that ends ---------------------------------------------------------------------------

ENDS = """
import sys, tms
bus = tms.connect(sys.argv[1]) if sys.argv[1].startswith("http") else tms.open(sys.argv[1])
producer = bus.producer("t", linger_ms=60_000)
for number in range(50):
    producer.send(b"%d" % number)
"""


def test_a_program_that_ends_without_closing_a_producer_has_sent_everything(
    served: Served,
) -> None:
    ended = _program(ENDS, served.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert _stored(served) == 50


@pytest.mark.parametrize("durability", ["written", "synced"])
def test_so_has_one_with_an_engine_of_its_own(tmp_path: Path, durability: str) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t", durability=durability)
    ended = _program(ENDS, str(tmp_path / "data"))
    assert (ended.returncode, ended.stderr) == (0, "")
    with tms.open(tmp_path / "data") as bus:
        assert len(list(bus.consumer("t", stop_at_end=True))) == 50


def test_a_program_that_cannot_send_what_it_accepted_says_how_much_that_is() -> None:
    def answer(request: bytes) -> bytes | None:
        return TOPIC if request.startswith(b"GET") else None

    text = ENDS.replace(
        "import sys, tms", "import sys, tms, tms.client.producer as p; p.EXIT_S=0.2"
    )
    with pretending(answer) as url:
        ended = _program(text, url)
    assert ended.returncode == 0
    assert "ResourceWarning" in ended.stderr and "50 messages may not be stored" in ended.stderr
    assert "producer_not_closed" in ended.stderr


# -- dropped objects -------------------------------------------------------------------------------


def test_a_bus_that_is_dropped_ends_at_once(served: Served) -> None:
    gc.collect()
    descriptors = _descriptors()
    gc.disable()
    try:
        for _ in range(DROPPED):
            tms.connect(served.url).publish("t", b"v")
        until(lambda: _descriptors() <= descriptors)
    finally:
        gc.enable()


def test_producers_that_are_dropped_send_what_they_accepted_and_end(served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.publish("t", b"warm")
        threads, descriptors = _threads(), _descriptors()
        with pytest.warns(ResourceWarning, match="not closed"):
            for _ in range(DROPPED):
                bus.producer("t", linger_ms=1).send(b"v")
            until(lambda: (gc.collect(), _threads() <= threads)[1])
        until(lambda: _descriptors() <= descriptors)
        assert _stored(served) == 21


def test_views_that_are_dropped_end(served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.publish("t", b"v", b"k")
        threads, descriptors = _threads(), _descriptors()
        with pytest.warns(ResourceWarning, match="view of t was not closed"):
            for _ in range(DROPPED):
                assert len(bus.view("t")) == 1
            until(lambda: (gc.collect(), _threads() <= threads)[1])
        until(lambda: _descriptors() <= descriptors)


def test_a_producer_that_is_closed_warns_of_nothing(served: Served) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with tms.connect(served.url) as bus:
            producer = bus.producer("t")
            producer.send(b"v")
            producer.close()
            del producer
            with bus.view("t"):
                pass
            gc.collect()


def test_an_asyncio_producer_that_is_dropped_warns_and_ends(served: Served) -> None:
    async def work() -> None:
        async with tms.aio.connect(served.url) as bus:
            await bus.publish("t", b"warm")
            before = _descriptors()
            producer = bus.producer("t")
            await producer.send(b"v")
            await producer.flush()
            assert _descriptors() > before
            del producer
            await asyncio.to_thread(until, lambda: _descriptors() <= before)

    with pytest.warns(ResourceWarning, match="not closed"):
        asyncio.run(work())


def test_mixed_use_without_closing_anything_does_not_grow(served: Served) -> None:
    url = served.url

    def use(number: int) -> None:
        bus = tms.connect(url)
        producer = bus.producer("t")
        producer.send(b"v", b"k")
        producer.flush()
        reading = iter(bus.consumer("t"))
        next(reading)
        member = iter(bus.consumer("t", group=f"g{number}"))
        next(member)
        queue = bus.queue("t", group="q", lease_s=0.1)
        for message in queue:
            queue.ack(message)
            break
        bus.view("t")

    def counts() -> tuple[int, int]:
        gc.collect()
        return _threads(), _descriptors()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        use(0)
        before = counts()
        for number in range(1, 9):
            use(number)
        until(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)))


# -- a consumer in several threads -----------------------------------------------------------------


@pytest.mark.parametrize("group", ["", "g"])
def test_a_consumer_refuses_a_second_thread_and_a_second_iteration(
    served: Served, group: str
) -> None:
    with tms.connect(served.url) as bus:
        bus.publish_many("t", [b"%d" % number for number in range(10)])
        options: dict[str, Any] = {"group": group} if group else {}
        with bus.consumer("t", **options) as consumer:
            first = iter(consumer)
            assert next(first).value == b"0"
            second = iter(consumer)
            next(second)
            with pytest.raises(Invalid, match="one for each thread"):
                next(first)
            waiting = threading.Thread(target=lambda: [*zip(range(10), second, strict=False)])
            waiting.start()
            until(lambda: consumer._reader.iterations.fetches)
            with pytest.raises(Invalid, match="one for each thread"):
                next(iter(consumer))
            consumer.close()
            waiting.join(PATIENCE_S)


@pytest.mark.parametrize("group", ["", "g"])
def test_an_asyncio_consumer_refuses_a_second_task_and_a_second_iteration(
    served: Served, group: str
) -> None:
    async def work() -> None:
        async with tms.aio.connect(served.url) as bus:
            await bus.publish_many("t", [b"0"])
            await bus.publish_many("t", [b"1"])
            options: dict[str, Any] = {"group": group} if group else {}
            async with bus.consumer("t", **options) as consumer:
                first, second = aiter(consumer), aiter(consumer)
                assert (await anext(first)).value == b"0"
                assert (await anext(second)).value == b"1"
                with pytest.raises(Invalid, match="one for each thread or task"):
                    await anext(first)
                waiting = asyncio.create_task(anext(second, None))
                await asyncio.to_thread(until, lambda: consumer._made.iterations.fetches)
                with pytest.raises(Invalid, match="one for each thread or task"):
                    await anext(aiter(consumer))
                await consumer.close()
                assert await waiting is None

    asyncio.run(work())
