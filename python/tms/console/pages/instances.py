"""The instances of the service: their work and events, owners of partitions, moves and drains.

A move and a drain are shown with numbers before they are done; a form says which owner its page has
shown, so that two people do not undo each other's moves unseen.
"""

import asyncio
from collections import Counter
from typing import Any

from tms.console.visit import (
    DONE,
    NUMBER_CHARS_MAX,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import Conflict, Invalid, NotFound
from tms.model.access import Access
from tms.model.cluster import ClusterView, InstanceInfo, TopicOwners
from tms.model.lag import InstanceLoad
from tms.model.topic import DEFAULT_NAMESPACE, TopicInfo, TopicName

EVENTS_SHOWN = 200
CLUSTER = "cluster"


async def show_instances(visit: Visit) -> PageAnswer:
    """All instances with their work, the newest events, and the way to the owners of a topic."""
    if visit.asked("topic"):
        namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
        name = TopicName.of(namespace, visit.asked("topic").strip())
        return Redirect(path_of("instances", "owners", name.namespace, name.topic))
    view: ClusterView = await visit.ask("cluster.view")
    (loads, loads_error), (events, events_error) = await asyncio.gather(
        visit.tried("glance.instances"), visit.tried("cluster.events")
    )
    is_alone = not view.instances
    values = {
        "view": view,
        "rows": [*_rows(view, loads or [])],
        "loads_error": loads_error,
        "events": [] if events is None else events[: -EVENTS_SHOWN - 1 : -1],
        "events_error": None if is_alone else events_error,
        "may_operate": visit.may(Access.OPERATE, CLUSTER),
        "versions": sorted({one.version for one in view.instances}),
    }
    return WebPage("instances.html", values)


def _rows(
    view: ClusterView, loads: list[InstanceLoad]
) -> list[tuple[InstanceInfo | None, InstanceLoad | None]]:
    """Each instance with its load; either may be unknown."""
    infos = {one.id: one for one in view.instances}
    known = {one.instance: one for one in loads}
    return [(infos.get(id), known.get(id)) for id in sorted({*infos, *known})]


# -- owners ----------------------------------------------------------------------------------------


async def show_owners(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The owners of a topic's partitions; once a partition and an instance are chosen, the move."""
    name = TopicName.of(namespace, topic)
    view: ClusterView = await visit.ask("cluster.view")
    values: dict[str, Any] = {
        "name": name,
        "view": view,
        "owners": None,
        "move": None,
        "fault": None,
        "may_operate": visit.may(Access.OPERATE, _resource(name)),
    }
    info: TopicInfo = await visit.ask("topics.describe_topic", name=name)
    if not view.instances:
        return WebPage("owners.html", values)
    owners: TopicOwners = await visit.ask("cluster.owners", name=name)
    values |= {
        "owners": owners,
        "parts": {part.partition: part for part in info.partition_infos},
        "shares": sorted(Counter(owners.owners).items()),
    }
    if not visit.asked("partition"):
        return WebPage("owners.html", values)
    try:
        partition = _partition(visit.asked("partition"), owners)
        values["move"] = _plan(visit, view, name, owners, partition)
    except (Invalid, NotFound) as error:
        return WebPage("owners.html", values | {"fault": error}, 422)
    return WebPage("owners.html", values | {"partition": partition})


def _plan(
    visit: Visit, view: ClusterView, name: TopicName, owners: TopicOwners, partition: int
) -> dict[str, Any]:
    """The move of a partition as a page shows it; to "" it is placed again. Raises `Invalid`."""
    to = visit.asked("to")
    place = {"name": name, "partition": partition}
    command = [str(name), str(partition)]
    if not to:
        question = visit.question("cluster.unpin", place)
        same = visit.same_as(["cluster", "unpin", *command], question)
    else:
        target = next((one for one in view.instances if one.id == to), None)
        if target is None:
            raise Invalid(f"There is no instance {to!r:.80} now; choose another one.", field="to")
        question = visit.question("cluster.move", place | {"to": to})
        same = visit.same_as(["cluster", "move", *command, to], question)
        if target.draining:
            raise Invalid(
                f"The instance {to} is draining, so it would own nothing; choose another one.",
                field="to",
            )
    return {"to": to, "owner": owners.owners[partition], "same": same}


def _partition(text: str, owners: TopicOwners) -> int:
    """The number of a partition that there is. Raises `Invalid`."""
    is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX
    if is_number and int(text) < len(owners.owners):
        return int(text)
    raise Invalid(
        f"A partition is a number from 0 to {len(owners.owners) - 1}, got {text!r:.40}.",
        field="partition",
    )


async def move(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Choose the owner of a partition, or let it be placed again. Raises `Conflict` if the owner is
    another one than the page has shown."""
    name = TopicName.of(namespace, topic)
    owners: TopicOwners = await visit.ask("cluster.owners", name=name)
    partition = _partition(visit.given("partition"), owners)
    seen = visit.given("owner")
    to = visit.given("to")
    if owners.owners[partition] != seen:
        raise Conflict(
            f"Nothing was changed: partition {partition} of {name} belongs to "
            f"{owners.owners[partition]} now, and this form was made when it belonged to "
            f"{seen!r:.80}. Look at the owners again."
        )
    if to:
        await visit.ask("cluster.move", name=name, partition=partition, to=to)
        text = f"Partition {partition} of {name} goes to {to}."
    else:
        await visit.ask("cluster.unpin", name=name, partition=partition)
        text = f"Partition {partition} of {name} goes where placement puts it."
    return Redirect(path_of("instances", "owners", *name), Notice(text, DONE))


def _resource(name: TopicName) -> str:
    return f"topic:{name.namespace}:{name.topic}"


# -- draining --------------------------------------------------------------------------------------


async def show_drain(visit: Visit, instance: str) -> PageAnswer:
    """The page on which a visitor confirms that an instance is to own nothing."""
    view: ClusterView = await visit.ask("cluster.view")
    values: dict[str, Any] = {
        "instance": instance,
        "view": view,
        "may_operate": visit.may(Access.OPERATE, CLUSTER),
    }
    if not view.instances:
        return WebPage("drain.html", values | {"info": None})
    info = next((one for one in view.instances if one.id == instance), None)
    if info is None:
        raise NotFound(
            f"There is no instance {instance!r:.100} now. The page Instances has those that are "
            "there."
        )
    loads, _ = await visit.tried("glance.instances")
    load = next((one for one in loads or () if one.instance == instance), None)
    values |= {
        "info": info,
        "load": load,
        "others": [one.id for one in view.instances if one.id != instance and not one.draining],
        "same": visit.same_as(
            ["cluster", "drain", instance, "--yes"],
            visit.question("cluster.drain", {"id": instance}),
        ),
    }
    return WebPage("drain.html", values)


async def drain(visit: Visit, instance: str) -> PageAnswer:
    """Let an instance whose name was typed own nothing."""
    visit.require_typed(instance)
    await visit.ask("cluster.drain", id=instance)
    text = f"{instance} hands over all that it owns; its next start ends that."
    return Redirect(path_of("instances"), Notice(text, DONE))


_OWNERS = "/console/instances/owners/{namespace}/{topic}"
_DRAIN = "/console/instances/{instance}/drain"
ROUTES = (
    PageRoute("GET", "/console/instances", show_instances),
    PageRoute("GET", _OWNERS, show_owners),
    PageRoute("POST", _OWNERS, move),
    PageRoute("GET", _DRAIN, show_drain),
    PageRoute("POST", _DRAIN, drain),
)
