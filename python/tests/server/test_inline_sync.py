"""The syncing thread: the event loop for a client that is alone, else worker threads."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import tms
from sim.faulty import FaultyStore
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S, until
from tms.client.queue import Queue
from tms.server import inline_sync
from tms.server.inline_sync import SYNC_BYTES_MAX, SYNCS_MAX
from tms.server.receive import AT_ONCE_MAX
from tms.store.memory import MemoryStore

LOOP = "service"  # the thread of the event loop


class Written:
    """The threads that wrote since the last look."""

    def __init__(self) -> None:
        self._threads: list[str] = []
        self.then: Callable[[], object] = lambda: None

    def __call__(self, operation: str, name: str) -> None:
        if operation == "write":
            self._threads.append(threading.current_thread().name.partition("_")[0])
            self.then()

    def threads(self) -> set[str]:
        threads, self._threads = set(self._threads), []
        return threads


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy, it is not taken for a slow disk."""
    monkeypatch.setattr(inline_sync, "SLOW_S", 60)


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def store(written: Written) -> FaultyStore:
    return FaultyStore(MemoryStore(), written)


@pytest.fixture
def served(store: FaultyStore) -> Iterator[Served]:
    with serving(store) as served:
        yield served


@pytest.fixture
def url(served: Served) -> str:
    return served.url


@pytest.fixture
def bus(url: str) -> Iterator[tms.Bus]:
    with tms.connect(url) as bus:
        bus.create_topic("t", partitions=16, durability="synced")
        for partition in range(16):
            bus.publish("t", b"first", partition=partition)
        commit(bus)  # pointers are reserved for a while
        yield bus


def publish(bus: tms.Bus, count: int = 1, size: int = 1) -> None:
    for _ in range(count):
        bus.publish("t", bytes(size), partition=0)


def commit(bus: tms.Bus, partitions: int = 1) -> None:
    with bus.transaction() as tx:
        for partition in range(partitions):
            tx.send("t", b"x", partition=partition)


def test_who_asks_alone_is_synced_by_the_event_loop(bus: tms.Bus, written: Written) -> None:
    publish(bus)
    written.threads()
    publish(bus, 5)
    assert written.threads() == {LOOP}
    commit(bus)
    assert written.threads() == {LOOP}


def test_what_the_store_does_not_give_at_once_is_never_synced_there(written: Written) -> None:
    with (
        serving(FaultyStore(MemoryStore(shared=True), written)) as served,
        tms.connect(served.url) as bus,
    ):
        bus.create_topic("t")
        written.threads()
        publish(bus, 5)
        assert LOOP not in written.threads()


def test_who_takes_turns_with_others_is_synced_by_threads(
    bus: tms.Bus, url: str, written: Written
) -> None:
    with tms.connect(url) as other:
        publish(other)
        written.threads()
        for _ in range(5):
            publish(bus)
            publish(other)
            commit(bus)
            commit(other)
        assert LOOP not in written.threads()


def test_much_is_synced_by_threads(bus: tms.Bus, written: Written) -> None:
    publish(bus)
    for large in (
        lambda: publish(bus, size=SYNC_BYTES_MAX),
        lambda: commit(bus, partitions=SYNCS_MAX + 1),
        lambda: bus.publish_many("t", [b"x"] * 16, keys=[b"%d" % n for n in range(16)]),
    ):
        written.threads()
        large()
        assert LOOP not in written.threads()


