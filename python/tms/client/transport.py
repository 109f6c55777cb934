"""The ports below the client: a transport, and channels on it.

* A `Transport` has the engine's methods. The engine itself is one,
  `client.http.transport.HttpTransport` the other.
* A `Channel` carries the appends or fetches of one producer or consumer in order, several at once.
  `LocalChannel` makes one of an engine; HTTP has its own, a connection with pipelined requests.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tms.api.access import AccessApi
from tms.api.backups import BackupsApi
from tms.api.glance import GlanceApi
from tms.api.operations import (
    DelayedApi,
    GroupsApi,
    TopicsApi,
    TransactionsApi,
)
from tms.api.queue_operations import QueuesApi
from tms.errors import Closed
from tms.model.filter import Filter
from tms.model.message import Appended, Fetched, Holder, NewBlock, PartitionPosition
from tms.model.snapshot import Isolation, ReadIsolation
from tms.model.topic import Durability, TopicName

T_co = TypeVar("T_co", covariant=True)

_LOCAL_WAIT_S = 0.2  # how soon a waiting local fetch notices that its channel was closed


class PendingAnswer(Protocol[T_co]):
    """An answer that is under way."""

    def done(self) -> bool:
        """True if `result` returns without waiting. Never waits."""
        ...

    def result(self, timeout_s: float | None = None) -> T_co:
        """The answer. Raises its error, or `TimedOut` when it is not there yet; it may be asked for
        again."""
        ...


class Transport(TopicsApi, Protocol):
    """An engine, here or at a service: a port for each group of operations."""

    @property
    def transactions(self) -> TransactionsApi: ...

    @property
    def queues(self) -> QueuesApi: ...

    @property
    def groups(self) -> GroupsApi: ...

    @property
    def delayed(self) -> DelayedApi: ...

    @property
    def glance(self) -> GlanceApi: ...

    @property
    def access(self) -> AccessApi: ...

    @property
    def backups(self) -> BackupsApi: ...

    def close(self) -> None: ...


class FetchRequest(NamedTuple):
    """A fetch from these positions, of about so many bytes, which waits so long at most for the
    first message. `goes_on`: the next fetch begins where this one ends, and an answer without
    messages may come sooner."""

    name: TopicName
    positions: Sequence[PartitionPosition]
    bytes_max: int
    wait_s: float
    isolation: ReadIsolation = Isolation.COMMITTED
    where: Filter | None = None
    goes_on: bool = False

    def after(self, fetched: Fetched, wait_s: float) -> "FetchRequest":
        """The request that goes on where an answer without messages has ended."""
        positions = [PartitionPosition(*place) for place in fetched.next.items()]
        return self._replace(positions=positions, wait_s=wait_s)


class ReceiveRequest(NamedTuple):
    """A receive of up to `limit` messages of a queue, of about so many bytes, which waits so long
    at most for the first message."""

    name: TopicName
    group: str
    limit: int
    wait_s: float
    bytes_max: int


class Channel(Protocol):
    """The requests of one producer or consumer: they are handled in the order in which they were
    begun."""

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> PendingAnswer[list[Appended]]:
        """Begin an append; the caller goes on while it is under way."""
        ...

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        """Begin a fetch; the caller goes on while it is under way."""
        ...

    def leave(self) -> None:
        """Like `reset`, for answers that the caller does not need any more: the service is not at
        fault."""
        ...

    def reset(self) -> None:
        """Give up on everything under way; its outcome is unknown. The channel stays usable."""
        ...

    def close(self) -> None:
        """Like `reset`, for good: whoever waits gets `Closed` at once. From any thread."""
        ...


class LocalPending(PendingAnswer[list[Appended]], Protocol):
    """An engine's append that is under way."""

    def add_done_callback(self, callback: Callable[[], None]) -> None: ...


class LocalTransport(Transport, Protocol):
    """The further methods of an engine in this process."""

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None = None
    ) -> LocalPending: ...

    def fetch_cached(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        isolation: ReadIsolation = Isolation.COMMITTED,
    ) -> Fetched | None: ...

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        held: Mapping[int, Holder] | None = None,
        isolation: ReadIsolation = Isolation.COMMITTED,
    ) -> Callable[[], None]: ...


class RemoteTransport(Transport, Protocol):
    """A transport with a network below, where a channel is a connection of its own."""

    def open_channel(self) -> Channel: ...


def open_channel(transport: LocalTransport | RemoteTransport) -> Channel:
    """A channel on this transport."""
    return (
        transport.open_channel() if hasattr(transport, "open_channel") else LocalChannel(transport)
    )


class LocalChannel:
    """A channel on an engine in this process."""

    def __init__(self, transport: LocalTransport) -> None:
        self._transport = transport
        self.closed = False

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> PendingAnswer[list[Appended]]:
        return self._transport.submit(name, blocks, durability)

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        return _LocalFetch(self, self._transport, request)

    def leave(self) -> None:
        self.reset()

    def reset(self) -> None:
        pass  # nothing of a fetch is under way before its result is asked for

    def close(self) -> None:
        self.closed = True


class _LocalFetch:
    """A fetch that runs when its result is asked for: within one process there is nothing to win by
    asking ahead."""

    def __init__(self, channel: LocalChannel, transport: Transport, request: FetchRequest) -> None:
        self._channel = channel
        self._transport = transport
        self._request = request

    def done(self) -> bool:
        return False

    def result(self, timeout_s: float | None = None) -> Fetched:
        request = self._request
        while True:
            if self._channel.closed:
                raise Closed("The consumer was closed while it waited.")
            name, positions, bytes_max, left_s, isolation, where, _ = request
            slice_s = min(left_s, _LOCAL_WAIT_S)
            fetched = self._transport.fetch(name, positions, bytes_max, slice_s, isolation, where)
            left_s -= slice_s
            if fetched.blocks or not fetched.ended or left_s <= 0:
                return fetched
            request = request.after(fetched, left_s)
