"""The last hour in memory: the service, its busiest topics, and the groups with the most lag.

    increments of a step ─▶ per second ─▶ a ring of the last `STEPS` steps
    lags at a look       ─────────────▶ a ring of the last `LAG_STEPS` steps

Invariants

* The memory is bounded: `TOPICS_MAX` topics and `GROUPS_MAX` groups have a ring of their own.
* A value is the mean over the time that it was counted in. A step that comes late divides its
  counts among all the steps since the one before, so that no pause looks like a peak.
* Steps follow the clock that does not jump.
* An unknown value is NaN in a ring and None outside, never 0: a topic or group that gets a ring has
  no past, and a gauge has none in the steps that were missed.
* A topic is one generation of it: a topic made anew has no past.
"""

import math
import threading
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from tms.model.history import (
    GAUGES,
    LAG,
    LAG_STEP_S,
    LAG_STEPS,
    OTHERS,
    RATES,
    SERVICE_RATES,
    STEP_S,
    STEPS,
    History,
    HistorySource,
)
from tms.runtime.clock import Clock

TOPICS_MAX = 500
GROUPS_MAX = 500
BUSIER = 2.0  # as much as the least of those with a ring, for its place
FORGOTTEN = 0.98851  # of a topic's traffic is left after each step: half of it after 10 minutes
LEAST_BYTES = 1.0  # of traffic that is remembered
_SERVICE = (*SERVICE_RATES, *OTHERS, *GAUGES)
_UNKNOWN = math.nan


class TopicLife(NamedTuple):
    """One generation of a topic."""

    name: str
    uid: int


class GroupOfTopic(NamedTuple):
    """A group, and the generation of the topic that it reads."""

    topic: TopicLife
    group: str


K = TypeVar("K", TopicLife, GroupOfTopic)


class _Ring:
    """The values of the last `steps` steps, in some columns. Each step is written once."""

    __slots__ = ("_columns", "_steps", "_values")

    def __init__(self, columns: int, steps: int, code: str) -> None:
        self._columns = columns
        self._steps = steps
        self._values = array(code, [_UNKNOWN]) * (columns * steps)

    def write(self, steps: range, row: Sequence[float]) -> None:
        """Give these steps the same values."""
        for step in steps:
            at = step % self._steps * self._columns
            for column, value in enumerate(row):
                self._values[at + column] = value

    def read(self, column: int, steps: range) -> list[float | None]:
        """The values of a column in these steps."""
        at = (self._values[step % self._steps * self._columns + column] for step in steps)
        return [None if math.isnan(value) else round(value, 3) for value in at]


class _OwnRings(Generic[K]):
    """Rings of those that have the most of something, at most `most` of them."""

    def __init__(self, most: int, columns: int, steps: int, code: str) -> None:
        self._most = most
        self._make: Callable[[], _Ring] = lambda: _Ring(columns, steps, code)
        self.rings: dict[K, _Ring] = {}

    def choose(self, candidates: Collection[K], weight: Callable[[K], float]) -> None:
        """Give rings to those candidates that weigh most, in place of others if there is no room:
        of those that weigh less than half as much."""
        new = sorted((one for one in candidates if one not in self.rings), key=weight, reverse=True)
        room = max(0, self._most - len(self.rings))
        for one in new[:room]:
            self.rings[one] = self._make()
        if waiting := new[room:]:
            lightest = sorted(self.rings, key=weight)
            for one, least in zip(waiting, lightest, strict=False):
                if weight(one) <= BUSIER * weight(least):
                    break
                del self.rings[least]
                self.rings[one] = self._make()


