"""Forwarding of requests to the instance that keeps their resource, and of its answers back.

* Body and answer are streamed: only a piece at a time is in memory.
* A part of a followed topic is a chunk of HTTP: when this service drains, the answer ends after a
  whole part.
* A request goes one hop (`TMS-Hop`): the other instance answers it, or names the owner.
* The principal of a request goes along, with this instance's proof.
* A chunked body stays chunked, however much of it is here already.
* No request waits for an instance that has left the cluster.
* Nothing is repeated here. An error says whether the request may have been carried out.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from tms.api import routes
from tms.cluster.cluster import Cluster
from tms.cluster.identity import ProvenRequest, is_covered
from tms.errors import TMSError, Unavailable
from tms.runtime.tls import ClientTls, fault_of
from tms.server.http.exchange import Disconnected, Exchange, settle

HOP = routes.HOP_HEADER.lower().encode()  # in a request of another instance
FOLLOW = b"follow="  # in the query of a request whose answer goes on
CONNECT_S = 5.0
LOOK_S = 0.5  # between two looks whether an instance that does not answer is still there
IDLE_MAX = 64  # connections to an instance that wait for the next request
READ_BYTES = 256 << 10
PEER = routes.PEER_HEADER.lower().encode()
PRINCIPAL = routes.PRINCIPAL_HEADER.lower().encode()
_OWN = frozenset(
    (b"host", b"connection", b"keep-alive", b"expect", b"transfer-encoding", HOP, PEER, PRINCIPAL)
)
_NOT_BACK = frozenset((b"connection", b"content-length", b"transfer-encoding", b"keep-alive"))


class _Answer:
    """The parts of an answer that the parser has found so far."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self.pieces: deque[bytes] = deque()  # an empty one ends a chunk of HTTP
        self.headed = self.complete = False
        self.keeps_open = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self.length = int(value)
        elif name == b"connection":
            self.keeps_open = value.lower() != b"close"
        if name not in _NOT_BACK:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_chunk_complete(self) -> None:
        self.pieces.append(b"")

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = True


