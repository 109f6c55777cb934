"""The cost of unused topics: the start time of a service with many of them, and its CPU and memory
at rest."""

import statistics
import time

from bench import machine
from bench.report import Goal, Report
from bench.targets import Service, Setup

PARTITIONS = 4
SETTLING_S, REST_S = 5.0, 20.0


def run(setup: Setup, report: Report) -> None:
    """Measure with a message in every partition."""
    topics = 200 if setup.quick else 2_000
    title = f"{topics:,} topics of {PARTITIONS} partitions that nobody uses, on LevelDB"
    report.title(title)
    with setup.directory() as path:
        with Service.start(path) as target:
            for number in range(topics):
                target.bus.create_topic(f"t{number}", partitions=PARTITIONS, durability="written")
                for partition in range(PARTITIONS):
                    target.bus.publish(f"t{number}", b"x", partition=partition)
        starts: list[float] = []
        busy: list[float] = []
        for _ in range(min(3, setup.runs)):
            began_s = time.perf_counter()
            with Service.start(path) as target:
                starts.append(time.perf_counter() - began_s)
                time.sleep(SETTLING_S)
                cpu_s, began_s = machine.cpu_s(target.pid), time.perf_counter()
                time.sleep(REST_S)
                rested_s = time.perf_counter() - began_s
                busy.append(100 * (machine.cpu_s(target.pid) - cpu_s) / rested_s)
                memory = target.memory_mib()
    report.line("idle", "start, until it answers", statistics.median(starts), "s", Goal(at_most=5))
    report.line("idle", "CPU at rest", statistics.median(busy), "%", Goal(at_most=2))
    report.line("idle", "memory at rest", memory["VmRSS"], "MiB")
