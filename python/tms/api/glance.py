"""Everything in a namespace at a glance: their part of the table of operations."""

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from tms.api.operation import Codec, Named, Resource, get
from tms.api.parameters import TOPICS_DEFAULT, AfterTopic, Namespace
from tms.errors import Invalid
from tms.model.access import Access
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad, TopicSize
from tms.model.queue import QueueSummary
from tms.model.spelling import spelled
from tms.model.topic import DEFAULT_NAMESPACE, TOPIC, TopicName
from tms.model.transaction import GROUP_CHARS_MAX, UNSEEN, check_group


class SizesBody(msgspec.Struct):
    """A page of topics with their sizes; `next` is `after` of the next page."""

    topics: list[TopicSize]
    next: str | None = None


class GroupsBody(msgspec.Struct):
    """A page of groups; `next` is `after` of the next page."""

    groups: list[GroupSummary]
    next: str | None = None


class QueuesBody(msgspec.Struct):
    """A page of queues; `next` is `after` of the next page."""

    queues: list[QueueSummary]
    next: str | None = None


def _check_place(text: str) -> str:
    """`TOPIC/GROUP` itself. Raises `Invalid`."""
    topic, slash, group = text.partition("/")
    if not slash:
        raise Invalid(f"after is TOPIC/GROUP, got {text!r:.80}.", field="after")
    TopicName.of(DEFAULT_NAMESPACE, topic)
    check_group(group)
    return text


Limit = Annotated[int, Meta(ge=1, le=10_000)]
AfterGroup = Annotated[
    str,
    Meta(description="Begin after `TOPIC/GROUP`: `next` of the page before."),
    spelled(f"{TOPIC}/[^{UNSEEN}]{{1,{GROUP_CHARS_MAX}}}"),
    Codec(str, _check_place, str),
]


class GlanceApi(Protocol):
    """Summaries of topics, groups, queues and instances. `tms.engine.glance.Glance` documents the
    promises."""

    @get("namespaces/{namespace}/sizes", Resource.NAMESPACE, Access.OBSERVE, lists=Resource.TOPIC)
    def topics(
        self, namespace: Namespace, after: AfterTopic | None = None, limit: Limit = TOPICS_DEFAULT
    ) -> Annotated[list[TopicSize], Codec(SizesBody, lambda body: body.topics)]:
        """The topics of a namespace that the caller may see, with messages and bytes, by name."""

    @get("namespaces/{namespace}/groups", Resource.NAMESPACE, Access.OBSERVE, lists=Resource.GROUP)
    def groups(
        self, namespace: Namespace, after: AfterGroup | None = None, limit: Limit = TOPICS_DEFAULT
    ) -> Annotated[list[GroupSummary], Codec(GroupsBody, lambda body: body.groups)]:
        """The groups of all topics of a namespace that the caller may see, with their lag, by topic
        and name."""

    @get("namespaces/{namespace}/queues", Resource.NAMESPACE, Access.OBSERVE, lists=Resource.QUEUE)
    def queues(
        self, namespace: Namespace, after: AfterGroup | None = None, limit: Limit = TOPICS_DEFAULT
    ) -> Annotated[list[QueueSummary], Codec(QueuesBody, lambda body: body.queues)]:
        """The queues of all topics of a namespace that the caller may see, with their backlog, by
        topic and group."""

    @get("cluster/loads", Resource.SERVICE, Access.OBSERVE)
    def instances(
        self,
    ) -> Annotated[list[InstanceLoad], Named("InstanceLoads", "The instances.", "instances")]:
        """The load of each instance since its start; a service without a cluster is one
        instance."""
