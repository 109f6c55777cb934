"""Connections of Thrift clients: frames in, answers out, one at a time on each connection.

    frame    length 4, big-endian, signed · that many bytes

    idle ─▶ a frame comes ─▶ a worker has its request ─▶ the answer goes out ─▶ idle

Invariants

* While a request is answered, at most 128 KiB more are read from its connection.
* The number of connections and of workers is bounded, and so are the bytes of all frames that are
  larger than `SMALL_BYTES`: one that does not fit is not read on until others are done.
* A frame must have come, and an answer gone, within `frame_timeout_s`; an idle connection may stay.
* Bytes that are no message, or a length that cannot be, end their connection and are logged once.
* Stopping: what was received completely is answered; then the connections are closed.
"""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from tms.errors import Malformed
from tms.events import EventLog

FRAME_BYTES_MAX = 16 << 20
FRAMES_BYTES_MAX = 4 * FRAME_BYTES_MAX  # of all connections
SMALL_BYTES = 64 << 10
HEADER_BYTES = 4
_log = EventLog("tms.server")


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Bounds of connections and of their number. With `allow` only addresses in these networks are
    let in: the protocol has no place for a token."""

    clients_max: int = 1_000
    workers: int = 20
    frame_timeout_s: float = 30.0
    allow: tuple[IPv4Network | IPv6Network, ...] | None = None

    def admits(self, address: str) -> bool:
        """Whether an address may connect."""
        if self.allow is None:
            return True
        found = ip_address(address.partition("%")[0])
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.allow)


class FrameServer:
    """Answers the frames of all connections of one listener. Used by the event loop's thread."""

    def __init__(
        self, listener: socket.socket, answer: Callable[[bytes], bytes], limits: FrameLimits
    ) -> None:
        self.connections: dict[StreamWriter, StreamReader] = {}
        self.waiting: deque[tuple[asyncio.Future[None], int]] = deque()  # for room for a frame
        self.room = FRAMES_BYTES_MAX
        self._limits = limits
        self._answer = answer
        self._workers = ThreadPoolExecutor(limits.workers, "tms-tephra")
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._stopping = self._full = False
        self._ended = asyncio.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def stop(self, timeout_s: float) -> None:
        """Accept nothing more, answer every received frame, close everything."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for writer, reader in self.connections.items():
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            reader.feed_eof()
        if self.connections:
            try:
                await asyncio.wait_for(self._ended.wait(), timeout_s)
            except TimeoutError:
                _log.warning("tephra_drain_incomplete", connections=len(self.connections))
        for writer in self.connections:
            writer.transport.abort()
        self._workers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._workers.shutdown)  # what runs needs the engine

    def hurry(self) -> None:
        """End the waiting of `stop`."""
        self._ended.set()

    def _admit(self) -> bool:
        """Whether there is room for one more connection."""
        full = len(self.connections) >= self._limits.clients_max
        if full and not self._full:
            _log.warning("tephra_connections_refused", clients_max=self._limits.clients_max)
        self._full = full
        return not full and not self._stopping

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer the frames of one connection until it ends."""
        if writer.is_closing() or not self._admit():
            writer.transport.abort()
            return
        writer.transport.set_write_buffer_limits(0)
        peer = str(writer.get_extra_info("peername"))
        if not self._limits.admits(writer.get_extra_info("peername")[0]):
            _log.warning("tephra_connection_refused", peer=peer, reason="not in tephra.allow")
            writer.transport.abort()
            return
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.connections[writer] = reader
        why = ""
        try:
            while await self._answer_next(reader, writer):
                pass
            writer.close()
        except Malformed as error:
            why = error.message
        except TimeoutError:
            why = "it took too long to send a frame or to read an answer"
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the client left, or the service stops
        except Exception as error:
            why = repr(error)
        finally:
            if why:
                _log.warning("tephra_connection_ended", peer=peer, reason=why)
            if not writer.is_closing():
                writer.transport.abort()
            del self.connections[writer]
            if self._stopping and not self.connections:
                self._ended.set()

    async def _answer_next(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Answer the next frame, if one comes. Raises `Malformed`, `TimeoutError`, `EOFError`."""
        head = await reader.read(HEADER_BYTES)
        if not head:
            return False
        loop, timeout_s = asyncio.get_running_loop(), self._limits.frame_timeout_s
        deadline = loop.time() + timeout_s
        if len(head) < HEADER_BYTES:
            async with asyncio.timeout_at(deadline):
                head += await reader.readexactly(HEADER_BYTES - len(head))
        size = int.from_bytes(head, "big", signed=True)
        if not 0 < size <= FRAME_BYTES_MAX:
            raise Malformed(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are taken")
        if await self._reserve(size):
            deadline = loop.time() + timeout_s  # it was not the client that was slow
        try:
            async with asyncio.timeout_at(deadline):
                message = await reader.readexactly(size)
            answer = await loop.run_in_executor(self._workers, self._answer, message)
            writer.write(len(answer).to_bytes(HEADER_BYTES, "big") + answer)
            if writer.transport.get_write_buffer_size():
                async with asyncio.timeout(timeout_s):
                    await writer.drain()
        finally:
            self._release(size)
        return True

    async def _reserve(self, size: int) -> bool:
        """Wait for room for a frame; whether there was none."""
        if size <= SMALL_BYTES:
            return False
        if not self.waiting and size <= self.room:
            self.room -= size
            return False
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((turn, size))
        await turn
        return True

    def _release(self, size: int) -> None:
        if size <= SMALL_BYTES:
            return
        self.room += size
        while self.waiting and self.waiting[0][1] <= self.room:
            turn, wanted = self.waiting.popleft()
            self.room -= wanted
            turn.set_result(None)
