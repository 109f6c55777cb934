"""Transactions of 100 messages, one after another, and synced ones of many clients at a time."""

import time
from functools import partial

from bench.report import Goal, Report, Sample, interleaved, measured, median, ratio
from bench.targets import TOPIC, Embedded, Service, Setup, values
from bench.threads import in_threads
from tms.client.client import Bus
from tms.model.topic import parse_durability

MESSAGES = 100
CLIENTS = 16


def run(setup: Setup, report: Report) -> None:
    """Benchmark 7."""
    report.title(f"Transactions of {MESSAGES} messages of 1 KiB")
    kinds = {
        "embedded, written": partial(_embedded, setup, "written", 1),
        "HTTP, written": partial(_http, setup, "written", 1),
        "HTTP, synced, 1 client": partial(_http, setup, "synced", 1),
        f"HTTP, synced, {CLIENTS} clients": partial(_http, setup, "synced", CLIENTS),
    }
    samples = interleaved(kinds, setup.runs)
    goals = {"embedded, written": 4_000, "HTTP, written": 1_500}
    for name, its in samples.items():
        rate = median(its, lambda s: s.messages / s.wall_s)
        goal = Goal(at_least=goals[name]) if name in goals else None
        report.line("7", name, rate, "transactions/s", goal, {name: its})
    report.line(
        "7",
        f"synced, {CLIENTS} clients ÷ 1",
        ratio(samples, f"HTTP, synced, {CLIENTS} clients", "HTTP, synced, 1 client"),
        "×",
        Goal(at_least=4),
        samples,
    )


def _embedded(setup: Setup, durability: str, clients: int) -> Sample:
    with setup.directory() as path, Embedded.open(path) as target:
        return _measured(setup, target.bus, durability, clients, None)


def _http(setup: Setup, durability: str, clients: int) -> Sample:
    with setup.directory() as path, Service.start(path) as target:
        return _measured(setup, target.bus, durability, clients, target.pid)


def _measured(setup: Setup, bus: Bus, durability: str, clients: int, pid: int | None) -> Sample:
    bus.create_topic(TOPIC, durability=parse_durability(durability))
    _transact(bus, 0.1)
    seconds = 1.0 if setup.quick else 3.0
    each = partial(_transact, bus, seconds)
    return measured(lambda: sum(in_threads([each] * clients)), *([] if pid is None else [pid]))


def _transact(bus: Bus, seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    messages = values(1024, MESSAGES)
    while time.perf_counter() < end:
        with bus.transaction() as tx:
            tx.send_many(TOPIC, messages)
        count += 1
    return count
