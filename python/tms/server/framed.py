"""Connections of clients that send frames: for protocols other than HTTP.

    frame    length 4, big-endian, signed · that many bytes

    idle ─▶ a frame comes ─▶ it is answered ─▶ the answer goes out ─▶ idle

Invariants

* A connection has one answer at a time, in the order of its frames. Meanwhile at most
  `READ_AHEAD_BYTES` and one read more are taken from it.
* The number of connections is bounded, and so are the bytes of all frames larger than
  `SMALL_BYTES`: a frame for which there is no room is not read on until others are answered.
* A frame must have come, and an answer gone, within `frame_timeout_s`; an idle connection may stay.
* A connection that rests keeps no room: its next frame is not begun before the rest is over, also
  if its client sends no more. Draining ends a rest.
* A length out of bounds, or bytes that are no message (`Malformed`), end the connection, with one
  line in the log.
* Draining: what was received completely is answered; then the connections are closed.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from tms.errors import Invalid, Malformed, TMSError
from tms.model.message import Buffer
from tms.runtime.events import EventLog
from tms.server.http.listening import BACKLOG
from tms.server.http.tls import TlsLayer

HEADER_BYTES = 4
SMALL_BYTES = 64 << 10
READ_AHEAD_BYTES = 64 << 10
_SLOW = "it took too long to send a frame or to read an answer"
_log = EventLog("tms.server")


@dataclass(frozen=True, slots=True)
class FramedLimits:
    """Bounds of connections and of frames. `frames_bytes_max` is for the large frames of all
    connections. With `allow` only addresses in these networks may connect, for protocols without
    tokens. Raises `Invalid` if a frame would wait for room for ever."""

    clients_max: int = 1_000
    frame_timeout_s: float = 30.0
    allow: tuple[IPv4Network | IPv6Network, ...] | None = None
    frame_bytes_max: int = 16 << 20
    frames_bytes_max: int = 64 << 20

    def __post_init__(self) -> None:
        if self.frame_bytes_max > max(self.frames_bytes_max, SMALL_BYTES):
            raise Invalid(
                f"frame_bytes_max is at most frames_bytes_max, {self.frames_bytes_max}, got "
                f"{self.frame_bytes_max}: a larger frame would wait for room for ever. Lower it, "
                "or raise frames_bytes_max.",
                field="frame_bytes_max",
            )

    def admits(self, address: str) -> bool:
        """True if an address may connect."""
        if self.allow is None:
            return True
        ip = ip_address(address.partition("%")[0])
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return any(ip in network for network in self.allow)


# The answer to a frame, as chunks to send one after another; None: the frame gets no answer.
FrameAnswer = bytes | Sequence[Buffer] | None
Answering = Callable[["FramedConnection", bytes], Awaitable[FrameAnswer]]


class FramedServer:
    """Answers the frames of all connections of one listener; see `server.front.FrontListener`.
    `name` begins the names of its events. With `newest` it speaks TLS only, by that context. Used
    by the event loop's thread."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        answer: Answering,
        limits: FramedLimits,
        newest: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.answer = answer
        self.connections: set[FramedConnection] = set()
        self.waiting: deque[FramedConnection] = deque()  # for room for a frame
        self.room = limits.frames_bytes_max
        self._listener = listener
        self._newest = newest
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._full = False
        self._ended = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection, sock=self._listener, backlog=BACKLOG
        )

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, answer every received frame within this time, close all connections."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.end_reading()
        if self.connections:
            try:
                await asyncio.wait_for(self._ended.wait(), timeout_s)
            except TimeoutError:
                _log.warning(f"{self.name}_drain_incomplete", connections=len(self.connections))
        for connection in list(self.connections):
            connection.abort()

    def stop(self) -> None:
        """End the wait of `drain`."""
        self._ended.set()

    def admit(self, connection: "FramedConnection", peer: tuple[Any, ...]) -> bool:
        """Count a new connection; False if it may not stay."""
        full = len(self.connections) >= self.limits.clients_max
        if full and not self._full:
            event = f"{self.name}_connections_refused"
            _log.warning(event, clients_max=self.limits.clients_max)
        self._full = full
        if full or self._stopping:
            return False
        if not self.limits.admits(peer[0]):
            why = f"not in {self.name}.allow"
            _log.warning(f"{self.name}_connection_refused", peer=str(peer), reason=why)
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: "FramedConnection") -> None:
        """Uncount a connection that is lost and has no answer under way."""
        self.connections.discard(connection)
        if self._stopping and not self.connections:
            self._ended.set()

    def reserve(self, connection: "FramedConnection", size: int) -> bool:
        """Reserve room for a frame; False if the connection has to wait for `go_on`."""
        if size <= SMALL_BYTES:
            return True
        if self.waiting or size > self.room:
            self.waiting.append(connection)
            return False
        self.room -= size
        return True

    def release(self, size: int) -> None:
        """Return the room of a frame, which others may be waiting for."""
        if size > SMALL_BYTES:
            self.room += size
        while self.waiting and self.waiting[0].size <= self.room:
            connection = self.waiting.popleft()
            self.room -= connection.size
            connection.go_on()

    def _connection(self) -> asyncio.Protocol:
        connection = FramedConnection(self)
        return connection if self._newest is None else TlsLayer(connection, self._newest)


