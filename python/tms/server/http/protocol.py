"""A connection: HTTP/1.1 as httptools parses it, within limits, with one watchdog for all.

* Whoever keeps the service waiting for too long is cut off (`progress`, `watchdog`);
* URL, headers, pipelined requests and connections are bounded;
* what is not HTTP/1.1 is answered with a problem document, behind the answers still owed to
  earlier requests, and the connection is closed; what the other side still sends is read for a
  moment, so that it sees the answer and no reset.
"""

import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import httptools

from tms.api import routes
from tms.api.routes import HeadersTooLarge, NotImplementedMethod, UriTooLong
from tms.errors import Malformed, Overloaded, SlowRequest, TMSError, Unavailable
from tms.model.message import Buffer
from tms.server.http.exchange import Exchange, RequestHead, settle
from tms.server.http.flow import FlowControl
from tms.server.http.progress import ConnectionProgress, ConnectionVerdict, Phase
from tms.server.http.watchdog import Watchdog

PIPELINE_MAX = 32
TURNED_AWAY_MAX = 32  # connections beyond the limit that are told so
BODY_BUFFER_BYTES = 64 << 10  # more than this that nobody has read pauses the sender
WRITE_BUFFER_BYTES = 8 << 10  # more than this unsent pauses the answer
_TLS_HANDSHAKE = 0x16

Application = Callable[[Exchange], Awaitable[None]]


