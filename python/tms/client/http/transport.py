"""The synchronous HTTP transport: a pool of connections for single calls, and lanes that pipeline.

    call ──▶ idle connection or a new one ──▶ request, answer ──▶ back to the pool
    lane ──▶ its own connection: request k+1 leaves before answer k is read; answers come in order

Invariants

* In the pool are only connections without anything under way; at most `IDLE_CONNECTIONS_MAX` of
  them.
* Appends are tried once: only the producer that numbered a block may repeat it. Everything else is
  repeated here while its errors are retriable and the time lasts.
* When a lane's connection fails, everything under way on it fails; the next request opens a new
  one.
* A process that was forked makes connections of its own.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tms import forks
from tms.api.erasing import erase_body
from tms.api.operation import Operation, Repeat
from tms.api.operations import DelayedApi, GroupsApi, QueuesApi, TopicsApi, TransactionsApi
from tms.api.parameters import TIMEOUT_S
from tms.client.http.answers import BODIES_KEPT
from tms.client.http.connection import HttpConnection, ServiceAddress
from tms.client.http.exchange import WAIT_S_MAX, Call, Calls, Response
from tms.client.http.operations import (
    HttpDelayed,
    HttpGroups,
    HttpQueues,
    HttpTransactions,
    has_operations,
    surely_not_done,
)
from tms.client.transport import Channel, FetchRequest, PendingAnswer
from tms.clock import Clock, SystemClock
from tms.errors import Closed, NotFound, TimedOut, TMSError, Unavailable
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import Appended, Fetched, NewBlock, PartitionPosition
from tms.model.snapshot import Isolation, View
from tms.model.topic import Durability, TopicName
from tms.retrying import attempt_s, is_retriable, retrying

T = TypeVar("T")

IDLE_CONNECTIONS_MAX = 64
_CLOSED = "The producer or consumer was closed."


@has_operations("topics")
class HttpTransport(TopicsApi):
    """The service at `url` (`http://HOST:PORT`, or https). Thread-safe; connects when first
    used."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
        token: str = "",
    ) -> None:
        self.target = ServiceAddress(url)
        self.timeout_s = timeout_s
        self.clock = clock or SystemClock()
        self.calls = Calls(self.target.authority, self.target.url, token)
        self._idle: deque[HttpConnection] = deque()
        self._closed = False
        forks.in_child(self._forked)

    def erase(
        self,
        name: TopicName,
        key: bytes | None = None,
        id: MessageId | None = None,
        partition: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> int:
        return self.attempt(self.calls.erase(name, erase_body(key, id, partition)), timeout_s)

    def do(self, operation: Operation, given: Mapping[str, Any]) -> Any:
        """A declared operation, repeated as its declaration allows."""
        call = self.calls.of(operation, given)
        match operation.repeat_of(given):
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
        isolation: View = Isolation.COMMITTED,
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

    @property
    def transactions(self) -> TransactionsApi:
        """The service's transactions."""
        return HttpTransactions(self)

    @property
    def delayed(self) -> DelayedApi:
        """The service's delayed messages."""
        return HttpDelayed(self)

    @property
    def queues(self) -> QueuesApi:
        """The service's queues."""
        return HttpQueues(self)

    @property
    def groups(self) -> GroupsApi:
        """The service's log groups."""
        return HttpGroups(self)

    def call(
        self,
        call: Call[T],
        again: Callable[[BaseException], bool] = is_retriable,
        extra_s: float = 0,
    ) -> T:
        """A request, repeated while `again` says so of its errors and the time lasts; each attempt
        may take `extra_s` besides."""
        return retrying(
            lambda left_s: self.attempt(call, left_s + extra_s),
            self.clock,
            self.timeout_s,
            again,
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

    def open_lane(self) -> Channel:
        """A connection of its own for one producer or consumer."""
        return HttpLane(self)

    def close(self) -> None:
        """Close the idle connections; calls under way finish. A second call does nothing."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _forked(self) -> None:
        self._idle.clear()

    def attempt(self, call: Call[T], timeout_s: float) -> T:
        """One request and its answer."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        connection = self._take(timeout_s)
        try:
            connection.send(call.chunks, deadline_s)
            answer = connection.receive(deadline_s)
        except BaseException:
            connection.close()
            raise
        full = self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX
        if full or not answer.keeps_open or connection.failure is not None:
            connection.close()
        else:
            self._idle.append(connection)
        return call.read(answer)

    def _take(self, timeout_s: float) -> HttpConnection:
        if self._closed:
            raise Closed("The bus was closed; open or connect a new one.")
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.usable:
                return connection
            connection.close()
        return HttpConnection(self.target, self.clock, timeout_s)


class HttpPending(Generic[T]):
    """An answer on its way over a lane."""

    __slots__ = ("_answer", "_error", "_lane", "_read", "line", "settled")

    def __init__(
        self, lane: "HttpLane", line: "_ChannelLine", read: Callable[[Response], T]
    ) -> None:
        self._lane = lane
        self._read = read
        self._answer: Response | None = None
        self._error: TMSError | None = None
        self.line = line
        self.settled = False

    def done(self) -> bool:
        if not self.settled:
            self._lane.look(self)
        return self.settled

    def result(self, timeout_s: float | None = None) -> T:
        if not self.settled:
            self._lane.wait(self, TIMEOUT_S if timeout_s is None else timeout_s)
        if self._error is not None:
            raise self._error
        assert self._answer is not None, "a settled request has an answer or an error"
        return self._read(self._answer)

    def settle(self, answer: Response) -> None:
        """The lane's: the answer came."""
        self._answer = answer
        self.settled = True

    def fail(self, error: TMSError) -> None:
        """The lane's: no answer will come."""
        self._error = error
        self.settled = True


class _ChannelLine:
    """A lane's present connection, and what waits for its answers."""

    __slots__ = ("connection", "failed", "waiting")

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.waiting: deque[HttpPending[Any]] = deque()
        self.failed = False


class HttpLane:
    """One connection with several requests under way. One thread begins requests; any may wait for
    their answers."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._send_s_max = attempt_s(transport.timeout_s)
        self._line: _ChannelLine | None = None
        self._reading = threading.Lock()
        self._closed = False
        forks.in_child(self._forked)

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> PendingAnswer[list[Appended]]:
        return self._begin(self._transport.calls.append(name, blocks, durability))

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        return self._begin(self._transport.calls.fetch(request))

    def reset(self) -> None:
        self._drop(TimedOut("The request was given up.", outcome="unknown"))

    def close(self) -> None:
        self._closed = True
        self._drop(Closed(_CLOSED))

    def look(self, pending: HttpPending[Any]) -> None:
        """Take in what has arrived, without waiting; somebody else who is reading does it as
        well."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while not pending.settled:
                if (answer := pending.line.connection.ready()) is None:
                    return
                self._settle(pending.line, answer)
        except TMSError as error:
            self._fail(pending.line, error)
        finally:
            self._reading.release()

    def wait(self, pending: HttpPending[Any], timeout_s: float) -> None:
        """Wait until `pending` is settled. Raises `TimedOut`; the answer may still be waited
        for."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        if not self._reading.acquire(timeout=max(0.0, timeout_s)):
            raise TimedOut(f"{self._transport.target.url} has not answered in {timeout_s:.3g} s.")
        try:
            while not pending.settled:
                self._settle(pending.line, pending.line.connection.receive(deadline_s))
        except TimedOut:
            if pending.line.connection.failure is not None:
                self._fail(pending.line, pending.line.connection.failure)
            raise
        except TMSError as error:
            self._fail(pending.line, error)
        finally:
            self._reading.release()

    def _begin(self, call: Call[T]) -> HttpPending[T]:
        if self._closed:
            raise Closed(_CLOSED)
        line = self._line
        if line is None or line.failed or (not line.waiting and not line.connection.usable):
            if line is not None and not line.failed:
                line.connection.close()
            line = self._line = _ChannelLine(
                HttpConnection(self._transport.target, self._clock, self._send_s_max, BODIES_KEPT)
            )
        pending = HttpPending(self, line, call.read)
        line.waiting.append(pending)
        line.connection.send(call.chunks, self._clock.monotonic_s() + self._send_s_max)
        if self._closed:  # by another thread, which may have come before there was a line
            self._drop(Closed(_CLOSED))
        return pending

    def _settle(self, line: _ChannelLine, answer: Response) -> None:
        line.waiting[0].settle(answer)  # it waits until it is settled: see `_forked`
        line.waiting.popleft()
        if not answer.keeps_open:
            url = self._transport.target.url
            self._fail(line, Unavailable(f"{url} closed the connection.", outcome="unknown"))

    def _fail(self, line: _ChannelLine, error: TMSError) -> None:
        """Everything under way on the line fails. The caller reads: it holds `_reading`."""
        line.failed = True
        line.connection.close()
        while line.waiting:
            line.waiting.popleft().fail(error)

    def _forked(self) -> None:
        """The parent gets the answers to what is under way."""
        self._reading = threading.Lock()
        line, self._line = self._line, None
        if line is not None:
            url = self._transport.target.url
            self._fail(
                line, Unavailable(f"The connection to {url} stayed with the parent process.")
            )

    def _drop(self, error: TMSError) -> None:
        line = self._line
        if line is None:
            return
        line.connection.shut_down()  # whoever reads returns at once and gives way
        with self._reading:
            if not line.failed:
                self._fail(line, error)
