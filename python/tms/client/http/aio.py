"""HTTP channels for asyncio: a connection to each instance that is asked, requests pipelined,
answers in order.

Invariants

* Requests leave in the order in which `append` and `fetch` were called; the answers of an instance
  settle them in that order.
* A cancelled or timed-out call does not disturb the others: its answer, if it still comes, is
  dropped.
* When a connection fails, everything under way on it fails; the next request opens a new one.
* A process that was forked makes connections of its own, on an event loop of its own.
"""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar, cast

from tms.api.operations import OPERATIONS
from tms.block.received import Received
from tms.client.http.addresses import OWNER, ServiceAddress, ServiceAddresses
from tms.client.http.answers import BODIES_KEPT, AnswerReader, FollowingEnded
from tms.client.http.connection import (
    CONNECT_S_MAX,
    connect_error,
    ended_error,
    exchange_error,
)
from tms.client.http.dividing import Dividing, in_order
from tms.client.http.exchange import WAIT_S_MAX, Call, Calls, Response
from tms.client.http.following import FollowedTail
from tms.client.transport import FetchRequest, ReceiveRequest
from tms.errors import Closed, StorageUnavailable, TimedOut, TMSError, Unavailable
from tms.model.message import Appended, Buffer, Fetched, NewBlock
from tms.model.topic import Durability, TopicName
from tms.runtime import forks

T = TypeVar("T")
RETURN_S = 2.0  # for the messages of a cancelled receive: the answer, and their release


