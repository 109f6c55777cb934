"""The overview of a namespace: sizes of topics, groups, queues, instances."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from tms.client.calls import BusCalls
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad, TopicSize
from tms.model.queue import QueueSummary
from tms.model.topic import DEFAULT_NAMESPACE, TopicName

PAGE = 10_000  # as large as it may be: each page looks through all that there are
T = TypeVar("T")


class OverviewCalls(BusCalls):
    """The part of a bus that lists what there is, in few numbers. Thread-safe."""

    def list_topic_sizes(self, namespace: str = DEFAULT_NAMESPACE) -> Iterator[TopicSize]:
        """The sizes of the topics of a namespace, by name; read in pages during the iteration.
        Messages and bytes are None if a partition is damaged or its owner is unavailable."""
        port = self._transport.glance.topics
        return _pages(port, namespace, lambda size: TopicName.parse(size.topic).topic)

    def list_groups(
        self, topic: str | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Iterator[GroupSummary]:
        """The groups with members or positions in a topic, or in any topic of a namespace, with
        their lag, by topic and name. Those of a namespace are read in pages during the iteration.
        Raises `TopicNotFound`."""
        if topic is not None:
            return iter(self._transport.groups.list_groups(TopicName.parse(topic)))
        return _pages(self._transport.glance.groups, namespace, _place)

    def list_queues(self, namespace: str = DEFAULT_NAMESPACE) -> Iterator[QueueSummary]:
        """The queues of all topics of a namespace with their numbers of waiting messages, by topic
        and group; read in pages during the iteration."""
        return _pages(self._transport.glance.queues, namespace, _place)

    def list_instances(self) -> list[InstanceLoad]:
        """The load of each instance, and its counts since its start. The list has one entry for
        `tms.open` and for a service with one instance."""
        return self._transport.glance.instances()


def _pages(
    page_of: Callable[[str, str | None, int], list[T]], namespace: str, place: Callable[[T], str]
) -> Iterator[T]:
    found = page_of(namespace, None, PAGE)
    yield from found
    while len(found) == PAGE:
        found = page_of(namespace, place(found[-1]), PAGE)
        yield from found


def _place(one: GroupSummary | QueueSummary) -> str:
    return f"{TopicName.parse(one.topic).topic}/{one.group}"
