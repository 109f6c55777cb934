"""The overview of a namespace, as far as this process has it: topics with their size, groups with
their lag, queues with the messages that wait.

Invariants

* The numbers come from records and counters, page by page: a page reads at most one message for
  each committed position.
* An unknown number is None, never 0.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

from tms.delayed.delayed import DelayedMessages
from tms.errors import Unavailable
from tms.groups.groups import LogGroups
from tms.model.delayed import DelayedSummary
from tms.model.group import GroupSummary
from tms.model.lag import (
    ALL,
    PAGE,
    GroupOrder,
    InstanceLoad,
    QueueOrder,
    TopicOrder,
    TopicSize,
    in_order,
)
from tms.model.queue import QueueSummary
from tms.model.stats import EngineStats
from tms.model.topic import TopicName, check_namespace
from tms.queues import Queues
from tms.topics.owners import Peer
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics


class Stated(Protocol):
    """The engine whose numbers the overview reports."""

    def stats(self) -> EngineStats:
        """Counters and sizes."""
        ...

    def readiness(self) -> list[str]:
        """The reasons why the engine is not ready to store; empty when it is."""
        ...


class Glance:
    """The overview of an engine: topics, groups, queues and the load. Thread-safe; as
    `GlanceApi`."""

    def __init__(
        self,
        topics: Topics,
        groups: LogGroups,
        queues: Queues,
        delayed: DelayedMessages,
        engine: Stated,
    ) -> None:
        self._topics = topics
        self._delayed = delayed
        self._groups = groups
        self._queues = queues
        self._engine = engine
        self._started_s = topics.clock.monotonic_s()

    def namespaces(
        self, after: str | None = None, limit: int = PAGE, *, caller: str = ""
    ) -> list[str]:
        """Up to `limit` namespaces that have topics, by name, after this one, whoever calls."""
        self._topics.partitions.confirm()
        return list(islice(self._topics.registry.namespaces(after), limit))

    def topics(
        self,
        namespace: str,
        after: str | None = None,
        limit: int = PAGE,
        search: str | None = None,
        order: TopicOrder | None = None,
    ) -> list[TopicSize]:
        """Up to `limit` topics of a namespace whose names contain a text, with their sizes, in an
        order, after the one named `after`; also of partitions that other instances own."""
        if order and order is not TopicOrder.NAME:
            everything = self.topics(namespace, None, ALL, search)
            return in_order(everything, order, topic_place, after)[:limit]
        self._topics.partitions.confirm()
        page = self._topics.registry.page(namespace, after, limit, search)
        names = [name for name, _ in page]
        sizes = [self._topics.own.sizes(names)]
        for peer in self._peers_of(page):
            try:
                sizes.append(peer.sizes(names))
            except Unavailable:  # its partitions are missing in the sums
                continue
        return [_sum(page[at], [one[at] for one in sizes]) for at in range(len(page))]

    def _peers_of(self, page: Iterable[tuple[TopicName, TopicRecord]]) -> list[Peer]:
        """The other instances that own partitions of these topics."""
        peers: dict[str, Peer] = {}
        for name, record in page:
            try:
                parts = self._topics.partitions.split(name, record)
            except Unavailable:  # the view does not say
                continue
            peers |= {peer.name: peer for peer in parts.elsewhere}
        return [*peers.values()]

    def groups(
        self,
        namespace: str,
        after: str | None = None,
        limit: int = PAGE,
        search: str | None = None,
        order: GroupOrder | None = None,
        shards: Iterable[int] | None = None,
    ) -> list[GroupSummary]:
        """Up to `limit` groups of a namespace whose `TOPIC/GROUP` contains a text, in an order,
        after `TOPIC/GROUP`; in some shards, or in all. Raises `NotOwner`."""
        if order and order is not GroupOrder.NAME:
            everything = self.groups(namespace, None, ALL, search, None, shards)
            return in_order(everything, order, group_place, after)[:limit]
        self._topics.partitions.confirm()
        return self._groups.page(check_namespace(namespace), _place(after), limit, shards, search)

    def queues(
        self,
        namespace: str,
        after: str | None = None,
        limit: int = PAGE,
        search: str | None = None,
        order: QueueOrder | None = None,
        shards: Iterable[int] | None = None,
    ) -> list[QueueSummary]:
        """Up to `limit` queues of a namespace whose `TOPIC/GROUP` contains a text, in an order,
        after `TOPIC/GROUP`; in some shards, or in all. Raises `NotOwner`."""
        if order and order is not QueueOrder.NAME:
            everything = self.queues(namespace, None, ALL, search, None, shards)
            return in_order(everything, order, group_place, after)[:limit]
        self._topics.partitions.confirm()
        return self._queues.page(check_namespace(namespace), _place(after), limit, shards, search)

    def delayed(
        self,
        namespace: str,
        after: str | None = None,
        limit: int = PAGE,
        shards: Collection[int] | None = None,
    ) -> list[DelayedSummary]:
        """Up to `limit` topics of a namespace that have delayed messages, by name, after the one
        named `after`; in some shards, or in all. Raises `NotOwner`."""
        self._topics.partitions.confirm()
        return self._delayed.topics(check_namespace(namespace), after, limit, shards)

    def instances(self) -> list[InstanceLoad]:
        """The load of this process, the only one that an engine knows of."""
        stats, uptime_s = self._engine.stats(), self._topics.clock.monotonic_s() - self._started_s
        load = InstanceLoad(
            instance="",
            address="",
            ready=not self._engine.readiness(),
            uptime_ms=round(uptime_s * 1_000),
            messages_in=stats.messages,
            bytes_in=stats.bytes,
            partitions=stats.partitions_open,
            transactions_open=stats.transactions_open,
            transactions_oldest_ms=stats.transactions_oldest_ms,
            transactions_invalid=stats.transactions_invalid,
            partitions_blocked=stats.partitions_blocked,
            now_ms=self._topics.clock.now_ms(),
        )
        return [load]


def topic_place(one: TopicSize | DelayedSummary) -> str:
    """The name of a topic, without its namespace: its place in a list."""
    return TopicName.parse(one.topic).topic


def group_place(one: GroupSummary | QueueSummary) -> str:
    """`TOPIC/GROUP` of a group or queue: its place in a list."""
    return f"{TopicName.parse(one.topic).topic}/{one.group}"


def _place(after: str | None) -> tuple[str, str] | None:
    if after is None:
        return None
    topic, _, group = after.partition("/")
    return topic, group


def _sum(topic: tuple[TopicName, TopicRecord], sizes: Sequence[TopicSize]) -> TopicSize:
    """A topic's size from what its owners say; unknown unless all of its partitions are there."""
    name, record = topic
    told = sum(size.partitions for size in sizes)
    if told != record.partitions or any(s.messages is None and s.partitions for s in sizes):
        return TopicSize(str(name), record.partitions)
    return TopicSize(
        str(name),
        record.partitions,
        sum(size.messages or 0 for size in sizes),
        sum(size.published or 0 for size in sizes),
        sum(size.stored_bytes or 0 for size in sizes),
    )
