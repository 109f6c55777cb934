"""Counts for the last hour: every `STEP_S` the increments of the engine's and the service's
counters, and once in `LAG_STEP_S` the lags of groups and the backlogs of queues.

Invariants

* Nothing is counted for it on the way of a message: the counters are there anyway.
* Partitions that were opened or closed meanwhile make no peak: increments are those of each
  partition's own counters. The journals of groups, queues and transactions are not counted.
* Looks at lags and queues, which may read the store, take `LAG_SHARE` of a core at most.
* A failure to count loses a step of history, and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tms.engine.engine import Engine
from tms.errors import NotOwner, TMSError, TopicNotFound
from tms.log.partition import PartitionCounters
from tms.model.group import GroupSummary
from tms.model.history import (
    DISK,
    DISK_USED,
    LAG,
    LAG_STEP_S,
    RATES,
    Backlogs,
    worst_groups,
    worst_queues,
)
from tms.model.topic import SYSTEM_NAMESPACE, TopicName
from tms.runtime.events import EventLog
from tms.server.history import GroupOfTopic, HistoryRings, TopicLife
from tms.server.metrics import POSITIONS_LOOKED_MAX, Metrics

LAG_SHARE = 0.005
QUEUES_LOOKED_MAX = 1_000
WAIT_S_MIN = 0.1  # so that a clock that does not go on keeps nobody busy
_REFUSED = 300  # from this status on
_FAILED = 500
_PRODUCED = ("Produce", "NONE")  # by Kafka's clients, without an error
_log = EventLog("tms.server")


class _Counted(NamedTuple):
    """Counters of a partition as of the last step."""

    counters: PartitionCounters
    messages: int
    bytes: int


class RequestCounts(NamedTuple):
    """Counts of requests since the start, by the names of `SERVICE_RATES`; the bytes of topics that
    clients have received since the last step; the connections that are open."""

    totals: Mapping[str, int]
    sent: Mapping[TopicName, int]
    connections: int


class Sampler:
    """Fills the history of a service."""

    def __init__(self, engine: Engine, metrics: Metrics, connections: Collection[object]) -> None:
        self._clock = engine.topics.clock
        self.rings = HistoryRings(self._clock)
        self._engine = engine
        self._metrics = metrics
        self._connections = connections
        self._totals: Mapping[str, int] = {}
        self._seen: dict[tuple[int, int], _Counted] = {}
        self._lag: float | None = None
        self._lags_after_s = 0.0
        self.backlogs = Backlogs()
        self._stored()

    async def run(self, in_thread: Callable[..., Awaitable[None]]) -> None:
        """Sample for as long as the service runs. `in_thread` does work outside of the event
        loop."""
        while True:
            await asyncio.sleep(max(self.rings.wait_s(), WAIT_S_MIN))
            if self.rings.wait_s() <= 0:
                try:
                    await in_thread(self.sample, self.counts())
                except Exception:
                    _log.exception("history_failed")

    def counts(self) -> RequestCounts:
        """The counts of requests. Used by the event loop's thread."""
        metrics = self._metrics
        answers = [*metrics.answers.items()]
        fronts = [*metrics.front_answers.items()]
        stored = (n for (name, status), n in answers if name == "publish" and status < _REFUSED)
        produced = (n for (_, *request), n in fronts if tuple(request) == _PRODUCED)
        totals = {
            "requests_s": sum(n for _, n in answers) + sum(n for _, n in fronts),
            "publishes_s": sum(stored) + sum(produced),
            "errors_s": sum(n for (_, status), n in answers if status >= _FAILED),
        }
        return RequestCounts(totals, metrics.taken_sent(), len(self._connections))

    def sample(self, requests: RequestCounts) -> None:
        """Count a step."""
        topics = self._increments(requests.sent)
        if self.rings.wants_lags and self._clock.monotonic_s() >= self._lags_after_s:
            self._look_at_lags()
        service = {name: n - self._totals.get(name, 0) for name, n in requests.totals.items()}
        self._totals = requests.totals
        service |= dict(zip(RATES, map(sum, zip(*topics.values(), strict=True)), strict=False))
        gauges: dict[str, float | None] = {"connections": requests.connections, LAG: self._lag}
        if self._engine.coordinates:
            with suppress(NotOwner):
                transactions = self._engine.transactions.stats(self._clock.now_ms())
                gauges["transactions_open"] = transactions.open
        with suppress(TMSError):
            volume = self._engine.topics.store.volume()
            if volume is not None:
                gauges |= {DISK: volume.total, DISK_USED: volume.total - volume.free}
        self.rings.add(service, topics, gauges)
        self.rings.forget(self._deleted())

    def _increments(self, sent: Mapping[TopicName, int]) -> dict[TopicLife, Sequence[float]]:
        """Messages and bytes that were stored since the last step, and bytes that were sent, by
        topic."""
        registry = self._engine.topics.registry
        stored = self._stored()
        names = registry.names_of(stored) if stored else {}
        increments: dict[TopicLife, list[float]] = {}
        for uid, counts in stored.items():
            name = names.get(uid)
            if name is not None and name.namespace != SYSTEM_NAMESPACE:
                increments[TopicLife(str(name), uid)] = [*counts, 0]
        for name, size in sent.items():
            topic = registry.known.get(name)
            if topic is not None:
                life = TopicLife(str(name), topic.uid)
                increments.setdefault(life, [0, 0, 0])[-1] += size
        return {**increments}

    def _stored(self) -> dict[int, tuple[int, int]]:
        """Messages and bytes that partitions have stored since the last call, by the topic's
        uid."""
        seen: dict[tuple[int, int], _Counted] = {}
        stored: dict[int, tuple[int, int]] = {}
        for place, log in [*self._engine.topics.partitions.logs.items()]:
            counters = log.state.counters
            messages = counters.messages
            size = counters.bytes
            if not messages:
                continue
            before = self._seen.get(place)
            if before is None or before.counters is not counters:
                before = _Counted(counters, 0, 0)  # it was opened meanwhile
            if messages == before.messages:
                seen[place] = before
                continue
            seen[place] = _Counted(counters, messages, size)
            others = stored.get(place[0], (0, 0))
            new = messages - before.messages, size - before.bytes
            stored[place[0]] = others[0] + new[0], others[1] + new[1]
        self._seen = seen
        return stored

    def _look_at_lags(self) -> None:
        started_s = self._clock.monotonic_s()
        groups, unseen = self._engine.groups.lags_here(POSITIONS_LOOKED_MAX)
        summaries = [one.summary() for one in groups]
        queues = self._engine.queues.oldest(QUEUES_LOOKED_MAX)
        took_s = self._clock.monotonic_s() - started_s
        self._lags_after_s = started_s + max(took_s / LAG_SHARE, LAG_STEP_S / 2)
        if unseen and not groups:
            self._lag = None
            return
        found = worst_groups(summaries), worst_queues(queues)
        self.backlogs = Backlogs(self._clock.now_ms(), *found)
        lags = {self._key(one): one.lag for one in summaries}
        known = [lag for lag in lags.values() if lag is not None]
        self._lag = sum(known) if len(known) == len(lags) and not unseen else None
        self.rings.note_lags({key: lag for key, lag in lags.items() if key.topic.uid})

    def _key(self, group: GroupSummary) -> GroupOfTopic:
        name = TopicName.parse(group.topic)
        return GroupOfTopic(self.life_of(name), group.group)

    def life_of(self, name: TopicName) -> TopicLife:
        """The present generation of a topic; its uid is 0 if there is none."""
        record = self._engine.topics.registry.known.get(name)
        return TopicLife(str(name), 0 if record is None else record.uid)

    def _deleted(self) -> list[TopicLife]:
        """The topics of the history that are not there any more."""
        registry = self._engine.topics.registry
        known = {record.uid for record in [*registry.known.values()]}
        gone = []
        for life in self.rings.own_topics():
            if life.uid in known:
                continue
            try:
                found = registry.find(TopicName.parse(life.name)).uid
            except TopicNotFound:
                found = None
            except TMSError:
                continue  # the store does not say
            if found != life.uid:
                gone.append(life)
        return gone