class ClientConnection(asyncio.Protocol):
    """One client connection. `tasks` has the requests that wait for something."""

    transport: asyncio.Transport
    flow: FlowControl

    def __init__(
        self,
        application: Application,
        watchdog: Watchdog,
        loop: asyncio.AbstractEventLoop,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._application = application
        self.watchdog = watchdog
        self._loop = loop
        self._tasks = tasks
        self.lost = loop.create_future()
        self._limits = watchdog.limits
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it will be refused
        self._progress = ConnectionProgress(watchdog.limits, loop.time())
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0  # of URL and headers, as far as parsed
        self._head_fed = 0  # since the head began, parsed or not
        self._running: Exchange | None = None
        self._fresh: Exchange | None = None
        self._queued: deque[Exchange] = deque()
        self._newest: Exchange | None = None
        self._refusal: TMSError | None = None
        self._eof = False

    # -- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.flow = FlowControl(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        surplus = len(self.watchdog.connections) - self._limits.connections_max
        if surplus >= 0:
            self._turn_away(surplus)
            return
        self.watchdog.connections.add(self)

    def _turn_away(self, surplus: int) -> None:
        self.watchdog.refused += 1
        if surplus >= TURNED_AWAY_MAX:
            self.transport.abort()
            return
        self.watchdog.connections.add(self)
        self._answer_and_close(
            Unavailable("The service has as many connections as it takes; try again later.")
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.watchdog.connections.discard(self)
        settle(self.lost)
        for exchange in (self._running, *self._queued):
            if exchange is not None:
                exchange.abandon()
        self._queued.clear()
        self.flow.resume_writing()
        self._parser = None  # it refers back to us

    def data_received(self, data: bytes) -> None:
        progress = self._progress
        parser = self._parser
        if progress.phase is Phase.LINGER or self._refusal is not None or parser is None:
            return
        if progress.phase is Phase.IDLE:
            progress.enter(Phase.HEAD, self._loop.time())
            self._head_fed = 0
        try:
            self._head_fed += len(data)
            parser.feed_data(data)
            if progress.phase is Phase.HEAD:
                self._check_head()
        except httptools.HttpParserUpgrade:
            # An upgrade that nobody offered is ignored, but what follows may be no HTTP.
            if self._newest is not None:
                self._newest.keep_alive = False
        except httptools.HttpParserError as exc:
            self.refuse(self._reason(exc, data))
        except TMSError as error:
            self.refuse(error)
        self._begin()

    def _check_head(self) -> None:
        """A single header without end never shows in `on_header`."""
        if self._head_fed > self._limits.header_bytes_max + self._limits.url_bytes_max:
            raise self._headers_too_large()

    def _reason(self, exc: httptools.HttpParserError, data: bytes) -> TMSError:
        if isinstance(exc.__context__, TMSError):
            return exc.__context__
        if data[0] == _TLS_HANDSHAKE:
            return Malformed(
                "This is a TLS handshake, but the port speaks plain HTTP: use http://."
            )
        if isinstance(exc, httptools.HttpParserInvalidMethodError):
            return NotImplementedMethod("The request's method is none of HTTP's.")
        return Malformed(f"The request is not HTTP/1.1: {exc}.")

    # -- the parser's calls --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._progress.phase is not Phase.HEAD:  # it follows another request
            self._progress.enter(Phase.HEAD, self._loop.time())
            self._head_fed = 0
        self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes_max:
            raise UriTooLong(f"A URL has at most {self._limits.url_bytes_max} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        headers = self._headers
        headers.append((name.lower(), value))
        if (
            self._head_bytes > self._limits.header_bytes_max
            or len(headers) > self._limits.headers_max
        ):
            raise self._headers_too_large()

    def _headers_too_large(self) -> TMSError:
        return HeadersTooLarge(
            f"A request has at most {self._limits.headers_max} headers of together "
            f"{self._limits.header_bytes_max} bytes."
        )

    def on_headers_complete(self) -> None:
        exchange = Exchange(self, self._head(), self.watchdog.request_id())
        self._progress.enter(Phase.BODY, self._loop.time())
        self._newest = exchange
        if self._running is None:
            self._running = self._fresh = exchange
        elif len(self._queued) < PIPELINE_MAX:
            self.flow.pause_reading()
            self._queued.append(exchange)
        else:
            raise Overloaded(f"At most {PIPELINE_MAX} requests may wait on one connection.")

    def _head(self) -> RequestHead:
        """What the headers say; httptools has refused what could be read in two ways."""
        parser = self._parser
        assert parser is not None, "it is the parser that calls"
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Malformed(f"This service speaks HTTP/1.1, not HTTP/{version}.")
        length: int | None = 0
        host = expect_continue = False
        for name, value in self._headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise NotImplementedMethod("The only Transfer-Encoding read here is chunked.")
                length = None
            elif name == b"host":
                host = True
            elif name == b"expect" and value.lower() == b"100-continue":
                expect_continue = True
        if not host and version == "1.1":
            raise Malformed("An HTTP/1.1 request has a Host header.")
        url = httptools.parse_url(self._url)
        return RequestHead(
            parser.get_method().decode("ascii"),
            url.path or b"/",
            url.query or b"",
            self._headers,
            version,
            length,
            version != "1.0" and parser.should_keep_alive(),
            expect_continue,
        )

    def on_body(self, body: bytes) -> None:
        self._progress.received(len(body), self._loop.time())
        exchange = self._newest
        assert exchange is not None
        if exchange.response_complete:
            exchange.received += len(body)
            return
        exchange.feed(body)
        if len(exchange.body) > BODY_BUFFER_BYTES:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._progress.enter(Phase.IDLE, self._loop.time())
        assert self._newest is not None
        self._newest.feed_end()
        if self.flow.read_paused and not self._queued:  # so that the client's leaving is seen
            self.flow.resume_reading()

    # -- the exchanges' calls ------------------------------------------------------------------

    def _begin(self) -> None:
        """Serve the fresh exchange, if any. Most are answered in one go and never need a task."""
        exchange, self._fresh = self._fresh, None
        if exchange is None:
            return
        steps: Any = self._application(exchange)
        try:
            waiting = steps.send(None)
        except StopIteration:
            if not exchange.response_complete and not exchange.disconnected:
                self.transport.abort()
            return
        task = self._loop.create_task(self._go_on(exchange, steps, waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @types.coroutine
    def _go_on(self, exchange: Exchange, steps: Any, waiting: Any) -> Generator[Any, Any, None]:
        """The rest of a coroutine that was begun outside of a task and now waits for `waiting`."""
        while True:
            try:
                try:
                    value = yield waiting
                except BaseException as exc:
                    waiting = steps.throw(exc)
                else:
                    waiting = steps.send(value)
            except StopIteration:
                break
        if not exchange.response_complete and not exchange.disconnected:
            self.transport.abort()

    def write(self, data: Buffer) -> None:
        """Hand bytes of an answer to the transport."""
        self._progress.bytes_written += len(data)
        self.transport.write(data)

    def on_response_complete(self) -> None:
        self._progress.answered(self._loop.time())
        exchange, self._running = self._running, None
        if self.transport.is_closing():
            return
        if exchange is not None and not exchange.keep_alive:
            self._linger()
        elif self._queued:
            self._running = self._fresh = self._queued.popleft()
            self._loop.call_soon(self._begin)
        elif self._refusal is not None:
            self._answer_and_close(self._refusal)
        if self.flow.read_paused and not self._queued:
            self.flow.resume_reading()

    # -- ends ----------------------------------------------------------------------------------

    def refuse(self, error: TMSError) -> None:
        """Answer with an error after what is still owed, then close."""
        newest = self._newest
        if (
            self._progress.phase is Phase.BODY and newest is not None
        ):  # its body will never be complete
            newest.fail(error)
            if newest.response_complete:
                self._linger()
                return
        self._refusal = error
        if self._running is None:
            self._answer_and_close(error)

    def _answer_and_close(self, error: TMSError) -> None:
        status, body = routes.problem(error, request_id := self.watchdog.request_id())
        lines = (
            f"TMS-Request-Id: {request_id}\r\ncontent-type: {routes.PROBLEM}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        head = routes.STATUS_LINES[status] + self.watchdog.head + lines.encode()
        self.write(head + body)
        self._linger()

    def _linger(self) -> None:
        self._progress.enter(Phase.LINGER, self._loop.time())
        if self._eof:
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write_eof()

    def eof_received(self) -> bool:
        """The client sends no more; it may still read what it is owed, but will not wait."""
        self._eof = True
        if self._running is None or self._progress.phase is not Phase.IDLE:
            return False  # closes
        self._finish()
        return True

    def _finish(self) -> None:
        """Answer what was received, without waiting, and close."""
        if self._newest is not None:
            self._newest.keep_alive = False
        for exchange in (self._running, *self._queued):
            if exchange is not None:
                exchange.hurry()

    def shutdown(self) -> None:
        """Close once what was received is answered."""
        if self._running is None:
            self.transport.close()
        else:
            self._finish()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    # -- the watchdog --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End this connection if it has kept the service waiting for too long."""
        verdict = self._progress.verdict(
            now,
            self.transport.get_write_buffer_size(),
            busy=self._running is not None,
            held_up=self.flow.read_paused or self._refusal is not None,
            short=self.watchdog.short,
        )
        if verdict is ConnectionVerdict.GO_ON:
            return
        if verdict is ConnectionVerdict.CLOSE:
            self.transport.close()
            return
        self.watchdog.cut_off += 1
        if verdict is ConnectionVerdict.HEAD_TOO_SLOW:
            seconds = self._limits.head_timeout_s
            self.refuse(SlowRequest(f"The headers were not complete within {seconds:g} s."))
        elif verdict is ConnectionVerdict.BODY_TOO_SLOW:
            seconds = self._limits.body_timeout_s
            self.refuse(SlowRequest(f"The body made too little progress for {seconds:g} s."))
        else:
            self.transport.abort()
