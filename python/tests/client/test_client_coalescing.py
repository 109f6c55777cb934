"""Coalescing of single publishes: publishes that go alone, publishes that share a request, and the
answer of each."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.waiting import PATIENCE_S, until
from tms.block import decode
from tms.client.aio.coalescing import AsyncCoalescing
from tms.client.aio.pool import ChannelPool
from tms.client.batching import KnownTopic
from tms.client.coalescing import GROUP_MESSAGES, Coalescing, SingleFlight, WaitingPublish
from tms.client.delivery import deliver
from tms.client.topic_cache import Lone, TopicCache
from tms.errors import Forbidden, StorageFull, TimedOut, TooLarge, Unavailable
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.message import Appended, NewBlock
from tms.model.topic import TopicName
from tms.runtime.clock import SystemClock
from tms.testing.memory import MemoryLog

NAME = TopicName("default", "orders")
KNOWN = KnownTopic(NAME, 2, 100, float("inf"), Partitioner.CRC32C)
PLACE = (NAME, None)


class Service:
    """Stores blocks when the test lets it; counts requests."""

    def __init__(self) -> None:
        self.requests: list[list[bytes | None]] = []
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.error: BaseException | None = None

    def append(self, name: TopicName, blocks: Sequence[NewBlock], *_: Any) -> list[Appended]:
        self.requests.append([value for one in blocks for value in decode(one.block).values()])
        self.begun.release()
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        at = len(self.requests)
        return [
            Appended(one.partition, at, 0, len(decode(one.block).values()), 0) for one in blocks
        ]


def together(service: Service, timeout_s: float = 10) -> Coalescing:
    transport: Any = service
    return Coalescing(TopicCache(SystemClock()), transport, timeout_s, SystemClock())


def tasks_together(append: Callable[..., Awaitable[list[Appended]]]) -> AsyncCoalescing:
    channel: Any = Mock(append=append)
    return AsyncCoalescing(
        TopicCache(SystemClock()), ChannelPool(lambda: channel, 8), 10, SystemClock()
    )


def lone(value: bytes, partition: int | None = 0) -> Lone:
    return Lone(value, None, None, partition)


def publish_behind(
    service: Service, bus: Coalescing, pool: ThreadPoolExecutor, values: Sequence[bytes]
) -> tuple["Future[MessageId | None]", list["Future[MessageId | None]"]]:
    """A publish in flight, and others that wait behind it."""
    first = pool.submit(bus.publish, KNOWN, lone(b"first"), None, None)
    assert service.begun.acquire(timeout=PATIENCE_S)
    others = [pool.submit(bus.publish, KNOWN, lone(value), None, None) for value in values]
    until(lambda: waiting(bus) == len(values))
    return first, others


def waiting(bus: Coalescing) -> int:
    return sum(map(len, bus._publishes._waiting.values()))


def test_a_publish_that_is_alone_waits_for_nobody() -> None:
    service = Service()
    service.gate.set()
    bus = together(service)
    assert bus.publish(KNOWN, lone(b"a"), None, None) == MessageId(1, 0)
    assert bus.publish(KNOWN, lone(b"b"), None, None) == MessageId(2, 0)
    assert service.requests == [[b"a"], [b"b"]]


def test_what_gathers_behind_a_publish_goes_in_one_request_in_order() -> None:
    service = Service()
    bus = together(service)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(bus.publish, KNOWN, lone(b"first"), None, None)
        assert service.begun.acquire(timeout=PATIENCE_S)
        others = []
        for count, value in enumerate((b"a", b"b", b"c"), start=1):
            others.append(pool.submit(bus.publish, KNOWN, lone(value), None, None))
            until(lambda count=count: waiting(bus) == count)  # type: ignore[misc]
        service.gate.set()
        assert first.result(PATIENCE_S) == MessageId(1, 0)
        assert [one.result(PATIENCE_S) for one in others] == [MessageId(2, i) for i in range(3)]
    assert service.requests == [[b"first"], [b"a", b"b", b"c"]]
    assert not bus._publishes._waiting


def test_a_bad_message_fails_alone() -> None:
    service = Service()
    bus = together(service)
    with ThreadPoolExecutor(3) as pool:
        first, others = publish_behind(service, bus, pool, [b"good"])
        with pytest.raises(TooLarge):
            bus.publish(KNOWN, lone(b"x" * 101), None, None)
        service.gate.set()
        assert first.result(PATIENCE_S) and others[0].result(PATIENCE_S)


def test_a_group_that_fails_is_told_to_each_of_it_with_an_error_of_its_own() -> None:
    service = Service()
    bus = together(service)
    with ThreadPoolExecutor(4) as pool:
        first, others = publish_behind(service, bus, pool, [b"a", b"b"])
        service.error = Forbidden("No.")
        service.gate.set()
        errors = [one.exception(PATIENCE_S) for one in (first, *others)]
        assert all(isinstance(error, Forbidden) for error in errors)
        assert len({id(error) for error in errors}) == 3
        service.error = None
        assert bus.publish(KNOWN, lone(b"after"), None, None)


def test_a_leader_that_is_interrupted_leaves_nobody_waiting() -> None:
    service = Service()
    bus = together(service)
    with ThreadPoolExecutor(4) as pool:
        first, others = publish_behind(service, bus, pool, [b"a", b"b"])
        service.error = KeyboardInterrupt()
        service.gate.set()
        assert isinstance(first.exception(PATIENCE_S), KeyboardInterrupt)
        kinds = {type(one.exception(PATIENCE_S)) for one in others}
        assert kinds == {KeyboardInterrupt, Unavailable}


def test_who_gave_up_waiting_is_neither_sent_nor_made_to_lead() -> None:
    service = Service()
    bus = together(service)
    with ThreadPoolExecutor(4) as pool:
        first, _ = publish_behind(service, bus, pool, [])
        with pytest.raises(TimedOut):
            bus.publish(KNOWN, lone(b"impatient"), None, 0.01)
        patient = pool.submit(bus.publish, KNOWN, lone(b"patient"), None, None)
        until(lambda: waiting(bus) == 2)
        service.gate.set()
        assert first.result(PATIENCE_S) and patient.result(PATIENCE_S)
    assert b"patient" in service.requests[1]
    assert not bus._publishes._waiting


def test_each_durability_has_a_company_of_its_own() -> None:
    service = Service()
    bus = together(service)
    with ThreadPoolExecutor(2) as pool:
        synced = pool.submit(bus.publish, KNOWN, lone(b"synced"), "synced", None)
        assert service.begun.acquire(timeout=PATIENCE_S)
        written = pool.submit(bus.publish, KNOWN, lone(b"written"), "written", None)
        assert service.begun.acquire(timeout=PATIENCE_S)
        service.gate.set()
        assert synced.result(PATIENCE_S) and written.result(PATIENCE_S)


def test_a_group_is_bounded_in_messages_and_bytes() -> None:
    flight: SingleFlight[None] = SingleFlight()
    assert flight.begin(PLACE)
    for _ in range(GROUP_MESSAGES + 1):
        flight.join(PLACE, WaitingPublish(lone(b""), 0, None))
    flight.join(PLACE, WaitingPublish(lone(b""), 8 << 20, None))
    flight.join(PLACE, WaitingPublish(lone(b""), 1, None))
    assert len(flight.next_group(PLACE)) == GROUP_MESSAGES
    assert len(flight.next_group(PLACE)) == 2
    assert len(flight.next_group(PLACE)) == 1
    assert flight.next_group(PLACE) == []
    assert flight.begin(PLACE)


def test_many_threads_each_get_the_id_of_their_own_message() -> None:
    service = Service()
    service.gate.set()
    bus = together(service)

    def publish(number: int) -> tuple[int, MessageId | None]:
        return number, bus.publish(KNOWN, lone(b"%d" % number), None, None)

    with ThreadPoolExecutor(16) as pool:
        answers = dict(pool.map(publish, range(500)))
    for number, id in answers.items():
        assert id is not None
        assert service.requests[id.time_ms - 1][id.sequence] == b"%d" % number


@pytest.mark.usefixtures("event_loop")
def test_tasks_share_requests_and_get_their_own_ids() -> None:
    asyncio.run(_tasks_share())


async def _tasks_share() -> None:
    requests: list[list[bytes | None]] = []

    async def append(name: TopicName, blocks: Sequence[NewBlock], *_: Any) -> list[Appended]:
        requests.append([value for one in blocks for value in decode(one.block).values()])
        at = len(requests)
        await asyncio.sleep(0)
        return [
            Appended(one.partition, at, 0, len(decode(one.block).values()), 0) for one in blocks
        ]

    bus = tasks_together(append)
    values = [b"%d" % number for number in range(100)]
    ids = await asyncio.gather(*(bus.publish(KNOWN, lone(one), None, None) for one in values))
    assert len(requests) == 2
    for value, id in zip(values, ids, strict=True):
        assert id is not None and requests[id.time_ms - 1][id.sequence] == value


@pytest.mark.usefixtures("event_loop")
def test_a_task_that_is_cancelled_does_not_disturb_its_group() -> None:
    asyncio.run(_one_is_cancelled())


async def _one_is_cancelled() -> None:
    release = asyncio.Event()

    async def append(name: TopicName, blocks: Sequence[NewBlock], *_: Any) -> list[Appended]:
        await release.wait()
        return [Appended(one.partition, 1, 0, len(decode(one.block).values()), 0) for one in blocks]

    bus = tasks_together(append)
    tasks = [asyncio.create_task(bus.publish(KNOWN, lone(b"x"), None, None)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    release.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert all(isinstance(done[i], MessageId) for i in (0, 2))


def test_a_publish_whose_first_attempt_failed_is_repeated_within_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first attempt goes straight; its repetition has the same bytes and the remaining time."""
    service = Service()
    service.gate.set()
    attempts: list[tuple[bytes, float]] = []

    def append(name: TopicName, blocks: Sequence[NewBlock], *more: Any) -> list[Appended]:
        attempts.append((bytes(blocks[0].block), more[1]))
        if len(attempts) == 1:
            raise StorageFull("full")
        return service.append(name, blocks)

    def repeated(append: Any, left: Any, clock: Any, left_s: float, failed: Any) -> list[Appended]:
        assert isinstance(failed, StorageFull)
        assert 5 < left_s < 6
        return deliver(append, left, clock, left_s, failed)

    monkeypatch.setattr("tms.client.coalescing.deliver", repeated)
    transport: Any = SimpleNamespace(append=append)
    bus = Coalescing(TopicCache(SystemClock()), transport, 10, SystemClock())
    assert bus.publish(KNOWN, lone(b"v"), None, 6) is not None
    assert len(attempts) == 2 and attempts[0][0] == attempts[1][0]
    assert attempts[0][1] == 2


def test_a_publish_whose_first_attempt_takes_all_its_time_raises_what_that_met() -> None:
    log = MemoryLog()
    log.bus.create_topic("late")
    log.faults.fail_next(error=StorageFull("full"))  # the time-out is over then
    with pytest.raises(StorageFull, match="full"):
        log.bus.publish("late", b"x", timeout_s=1)
    log.close()
