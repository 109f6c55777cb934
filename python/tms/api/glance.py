"""Everything in a namespace at a glance: their part of the table of operations."""

from enum import StrEnum
from functools import partial
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from tms.api.operation import Caller, Codec, Named, Resource, get
from tms.api.parameters import TOPICS_DEFAULT, AfterTopic, Namespace
from tms.errors import Invalid, NotFound
from tms.model.access import Access
from tms.model.delayed import DelayedSummary
from tms.model.group import GroupSummary
from tms.model.lag import (
    SEARCH_CHARS_MAX,
    GroupOrder,
    InstanceLoad,
    QueueOrder,
    TopicOrder,
    TopicSize,
)
from tms.model.queue import QueueSummary
from tms.model.spelling import one_of, spelled
from tms.model.topic import DEFAULT_NAMESPACE, TOPIC, TopicName
from tms.model.transaction import GROUP_CHARS_MAX, UNSEEN, check_group

Order = TypeVar("Order", bound=StrEnum)


class NamespacesBody(msgspec.Struct):
    """A page of namespaces; `next` is `after` of the next page."""

    namespaces: list[str]
    next: str | None = None


class SizesBody(msgspec.Struct):
    """A page of topics with their sizes; `next` is `after` of the next page."""

    topics: list[TopicSize]
    next: str | None = None


class DelayedTopicsBody(msgspec.Struct):
    """A page of topics with delayed messages; `next` is `after` of the next page."""

    topics: list[DelayedSummary]
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
AfterNamespace = Annotated[
    Namespace, Meta(description="Begin after this namespace: `next` of the page before.")
]
AfterGroup = Annotated[
    str,
    Meta(description="Begin after `TOPIC/GROUP`: `next` of the page before."),
    spelled(f"{TOPIC}/[^{UNSEEN}]{{1,{GROUP_CHARS_MAX}}}"),
    Codec(str, _check_place, str),
]
Search = Annotated[
    str,
    Meta(
        max_length=SEARCH_CHARS_MAX,
        description="Only those whose name contains this, in upper or lower case.",
    ),
]
_LARGEST = Meta(
    description="`name`, the default, or the largest number first; a service may order by numbers "
    "that are some time old."
)


def _in(orders: type[Order]) -> Codec[Order]:
    """The codec of an order of a list."""

    def read(text: str) -> Order:
        try:
            return orders(text)
        except ValueError as exc:
            allowed = ", ".join(orders)
            raise Invalid(f"order is one of {allowed}, got {text!r:.40}.", field="order") from exc

    return Codec(str, read, str)


OrderOfTopics = Annotated[TopicOrder, _LARGEST, one_of(*TopicOrder), _in(TopicOrder)]
OrderOfGroups = Annotated[GroupOrder, _LARGEST, one_of(*GroupOrder), _in(GroupOrder)]
OrderOfQueues = Annotated[QueueOrder, _LARGEST, one_of(*QueueOrder), _in(QueueOrder)]
_list = partial(get, on=Resource.NAMESPACE, access=Access.OBSERVE, errors=(NotFound,))


class GlanceApi(Protocol):
    """Summaries of topics, groups, queues and instances. `tms.engine.glance.Glance` documents the
    promises."""

    @get("namespaces", Resource.SERVICE, Access.KNOWN, errors=(Invalid,))
    def namespaces(
        self,
        after: AfterNamespace | None = None,
        limit: Limit = TOPICS_DEFAULT,
        *,
        caller: Annotated[str, Caller] = "",
    ) -> Annotated[list[str], Codec(NamespacesBody, lambda body: body.namespaces)]:
        """The namespaces that have topics of which the caller may see some, by name."""

    @_list("namespaces/{namespace}/sizes", lists=Resource.TOPIC)
    def topics(
        self,
        namespace: Namespace,
        after: AfterTopic | None = None,
        limit: Limit = TOPICS_DEFAULT,
        search: Search | None = None,
        order: OrderOfTopics | None = None,
    ) -> Annotated[list[TopicSize], Codec(SizesBody, lambda body: body.topics)]:
        """The topics of a namespace that the caller may see, with messages and bytes, by name."""

    @_list("namespaces/{namespace}/groups", lists=Resource.GROUP)
    def groups(
        self,
        namespace: Namespace,
        after: AfterGroup | None = None,
        limit: Limit = TOPICS_DEFAULT,
        search: Search | None = None,
        order: OrderOfGroups | None = None,
    ) -> Annotated[list[GroupSummary], Codec(GroupsBody, lambda body: body.groups)]:
        """The groups of all topics of a namespace that the caller may see, with their lag, by topic
        and name."""

    @_list("namespaces/{namespace}/queues", lists=Resource.QUEUE)
    def queues(
        self,
        namespace: Namespace,
        after: AfterGroup | None = None,
        limit: Limit = TOPICS_DEFAULT,
        search: Search | None = None,
        order: OrderOfQueues | None = None,
    ) -> Annotated[list[QueueSummary], Codec(QueuesBody, lambda body: body.queues)]:
        """The queues of all topics of a namespace that the caller may see, with their backlog, by
        topic and group."""

    @_list("namespaces/{namespace}/delayed", lists=Resource.TOPIC)
    def delayed(
        self, namespace: Namespace, after: AfterTopic | None = None, limit: Limit = TOPICS_DEFAULT
    ) -> Annotated[list[DelayedSummary], Codec(DelayedTopicsBody, lambda body: body.topics)]:
        """The topics of a namespace that the caller may see and that have delayed messages, by
        name."""

    @get("cluster/loads", Resource.SERVICE, Access.OBSERVE)
    def instances(
        self,
    ) -> Annotated[list[InstanceLoad], Named("InstanceLoads", "The instances.", "instances")]:
        """The load of each instance since its start; a service without a cluster is one
        instance."""
