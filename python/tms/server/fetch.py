"""GET …/messages: blocks as they are stored, or messages: in JSON, as an Arrow stream, as
CloudEvents.

* What is in the cache is answered by the event loop itself, everything else by a few threads.
* A long poll costs a watch and no thread; it ends when something may be there, at its time-out,
  when the client leaves and when the service drains.
* Bytes on their way to consumers are bounded: when memory is short, answers get smaller, and what
  would have to be read from the store is refused (`Overloaded`). Blocks go out uncopied, one chunk
  at a time, so a consumer that does not read holds no more than the blocks it asked for.
* Compressed blocks that get large are unpacked for one answer at a time, and counted meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tms.api import bodies, messages, routes
from tms.model.message import Buffer, Fetched
from tms.model.position import Position
from tms.server.fetch_request import RequestedFetch, read_request
from tms.server.following import Follower, SharedParts
from tms.server.http.exchange import Disconnected, Exchange, settle_from_thread
from tms.server.http.request import topic_name
from tms.server.operations import UNPACKED_FACTOR
from tms.server.routing import owners_told
from tms.server.service import UNPACKED_BYTES_MIN, Service

GRANT_BYTES_MIN = 64 << 10
FILTERING_MAX = 2  # fetches with a filter that look at the same time, each up to a second
_INLINE_BYTES = 32 << 10  # blocks up to this size are unpacked by the event loop itself


class Fetching:
    """Answers fetches."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._followed = SharedParts()
        self._filtering = asyncio.Semaphore(FILTERING_MAX)

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what was wrong."""
        request = read_request(exchange, topic_name(*varying), self._service)
        topics = self._service.engine.topics
        owners, routing = b"", self._service.routing
        if routing is not None:
            route = topics.route(request.name, dict(request.positions))
            if await routing.sent_on(exchange, route):
                return
            owners = owners_told(route)
        if request.follow:
            await Follower(self._service, self, self._followed, exchange).follow(request)
            return
        budget = self._service.fetching
        request = self.fitted(request)
        held = 0
        try:
            fetched = await self.fetch(request)
            if not fetched.blocks and fetched.ended and request.wait_s > 0:
                request, fetched = await self._wait(exchange, request, fetched)
            held = bodies.framed_bytes(fetched.blocks)
            budget.bytes += held
            if request.media == routes.BLOCKS:
                self._count(request, held)
                await self._send_blocks(exchange, fetched, held, owners)
            else:
                unpacked, body = await self.unpacked(request, fetched, held, request.body)
                budget.bytes += len(body)
                held += len(body)
                head = _head(request.media, unpacked.next, unpacked.reached, fetched.ends)
                await self._send(exchange, request, head, body)
        finally:
            budget.release(held)

    def fitted(self, request: RequestedFetch) -> RequestedFetch:
        """The request for as much as can be unpacked now and leaves memory to other requests."""
        if request.media == routes.BLOCKS:
            return request
        budget = self._service.fetching
        free = budget.bytes_max - budget.bytes
        grant = max(free // (2 * (1 + UNPACKED_FACTOR)), GRANT_BYTES_MIN)
        return request._replace(bytes_max=min(request.bytes_max, grant))

    async def fetch(self, request: RequestedFetch) -> Fetched:
        """Fetch the messages that are there now. Raises `Overloaded`, and what `Engine.fetch`
        raises."""
        engine, budget = self._service.engine, self._service.fetching
        free = budget.bytes_max - budget.bytes
        grant = min(request.bytes_max, max(free // 2, GRANT_BYTES_MIN))
        name, positions, isolation = request.name, request.positions, request.isolation
        if request.where is None:  # looking at many messages would keep the event loop
            fetched = engine.fetch_cached(name, positions, grant, isolation)
            if fetched is not None:
                return fetched
        await budget.claim(grant)
        try:
            service = self._service
            if request.for_peer:
                fetch = partial(engine.fetch, name, positions, grant, 0, isolation, request.where)
                return await service.for_peer(fetch)
            if request.where is None:
                return await service.in_thread(engine.fetch, name, positions, grant, 0, isolation)
            return await service.in_turn(
                self._filtering, engine.fetch, name, positions, grant, 0, isolation, request.where
            )
        finally:
            budget.release(grant)

    async def _wait(
        self, exchange: Exchange, request: RequestedFetch, fetched: Fetched
    ) -> tuple[RequestedFetch, Fetched]:
        """The first blocks, or none at the end of the wait."""
        service, loop = self._service, asyncio.get_running_loop()
        deadline = loop.time() + request.wait_s
        service.metrics.long_polls += 1
        try:
            while not fetched.blocks and fetched.ended:
                request = request.behind(fetched.next)
                woken = loop.create_future()
                wake = partial(settle_from_thread, loop, woken)
                cancel = service.engine.watch(
                    request.name, request.positions, wake, fetched.held, request.isolation
                )
                try:
                    await exchange.sleep(woken, deadline - loop.time())
                finally:
                    cancel()
                if exchange.disconnected:
                    raise Disconnected
                fetched = await self.fetch(request)
                if exchange.hurried or loop.time() >= deadline:
                    break
        finally:
            service.metrics.long_polls -= 1
        return request, fetched

    async def _send_blocks(
        self, exchange: Exchange, fetched: Fetched, length: int, owners: bytes
    ) -> None:
        head = _head(routes.BLOCKS, fetched.next, fetched.reached, fetched.ends) + owners
        await exchange.stream(routes.OK, head, length, bodies.frames(fetched.blocks))

    async def unpacked(
        self,
        request: RequestedFetch,
        fetched: Fetched,
        held: int,
        body: Callable[[messages.Unpacked, Mapping[int, int]], Buffer],
    ) -> tuple[messages.Unpacked, Buffer]:
        """The messages that were fetched, and what `body` makes of them and the ends of their
        partitions; `held` is how much of blocks is counted."""
        positions, service = dict(request.positions), self._service

        def find() -> messages.Unpacked:
            return messages.unpacked(fetched, positions, request.limit, request.bytes_max)

        def made(unpacked: messages.Unpacked) -> Buffer:
            return body(unpacked, fetched.ends)

        def both() -> tuple[messages.Unpacked, Buffer | None]:
            unpacked = find()
            large = unpacked.unpacked_bytes >= UNPACKED_BYTES_MIN
            return unpacked, None if large else made(unpacked)

        size = request.bytes_max
        if held <= _INLINE_BYTES:
            unpacked = find()
            if sum(run.columns.unpacked_bytes for run in unpacked.runs) <= _INLINE_BYTES:
                return unpacked, made(unpacked)
            size = sum(run.columns.cell_bytes for run in unpacked.runs)
        budget, weight = service.fetching, UNPACKED_FACTOR * size
        await budget.claim(weight, held)
        try:
            unpacked, encoded = await service.in_thread(both)
            if encoded is None:
                encoded = await service.unpack(unpacked.unpacked_bytes, made, unpacked)
            return unpacked, encoded
        finally:
            budget.release(weight)

    def _count(self, request: RequestedFetch, size: int) -> None:
        """Count bytes that are sent; another instance counts for its client those that it fetches
        here."""
        metrics = self._service.metrics
        metrics.bytes_out += size
        if not request.for_peer:
            metrics.sent[request.name] += size

    async def _send(
        self, exchange: Exchange, request: RequestedFetch, head: bytes, body: Buffer
    ) -> None:
        if exchange.coding is not None:
            head, body = await self._service.compressed(exchange.coding, head, body)
        self._count(request, len(body))
        view, size = memoryview(body), bodies.CHUNK_BYTES
        chunks: Sequence[Buffer] = [view[at : at + size] for at in range(0, len(view), size)]
        await exchange.stream(routes.OK, head, len(view), chunks)


_NO_SNIFFING = "x-content-type-options: nosniff\r\n"  # a payload is never a page


def _head(
    media: str,
    following: Mapping[int, Position],
    reached: Mapping[int, int],
    ends: Mapping[int, int],
) -> bytes:
    return (
        f"content-type: {media}\r\n{_NO_SNIFFING}"
        f"{routes.NEXT_HEADER}: {bodies.positions_text(following)}\r\n"
        f"{routes.END_HEADER}: {bodies.ends_text(ends)}\r\n"
        f"{routes.REACHED_HEADER}: {bodies.ends_text(reached)}\r\n"
    ).encode()
