"""HTTP channels for asyncio: one connection, requests pipelined, answers in order.

Invariants

* Requests leave in the order in which `append` and `fetch` were called; answers settle them in that
  order.
* A cancelled or timed-out call does not disturb the others: its answer, if it still comes, is
  dropped.
* When the connection fails, everything under way on it fails; the next request opens a new one.
* A process that was forked makes connections of its own, on an event loop of its own.
"""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from tms import forks
from tms.block.received import Received
from tms.client.http.answers import BODIES_KEPT, AnswerReader
from tms.client.http.connection import (
    CONNECT_S_MAX,
    ServiceAddress,
    ServiceAddresses,
    connect_error,
    ended_error,
    exchange_error,
)
from tms.client.http.exchange import WAIT_S_MAX, Call, Calls, Response
from tms.client.transport import FetchRequest
from tms.errors import Closed, TimedOut, TMSError, Unavailable
from tms.model.message import Appended, Buffer, Fetched, NewBlock
from tms.model.topic import Durability, TopicName

T = TypeVar("T")


class AsyncHttpChannel:
    """A channel to a service. For one event loop, which keeps connections open: one that nobody has
    any more is closed with its channel."""

    def __init__(self, addresses: ServiceAddresses, calls: Calls) -> None:
        self._addresses = addresses
        self._calls = calls
        self._closed = False
        self._line: _AsyncLine | None = None
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        if self._line is not None:
            self._line.leave()
        self._line = None
        self._sending = asyncio.Lock()

    async def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None,
        timeout_s: float,
    ) -> list[Appended]:
        return await self._exchange(self._calls.append(name, blocks, durability), timeout_s)

    async def fetch(self, request: FetchRequest, timeout_s: float) -> Fetched:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_s
        while True:  # the service may wait for less than it is asked to
            left_s = max(0.0, min(WAIT_S_MAX, until_s - loop.time()))
            call = self._calls.fetch(request._replace(wait_s=left_s))
            fetched = await self._exchange(call, left_s + timeout_s)
            if fetched.blocks or not fetched.ended or loop.time() >= until_s:
                return fetched
            request = request.after(fetched, left_s)

    async def receive(
        self,
        name: TopicName,
        group: str,
        limit: int,
        wait_s: float,
        bytes_max: int,
        timeout_s: float,
    ) -> Received:
        call = self._calls.receive(name, group, limit, wait_s, bytes_max)
        return await self._exchange(call, wait_s + timeout_s)

    def reset(self) -> None:
        if self._line is not None:
            self._line.fail(Unavailable("The connection was given up.", outcome="unknown"))

    def close(self) -> None:
        self._closed = True
        if self._line is not None:
            self._line.fail(Closed("It was closed while it waited."))

    def __del__(self) -> None:
        if self._line is not None:
            self._line.abandon()

    async def _exchange(self, call: Call[T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                async with self._sending:
                    line = await self._connected(timeout_s)
                    answered = line.send(call.chunks)
                    await line.sent()
                answer = await answered
        except TimeoutError as exc:
            address = self._addresses.now
            self.reset()
            self._addresses.avoid(address)
            raise TimedOut(
                f"{address.url} has not answered within {timeout_s:.3g} s; is it overloaded, "
                "stopped, or no TMS service?",
                outcome="unknown",
            ) from exc
        return call.read(answer)

    async def _connected(self, timeout_s: float) -> "_AsyncLine":
        if self._closed:
            raise Closed("The bus, producer or consumer was closed.")
        if self._line is not None and self._line.usable:
            return self._line
        target, wait_s = self._addresses.now, min(timeout_s, CONNECT_S_MAX)
        avoid = self._addresses.avoid
        try:
            async with asyncio.timeout(wait_s):
                _, self._line = await asyncio.get_running_loop().create_connection(
                    lambda: _AsyncLine(target, avoid),
                    target.host,
                    target.port,
                    ssl=ssl.create_default_context() if target.tls else None,
                )
        except OSError as exc:
            avoid(target)
            raise connect_error(exc, target, wait_s) from exc
        return self._line


class _AsyncLine(asyncio.BufferedProtocol):
    """One connection, and what waits for its answers."""

    def __init__(self, target: ServiceAddress, failed: Callable[[ServiceAddress], None]) -> None:
        self._target = target
        self._failed = failed
        self._reader = AnswerReader(target.url, BODIES_KEPT)
        self._waiting: deque[asyncio.Future[Response]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self.usable = True

    def send(self, chunks: Sequence[Buffer]) -> asyncio.Future[Response]:
        """Send a request; its answer will come."""
        assert self._transport is not None, "a line is used once it is connected"
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        self._transport.writelines(chunks)
        return answered

    async def sent(self) -> None:
        """Wait while the service takes no more."""
        await self._writable.wait()

    def fail(self, error: TMSError) -> None:
        """Everything under way fails; nothing more can be sent."""
        if self.usable and isinstance(error, Unavailable):
            self._failed(self._target)
        self.usable = False
        self._writable.set()
        while self._waiting:
            answered = self._waiting.popleft()
            if not answered.done():
                answered.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Nobody needs it any more; from any thread, also after the loop has ended."""
        if self._transport is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # closed just now
                self._loop.call_soon_threadsafe(self._transport.abort)

    def leave(self) -> None:
        """In a process that was forked: let the parent have the connection. Its loop watches what
        both share, so it is not told; it keeps the descriptor, of nothing."""
        if self._transport is not None and not self._transport.is_closing():
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, self._transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(nothing)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answers = self._reader.buffer_updated(nbytes)
        except TMSError as error:
            self.fail(error)
            return
        for answer in answers:
            self._settle(answer)

    def eof_received(self) -> None:
        if (last := self._reader.end()) is not None:
            self._settle(last)
        self.fail(ended_error(self._target, not self._reader.idle))

    def connection_lost(self, exc: Exception | None) -> None:
        begun = not self._reader.idle
        self.fail(exchange_error(exc, self._target) if exc else ended_error(self._target, begun))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _settle(self, answer: Response) -> None:
        if self._waiting:
            answered = self._waiting.popleft()
            if not answered.done():
                answered.set_result(answer)
        if not self._waiting and not answer.keeps_open:
            self.fail(ended_error(self._target, False))
