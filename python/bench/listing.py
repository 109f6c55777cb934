"""The time to list many groups: by a bus that has the directory open, over HTTP, and by the
command, as users wait for it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench import machine
from bench.report import Goal, Report, Sample, interleaved, measured, median
from bench.targets import Embedded, Service, Setup
from tms.client.client import Bus

TOPICS, MESSAGES = 100, 10
GOAL_S = 1.0


def run(setup: Setup, report: Report) -> None:
    """Measure with groups that all lag by some messages, so that each lag has to be computed."""
    groups = 2_000 if setup.quick else 10_000
    report.title(f"A list of {groups:,} groups of {TOPICS} topics, each behind")
    with setup.directory() as path:
        with Embedded.open(path / "data") as target:
            _fill(target.bus, groups)
            embedded = _listed(setup, report, "embedded", lambda: _list(target.bus, groups))
        with Service.start(path) as service:
            pid = service.pid
            over_http = _listed(setup, report, "over HTTP", lambda: _list(service.bus, groups), pid)
            command = _listed(
                setup, report, "`tms group list`", lambda: _command(service.url, groups), pid
            )
    report.line("list", "over HTTP ÷ embedded", over_http / embedded, "×")
    report.line("list", "`tms group list` − over HTTP", command - over_http, "s")


def _listed(setup: Setup, report: Report, how: str, work: Callable[[], int], *pids: int) -> float:
    """The median of the seconds that a list takes, without the first list, which opens maps."""

    def sample() -> Sample:
        began_s = machine.children_cpu_s()
        taken = measured(work, *pids)
        return replace(taken, cpu_s=taken.cpu_s + machine.children_cpu_s() - began_s)

    first = sample()
    report.line("list", f"{how}, the first time", first.wall_s, "s")
    samples = interleaved({how: sample}, setup.runs)
    wall_s = median(samples[how], lambda one: one.wall_s)
    report.line("list", how, wall_s, "s", Goal(at_most=GOAL_S), samples)
    report.line("list", f"{how}, CPU", median(samples[how], lambda one: one.cpu_s), "s")
    return wall_s


def _fill(bus: Bus, groups: int) -> None:
    for number in range(TOPICS):
        bus.create_topic(f"t{number}", durability="written")
        bus.publish_many(f"t{number}", [b"x"] * MESSAGES)
    for number in range(groups):
        at = f"offset:{number % MESSAGES}"
        bus.set_positions(f"t{number % TOPICS}", {0: at}, group=f"g{number}")


def _list(bus: Bus, groups: int) -> int:
    found = sum(group.lag is not None and group.lag > 0 for group in bus.list_groups())
    assert found == groups, f"{found} groups were listed"
    return found


def _command(url: str, groups: int) -> int:
    command = [str(Path(sys.executable).with_name("tms")), "group", "list", "--url", url]
    done = subprocess.run(command, capture_output=True, check=True)
    found = sum(1 for _ in islice(done.stdout.splitlines(), 1, None))
    assert found == groups, f"{found} groups were printed"
    return found
