"""A transport and its channels with spans for what they bring and settle, and, to a service, the
place of the trace in each request.

* What is not named here goes to the plain one as it is.
* A call that brings no messages leaves no span.
"""

from collections.abc import Sequence
from typing import Any, cast

from tms.block.received import Received
from tms.client.aio.channels import AsyncChannel
from tms.client.http.exchange import Call, Calls
from tms.client.http.transport import HttpTransport
from tms.client.transport import Channel, FetchRequest, PendingAnswer
from tms.errors import TMSError
from tms.model.filter import Filter
from tms.model.message import Fetched, PartitionPosition
from tms.model.queue import RECEIVE_BYTES, Token, TokenResult
from tms.model.snapshot import Isolation, View
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange
from tms.telemetry.messaging import (
    ACK,
    COMMIT,
    NACK,
    REJECT,
    OperationKind,
    Telemetry,
    TracedReceive,
    current_stamp,
)


class TracedTransport:
    """An engine in this process, or what both kinds have in common."""

    def __init__(self, plain: Any, telemetry: Telemetry) -> None:
        self._plain = plain
        self.telemetry = telemetry
        self.stamp = telemetry.stamp
        self.append = plain.append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0,
        isolation: View = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Fetched:
        """Messages, and a span if there are any."""
        receiving = self.telemetry.receiving(str(name))
        try:
            fetched: Fetched = self._plain.fetch(
                name, positions, bytes_max, wait_s, isolation, where
            )
        except TMSError as error:
            receiving.failed(error)
            raise
        receiving.fetched(fetched.blocks)
        return fetched

    @property
    def queues(self) -> "TracedQueues":
        """The queues."""
        return TracedQueues(self._plain.queues, self.telemetry)

    @property
    def groups(self) -> "TracedGroups":
        """The groups."""
        return TracedGroups(self._plain.groups, self.telemetry)


class TracedService(TracedTransport):
    """A service."""

    def __init__(self, plain: HttpTransport, telemetry: Telemetry) -> None:
        plain.calls = cast(Calls, TracedCalls(plain.calls))
        super().__init__(plain, telemetry)

    def open_channel(self) -> Channel:
        """See `HttpTransport.open_channel`."""
        return TracedChannel(self._plain.open_channel(), self.telemetry)


class TracedCalls:
    """Calls with the place of the trace in the head of each request."""

    def __init__(self, plain: Calls) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        make = getattr(self._plain, name)

        def traced(*args: Any, **named: Any) -> Any:
            made = make(*args, **named)
            return _with_place(made) if isinstance(made, Call) else made

        self.__dict__[name] = traced
        return traced


def _with_place(call: Call[Any]) -> Call[Any]:
    stamp = current_stamp()
    if stamp is not None:
        head = bytes(call.chunks[0])  # it ends with the empty line
        lines = b"".join(b"%b: %b\r\n" % (name.encode(), text) for name, text in stamp.items())
        call.chunks[0] = head[:-2] + lines + b"\r\n"
    return call


class TracedQueues:
    """The queues of a transport."""

    def __init__(self, plain: Any, telemetry: Telemetry) -> None:
        self._plain = plain
        self.telemetry = telemetry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def receive(
        self,
        topic: TopicName,
        group: str,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        """Messages, and a span if there are any."""
        receiving = self.telemetry.receiving(str(topic), group)
        try:
            received: Received = self._plain.receive(topic, group, limit, wait_s, bytes_max)
        except TMSError as error:
            receiving.failed(error)
            raise
        receiving.received([part.columns for part in received.slices])
        return received

    def ack(self, topic: TopicName, group: str, tokens: Sequence[str]) -> TokenResult:
        """See `QueuesApi.ack`."""
        with self._settling(ACK, topic, group, tokens):
            return _result(self._plain.ack(topic, group, tokens))

    def nack(
        self,
        topic: TopicName,
        group: str,
        tokens: Sequence[str],
        delay_s: float | None = None,
        cause: str = "",
    ) -> TokenResult:
        """See `QueuesApi.nack`."""
        with self._settling(NACK, topic, group, tokens):
            return _result(self._plain.nack(topic, group, tokens, delay_s, cause))

    def reject(
        self, topic: TopicName, group: str, tokens: Sequence[str], cause: str = ""
    ) -> TokenResult:
        """See `QueuesApi.reject`."""
        with self._settling(REJECT, topic, group, tokens):
            return _result(self._plain.reject(topic, group, tokens, cause))

    def _settling(
        self, kind: OperationKind, topic: TopicName, group: str, tokens: Sequence[str]
    ) -> Any:
        count = sum(Token.parse(token).count for token in tokens)
        return self.telemetry.settling(kind, str(topic), group, count)


def _result(result: TokenResult) -> TokenResult:
    return result


class TracedGroups:
    """The groups of a transport."""

    def __init__(self, plain: Any, telemetry: Telemetry) -> None:
        self._plain = plain
        self._telemetry = telemetry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def move(self, changes: Sequence[PositionChange]) -> None:
        """See `GroupsApi.move`."""
        keys = [change.key for change in changes]
        if not keys:
            self._plain.move(changes)
            return
        with self._telemetry.settling(COMMIT, str(keys[0].topic), keys[0].group):
            self._plain.move(changes)


class TracedChannel:
    """A channel of a consumer or producer."""

    def __init__(self, plain: Channel, telemetry: Telemetry) -> None:
        self._plain = plain
        self._telemetry = telemetry
        self.submit = plain.submit
        self.reset = plain.reset
        self.close = plain.close

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        """See `Channel.begin_fetch`."""
        receiving = self._telemetry.receiving(str(request.name))
        return _TracedFetch(self._plain.begin_fetch(request), receiving)


class _TracedFetch:
    """A fetch that is under way, whose answer is told once."""

    def __init__(self, plain: PendingAnswer[Fetched], receiving: TracedReceive) -> None:
        self._plain = plain
        self._receiving: TracedReceive | None = receiving

    def done(self) -> bool:
        return self._plain.done()

    def result(self, timeout_s: float | None = None) -> Fetched:
        fetched = self._plain.result(timeout_s)
        if self._receiving is not None:
            self._receiving.fetched(fetched.blocks)
            self._receiving = None
        return fetched


class TracedAsyncChannel:
    """A channel of the asyncio client."""

    def __init__(self, plain: AsyncChannel, telemetry: Telemetry) -> None:
        self._plain = plain
        self.telemetry = telemetry
        self.append = plain.append
        self.reset = plain.reset
        self.close = plain.close

    async def fetch(self, request: FetchRequest, timeout_s: float) -> Fetched:
        """See `AsyncChannel.fetch`."""
        receiving = self.telemetry.receiving(str(request.name))
        fetched = await self._plain.fetch(request, timeout_s)
        receiving.fetched(fetched.blocks)
        return fetched

    async def receive(
        self,
        name: TopicName,
        group: str,
        limit: int,
        wait_s: float,
        bytes_max: int,
        timeout_s: float,
    ) -> Received:
        """See `AsyncChannel.receive`."""
        receiving = self.telemetry.receiving(str(name), group)
        received = await self._plain.receive(name, group, limit, wait_s, bytes_max, timeout_s)
        receiving.received([part.columns for part in received.slices])
        return received