class _Line(NamedTuple):
    """A connection to an instance."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    owner: str
    address: str


class Forwarding:
    """Forwards requests. Used by the event loop's thread only. `timeout_s`: until an answer
    begins; `tls`: for instances whose address is https; `cluster`: has the other instances, and the
    identity that proves to them that this one asks, and for which principal."""

    def __init__(self, timeout_s: float, tls: ClientTls, cluster: Cluster | None) -> None:
        self._timeout_s = timeout_s
        self._tls = tls
        self._cluster = cluster
        self._identity = None if cluster is None else cluster.identity
        self._idle: dict[str, list[_Line]] = {}

    async def __call__(self, exchange: Exchange, owner: str, address: str) -> None:
        """Forward a request to the instance `owner`, and answer with its answer. Raises
        `Unavailable`, `Disconnected`."""
        line = await self._line(owner, address)
        kept = False
        try:
            kept = await self._exchange(exchange, line)
        finally:
            idle = self._idle.setdefault(address, [])
            if kept and len(idle) < IDLE_MAX:
                idle.append(line)
            else:
                line.writer.transport.abort()

    def close(self) -> None:
        """Close idle connections."""
        for lines in self._idle.values():
            for line in lines:
                line.writer.transport.abort()
        self._idle.clear()

    async def _line(self, owner: str, address: str) -> _Line:
        idle = self._idle.get(address)
        while idle:
            line = idle.pop()
            if not line.reader.at_eof() and not line.writer.is_closing():
                return line
            line.writer.transport.abort()
        url = urlsplit(address)
        context = self._tls.context() if url.scheme == "https" else None
        opening = asyncio.open_connection(url.hostname, url.port, limit=READ_BYTES, ssl=context)
        connecting = asyncio.ensure_future(opening)
        try:
            await asyncio.wait([connecting], timeout=CONNECT_S)
            if not connecting.done():
                connecting.cancel()
                raise TimeoutError(f"nothing for {CONNECT_S} s")
            reader, writer = connecting.result()
        except OSError as exc:
            why = fault_of(exc, address) or exc
            raise Unavailable(
                f"{owner}, which keeps this, is not reached at {address} ({why}). Try again."
            ) from exc
        return _Line(reader, writer, owner, address)

    async def _exchange(self, exchange: Exchange, line: _Line) -> bool:
        """Send the request, answer it; whether the connection may be used again."""
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        try:
            await self._send(exchange, line.writer, line.owner)
            await self._head(exchange, line, parser, answer)
            status = parser.get_status_code()
            head = b"".join(b"%b: %b\r\n" % pair for pair in answer.headers)
            head += owner_head({line.address: ()})
            if exchange.method == "HEAD" or status == routes.NO_CONTENT:
                exchange.respond(status, head)
                return False
            if answer.length is not None:
                pieces = _pieces(line.reader, parser, answer)
                await exchange.relay(status, head, answer.length, pieces)
            else:
                pieces = self._chunks(exchange, line, parser, answer)
                await exchange.stream_chunks(status, head, pieces)
        except TMSError:
            raise
        except (OSError, EOFError, httptools.HttpParserError) as exc:
            raise _broken(line.owner, exc) from exc
        return answer.complete and answer.keeps_open

    async def _send(self, exchange: Exchange, writer: asyncio.StreamWriter, owner: str) -> None:
        has_body = exchange.more_body or exchange.body
        chunked = exchange.content_length is None and bool(has_body)
        asker = await self._asker(exchange, owner)
        lines = [
            b"%b %b HTTP/1.1\r\nhost: tms\r\n" % (exchange.method.encode(), exchange.target),
            *(b"%b: %b\r\n" % pair for pair in exchange.headers.items() if pair[0] not in _OWN),
            b"%b: 1\r\n" % HOP,
            asker,
            b"transfer-encoding: chunked\r\n" if chunked else b"",
            b"\r\n",
        ]
        writer.write(b"".join(lines))
        async for piece in exchange.pieces():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _asker(self, exchange: Exchange, owner: str) -> bytes:
        """The principal, where it is asked for, and the proof. Raises `Unavailable`."""
        if not exchange.principal or self._identity is None:
            return b""
        length = exchange.content_length
        principal = exchange.principal.encode()
        body = (await exchange.whole(),) if is_covered(length) else ()
        request = ProvenRequest(exchange.method.encode(), exchange.target, principal)
        proof = self._identity.prove(owner, request, length, body)
        if not proof:
            return b""
        return b"%b: %b\r\n%b: %b\r\n" % (PEER, proof, PRINCIPAL, principal)

    async def _head(
        self,
        exchange: Exchange,
        line: _Line,
        parser: httptools.HttpResponseParser,
        answer: _Answer,
    ) -> None:
        """Wait until an answer begins, the client leaves, or this service drains."""
        while not answer.headed:
            data = await self._received(exchange, line)
            if exchange.disconnected:
                raise Disconnected
            if data is None:
                raise Unavailable(
                    "The service is draining; go to another instance or try again.",
                    outcome="unknown",
                )
            _feed(parser, data)

    async def _chunks(
        self,
        exchange: Exchange,
        line: _Line,
        parser: httptools.HttpResponseParser,
        answer: _Answer,
    ) -> AsyncIterator[bytes]:
        """The body as it comes; of a topic that is followed, until the client leaves or this
        service drains."""
        follows, in_chunk = FOLLOW in exchange.query, False
        while True:
            while answer.pieces:
                piece = answer.pieces.popleft()
                in_chunk = bool(piece)
                if piece:
                    yield piece
                elif follows and exchange.hurried:
                    return
            if answer.complete:
                return
            if not follows or (exchange.hurried and in_chunk):
                data: bytes | None = await line.reader.read(READ_BYTES)
            else:
                data = await self._received(exchange, line)
            if exchange.disconnected:
                raise Disconnected
            if data is None:
                return
            _feed(parser, data)

    async def _received(self, exchange: Exchange, line: _Line) -> bytes | None:
        """The next bytes; None if the client leaves or this service drains first."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        read = asyncio.ensure_future(line.reader.read(READ_BYTES))
        try:
            while (left_s := until - loop.time()) > 0:
                woken = loop.create_future()
                read.add_done_callback(partial(_settle, woken))
                await exchange.sleep(woken, min(left_s, LOOK_S))
                if read.done():
                    return read.result()
                if exchange.hurried:
                    return None
                if self._cluster is not None and not self._cluster.shows(line.owner, line.address):
                    raise EOFError("it has left the cluster")
            raise TimeoutError("it does not answer")
        finally:
            if not read.done():
                read.cancel()
                with suppress(asyncio.CancelledError):
                    await read


def owner_head(owners: Mapping[str, Sequence[int]]) -> bytes:
    """The header that tells a client the owners: addresses, and the partitions that each keeps."""
    if not owners:
        return b""
    entries = (" ".join((url, *map(str, some))) for url, some in owners.items())
    return f"{routes.OWNER_HEADER}: {', '.join(entries)}\r\n".encode("latin-1")


async def _pieces(
    reader: asyncio.StreamReader, parser: httptools.HttpResponseParser, answer: _Answer
) -> AsyncIterator[bytes]:
    """The body as it comes."""
    while True:
        while answer.pieces:
            yield answer.pieces.popleft()
        if answer.complete:
            return
        _feed(parser, await reader.read(READ_BYTES))


def _feed(parser: httptools.HttpResponseParser, data: bytes) -> None:
    if not data:
        raise EOFError("it closed the connection")
    parser.feed_data(data)


def _settle(woken: "asyncio.Future[None]", _: object) -> None:
    settle(woken)


def _broken(owner: str, exc: Exception) -> Unavailable:
    return Unavailable(
        f"{owner}, which keeps this, was asked and has not answered: {exc}. Ask for the outcome, "
        "or repeat the request if that does no harm.",
        outcome="unknown",
    )
