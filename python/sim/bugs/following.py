"""Bugs of following, as planted by `bugs`."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from sim.replacing import Replacement
from tms.engine.engine import Engine
from tms.model.message import Holder, PartitionPosition
from tms.model.position import Position
from tms.server.fetch_request import RequestedFetch
from tms.server.following import Follower
from tms.transactions.manager import TransactionManager


def _at_the_end(request: RequestedFetch) -> list[PartitionPosition]:
    return [PartitionPosition(partition, Position.latest()) for partition, _ in request.positions]


def _go_on_from_where_it_waits() -> list[Replacement]:
    """A follower skips what is appended between its reading and its watching."""
    news, next_ = Follower._news, Follower._next
    ends: WeakKeyDictionary[Follower, Mapping[int, Position]] = WeakKeyDictionary()

    async def wait(
        self: Follower, request: RequestedFetch, held: Mapping[int, Holder], timeout_s: float
    ) -> None:
        at, view = _at_the_end(request), request.isolation
        fetched = self._service.engine.fetch_cached(request.name, at, 1, view)
        await news(self, request, held, timeout_s)
        if fetched is not None and not held:
            ends[self] = fetched.next

    async def go_on(self: Follower, request: RequestedFetch) -> Any:
        behind = ends.pop(self, None)
        return await next_(self, request if behind is None else request.behind(behind))

    return [(Follower, "_news", wait), (Follower, "_next", go_on)]


def _watch_what_comes_from_now_on() -> list[Replacement]:
    """A waiting follower is not woken by messages from before its wait."""
    right = Engine.watch

    def watch(self: Engine, name: Any, positions: Any, *more: Any) -> Callable[[], None]:
        now = [PartitionPosition(partition, Position.latest()) for partition, _ in positions]
        return right(self, name, now, *more)

    return [(Engine, "watch", watch)]


def _wake_nobody_at_the_end_of_a_transaction() -> list[Replacement]:
    """A follower that waits for a transaction is not told of its end."""

    def watch_end(
        self: TransactionManager, pointer: int, callback: Callable[[], None]
    ) -> Callable[[], None]:
        return lambda: None

    return [(TransactionManager, "watch_end", watch_end)]


def _mark_before_the_blocks() -> list[Replacement]:
    """A part names the next position before it has its blocks."""
    right = Follower._next

    async def next_(self: Follower, request: RequestedFetch) -> Any:
        part = await right(self, request)
        return part._replace(pieces=(part.pieces[-1], *part.pieces[:-1]))

    return [(Follower, "_next", next_)]


FOLLOWING: dict[str, Callable[[], list[Replacement]]] = {
    "go-on-from-where-it-waits": _go_on_from_where_it_waits,
    "mark-before-the-blocks": _mark_before_the_blocks,
    "wake-nobody-at-the-end-of-a-transaction": _wake_nobody_at_the_end_of_a_transaction,
    "watch-what-comes-from-now-on": _watch_what_comes_from_now_on,
}
