"""Routing: each request is answered here, or forwarded to the one instance that answers it.

    operation and arguments ─▶ Here | At(peer) | SplitByOwner(parts) ─▶ answered, or forwarded

* A route is computed before ownership is confirmed, because the instance that answers confirms it.
  A request that stays here, or that the engine divides, is confirmed here and routed once more.
* The path names the role, shard or instance of most requests. A publish computes its route from its
  body (`router.Route.by_content`), a fetch once ownership is confirmed.
* An operation whose owner changes meanwhile raises `NotOwner`, which names no address. If the
  request is still whole, its route is computed anew.
* A forwarded request (`TMS-Hop`) is answered here or refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tms.api import routes
from tms.api.operation import Operation, Resource
from tms.api.operations import TRANSACTIONS, ShardKey, kept_with
from tms.cluster.cluster import REACH_S
from tms.engine.engine import Engine
from tms.errors import NotOwner, TMSError
from tms.server.forwarding import HOP, Forwarding, owner_head
from tms.server.http.exchange import Exchange
from tms.server.http.request import parameters, path_arguments
from tms.server.metrics import Metrics
from tms.topics.owners import At, Here, OwnerRoute, SplitByOwner

_OF_SHARDS = ("groups", "queues", "delayed")
_OF_PARTITION = ("topics.inspect", "topics.producers")  # one that their query names
NOT_HERE = "Another instance keeps this. Try again."
FindRoute = Callable[[], OwnerRoute[int]]


def kept_by(operation: Operation, varying: Sequence[bytes]) -> ShardKey | None:
    """The role or shard that a request needs; None: partitions, or nothing."""
    if operation.api == "transactions":
        return TRANSACTIONS
    if operation.on is Resource.INSTANCE or operation.api not in _OF_SHARDS:
        return None
    return kept_with(operation, path_arguments(operation, tuple(varying)))


def route_to(engine: Engine, kept: ShardKey) -> Here | At:
    """The route to a role or shard. Raises `Unavailable` while no instance holds it."""
    if kept == TRANSACTIONS:
        return engine.roles.commits.route()
    return engine.shards.route(engine.topics.shards.of(*kept))


def route_of(
    engine: Engine, operation: Operation, varying: Sequence[bytes], query: bytes = b""
) -> OwnerRoute[int]:
    """The route of an operation, by what its path varies and its query. Raises `Unavailable`, and
    the errors of both."""
    cluster = engine.cluster
    if cluster is None:
        return Here()
    kept = kept_by(operation, varying)
    if kept is not None:
        return route_to(engine, kept)
    if operation.name == "cluster.drain":
        return cluster.route_to(path_arguments(operation, tuple(varying))["id"]) or Here()
    if operation.name in _OF_PARTITION and operation.form.query is not None:
        given = operation.in_query(parameters(query, operation.form.query.__struct_fields__))
        name = path_arguments(operation, tuple(varying))["name"]
        return engine.topics.route(name, (given.get("partition", 0),))
    return Here()


def owners_told(route: OwnerRoute[int]) -> bytes:
    """The header that tells a client the owners in a route."""
    match route:
        case At(peer):
            return owner_head({peer.address: ()})
        case SplitByOwner(elsewhere=elsewhere):
            return owner_head({peer.address: some for peer, some in elsewhere.items()})
    return b""


class OwnershipCheck:
    """Checks that this process owns the store, once for all requests that wait for it. Used by the
    event loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._confirm, self._cluster = engine.confirm_owner, engine.cluster
        self._thread = ThreadPoolExecutor(1, "tms-ownership")
        self._running: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None

    async def confirm(self) -> None:
        """Raise `NotOwner` unless this process owns the store at a moment during this call, so that
        an answer after it is not stale; `StorageUnavailable` if the store does not answer."""
        if self._cluster is not None and self._cluster.is_confirmed():
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._look(self._running))
        await asyncio.shield(self._next)

    async def _look(self, before: asyncio.Future[None] | None) -> None:
        """Look once the look before has ended: requests that came meanwhile share this one."""
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        look = asyncio.get_running_loop().run_in_executor(self._thread, self._confirm)
        if self._cluster is None:
            await look
            return
        while not (await asyncio.wait([look], timeout=REACH_S))[0]:
            try:
                self._cluster.require_reach()
            except TMSError:
                look.add_done_callback(asyncio.Future.exception)  # no request waits for it any more
                raise
        look.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)


class Routing:
    """Routes the requests of a service whose store others may own. Used by the event loop's
    thread."""

    def __init__(self, ownership: OwnershipCheck, forwarding: Forwarding, metrics: Metrics) -> None:
        self._ownership = ownership
        self._forwarding = forwarding
        self._metrics = metrics

    async def answer(
        self, exchange: Exchange, find: FindRoute, answer: Callable[[], Awaitable[None]]
    ) -> None:
        """Answer a request here, or let another instance answer it. Raises `Unavailable`,
        `NotOwner`."""
        if await self.confirmed(exchange, find) is None:
            return
        try:
            await answer()
        except NotOwner:
            untouched = exchange.received == len(exchange.body)  # the body is there to be sent on
            if exchange.response_started or not untouched or HOP in exchange.headers:
                raise
            if await self.sent_on(exchange, find()):
                return
            raise

    async def confirmed(
        self, exchange: Exchange, find: FindRoute, may_leave: bool = True
    ) -> OwnerRoute[int] | None:
        """The route of a request, once ownership is confirmed; None if it led to another instance,
        which has answered. Without `may_leave` the engine asks that instance. Raises `Unavailable`,
        `NotOwner`."""
        asked = HOP in exchange.headers  # as the owner: it may not know of it yet
        route = Here() if asked else find()
        if not (may_leave and isinstance(route, At)):
            await self._ownership.confirm()
            route = find()
        may_leave = may_leave or asked
        return None if may_leave and await self.sent_on(exchange, route) else route

    async def sent_on(self, exchange: Exchange, route: OwnerRoute[int]) -> bool:
        """True if another instance has answered, because the whole request is for it. Raises
        `NotOwner` for a forwarded request that is not for this instance alone."""
        if HOP in exchange.headers and not isinstance(route, Here):
            raise NotOwner(NOT_HERE, owner=None)
        if not isinstance(route, At):
            return False
        self._metrics.forwarded += 1
        await self._forwarding(exchange, route.peer.name, route.peer.address)
        if exchange.status == routes.NOT_READY:  # perhaps the route was out of date
            with suppress(TMSError):
                await self._ownership.confirm()
        return True
