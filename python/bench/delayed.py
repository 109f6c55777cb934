"""Delayed messages: their lateness as a consumer sees it, over a restart and beside publishers, and
their rate when all are due at once.

The goal's million takes a minute and a half: `--only delayed_million`.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.report import Goal, Report, Sample, interleaved, measured, median, more, percentile
from bench.targets import TOPIC, Embedded, Setup, values
from tms.client.client import Bus
from tms.client.cursor import Batch
from tms.engine.engine import Engine
from tms.runtime.background import meanwhile
from tms.runtime.clock import SystemClock
from tms.store.leveldb.store import LevelDBStore

TOGETHER = 10  # messages of a request, all due at the same time
PUBLISHED_PER_S = 20_000  # by other publishers
QUICK, MANY, MILLION = 30_000, 100_000, 1_000_000
P50, P99, LATEST, EARLY, LOST = "p50", "p99", "latest", "early", "lost"


def run(setup: Setup, report: Report) -> None:
    """The usual amounts."""
    count = QUICK if setup.quick else MANY
    _spread(setup, report, count, count / 10_000)
    _at_once(setup, report, count)


def million(setup: Setup, report: Report) -> None:
    """The amounts of the goal."""
    _spread(setup, report, MILLION, 60)
    _at_once(setup, report, MILLION)


def _spread(setup: Setup, report: Report, count: int, seconds: float) -> None:
    report.title(f"{count:,} delayed messages of 100 bytes, due over {seconds:g} s, one restart")
    samples = interleaved({"spread": partial(_late, setup, count, seconds)}, 1)
    found = samples["spread"]
    for what, unit, goal in (
        (P50, "ms late", None),
        (P99, "ms late", Goal(at_most=1_000)),
        (LATEST, "ms late", None),
        (EARLY, "messages", Goal(at_most=0)),
        (LOST, "messages", Goal(at_most=0)),
    ):
        report.line("delayed", what, median(found, more(what)), unit, goal, samples)


def _at_once(setup: Setup, report: Report, count: int) -> None:
    report.title(f"{count:,} delayed messages of 100 bytes, each published by itself, due at once")
    samples = interleaved({"at once": partial(_together, setup, count)}, 1)
    rate = median(samples["at once"], lambda sample: sample.per_s)
    report.line("delayed", "delivered", rate, "messages/s", None, samples)


def _late(setup: Setup, count: int, seconds: float) -> Sample:
    """Store all messages before the first is due; the engine is opened anew halfway."""
    with setup.directory() as path:
        with Embedded.open(path) as target:
            target.bus.create_topic(TOPIC, partitions=4, durability="written")
            began_ms = _store_spread(target.bus, count, seconds)
        found: list[tuple[float, Batch]] = []
        sample = measured(lambda: _follow(path, began_ms, seconds, count, found))
    late: list[float] = []
    seen: set[bytes] = set()
    for at_ms, batch in found:
        for value in batch.values():
            if value is not None and value.startswith(b"{"):
                continue  # a message of the other publishers
            due, _, number = (value or b"").split(b" ")[:3]
            late.append(at_ms - int(due))
            seen.add(number)
    return Sample(
        sample.wall_s,
        sample.cpu_s,
        len(late),
        {
            **sample.more,
            P50: percentile(late, 50),
            P99: percentile(late, 99),
            LATEST: max(late),
            EARLY: sum(one < 0 for one in late),
            LOST: count - len(seen) + len(late) - len(seen),
        },
    )


def _store_spread(bus: Bus, count: int, seconds: float) -> int:
    """Store messages at random times of the period; returns its begin, ms."""
    store_s = 3 + count / 20_000  # time to store all before the first is due
    began_ms = int((time.time() + store_s) * 1_000)
    seeded = random.Random(count)

    def store(first: int) -> None:
        due_ms = began_ms + seeded.randrange(int(seconds * 1_000))
        made = [b"%d due %d " % (due_ms, first + at) + bytes(70) for at in range(TOGETHER)]
        bus.publish_later_many(TOPIC, made, at=due_ms, durability="written")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(store, range(0, count, TOGETHER)))
    return began_ms


def _follow(
    path: Path, began_ms: int, seconds: float, count: int, found: list[tuple[float, Batch]]
) -> int:
    """Consume until every message is there, at most a minute longer than expected; two lives of the
    engine share the period."""
    start: object = "earliest"
    for until_s in (began_ms / 1_000 + seconds / 2, began_ms / 1_000 + seconds + 60):
        with Embedded.open(path) as target, meanwhile(partial(_publish, target.bus)):
            while time.time() < until_s:
                page = target.bus.fetch(TOPIC, start, wait_s=0.2)  # type: ignore[arg-type]
                at_ms = time.time() * 1_000
                found += [(at_ms, batch) for batch in page.batches]
                start = page.next
                if target.bus.describe_delayed(TOPIC).next_due_ms is None and not page.batches:
                    return count
    return count


def _publish(bus: Bus, ended: threading.Event) -> None:
    """Publish other messages."""
    made = values(100, 200)
    while not ended.wait(len(made) / PUBLISHED_PER_S):
        bus.publish_many(TOPIC, made)


class _HeldClock(SystemClock):
    """The machine's clock, held back until release, so that all messages are stored when they
    become due."""

    behind_ms = 1_800_000

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


def _together(setup: Setup, count: int) -> Sample:
    made, clock = values(100), _HeldClock()
    with setup.directory() as path:
        engine = Engine(LevelDBStore(path, create=True, clock=clock), clock)
        with Bus(engine, clock=clock) as bus:
            bus.create_topic(TOPIC, partitions=4, durability="written")
            due_ms = clock.now_ms() + clock.behind_ms

            def store(number: int) -> None:
                value = made[number % len(made)]
                bus.publish_later(TOPIC, value, at=due_ms, durability="written")

            with ThreadPoolExecutor(2) as threads:
                list(threads.map(store, range(count)))
            clock.behind_ms = 0
            sample = measured(engine.delayed.move)
            assert sample.messages == count
            return sample
