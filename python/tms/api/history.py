"""The last hour of a service, of a topic and of a group: their part of the table of operations."""

from typing import Annotated, Protocol

from msgspec import Meta

from tms.api.operation import Resource, get
from tms.api.parameters import GroupName
from tms.errors import Invalid, Malformed
from tms.model.access import Access
from tms.model.history import HISTORY_S, LAG_STEP_S, STEP_S, Backlogs, History
from tms.model.topic import TopicName

LastS = Annotated[int, Meta(ge=STEP_S, le=HISTORY_S, description="How many seconds back.")]
LagLastS = Annotated[int, Meta(ge=LAG_STEP_S, le=HISTORY_S, description="How many seconds back.")]


class HistoryApi(Protocol):
    """Values of the last hour, which the instances of a service keep in memory since their
    start."""

    @get("cluster/history", Resource.SERVICE, Access.OBSERVE, errors=(Malformed, Invalid))
    def service(self, last_s: LastS = HISTORY_S) -> History:
        """The last hour of the service: messages, bytes, requests, errors, connections, open
        transactions, lag and disk, over all instances."""

    @get("{name}/history", Resource.TOPIC, Access.OBSERVE)
    def topic(self, name: TopicName, last_s: LastS = HISTORY_S) -> History:
        """The last hour of a topic: messages and bytes per second. It is unknown for the time in
        which others were so much busier that the topic had no series of its own."""

    @get("{topic}/groups/{group}/history", Resource.GROUP, Access.OBSERVE)
    def group(self, topic: TopicName, group: GroupName, last_s: LagLastS = HISTORY_S) -> History:
        """The lag of a group in the last hour, in messages."""

    @get("cluster/backlogs", Resource.SERVICE, Access.OBSERVE)
    def backlogs(self) -> Backlogs:
        """The groups with the most lag, and the queues with dead letters or old messages, of all
        namespaces, as last seen: a minute ago, or a few where there are very many groups."""
