"""The topics of a namespace, and one topic."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tms.console.pages.groups import lag_table
from tms.console.pages.hours import charts_of_topic
from tms.console.pages.lists import page_of
from tms.console.pages.topic_settings import texts_of
from tms.console.visit import PageAnswer, PageRoute, Visit, WebPage
from tms.errors import TMSError
from tms.model.access import Access
from tms.model.cluster import TopicOwners
from tms.model.topic import DEFAULT_NAMESPACE, PartitionInfo, TopicInfo, TopicName
from tms.model.transaction import HeldPartition, TransactionInfo

GROUPS_SHOWN = 200
PRODUCERS_SHOWN = 200
TRANSACTIONS = "transactions"  # the resource


async def show_topics(visit: Visit) -> PageAnswer:
    """The topics of a namespace with what they hold, a page of them."""
    namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
    listing = await page_of(
        visit, "glance.topics", namespace, lambda one: TopicName.parse(one.topic).topic
    )
    values = {
        "namespace": namespace,
        "listing": listing,
        "may_create": visit.may_some(Access.MANAGE, namespace),
    }
    return WebPage("topics.html", values)


async def show_topic(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """A topic: partitions and their owners, messages held back, settings, groups, queues, delayed
    messages."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    resource = f"topic:{namespace}:{topic}"
    view, _ = await visit.tried("cluster.view")
    (groups, groups_error), (queues, queues_error), *others = await asyncio.gather(
        visit.tried("groups.list_groups", topic=name),
        visit.tried("queues.list_queues", topic=name),
        visit.tried_if(Access.CONSUME, resource, "delayed.page", name=name, limit=0),
        visit.tried("topics.offsets", name=name),
        _owners(visit, name, view is not None and len(view.instances) > 0),
        visit.tried("history.topic", name=name),
    )
    (delayed, _), (ends, ends_error), (owners, owners_error), (history, history_error) = others
    rows = _rows(info, ends or {}, () if owners is None else owners.owners)
    open_ones = None
    if any(one.held_back for one in rows):
        open_ones, _ = await visit.tried_if(Access.OPERATE, TRANSACTIONS, "transactions.open")
    shown = sorted(groups or (), key=lambda one: -(one.lag or 0))[:GROUPS_SHOWN]
    values = {
        "name": name,
        "info": info,
        "held": held(info),
        "rows": rows,
        "ends_error": ends_error,
        "owners_error": owners_error,
        "holders": None if open_ones is None else _holders(open_ones, name),
        "groups": shown,
        "lags": await lag_table(visit, name, shown),
        "groups_more": max(0, len(groups or ()) - GROUPS_SHOWN),
        "groups_error": groups_error,
        "queues": queues,
        "queues_error": queues_error,
        "delayed": delayed,
        "history": history,
        "history_error": history_error,
        "charts": [] if history is None else charts_of_topic(history),
        "texts": texts_of(info.settings),
        "may_manage": visit.may(Access.MANAGE, resource),
        "may_consume": visit.may(Access.CONSUME, resource),
        "may_publish": visit.may(Access.PUBLISH, resource),
    }
    return WebPage("topic.html", values)


async def _owners(
    visit: Visit, name: TopicName, is_cluster: bool
) -> tuple[TopicOwners | None, TMSError | None]:
    """The owners of a topic's partitions, if there are several instances."""
    return await visit.tried("cluster.owners", name=name) if is_cluster else (None, None)


class PartitionRow(NamedTuple):
    """A partition on the page of its topic. `held_back`: messages that readers of committed
    messages do not get yet, None if that is unknown; `owner`: empty without a cluster."""

    info: PartitionInfo
    held_back: int | None
    owner: str

    @property
    def held_back_known(self) -> int:
        """The messages held back that are known of."""
        return self.held_back or 0


def _rows(
    info: TopicInfo, ends: Mapping[int, int], owners: Sequence[str]
) -> Sequence[PartitionRow]:
    rows: list[PartitionRow] = []
    for one in info.partition_infos:
        end = ends.get(one.partition)
        # The end was read a moment later, so that it may be behind the one of the description.
        held_back = None if end is None else max(0, one.end_offset - max(end, one.start_offset))
        owner = owners[one.partition] if one.partition < len(owners) else ""
        rows.append(PartitionRow(one, held_back, owner))
    return rows


def _holders(
    open_ones: Sequence[TransactionInfo], name: TopicName
) -> list[tuple[TransactionInfo, HeldPartition]]:
    """The transactions for which readers of a topic wait, with each partition."""
    return [(one, at) for one in open_ones for at in one.held if at.topic == str(name)]


def held(info: TopicInfo) -> dict[str, Any]:
    """The messages and bytes of a topic."""
    parts = info.partition_infos
    return {
        "messages": sum(part.end_offset - part.start_offset for part in parts),
        "bytes": sum(part.stored_bytes for part in parts),
    }


async def show_producers(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The producers that a partition remembers."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    partition = visit.number("partition", 0, 0, info.settings.partitions - 1)
    asked = {"name": name, "partition": partition, "limit": PRODUCERS_SHOWN}
    producers, error = await visit.tried("topics.producers", **asked)
    command = ["topic", "producers", str(name), "--partition", str(partition)]
    values = {
        "name": name,
        "partitions": info.settings.partitions,
        "partition": partition,
        "producers": producers,
        "error": error,
        "same": visit.same_as(
            [*command, "--limit", str(PRODUCERS_SHOWN)], visit.question("topics.producers", asked)
        ),
    }
    return WebPage("producers.html", values)


_TOPIC = "/console/topics/{namespace}/{topic}"
ROUTES = (
    PageRoute("GET", "/console/topics", show_topics),
    PageRoute("GET", _TOPIC, show_topic),
    PageRoute("GET", f"{_TOPIC}/producers", show_producers),
)
