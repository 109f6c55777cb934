"""The synchronous HTTP transport: a service as an engine, over a pool of connections.

    call ──▶ idle connection or a new one ──▶ request, answer ──▶ back to the pool

The table of operations says how each is sent, and when it may be repeated. Written out are those
that are sent several times: receives, fetches, moves of several groups.

Invariants

* In the pool are only connections without anything under way; at most `IDLE_CONNECTIONS_MAX` to an
  instance.
* Appends, commits and delayed publishes are tried once: who numbered a block or holds the key of a
  request repeats it. Everything else is repeated here while its errors are retriable and the time
  lasts.
* A receive is not repeated once it may have been carried out: what it leased and nobody saw comes
  again when the leases have ended, and a repetition would lease others besides. It waits in
  stretches, so that no connection is silent for long.
* What has tokens is repeated: done twice it is done once. The service knows the acks that it did
  last, so a repetition whose first answer was lost counts as done; one that was restarted meanwhile
  does not, and tells of tokens that came too late.
* A process that was forked makes connections of its own.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Generic, ParamSpec, TypeVar

from tms.api.access import AccessApi
from tms.api.backups import BackupsApi
from tms.api.configuration import ConfigurationApi
from tms.api.glance import GlanceApi
from tms.api.history import HistoryApi
from tms.api.instances import ClusterApi
from tms.api.log_levels import LogApi
from tms.api.operation import Operation, Repeat
from tms.api.operations import (
    OPERATIONS,
    DelayedApi,
    GroupsApi,
    TopicsApi,
    TransactionsApi,
)
from tms.api.parameters import TIMEOUT_S
from tms.api.queue_operations import QueuesApi
from tms.block.received import Received
from tms.client.http.addresses import OWNER, ServiceAddress, ServiceAddresses
from tms.client.http.channel import HttpChannel
from tms.client.http.connection import HttpConnection
from tms.client.http.credentials import token_of
from tms.client.http.exchange import WAIT_S_MAX, Call, Calls, explained, surely_not_done
from tms.client.http.forms import FORMS
from tms.client.transport import Channel, FetchRequest
from tms.errors import (
    Closed,
    Conflict,
    Fenced,
    NotFound,
    StorageUnavailable,
    TimedOut,
    TMSError,
    Unavailable,
)
from tms.model.filter import Filter
from tms.model.message import Appended, Fetched, NewBlock, PartitionPosition
from tms.model.queue import RECEIVE_BYTES
from tms.model.snapshot import Isolation, ReadIsolation
from tms.model.topic import Durability, TopicName
from tms.model.transaction import PositionChange
from tms.runtime import forks
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.retrying import attempt_s, is_retriable, retrying
from tms.runtime.tls import ClientTls

T = TypeVar("T")
C = TypeVar("C", bound=type)
P = ParamSpec("P")

IDLE_CONNECTIONS_MAX = 64


def has_operations(api: str) -> Callable[[C], C]:
    """Gives a class the operations of a protocol that it has no function of its own for."""

    def add(cls: C) -> C:
        for operation in OPERATIONS.values():
            if operation.api == api and operation.function not in vars(cls):
                assert not operation.by_hand or operation.name in FORMS, operation.name
                setattr(cls, operation.function, _method(operation))
        return cls

    return add


def complete(cls: Callable[P, T]) -> Callable[P, T]:
    """The class itself. A type checker takes a class for abstract that has its operations from
    `has_operations`."""
    return cls


def _method(operation: Operation) -> Callable[..., Any]:
    def ask(self: Any, *args: Any, **named: Any) -> Any:
        return self.do(operation, operation.bound(args, named))

    ask.__name__ = operation.function
    ask.__doc__ = operation.summary
    return ask


class _Port:
    """A port of a service. Thread-safe."""

    def __init__(self, transport: "HttpTransport") -> None:
        self._transport = transport
        self.do = transport.do


def _place(change: PositionChange) -> tuple[str, TopicName]:
    return change.key.group, change.key.topic


class HttpQueues(_Port, QueuesApi):
    """The queues of a service."""

    def receive(
        self,
        topic: TopicName,
        group: str,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        transport = self._transport
        until_s = transport.clock.monotonic_s() + wait_s
        while True:
            left_s = max(0.0, min(WAIT_S_MAX, until_s - transport.clock.monotonic_s()))
            left_s = round(left_s, 3)  # so that receives with the same wait share a request
            call = transport.calls.receive(topic, group, limit, left_s, bytes_max)
            try:
                received = transport.call(call, surely_not_done, left_s)
            except TMSError as error:
                raise explained(error) from error
            if received.slices or transport.clock.monotonic_s() >= until_s:
                return received


class HttpGroups(_Port, GroupsApi):
    """The log groups of a service, and their positions."""

    def move(self, changes: Sequence[PositionChange]) -> None:
        by_place = sorted(changes, key=_place)
        for (group, topic), some in groupby(by_place, _place):
            self._move(topic, group, list(some))

    def _move(self, topic: TopicName, group: str, changes: list[PositionChange]) -> None:
        def is_done(error: BaseException) -> bool:
            if not isinstance(error, Conflict) or isinstance(error, Fenced):
                return False  # the next owner may stand at the same position
            committed = self.positions(topic, group)
            return all(committed.get(one.key.partition) == one.position for one in changes)

        given = {"topic": topic, "group": group, "changes": changes}
        self._transport.call_once(
            self._transport.calls.of(OPERATIONS["groups.move"], given), is_done
        )


class PortOf(Generic[T]):
    """An attribute of a transport: the port of its service with the operations of the protocol that
    is called like the attribute. `kind` is that protocol, or a class with functions for some of
    its operations."""

    def __init__(self, kind: Callable[..., T]) -> None:
        self.kind: Any = kind

    def __set_name__(self, owner: type, name: str) -> None:
        if not issubclass(self.kind, _Port):
            self.kind = type(f"Http{self.kind.__name__}", (_Port, self.kind), {})
        has_operations(name)(self.kind)

    def __get__(self, transport: "HttpTransport", _: object = None) -> T:
        port: T = self.kind(transport)
        return port


@has_operations("topics")
class HttpTransport(TopicsApi):
    """The service at `url` (`http://HOST:PORT`, or https; several, separated by commas, of one
    cluster). Thread-safe; connects when first used, goes straight to the instance that keeps what
    a call concerns once one has said so, and on to the next where one is not reached, or refuses
    because it has to."""

    transactions = PortOf(TransactionsApi)
    delayed = PortOf(DelayedApi)
    queues = PortOf(HttpQueues)
    groups = PortOf(HttpGroups)
    glance = PortOf(GlanceApi)
    history = PortOf(HistoryApi)
    access = PortOf(AccessApi)
    backups = PortOf(BackupsApi)
    log = PortOf(LogApi)
    configuration = PortOf(ConfigurationApi)
    cluster = PortOf(ClusterApi)

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
        token: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.addresses = ServiceAddresses(url, self.clock, tls)
        self.timeout_s = timeout_s
        self._attempt_s = attempt_s(timeout_s)  # of the first attempt of a call
        address = self.addresses.now
        self.calls = Calls(address.authority, address.url, token_of(token))
        self._idle: dict[ServiceAddress, deque[HttpConnection]] = defaultdict(deque)
        self._closed = False
        forks.in_child(self._forked)

    def do(self, operation: Operation, given: Mapping[str, Any]) -> Any:
        """A declared operation, repeated as its declaration allows."""
        call = self.calls.of(operation, given)
        repeat = operation.repeat
        match repeat if isinstance(repeat, Repeat) else repeat(given):
            case Repeat.SAFE:
                return self.call(call)
            case Repeat.UNSAFE:
                return self.call(call, surely_not_done)
            case Repeat.UNTIL_GONE:
                return self.call_once(call, lambda error: isinstance(error, NotFound))
            case Repeat.NEVER:
                timeout_s = operation.timeout_s or given.get("timeout_s", TIMEOUT_S)
                return self.attempt(call, timeout_s)

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0,
        isolation: ReadIsolation = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Fetched:
        until_s = self.clock.monotonic_s() + wait_s
        request = FetchRequest(name, positions, bytes_max, wait_s, isolation, where)
        while True:  # the service may wait for less than it is asked to
            left_s = max(0.0, min(WAIT_S_MAX, until_s - self.clock.monotonic_s()))
            call = self.calls.fetch(request._replace(wait_s=left_s))
            fetched = self.call(call, is_retriable, left_s)
            if fetched.blocks or not fetched.ended or self.clock.monotonic_s() >= until_s:
                return fetched
            request = request.after(fetched, left_s)

    def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Appended]:
        return self.attempt(self.calls.append(name, blocks, durability), timeout_s)

    def call(
        self,
        call: Call[T],
        again: Callable[[BaseException], bool] = is_retriable,
        extra_s: float = 0,
    ) -> T:
        """A request, repeated while `again` says so of its errors and the time lasts; each attempt
        may take `extra_s` besides."""
        began_s = self.clock.monotonic_s()
        try:  # straight: whatever is needed for a repetition is made when there is one
            return self.attempt(call, self._attempt_s + extra_s)
        except TMSError as error:
            left_s = self.timeout_s - (self.clock.monotonic_s() - began_s)
            return retrying(
                lambda left_s: self.attempt(call, left_s + extra_s),
                self.clock,
                left_s,
                again,
                failed=error,
                what=call.operation,
            )

    def call_once(self, call: Call[None], is_done: Callable[[BaseException], bool]) -> None:
        """A request that is refused once it is done. If the answer of an attempt was lost,
        `is_done` says of the error of a later one whether that one has done it."""
        unsure: list[bool] = []

        def again(error: BaseException) -> bool:
            unsure.append(not surely_not_done(error))
            return is_retriable(error)

        try:
            self.call(call, again)
        except TMSError as error:
            if not (any(unsure[:-1]) and is_done(error)):
                raise

    def open_channel(self) -> Channel:
        """A connection of its own for one producer or consumer."""
        return HttpChannel(self.addresses, self.calls, self.clock, self.timeout_s)

    def close(self) -> None:
        """Close the idle connections; calls under way finish. A second call does nothing."""
        self._closed = True
        for idle in list(self._idle.values()):
            with suppress(IndexError):  # another thread may take the last one
                while True:
                    idle.pop().close()

    def _forked(self) -> None:
        self._idle.clear()

    def attempt(self, call: Call[T], timeout_s: float) -> T:
        """One request and its answer."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        addresses = self.addresses
        address = addresses.of(call.places) if addresses.informed else addresses.now
        try:
            connection = self._take(address, timeout_s)
            return self._exchange(connection, call, deadline_s)
        except (Unavailable, StorageUnavailable, TimedOut):
            self.addresses.avoid(address)
            raise

    def _exchange(self, connection: HttpConnection, call: Call[T], deadline_s: float) -> T:
        try:
            connection.send(call.chunks, deadline_s)
            answer = connection.receive(deadline_s)
        except BaseException as error:
            self.addresses.lost(connection.target, error, connection.given_up)
            connection.close()
            raise
        if self.addresses.away:
            self.addresses.reached(connection.target)
        idle = self._idle[connection.target]
        full = self._closed or len(idle) >= IDLE_CONNECTIONS_MAX
        if full or not answer.keeps_open or connection.failure is not None:
            connection.close()
        else:
            idle.append(connection)
        if OWNER in answer.headers:
            self.addresses.take_in(call.places, answer.headers)
        return call.read(answer)

    def _take(self, address: ServiceAddress, timeout_s: float) -> HttpConnection:
        if self._closed:
            raise Closed("The bus was closed; open or connect a new one.")
        idle = self._idle[address]
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.usable:
                return connection
            connection.close()
        context = self.addresses.context(address)
        try:
            return HttpConnection(address, self.clock, timeout_s, context=context)
        except TMSError as error:
            self.addresses.lost(address, error)
            raise


transport_to = complete(HttpTransport)
