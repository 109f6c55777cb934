"""The synchronous HTTP channel: request k+1 leaves before answer k is read; answers come in order.

    append ──▶ by owner ──▶ the line to each ──▶ its answers ──▶ one answer

Invariants

* An instance gets its requests over one connection, in the order in which they were begun.
* When a connection fails, everything under way on it fails; the next request opens a new one.
* A process that was forked makes a connection of its own.
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tms.api.parameters import TIMEOUT_S
from tms.client.http.addresses import OWNER, ServiceAddress, ServiceAddresses
from tms.client.http.answers import BODIES_KEPT, FollowingEnded
from tms.client.http.connection import HttpConnection
from tms.client.http.dividing import Dividing, PendingParts, in_order
from tms.client.http.exchange import Call, Calls, Response
from tms.client.http.following import FollowedTail
from tms.client.transport import FetchRequest, PendingAnswer
from tms.errors import Closed, StorageUnavailable, TimedOut, TMSError, Unavailable
from tms.model.message import Appended, Fetched, NewBlock
from tms.model.topic import Durability, TopicName
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import attempt_s

T = TypeVar("T")

_CLOSED = "The producer or consumer was closed."


class HttpPending(Generic[T]):
    """An answer on its way over a channel."""

    __slots__ = ("_answer", "_call", "_channel", "_error", "line", "settled")

    def __init__(self, channel: "HttpChannel", line: "_ChannelConnection", call: Call[T]) -> None:
        self._channel = channel
        self._call = call
        self._answer: Response | None = None
        self._error: TMSError | None = None
        self.line = line
        self.settled = False

    def done(self) -> bool:
        if not self.settled:
            self._channel.look(self)
        return self.settled

    def result(self, timeout_s: float | None = None) -> T:
        if not self.settled:
            self._channel.wait(self, TIMEOUT_S if timeout_s is None else timeout_s)
        if self._error is not None:
            raise self._error
        assert self._answer is not None, "a settled request has an answer or an error"
        try:
            return self._call.read(self._answer)
        except (Unavailable, StorageUnavailable):
            self._channel.addresses.avoid(self.line.connection.target)
            raise

    def settle(self, answer: Response) -> None:
        """The channel's: the answer came."""
        self._answer = answer
        if self._channel.addresses.away:
            self._channel.addresses.reached(self.line.connection.target)
        if OWNER in answer.headers:
            self._channel.addresses.take_in(self._call.places, answer.headers)
        self.settled = True

    def fail(self, error: TMSError) -> None:
        """The channel's: no answer will come."""
        self._error = error
        self.settled = True


class _PendingAtTail:
    """A fetch on its way, or the next part of what is followed; see `PendingAnswer`."""

    def __init__(
        self, channel: "HttpChannel", request: FetchRequest, part: HttpPending[Fetched] | None
    ) -> None:
        self._channel = channel
        self._request = request
        self._pending: PendingAnswer[Fetched] = part or channel.fetch(request)
        self._part = part

    def done(self) -> bool:
        return self._pending.done()

    def result(self, timeout_s: float | None = None) -> Fetched:
        tail = self._channel.tail
        try:
            fetched = self._pending.result(timeout_s)
        except TMSError as error:
            if self._part is None or isinstance(error, TimedOut | Closed):
                raise
            tail.refused(error)
            self._pending, self._part = self._channel.fetch(self._request), None
            fetched = self._pending.result(timeout_s)
        return tail.seen(self._request, fetched, self._part)


class _ChannelConnection:
    """A channel's present connection to an instance, and what waits for its answers."""

    __slots__ = ("connection", "failed", "newest", "waiting")

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.waiting: deque[HttpPending[Any]] = deque()
        self.failed = False
        self.newest: HttpPending[Fetched] | None = None  # of parts, where a topic is followed

    @property
    def takes_requests(self) -> bool:
        """True if another request may be sent."""
        if self.failed or self.newest is not None:
            return False
        return bool(self.waiting) or self.connection.usable


