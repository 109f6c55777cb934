"""The overview of a namespace: sizes of topics, groups, queues, instances."""

from collections.abc import Iterator

from tms.client.calls import BusCalls, pages
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad, TopicSize
from tms.model.queue import QueueSummary
from tms.model.topic import DEFAULT_NAMESPACE, TopicName

PAGE = 10_000  # as large as it may be: each page looks through all that there are


class OverviewCalls(BusCalls):
    """The part of a bus that lists what there is, in few numbers. Thread-safe."""

    def list_topic_sizes(self, namespace: str = DEFAULT_NAMESPACE) -> Iterator[TopicSize]:
        """The sizes of the topics of a namespace, by name; read in pages during the iteration.
        Messages and bytes are None if a partition is damaged or its owner is unavailable."""
        port = self._transport.glance.topics
        return pages(port, namespace, PAGE, lambda size: TopicName.parse(size.topic).topic)

    def list_groups(
        self, topic: str | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Iterator[GroupSummary]:
        """The groups with members or positions in a topic, or in any topic of a namespace, with
        their lag, by topic and name. Those of a namespace are read in pages during the iteration.
        Raises `TopicNotFound`."""
        if topic is not None:
            return iter(self._transport.groups.list_groups(TopicName.parse(topic)))
        return pages(self._transport.glance.groups, namespace, PAGE, _place)

    def list_queues(self, namespace: str = DEFAULT_NAMESPACE) -> Iterator[QueueSummary]:
        """The queues of all topics of a namespace with their numbers of waiting messages, by topic
        and group; read in pages during the iteration."""
        return pages(self._transport.glance.queues, namespace, PAGE, _place)

    def list_instances(self) -> list[InstanceLoad]:
        """The load of each instance, and its counts since its start. The list has one entry for
        `tms.open` and for a service with one instance."""
        return self._transport.glance.instances()


def _place(one: GroupSummary | QueueSummary) -> str:
    return f"{TopicName.parse(one.topic).topic}/{one.group}"
