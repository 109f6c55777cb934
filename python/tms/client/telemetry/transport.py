"""A transport and its channels with spans for what they bring and settle, and, to a service, the
place of the trace in each request.

* What is not named here goes to the plain one as it is.
* A call that brings no messages and does not fail leaves no span.
"""

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any, cast

import msgspec

from tms.block.received import Received
from tms.client.aio.channels import AsyncChannel
from tms.client.client import Bus
from tms.client.http.exchange import Call
from tms.client.http.transport import HttpTransport
from tms.client.telemetry.messaging import ACK, COMMIT, NACK, REJECT, RELEASE, Telemetry, place
from tms.client.transport import (
    Channel,
    FetchRequest,
    LocalTransport,
    PendingAnswer,
    ReceiveRequest,
    RemoteTransport,
)
from tms.errors import TimedOut, TMSError
from tms.model.message import Fetched
from tms.model.queue import Token, TokenResult
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange


def traced(
    transport: LocalTransport | HttpTransport, telemetry: Telemetry
) -> LocalTransport | RemoteTransport:
    """A transport that tells of what it brings and settles."""
    if isinstance(transport, HttpTransport):
        transport.calls = cast(Any, TracedCalls(transport.calls, telemetry))
        return cast(RemoteTransport, TracedService(transport, telemetry))
    return cast(LocalTransport, TracedTransport(transport, telemetry))


def telemetry_of(bus: Bus) -> Telemetry:
    """The telemetry of a traced bus."""
    assert isinstance(bus._transport, Traced), "a traced bus has a traced transport"
    return bus._transport.telemetry


class Traced:
    """Something plain, of which a few methods are told of."""

    def __init__(self, plain: Any, telemetry: Telemetry) -> None:
        self.plain = plain
        self.telemetry = telemetry

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


class TracedTransport(Traced):
    """An engine in this process, or what both kinds have in common."""

    place = staticmethod(place)

    def fetch(self, name: TopicName, *args: Any, **named: Any) -> Fetched:
        """Messages, and a span if there are any."""
        with self.telemetry.receiving(str(name)) as receiving:
            return receiving.fetched(self.plain.fetch(name, *args, **named))

    @property
    def queues(self) -> "TracedQueues":
        """The queues."""
        return TracedQueues(self.plain.queues, self.telemetry)

    @property
    def groups(self) -> "TracedGroups":
        """The groups."""
        return TracedGroups(self.plain.groups, self.telemetry)


class TracedService(TracedTransport):
    """A service."""

    def open_channel(self) -> Channel:
        """As `HttpTransport.open_channel`."""
        return cast(Channel, TracedChannel(self.plain.open_channel(), self.telemetry))


class TracedCalls(Traced):
    """Calls with the place of the trace in the head of each request."""

    def __getattr__(self, name: str) -> Any:
        make = getattr(self.plain, name)

        def traced(*args: Any, **named: Any) -> Any:
            made = make(*args, **named)
            return _with_place(made) if isinstance(made, Call) else made

        self.__dict__[name] = traced
        return traced


def _with_place(call: Call[Any]) -> Call[Any]:
    active = place()
    if active is not None:
        head, *body = call.chunks
        lines = [b"%b: %b\r\n" % (name.encode(), text) for name, text in active.headers.items()]
        head = b"".join((bytes(head)[:-2], *lines, b"\r\n"))  # it ends with the empty line
        return msgspec.structs.replace(call, chunks=[head, *body])
    return call


class TracedQueues(Traced):
    """The queues of a transport."""

    def receive(self, topic: TopicName, group: str, *args: Any, **named: Any) -> Received:
        """Messages, and a span if there are any."""
        with self.telemetry.receiving(str(topic), group) as receiving:
            return receiving.received(self.plain.receive(topic, group, *args, **named))

    def _settle(
        self,
        name: str,
        topic: TopicName,
        group: str,
        tokens: Sequence[str],
        *args: Any,
        **named: Any,
    ) -> TokenResult:
        count = sum(Token.parse(token).count for token in tokens)
        with self.telemetry.operation(name, str(topic), group, count):
            result: TokenResult = getattr(self.plain, name)(topic, group, tokens, *args, **named)
            return result

    ack = partialmethod(_settle, ACK)
    nack = partialmethod(_settle, NACK)
    release = partialmethod(_settle, RELEASE)
    reject = partialmethod(_settle, REJECT)


class TracedGroups(Traced):
    """The groups of a transport."""

    def move(self, changes: Sequence[PositionChange]) -> None:
        """As `GroupsApi.move`."""
        if not changes:
            self.plain.move(changes)
            return
        key = changes[0].key
        with self.telemetry.operation(COMMIT, str(key.topic), key.group):
            self.plain.move(changes)


class TracedChannel(Traced):
    """A channel of a consumer or producer."""

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        """As `Channel.begin_fetch`."""
        receiving = self.telemetry.receiving(str(request.name))
        try:
            pending = self.plain.begin_fetch(request)
        except TMSError as error:
            receiving.failed(error)
            raise
        return TracedAnswer(pending, receiving.fetched, receiving.failed)


class TracedAnswer(PendingAnswer[Any]):
    """An answer that is under way, and who is told once how it ends."""

    def __init__(
        self,
        plain: PendingAnswer[Any],
        succeeded: Callable[[Any], object],
        failed: Callable[[TMSError], None],
    ) -> None:
        self._plain = plain
        self._told = False
        self._succeeded = succeeded
        self.failed = failed

    def done(self) -> bool:
        """As `PendingAnswer.done`."""
        return self._plain.done()

    def result(self, timeout_s: float | None = None) -> Any:
        """As `PendingAnswer.result`."""
        try:
            answer = self._plain.result(timeout_s)
        except TMSError as error:
            if isinstance(error, TimedOut) and not self._plain.done():
                raise  # it may still come
            if not self._told:
                self._told = True
                self.failed(error)
            raise
        if not self._told:
            self._told = True
            self._succeeded(answer)
        return answer


class TracedAsyncChannel(Traced):
    """A channel of the asyncio client."""

    async def fetch(self, request: FetchRequest, timeout_s: float) -> Fetched:
        """As `AsyncChannel.fetch`."""
        with self.telemetry.receiving(str(request.name)) as receiving:
            return receiving.fetched(await self.plain.fetch(request, timeout_s))

    async def receive(self, request: ReceiveRequest, timeout_s: float) -> Received:
        """As `AsyncChannel.receive`."""
        with self.telemetry.receiving(str(request.name), request.group) as receiving:
            return receiving.received(await self.plain.receive(request, timeout_s))


def traced_channels(
    telemetry: Telemetry, open_channel: Callable[[], AsyncChannel]
) -> Callable[[], AsyncChannel]:
    """Channels that tell of what they bring, as the transport of the bus does."""
    return lambda: cast(AsyncChannel, TracedAsyncChannel(open_channel(), telemetry))
