"""Connections of Thrift clients: frames in, answers out, one at a time on each connection.

    frame    length 4, big-endian, signed · that many bytes

    idle ─▶ a frame is coming ─▶ its request is with a worker ─▶ the answer is going out ─▶ idle

Invariants

* While a request is answered nothing more is read from its connection.
* The number of connections and of workers is bounded, and so are the bytes of all frames that are
  larger than `SMALL_BYTES`: one that does not fit is not read on until others are done.
* A frame must have come, and an answer gone, within `frame_timeout_s`; an idle connection may stay.
* Bytes that are no message, or a length that cannot be, end their connection and are logged once.
* Stopping: what was received completely is answered; then the connections are closed.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tms.errors import Malformed
from tms.events import EventLog

FRAME_BYTES_MAX = 16 << 20
FRAMES_BYTES_MAX = 4 * FRAME_BYTES_MAX  # of all connections
SMALL_BYTES = 64 << 10
HEADER_BYTES = 4
_log = EventLog("tms.server")


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Bounds of connections and of their number."""

    clients_max: int = 1_000
    workers: int = 20
    frame_timeout_s: float = 30.0


class FrameServer:
    """Answers the frames of all connections of one listener. Used by the event loop's thread."""

    def __init__(
        self, listener: socket.socket, answer: Callable[[bytes], bytes], limits: FrameLimits
    ) -> None:
        self.limits = limits
        self.answer = answer
        self.workers = ThreadPoolExecutor(limits.workers, "tms-tephra")
        self.connections: set[FrameConnection] = set()
        self.waiting: deque[FrameConnection] = deque()  # for room for a frame
        self.room = FRAMES_BYTES_MAX
        self.stopping = False
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._full = False
        self._ended = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def start(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FrameConnection(self), sock=self._listener)

    async def stop(self, timeout_s: float) -> None:
        """Accept nothing more, answer what was received, close everything."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            try:
                await asyncio.wait_for(self._ended.wait(), timeout_s)
            except TimeoutError:
                _log.warning("tephra_drain_incomplete", connections=len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        self.workers.shutdown(wait=False, cancel_futures=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.workers.shutdown)  # what runs needs the engine

    def hurry(self) -> None:
        """End the waiting of `stop`."""
        self._ended.set()

    def admit(self, connection: "FrameConnection") -> bool:
        """Whether there is room for one more connection."""
        full = len(self.connections) >= self.limits.clients_max
        if full and not self._full:
            _log.warning("tephra_connections_refused", clients_max=self.limits.clients_max)
        self._full = full
        if full or self.stopping:
            return False
        self.connections.add(connection)
        return True

    def leave(self, connection: "FrameConnection") -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if self.stopping and not self.connections:
            self._ended.set()

    def reserve(self, connection: "FrameConnection", count: int) -> bool:
        """Whether a frame of so many bytes may be read now; else `go_on` is called later."""
        if count <= SMALL_BYTES:
            return True
        if self.waiting or count > self.room:
            self.waiting.append(connection)
            return False
        self.room -= count
        return True

    def release(self, count: int) -> None:
        """A frame is done."""
        if count > SMALL_BYTES:
            self.room += count
        waiting, self.waiting = self.waiting, deque()
        for connection in waiting:
            connection.go_on()


class FrameConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: FrameServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._size: int | None = None  # of the frame that is coming, once there is room for it
        self._busy = False  # a request is being answered, until its answer has gone
        self._working = False  # a worker has it
        self._last = False  # no more frames are read
        self._timer: asyncio.TimerHandle | None = None
        self._peer = ""

    # -- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._peer = str(transport.get_extra_info("peername"))
        if not self._server.admit(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.go_on()

    def eof_received(self) -> bool:
        self._last = True
        return self._busy

    def pause_writing(self) -> None:
        self._limit()

    def resume_writing(self) -> None:
        self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit()
        self._last = True
        if not self._working:
            self._release()
        self._server.leave(self)

    # -- frames --------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Take the next frame if it is there, or wait for it."""
        if self._busy or self._transport.is_closing():
            return
        if self._size is None and len(self._buffer) >= HEADER_BYTES:
            size = int.from_bytes(self._buffer[:HEADER_BYTES], "big", signed=True)
            if not 0 < size <= FRAME_BYTES_MAX:
                self._refuse(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are taken")
                return
            if not self._server.reserve(self, size):
                self._unlimit()  # it is not the client that is slow
                self._transport.pause_reading()
                if self._last and len(self._buffer) < HEADER_BYTES + size:
                    self._transport.close()
                return
            self._size = size
            self._transport.resume_reading()
        if self._size is not None and len(self._buffer) >= HEADER_BYTES + self._size:
            self._begin(HEADER_BYTES + self._size)
        elif self._last:
            self._transport.close()
        elif self._buffer and self._timer is None:
            self._limit()

    def _begin(self, end: int) -> None:
        self._busy = self._working = True
        self._unlimit()
        self._transport.pause_reading()
        message = bytes(memoryview(self._buffer)[HEADER_BYTES:end])
        del self._buffer[:end]
        work = self._loop.run_in_executor(self._server.workers, self._server.answer, message)
        work.add_done_callback(self._answered)

    def _answered(self, work: "asyncio.Future[bytes]") -> None:
        self._working = False
        if work.cancelled() or self._transport.is_closing():
            self._release()
            self._transport.abort()
            return
        error = work.exception()
        if error is not None:
            self._refuse(error.message if isinstance(error, Malformed) else repr(error))
            return
        answer = work.result()
        self._transport.write(len(answer).to_bytes(HEADER_BYTES, "big") + answer)
        if self._timer is None:
            self._done()

    def _done(self) -> None:
        """The answer has gone."""
        self._unlimit()
        self._busy = False
        self._release()
        if not self._last:
            self._transport.resume_reading()
        self.go_on()

    # -- ends ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Answer what was received completely, then close."""
        self._last = True
        if not self._busy:
            self.go_on()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _refuse(self, why: str) -> None:
        _log.warning("tephra_connection_ended", peer=self._peer, reason=why)
        self._release()
        self._transport.abort()

    def _release(self) -> None:
        size, self._size = self._size, None
        if size is not None:
            self._server.release(size)

    def _limit(self) -> None:
        self._unlimit()
        self._timer = self._loop.call_later(self._server.limits.frame_timeout_s, self._late)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self._refuse("it took too long to send a frame or to read an answer")
