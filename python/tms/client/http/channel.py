"""The synchronous HTTP channel: request k+1 leaves before answer k is read; answers come in order.

Invariants

* When the connection fails, everything under way on it fails; the next request opens a new one.
* A process that was forked makes a connection of its own.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tms import forks
from tms.api.parameters import TIMEOUT_S
from tms.client.http.answers import BODIES_KEPT
from tms.client.http.connection import HttpConnection, ServiceAddresses
from tms.client.http.exchange import Call, Calls, Response
from tms.client.transport import FetchRequest, PendingAnswer
from tms.clock import Clock
from tms.errors import Closed, TimedOut, TMSError, Unavailable
from tms.model.message import Appended, Fetched, NewBlock
from tms.model.topic import Durability, TopicName
from tms.retrying import attempt_s

T = TypeVar("T")

_CLOSED = "The producer or consumer was closed."


class HttpPending(Generic[T]):
    """An answer on its way over a channel."""

    __slots__ = ("_answer", "_channel", "_error", "_read", "line", "settled")

    def __init__(
        self, channel: "HttpChannel", line: "_ChannelConnection", read: Callable[[Response], T]
    ) -> None:
        self._channel = channel
        self._read = read
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
        return self._read(self._answer)

    def settle(self, answer: Response) -> None:
        """The channel's: the answer came."""
        self._answer = answer
        self.settled = True

    def fail(self, error: TMSError) -> None:
        """The channel's: no answer will come."""
        self._error = error
        self.settled = True


class _ChannelConnection:
    """A channel's present connection, and what waits for its answers."""

    __slots__ = ("connection", "failed", "waiting")

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.waiting: deque[HttpPending[Any]] = deque()
        self.failed = False


class HttpChannel:
    """One connection with several requests under way. One thread begins requests; any may wait for
    their answers."""

    def __init__(
        self, addresses: ServiceAddresses, calls: Calls, clock: Clock, timeout_s: float
    ) -> None:
        self._addresses = addresses
        self._calls = calls
        self._clock = clock
        self._send_s_max = attempt_s(timeout_s)
        self._line: _ChannelConnection | None = None
        self._reading = threading.Lock()
        self._closed = False
        forks.in_child(self._forked)

    def submit(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> PendingAnswer[list[Appended]]:
        return self._begin(self._calls.append(name, blocks, durability))

    def begin_fetch(self, request: FetchRequest) -> PendingAnswer[Fetched]:
        return self._begin(self._calls.fetch(request))

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
            self._fail(pending.line, error)
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
            line = self._line = _ChannelConnection(self._connect())
        pending = HttpPending(self, line, call.read)
        line.waiting.append(pending)
        line.connection.send(call.chunks, self._clock.monotonic_s() + self._send_s_max)
        if self._closed:  # by another thread, which may have come before there was a line
            self._drop(Closed(_CLOSED))
        return pending

    def _connect(self) -> HttpConnection:
        address = self._addresses.now
        try:
            return HttpConnection(address, self._clock, self._send_s_max, BODIES_KEPT)
        except (Unavailable, TimedOut):
            self._addresses.avoid(address)
            raise

    def _settle(self, line: _ChannelConnection, answer: Response) -> None:
        line.waiting[0].settle(answer)  # it waits until it is settled: see `_forked`
        line.waiting.popleft()
        if not answer.keeps_open:
            url = line.connection.target.url
            self._fail(line, Unavailable(f"{url} closed the connection.", outcome="unknown"))

    def _fail(self, line: _ChannelConnection, error: TMSError) -> None:
        """Everything under way on the line fails. The caller reads: it holds `_reading`."""
        line.failed = True
        if isinstance(error, Unavailable | TimedOut):
            self._addresses.avoid(line.connection.target)
        line.connection.close()
        while line.waiting:
            line.waiting.popleft().fail(error)

    def _forked(self) -> None:
        """The parent gets the answers to what is under way."""
        self._reading = threading.Lock()
        line, self._line = self._line, None
        if line is not None:
            url = line.connection.target.url
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
