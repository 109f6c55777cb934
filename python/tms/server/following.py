"""GET …/messages?follow=true: what is there, then what is appended, in one answer that goes on.

    fetch ──▶ a part is sent, as far as the client reads ──▶ nothing more: wait ──▶ fetch …

Invariants

* A part begins where the one before ended, so nothing is left out or sent twice; the client knows
  where that is.
* While a client does not read, nothing is fetched for it and no more kept than the part that it
  does not read: it goes on from the store. Idle, a follower costs a watch and no thread.
* What may be shown is decided anew for each part, as for a fetch.
* It ends between two parts: when the service drains, when one other instance owns all of it, with
  an error. Who follows fetches then, and learns why.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tms.api import bodies, routes
from tms.api.following import BEAT_S_MIN, Stand, mark
from tms.api.messages import Unpacked
from tms.errors import TMSError
from tms.model.message import Buffer, Fetched
from tms.server.fetch_request import RequestedFetch
from tms.server.followed_forms import FORMS, FollowedForm
from tms.server.http.exchange import Disconnected, Exchange, settle_from_thread
from tms.server.service import Service

BEAT_S = 15.0  # unless a client asks for another pace
_HEAD = "content-type: {}\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"


class Fetches(Protocol):
    """How a fetch is answered."""

    async def fetch(self, request: RequestedFetch) -> Fetched: ...

    async def unpacked(
        self,
        request: RequestedFetch,
        fetched: Fetched,
        held: int,
        body: Callable[[Unpacked, Mapping[int, int]], Buffer],
    ) -> tuple[Unpacked, Buffer]: ...


class Follower:
    """One client that follows."""

    def __init__(self, service: Service, fetches: Fetches, exchange: Exchange) -> None:
        self._service = service
        self._fetches = fetches
        self._exchange = exchange
        self._form: FollowedForm | None = None  # None: blocks

    async def follow(self, request: RequestedFetch) -> None:
        """Answer. Raises what was wrong with the first fetch."""
        exchange, metrics = self._exchange, self._service.metrics
        if request.media != routes.BLOCKS:
            self._form = FORMS[request.media]()
        fetched = await self._fetches.fetch(request)
        head = _HEAD.format(request.media).encode()
        if exchange.method == "HEAD":
            exchange.respond(routes.OK, head)
            return
        exchange.begin_chunks(routes.OK, head)
        problem = b""
        metrics.followers += 1
        try:
            if self._form is not None:
                await exchange.send((self._form.begin(),))
            await self._go_on(request, fetched)
        except TMSError as error:
            problem = routes.problem(error, exchange.request_id)[1]
        finally:
            metrics.followers -= 1
        if self._form is not None:
            await exchange.send((self._form.end(problem),))
        if not exchange.connection.transport.is_closing():
            exchange.end_chunks()

    async def _go_on(self, request: RequestedFetch, fetched: Fetched) -> None:
        exchange, loop = self._exchange, asyncio.get_running_loop()
        beat_s = max(BEAT_S_MIN, request.wait_s or BEAT_S)
        beat_at = loop.time()
        while True:
            stand = Stand.of(fetched)
            if fetched.blocks or loop.time() >= beat_at:
                stand = await self._send(request, fetched)
                await self._pace()
                beat_at = loop.time() + beat_s
            request = request.behind(stand.next)
            if stand.ended:
                await self._news(request, fetched.held, beat_at - loop.time())
            if exchange.disconnected:
                raise Disconnected
            if exchange.hurried:
                return
            await self._confirm(request)
            fetched = await self._fetches.fetch(request)

    async def _send(self, request: RequestedFetch, fetched: Fetched) -> Stand:
        """Send a part; where it ends."""
        stand = Stand.of(fetched)
        budget = self._service.fetching
        held = bodies.framed_bytes(fetched.blocks)
        budget.bytes += held
        try:
            if self._form is None:
                await self._send_part([*bodies.frames(fetched.blocks), mark(stand)])
            else:
                unpacked, body = await self._fetches.unpacked(
                    request, fetched, held, self._form.part
                )
                stand = Stand.of(Fetched([], unpacked.next, fetched.ends, unpacked.reached))
                budget.bytes += len(body)
                held += len(body)
                await self._send_part((body,))
        finally:
            budget.release(held)
        return stand

    async def _send_part(self, pieces: Sequence[Buffer]) -> None:
        metrics, sent = self._service.metrics, self._exchange.sent
        try:
            await self._exchange.send(pieces)
        finally:
            metrics.followed_parts += 1
            metrics.followed_bytes += self._exchange.sent - sent
            metrics.bytes_out += self._exchange.sent - sent

    async def _pace(self) -> None:
        """Wait as long as a quota wants it."""
        guard, loop = self._service.guard, asyncio.get_running_loop()
        pause_s = 0.0 if guard is None else guard.charge(self._exchange)
        if pause_s > 0:
            await self._exchange.sleep(loop.create_future(), pause_s)

    async def _news(
        self, request: RequestedFetch, held: Mapping[int, int], timeout_s: float
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
        """Raise `NotOwner` where a fetch would, too."""
        service = self._service
        if service.ownership is not None:
            await service.ownership.confirm()
        topics = service.engine.topics
        if topics.partitions.are_of_several and not request.for_peer:
            topics.require_some_own(request.name, request.positions)
