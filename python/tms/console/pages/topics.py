"""The topics of a namespace, and one topic."""

import asyncio
from typing import Any

from tms.console.pages.hours import charts_of_topic
from tms.console.pages.lists import page_of
from tms.console.rendering import segment
from tms.console.visit import DONE, Notice, PageAnswer, PageRoute, Redirect, Visit, WebPage, path_of
from tms.model.access import Access
from tms.model.topic import DEFAULT_NAMESPACE, TopicInfo, TopicName

GROUPS_SHOWN = 200


async def show_topics(visit: Visit) -> PageAnswer:
    """The topics of a namespace with what they hold, a page of them."""
    namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
    listing = await page_of(visit, "glance.topics", namespace, place=lambda one: one.topic)
    return WebPage("topics.html", {"namespace": namespace, "listing": listing})


async def show_topic(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """A topic: partitions, settings, groups, queues, delayed messages."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    (
        (groups, groups_error),
        (queues, queues_error),
        (delayed, delayed_error),
        (history, history_error),
    ) = await asyncio.gather(
        visit.tried("groups.list_groups", topic=name),
        visit.tried("queues.list_queues", topic=name),
        visit.tried("delayed.page", name=name, limit=0),
        visit.tried("history.topic", name=name),
    )
    values = {
        "name": name,
        "info": info,
        "held": held(info),
        "groups": sorted(groups or (), key=lambda one: -(one.lag or 0))[:GROUPS_SHOWN],
        "groups_error": groups_error,
        "queues": queues,
        "queues_error": queues_error,
        "delayed": delayed,
        "delayed_error": delayed_error,
        "history": history,
        "history_error": history_error,
        "charts": [] if history is None else charts_of_topic(history),
        "may_manage": visit.may(Access.MANAGE, f"topic:{namespace}:{topic}"),
        "may_consume": visit.may(Access.CONSUME, f"topic:{namespace}:{topic}"),
        "may_publish": visit.may(Access.PUBLISH, f"topic:{namespace}:{topic}"),
    }
    return WebPage("topic.html", values)


async def ask_to_delete(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The page on which a visitor confirms that a topic is to be deleted."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    same = visit.same_as(
        ["topic", "delete", str(name)], visit.question("topics.delete_topic", {"name": name})
    )
    values = {"name": name, "info": info, "held": held(info), "same": same}
    return WebPage("topic_delete.html", values)


async def delete(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Delete a topic whose name was typed."""
    name = TopicName.of(namespace, topic)
    visit.require_typed(str(name))
    await visit.ask("topics.delete_topic", name=name)
    back = f"{path_of('topics')}?namespace={segment(namespace)}"
    return Redirect(back, Notice(f"The topic {name} was deleted.", DONE))


def held(info: TopicInfo) -> dict[str, Any]:
    """The messages and bytes of a topic."""
    parts = info.partition_infos
    return {
        "messages": sum(part.end_offset - part.start_offset for part in parts),
        "bytes": sum(part.stored_bytes for part in parts),
    }


_TOPIC = "/console/topics/{namespace}/{topic}"
ROUTES = (
    PageRoute("GET", "/console/topics", show_topics),
    PageRoute("GET", _TOPIC, show_topic),
    PageRoute("GET", f"{_TOPIC}/delete", ask_to_delete),
    PageRoute("POST", f"{_TOPIC}/delete", delete),
)
