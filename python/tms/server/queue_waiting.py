"""Requests that wait for messages of queues, in a line and without threads.

    news ──▶ the first of the line looks ──▶ it found some: it leaves, and the next one looks
                                         └─▶ it found none: it stays the first, and watches on

Invariants

* Only the first of a line watches its queue, and looks when a lease or a delay ends: a thousand
  idle workers cost what one does.
* A request that leaves the line lets the next one look, so that no wake-up is lost with a client
  that is gone.
* A request whose client is gone, or whose wait is over, does not look.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from tms.model.topic import TopicName
from tms.server.http.exchange import Disconnected, Exchange, settle, settle_from_thread

_T = TypeVar("_T")
_Key = tuple[TopicName, str]
_Line = dict[object, "asyncio.Future[None]"]  # in the order of their coming
Watch = Callable[[TopicName, str, Callable[[], None]], tuple[Callable[[bool], None], float | None]]

DUE_S_MIN = 0.02  # what ends within this time ends together


class QueueWaiters:
    """The waiting requests, by queue. Used by the event loop's thread only. For `watch` see
    `tms.queues.queues.Queues.watch`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lines: dict[_Key, _Line] = {}

    async def until(
        self,
        exchange: Exchange,
        key: _Key,
        look: Callable[[], Awaitable[_T]],
        wait_s: float,
        nothing: _T,
    ) -> _T:
        """Wait for a result of `look`, or return `nothing` when the wait is over; a result is true
        if it has messages. Raises `Disconnected`, and what `look` raises."""
        deadline = asyncio.get_running_loop().time() + wait_s
        line = self._lines.setdefault(key, {})
        ticket = object()
        try:
            while True:
                if not await self._woken(exchange, key, line, ticket, deadline):
                    return nothing
                if answer := await look():
                    return answer
        finally:
            line.pop(ticket, None)
            if line:
                settle(next(iter(line.values())))
            else:
                self._lines.pop(key, None)

    async def _woken(
        self, exchange: Exchange, key: _Key, line: _Line, ticket: object, deadline: float
    ) -> bool:
        """Wait; whether to look. Raises `Disconnected`."""
        loop = asyncio.get_running_loop()
        woken = line[ticket] = loop.create_future()
        until, looks = deadline, False
        end: Callable[[bool], None] | None = None
        if next(iter(line)) is ticket:
            end, due_s = self._watch(*key, partial(settle_from_thread, loop, woken))
            if due_s is not None:
                until = min(until, loop.time() + max(due_s, DUE_S_MIN))
        try:
            await exchange.sleep(woken, until - loop.time())
            if exchange.disconnected:
                raise Disconnected
            looks = not exchange.hurried and loop.time() < deadline
        finally:
            if end is not None:
                end(looks)
        return looks
