"""The history of a service: values of its counters in equal steps of time."""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tms.model.group import GroupSummary
from tms.model.queue import QueueSummary

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
WORST_MAX = 20
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


@dataclass(frozen=True, slots=True)
class Backlogs:
    """Groups and queues of all namespaces that need attention: those with the most lag and the
    oldest messages, those with dead letters or old unsettled messages. They were seen at `seen_ms`
    since 1970, 0: not yet."""

    seen_ms: int = 0
    groups: list[GroupSummary] = field(default_factory=list)
    queues: list[QueueSummary] = field(default_factory=list)


def together(backlogs: Iterable[Backlogs]) -> Backlogs:
    """The worst of several instances, as of the oldest look."""
    some = [*backlogs]
    groups = {(one.topic, one.group): one for part in some for one in part.groups}
    queues = {(one.topic, one.group): one for part in some for one in part.queues}
    return Backlogs(
        min((part.seen_ms for part in some), default=0),
        worst_groups(groups.values()),
        worst_queues(queues.values()),
    )


def worst_groups(groups: Iterable[GroupSummary]) -> list[GroupSummary]:
    """The groups with the most lag, and those with the oldest, at most `WORST_MAX` of each."""
    behind = [one for one in groups if one.lag]
    by_lag = heapq.nlargest(WORST_MAX, behind, key=lambda one: one.lag or 0)
    by_age = heapq.nlargest(WORST_MAX, behind, key=lambda one: one.lag_ms or 0)
    return by_lag + [one for one in by_age if one not in by_lag]


def worst_queues(queues: Iterable[QueueSummary]) -> list[QueueSummary]:
    """The queues with the most dead letters, and those with the oldest unsettled messages, at most
    `WORST_MAX` of each."""
    some = [*queues]
    dead = heapq.nlargest(WORST_MAX, (one for one in some if one.dead), key=lambda one: one.dead)
    old = heapq.nlargest(
        WORST_MAX, (one for one in some if one.oldest_ms), key=lambda one: one.oldest_ms or 0
    )
    return dead + [one for one in old if one not in dead]


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
