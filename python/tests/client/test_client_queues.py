"""Queues as a program uses them, on an engine in the same process: many workers, order by key,
transactions, and operations on single messages."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest

import tms
from tests.waiting import PATIENCE_S, until
from tms.client.client import Bus
from tms.client.queue import Queue, tokens_of
from tms.errors import Closed, Conflict, Fenced, Invalid, TMSError, TopicNotFound
from tms.model.queue import TokenResult


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with tms.open(tmp_path) as bus:
        bus.create_topic("jobs", durability="written")
        bus.create_topic("out", durability="written")
        yield bus


def values(bus: Bus, topic: str) -> list[bytes | None]:
    return [message.value for message in bus.consumer(topic, stop_at_end=True)]


def together(workers: int, work: Callable[[int], None]) -> None:
    """Run work in so many threads; raises the first error of any."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


# One worker


def test_a_queue_is_made_when_it_is_first_asked_for(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    assert queue.settings.lease_s == 30 and repr(queue) == "<Queue g of jobs>"
    assert bus.queue("jobs", group="g").settings == queue.settings
    with pytest.raises(Conflict):
        bus.queue("jobs", group="g", lease_s=5)
    with pytest.raises(Invalid, match="no setting 'lease'"):
        bus.queue("jobs", group="g", lease=5)
    with pytest.raises(TopicNotFound):
        bus.queue("none", group="g")
    assert queue.update(lease_s=5).settings.lease_s == queue.settings.lease_s == 5
    assert [one.group for one in bus.describe_queues("jobs")] == ["g"]
    queue.delete()
    assert bus.describe_queues("jobs") == []


def test_messages_are_acknowledged_one_by_one_or_together(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    bus.publish_many("jobs", [b"%d" % i for i in range(10)])
    one, *others = queue.receive(10)
    assert queue.ack(one) == TokenResult(1)
    assert queue.ack(others[:3]) == queue.ack([m.token for m in others[3:6]]) == TokenResult(3)
    assert queue.ack(others[6].token).done == 1
    assert queue.describe().leased == 2
    bus.publish("jobs", b"more")
    received = queue.receive_slices(10)
    assert len(received) == 1 and queue.ack(received).done == 1


def test_neighbours_go_as_one_token(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    bus.publish_many("jobs", [b"%d" % i for i in range(10)])
    messages = queue.receive(10)
    assert len(tokens_of(messages)) == 1
    assert len(tokens_of([*messages[:3], *messages[5:], messages[3].token])) == 2
    assert tokens_of(messages[0]) == [messages[0].token] and tokens_of([]) == []
    with pytest.raises(Invalid):
        tokens_of([1])  # type: ignore[list-item]


def test_work_that_raises_gives_its_message_back(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g", backoff_first_s=0)
    bus.publish("jobs", b"1")
    (message,) = queue.receive()
    with pytest.raises(ZeroDivisionError), queue.settling(message):
        raise ZeroDivisionError
    (message,) = queue.receive(1, wait_s=5)
    assert message.deliveries == 2
    with queue.settling(message):
        pass
    assert queue.describe().partitions[0].cursor == 1


def test_a_queue_gives_messages_without_end(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    bus.publish_many("jobs", [b"%d" % i for i in range(20)])
    found = []
    for message in queue:
        found.append(message.value)
        queue.ack(message)
        if len(found) == 20:
            break
    assert found == [b"%d" % i for i in range(20)]


def test_rejected_messages_come_back_with_redrive(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    bus.publish("jobs", b"bad", headers={"h": b"1"})
    queue.reject(queue.receive(), cause="no")
    until(lambda: queue.describe().dead == 1)
    assert queue.describe().dead_letter.topic == "jobs-g-dead"
    assert queue.redrive() == 1
    (again,) = queue.receive()
    assert (again.value, again.headers, again.deliveries) == (b"bad", {"h": b"1"}, 1)


# Waiting


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting workers get nothing unless they are woken."""
    monkeypatch.setattr("tms.queues.queues.LOOK_S", 2 * PATIENCE_S)


@pytest.mark.usefixtures("woken")
def test_a_worker_that_waits_gets_what_is_published(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    found: list[bytes | None] = []
    thread = threading.Thread(
        target=lambda: found.extend(m.value for m in queue.receive(1, 2 * PATIENCE_S))
    )
    thread.start()
    (opened,) = bus._transport.queues.opened()  # type: ignore[attr-defined]
    until(lambda: len(opened.waiters.waiting) == 1)
    bus.publish("jobs", b"1")
    thread.join(PATIENCE_S)
    assert found == [b"1"]


@pytest.mark.usefixtures("woken")
@pytest.mark.parametrize("why", ["lease", "nack", "transaction", "key"])
def test_a_worker_that_waits_gets_what_becomes_ready(bus: Bus, why: str) -> None:
    ordered = "key" if why == "key" else ""
    queue = bus.queue("jobs", group="g", lease_s=0.2 if why == "lease" else 30, ordered_by=ordered)
    if why == "transaction":
        tx = bus.transaction()
        tx.send("jobs", b"1")
        release: Callable[[], object] = tx.commit
    else:
        bus.publish_many("jobs", [b"1", b"1"], keys=[b"k", b"k"])
        messages = queue.receive(2)
        release = {
            "lease": lambda: None,
            "nack": lambda: queue.nack(messages, 0.05),
            "key": lambda: queue.ack(messages),
        }[why]
    found: list[bytes | None] = []
    thread = threading.Thread(
        target=lambda: found.extend(m.value for m in queue.receive(1, 2 * PATIENCE_S))
    )
    thread.start()
    (opened,) = bus._transport.queues.opened()  # type: ignore[attr-defined]
    until(lambda: len(opened.waiters.waiting) == 1 or not thread.is_alive())
    release()
    thread.join(PATIENCE_S)
    assert found == [b"1"]


def test_every_worker_that_waits_is_served_although_the_others_do_not_come_back(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.queues.queues.LOOK_S", 60.0)
    queue = bus.queue("jobs", group="g")
    found: list[bytes | None] = []
    threads = [
        threading.Thread(target=lambda: found.extend(m.value for m in queue.receive(2, 30)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    (opened,) = bus._transport.queues.opened()  # type: ignore[attr-defined]
    until(lambda: len(opened.waiters.waiting) == 4)
    for number in range(4):
        bus.publish("jobs", b"%d" % number)
        until(lambda number=number: len(found) == number + 1)  # type: ignore[misc]
    assert sorted(v or b"" for v in found) == [b"0", b"1", b"2", b"3"]


def test_a_waiting_receive_wakes_for_a_lease_that_ends_sooner(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.queues.queues.LOOK_S", 60.0)
    queue = bus.queue("jobs", group="g", lease_s=60)
    bus._transport.queues.stop()  # type: ignore[attr-defined]  # nothing runs in the background
    bus.publish("jobs", b"1")
    messages = queue.receive()
    found: list[bytes | None] = []
    thread = threading.Thread(target=lambda: found.extend(m.value for m in queue.receive(2, 30)))
    thread.start()
    (opened,) = bus._transport.queues.opened()  # type: ignore[attr-defined]
    until(lambda: len(opened.waiters.waiting) == 1)
    queue.nack(messages, 0.05)
    thread.join(PATIENCE_S)
    assert found == [b"1"]


def test_a_worker_that_waits_is_told_when_the_bus_closes(tmp_path: Path) -> None:
    bus = tms.open(tmp_path)
    bus.create_topic("jobs")
    queue = bus.queue("jobs", group="g")
    errors: list[TMSError] = []

    def wait() -> None:
        try:
            queue.receive(1, 60)
        except TMSError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    (opened,) = bus._transport.queues.opened()  # type: ignore[attr-defined]
    until(lambda: len(opened.waiters.waiting) == 1)
    bus.close()
    thread.join(PATIENCE_S)
    assert isinstance(errors[0], Closed)


# Many workers


def test_32_workers_share_a_partition_while_a_reader_reads_it_in_order(bus: Bus) -> None:
    jobs = 10_000
    queue = bus.queue("jobs", group="g")
    acked: list[list[bytes | None]] = [[] for _ in range(32)]
    done = Counter[str]()
    read: list[bytes | None] = []

    def work(number: int) -> None:
        if number == 32:
            for part in range(0, jobs, 500):
                bus.publish_many("jobs", [b"%d" % i for i in range(part, part + 500)])
            return
        if number == 33:
            read.extend(m.value for m in islice(bus.consumer("jobs"), jobs))
            return
        while done["all"] < jobs:
            messages = queue.receive(1 + number, wait_s=0.2)
            assert queue.ack(messages).done == len(messages) if messages else True
            acked[number] += [m.value for m in messages]
            done["all"] = sum(map(len, acked))

    together(34, work)
    everything = [value for some in acked for value in some]
    assert sorted(everything, key=lambda v: int(v or 0)) == [b"%d" % i for i in range(jobs)]
    assert read == [b"%d" % i for i in range(jobs)]
    assert sum(1 for some in acked if some) > 16
    info = queue.describe()
    assert (info.backlog, info.leased, info.redelivered) == (0, 0, 0)


def test_order_by_key_holds_with_many_workers_and_failures(bus: Bus) -> None:
    keys, rounds = 100, 12
    queue = bus.queue(
        "jobs",
        group="g",
        ordered_by="key",
        backoff_first_s=0.01,
        backoff_max_s=0.01,
        deliveries_max=0,
    )
    acked: dict[bytes, list[int]] = defaultdict(list)
    lock = threading.Lock()
    for number in range(rounds):
        bus.publish_many(
            "jobs", [b"%d" % number] * keys, keys=[b"key %d" % key for key in range(keys)]
        )

    def work(number: int) -> None:
        random = Random(number)
        while sum(map(len, acked.values())) < keys * rounds:
            for message in queue.receive(5, wait_s=0.2):
                chance = random.random()
                if chance < 0.15:
                    queue.nack(message)
                elif chance < 0.2:
                    queue.extend(message, 0.05)  # the message is then forgotten
                else:
                    with lock:
                        if queue.ack(message).done:
                            acked[message.key or b""].append(int(message.value or b""))

    together(16, work)
    assert len(acked) == keys
    assert all(numbers == list(range(rounds)) for numbers in acked.values())


def test_a_transaction_settles_messages_with_its_outputs_exactly_once(bus: Bus) -> None:
    jobs = 120
    queue = bus.queue("jobs", group="g", lease_s=0.3, backoff_first_s=0, deliveries_max=0)
    bus.publish_many("jobs", [b"%d" % i for i in range(jobs)])
    fenced = Counter[str]()

    def work(number: int) -> None:
        random = Random(number)
        while queue.describe().partitions[0].cursor < jobs:
            messages = queue.receive(3, wait_s=0.1)
            if not messages or random.random() < 0.2:
                continue  # the worker has died: its leases end
            if random.random() < 0.2:
                until(lambda: queue.describe().ready > 0 or queue.describe().leased == 0)
            try:
                with bus.transaction() as tx:
                    for message in messages:
                        tx.send("out", message.value)
                    tx.ack(queue, messages)
            except Fenced:
                fenced["all"] += 1

    together(8, work)
    assert sorted(values(bus, "out"), key=lambda v: int(v or 0)) == [b"%d" % i for i in range(jobs)]


def test_a_transaction_that_is_left_settles_nothing(bus: Bus) -> None:
    queue = bus.queue("jobs", group="g")
    bus.publish("jobs", b"1")
    messages = queue.receive()
    with pytest.raises(ZeroDivisionError), bus.transaction() as tx:
        tx.ack(queue, messages)
        raise ZeroDivisionError
    assert queue.ack(messages).done == 1
    with pytest.raises(Fenced), bus.transaction() as tx:
        tx.ack(queue, messages)


def test_a_queue_can_be_closed_over(bus: Bus) -> None:
    queue: Queue = bus.queue("jobs", group="g")
    bus.close()
    with pytest.raises(Closed):
        queue.receive()