class HttpChannel:
    """A connection to each instance that is asked, with several requests under way. One thread
    begins requests; any may wait for their answers."""

    def __init__(
        self, addresses: ServiceAddresses, calls: Calls, clock: Clock, timeout_s: float
    ) -> None:
        self.addresses = addresses
        self._calls = calls
        self._clock = clock
        self._send_s_max = attempt_s(timeout_s)
        self._lines: dict[ServiceAddress, _ChannelConnection] = {}
        self._dividing = Dividing()
        self.tail = FollowedTail()
        self._reading = threading.Lock()
        self._closed = False
        forks.in_child(self._forked)

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> PendingAnswer[list[Appended]]:
        call = self._calls.append(name, blocks, durability)
        owners = self.addresses.by_owner(call.places) if self.addresses.informed else {}
        if len(owners) <= 1:
            return self._begin(call, next(iter(owners), self.addresses.now))
        parts = [
            self._begin(self._calls.append(name, [blocks[n] for n in numbers], durability), owner)
            for owner, numbers in owners.items()
        ]
        return PendingParts(parts, partial(in_order, owners.values()), self._clock)

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        part = self._follow(request) if self.tail.is_at(request) else None
        return _PendingAtTail(self, request, part)

    def fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        """Begin a fetch for itself."""
        call, addresses = self._calls.fetch(request), self.addresses
        if not addresses.informed:
            return self._begin(call, addresses.now)
        parts = self._dividing.parts(request, addresses.by_owner(call.places))
        if not parts:
            begun = [self._begin(call, addresses.of(call.places))]
        else:
            begun = [self._begin(self._calls.fetch(part), owner) for owner, part in parts]
        return PendingParts(begun, self._dividing.joined, self._clock)

    def _follow(self, request: FetchRequest) -> HttpPending[Fetched] | None:
        """The next part of what is followed from there on; None where that cannot be begun now."""
        call = self.tail.call(request, self._calls)
        line = self._lines.get(self.addresses.of(call.places))
        if line is None or line.failed or line.waiting:
            return None
        if line.newest is None:
            part = self._begin(call, line.connection.target)
            part.line.connection.follow()
        elif line.newest is self.tail.part:
            part = HttpPending(self, line, call)
            line.waiting.append(part)
        else:
            return None
        part.line.newest = part
        return part

    def leave(self) -> None:
        for line in list(self._lines.values()):
            if line.waiting and not line.failed:
                self._leave(line)

    def reset(self) -> None:
        self._drop(TimedOut("The request was given up.", outcome="unknown"))

    def close(self) -> None:
        self._closed = True
        self._drop(Closed(_CLOSED))

    def look(self, pending: HttpPending[Any]) -> None:
        """Take in arrived bytes without waiting; a thread that is reading does it as well."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while not pending.settled:
                if (answer := pending.line.connection.ready()) is None:
                    return
                self._settle(pending.line, answer)
        except TMSError as error:
            self._lose(pending.line, error)
        finally:
            self._reading.release()

    def wait(self, pending: HttpPending[Any], timeout_s: float) -> None:
        """Wait until `pending` is settled. Raises `TimedOut`; the answer may still be waited
        for."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        if not self._reading.acquire(timeout=max(0.0, timeout_s)):
            url = pending.line.connection.target.url
            raise TimedOut(f"{url} has not answered in {timeout_s:.3g} s.")
        try:
            while not pending.settled:
                self._settle(pending.line, pending.line.connection.receive(deadline_s))
        except TimedOut:
            if pending.line.connection.failure is not None:
                self._lose(pending.line, pending.line.connection.failure)
            raise
        except TMSError as error:
            self._lose(pending.line, error)
        finally:
            self._reading.release()

    def _begin(self, call: Call[T], address: ServiceAddress) -> HttpPending[T]:
        if self._closed:
            raise Closed(_CLOSED)
        line = self._lines.get(address)
        if line is None or not line.takes_requests:
            if line is not None and not line.failed:
                self._leave(line)
            line = self._lines[address] = _ChannelConnection(self._connect(address))
        pending = HttpPending(self, line, call)
        line.waiting.append(pending)
        line.connection.send(call.chunks, self._clock.monotonic_s() + self._send_s_max)
        if self._closed:  # by another thread, which may have come before there was a line
            self._drop(Closed(_CLOSED))
        return pending

    def _leave(self, line: _ChannelConnection) -> None:
        """Replace the connection and discard unread answers."""
        line.connection.shut_down()
        with self._reading:
            if not line.failed:
                line.failed = True
                line.connection.close()
                for pending in line.waiting:
                    pending.fail(TimedOut("The request was given up.", outcome="unknown"))
                line.waiting.clear()

    def _connect(self, address: ServiceAddress) -> HttpConnection:
        context = self.addresses.context(address)
        try:
            return HttpConnection(address, self._clock, self._send_s_max, BODIES_KEPT, context)
        except (Unavailable, TimedOut) as error:
            self.addresses.lost(address, error)
            self.addresses.avoid(address)
            raise

    def _settle(self, line: _ChannelConnection, answer: Response) -> None:
        line.waiting[0].settle(answer)  # it waits until it is settled: see `_forked`
        line.waiting.popleft()
        if not answer.keeps_open:
            url = line.connection.target.url
            self._fail(line, Unavailable(f"{url} closed the connection.", outcome="unknown"))

    def _lose(self, line: _ChannelConnection, error: TMSError) -> None:
        """The connection has failed."""
        if not isinstance(error, FollowingEnded):
            self.addresses.lost(line.connection.target, error, line.connection.given_up)
        self._fail(line, error)

    def _fail(self, line: _ChannelConnection, error: TMSError) -> None:
        """Everything under way on the line fails. The caller reads: it holds `_reading`."""
        line.failed = True
        if isinstance(error, Unavailable | TimedOut) and not isinstance(error, FollowingEnded):
            self.addresses.avoid(line.connection.target)
        line.connection.close()
        while line.waiting:
            line.waiting.popleft().fail(error)

    def _forked(self) -> None:
        """The parent gets the answers to what is under way."""
        self._reading = threading.Lock()
        lines, self._lines = self._lines, {}
        for address, line in lines.items():
            self._fail(
                line,
                Unavailable(f"The connection to {address.url} stayed with the parent process."),
            )

    def _drop(self, error: TMSError) -> None:
        lines = list(self._lines.values())
        for line in lines:
            line.connection.shut_down()  # whoever reads returns at once and gives way
        with self._reading:
            for line in lines:
                if not line.failed:
                    self._fail(line, error)
