"""Log groups over HTTP. A poll may be repeated without harm; leaving is tried once, because a
session ends by itself."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tms.model.group import GroupInfo, GroupStanding, GroupSummary
from tms.model.topic import TopicName

if TYPE_CHECKING:
    from tms.client.http.transport import HttpTransport

LEAVE_S = 2.0
_NOWHERE = GroupStanding(0, {}, frozenset(), 0)


class HttpGroups:
    """The log groups of a service. Thread-safe."""

    def __init__(self, transport: "HttpTransport") -> None:
        self._transport = transport
        self._calls = transport.calls

    def poll(
        self,
        group: str,
        topic: TopicName,
        member: str,
        session_s: float,
        holding: Mapping[int, int],
        *,
        leaving: bool = False,
        reading: bool = False,
    ) -> GroupStanding:
        if leaving:
            self._transport.attempt(self._calls.leave(group, topic, member), LEAVE_S)
            return _NOWHERE
        call = self._calls.poll(group, topic, member, session_s, holding, reading)
        return self._transport.call(call)

    def describe(self, group: str, topic: TopicName) -> GroupInfo:
        return self._transport.call(self._calls.describe_group(group, topic))

    def of(self, topic: TopicName) -> list[GroupSummary]:
        return self._transport.call(self._calls.list_groups(topic))
