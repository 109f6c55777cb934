"""The ends of a worker at awkward moments: an exit in a handler, a stop while messages come, no
thread for a handler."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.waiting import PATIENCE_S
from tms.client.queue import Queue
from tms.errors import Unavailable


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with tms.open(tmp_path) as bus:
        bus.create_topic("t")
        bus.queue("t", group="workers", lease_s=600, backoff_first_s=0, jitter=0)
        for value in (b"1", b"2", b"3"):
            bus.publish("t", value)
    yield tmp_path


def left(path: Path) -> list[tuple[bytes | None, int]]:
    """The messages that can be received, and the number of their deliveries."""
    with tms.open(path) as bus:
        queue = bus.queue("t", group="workers")
        return sorted((one.value, one.deliveries) for one in queue.receive(9, PATIENCE_S))


def away(*given: Any, **named: Any) -> Any:
    raise Unavailable("The service is away.")


def test_an_exit_in_a_handler_ends_the_worker_though_the_service_is_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "nack", away)
    with tms.open(path) as bus:

        @bus.queue("t", group="workers").worker
        def worker(message: tms.Delivered) -> None:
            worker.stop()  # from now on each call is made once
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            worker.run()


def test_an_exit_in_a_task_ends_the_worker_though_the_service_is_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "nack", away)

    async def work() -> None:
        async with tms.aio.open(path) as bus:
            queue = await bus.queue("t", group="workers")

            @queue.worker()
            async def worker(message: tms.Delivered) -> None:
                worker.stop()
                raise SystemExit(3)

            await worker.run()

    with pytest.raises(SystemExit):
        asyncio.run(work())


def test_a_worker_without_threads_for_its_handlers_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "tms-handler-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with tms.open(path) as bus:
        worker = bus.queue("t", group="workers").worker(print, concurrency=2)
        with pytest.raises(RuntimeError, match="can't start"):
            worker.run()
    assert not any(one.name.startswith("tms-handler") for one in threading.enumerate())


@pytest.mark.parametrize("end", ["stop", "cancel", "cancel once tasks are made"])
def test_messages_that_come_as_a_worker_ends_are_given_back(path: Path, end: str) -> None:
    handled: list[bytes | None] = []

    async def work() -> None:
        async with tms.aio.open(path) as bus:
            queue = await bus.queue("t", group="workers")
            receive = queue.receive

            async def handle(message: tms.Delivered) -> None:
                handled.append(message.value)
                await asyncio.sleep(2 * PATIENCE_S)

            async def receive_late(*given: Any) -> list[tms.Delivered]:
                messages = await receive(*given)
                if end == "stop":
                    worker.stop()
                elif end == "cancel":
                    running.cancel()
                else:  # between two steps of the loop: when tasks are made, and have not begun
                    receiving = asyncio.current_task()
                    assert receiving is not None
                    receiving.add_done_callback(lambda _: running.cancel())
                return messages

            queue.receive = receive_late  # type: ignore[method-assign]
            worker = queue.worker(handle, concurrency=9)
            running = asyncio.create_task(worker.run())
            await asyncio.wait([running], timeout=PATIENCE_S)
            assert running.done() and running.cancelled() is (end != "stop")

    asyncio.run(work())
    begun = [b"1", b"2", b"3"] if "made" in end else []
    assert handled == begun
    assert left(path) == [(value, 1 + len(begun) // 3) for value in (b"1", b"2", b"3")]