class AsyncHttpChannel:
    """A channel to a service. For one event loop, which keeps connections open: one that nobody has
    any more is closed with its channel."""

    def __init__(self, addresses: ServiceAddresses, calls: Calls) -> None:
        self._addresses = addresses
        self._calls = calls
        self._closed = False
        self._dividing = Dividing()
        self._tail = FollowedTail()
        self._lines: dict[ServiceAddress, _AsyncLine] = {}
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        for line in self._lines.values():
            line.leave()
        self._lines = {}
        self._sending = asyncio.Lock()

    async def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None,
        timeout_s: float,
    ) -> list[Appended]:
        call = self._calls.append(name, blocks, durability)
        owners = self._addresses.by_owner(call.places) if self._addresses.informed else {}
        if len(owners) <= 1:
            return await self._exchange(call, timeout_s)
        parts = [
            (self._calls.append(name, [blocks[n] for n in numbers], durability), owner)
            for owner, numbers in owners.items()
        ]
        answers = await self._exchange_all(parts, timeout_s)
        return in_order(owners.values(), answers)

    async def fetch(self, request: FetchRequest, timeout_s: float) -> Fetched:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_s
        while True:  # the service may wait for less than it is asked to
            left_s = max(0.0, min(WAIT_S_MAX, until_s - loop.time()))
            fetched = await self._fetch(request._replace(wait_s=left_s), left_s + timeout_s)
            came = fetched.blocks or not fetched.ended or self._tail.part is not None
            if came or loop.time() >= until_s:
                return fetched
            request = request.after(fetched, left_s)

    async def _fetch(self, request: FetchRequest, timeout_s: float) -> Fetched:
        if self._tail.is_at(request):
            try:
                part = await self._followed(request, timeout_s)
            except TimedOut:
                raise
            except TMSError as error:
                if self._closed:
                    raise
                self._tail.refused(error)
            else:
                if part is not None:
                    return self._tail.seen(request, part[0], part[1])
        return self._tail.seen(request, await self._fetch_once(request, timeout_s))

    async def _followed(
        self, request: FetchRequest, timeout_s: float
    ) -> tuple[Fetched, "_AsyncLine"] | None:
        """The next part of what is followed from there on, and the connection that it came over;
        None where that cannot be begun now."""
        call = self._tail.call(request, self._calls)
        target = self._addresses.of(call.places)
        line = self._lines.get(target)
        if line is None or not line.usable or line.busy:
            return None
        if not line.follows:
            answered = line.follow(call.chunks)
        elif line is self._tail.part:
            answered = line.next_part()
        else:
            line.fail(FollowingEnded("The connection was given up.", outcome="unknown"))
            return None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await answered
        except TMSError:
            raise
        except TimeoutError as exc:
            raise self._too_late(target, timeout_s) from exc
        except asyncio.CancelledError:  # nobody takes the part
            line.fail(FollowingEnded("The connection was given up.", outcome="unknown"))
            raise
        return call.read(answer), line

    async def _fetch_once(self, request: FetchRequest, timeout_s: float) -> Fetched:
        call, addresses = self._calls.fetch(request), self._addresses
        owners = addresses.by_owner(call.places) if addresses.informed else {}
        parts = self._dividing.parts(request, owners)
        if not parts:
            return self._dividing.seen(await self._exchange(call, timeout_s))
        asked = [(self._calls.fetch(part), owner) for owner, part in parts]
        return self._dividing.joined(await self._exchange_all(asked, timeout_s))

    async def receive(self, request: ReceiveRequest, timeout_s: float) -> Received:
        call = self._calls.receive(*request._replace(wait_s=round(request.wait_s, 3)))
        asked: list[_AsyncLine] = []
        limit_s = request.wait_s + timeout_s
        exchange = asyncio.create_task(self._exchange(call, limit_s, asked))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            with suppress(TMSError, TimeoutError):  # then the leases end by themselves
                async with asyncio.timeout(RETURN_S):
                    await self._return(request, exchange, asked)
            raise

    async def _return(
        self,
        request: ReceiveRequest,
        exchange: "asyncio.Task[Received]",
        asked: "list[_AsyncLine]",
    ) -> None:
        """Release the messages of a receive that nobody awaits any more. It has `asked` over one
        line, or not yet."""
        comes = [line.ask_no_more() if line.busy else True for line in asked]
        if not (comes and all(comes)):  # nothing was sent, or TLS
            exchange.cancel()
            with suppress(asyncio.CancelledError):
                await exchange
            return
        found = await exchange
        if found.slices:
            given = {"topic": request.name, "group": request.group, "tokens": found.tokens()}
            await self._exchange(self._calls.of(OPERATIONS["queues.release"], given), RETURN_S)

    def reset(self) -> None:
        for line in self._lines.values():
            line.fail(TimedOut("The request was given up.", outcome="unknown"))

    def close(self) -> None:
        self._closed = True
        for line in self._lines.values():
            line.fail(Closed("It was closed while it waited."))

    def __del__(self) -> None:
        for line in self._lines.values():
            line.abandon()

    async def _exchange(
        self, call: Call[T], timeout_s: float, asked: "list[_AsyncLine] | None" = None
    ) -> T:
        addresses = self._addresses
        address = addresses.of(call.places) if addresses.informed else addresses.now
        [answer] = await self._exchange_all([(call, address)], timeout_s, asked)
        return answer

    async def _exchange_all(
        self,
        calls: Sequence[tuple[Call[T], ServiceAddress]],
        timeout_s: float,
        asked: "list[_AsyncLine] | None" = None,
    ) -> list[T]:
        """Requests to instances, in this order, and their answers. The lines that are `asked` over
        are added there."""
        under_way: deque[tuple[Call[T], ServiceAddress, asyncio.Future[Response]]] = deque()
        answers: list[T] = []
        address = calls[0][1]
        try:
            async with asyncio.timeout(timeout_s):
                async with self._sending:
                    for call, address in calls:
                        line = await self._connected(address, timeout_s)
                        under_way.append((call, address, line.send(call.chunks)))
                        if asked is not None:
                            asked.append(line)
                        await line.sent()
                while under_way:
                    call, address, answered = under_way[0]
                    answer = await answered
                    under_way.popleft()
                    if OWNER in answer.headers:
                        self._addresses.take_in(call.places, answer.headers)
                    answers.append(call.read(answer))
        except (Unavailable, StorageUnavailable):
            self._addresses.avoid(address)
            raise
        except TMSError:
            raise
        except TimeoutError as exc:
            raise self._too_late(address, timeout_s) from exc
        finally:
            for _, _, answered in under_way:  # an error came first
                if not answered.cancel() and not answered.cancelled():
                    answered.exception()  # it is known
        return answers

    def _too_late(self, address: ServiceAddress, timeout_s: float) -> TimedOut:
        """The error of a request that was not answered in time; gives up on everything else that is
        under way."""
        self.reset()
        self._addresses.avoid(address)
        return TimedOut(
            f"{address.url} has not answered within {timeout_s:.3g} s; is it overloaded, stopped, "
            "or no TMS service?",
            outcome="unknown",
        )

    async def _connected(self, target: ServiceAddress, timeout_s: float) -> "_AsyncLine":
        if self._closed:
            raise Closed("The bus, producer or consumer was closed.")
        line = self._lines.get(target)
        if line is not None and line.follows:
            line.fail(FollowingEnded("Something else is asked for.", outcome="unknown"))
        if line is not None and line.usable:
            return line
        wait_s = min(timeout_s, CONNECT_S_MAX)
        try:
            async with asyncio.timeout(wait_s):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: _AsyncLine(target, self._addresses),
                    target.host,
                    target.port,
                    ssl=self._addresses.context(target),
                )
        except OSError as exc:
            error = connect_error(exc, target, wait_s)
            self._addresses.lost(target, error)
            self._addresses.avoid(target)
            raise error from exc
        self._lines[target] = line
        return line