def slowly(bus: tms.Bus, written: Written, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Publish alone to a disk that is slow from then on; the threads that wrote."""
    publish(bus)
    monkeypatch.setattr(inline_sync, "SLOW_S", 0.01)
    written.then = lambda: time.sleep(2 * inline_sync.SLOW_S)
    written.threads()
    publish(bus)
    return written.threads()


def test_a_slow_disk_keeps_the_event_loop_waiting_once(
    bus: tms.Bus, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_sync, "REST_TIMES", 3_000)
    assert slowly(bus, written, monkeypatch) == {LOOP}
    publish(bus, 5)
    assert LOOP not in written.threads()


def test_after_a_rest_it_tries_again(
    bus: tms.Bus, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_sync, "REST_TIMES", 1)
    slowly(bus, written, monkeypatch)

    def in_the_loop() -> bool:
        publish(bus)
        return written.threads() == {LOOP}

    until(in_the_loop)


def test_a_lone_clients_commit_waits_for_no_thread_in_the_event_loop(
    bus: tms.Bus, served: Served
) -> None:
    commit(bus)
    journal = served.service.engine.transactions.manager._journal
    done = threading.Event()

    def go() -> None:
        commit(bus)
        done.set()

    with journal.writing:  # another thread writes the journal
        thread = threading.Thread(target=go)
        thread.start()
        until(lambda: len(served.service.engine.transactions.manager.commits) > 0)
        with served.connect() as client:
            assert client.request("GET", "/livez").status == 200
        assert not done.is_set()
    thread.join(PATIENCE_S)
    assert done.is_set()


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("nth", [1, 2])  # the messages, the commit
def test_a_commit_that_fails_in_the_event_loop_is_not_seen_by_halves(
    stored: bool, nth: int, bus: tms.Bus, store: FaultyStore, served: Served, url: str
) -> None:
    with tms.connect(url, timeout_s=1) as alone:
        publish(alone)
        store.fail_write(nth, stored=stored, refusals=1_000_000)
        with pytest.raises(tms.TMSError):
            commit(alone, partitions=2)
        store.heal()
        until(lambda: not served.service.engine.transactions.open())
        publish(alone, 2)
    values = [message.value for message in bus.consumer("t", stop_at_end=True)]
    assert values.count(b"x") in (1, 3), "the fixture's, and both or none"
    if nth == 1 or not stored:
        assert values.count(b"x") == 1


# -- queues ----------------------------------------------------------------------------------------


@pytest.fixture
def queue(bus: tms.Bus) -> Queue:
    """A queue from which a message was received, so that others were read ahead."""
    queue = bus.queue("t", group="workers")
    bus.publish_many("t", [b"x"] * 1_000, partition=0)
    queue.ack(queue.receive(17, wait_s=0))
    return queue


def work(queue: Queue) -> None:
    """Receive a message, extend it, release it or settle it."""
    for end in (queue.nack, queue.ack):
        messages = queue.receive(1, wait_s=0)
        assert len(messages) == 1
        queue.extend(messages)
        assert end(messages).done == 1


def test_a_worker_that_asks_alone_is_served_by_the_event_loop(
    queue: Queue, written: Written
) -> None:
    queue.ack(queue.receive(1, wait_s=0))
    written.threads()
    queue.ack(queue.receive(1, wait_s=0))
    queue.extend(messages := queue.receive(1, wait_s=0))
    queue.nack(messages, delay_s=60)
    assert written.threads() == {LOOP}


def test_workers_that_take_turns_are_served_by_threads(
    queue: Queue, url: str, written: Written
) -> None:
    with tms.connect(url) as other:
        work(other_queue := other.queue("t", group="workers"))
        written.threads()
        for _ in range(3):
            messages, others = queue.receive(1, wait_s=0), other_queue.receive(1, wait_s=0)
            queue.ack(messages)
            other_queue.ack(others)
        assert LOOP not in written.threads()


def test_many_messages_are_received_by_threads(queue: Queue, written: Written) -> None:
    queue.ack(queue.receive(1, wait_s=0))
    written.threads()
    queue.receive(AT_ONCE_MAX + 1, wait_s=0)
    assert LOOP not in written.threads()


def test_many_tokens_are_settled_by_threads(queue: Queue, written: Written) -> None:
    messages = queue.receive(500, wait_s=0)
    written.threads()
    queue.ack(messages[::2])
    assert LOOP not in written.threads()


def test_what_is_delivered_again_is_read_by_threads(queue: Queue, written: Written) -> None:
    queue.nack(queue.receive(1, wait_s=0), delay_s=0)
    written.threads()
    [message] = queue.receive(1, wait_s=0)
    assert message.deliveries == 2
    assert LOOP not in written.threads()


def test_what_was_not_read_yet_is_read_by_threads(
    bus: tms.Bus, queue: Queue, written: Written
) -> None:
    while queue.receive(1_000, wait_s=0):
        pass
    bus.publish("t", b"new", partition=0)
    publish(bus, 2)
    written.threads()
    queue.receive(1, wait_s=0)
    assert LOOP not in written.threads()


@pytest.mark.parametrize("asked", ["receive", "ack"])
@pytest.mark.parametrize("held", ["lock", "_reading", "_journal"])
def test_the_event_loop_does_not_wait_for_who_is_at_a_queue(
    served: Served, url: str, queue: Queue, held: str, asked: str
) -> None:
    messages = queue.receive(1, wait_s=0)
    opened = served.service.engine.queues.opened()[0]
    lock = opened._journal.turn if held == "_journal" else getattr(opened, held)
    ask = (
        partial(queue.receive, 1, wait_s=0) if asked == "receive" else partial(queue.ack, messages)
    )
    with ThreadPoolExecutor(1) as threads:
        with lock:
            answer = threads.submit(ask)
            time.sleep(0.1)
            with tms.connect(url, timeout_s=10) as other:
                publish(other)
            if held != "_reading":
                assert not answer.done()
        assert answer.result(PATIENCE_S)
