"""Queues over HTTP: one worker, and several, receive and acknowledge in batches; and one worker
receives and acknowledges message by message."""

from collections.abc import Callable
from functools import partial

from bench.queues import publish
from bench.report import Goal, Report, Sample, interleaved, measured, median
from bench.targets import TOPIC, Service, Setup
from bench.threads import in_threads
from tms.client.queue import Queue
from tms.model.topic import parse_durability

BATCH = 100
WORKERS = 8


def run(setup: Setup, report: Report) -> None:
    """Benchmark 9, the part with a service."""
    report.title(f"Queues through HTTP, {BATCH} messages of 100 B at a time")
    for durability in ("written", "synced"):
        _pairs(setup, report, durability)


def _pairs(setup: Setup, report: Report, durability: str) -> None:
    count = 10_000 if setup.quick else 40_000
    with setup.directory() as path, Service.start(path) as target:
        target.bus.create_topic(TOPIC, durability=parse_durability(durability))
        queue = target.bus.queue(TOPIC, group="bench")

        def pairs(workers: int, count: int, batch: int) -> Sample:
            publish(target.bus, count)
            return measured(lambda: _by_all(queue, workers, count, batch), target.pid)

        works: dict[str, Callable[[], Sample]] = {
            "1 worker": partial(pairs, 1, count, BATCH),
            f"{WORKERS} workers": partial(pairs, WORKERS, count, BATCH),
            "1 worker, one by one": partial(pairs, 1, count // 10, 1),
        }
        samples = interleaved(works, setup.runs)
    for what, its in samples.items():
        rate = median(its, lambda s: s.per_s)
        goal = None if "one by one" in what else Goal(at_least=5_000)
        label = f"receive and ack through HTTP, {durability}, {what}"
        report.line("9", label, rate, "pairs/s", goal, {what: its})


def _by_all(queue: Queue, workers: int, count: int, batch: int) -> int:
    return sum(in_threads([partial(_work, queue, count // workers, batch)] * workers))


def _work(queue: Queue, count: int, batch: int) -> int:
    done = 0
    while done < count:
        done += queue.ack(queue.receive(min(batch, count - done), wait_s=10)).done
    return done
