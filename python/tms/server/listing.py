"""Lists over several instances, page by page, filtered by what the caller may see.

Invariants

* A page has as many entries as requested, unless there are no more; a caller that may not see all
  gets those that it may see.
* Other instances are asked for their part. An instance that does not answer is an error, not a
  shorter list; only numbers may be missing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tms.api import bodies
from tms.api.glance import GroupsBody, QueuesBody, SizesBody
from tms.api.parameters import TOPICS_DEFAULT
from tms.errors import TMSError
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad
from tms.model.queue import QueueInfo, QueueSummary
from tms.model.topic import TopicName
from tms.server.instances import own_load
from tms.server.service import Service

T = TypeVar("T")
Sees = Callable[[str], bool]  # of a name in a list
_Read = Callable[[str | None, int], list[T]]


def everything(_: str) -> bool:
    """Nothing is hidden."""
    return True


def works_of(service: Service) -> dict[str, Callable[..., Any]]:
    """The functions that answer, by the names of the operations."""
    lists = Lists(service)
    return {
        "topics.list_topics": lists.topics,
        "queues.list_queues": lists.queues_of_topic,
        "groups.list_groups": lists.groups_of_topic,
        "glance.topics": lists.sizes,
        "glance.groups": lists.groups,
        "glance.queues": lists.queues,
        "glance.instances": lists.instances,
    }


class Lists:
    """Lists of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    # -- of a namespace ----------------------------------------------------------------------------

    def topics(
        self, namespace: str, sees: Sees, after: str | None = None, limit: int = TOPICS_DEFAULT
    ) -> bodies.TopicsBody:
        """A page of topics, and where the next one begins."""

        def read(begin: str | None, size: int) -> list[Any]:
            return self._engine.list_topics(namespace, begin, size)

        begin = None if after is None else TopicName.of(namespace, after).topic
        return bodies.TopicsBody(*_page(read, lambda info: info.topic, sees, begin, limit))

    def sizes(
        self, namespace: str, sees: Sees, after: str | None = None, limit: int = TOPICS_DEFAULT
    ) -> SizesBody:
        """The topics of a namespace with their sizes."""

        def read(begin: str | None, size: int) -> list[Any]:
            return self._engine.glance.topics(namespace, begin, size)

        def name(size: Any) -> str:
            return TopicName.parse(size.topic).topic

        return SizesBody(*_page(read, name, sees, after, limit))

    def groups(
        self, namespace: str, sees: Sees, after: str | None = None, limit: int = TOPICS_DEFAULT
    ) -> GroupsBody:
        """The groups of a namespace, also those that other instances keep."""

        def read(begin: str | None, size: int) -> list[GroupSummary]:
            split = self._engine.shards.split()
            found = self._engine.glance.groups(namespace, begin, size, split.here)
            for peer, shards in split.elsewhere.items():
                found += peer.groups_of(namespace, shards, begin, size)
            return sorted(found, key=_in_order)[:size]

        return GroupsBody(*_page(read, _list_key, sees, after, limit))

    def queues(
        self, namespace: str, sees: Sees, after: str | None = None, limit: int = TOPICS_DEFAULT
    ) -> QueuesBody:
        """The queues of a namespace, also those that other instances keep."""

        def read(begin: str | None, size: int) -> list[QueueSummary]:
            split = self._engine.shards.split()
            found = self._engine.glance.queues(namespace, begin, size, split.here)
            for peer, shards in split.elsewhere.items():
                found += peer.queues_of(namespace, shards, begin, size)
            return sorted(found, key=_in_order)[:size]

        return QueuesBody(*_page(read, _list_key, sees, after, limit))

    # -- of a topic --------------------------------------------------------------------------------

    def queues_of_topic(self, topic: TopicName, sees: Sees) -> list[QueueInfo]:
        """The queues of a topic, also those that others keep."""
        split = self._engine.shards.split()
        found = self._engine.queues.list_queues(topic, split.here)
        for peer, shards in split.elsewhere.items():
            found += peer.list_queues_of(topic, shards)
        return sorted((one for one in found if sees(one.group)), key=lambda one: one.group)

    def groups_of_topic(self, topic: TopicName, sees: Sees) -> list[GroupSummary]:
        """The groups of a topic, also those that others keep."""
        split = self._engine.shards.split()
        found = self._engine.groups.list_groups(topic, split.here)
        for peer, shards in split.elsewhere.items():
            found += peer.list_groups_of(topic, shards)
        return sorted((one for one in found if sees(one.group)), key=lambda one: one.group)

    # -- of the cluster ----------------------------------------------------------------------------

    def instances(self) -> list[InstanceLoad]:
        """The load of each instance; an instance that does not answer has only its name."""
        loads, cluster = [own_load(self._service)], self._engine.cluster
        for peer in () if cluster is None else cluster.others():
            try:
                loads.append(peer.load())
            except TMSError:
                loads.append(InstanceLoad(peer.name, peer.address, answers=False))
        return sorted(loads, key=lambda load: load.instance)


def _page(
    read: _Read[T], name: Callable[[T], str], sees: Sees, after: str | None, limit: int
) -> tuple[list[T], str | None]:
    """Up to `limit` of those that are seen, and the name of the last one if there may be more."""
    size = limit if sees is everything else max(limit, TOPICS_DEFAULT)
    found: list[T] = []
    while True:
        page = read(after, size)
        found += [one for one in page if sees(name(one))]
        if len(page) < size or len(found) >= limit:
            break
        after = name(page[-1])
    del found[limit:]
    return found, name(found[-1]) if len(found) == limit else None


def _list_key(one: GroupSummary | QueueSummary) -> str:
    return f"{TopicName.parse(one.topic).topic}/{one.group}"


def _in_order(one: GroupSummary | QueueSummary) -> tuple[str, str]:
    return TopicName.parse(one.topic).topic, one.group
