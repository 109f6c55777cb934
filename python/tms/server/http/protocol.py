"""A connection: HTTP/1.1 as httptools parses it, within limits, with one watchdog for all.

* A client that keeps the service waiting for too long is cut off (`progress`, `watchdog`);
* URL, headers, pipelined requests and connections are bounded;
* bytes that are not HTTP/1.1 are answered with a problem document, after the answers to earlier
  requests, and the connection is closed; further bytes are read for a moment, so that the client
  sees the answer and no reset;
* a request leaves nothing to the next one: trailers of a chunked body are counted and dropped.
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
from tms.server.http.exchange import Exchange, settle
from tms.server.http.heads import HEAD_END
from tms.server.http.progress import ConnectionProgress, ConnectionVerdict, Phase
from tms.server.http.watchdog import Watchdog

PIPELINE_MAX = 32
TURNED_AWAY_MAX = 32  # connections beyond the limit that get an answer
BODY_BUFFER_BYTES = 64 << 10  # more unread bytes than this pause the sender
WRITE_BUFFER_BYTES = 8 << 10  # more than this unsent pauses the answer
TLS_HANDSHAKE = 0x16
_ONCE = frozenset((b"host", b"content-type", b"content-encoding", b"idempotency-key"))

Application = Callable[[Exchange], Awaitable[None]]


class ClientConnection(asyncio.Protocol):
    """One client connection. `tasks` has the requests that wait for something."""

    transport: asyncio.Transport
    peer_certificate_name: str | None = None  # of a client whose certificate was verified

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
        self._head_bytes_max = watchdog.limits.header_bytes_max + watchdog.limits.url_bytes_max
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it will be refused
        self._progress = ConnectionProgress(watchdog.limits, loop.time())
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._headers_count = 0
        self._head_bytes = 0  # of headers, as far as parsed
        self._head_fed = 0  # since the head began, parsed or not
        self._first = b""  # what is parsed, if a request begins with it
        self._running: Exchange | None = None
        self._fresh: Exchange | None = None
        self.queued: deque[Exchange] = deque()  # behind the one under way
        self._newest: Exchange | None = None
        self._refusal: TMSError | None = None
        self._eof = False
        self.writable: asyncio.Event | None = None  # while the transport has enough to send

    # -- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        surplus = len(self.watchdog.connections) - self._limits.connections_max
        self.watchdog.refused += surplus >= 0
        if surplus >= TURNED_AWAY_MAX:
            transport.abort()
            return
        self.watchdog.connections.add(self)
        if surplus >= 0:
            self.refuse(
                Unavailable("The service has as many connections as it takes; try again later.")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self.watchdog.connections.discard(self)
        settle(self.lost)
        for exchange in (self._running, *self.queued):
            if exchange is not None:
                exchange.abandon()
        self.queued.clear()
        self.resume_writing()
        self._parser = None  # it refers back to us

    def data_received(self, data: bytes) -> None:
        progress = self._progress
        parser = self._parser
        if progress.phase is Phase.LINGER or self._refusal is not None or parser is None:
            return
        self._first = b""
        if progress.phase is Phase.IDLE:
            if self._running is None and self._answer_known(data):
                return
            progress.phase, progress.moved = Phase.HEAD, True
            self._head_fed = 0
            self._first = data
        try:
            self._head_fed += len(data)
            parser.feed_data(data)
            # A single header without end never shows in `on_header`.
            if progress.phase is Phase.HEAD and self._head_fed > self._head_bytes_max:
                raise self._headers_too_large()
        except httptools.HttpParserUpgrade:
            # An upgrade is ignored: none is offered. But the bytes after it may be no HTTP.
            if self._newest is not None:
                self._newest.keep_alive = False
        except httptools.HttpParserError as exc:
            self.refuse(self._reason(exc, data))
        except TMSError as error:
            self.refuse(error)
        if self._fresh is not None:
            self._begin()

    def _answer_known(self, data: bytes) -> bool:
        """Answer a request that is here whole, and whose head was parsed before."""
        end = data.find(HEAD_END) + len(HEAD_END)
        head = self.watchdog.heads.get(data[:end])
        if head is None or len(data) != end + head.length:
            return False
        progress = self._progress
        progress.moved = True
        progress.body_bytes += head.length
        self._newest = self._running = self._fresh = Exchange(
            connection=self,
            request_id=next(self.watchdog.request_ids),
            method=head.method,
            path=head.path,
            query=head.query,
            headers=head.headers.copy(),
            version="1.1",
            content_length=head.length,
            keep_alive=True,
            expects_continue=False,
            body=bytearray(data[end:]),
            received=head.length,
            more_body=False,
        )
        self._begin()
        return True

    def _reason(self, exc: httptools.HttpParserError, data: bytes) -> TMSError:
        if isinstance(exc.__context__, TMSError):
            return exc.__context__
        if data[0] == TLS_HANDSHAKE:
            return Malformed(
                "This is a TLS handshake, but the port speaks plain HTTP: write http:// instead of "
                "https://, or start the service with --tls-cert and --tls-key."
            )
        if isinstance(exc, httptools.HttpParserInvalidMethodError):
            return NotImplementedMethod("The request's method is none of HTTP's.")
        return Malformed(f"The request is not HTTP/1.1: {exc}.")

    # -- the parser's calls --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note the first byte of a head: bytes that come later are no request of their own."""
        progress = self._progress
        if progress.phase is not Phase.HEAD:  # it follows another request
            progress.phase, progress.moved = Phase.HEAD, True
            self._head_fed = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes_max:
            raise UriTooLong(f"A URL has at most {self._limits.url_bytes_max} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._headers_count += 1
        if (
            self._head_bytes > self._limits.header_bytes_max
            or self._headers_count > self._limits.headers_max
        ):
            raise self._headers_too_large()
        if self._progress.phase is Phase.BODY:  # a trailer
            return
        name = name.lower()
        if name in self._headers:
            if name in _ONCE:
                raise Malformed(f"The header {name.decode('latin-1')} is given twice.")
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def _headers_too_large(self) -> TMSError:
        return HeadersTooLarge(
            f"A request has at most {self._limits.headers_max} headers of together "
            f"{self._limits.header_bytes_max} bytes."
        )

    def on_headers_complete(self) -> None:
        """Begin an exchange; httptools has refused what could be read in two ways."""
        parser, headers = self._parser, self._headers
        assert parser is not None, "it is the parser that calls"
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Malformed(f"This service speaks HTTP/1.1, not HTTP/{version}.")
        if b"host" not in headers and version == "1.1":
            raise Malformed("An HTTP/1.1 request has a Host header.")
        length: int | None = int(headers.get(b"content-length", 0))
        if b"transfer-encoding" in headers:
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise NotImplementedMethod("The only Transfer-Encoding read here is chunked.")
            length = None
        url = httptools.parse_url(self._url)
        exchange = self._newest = Exchange(
            connection=self,
            request_id=next(self.watchdog.request_ids),
            method=parser.get_method().decode("ascii"),
            path=url.path or b"/",
            query=url.query or b"",
            headers=headers,
            version=version,
            content_length=length,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
        )
        first, self._first = self._first, b""
        if first and exchange.keep_alive and not parser.should_upgrade():
            self.watchdog.heads.remember(first, exchange)
        self._url, self._headers, self._headers_count, self._head_bytes = b"", {}, 0, 0
        self._progress.phase, self._progress.moved = Phase.BODY, True
        if self._running is None:
            self._running = self._fresh = exchange
        elif len(self.queued) < PIPELINE_MAX:
            self.transport.pause_reading()
            self.queued.append(exchange)
        else:
            raise Overloaded(f"At most {PIPELINE_MAX} requests may wait on one connection.")

    def on_body(self, body: bytes) -> None:
        self._progress.body_bytes += len(body)
        exchange = self._newest
        assert exchange is not None
        if exchange.response_complete:
            exchange.received += len(body)
            return
        exchange.feed(body)
        if len(exchange.body) > BODY_BUFFER_BYTES:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        self._progress.phase, self._progress.moved = Phase.IDLE, True
        self._headers_count = self._head_bytes = 0  # of trailers
        assert self._newest is not None
        self._newest.feed(b"")
        if not self.queued:  # so that the client's leaving is seen
            self.transport.resume_reading()

    # -- the exchanges' calls ------------------------------------------------------------------

    def _begin(self) -> None:
        """Serve the fresh exchange. Most are answered in one go and never need a task."""
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

    async def _go_on(self, exchange: Exchange, steps: Any, waiting: Any) -> None:
        await _rest(steps, waiting)
        if not exchange.response_complete and not exchange.disconnected:
            self.transport.abort()

    def write(self, data: Buffer) -> None:
        """Hand bytes of an answer to the transport."""
        self._progress.bytes_written += len(data)
        self.transport.write(data)

    def on_response_complete(self) -> None:
        progress = self._progress
        progress.served, progress.moved = True, progress.moved or progress.phase is Phase.IDLE
        exchange, self._running = self._running, None
        if self.transport.is_closing():
            return
        if exchange is not None and not exchange.keep_alive:
            self.linger()
        elif self.queued:
            self._running = self._fresh = self.queued.popleft()
            self._loop.call_soon(self._begin)
        elif self._refusal is not None:
            self._answer_and_close(self._refusal)
        if not self.queued:
            self.transport.resume_reading()

    # -- ends ----------------------------------------------------------------------------------

    def refuse(self, error: TMSError) -> None:
        """Send the answers that are owed, then an error, and close."""
        newest = self._newest
        if (
            self._progress.phase is Phase.BODY and newest is not None
        ):  # its body will never be complete
            newest.fail(error)
            if newest.response_complete:
                self.linger()
                return
        self._refusal = error
        if self._running is None:
            self._answer_and_close(error)

    def _answer_and_close(self, error: TMSError) -> None:
        status, body = routes.problem(error, request_id := next(self.watchdog.request_ids))
        lines = (
            f"{routes.REQUEST_ID_HEADER}: {request_id}\r\ncontent-type: {routes.PROBLEM}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        head = routes.STATUS_LINES[status] + self.watchdog.head + lines.encode()
        self.write(head + body)
        self.linger()

    def handshake_failed(self, error: Exception) -> None:
        """End a connection whose TLS handshake failed; the client gets the alert."""
        self.watchdog.handshake_failed(error)
        self.linger()

    def linger(self) -> None:
        """Nothing more is answered: close once the client has read what it was sent."""
        self._progress.phase, self._progress.moved = Phase.LINGER, True
        if self._eof:
            self.transport.close()
            return
        self.transport.resume_reading()
        self.transport.write_eof()

    def eof_received(self) -> bool:
        """The client sends no more. It may still read answers, but nothing waits for it any
        more."""
        self._eof = True
        if self._running is None or self._progress.phase is not Phase.IDLE:
            return False  # closes
        self._finish()
        return True

    def _finish(self) -> None:
        """Answer every received request, without waiting, and close."""
        if self._newest is not None:
            self._newest.keep_alive = False
        for exchange in (self._running, *self.queued):
            if exchange is not None:
                exchange.hurry()

    def shutdown(self) -> None:
        """Close once every received request is answered."""
        if self._running is None:
            self.transport.close()
        else:
            self._finish()

    def pause_writing(self) -> None:
        self.writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None

    # -- the watchdog --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End this connection if it has kept the service waiting for too long."""
        verdict = self._progress.verdict(
            now,
            self.transport.get_write_buffer_size(),
            busy=self._running is not None,
            held_up=not self.transport.is_reading() or self._refusal is not None,
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


@types.coroutine
def _rest(steps: Any, waiting: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was begun outside of a task and now waits for `waiting`. From
    Python 3.12 on a task takes no generator, so it is awaited in one."""
    while True:
        try:
            try:
                value = yield waiting
            except BaseException as exc:
                waiting = steps.throw(exc)
            else:
                waiting = steps.send(value)
        except StopIteration:
            return
