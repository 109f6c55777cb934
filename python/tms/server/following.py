"""GET …/messages?follow=true: the present messages, then those appended later, in one answer that
goes on.

    fetch ──▶ a part is sent, as far as the client reads ──▶ nothing more: wait ──▶ fetch …

Invariants

* A part begins where the one before ended, so nothing is left out or sent twice; the client knows
  where that is.
* While a client does not read, nothing is fetched for it and no more kept than the part that it
  does not read: it goes on from the store. Idle, a follower costs a watch and no thread.
* Access and visibility are checked for each part, as for a fetch.
* Followers of the same that wake up together, in one turn of the event loop, share the fetch and
  the bytes of a part.
* It ends between two parts: when the service drains, when one other instance owns all of it, or
  with an error. The follower then fetches, and gets the reason.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from tms.api import bodies, routes
from tms.api.following import BEAT_S_MIN, Stand, mark
from tms.api.messages import Unpacked
from tms.errors import NotOwner, TMSError
from tms.model.message import Buffer, Fetched, Holder
from tms.model.topic import TopicName
from tms.server.fetch_request import RequestedFetch
from tms.server.followed_forms import FORMS, FollowedForm
from tms.server.http.exchange import Disconnected, Exchange, settle_from_thread
from tms.server.routing import NOT_HERE
from tms.server.service import Service
from tms.topics.owners import At

SHARED_MAX = 64  # parts that are kept for others, in a turn
BEAT_S = 15.0  # unless a client asks for another pace
_HEAD = "content-type: {}\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"


class Fetches(Protocol):
    """Answers a fetch."""

    def fitted(self, request: RequestedFetch) -> RequestedFetch: ...

    async def fetch(self, request: RequestedFetch) -> Fetched: ...

    async def unpacked(
        self,
        request: RequestedFetch,
        fetched: Fetched,
        held: int,
        body: Callable[[Unpacked, Mapping[int, int]], Buffer],
    ) -> tuple[Unpacked, Buffer]: ...


class _Part(NamedTuple):
    """The next part for a follower."""

    stand: Stand  # where it ends
    behind: RequestedFetch  # what comes next
    pieces: Sequence[Buffer]
    has_blocks: bool  # else nothing came
    held: Mapping[int, Holder]  # see `Fetched`


class SharedParts:
    """The parts of this turn of the event loop, by what was asked for."""

    def __init__(self) -> None:
        self._parts: dict[RequestedFetch, _Part] = {}

    def find(self, request: RequestedFetch) -> _Part | None:
        """The part, if another follower has made it."""
        return self._parts.get(request)

    def keep(self, request: RequestedFetch, part: _Part) -> None:
        """Let others have it."""
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._parts.clear)
        if len(self._parts) < SHARED_MAX:
            self._parts[request] = part


class Follower:
    """One client that follows."""

    def __init__(
        self, service: Service, fetches: Fetches, shared: SharedParts, exchange: Exchange
    ) -> None:
        self._service = service
        self._fetches = fetches
        self._shared = shared
        self._exchange = exchange
        self._form: FollowedForm | None = None  # None: blocks

    async def follow(self, request: RequestedFetch) -> None:
        """Answer. Raises what was wrong with the first fetch."""
        exchange, metrics = self._exchange, self._service.metrics
        begin = b""
        if request.media != routes.BLOCKS:
            self._form = FORMS[request.media]()
            begin = self._form.begin()
        part = await self._next(request)
        head = _HEAD.format(request.media).encode()
        if exchange.method == "HEAD":
            exchange.respond(routes.OK, head)
            return
        exchange.begin_chunks(routes.OK, head)
        problem = b""
        metrics.followers += 1
        try:
            await exchange.send((begin,))
            await self._go_on(part, request.wait_s)
        except TMSError as error:
            problem = routes.problem(error, exchange.request_id)[1]
        finally:
            metrics.followers -= 1
        if self._form is not None:
            await exchange.send((self._form.end(problem),))
        if not exchange.connection.transport.is_closing():
            exchange.end_chunks()

    async def _go_on(self, part: _Part, wait_s: float) -> None:
        exchange, loop = self._exchange, asyncio.get_running_loop()
        beat_s = max(BEAT_S_MIN, wait_s or BEAT_S)
        beat_at = loop.time()
        while True:
            if part.has_blocks or loop.time() >= beat_at:
                await self._send(part.behind.name, part.pieces)
                await self._pace()
                beat_at = loop.time() + beat_s
            request = part.behind
            if part.stand.ended:
                await self._news(request, part.held, beat_at - loop.time())
            if exchange.disconnected:
                raise Disconnected
            if exchange.hurried:
                return
            await self._confirm(request)
            part = await self._next(request)

    async def _next(self, request: RequestedFetch) -> _Part:
        """The part that begins there."""
        part = self._shared.find(request)
        if part is not None:
            return part
        fitted = self._fetches.fitted(request)
        fetched = await self._fetches.fetch(fitted)
        stand, pieces = Stand.of(fetched), bodies.frames(fetched.blocks)
        if self._form is None:
            made: Sequence[Buffer] = (*pieces, mark(stand))
        else:
            stand, made = await self._unpacked(fitted, fetched, self._form)
        behind = request.behind(stand.next).turned(stand.ended)
        part = _Part(stand, behind, made, bool(fetched.blocks), fetched.held)
        # Batches of Arrow belong to one stream. That nothing came may be wrong by now: whoever took
        # it from others would look again at once, and find it again.
        if part.has_blocks and request.media != routes.ARROW_STREAM:
            self._shared.keep(request, part)
        return part

    async def _unpacked(
        self, request: RequestedFetch, fetched: Fetched, form: FollowedForm
    ) -> tuple[Stand, Sequence[Buffer]]:
        """The part as messages, unpacked."""
        budget, held = self._service.fetching, bodies.framed_bytes(fetched.blocks)
        budget.bytes += held
        try:
            unpacked, body = await self._fetches.unpacked(request, fetched, held, form.part)
        finally:
            budget.release(held)
        stand = Stand.of(Fetched([], unpacked.next, fetched.ends, unpacked.reached))
        return stand, (body,)

    async def _send(self, name: TopicName, pieces: Sequence[Buffer]) -> None:
        """Send a part of a topic."""
        metrics, exchange, budget = self._service.metrics, self._exchange, self._service.fetching
        size, before = sum(map(len, pieces)), exchange.sent
        budget.bytes += size
        try:
            await exchange.send(pieces)
        finally:
            budget.release(size)
            sent = exchange.sent - before
            metrics.followed_parts += 1
            metrics.followed_bytes += sent
            metrics.bytes_out += sent
            metrics.sent[name] += sent

    async def _pace(self) -> None:
        """Wait as long as a quota wants it."""
        guard, loop = self._service.guard, asyncio.get_running_loop()
        pause_s = 0.0 if guard is None else guard.decisions.charge(self._exchange)
        if pause_s > 0:
            await self._exchange.sleep(loop.create_future(), pause_s)

    async def _news(
        self, request: RequestedFetch, held: Mapping[int, Holder], timeout_s: float
    ) -> None:
        """Wait until something may be there, or so long."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        wake = partial(settle_from_thread, loop, woken)
        cancel = self._service.engine.watch(
            request.name, request.positions, wake, held, request.isolation
        )
        try:
            await self._exchange.sleep(woken, max(0.0, timeout_s))
        finally:
            cancel()

    async def _confirm(self, request: RequestedFetch) -> None:
        """Raise `NotOwner` where a fetch would leave for another instance."""
        service = self._service
        if service.ownership is not None:
            await service.ownership.confirm()
        route = service.engine.topics.route(request.name, dict(request.positions))
        if isinstance(route, At) and not request.for_peer:
            raise NotOwner(NOT_HERE, owner=None)
