"""`tms backup` of a service, beside a copy of the same bytes: its time, the rate that is left to a
publisher meanwhile, and the bytes that the next backup copies.

    filled ──▶ copied · backed up alone · published alone · backed up while published to · published
               in turns; then more is published ──▶ the next backup in the same directory

All ratios are of one turn. Source files are in the page cache each time, earlier writes are on the
disk, and targets are new. The publisher pauses after each batch: without pauses it takes both cores
of a small machine, and leaves none to any other work.
"""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from bench import machine
from bench.report import OTHERS, Goal, Report, Sample, Samples, measured, median, ratio
from bench.targets import TOPIC, Service, Setup, values
from tms.client.client import Bus
from tms.runtime.background import meanwhile

MESSAGE_BYTES = 1_000
BATCH = 100
PAUSE_S = 0.0005
SEGMENT_BYTES = 32 << 20
QUICK_BYTES, SMALL_BYTES, LARGE_BYTES = 64 << 20, 512 << 20, 4 << 30
MORE = 1 / 8  # new bytes at the next backup, as a share of the size
ALONE_S = 2.0
COPY, ALONE, LOADED = "copy", "backup alone", "backup while published to"
BEFORE, DURING = "before and after", "during a backup"
_CHUNK = 4 << 20
_MIB = 1 << 20


def run(setup: Setup, report: Report) -> None:
    """Measure with half a GiB."""
    _run(setup, report, QUICK_BYTES if setup.quick else SMALL_BYTES, setup.runs)


def four_gib(setup: Setup, report: Report) -> None:
    """Measure with 4 GiB, in at most two turns; needs 20 GB of disk, which it frees at the end."""
    _run(setup, report, LARGE_BYTES, min(setup.runs, 2))


def _run(setup: Setup, report: Report, size: int, turns: int) -> None:
    report.title(f"Backup of a service with {size >> 20:,} MiB in messages of {MESSAGE_BYTES} B")
    rates: Samples = {COPY: [], ALONE: [], LOADED: []}
    published: Samples = {BEFORE: [], DURING: []}
    with (
        setup.directory() as place,
        Service.start(place, "--segment-bytes", str(SEGMENT_BYTES)) as service,
    ):
        service.bus.create_topic(TOPIC, retention="forever", durability="written")
        _fill(service.bus, size)
        for _ in range(turns):
            _settle(place)
            rates[COPY].append(_copied(place / "data" / "maps", place / "copy"))
            _settle(place)
            rates[ALONE].append(_backed_up(service, place / "alone"))
            _settle(place, "alone")
            with _publishing(service.bus) as counter:
                first = _rate(counter)
                during, loaded = _during(counter, service, place / "loaded")
                last = _rate(counter)
            shutil.rmtree(place / "loaded")
            rates[LOADED].append(loaded)
            published[DURING].append(during)
            messages, wall_s = first.messages + last.messages, first.wall_s + last.wall_s
            published[BEFORE].append(Sample(wall_s, 0.0, messages, first.more))
        _increment(report, service, place / "next", size)
    for name, its in rates.items():
        report.line(
            "backup", name, median(its, lambda s: s.per_s) / _MIB, "MiB/s", None, {name: its}
        )
    for name in (COPY, ALONE):
        cpu_ms = median(rates[name], lambda s: s.cpu_s_per_million) * _MIB / 1_000
        report.line("backup", f"{name}, CPU", cpu_ms, "ms/MiB")
    for name in (ALONE, LOADED):
        share = ratio(rates, name, COPY)
        goal = Goal(at_least=0.5)
        report.line("backup", f"{name} ÷ copy, bytes/s", share, "×", goal, rates)
    kept = ratio(published, DURING, BEFORE)
    report.line("backup", "published during ÷ alone", kept, "×", Goal(at_least=0.8), published)


def _settle(place: Path, *targets: str) -> None:
    """Remove targets, let the disk become idle, and read the source files into the page cache."""
    for target in targets:
        shutil.rmtree(place / target)
    os.sync()
    for file in (place / "data" / "maps").rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                while opened.read(_CHUNK):
                    pass


def _increment(report: Report, service: Service, place: Path, size: int) -> None:
    """Measure the next backup, after another share was published."""
    _backed_up(service, place)
    more = int(size * MORE)
    _fill(service.bus, more)
    share = _backed_up(service, place).messages / more
    report.line("backup", "copied next ÷ new", share, "×", Goal(at_most=1.1))


def _fill(bus: Bus, size: int) -> None:
    pool = cycle(values(MESSAGE_BYTES))
    for _ in range(size // (MESSAGE_BYTES * 1_000)):
        bus.publish_many(TOPIC, [next(pool) for _ in range(1_000)])


def _copied(source: Path, target: Path) -> Sample:
    """Copy every file, one after the other: read, written and synced."""

    def copy() -> int:
        count = 0
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            to = target / file.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as opened, to.open("wb") as written:
                while chunk := opened.read(_CHUNK):
                    count += written.write(chunk)
                written.flush()
                os.fsync(written.fileno())
        return count

    sample = measured(copy)
    shutil.rmtree(target)
    return sample


def _backed_up(service: Service, place: Path) -> Sample:
    """Back up; the number of copied bytes, with the CPU time of the command and of the service."""
    command = [str(Path(sys.executable).with_name("tms")), "backup", "--to", str(place)]

    def back_up() -> int:
        ended = subprocess.run(
            [*command, "--url", service.url, "--json"], check=True, capture_output=True
        )
        said: dict[str, Any] = json.loads(ended.stdout)
        copied: int = said["copied_bytes"]
        return copied

    children_s = _children_cpu_s()
    sample = measured(back_up, service.pid)
    children_s = _children_cpu_s() - children_s
    others = sample.more[OTHERS] - children_s / (sample.wall_s * machine.CORES)
    cpu_s = sample.cpu_s + children_s
    return Sample(sample.wall_s, cpu_s, sample.messages, {OTHERS: max(0.0, others)})


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Counter:
    """The number of acknowledged messages."""

    def __init__(self) -> None:
        self.messages = 0


@contextlib.contextmanager
def _publishing(bus: Bus) -> Iterator[_Counter]:
    counter = _Counter()
    pool = values(MESSAGE_BYTES)[:BATCH]

    def publish(ended: threading.Event) -> None:
        while not ended.is_set():
            bus.publish_many(TOPIC, pool)
            counter.messages += BATCH
            ended.wait(PAUSE_S)

    with meanwhile(publish):
        yield counter


def _rate(counter: _Counter) -> Sample:
    """The messages published while the service does nothing else."""

    def wait() -> int:
        begun = counter.messages
        time.sleep(ALONE_S)
        return counter.messages - begun

    return measured(wait)


def _during(counter: _Counter, service: Service, place: Path) -> tuple[Sample, Sample]:
    """The messages published during a backup, and the backup."""
    begun = counter.messages
    loaded = _backed_up(service, place)
    messages = counter.messages - begun
    return Sample(loaded.wall_s, loaded.cpu_s, messages, loaded.more), loaded
