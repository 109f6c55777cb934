"""Workers: the outcomes of messages, their stop, and the failures that they survive; also with
asyncio."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity

import tms
import tms.aio
from tests.client.test_surviving import AFTER, BEFORE, Restarted, away
from tests.gate_kit import in_thread
from tests.waiting import PATIENCE_S, until
from tms.errors import Conflict, Invalid, QueueNotFound, TimedOut

IMPATIENT_S = 0.3  # so that an outage soon takes longer than all time-outs
_patient = tenacity.retry(  # for calls that no worker repeats: a slow machine may take longer
    retry=tenacity.retry_if_exception_type(TimedOut),
    stop=tenacity.stop_after_delay(PATIENCE_S),
    reraise=True,
)
Work = Callable[[tms.Delivered], None]


class Kind:
    """The way in which a test runs a worker: in threads, or in tasks of a loop in a thread."""

    def __init__(self, url: str, asynchronous: bool, **settings: Any) -> None:
        self.url = url
        self.asynchronous = asynchronous
        self.settings = settings
        self.stop: Callable[[], object] = lambda: None

    def work(self, handle: Work, concurrency: int = 1, drain_s: float = PATIENCE_S) -> None:
        """Work until `stop`."""
        if self.asynchronous:
            asyncio.run(self._work_on_a_loop(handle, concurrency, drain_s))
            return
        with tms.connect(self.url, timeout_s=IMPATIENT_S) as bus:
            queue = _patient(bus.queue)("t", group="workers", **self.settings)
            worker = queue.worker(handle, concurrency=concurrency, drain_s=drain_s)
            self.stop = worker.stop
            worker.run()

    async def _work_on_a_loop(self, handle: Work, concurrency: int, drain_s: float) -> None:
        async with tms.aio.connect(self.url, timeout_s=IMPATIENT_S) as bus:
            queue = await _patient(bus.queue)("t", group="workers", **self.settings)

            @queue.worker(concurrency=concurrency, drain_s=drain_s)
            async def worker(message: tms.Delivered) -> None:
                await asyncio.to_thread(handle, message)

            loop = asyncio.get_running_loop()
            self.stop = lambda: loop.call_soon_threadsafe(worker.stop)
            await worker.run()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Restarted]:
    with Restarted(tmp_path / "data") as running:
        with tms.connect(running.url) as bus:
            bus.create_topic("t")
        yield running


@pytest.fixture(params=[False, True], ids=["threads", "tasks"])
def kind(request: pytest.FixtureRequest, service: Restarted) -> Kind:
    return Kind(service.url, request.param)


def described(service: Restarted) -> tms.QueueInfo:
    with tms.connect(service.url) as bus:
        return bus.queue("t", group="workers").describe()


def is_empty(service: Restarted) -> bool:
    info = described(service)
    return info.backlog == info.leased == info.ready == info.delayed == 0


@pytest.mark.parametrize("concurrency", [1, 4])
def test_each_message_is_handled_once_and_acked(
    kind: Kind, service: Restarted, concurrency: int
) -> None:
    service.publish([*BEFORE, *AFTER])
    seen: list[bytes | None] = []
    working = in_thread(lambda: kind.work(lambda one: seen.append(one.value), concurrency))
    until(lambda: len(seen) == 40)
    until(lambda: is_empty(service))
    kind.stop()
    working.result(PATIENCE_S)
    assert sorted(seen, key=str) == sorted([*BEFORE, *AFTER], key=str)


def test_as_many_are_handled_at_once_as_were_asked_for(kind: Kind, service: Restarted) -> None:
    service.publish(BEFORE)
    together = threading.Barrier(3)
    working = in_thread(lambda: kind.work(lambda _: _wait(together), 3))
    until(lambda: described(service).backlog <= len(BEFORE) - 3)
    kind.stop()
    together.abort()
    working.result(PATIENCE_S)


def _wait(together: threading.Barrier) -> None:
    try:
        together.wait(PATIENCE_S)
    except threading.BrokenBarrierError:
        return


def test_a_handler_that_raises_gives_back_and_in_the_end_there_is_a_dead_letter(
    kind: Kind, service: Restarted
) -> None:
    kind.settings = {"deliveries_max": 2, "backoff_first_s": 0}
    service.publish([b"bad", b"good"])
    tries: list[tuple[bytes | None, int]] = []

    def handle(message: tms.Delivered) -> None:
        tries.append((message.value, message.deliveries))
        if message.value == b"bad":
            raise ValueError("no image")

    working = in_thread(lambda: kind.work(handle))
    until(lambda: len(tries) == 3 and described(service).dead == 1)
    kind.stop()
    working.result(PATIENCE_S)
    assert sorted(tries, key=str) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
    with tms.connect(service.url) as bus:
        [letter] = bus.consumer("t-workers-dead", stop_at_end=True)
    assert letter.headers["tms-dead-cause"] == b"ValueError: no image"


def test_a_slow_handler_keeps_its_lease(kind: Kind, service: Restarted) -> None:
    kind.settings = {"lease_s": 1}
    service.publish([b"slow"])
    tries: list[int] = []
    done = threading.Event()

    def handle(message: tms.Delivered) -> None:
        tries.append(message.deliveries)
        assert done.wait(PATIENCE_S)

    working = in_thread(lambda: kind.work(handle))
    until(lambda: bool(tries))
    began_s = time.monotonic()
    with tms.connect(service.url) as bus:
        other = bus.queue("t", group="workers")
        while time.monotonic() < began_s + 1.5:
            assert other.receive(wait_s=0.1) == []
    done.set()
    until(lambda: is_empty(service))
    kind.stop()
    working.result(PATIENCE_S)
    assert tries == [1]


def test_who_stops_finishes_what_is_begun_and_gives_back_the_rest(
    kind: Kind, service: Restarted
) -> None:
    service.publish(BEFORE)
    begun, done = threading.Event(), threading.Event()
    seen: list[bytes | None] = []

    def handle(message: tms.Delivered) -> None:
        seen.append(message.value)
        if len(seen) == 10:  # it leases ahead by now
            begun.set()
            assert done.wait(PATIENCE_S)

    working = in_thread(lambda: kind.work(handle))
    assert begun.wait(PATIENCE_S)
    kind.stop()
    done.set()
    working.result(PATIENCE_S)
    info = described(service)
    assert info.leased == 0
    assert info.backlog + info.ready == len(BEFORE) - len(seen) == 10


def test_a_handler_that_does_not_finish_is_not_waited_for(
    kind: Kind, service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    service.publish([b"stuck"])
    begun, done = threading.Event(), threading.Event()

    def handle(_: tms.Delivered) -> None:
        begun.set()
        done.wait(PATIENCE_S)

    working = in_thread(lambda: kind.work(handle, drain_s=0))
    assert begun.wait(PATIENCE_S)
    kind.stop()
    until(lambda: "worker_not_drained" in caplog.text)
    if kind.asynchronous:  # the loop ends when its threads have
        done.set()
    working.result(PATIENCE_S)
    done.set()


def test_a_worker_survives_an_outage(
    kind: Kind, service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    kind.settings = {"lease_s": 60}
    service.publish(BEFORE)
    seen: list[bytes | None] = []
    down = threading.Event()

    def handle(message: tms.Delivered) -> None:
        seen.append(message.value)
        if len(seen) == len(BEFORE):
            service.stop()  # its ack meets the outage
            down.set()

    working = in_thread(lambda: kind.work(handle))
    assert down.wait(PATIENCE_S)
    until(lambda: away(caplog))
    service.start()
    service.publish(AFTER)
    until(lambda: len(seen) >= 40)
    until(lambda: is_empty(service))
    kind.stop()
    working.result(PATIENCE_S)
    assert sorted(seen, key=str) == sorted([*BEFORE, *AFTER], key=str)


def test_a_worker_is_stopped_during_an_outage(
    kind: Kind, service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    service.publish([b"1"])
    seen: list[bytes | None] = []
    working = in_thread(lambda: kind.work(lambda one: seen.append(one.value)))
    until(lambda: bool(seen) and is_empty(service))
    service.stop()
    until(lambda: away(caplog))
    kind.stop()
    working.result(PATIENCE_S)


def test_a_queue_that_is_deleted_ends_its_worker_with_an_error(
    kind: Kind, service: Restarted
) -> None:
    service.publish([b"1"])
    seen: list[bytes | None] = []
    working = in_thread(lambda: kind.work(lambda one: seen.append(one.value)))
    until(lambda: bool(seen) and is_empty(service))
    with tms.connect(service.url) as bus:
        bus.queue("t", group="workers").delete()
    with pytest.raises(QueueNotFound):
        working.result(PATIENCE_S)


def test_a_worker_is_a_context_manager_and_may_be_called(service: Restarted) -> None:
    service.publish([b"1", b"2"])
    seen: list[bytes | None] = []
    with tms.connect(service.url) as bus:
        queue = bus.queue("t", group="workers")

        @queue.worker(concurrency=2)
        def worker(message: tms.Delivered) -> None:
            seen.append(message.value)

        [message] = queue.receive()
        worker(message)
        assert seen == [b"1"]
        queue.ack(message)
        with worker:
            until(lambda: seen == [b"1", b"2"])
        with pytest.raises(Conflict, match="Make another"):
            worker.run()


def test_what_a_handler_has_settled_is_left_so(service: Restarted) -> None:
    service.publish([b"later"])
    with tms.connect(service.url) as bus:
        queue = bus.queue("t", group="workers")
        tries: list[int] = []

        def handle(message: tms.Delivered) -> None:
            tries.append(message.deliveries)
            if message.deliveries == 1:
                queue.nack(message, delay_s=0)

        with queue.worker(handle):
            until(lambda: tries == [1, 2])
        assert is_empty(service)


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"concurrency": 1_001}, {"drain_s": -1}, {"handler": 5}]
)
def test_what_a_worker_is_asked_for_is_checked(service: Restarted, wrong: dict[str, Any]) -> None:
    with tms.connect(service.url) as bus, pytest.raises(Invalid):
        bus.queue("t", group="workers").worker(**{"handler": print, **wrong})


PROGRAM = """
import asyncio, sys, time, tms, tms.aio
url, kind = sys.argv[1:]

def handle(message):
    print(message.value.decode(), flush=True)
    time.sleep(0.3)

async def work():
    async with tms.aio.connect(url) as bus:
        queue = await bus.queue("t", group="workers")
        async def on_loop(message):
            await asyncio.to_thread(handle, message)
        await queue.worker(on_loop).run()

if kind == "threads":
    with tms.connect(url) as bus:
        bus.queue("t", group="workers").worker(handle).run()
else:
    asyncio.run(work())
print("drained", flush=True)
"""


@pytest.mark.parametrize("kind_name", ["threads", "tasks"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(service: Restarted, kind_name: str, sent: signal.Signals) -> None:
    service.publish(BEFORE)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, service.url, kind_name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(tms.__file__).parents[1])},
    )
    assert program.stdout is not None
    first = program.stdout.readline()
    program.send_signal(sent)
    rest, _ = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0
    handled = [first.strip(), *rest.split()]
    assert handled.pop() == "drained"
    info = described(service)
    assert info.leased == 0
    assert info.backlog + info.ready == len(BEFORE) - len(handled)
