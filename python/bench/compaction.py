"""The cost of compaction for publishers: in one run, compaction works and is held in turns.

* A topic of messages of 1 KiB, a quarter of them the newest of their keys, is compacted in the
  engine in which one producer publishes to another topic; both share one process and one disk.
* `TMS_BENCH_COMPACT_GIB=4` is the amount in the goal; the default is less.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from bench.report import Goal, Report
from bench.targets import TOPIC, Embedded, Setup, values
from tms.model.topic import TopicName
from tms.runtime.background import meanwhile
from tms.runtime.clock import SystemClock
from tms.runtime.throttle import Throttle
from tms.topics.compaction.compaction import CompactionLimits

COMPACTED = "compacted"
MESSAGE_BYTES = 1_024
AT_ONCE = 500
KEPT_BYTES = 512 << 20  # retention of the topic of the producer
WINDOW_S = 1.0
BOTH = (False, True)
Rate = tuple[bool, float]  # True if compaction worked, messages/s
HELD_SELDOM = 10  # after the first turns, compaction is held once in so many
LOSS_MAX = 0.20


def run(setup: Setup, report: Report) -> None:
    """Publishing beside compaction."""
    gib = float(os.environ.get("TMS_BENCH_COMPACT_GIB", "0.125" if setup.quick else "0.25"))
    messages = int(gib * (1 << 30) / MESSAGE_BYTES)
    report.title(f"Publishing 1 KiB while {gib:g} GiB of another topic are compacted")
    with setup.directory() as path, Embedded.open(path) as target:
        target.engine.compaction.stop()  # stop its thread: here the gate lets compaction work
        fill(target, messages)
        beside = Beside(target)
        with beside.publishing():
            rates, took_s = beside.compact(windows=6 if setup.quick else 10)
        stats = target.engine.stats()
        alone, shared = (median(rate for works, rate in rates if works is one) for one in BOTH)
        report.line("compaction", "publish alone", alone, "messages/s")
        report.line("compaction", "publish beside compaction", shared, "messages/s")
        report.line(
            "compaction",
            "publish beside ÷ alone",
            left_of(rates),
            "×",
            Goal(at_least=1 - LOSS_MAX),
        )
        report.line("compaction", "removed", stats.compaction_removed, "messages")
        report.line("compaction", "given back", stats.compaction_reclaimed_bytes / (1 << 20), "MiB")
        report.line("compaction", "working, held times left out", took_s, "s")


def fill(target: Embedded, messages: int) -> None:
    """Messages whose keys come four times each, in sealed segments."""
    bus, engine = target.bus, target.engine
    bus.create_topic(COMPACTED, durability="written", cleanup="compact")
    cells, keys = values(MESSAGE_BYTES), max(1, messages // 4)
    with bus.producer(COMPACTED) as producer:
        for start in range(0, messages, AT_ONCE):
            part = [cells[(start + at) % len(cells)] for at in range(AT_ONCE)]
            names = [b"key-%09d" % ((start + at) % keys) for at in range(AT_ONCE)]
            producer.send_many(part, names)
    name = TopicName.parse(COMPACTED)
    log = engine.topics.partitions.get(name, engine.topics.registry.find(name), 0)
    with log.state.changing():
        log.state.roll(SystemClock().now_ms())


def left_of(rates: list[Rate]) -> float:
    """The median share of the rate that is left beside compaction: each turn in which it is held is
    compared with the turns before and after it, because the machine's speed changes."""
    found = []
    for (before, a), (works, alone), (behind, b) in zip(rates, rates[1:], rates[2:], strict=False):
        if not works and before and behind:
            found.append((a + b) / 2 / alone)
    return median(found)


class Beside:
    """A producer that keeps publishing, and compaction that a gate lets work or holds."""

    def __init__(self, target: Embedded) -> None:
        self._target = target
        self._sent = 0
        self._gate = threading.Event()
        self._ended = threading.Event()
        self._worked_s = 0.0

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publish until the block ends."""
        self._target.bus.create_topic(TOPIC, durability="written", retention_bytes=KEPT_BYTES)
        cells = values(MESSAGE_BYTES)[:AT_ONCE]

        def publish(ended: threading.Event) -> None:
            with self._target.bus.producer(TOPIC) as producer:
                while not ended.is_set():
                    producer.send_many(cells)
                    producer.flush()
                    self._sent += AT_ONCE

        with meanwhile(publish):
            yield

    def compact(self, windows: int) -> tuple[list[Rate], float]:
        """Measure in turns until compaction is done, later with fewer turns in which it is held;
        returns the rates, and the time for which it worked, with its own pauses."""
        rates: list[Rate] = []
        thread = threading.Thread(target=self._compact)
        thread.start()
        time.sleep(WINDOW_S)  # wait until the producer publishes
        number = 0
        while number < 2 * windows or not self._ended.is_set():
            works = number % 2 == 1 if number < 2 * windows else number % HELD_SELDOM != 0
            number += 1
            self._target.engine.maintenance.clean()  # else the published messages fill the disk
            (self._gate.set if works else self._gate.clear)()
            time.sleep(WINDOW_S / 10)
            before, begin_s = self._sent, time.perf_counter()
            time.sleep(WINDOW_S)
            if not (works and self._ended.is_set()):
                rate = (self._sent - before) / (time.perf_counter() - begin_s)
                rates.append((works, rate))
        self._gate.set()
        thread.join()
        return rates, self._worked_s

    def _compact(self) -> None:
        clock, stop = SystemClock(), threading.Event()
        throttle = Throttle(clock, CompactionLimits().share, stop)
        since_s = 0.0

        def pause() -> None:
            nonlocal since_s
            throttle.pause()
            self._worked_s += time.perf_counter() - since_s
            self._gate.wait()
            throttle.begin()
            since_s = time.perf_counter()

        self._gate.wait()
        throttle.begin()
        since_s = time.perf_counter()
        self._target.engine.compaction.run(pause)
        self._ended.set()
