"""The history of a service: values of its counters in equal steps of time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

STEP_S = 10
STEPS = 360  # that are remembered
HISTORY_S = STEP_S * STEPS
LAG_STEP_S = 60
LAG_STEPS = 60
RATES = ("messages_in_s", "bytes_in_s", "bytes_out_s")  # of a topic, per second
OTHERS = tuple(f"others_{name}" for name in RATES)  # of topics without series of their own
SERVICE_RATES = (*RATES, "requests_s", "publishes_s", "errors_s")
LAG = "lag"
DISK_USED = "disk_used_bytes"
DISK = "disk_bytes"
GAUGES = ("connections", "transactions_open", LAG, DISK_USED, DISK)
_SHARED = (DISK_USED, DISK)  # instances of one machine have one disk
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class HistorySource:
    """An instance, and the time in ms since 1970 since which it counts; 0 if it does not
    answer."""

    instance: str
    since_ms: int
    answers: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """Values by name, those of the oldest step first; None is unknown. All have equally many. Those
    named `…_s` are per second. The newest step ends at `end_ms` since 1970. `sources` are the
    instances whose values were added up."""

    end_ms: int
    step_ms: int
    series: Mapping[str, list[float | None]]
    sources: list[HistorySource] = field(default_factory=list)

    @property
    def since_ms(self) -> int:
        """The time since which all answering sources count; 0 if none answers."""
        return max((one.since_ms for one in self.sources if one.answers), default=0)

    @property
    def silent(self) -> list[str]:
        """The instances that did not answer."""
        return [one.instance for one in self.sources if not one.answers]


def added_up(own: History, others: Iterable[History], silent: Iterable[str] = ()) -> History:
    """One history of several instances. They were read at the same time: steps with equally many
    steps behind them are added up. A step is unknown if it is unknown at every instance."""
    all_ = [own, *others]
    series = {
        name: _together(name, [one.series.get(name, []) for one in all_], len(values))
        for name, values in own.series.items()
    }
    sources = [source for one in all_ for source in one.sources]
    sources += [HistorySource(name, 0, answers=False) for name in silent]
    sources.sort(key=lambda one: one.instance)
    return History(own.end_ms, own.step_ms, series, sources)


def _together(name: str, parts: Sequence[Values], steps: int) -> list[float | None]:
    combine = max if name in _SHARED else math.fsum
    found: list[float | None] = []
    for back in range(steps, 0, -1):
        known = [part[-back] for part in parts if len(part) >= back]
        values = [value for value in known if value is not None]
        found.append(combine(values) if values else None)
    return found
