"""A member joins a busy group: the time until its first message, and the pause of the moved
partitions.

* 64 partitions, each with a message every 100 ms that carries its publish time; 15 members in
  processes of their own, which note the age of each message when they get it.
* The 16th joins, again and again. A partition pauses as long as its messages get old: partitions
  that moved to the new member are reported apart from the others.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.queues import Queue
from typing import NamedTuple

import tms
from bench.report import Goal, Report, Sample, interleaved, median, more
from bench.targets import TOPIC, Service, Setup
from bench.threads import in_threads
from tms.client.client import Bus
from tms.runtime.background import meanwhile

PARTITIONS, MEMBERS, PROCESSES = 64, 16, 3
GROUP = "bench"
EVERY_S = 0.1
AROUND_S = 1.0  # observed before and after a member joins
QUIET_S = 20.0


class Got(NamedTuple):
    """A message that a member got; times in ns of the machine's monotonic clock."""

    partition: int
    published_ns: int
    got_ns: int

    @property
    def age_ms(self) -> float:
        return (self.got_ns - self.published_ns) / 1e6


def run(setup: Setup, report: Report) -> None:
    """Benchmark 9."""
    report.title(f"A group with {PARTITIONS} partitions and {MEMBERS} members")
    with setup.directory() as path, Service.start(path) as service:
        service.bus.create_topic(TOPIC, partitions=PARTITIONS, durability="written")
        with _members(service.url) as queue, meanwhile(partial(_publish, service.bus)):
            _until_shared(service.bus, MEMBERS - 1)
            runs = 2 if setup.quick else 5
            joins = interleaved({"join": lambda: _join(service, queue)}, runs)
    its = joins["join"]
    worst = max(one.more["joined_ms"] for one in its)
    goal = Goal(at_most=500)
    report.line("9", "from the first poll to the first message, slowest", worst, "ms", goal)
    for name, what in (
        ("joined_ms", "the same, median"),
        ("moved_ms", "oldest message of a partition that moved"),
        ("others_ms", "oldest message of the other partitions meanwhile"),
        ("before_ms", "oldest message of all partitions before"),
    ):
        report.line("9", what, median(its, more(name)), "ms")


def _join(service: Service, queue: "Queue[Got]") -> Sample:
    time.sleep(AROUND_S)  # earlier joins and leaves are forgotten
    began_s = time.monotonic()
    time.sleep(AROUND_S)
    mine: list[Got] = []
    consumer = service.bus.consumer(
        TOPIC, "latest", group=tms.Group(GROUP, delivery="at-least-once", session_s=30)
    )
    polled_ns = time.monotonic_ns()
    end_ns = polled_ns + int(AROUND_S * 1e9)
    for message in consumer:
        mine.append(_got(message))
        if mine[-1].got_ns > end_ns:
            break
    consumer.close()
    everything = [*_drained(queue), *mine]
    moved = {one.partition for one in mine}
    before = [one for one in everything if began_s * 1e9 < one.got_ns < polled_ns]
    after = [one for one in everything if polled_ns < one.got_ns < end_ns]
    assert len(moved) == PARTITIONS // MEMBERS, f"{len(moved)} partitions came"
    assert {one.partition for one in after} == set(range(PARTITIONS))
    _until_shared(service.bus, MEMBERS - 1)
    return Sample(
        time.monotonic() - began_s,
        0.0,
        len(everything),
        {
            "joined_ms": (mine[0].got_ns - polled_ns) / 1e6,
            "moved_ms": max(one.age_ms for one in after if one.partition in moved),
            "others_ms": max(one.age_ms for one in after if one.partition not in moved),
            "before_ms": max(one.age_ms for one in before),
        },
    )


def _got(message: tms.Message) -> Got:
    return Got(message.partition, int(message.value or b"0"), time.monotonic_ns())


def _drained(queue: "Queue[Got]") -> list[Got]:
    time.sleep(EVERY_S)
    found = []
    while not queue.empty():
        found.append(queue.get())
    return found


def _publish(bus: Bus, ended: threading.Event) -> None:
    """Publish to every partition each `EVERY_S`."""
    with bus.producer(TOPIC) as producer:
        while not ended.wait(EVERY_S):
            for partition in range(PARTITIONS):
                producer.send(b"%d" % time.monotonic_ns(), partition=partition)


@contextmanager
def _members(url: str) -> Iterator["Queue[Got]"]:
    """All members except one, at work."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[Got] = context.Queue()
    each = (MEMBERS - 1) // PROCESSES
    processes = [
        context.Process(target=_work, args=(url, each, queue), daemon=True)
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        yield queue
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(url: str, members: int, queue: "Queue[Got]") -> None:
    def work() -> None:
        for message in bus.consumer(
            TOPIC, group=tms.Group(GROUP, delivery="at-least-once", session_s=30)
        ):
            queue.put(_got(message))

    with tms.connect(url) as bus:
        in_threads([work] * members)


def _until_shared(bus: Bus, members: int) -> None:
    """Wait until so many members share the partitions evenly."""
    few, extra = divmod(PARTITIONS, members)
    deadline_s = time.monotonic() + QUIET_S
    sizes: list[int] = []
    while True:
        try:
            info = bus.describe_group(TOPIC, group=GROUP)
            sizes = sorted(len(one.partitions) for one in info.members)
            if sizes == [few] * (members - extra) + [few + 1] * extra:
                return
        except tms.TMSError:
            pass
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"The members did not come to share the partitions: {sizes}")
        time.sleep(0.05)
