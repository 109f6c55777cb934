"""One HTTP connection over a socket, and what its failures mean.

Invariants

* The socket never blocks: every wait is a poll with a deadline, so no call outlives its time-out.
* Once it has failed, everything under way on it fails with an error that says whether the outcome
  is unknown (`outcome="unknown"` in its details: the request may have been carried out).
"""

import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tms.client.http.addresses import ServiceAddress
from tms.client.http.answers import AnswerReader
from tms.client.http.exchange import Response
from tms.errors import ConfigError, TimedOut, TMSError, Unavailable
from tms.model.message import Buffer
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.tls import fault_of

if TYPE_CHECKING:
    import ssl

CONNECT_S_MAX = 5.0
_BUFFERS_PER_SEND = 64


def connect_error(exc: Exception, target: ServiceAddress, timeout_s: float) -> TMSError:
    """The error of a connection that could not be made."""
    if isinstance(exc, ConnectionRefusedError):
        return Unavailable(
            f"Nothing listens at {target.url}. Start the service with `tms serve`, or check the "
            "URL."
        )
    if isinstance(exc, TimeoutError):
        return Unavailable(f"{target.url} did not accept a connection within {timeout_s:.3g} s.")
    if isinstance(exc, socket.gaierror):
        return Unavailable(f"The host name {target.host!r} cannot be resolved: {exc.strerror}.")
    return exchange_error(exc, target)


def exchange_error(exc: Exception, target: ServiceAddress) -> TMSError:
    """The error of a connection that failed with a request under way."""
    fault = fault_of(exc, target.url)
    if fault is not None:  # where others have sent us it is theirs, and there is another way
        return fault if target.given else Unavailable(fault.message)
    return Unavailable(
        f"The connection to {target.url} was lost before the answer came ({exc}).",
        outcome="unknown",
    )


def ended_error(target: ServiceAddress, begun: bool) -> TMSError:
    """The error of a connection that the service ended without an answer."""
    what = "in the middle of an answer" if begun else "without an answer"
    return Unavailable(
        f"{target.url} closed the connection {what}. It was stopped or restarted, or it is no TMS "
        "service; if it speaks TLS, write https://.",
        outcome="unknown",
    )


class HttpConnection:
    """One socket. Sending and receiving may happen in two threads, but each in one at a time. It
    goes with whoever has it, closed or not."""

    def __init__(
        self,
        target: ServiceAddress,
        clock: Clock,
        timeout_s: float,
        bodies_kept: int = 0,
        context: "ssl.SSLContext | None" = None,
    ) -> None:
        self.target = target
        self._clock = clock
        self._reader = AnswerReader(target.url, bodies_kept)
        self._answers: deque[Response] = deque()
        self.failure: TMSError | None = None
        self.given_up = False  # by who has it: that it ends then is no news
        self._not_yet: tuple[type[OSError], ...] = (BlockingIOError, InterruptedError)
        wait_s = min(timeout_s, CONNECT_S_MAX)
        try:
            self._socket = socket.create_connection((target.host, target.port), wait_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                import ssl

                self._not_yet += (ssl.SSLWantReadError, ssl.SSLWantWriteError)
                self._socket = context.wrap_socket(self._socket, server_hostname=target.host)
        except OSError as exc:
            raise connect_error(exc, target, wait_s) from exc
        self._socket.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        forks.in_child(self.close)  # the connection stays with the parent, and ends with it

    @property
    def usable(self) -> bool:
        """True if nothing is under way and the service has not ended the connection."""
        return self.failure is None and not self._reader.parsed.begun and not self._readable.poll(0)

    def follow(self) -> None:
        """The next answer, and the last of this connection, goes on; see `FollowedParts`."""
        self._reader = AnswerReader(self.target.url, follows=True)

    def send(self, chunks: Sequence[Buffer], deadline_s: float) -> None:
        """Send a request. A failure shows when its answer is received: the service may have
        answered already."""
        left = list(chunks)
        try:
            while left:
                try:
                    if self.target.tls:
                        sent = self._socket.send(left[0])
                    else:
                        sent = self._socket.sendmsg(left[:_BUFFERS_PER_SEND])
                except self._not_yet:
                    self._wait(self._writable, deadline_s, "took the request")
                    continue
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = memoryview(left[0])[sent:]
        except TimedOut as error:
            self.failure = error
        except OSError as exc:
            self.failure = exchange_error(exc, self.target)

    def receive(self, deadline_s: float) -> Response:
        """The next answer. Raises `TimedOut`, `Unavailable`, `ConfigError`."""
        if not self._answers and not self.target.tls and self.failure is None:
            self._wait(self._readable, deadline_s, "answered")  # cheaper than to try in vain
        while (answer := self.ready()) is None:
            self._wait(self._readable, deadline_s, "answered")
        return answer

    def ready(self) -> Response | None:
        """The next answer if it is here. Never waits. Raises `Unavailable`, `ConfigError`."""
        while not self._answers:
            try:
                count = self._socket.recv_into(self._reader.buffer)
            except self._not_yet:
                if self.failure is not None:
                    raise self.failure from None
                return None
            except OSError as exc:
                error = exchange_error(exc, self.target)
                if isinstance(error, ConfigError):  # it says why sending failed
                    raise error from exc
                raise self.failure or error from exc
            if count:
                self._answers.extend(self._reader.buffer_updated(count))
            elif (last := self._reader.end()) is not None:
                self._answers.append(last)
            else:
                raise self.failure or ended_error(self.target, self._reader.parsed.begun)
        return self._answers.popleft()

    def _wait(self, ready: select.poll, deadline_s: float, what: str) -> None:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0 or not ready.poll(left_s * 1_000 + 1):
            raise TimedOut(
                f"{self.target.url} has not {what} in time; is it overloaded, stopped, or no TMS "
                "service?",
                outcome="unknown",
            )

    def shut_down(self) -> None:
        """Give it up, and wake waiting threads; from any thread."""
        self.given_up = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        """Release the socket; only when nobody waits on it."""
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):  # it was connected
            self._socket.close()
