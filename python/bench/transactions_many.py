"""Transactions in large numbers: 10,000 open, 100,000 invalid; and the time until a commit is
visible.

* The variants run in turns in one process, on an engine in memory: the numbers measure TMS itself,
  not the disk.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench.report import (
    Goal,
    Report,
    Sample,
    interleaved,
    measured,
    median,
    more,
    percentile,
    ratio,
)
from bench.targets import TOPIC, Service, Setup
from tms.block import encode
from tms.engine.engine import Engine
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock
from tms.runtime.clock import SystemClock
from tms.store.memory import MemoryStore
from tms.transactions.state import TransactionState

FEW, MANY, INVALID = 10, 10_000, 100_000
_NAME = TopicName.parse(TOPIC)


def run(setup: Setup, report: Report) -> None:
    """Benchmark 8."""
    report.title("Many transactions")
    _state_alone(setup, report)
    _open(setup, report)
    _invalid(setup, report)
    _seen(setup, report)


def _state_alone(setup: Setup, report: Report) -> None:
    def pairs() -> int:
        state, count = TransactionState(), 20_000 if setup.quick else 100_000
        for number in range(count):
            began = state.begin(number // 1_000)
            state.apply(began)
            state.apply(state.commit(began.id, (b"%d" % number,)))
        return count

    samples = interleaved({"begin and commit": lambda: measured(pairs)}, setup.runs)
    its = samples["begin and commit"]
    rate = median(its, lambda s: s.messages / s.cpu_s)
    goal = Goal(at_least=50_000)
    report.line("8", "the state alone, begin and commit", rate, "pairs/CPU s", goal, samples)


def _engine(opened: ExitStack, open: int, invalid: int = 0) -> Engine:
    """An engine in memory with so many transactions in progress and on the invalid list; the stack
    closes it."""
    engine = Engine(MemoryStore(), SystemClock())
    opened.callback(engine.close)
    engine.create_topic(_NAME, TopicSettings(durability=Durability.WRITTEN))
    manager = engine.transactions.manager
    for _ in range(open):
        manager.begin(timeout_s=3_600)
    if invalid:
        ids = [manager.begin(timeout_s=3_600).id for _ in range(invalid)]
        for id in ids:
            manager.state.invalid.add(id)
    return engine


def _open(setup: Setup, report: Report) -> None:
    count = 500 if setup.quick else 2_000
    with ExitStack() as opened:
        engines = {open: _engine(opened, open) for open in (FEW, MANY)}
        works: dict[str, Callable[[Engine], Sample]] = {
            "begin and abort": lambda engine: measured(partial(_begin_abort, engine, count)),
            "commit": lambda engine: measured(partial(_commit, engine, count)),
            "visibility check": lambda engine: measured(partial(_check, engine, 20 * count)),
        }
        for what, work in works.items():
            samples = interleaved(
                {f"{open:,} open": partial(work, engine) for open, engine in engines.items()},
                setup.runs,
            )
            value = ratio(samples, f"{MANY:,} open", f"{FEW} open", lambda s: s.cpu_s / s.messages)
            report.line(
                "8", f"{what}: {MANY:,} open ÷ {FEW}, CPU", value, "×", Goal(at_most=2), samples
            )


def _begin_abort(engine: Engine, count: int) -> int:
    manager = engine.transactions.manager
    for _ in range(count):
        manager.abort(manager.begin().id)
    return count


def _commit(engine: Engine, count: int) -> int:
    for _ in range(count):
        new = NewBlock(0, encode([b"x"]))
        engine.transactions.commit(Commit(blocks=(TopicBlock(_NAME, new),)))
    return count


def _check(engine: Engine, count: int) -> int:
    fate, first = (
        engine.transactions.manager.fate,
        next(iter(engine.transactions.manager.state.open)),
    )
    for number in range(count):
        fate(first + number % 20, True)
    return count


def _invalid(setup: Setup, report: Report) -> None:
    count = 500 if setup.quick else 3_000
    with ExitStack() as opened:
        engines = {invalid: _engine(opened, 0, invalid) for invalid in (0, INVALID)}
        for engine in engines.values():
            _commit(engine, 200)
        samples = interleaved(
            {
                f"{invalid:,} invalid": partial(_fetches, engine, count)
                for invalid, engine in engines.items()
            },
            setup.runs,
        )
        value = ratio(samples, f"{INVALID:,} invalid", "0 invalid", lambda s: s.cpu_s / s.messages)
        report.line(
            "8", f"fetch: {INVALID:,} invalid ÷ none, CPU", value, "×", Goal(at_most=1.5), samples
        )


def _fetches(engine: Engine, count: int) -> Sample:
    def work() -> int:
        for _ in range(count):
            engine.fetch(_NAME, [PartitionPosition(0, Position.earliest())], 1 << 20)
        return count

    return measured(work)


def _seen(setup: Setup, report: Report) -> None:
    """Time from the return of a commit to a committed reader that long-polls in another thread."""
    count = 100 if setup.quick else 500

    def once() -> Sample:
        with setup.directory() as path, Service.start(path) as target:
            target.bus.create_topic(TOPIC, durability="written")
            arrived: dict[bytes, float] = {}
            consumer = target.bus.consumer(TOPIC)

            def read() -> None:
                for message in consumer:
                    arrived[message.value or b""] = time.perf_counter()
                    if len(arrived) == count:
                        return

            reader = threading.Thread(target=read)
            reader.start()
            returned: dict[bytes, float] = {}

            def work() -> int:
                for number in range(count):
                    value = b"%d" % number
                    with target.bus.transaction() as tx:
                        tx.send(TOPIC, value)
                    returned[value] = time.perf_counter()
                    time.sleep(0.005)
                reader.join(30)
                return count

            sample = measured(work, target.pid)
            consumer.close()
            late_ms = sorted(
                max(0.0, (arrived[value] - at) * 1_000) for value, at in returned.items()
            )
            sample.more["p50_ms"], sample.more["p99_ms"] = (
                percentile(late_ms, 50),
                percentile(late_ms, 99),
            )
            return sample

    samples = interleaved({"seen": once}, setup.runs)
    for point in ("p50_ms", "p99_ms"):
        goal = Goal(at_most=10) if point == "p99_ms" else None
        value = median(samples["seen"], more(point))
        report.line("8", f"commit's return to seen, {point[:3]}", value, "ms", goal, samples)
