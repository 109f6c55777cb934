"""The gain of group commit: synced messages a second of 64 publishers beside one, and the number of
syncs."""

import time
from functools import partial

from bench.report import Goal, Report, Sample, interleaved, measured, median, ratio
from bench.targets import TOPIC, Embedded, Service, Setup, values
from bench.threads import in_threads
from tms.client.client import Bus

PUBLISHERS = 64


def run(setup: Setup, report: Report) -> None:
    """Benchmark 4."""
    report.title("Synced 1 KiB publishes: 64 concurrent publishers beside one")
    for name, run_one in (("embedded", _embedded), ("HTTP", _http)):
        samples = interleaved(
            {
                "1 publisher": partial(run_one, setup, 1),
                "64 publishers": partial(run_one, setup, PUBLISHERS),
            },
            setup.runs,
        )
        report.rates("4", f"synced, {name}", samples)
        for variant, its in samples.items():
            syncs = median(its, lambda s: s.more["syncs"] / s.messages)
            report.line("4", f"synced, {name}, {variant}, syncs", syncs, "per message")
        report.line(
            "4",
            f"{name}, 64 ÷ 1",
            ratio(samples, "64 publishers", "1 publisher"),
            "×",
            Goal(at_least=10),
            samples,
        )


def _embedded(setup: Setup, publishers: int) -> Sample:
    with setup.directory() as path, Embedded.open(path) as target:
        target.bus.create_topic(TOPIC, durability="synced")
        target.bus.publish(TOPIC, b"first")
        before = target.engine.stats().syncs
        sample = measured(lambda: publish_for(target.bus, publishers, _seconds(setup)))
        sample.more["syncs"] = target.engine.stats().syncs - before
        return sample


def _http(setup: Setup, publishers: int) -> Sample:
    with setup.directory() as path, Service.start(path) as target:
        target.bus.create_topic(TOPIC, durability="synced")
        target.bus.publish(TOPIC, b"first")
        before = target.metric("tms_syncs_total")
        sample = measured(lambda: publish_for(target.bus, publishers, _seconds(setup)), target.pid)
        sample.more["syncs"] = target.metric("tms_syncs_total") - before
        return sample


def _seconds(setup: Setup) -> float:
    return 1.0 if setup.quick else 3.0


def publish_for(bus: Bus, publishers: int, seconds: float) -> int:
    """Publish message by message from several threads; the number of acknowledged messages."""
    cells = values(1024)
    counts = [0] * publishers
    until_s = time.perf_counter() + seconds

    def publish(publisher: int) -> None:
        while time.perf_counter() < until_s:
            bus.publish(TOPIC, cells[counts[publisher] % len(cells)])
            counts[publisher] += 1

    in_threads([partial(publish, each) for each in range(publishers)])
    return sum(counts)
