"""One request and its response on a connection, in the order of the connection's pipeline.

    read_into    the body straight into the caller's memory: one copy, one wake-up
    pieces       a body whose length is not known before, as it comes
    respond      a small answer in one write
    stream       a long answer chunk by chunk; waits whenever the consumer does not read
    stream_chunks  the same for one whose length is not known before, in chunks of HTTP
    begin_chunks, send, end_chunks  the same step by step

Invariants

* The body is read once, by one of `read_into` and `pieces`; a sender that is too slow raises
  `SlowRequest`, a client that is gone `Disconnected`.
* A response has a Content-Length, or comes in chunks, and is written completely or the connection
  is closed.
* What the transport holds for a consumer that does not read is one chunk.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tms.api import routes
from tms.errors import TMSError
from tms.model.access import Credential
from tms.model.message import Buffer
from tms.server.http.compression import Coding

if TYPE_CHECKING:
    from tms.server.http.protocol import ClientConnection

DISCARD_BYTES_MAX = 1 << 20  # the rest of an unwanted body is read up to here
JOIN_BYTES_MAX = 16 << 10  # a body up to this size goes out in one piece with its head
_REQUEST_ID = f"{routes.REQUEST_ID_HEADER}: ".encode()


class Disconnected(Exception):
    """The client is gone; no answer can reach it."""


class Exchange(msgspec.Struct, eq=False, kw_only=True):
    """A request that was received up to its headers, and the way to answer it."""

    connection: "ClientConnection"
    request_id: str
    method: str
    path: bytes  # as it was sent, without the query
    query: bytes
    headers: dict[bytes, bytes]  # by their names in lower case; repeated ones joined with commas
    version: str
    content_length: int | None  # None: chunked
    keep_alive: bool
    expects_continue: bool
    body: bytearray = bytearray()  # bytes that have arrived and are not read yet
    received: int = 0
    more_body: bool = True
    failure: TMSError | None = None
    disconnected: bool = False
    hurried: bool = False
    patient: bool = False  # a drain does not hurry it
    principal: str = ""  # of the caller; empty without access control
    credential: Credential | None = None  # that the caller showed
    via: str = ""  # the front end that asks in its name, such as the console; no client can set it
    instance: str = ""  # that forwards the request, or is the caller itself
    operation: str = ""  # its name in the audit log
    sees: Callable[[str], bool] | None = None  # what of a list may be shown, by name; None: all
    coding: Coding | None = None  # that the client wants of an answer
    also: bytes = b""  # header lines of whatever the answer is
    sent: int = 0  # bytes of the answer's body, where it is not left out
    charged: int = 0  # of these, to a quota
    status: int = 0  # of the answer; 0 while there is none
    chunked: bool = True
    goes_on: bool = False  # True for an answer without a known length
    response_started: bool = False
    response_complete: bool = False
    _sink: memoryview | None = None
    _filled: int = 0
    _sleeping: "asyncio.Future[None] | None" = None
    _news: "asyncio.Future[None] | None" = None  # of the body, for who waits for it

    @property
    def target(self) -> bytes:
        """Path and query, as they were sent."""
        return self.path + b"?" + self.query if self.query else self.path

    @property
    def peer_certificate_name(self) -> str | None:
        """The name in the client's verified certificate; see `runtime.tls.certificate_name`."""
        return self.connection.peer_certificate_name

    # -- the connection's side -----------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take a piece of the body; the empty one ends it."""
        self.received += len(data)
        if not data:
            self.more_body = False
        elif self._sink is not None:
            end = self._filled + len(data)
            self._sink[self._filled : end] = data
            self._filled = end
            return
        else:
            self.body += data
        if self._news is not None:
            settle(self._news)

    def fail(self, failure: TMSError) -> None:
        """Raise this error where the body is read."""
        self.failure = failure
        if self._news is not None:
            settle(self._news)

    def abandon(self) -> None:
        """The connection is lost."""
        self.disconnected = True
        if self._news is not None:
            settle(self._news)
        self.hurry()

    def hurry(self) -> None:
        """End `sleep`, now and from now on: the client is gone, or the service drains and the
        request is not patient."""
        if not self.patient or self.disconnected:
            self.hurried = True
            if self._sleeping is not None:
                settle(self._sleeping)

    def be_patient(self) -> None:
        """Let no drain hurry the request: what it does is under way, and is answered."""
        self.patient = True
        self.hurried = self.disconnected

    @property
    def peer_address(self) -> str:
        """The address that the request came from; empty if it is none."""
        peer = self.connection.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    # -- the request ---------------------------------------------------------------------------

    async def read_into(self, sink: memoryview) -> None:
        """Fill `sink`, which has `content_length` bytes, with the body. Raises `SlowRequest`,
        `Disconnected`."""
        sink[: len(self.body)] = self.body
        self._filled, self.body = len(self.body), bytearray()
        if self.more_body:
            self._sink = sink
        try:
            while self.more_body:
                await self._more()
        finally:
            self._sink = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `SlowRequest`, `Disconnected`."""
        while self.body or self.more_body:
            if not self.body:
                await self._more()
            piece, self.body = bytes(self.body), bytearray()
            if piece:
                yield piece

    async def whole(self) -> bytes:
        """The body, which is short, once all of it is here. It is still to be read. Raises
        `SlowRequest`, `Disconnected`."""
        while self.more_body:
            await self._more()
        return bytes(self.body)

    async def _more(self) -> None:
        if self.expects_continue:
            self.expects_continue = False
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.connection.transport.resume_reading()
        if not self.disconnected and self.failure is None:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
            self._news = None
        if self.failure is not None:
            raise self.failure
        if self.disconnected:
            raise Disconnected

    async def sleep(self, woken: "asyncio.Future[None]", timeout_s: float) -> None:
        """Wait for `woken`, the time-out, the client's leaving or the service's draining."""
        if self.hurried:
            return
        self._sleeping = woken
        timer = woken.get_loop().call_later(timeout_s, settle, woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._sleeping = None

    # -- the response --------------------------------------------------------------------------

    def respond(self, status: int, head: bytes, body: Buffer = b"") -> None:
        """Answer completely. `head` holds header lines, each with its CRLF, without the length."""
        if self.disconnected:
            return
        framing = b"" if status == routes.NO_CONTENT else b"content-length: %d\r\n" % len(body)
        start = self._start(status, head, framing)
        if self.method == "HEAD":
            body = b""
        self.sent = len(body)
        if len(body) <= JOIN_BYTES_MAX:
            self.connection.write(start + body)
        else:
            self.connection.write(start)
            self.connection.write(body)
        self.response_complete = True
        self.connection.on_response_complete()

    async def stream(self, status: int, head: bytes, length: int, chunks: Iterable[Buffer]) -> None:
        """Answer with `length` bytes that come in chunks; one is taken only when there is room."""
        if self.disconnected:
            return
        connection = self.connection
        pending = self._start(status, head, b"content-length: %d\r\n" % length)
        self.sent = length
        for chunk in chunks if self.method != "HEAD" else ():
            if pending:
                if len(chunk) <= JOIN_BYTES_MAX:
                    chunk = pending + chunk
                else:
                    connection.write(pending)
                pending = b""
            connection.write(chunk)
            if connection.writable is not None:
                await connection.writable.wait()
            if connection.transport.is_closing():
                return
        if pending:
            connection.write(pending)
        self.response_complete = True
        connection.on_response_complete()

    async def relay(
        self, status: int, head: bytes, length: int, chunks: AsyncIterator[bytes]
    ) -> None:
        """Answer with chunks of a known total length that are still to come."""
        if self.disconnected:
            return
        connection = self.connection
        connection.write(self._start(status, head, b"content-length: %d\r\n" % length))
        self.sent = length
        async for chunk in chunks:
            connection.write(chunk)
            if connection.writable is not None:
                await connection.writable.wait()
            if connection.transport.is_closing():
                return
        self.response_complete = True
        connection.on_response_complete()

    async def stream_chunks(self, status: int, head: bytes, chunks: AsyncIterator[bytes]) -> None:
        """Answer with chunks of HTTP, one for each that comes; the client sees it if they end with
        an error."""
        if self.disconnected:
            return
        self.begin_chunks(status, head)
        async for chunk in chunks:
            await self.send((chunk,))
            if self.connection.transport.is_closing():
                return
        self.end_chunks()

    def begin_chunks(self, status: int, head: bytes) -> None:
        """Begin such an answer."""
        self.goes_on = True
        self.chunked = self.version != "1.0"
        self.keep_alive &= self.chunked
        framing = b"transfer-encoding: chunked\r\n" if self.chunked else b""
        self.connection.write(self._start(status, head, framing))

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Go on with it: one chunk of HTTP, none for nothing; waits until there is room for
        more."""
        connection, size = self.connection, sum(map(len, pieces))
        if not size:
            return
        self.sent += size
        if self.chunked:
            pieces = (b"%x\r\n" % size, *pieces, b"\r\n")
        if size <= JOIN_BYTES_MAX:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            connection.write(piece)
            if connection.writable is not None:
                await connection.writable.wait()
            if connection.transport.is_closing():
                return

    def end_chunks(self) -> None:
        """End it."""
        if self.chunked:
            self.connection.write(b"0\r\n\r\n")
        self.response_complete = True
        self.connection.on_response_complete()

    def _start(self, status: int, head: bytes, framing: bytes) -> bytes:
        self.response_started, self.status = True, status
        if self.more_body and not self._worth_discarding():
            self.keep_alive = False
        return b"".join(
            (
                routes.STATUS_LINES[status],
                self.connection.watchdog.head,
                _REQUEST_ID,
                self.request_id.encode(),
                b"\r\n",
                self.also,
                head,
                framing,
                b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
            )
        )

    def _worth_discarding(self) -> bool:
        """True if the rest of the body is worth reading, so that the connection can go on. A client
        that waits for a 100 (Continue) will not send it."""
        if self.content_length is None or self.failure is not None or self.expects_continue:
            return False
        return self.content_length - self.received <= DISCARD_BYTES_MAX

    def abort(self) -> None:
        """End a response that cannot be completed; the client sees that it was cut."""
        self.connection.transport.abort()


def settle(woken: "asyncio.Future[None]") -> None:
    """Finish a future that others may have finished."""
    if not woken.done():
        woken.set_result(None)


def settle_from_thread(loop: asyncio.AbstractEventLoop, woken: "asyncio.Future[None]") -> None:
    """Finish a future of `loop` from any thread, the loop's own included."""
    try:
        at_home = asyncio.get_running_loop() is loop
    except RuntimeError:
        at_home = False
    if at_home:
        settle(woken)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(settle, woken)