class _AsyncLine(asyncio.BufferedProtocol):
    """One connection, and what waits for its answers; of a topic that is followed also the parts
    that wait for somebody."""

    def __init__(self, target: ServiceAddress, addresses: ServiceAddresses) -> None:
        self._target = target
        self._addresses = addresses
        self._reader = AnswerReader(target.url, BODIES_KEPT)
        self._waiting: deque[asyncio.Future[Response]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._parts: deque[Response] = deque()
        self.usable = True
        self.follows = False

    @property
    def busy(self) -> bool:
        """True if an answer is under way."""
        return bool(self._waiting)

    def follow(self, chunks: Sequence[Buffer]) -> asyncio.Future[Response]:
        """Send a request whose answer goes on; the first part of it will come."""
        self._reader = AnswerReader(self._target.url, follows=True)
        self.follows = True
        return self.send(chunks)

    def next_part(self) -> asyncio.Future[Response]:
        """The next part of the answer that goes on."""
        assert self._transport is not None, "it follows"
        taken: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        if self._parts:
            taken.set_result(self._parts.popleft())
            if not self._parts:
                self._transport.resume_reading()
        else:
            self._waiting.append(taken)
        return taken

    def send(self, chunks: Sequence[Buffer]) -> asyncio.Future[Response]:
        """Send a request; its answer will come."""
        assert self._transport is not None, "a line is used once it is connected"
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        self._transport.writelines(chunks)
        return answered

    def ask_no_more(self) -> bool:
        """Tell the service that no request follows, so that it answers at once; False where that
        cannot be told without losing the answer."""
        self.usable = False
        if self._transport is None or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    async def sent(self) -> None:
        """Wait while the service takes no more."""
        await self._writable.wait()

    def fail(self, error: TMSError) -> None:
        """Everything under way fails; nothing more can be sent."""
        ended = isinstance(error, FollowingEnded)
        if self.usable and isinstance(error, Unavailable) and not ended:
            self._addresses.avoid(self._target)
        self.usable = False
        self._writable.set()
        while self._waiting:
            answered = self._waiting.popleft()
            if not answered.done():
                answered.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, error: TMSError) -> None:
        """The connection has ended."""
        if self.usable and self._waiting and not self.follows:
            self._addresses.lost(self._target, error)
        self.fail(error)

    def abandon(self) -> None:
        """Release the connection; from any thread, also after the loop has ended."""
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
        return self._reader.buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answers = self._reader.buffer_updated(nbytes)
        except TMSError as error:
            self._lose(error)
            return
        for answer in answers:
            self._settle(answer)

    def eof_received(self) -> None:
        if (last := self._reader.end()) is not None:
            self._settle(last)
        self._lose(ended_error(self._target, self._reader.parsed.begun))

    def connection_lost(self, exc: Exception | None) -> None:
        begun = self._reader.parsed.begun
        self._lose(exchange_error(exc, self._target) if exc else ended_error(self._target, begun))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _settle(self, answer: Response) -> None:
        if self._addresses.away:
            self._addresses.reached(self._target)
        if self._waiting:
            answered = self._waiting.popleft()
            if not answered.done():
                answered.set_result(answer)
        elif self.follows and self._transport is not None:
            self._parts.append(answer)
            self._transport.pause_reading()
        if not self._waiting and not answer.keeps_open:
            self.fail(ended_error(self._target, False))
