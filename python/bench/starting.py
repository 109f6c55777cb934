"""The time until a service answers: on an empty directory, and after `kill -9` with many edits in a
journal."""

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tms
from bench import machine
from bench.report import Goal, Report
from bench.targets import TOPIC, Service, Setup
from tms.client.client import Bus

GROUP = "measured"
EDITS = 150_000


def run(setup: Setup, report: Report) -> None:
    """Measure each kind of journal by itself."""
    edits = EDITS // 10 if setup.quick else EDITS
    report.title(
        f"From `tms serve` to the first answer; after {edits:,} edits of a journal, killed"
    )
    with setup.directory() as path:
        _line(setup, report, "an empty directory", 1.0, path)
    for name, work in JOURNALS.items():
        with setup.directory() as path:
            _killed(path / "data", partial(work, edits=edits))
            _line(setup, report, name, 2.0, path)


def _line(setup: Setup, report: Report, name: str, goal_s: float, path: Path) -> None:
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(setup.runs):
        began_s = time.perf_counter()
        with Service.start(path) as target:
            walls.append(time.perf_counter() - began_s)
            cpus.append(machine.cpu_s(target.pid))
            os.kill(target.pid, signal.SIGKILL)  # after a stop the next start would have less to do
    report.line("start", name, statistics.median(walls), "s", Goal(at_most=goal_s))
    report.line("start", f"{name}, CPU", statistics.median(cpus), "s")


def _killed(path: Path, work: Callable[[Bus], None]) -> None:
    """Do work on a directory in a process that is killed afterwards."""
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(path, work))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the edits were not made"


def _work(path: Path, work: Callable[[Bus], None]) -> None:
    bus = tms.open(path)
    bus.create_topic(TOPIC, durability="written")
    work(bus)
    os.kill(os.getpid(), signal.SIGKILL)


def _transactions(bus: Bus, edits: int) -> None:
    for _ in range(edits // 2):  # each begins and commits
        with bus.transaction() as tx:
            tx.send(TOPIC, b"x")


def _queue(bus: Bus, edits: int) -> None:
    queue = bus.queue(TOPIC, group=GROUP)
    bus.publish_many(TOPIC, [b"x"] * (edits // 2))
    for _ in range(edits // 2):  # each is leased and settled
        queue.ack(queue.receive(1))


def _positions(bus: Bus, edits: int) -> None:
    bus.publish_many(TOPIC, [b"x"] * edits)
    with bus.consumer(TOPIC, group=GROUP, start="earliest", stop_at_end=True) as consumer:
        for _ in consumer:
            consumer.ack()


JOURNALS = {"transactions": _transactions, "a queue": _queue, "positions": _positions}
