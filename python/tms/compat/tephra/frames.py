"""Frames of Thrift clients, answered by a bounded number of threads; see `server.framed`."""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tms.server.framed import FramedConnection, FramedLimits, FramedServer

TEPHRA = "tephra"


@dataclass(frozen=True, slots=True)
class FrameLimits(FramedLimits):
    """Bounds of connections, and of the threads that answer them."""

    workers: int = 20


class FrameServer(FramedServer):
    """Answers the frames of all connections of one listener in threads. Used by the event loop's
    thread."""

    def __init__(
        self, listener: socket.socket, answer: Callable[[bytes], bytes], limits: FrameLimits
    ) -> None:
        self._workers = ThreadPoolExecutor(limits.workers, "tms-tephra")
        self._answer_message = answer
        super().__init__(TEPHRA, listener, self._in_worker, limits)

    async def _in_worker(self, _: FramedConnection, message: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, self._answer_message, message)

    async def drain(self, timeout_s: float) -> None:
        """Answer every received frame, and wait for the threads: they need the engine."""
        await super().drain(timeout_s)
        self._workers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._workers.shutdown)