class FramedConnection(asyncio.Protocol):
    """One client. `size` is that of the frame that comes or is answered, 0 between frames; `peer`
    its address. Used by the event loop's thread."""

    def __init__(self, server: FramedServer) -> None:
        self.size = 0
        self.peer: tuple[Any, ...] = ("",)
        self.peer_certificate_name: str | None = None
        self._server = server
        self._buffer = bytearray()
        self._answer: asyncio.Task[None] | None = None
        self._waits = False  # for room
        self._eof = False
        self._ending = False  # by the service
        self._lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._written: asyncio.Future[None] | None = None  # while the client reads slowly
        self._when_answered: list[Callable[[], None]] = []
        self._when_left: list[Callable[[], None]] = []
        self._resting: asyncio.TimerHandle | None = None
        self._frame_bytes_max = server.limits.frame_bytes_max

    @property
    def has_left(self) -> bool:
        """True if the client sends no more, or is gone."""
        return self._lost or self._eof

    # -- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.peer = transport.get_extra_info("peername") or self.peer
        gone = transport.is_closing() or not self.peer[0]
        if gone or not self._server.admit(self, self.peer):
            self.abort()
            return
        transport.set_write_buffer_limits(0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._end_rest()
        self._tell_left()
        self._end_timer()
        self.resume_writing()
        if self._waits:
            self._server.waiting.remove(self)
            self._waits = False
            self._server.release(0)
        elif self._answer is None:
            self._release()
        if self._answer is None:
            self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def eof_received(self) -> bool:
        self._eof = True
        if not self._buffer:  # else it would be a way around the rest
            self._end_rest()
        self._tell_left()
        self._advance()
        return True  # answers still go out

    def pause_writing(self) -> None:
        self._written = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._written is not None and not self._written.done():
            self._written.set_result(None)

    # -- the calls of TLS and of the server ----------------------------------------------------

    def refuse(self, error: TMSError) -> None:
        """End the connection for a fault of its client."""
        self._end(error.message)

    def handshake_failed(self, error: Exception) -> None:
        """Close the connection; the alert that is on its way arrives."""
        _log.info("tls_handshake_failed", why=str(error)[:200], peer=str(self.peer))
        self._transport.close()

    def abort(self) -> None:
        """Close the connection, whatever is under way."""
        self._transport.abort()

    def when_answered(self, do: Callable[[], None]) -> None:
        """Call this once the client has taken the answer under way, or is gone."""
        self._when_answered.append(do)

    def when_left(self, do: Callable[[], None]) -> None:
        """Call this if the client sends no more, or is gone, before the answer under way."""
        self._when_left.append(do)
        if self._lost or self._eof:
            self._tell_left()

    def limit_frames(self, size: int) -> None:
        """Take frames of at most so many bytes until `allow_frames`."""
        self._frame_bytes_max = min(size, self._server.limits.frame_bytes_max)

    def allow_frames(self) -> None:
        """Take frames up to the limit of the server."""
        self._frame_bytes_max = self._server.limits.frame_bytes_max

    def rest(self, owed_s: Callable[[], float]) -> None:
        """Begin no further frame until `owed_s` says 0 s. A client that sends no more, and has no
        frame left, does not wait."""
        is_over = self._lost or self._ending or (self._eof and not self._buffer)
        pause_s = 0.0 if is_over else owed_s()
        self._resting = None
        if pause_s > 0:
            self._resting = self._loop.call_later(pause_s, self.rest, owed_s)
        else:
            self._advance()

    def end_reading(self) -> None:
        """Answer what was received, then close the connection."""
        self._transport.pause_reading()
        self._eof = True
        self._ending = True
        self._end_rest()
        self._advance()

    def go_on(self) -> None:
        """Read on: there is room for the frame now."""
        self._waits = False
        self._advance()

    # -- frames --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do what the received bytes allow."""
        if self._lost or self._transport.is_closing():
            return
        if self._answer is not None or self._waits or self._resting is not None:
            if len(self._buffer) > READ_AHEAD_BYTES:
                self._transport.pause_reading()
            return
        if not self.size and len(self._buffer) >= HEADER_BYTES and not self._begin_frame():
            return
        end = HEADER_BYTES + self.size
        if self.size and len(self._buffer) >= end:
            self._end_timer()
            frame = bytes(memoryview(self._buffer)[HEADER_BYTES:end])
            del self._buffer[:end]
            self._answer = self._loop.create_task(self._answer_frame(frame))
        elif self._eof:
            self._transport.abort() if self._buffer else self._transport.close()
        else:
            self._transport.resume_reading()
            if self._buffer and self._timer is None:
                limit_s = self._server.limits.frame_timeout_s
                self._timer = self._loop.call_later(limit_s, self._end, _SLOW)

    def _begin_frame(self) -> bool:
        """Read the length of a frame; False if it cannot be read on now."""
        size = int.from_bytes(self._buffer[:HEADER_BYTES], "big", signed=True)
        if not 0 < size <= self._frame_bytes_max:
            self._end(f"a frame of {size} bytes; at most {self._frame_bytes_max} are taken")
            return False
        self.size = size
        self._waits = not self._server.reserve(self, size)
        if self._waits:
            self._end_timer()  # the client is not the slow one
            self._advance()
        return not self._waits

    async def _answer_frame(self, frame: bytes) -> None:
        try:
            answer = await self._server.answer(self, frame)
            if not self._lost and answer is not None:
                chunks = [answer] if isinstance(answer, bytes) else answer
                size = sum(map(len, chunks))
                self._transport.writelines([size.to_bytes(HEADER_BYTES, "big"), *chunks])
                if self._written is not None and not self._written.done():
                    async with asyncio.timeout(self._server.limits.frame_timeout_s):
                        await self._written
        except Malformed as error:
            self._end(error.message)
        except TMSError as error:  # some are a `TimeoutError`, too
            self._end(repr(error))
        except TimeoutError:
            self._end(_SLOW)
        except Exception as error:
            self._end(repr(error))
        finally:
            self._answer = None
            for do in self._when_answered:
                do()
            self._when_answered.clear()
            self._when_left.clear()
            self._release()
            if self._lost:
                self._server.forget(self)
        self._advance()

    def _tell_left(self) -> None:
        told, self._when_left = self._when_left, []
        for do in told:
            do()

    def _release(self) -> None:
        size, self.size = self.size, 0
        if size:
            self._server.release(size)

    def _end(self, why: str) -> None:
        """Abort the connection; the log says why, unless it is lost anyway."""
        if not self._lost and not self._transport.is_closing():
            event = f"{self._server.name}_connection_ended"
            _log.warning(event, peer=str(self.peer), reason=why)
            self._transport.abort()

    def _end_rest(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
