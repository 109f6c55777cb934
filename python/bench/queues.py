"""Queues: receive and acknowledge, embedded; the memory of leases, and the time with a backlog.

* Receiving and acknowledging is measured through the whole engine on the disk, with the journal
  written, and synced for each acknowledgement if the topic is `synced`.
* Memory is that of the state alone, by the process's resident size; the cost of an acknowledgement
  is measured on an engine in memory, with few and with many messages waiting, in turns.
"""

import gc
from collections.abc import Callable
from functools import partial

from bench.report import Goal, Report, Sample, interleaved, measured, median, ratio
from bench.targets import TOPIC, Embedded, Setup, values
from tms.block import MESSAGES_MAX, encode
from tms.client.client import Bus
from tms.client.queue import Queue
from tms.engine.engine import Engine
from tms.model.message import NewBlock
from tms.model.queue import OUTSTANDING_MAX, QueueSettings
from tms.model.topic import Durability, TopicName, TopicSettings, parse_durability
from tms.queues.entries import Advanced
from tms.queues.key_order import key_hash, pack
from tms.queues.partition import QueuePartitionState
from tms.runtime.clock import SystemClock
from tms.store.memory import MemoryStore

BATCH = 100
LEASES = 1_000_000
FEW, MANY = 10, 10_000_000
_LEASE_MS = 30_000
_NAME = TopicName.parse(TOPIC)


def run(setup: Setup, report: Report) -> None:
    """Benchmark 9."""
    report.title("Queues")
    _memory(report)
    _backlog(setup, report)
    for durability in ("written", "synced"):
        _pairs(setup, report, durability)


def _pairs(setup: Setup, report: Report, durability: str) -> None:
    count = 10_000 if setup.quick else 50_000
    with setup.directory() as path, Embedded.open(path) as target:
        target.bus.create_topic(TOPIC, durability=parse_durability(durability))
        queue = target.bus.queue(TOPIC, group="bench")

        def pairs(size: int, count: int) -> Sample:
            publish(target.bus, count)
            return measured(lambda: _work(queue, size, count))

        works: dict[str, Callable[[], Sample]] = {
            f"{BATCH} at a time": partial(pairs, BATCH, count),
            "one by one": partial(pairs, 1, count // 20),
        }
        samples = interleaved(works, setup.runs)
    for what, its in samples.items():
        goal = Goal(at_least=20_000) if what.startswith("1") else None
        rate = median(its, lambda s: s.per_s)
        report.line(
            "9", f"receive and ack, {what}, {durability}", rate, "pairs/s", goal, {what: its}
        )


def publish(bus: Bus, count: int) -> None:
    """Publish as many messages of 100 bytes, written."""
    cells = values(100)
    for at in range(0, count, 10_000):
        part = min(10_000, count - at)
        bus.publish_many(TOPIC, (cells * (part // len(cells) + 1))[:part], durability="written")


def _work(queue: Queue, size: int, count: int) -> int:
    done = 0
    while done < count:
        done += queue.ack(queue.receive(size)).done
    return done


def _leased(count: int, run: int = BATCH, ordered: bool = False) -> QueuePartitionState:
    """A state with leased messages, each with a key of its own."""
    state = QueuePartitionState(ordered=ordered)
    for first in range(0, count, run):
        some = min(run, count - first)
        hashes = pack(key_hash(b"%d" % (first + at)) for at in range(some)) if ordered else b""
        until_ms = _LEASE_MS + first
        edit = Advanced(first, first + some, first, [first, some], until_ms, 0, [], hashes)
        state.apply(edit, first)
    return state


def _memory(report: Report) -> None:
    for what, run, ordered in (
        ("leased 100 at a time", BATCH, False),
        ("leased one by one", 1, False),
        ("100 at a time, ordered by key", BATCH, True),
        ("one by one, ordered by key", 1, True),
    ):
        gc.collect()
        before = _resident_mib()
        state = _leased(LEASES, run, ordered)
        taken = _resident_mib() - before
        assert len(state.out) == LEASES
        report.line("9", f"{LEASES:,} outstanding, {what}", taken, "MiB", Goal(at_most=200))
        del state


def _resident_mib() -> float:
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]) / 1_024


def _backlog(setup: Setup, report: Report) -> None:
    """Acknowledge one by one while many messages wait."""
    count = 1_000 if setup.quick else 4_000
    engines = {backlog: _waiting(backlog, setup.runs * count) for backlog in (FEW, MANY)}

    def acks(backlog: int) -> Sample:
        queues = engines[backlog].queues
        tokens = [
            message.token
            for _ in range(count // BATCH)
            for message in queues.receive(_NAME, "bench", BATCH).messages(TOPIC)
        ]
        return measured(lambda: sum(queues.ack(_NAME, "bench", [one]).done for one in tokens))

    try:
        samples = interleaved({f"{n:,} wait": partial(acks, n) for n in engines}, setup.runs)
    finally:
        for engine in engines.values():
            engine.close()
    value = ratio(samples, f"{MANY:,} wait", f"{FEW} wait", lambda s: s.cpu_s / s.messages)
    report.line("9", f"ack: {MANY:,} wait ÷ {FEW}, CPU", value, "×", Goal(at_most=1.3), samples)


def _waiting(backlog: int, count: int) -> Engine:
    """An engine in memory with a queue in which `backlog` messages wait, and `count` before
    them."""
    engine = Engine(MemoryStore(), SystemClock())
    engine.create_topic(_NAME, TopicSettings(durability=Durability.WRITTEN))
    settings = QueueSettings(outstanding_max=OUTSTANDING_MAX)
    engine.queues.declare(_NAME, "bench", settings)
    left = backlog + count
    while left:
        size = min(left, MESSAGES_MAX)
        engine.append(_NAME, [NewBlock(0, encode([b"x"] * size))])
        left -= size
    return engine
