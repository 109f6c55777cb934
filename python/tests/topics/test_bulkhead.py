"""Partitions that can be written are written while others wait for a failing store."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from sim.faulty import FaultyStore
from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.errors import StorageUnavailable
from tms.log.pending import PendingAppend
from tms.model import keys
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.runtime.clock import SystemClock
from tms.store.memory import MemoryStore
from tms.topics.bulkhead import Bulkhead

THREADS = 4
ILL, WELL = TopicName.parse("ill"), TopicName.parse("well")


class Outage:
    """A `before` of a store: from `begin` on, writes of a topic fail, and once `hangs` is set only
    when it ends."""

    def __init__(self) -> None:
        self.prefix = ""
        self.hangs = False
        self.over = threading.Event()

    def __call__(self, operation: str, name: str) -> None:
        if operation == "write" and self.prefix and name.startswith(self.prefix):
            if self.hangs:
                self.over.wait(PATIENCE_S)
            raise StorageUnavailable("The region is away.")


def submit(engine: Engine, name: TopicName, partition: int) -> PendingAppend:
    """As the event loop of the service does: this thread writes nothing."""
    block = NewBlock(partition, encode([b"1"]))
    return engine.topics.publisher.submit(name, [block], Durability.WRITTEN, Durability.NONE)


def test_partitions_whose_writes_fail_leave_threads_to_the_others() -> None:
    outage = Outage()
    store = FaultyStore(MemoryStore(), outage)
    engine = Engine(store, SystemClock(), EngineConfig(threads=THREADS))
    try:
        for name in (ILL, WELL):
            engine.create_topic(name, TopicSettings(2 * THREADS))
        outage.prefix = keys.topic_prefix(engine.topics.registry.find(ILL).uid)
        for partition in range(2 * THREADS):
            with pytest.raises(StorageUnavailable):
                submit(engine, ILL, partition).result(PATIENCE_S)
        outage.hangs = True
        hanging = [submit(engine, ILL, partition) for partition in range(2 * THREADS)]
        for partition in range(2 * THREADS):
            submit(engine, WELL, partition).result(PATIENCE_S / 4)
        outage.over.set()
        for pending in hanging:
            with pytest.raises(StorageUnavailable):
                pending.result(PATIENCE_S)
    finally:
        outage.over.set()
        outage.prefix = ""
        engine.close()


def test_a_bulkhead_runs_everything_in_order_with_few_threads_at_a_time() -> None:
    running, most, done = 0, 0, list[int]()
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
            done.append(number)
        if number % 3 == 0:
            raise ZeroDivisionError

    with ThreadPoolExecutor(THREADS) as threads:
        alone = Bulkhead(threads, 1)
        for number in range(100):
            alone.submit(lambda number=number: work(number))  # type: ignore[misc]
        until(lambda: len(done) == 100)
    assert done == [*range(100)] and most == 1


def test_work_that_waits_when_the_threads_are_shut_down_is_done() -> None:
    began, go_on, done = threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    threads = ThreadPoolExecutor(1)
    alone = Bulkhead(threads, 1)
    alone.submit(first)
    assert began.wait(PATIENCE_S)
    alone.submit(lambda: done.append(1))
    threads.shutdown(wait=False)
    go_on.set()
    threads.shutdown(wait=True)
    assert done == [1]
    with pytest.raises(RuntimeError):
        alone.submit(lambda: done.append(2))
    with pytest.raises(RuntimeError):
        alone.submit(lambda: done.append(3))


class Refusing(Executor):
    """An executor that can start no thread. As `ThreadPoolExecutor`, it begins later what it has
    refused. `meanwhile` is called before it refuses."""

    def __init__(self) -> None:
        self.refuses = True
        self.taken: list[Callable[[], object]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Any:
        self.taken.append(partial(work, *given, **named))
        if self.refuses:
            self.meanwhile()
            raise RuntimeError("can't start new thread")

    def begin(self) -> None:
        """Run everything, as soon as a thread is free."""
        while self.taken:
            self.taken.pop(0)()


def test_work_that_is_refused_never_runs_and_leaves_the_bound_as_it_was() -> None:
    threads, done = Refusing(), list[int]()
    alone = Bulkhead(threads, 1)
    with pytest.raises(RuntimeError):
        alone.submit(lambda: done.append(1))
    threads.refuses = False
    threads.begin()
    assert done == []
    for number in (2, 3, 4):
        alone.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert len(threads.taken) == 1, "one at a time"
    threads.begin()
    assert done == [2, 3, 4]


def test_work_that_runs_although_it_is_refused_is_accepted() -> None:
    threads, done = Refusing(), list[int]()
    threads.meanwhile = threads.begin
    alone = Bulkhead(threads, 1)
    for number in (1, 2):
        alone.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [1, 2]


def test_work_that_waits_behind_a_refused_one_runs() -> None:
    threads, done = Refusing(), list[int]()
    alone = Bulkhead(threads, 1)
    threads.meanwhile = lambda: alone.submit(lambda: done.append(2))
    with pytest.raises(RuntimeError):
        alone.submit(lambda: done.append(1))
    threads.begin()
    assert done == [2]