class HistoryRings:
    """The last hour of this process. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started_s = clock.monotonic_s()
        self._counted_s = self._started_s
        self._step = 0  # the newest one with values; none has any yet
        self._lag_step = -1  # so that the first step has a look, too
        self._service = _Ring(len(_SERVICE), STEPS, "d")
        self._topics = _OwnRings[TopicLife](TOPICS_MAX, len(RATES), STEPS, "f")
        self._groups = _OwnRings[GroupOfTopic](GROUPS_MAX, 1, LAG_STEPS, "d")
        self._traffic: dict[TopicLife, float] = {}  # bytes lately
        self._last_known: dict[GroupOfTopic, int] = {}  # step

    # -- writing -----------------------------------------------------------------------------------

    def wait_s(self) -> float:
        """Seconds until the next step begins."""
        return self._started_s + (self._step + 1) * STEP_S - self._clock.monotonic_s()

    @property
    def wants_lags(self) -> bool:
        """True once in each step of lags."""
        return self._step_now(LAG_STEP_S) > self._lag_step

    def add(
        self,
        service: Mapping[str, float],
        topics: Mapping[TopicLife, Sequence[float]],
        gauges: Mapping[str, float | None],
    ) -> None:
        """Note the counts since the step before, by name and by topic (as `RATES`), and the present
        values of gauges. Nothing is noted twice in a step: the caller adds it up."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            newest = self._step_now(STEP_S)
            assert newest > self._step, "a step is counted once"
            steps = range(max(self._step, newest - STEPS) + 1, newest + 1)
            per_s = 1 / (now_s - self._counted_s)
            rates = [service.get(name, 0) * per_s for name in SERVICE_RATES]
            rates += self._note_topics(steps, topics, per_s)
            self._service.write(steps[:-1], [*rates, *[_UNKNOWN] * len(GAUGES)])
            now = (gauges.get(name) for name in GAUGES)
            now_known = [_UNKNOWN if one is None else one for one in now]
            self._service.write(steps[-1:], [*rates, *now_known])
            self._step = newest
            self._counted_s = now_s

    def _note_topics(
        self, steps: range, topics: Mapping[TopicLife, Sequence[float]], per_s: float
    ) -> list[float]:
        """Write the rings of topics; returns the sums of the topics without one."""
        left = FORGOTTEN ** len(steps)
        traffic = {one: bytes_ * left for one, bytes_ in self._traffic.items()}
        for one, counts in topics.items():
            traffic[one] = traffic.get(one, 0) + sum(counts)
        self._traffic = {one: bytes_ for one, bytes_ in traffic.items() if bytes_ >= LEAST_BYTES}
        self._topics.choose(topics, lambda one: self._traffic.get(one, 0))
        nothing = [0.0] * len(RATES)
        for one, ring in self._topics.rings.items():
            ring.write(steps, [count * per_s for count in topics.get(one, nothing)])
        rest = [counts for one, counts in topics.items() if one not in self._topics.rings]
        return [sum(column) * per_s for column in zip(nothing, *rest, strict=True)]

    def note_lags(self, lags: Mapping[GroupOfTopic, float | None]) -> None:
        """Note the lags of groups. A group that is not there any more keeps its past for as long
        as that is shown."""
        with self._lock:
            newest = self._step_now(LAG_STEP_S)
            steps = range(max(self._lag_step, newest - LAG_STEPS) + 1, newest + 1)
            self._groups.choose(lags, lambda one: lags.get(one) or 0 if one in lags else -1)
            rings = self._groups.rings
            known = {one: newest for one in rings if lags.get(one) is not None}
            self._last_known = {
                one: at
                for one, at in (dict.fromkeys(rings, newest) | self._last_known | known).items()
                if one in rings and at > newest - LAG_STEPS
            }
            for one in [one for one in rings if one not in self._last_known]:
                del rings[one]
            for one, ring in rings.items():
                lag = lags.get(one)
                ring.write(steps[:-1], [_UNKNOWN])
                ring.write(steps[-1:], [_UNKNOWN if lag is None else lag])
            self._lag_step = newest

    def own_topics(self) -> list[TopicLife]:
        """The topics that have a ring of their own, or may get one."""
        with self._lock:
            return [*{**self._topics.rings, **self._traffic}]

    def forget(self, topics: Collection[TopicLife]) -> None:
        """Forget topics that are deleted, and their groups."""
        with self._lock:
            for one in topics:
                self._topics.rings.pop(one, None)
                self._traffic.pop(one, None)
            gone = {*topics}
            for group in [group for group in self._groups.rings if group.topic in gone]:
                del self._groups.rings[group]

    # -- reading -----------------------------------------------------------------------------------

    def of_service(self, last_s: int, instance: str = "") -> History:
        """The last seconds of this process."""
        with self._lock:
            steps = _steps(last_s, STEP_S, self._step, STEPS)
            series = _columns(_SERVICE, self._service, steps)
            return self._history(series, STEP_S, self._step, instance)

    def of_topic(self, topic: TopicLife, last_s: int, instance: str = "") -> History:
        """The last seconds of a topic; all unknown if it has no ring."""
        with self._lock:
            steps = _steps(last_s, STEP_S, self._step, STEPS)
            ring = self._topics.rings.get(topic)
            series = _columns(RATES, ring, steps)
            return self._history(series, STEP_S, self._step, instance)

    def of_group(self, group: GroupOfTopic, last_s: int, instance: str = "") -> History:
        """The lag of a group in the last seconds; all unknown if it has no ring."""
        with self._lock:
            steps = _steps(last_s, LAG_STEP_S, self._lag_step, LAG_STEPS)
            series = _columns((LAG,), self._groups.rings.get(group), steps)
            return self._history(series, LAG_STEP_S, self._lag_step, instance)

    def _step_now(self, step_s: int) -> int:
        return int((self._clock.monotonic_s() - self._started_s) // step_s)

    def _history(
        self, series: Mapping[str, list[float | None]], step_s: int, newest: int, instance: str
    ) -> History:
        running_s = self._clock.monotonic_s() - self._started_s
        since_ms = self._clock.now_ms() - round(running_s * 1_000)
        source = HistorySource(instance, since_ms)
        return History(since_ms + newest * step_s * 1_000, step_s * 1_000, series, [source])


def _steps(last_s: int, step_s: int, newest: int, most: int) -> range:
    steps = min(max(1, last_s // step_s), most)
    return range(newest + 1 - steps, newest + 1)


def _columns(
    names: Sequence[str], ring: _Ring | None, steps: range
) -> dict[str, list[float | None]]:
    if ring is None:
        return {name: [None] * len(steps) for name in names}
    return {name: ring.read(at, steps) for at, name in enumerate(names)}
