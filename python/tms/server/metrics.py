"""The metrics of the service, in the text format of Prometheus.

* Counting costs the hot path a few additions: the numbers are plain and become metrics when asked.
* The number of series is bounded: labels are operations and statuses, never clients. Of groups the
  `GROUPS_SHOWN`, and of their partitions the `POSITIONS_SHOWN`, that are furthest behind have
  series of their own, of queues the `QUEUES_SHOWN` that are oldest; all others share one.
  `tms_without_own_series` has the number of those others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from tms.model.group import GroupLag
from tms.model.lag import Lag
from tms.model.queue import QueueInfo, QueueSummary
from tms.model.stats import EngineStats
from tms.model.topic import TopicName
from tms.runtime.histogram import Histogram
from tms.server.http.request import Budget
from tms.server.http.watchdog import Watchdog

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
QUEUES_SHOWN = 100
GROUPS_SHOWN = 100
POSITIONS_SHOWN = 200
POSITIONS_LOOKED_MAX = 20_000  # partitions of groups that a scrape looks at
_OTHER = "(others)"
_OTHERS = (_OTHER, _OTHER)
_GAUGES = {
    "cluster_instances": "Instances that this one sees, itself included; 0 for one that is alone.",
    "cluster_opening_ms": "How long this instance took to open transactions and shards, in ms.",
    "cluster_clock_skew_ms": "The largest skew between the clocks of this and another instance.",
    "cluster_shards": "Shards that this instance keeps: groups, queues and delayed messages.",
    "cluster_coordinates": "1 at the instance that keeps transactions.",
    "cluster_store_away": "1 at an instance that does not reach the store.",
    "cluster_unfit": "1 at an instance that owns nothing, as it reaches no store, or no peer it.",
    "delayed_waiting": "Delayed messages that are not due yet.",
    "partitions_open": "Partition logs that are open.",
    "cache_bytes": "Bytes of recent blocks in memory.",
    "in_flight_bytes": "Bytes handed to the engine that are not stored yet.",
    "clock_ahead_ms": "How far the clock of the furthest partition is ahead of the wall clock.",
    "transactions_open": "Transactions in progress.",
    "transactions_oldest_ms": "For how long the oldest of them is open.",
    "transactions_invalid": "Transactions on the invalid list.",
    "partitions_blocked": "Partitions where readers of committed messages wait for a transaction.",
    "partitions_held": "Partitions where they wait for a transaction that was begun elsewhere.",
    "retention_held_back_ms": "How far retention stays behind the wall clock after a jump of it.",
}
_COUNTERS = {
    "cluster_taken_over": "Partitions taken over from other instances.",
    "cluster_released": "Partitions closed because another instance should own them.",
    "cluster_fates_asked": "Questions to the coordinator what became of transactions.",
    "messages": "Messages stored.",
    "blocks": "Blocks stored.",
    "bytes": "Bytes of blocks stored.",
    "writes": "Writes to the store; each takes all blocks that wait (group commit).",
    "syncs": "Writes that were synced to the disk.",
    "delayed_delivered": "Delayed messages that became due and are in the log.",
    "transactions_committed": "Transactions committed.",
    "compaction_passes": "Passes of compaction over a partition.",
    "compaction_removed": "Messages that compaction removed.",
    "compaction_reclaimed_bytes": "Bytes that compaction gave back.",
    "erased": "Messages erased.",
    "cache_hits": "Fetches answered from memory.",
    "cache_misses": "Fetches that read the store.",
}
# by name: an attribute of `Metrics`, and the sentence of the metric
_HTTP_COUNTERS = {
    "http_received_bytes": ("bytes_in", "Bytes of published bodies."),
    "http_sent_bytes": ("bytes_out", "Bytes of fetched bodies, and of parts sent to followers."),
    "http_connections_refused": ("_watchdog.refused", "Connections beyond the limit."),
    "http_connections_cut_off": (
        "_watchdog.cut_off",
        "Connections closed because the other side was too slow.",
    ),
    "tls_handshakes_failed": (
        "_watchdog.handshakes_failed",
        "Connections whose TLS handshake failed.",
    ),
    "http_forwarded": ("forwarded", "Requests sent on to the instance that keeps it."),
    "http_followed_bytes": ("followed_bytes", "Bytes of parts sent to them."),
    "http_followed_parts": (
        "followed_parts",
        "Parts sent to them, those that say that nothing came included.",
    ),
}
_HTTP_GAUGES = {
    "http_long_polls": ("long_polls", "Fetches and receives that wait for a message."),
    "http_followers": ("followers", "Clients that follow a topic."),
}


class Metrics(Collector):
    """All numbers of a service. Changed by the event loop only."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        ready: Callable[[], bool],
        watchdog: Watchdog,
        budgets: Iterable[Budget],
        queues: Callable[[], Sequence[QueueInfo]],
        lateness: Histogram,
    ) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.front_answers: Counter[tuple[str, str, str]] = Counter()
        self.front_connections: dict[str, Callable[[], int]] = {}
        self.seconds = {name: Histogram(SECONDS) for name in ("publish", "fetch", "commit")}
        self.bytes_in = 0
        self.bytes_out = 0
        self.sent: Counter[TopicName] = Counter()  # bytes to clients, since `taken_sent`
        self.long_polls = 0
        self.followers = 0
        self.followed_bytes = 0
        self.followed_parts = 0
        self.forwarded = 0
        self.groups: Sequence[GroupLag] = ()  # this and the next two as of the last scrape
        self.groups_unseen = 0  # that it did not look at
        self.waiting: Sequence[QueueSummary] = ()
        self._stats = stats
        self._lateness = lateness
        self._ready = ready
        self._watchdog = watchdog
        self._budgets = tuple(budgets)
        self._queues = queues
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def taken_sent(self) -> Counter[TopicName]:
        """The bytes that clients have received by topic, since the last call."""
        sent = self.sent
        self.sent = Counter()
        return sent

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text and its media type, Prometheus or OpenMetrics as `accept` says."""
        encoder, media = choose_encoder(accept)
        return encoder(self._registry), media

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        answers = CounterMetricFamily(
            "tms_http_answers", "Answers by operation and status.", labels=("operation", "status")
        )
        for (operation, status), count in list(self.answers.items()):
            answers.add_metric((operation, str(status)), count)
        yield answers
        for name, histogram in self.seconds.items():
            yield HistogramMetricFamily(
                f"tms_http_{name}_seconds",
                f"Seconds from the headers of a {name} to its answer, long polls included, "
                "answers to followers not.",
                buckets=list(histogram.buckets()),
                sum_value=histogram.sum,
            )
        yield from self._of_http()
        yield from self._of_fronts()
        yield from self._of_engine()
        queues = self._queues()
        yield from of_queues(queues)
        yield from of_waiting(self.waiting)
        groups, without = of_groups(self.groups)
        yield from groups
        without["queues"] = max(0, len(queues) - QUEUES_SHOWN)
        without["groups"] += self.groups_unseen
        left_out = GaugeMetricFamily(
            "tms_without_own_series", "How many share the series of (others).", labels=("kind",)
        )
        for kind, count in without.items():
            left_out.add_metric((kind,), count)
        yield left_out

    def _of_http(self) -> Iterator[Metric]:
        for name, (of, doc) in _HTTP_COUNTERS.items():
            yield CounterMetricFamily(f"tms_{name}", doc, attrgetter(of)(self))
        for name, (of, doc) in _HTTP_GAUGES.items():
            yield GaugeMetricFamily(f"tms_{name}", doc, attrgetter(of)(self))
        connections = len(self._watchdog.connections)
        yield GaugeMetricFamily("tms_http_connections", "Connections open now.", connections)
        held = GaugeMetricFamily(
            "tms_http_in_flight_bytes", "Bytes of bodies in memory.", labels=("kind",)
        )
        limit = GaugeMetricFamily(
            "tms_http_in_flight_limit_bytes", "Their configured bound.", labels=("kind",)
        )
        refused = CounterMetricFamily(
            "tms_http_overloaded", "Requests refused at that bound.", labels=("kind",)
        )
        for budget in self._budgets:
            held.add_metric((budget.what,), budget.bytes)
            limit.add_metric((budget.what,), budget.bytes_max)
            refused.add_metric((budget.what,), budget.refused)
        yield from (held, limit, refused)

    def _of_fronts(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "tms_front_answers",
            "Answers of front ends with a port of their own, by request and outcome.",
            labels=("front", "request", "outcome"),
        )
        for key, count in list(self.front_answers.items()):
            answers.add_metric(key, count)
        yield answers
        connections = GaugeMetricFamily(
            "tms_front_connections", "Connections of front ends open now.", labels=("front",)
        )
        for name, count_now in self.front_connections.items():
            connections.add_metric((name,), count_now())
        yield connections

    def _of_engine(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "tms_ready", "1 when the service is ready, see /readyz.", self._ready()
        )
        yield HistogramMetricFamily(
            "tms_delayed_lateness_seconds",
            "How much later than it was due a delayed message came into the log.",
            buckets=self._lateness.buckets(),
            sum_value=self._lateness.sum,
        )
        stats = self._stats()
        for field in fields(stats):
            name, value = field.name, getattr(stats, field.name)
            if name in _COUNTERS:
                yield CounterMetricFamily(f"tms_{name}", _COUNTERS[name], value)
            elif name in _GAUGES:
                yield GaugeMetricFamily(f"tms_{name}", _GAUGES[name], value)


def of_groups(groups: Sequence[GroupLag]) -> tuple[list[Metric], Counter[str]]:
    """Members and lags of groups, and how many have no series of their own, by kind."""
    members = GaugeMetricFamily(
        "tms_group_members", "Members of a group.", labels=("group", "topic")
    )
    furthest = sorted(groups, key=_behind)
    for group in furthest[:GROUPS_SHOWN]:
        members.add_metric((group.group, group.topic), group.members)
    rest = furthest[GROUPS_SHOWN:]
    if rest:
        members.add_metric(_OTHERS, sum(group.members for group in rest))
    positions = sorted(
        (-lag.messages, group.topic, group.group, number, lag)
        for group in groups
        for number, lag in enumerate(group.lags)
        if lag is not None
    )
    shown, others = positions[:POSITIONS_SHOWN], positions[POSITIONS_SHOWN:]
    series = [((group, topic, str(number)), lag) for _, topic, group, number, lag in shown]
    if others:
        lags = [one[-1] for one in others]
        together = Lag(sum(lag.messages for lag in lags), max(lag.ms for lag in lags))
        series.append(((*_OTHERS, _OTHER), together))
    labels = ("group", "topic", "partition")
    behind = GaugeMetricFamily(
        "tms_group_lag_messages", "Messages that a group has before it.", labels=labels
    )
    age = GaugeMetricFamily(
        "tms_group_lag_seconds", "For how long the first of them has been there.", labels=labels
    )
    for values, lag in series:
        behind.add_metric(values, lag.messages)
        age.add_metric(values, lag.ms / 1_000)
    without = Counter({"groups": len(rest), "group_partitions": len(others)})
    return [members, behind, age], without


def _behind(group: GroupLag) -> tuple[int, str, str]:
    messages = sum(lag.messages for lag in group.lags if lag is not None)
    return -messages, group.topic, group.group


def of_waiting(queues: Sequence[QueueSummary]) -> Iterator[Metric]:
    """The numbers of messages that wait in queues, and their ages."""
    names = ("group", "topic")
    waiting = GaugeMetricFamily(
        "tms_queue_waiting", "Messages that are not settled and not with workers.", labels=names
    )
    oldest = GaugeMetricFamily(
        "tms_queue_oldest_seconds",
        "For how long the oldest message has been there that is not settled.",
        labels=names,
    )
    for queue in queues:
        waiting.add_metric((queue.group, queue.topic), queue.waiting)
        if queue.oldest_ms is not None:
            oldest.add_metric((queue.group, queue.topic), queue.oldest_ms / 1_000)
    yield from (waiting, oldest)


def of_queues(infos: Sequence[QueueInfo]) -> Iterator[Metric]:
    """Counts of messages in queues, and of their outcomes."""
    series: dict[tuple[str, str], list[int]] = {}
    oldest = sorted(infos, key=lambda info: (info.created_ms, info.topic, info.group))
    for number, info in enumerate(oldest):
        labels = (info.group, str(info.topic)) if number < QUEUES_SHOWN else _OTHERS
        mine = (info.leased, info.ready, info.redelivered, info.died)
        sums = series.setdefault(labels, [0] * len(mine))
        series[labels] = [a + b for a, b in zip(sums, mine, strict=True)]
    names = ("group", "topic")
    metrics: list[GaugeMetricFamily | CounterMetricFamily] = [
        GaugeMetricFamily("tms_queue_leased", "Messages with workers.", labels=names),
        GaugeMetricFamily("tms_queue_ready", "Messages to be delivered again.", labels=names),
        CounterMetricFamily("tms_queue_redelivered", "Further deliveries.", labels=names),
        CounterMetricFamily("tms_queue_dead", "Messages that became dead letters.", labels=names),
    ]
    for labels, counts in series.items():
        for metric, count in zip(metrics, counts, strict=True):
            metric.add_metric(labels, count)
    yield from metrics
