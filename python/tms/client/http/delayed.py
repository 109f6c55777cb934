"""Delayed messages over HTTP. A publish is one attempt, which the bus repeats with the same key."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tms.api.delayed import messages_of
from tms.client.transport import TIMEOUT_S
from tms.model.delayed import Deferred, DelayedId, DelayedInfo, DelayedMessage, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName

if TYPE_CHECKING:
    from tms.client.http.transport import HttpTransport


class HttpDelayed:
    """The delayed messages of a service. Thread-safe."""

    def __init__(self, transport: "HttpTransport") -> None:
        self._transport = transport
        self._calls = transport.calls

    def publish(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None = None,
        token: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> list[Deferred]:
        call = self._calls.publish_later(name, blocks, due, durability, token)
        return self._transport.attempt(call, timeout_s)

    def cancel(self, name: TopicName, id: DelayedId, timeout_s: float = TIMEOUT_S) -> bool:
        return self._transport.attempt(self._calls.cancel(name, id), timeout_s)

    def info(self, name: TopicName) -> DelayedInfo:
        found = self._transport.call(self._calls.waiting(name, None, 0))
        return DelayedInfo(found.waiting, found.next_due_ms)

    def messages(
        self, name: TopicName, after: DelayedId | None = None, limit: int = 100
    ) -> list[DelayedMessage]:
        return messages_of(self._transport.call(self._calls.waiting(name, after, limit)))
