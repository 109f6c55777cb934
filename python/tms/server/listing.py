"""Lists over several instances, page by page, filtered by what the caller may see.

Invariants

* A page has as many entries as requested, unless there are no more; a caller that may not see all
  gets those that it may see.
* Other instances are asked for their part. An instance that does not answer is an error, not a
  shorter list; only numbers may be missing.
* A list in the order of a number is cut from a whole list, whose numbers may be some time old. It
  has nothing of a topic that is gone.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from tms.api import bodies
from tms.api.glance import (
    DelayedTopicsBody,
    GroupsBody,
    NamespacesBody,
    QueuesBody,
    SizesBody,
)
from tms.api.parameters import TOPICS_DEFAULT
from tms.engine.glance import group_place, topic_place
from tms.errors import TMSError, TopicNotFound
from tms.model.access import Access
from tms.model.delayed import DelayedSummary
from tms.model.group import GroupSummary
from tms.model.lag import (
    GroupOrder,
    InstanceLoad,
    ListOrder,
    QueueOrder,
    TopicOrder,
    in_order,
    named_like,
)
from tms.model.queue import QueueInfo, QueueSummary
from tms.model.topic import TopicName
from tms.server.instances import own_load
from tms.server.service import Service
from tms.server.whole_lists import ListKey, WholeLists

T = TypeVar("T")
READ_MAX = 10_000  # entries that instances are asked for at once
Sees = Callable[[str], bool]  # of a name in a list
_Read = Callable[..., list[T]]  # of a place, a number of entries, and of what is searched


class _Wanted(NamedTuple):
    """The entries of a list that a caller wants."""

    sees: Sees
    after: str | None
    limit: int
    search: str | None = None
    order: ListOrder | None = None


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
        "glance.namespaces": lists.namespaces,
        "glance.topics": lists.sizes,
        "glance.groups": lists.groups,
        "glance.queues": lists.queues,
        "glance.delayed": lists.delayed,
        "glance.instances": lists.instances,
    }


class Lists:
    """Lists of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine
        self._whole = WholeLists(service.clock, service.threads)

    # -- of the service ----------------------------------------------------------------------------

    def namespaces(
        self, after: str | None = None, limit: int = TOPICS_DEFAULT, caller: str = ""
    ) -> NamespacesBody:
        """The namespaces of which a caller may see some topics."""
        guard = self._service.guard
        found = self._engine.topics.registry.namespaces(after)
        if guard is not None:
            may_some = guard.decisions.may_some
            found = (one for one in found if may_some(caller, Access.OBSERVE, one))
        return NamespacesBody(*_cut(list(islice(found, limit)), str, limit))

    # -- of a namespace ----------------------------------------------------------------------------

    def topics(
        self, namespace: str, sees: Sees, after: str | None = None, limit: int = TOPICS_DEFAULT
    ) -> bodies.TopicsBody:
        """A page of topics, and where the next one begins."""

        def read(begin: str | None, size: int) -> list[Any]:
            return self._engine.list_topics(namespace, begin, size)

        begin = None if after is None else TopicName.of(namespace, after).topic
        return bodies.TopicsBody(*_page(read, lambda info: info.topic, _Wanted(sees, begin, limit)))

    def sizes(
        self,
        namespace: str,
        sees: Sees,
        after: str | None = None,
        limit: int = TOPICS_DEFAULT,
        search: str | None = None,
        order: TopicOrder | None = None,
    ) -> SizesBody:
        """The topics of a namespace with their sizes."""

        def read(begin: str | None, size: int, search: str | None = search) -> list[Any]:
            return self._engine.glance.topics(namespace, begin, size, search)

        wanted = _Wanted(sees, after, limit, search, order)
        return SizesBody(*self._found(("topics", namespace), read, topic_place, wanted))

    def groups(
        self,
        namespace: str,
        sees: Sees,
        after: str | None = None,
        limit: int = TOPICS_DEFAULT,
        search: str | None = None,
        order: GroupOrder | None = None,
    ) -> GroupsBody:
        """The groups of a namespace, also those that other instances keep."""

        def read(begin: str | None, size: int, search: str | None = search) -> list[GroupSummary]:
            split = self._engine.shards.split()
            found = self._engine.glance.groups(namespace, begin, size, search, None, split.here)
            for peer, shards in split.elsewhere.items():
                found += peer.groups_of(namespace, shards, begin, size, search)
            return sorted(found, key=_in_order)[:size]

        wanted = _Wanted(sees, after, limit, search, order)
        return GroupsBody(*self._found(("groups", namespace), read, group_place, wanted))

    def queues(
        self,
        namespace: str,
        sees: Sees,
        after: str | None = None,
        limit: int = TOPICS_DEFAULT,
        search: str | None = None,
        order: QueueOrder | None = None,
    ) -> QueuesBody:
        """The queues of a namespace, also those that other instances keep."""

        def read(begin: str | None, size: int, search: str | None = search) -> list[QueueSummary]:
            split = self._engine.shards.split()
            found = self._engine.glance.queues(namespace, begin, size, search, None, split.here)
            for peer, shards in split.elsewhere.items():
                found += peer.queues_of(namespace, shards, begin, size, search)
            return sorted(found, key=_in_order)[:size]

        wanted = _Wanted(sees, after, limit, search, order)
        return QueuesBody(*self._found(("queues", namespace), read, group_place, wanted))

    def delayed(
        self, namespace: str, sees: Sees, after: str | None = None, limit: int = TOPICS_DEFAULT
    ) -> DelayedTopicsBody:
        """The topics of a namespace with delayed messages, also those that other instances
        keep."""

        def read(begin: str | None, size: int) -> list[DelayedSummary]:
            split = self._engine.shards.split()
            found = self._engine.glance.delayed(namespace, begin, size, split.here)
            for peer, shards in split.elsewhere.items():
                found += peer.delayed_of(namespace, shards, begin, size)
            return sorted(found, key=topic_place)[:size]

        begin = None if after is None else TopicName.of(namespace, after).topic
        return DelayedTopicsBody(*_page(read, topic_place, _Wanted(sees, begin, limit)))

    def _found(
        self, key: ListKey, read: _Read[T], name: Callable[[T], str], wanted: _Wanted
    ) -> tuple[list[T], str | None]:
        """The page of a list that is wanted, and the name of its last entry if there may be
        more."""
        if not wanted.order or wanted.order == TopicOrder.NAME:
            return _page(read, name, wanted)
        entries = self._whole.get(key, lambda: _whole(read, name))
        is_wanted = named_like(wanted.search)
        seen = [one for one in entries if wanted.sees(at := name(one)) and is_wanted(at)]
        ranked = in_order(seen, wanted.order, name, wanted.after)
        there = (one for one in ranked if self._has(key[1], name(one)))
        return _cut(list(islice(there, wanted.limit)), name, wanted.limit)

    def _has(self, namespace: str, place: str) -> bool:
        """True if the topic of an entry is still there."""
        try:
            self._engine.settings(TopicName(namespace, place.partition("/")[0]))
        except TopicNotFound:
            return False
        return True

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


def _page(read: _Read[T], name: Callable[[T], str], wanted: _Wanted) -> tuple[list[T], str | None]:
    """Up to `limit` of those that are seen, and the name of the last one if there may be more."""
    sees, after, limit, *_ = wanted
    size = limit if sees is everything else max(limit, TOPICS_DEFAULT)
    found: list[T] = []
    while True:
        page = read(after, size)
        found += [one for one in page if sees(name(one))]
        if len(page) < size or len(found) >= limit:
            break
        after = name(page[-1])
    return _cut(found[:limit], name, limit)


def _cut(page: list[T], name: Callable[[T], str], limit: int) -> tuple[list[T], str | None]:
    return page, name(page[-1]) if len(page) == limit else None


def _whole(read: _Read[T], name: Callable[[T], str]) -> list[T]:
    """All entries of a list, whatever is searched."""
    found: list[T] = []
    while True:
        after = name(found[-1]) if found else None
        page = read(after, READ_MAX, None)
        found += page
        if len(page) < READ_MAX:
            return found


def _in_order(one: GroupSummary | QueueSummary) -> tuple[str, str]:
    return TopicName.parse(one.topic).topic, one.group
