"""How runs are made and shown: interleaved, as medians, as ratios within one run.

    interleaved({"a": f, "b": g}, 3)     a b · a b · a b      → samples by name

Reason: the machines are shared and their speed changes from minute to minute, so only numbers that
were measured in turns are comparable. CPU time stands beside wall time: it is the steadier of the
two.
"""

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from bench import machine


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed piece of work. `cpu_s` counts every process that took part."""

    wall_s: float
    cpu_s: float
    messages: int
    more: dict[str, float] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        """Messages per second."""
        return self.messages / self.wall_s

    @property
    def cpu_s_per_million(self) -> float:
        """CPU seconds per million messages."""
        return self.cpu_s / self.messages * 1e6


Samples = dict[str, list[Sample]]
OTHERS = "others"  # share of the machine that other processes, or its host, took meanwhile


def measured(work: Callable[[], int], *pids: int) -> Sample:
    """Time `work`, which returns how many messages it handled, in this process and in `pids`."""
    gc.collect()
    busy_s = machine.busy_s()
    cpu_s = machine.own_cpu_s() + sum(machine.cpu_s(pid) for pid in pids)
    begun = time.perf_counter()
    messages = work()
    wall_s = time.perf_counter() - begun
    cpu_s = machine.own_cpu_s() + sum(machine.cpu_s(pid) for pid in pids) - cpu_s
    others = max(0.0, machine.busy_s() - busy_s - cpu_s) / (wall_s * machine.CORES)
    return Sample(wall_s, cpu_s, messages, {OTHERS: others})


def interleaved(variants: Mapping[str, Callable[[], Sample]], runs: int) -> Samples:
    """Run every variant once, then again, `runs` times in all."""
    samples: Samples = {name: [] for name in variants}
    for _ in range(runs):
        for name, run in variants.items():
            samples[name].append(run())
    return samples


def ratio(
    samples: Samples, over: str, under: str, of: Callable[[Sample], float] = lambda s: s.per_s
) -> float:
    """The median of `over` ÷ `under`, each taken within one run."""
    pairs = zip(samples[over], samples[under], strict=True)
    return statistics.median(of(a) / of(b) for a, b in pairs)


def median(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """The median of one number of these samples."""
    return statistics.median(map(of, samples))


def more(name: str) -> Callable[[Sample], float]:
    """Reads one of the further numbers of a sample."""
    return lambda sample: sample.more[name]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True, slots=True)
class Goal:
    """The bound that a number should keep."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """True if the value keeps the bound."""
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the report."""

    benchmark: str
    what: str
    value: float
    unit: str
    goal: Goal | None
    others: float | None


class Report:
    """Prints lines as they come; with `file`, also writes them as JSON lines with all samples."""

    def __init__(self, quick: bool, file: Path | None) -> None:
        self.lines: list[Line] = []
        self._run = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.name(),
            "quick": quick,
        }
        self._file: TextIO | None = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._file = file.open("a")
        print(f"TMS benchmarks · {self._run['date']} · {self._run['machine']}")
        print("others: how much of the machine other processes took while something was measured")
        if quick:
            print("quick: smaller amounts and fewer runs than the goals are judged by")

    def title(self, text: str) -> None:
        """Begin a benchmark."""
        print(f"\n{text}")

    def line(
        self,
        benchmark: str,
        what: str,
        value: float,
        unit: str,
        goal: Goal | None = None,
        samples: Samples | None = None,
    ) -> None:
        """Add a number."""
        taken = [one.more[OTHERS] for its in (samples or {}).values() for one in its]
        others = statistics.median(taken) if taken else None
        line = Line(benchmark, what, value, unit, goal, others)
        self.lines.append(line)
        print("  " + _text(line), flush=True)
        if self._file is not None:
            row = {
                **self._run,
                **asdict(line),
                "met": None if goal is None else goal.met(value),
                "samples": {
                    name: [asdict(one) for one in its] for name, its in (samples or {}).items()
                },
            }
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def rates(self, benchmark: str, what: str, samples: Samples) -> None:
        """Add messages per second, and CPU beside it, of every variant."""
        for name, its in samples.items():
            label = f"{what}, {name}"
            rate = median(its, lambda s: s.per_s)
            self.line(benchmark, label, rate, "messages/s", None, {name: its})
            self.line(
                benchmark, f"{label}, CPU", median(its, lambda s: s.cpu_s_per_million), "s/million"
            )

    def close(self) -> None:
        """Print the goals together."""
        self.title("Goals")
        for line in self.lines:
            if line.goal is not None:
                print(f"  {'met ' if line.goal.met(line.value) else 'MISS'}  {_text(line)}")
        if self._file is not None:
            self._file.close()


def _text(line: Line) -> str:
    value = f"{line.value:,.0f}" if line.value >= 1000 else f"{line.value:.3g}"
    goal = "" if line.goal is None else f"   goal {line.goal}"
    others = "" if line.others is None else f"   (others {line.others:.0%})"
    return f"{line.benchmark:<3} {line.what:<60} {value:>12} {line.unit}{goal}{others}"
