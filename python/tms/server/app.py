"""The application: a request is answered by the operation that its path and method name.

* In a store that others can reach, a request is answered only by the store's owner.
* Every error leaves as a problem document; one that nobody expected says no more than its request
  id, and the log has the rest. A failed request is logged at most once.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tms.api import routes
from tms.api.commits import transaction_id
from tms.api.operation import Operation, Resource
from tms.api.operations import OPERATIONS, TRANSACTIONS, Kept, kept_with
from tms.api.routes import MethodNotAllowed
from tms.compat.cdap import answers
from tms.compat.cdap.app import CDAP, Cdap, is_cdap
from tms.errors import (
    ErrorKind,
    NotFound,
    NotOwner,
    TMSError,
    Unavailable,
    without_frames,
)
from tms.events import EventLog
from tms.model.access import Access
from tms.server import backups, operating, operations, owned
from tms.server.commit import Committing
from tms.server.delayed import DelayedPublishing
from tms.server.fetch import Fetching
from tms.server.forwarding import HOP
from tms.server.guard import Guard
from tms.server.http.compression import coding_of
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.http.request import path_text
from tms.server.instances import kept_elsewhere
from tms.server.problems import allow, refuse
from tms.server.publish import Publishing
from tms.server.receive import Receiving
from tms.server.router import Route, RouteTable
from tms.server.service import DRAINING, Service
from tms.server.staging import Staging

_log = EventLog("tms.server")
_OURS = frozenset(
    (
        ErrorKind.UNAVAILABLE,
        ErrorKind.STORAGE_FULL,
        ErrorKind.CORRUPT,
        ErrorKind.INTERNAL,
        ErrorKind.CLOSED,
    )
)
ACCEPT_ENCODING, ORIGIN = b"accept-encoding", b"origin"
REQUESTED_METHOD = b"access-control-request-method"
_METHODS = {"GET": ("GET", "HEAD")}
_BROKE = "The service met an error of its own. Its log has the details under the request id {}."
_OTHER = "other"  # in metrics and logs: requests for nothing that there is


class App:
    """Called once for each request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cdap = Cdap(service)
        routes_of_all = [
            Route(OPERATIONS["publish"], Publishing(service)),
            Route(OPERATIONS["fetch"], Fetching(service)),
            Route(OPERATIONS["commit"], Committing(service)),
            Route(OPERATIONS["stage"], Staging(service)),
            Route(OPERATIONS["receive"], Receiving(service)),
            Route(OPERATIONS["delayed.publish"], DelayedPublishing(service)),
            *operations.routes_of(service),
            *owned.routes_of(service),
            *backups.routes_of(service),
            *operating.routes_of(service),
        ]
        self.routes = RouteTable(
            (method, route.operation.path, route)
            for route in routes_of_all
            for method in _METHODS.get(route.operation.method, (route.operation.method,))
        )

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        service = self._service
        started, name = service.clock.monotonic_s(), _OTHER
        service.speakers.ask(exchange.connection)
        methods, varying = self.routes.find(exchange.path)
        route = methods.get(exchange.method)
        if service.draining:
            exchange.keep_alive = False
        if service.cors is not None and HOP not in exchange.headers:
            exchange.also = service.cors.head(exchange.headers.get(ORIGIN))
        try:
            if route is not None:
                name, on = route.operation.name, route.operation.on
                own = route.operation.api == "service"
                if service.guard is not None:
                    await self._admit(service.guard, route, exchange, varying)
                elif service.strangers and route.operation.access is not Access.OPEN:
                    service.strangers.require_none(exchange, bool(route.operation.form.body))
                if ACCEPT_ENCODING in exchange.headers:
                    exchange.coding = coding_of(exchange.headers[ACCEPT_ENCODING])
                here = on is Resource.SERVICE or service.ownership is None
                if own or (here and not service.draining):
                    await route.answer(exchange, varying)
                else:
                    await self._answer_or_forward(route, exchange, varying)
            elif methods:
                self._answer_other_method(exchange, methods)
            elif is_cdap(exchange.path):
                name = CDAP
                await self._answer_cdap(exchange)
            else:
                path = exchange.path.decode("ascii")[:200]
                raise NotFound(f"There is nothing at {path!r}; see {routes.OPENAPI}.")
        except Disconnected:
            return
        except Exception as error:
            _fail(exchange, error, name)
        finally:
            if service.guard is not None:
                service.guard.leave(exchange)
            if service.access_log is not None:
                seconds = service.clock.monotonic_s() - started
                service.access_log.write(exchange, name, route, varying, seconds)
        metrics = service.metrics
        metrics.answers[name, exchange.status] += 1
        if name in metrics.seconds and not exchange.goes_on:
            metrics.seconds[name].observe(service.clock.monotonic_s() - started)

    async def _admit(
        self, guard: Guard, route: Route, exchange: Exchange, varying: Sequence[bytes]
    ) -> None:
        """Let who may do this pass, by the newest grants. Raises `Unauthenticated`, `Forbidden`."""
        operation, ownership = route.operation, self._service.ownership
        is_asked = operation.on is not Resource.INSTANCE and operation.access is not Access.OPEN
        if ownership is not None and is_asked:
            await ownership.confirm()
        await guard.admit(exchange, operation, varying)
        if operation.api == "transactions" and operation.access is Access.KNOWN and varying:
            await self._require_own(guard, exchange, path_text(varying[0]))

    async def _require_own(self, guard: Guard, exchange: Exchange, text: str) -> None:
        """Raise `TransactionNotFound` for an open transaction of somebody else. Whoever keeps
        transactions looks."""
        engine = self._service.engine
        if text == routes.NEW_TRANSACTION or not engine.coordinates:
            return
        id = transaction_id(text)
        info = await self._service.in_thread(engine.transactions.describe, id)
        if info.outcome == "open":
            guard.require_own(exchange, id, info.client)

    async def _answer_or_forward(
        self, route: Route, exchange: Exchange, varying: Sequence[bytes]
    ) -> None:
        """Answer an operation that others may have to answer. Raises `Unavailable`, `NotOwner`."""
        service = self._service
        if service.draining:
            raise Unavailable(DRAINING)
        asked = HOP in exchange.headers  # as the owner: it may not know of it yet
        if asked and service.ownership is not None:
            await service.ownership.confirm()
        if service.engine.cluster is not None:
            kept = _kept(route.operation, varying)
            if kept is not None and await self._forwarded(exchange, kept):
                return
        if service.ownership is not None and not asked:
            await service.ownership.confirm()
        try:
            await route.answer(exchange, varying)
        except NotOwner as error:
            address = error.details.get("address")
            untouched = exchange.received == len(exchange.body)  # the body is there to be sent on
            is_over = exchange.response_started or not untouched
            if not address or is_over or HOP in exchange.headers:
                raise
            await self._forward(exchange, str(error.details["owner"]), address)

    async def _answer_cdap(self, exchange: Exchange) -> None:
        if self._service.strangers:
            self._service.strangers.require_none(exchange, True)
        if self._service.ownership is not None:
            await self._service.ownership.confirm()
        await self._cdap(exchange, partial(self._forwarded, exchange, TRANSACTIONS))

    async def _forwarded(self, exchange: Exchange, kept: Kept) -> bool:
        """Whether another instance keeps this; it has answered. Raises `Unavailable`."""
        elsewhere = kept_elsewhere(self._service.engine, kept)
        if elsewhere is None:
            return False
        if HOP in exchange.headers:
            raise elsewhere
        address = elsewhere.details.get("address")
        if not address:
            raise elsewhere
        await self._forward(exchange, str(elsewhere.details["owner"]), address)
        return True

    async def _forward(self, exchange: Exchange, owner: str, address: str) -> None:
        self._service.metrics.forwarded += 1
        await self._service.forwarding(exchange, owner, address)

    def _answer_other_method(self, exchange: Exchange, methods: Mapping[str, Route]) -> None:
        """Answer OPTIONS. Raises `MethodNotAllowed` for other methods that a path does not have."""
        allowed, cors = [*sorted(methods), "OPTIONS"], self._service.cors
        if exchange.method == "OPTIONS":
            head = allow(allowed)
            if cors is not None:
                origin, method = map(exchange.headers.get, (ORIGIN, REQUESTED_METHOD))
                head += cors.preflight(origin, method, _for_pages(methods))
            exchange.respond(routes.NO_CONTENT, head)
            return
        raise MethodNotAllowed(
            f"The method {exchange.method} is not for this path; use {', '.join(allowed[:-1])} or "
            f"{allowed[-1]}.",
            allowed=allowed,
        )


def _for_pages(methods: Mapping[str, Route]) -> list[str]:
    """The methods of a path that are not for other instances only."""
    return sorted(
        method for method, route in methods.items() if route.operation.on is not Resource.INSTANCE
    )


def _kept(operation: Operation, varying: Sequence[bytes]) -> Kept | None:
    """With what it is kept that a request concerns."""
    if operation.api == "transactions":
        return TRANSACTIONS
    if operation.on is Resource.INSTANCE or operation.api not in ("groups", "queues", "delayed"):
        return None
    return kept_with(operation, operation.in_path([path_text(raw) for raw in varying]))


def _fail(exchange: Exchange, error: Exception, operation: str) -> None:
    """Answer with what was raised; the log has what is no fault of the client."""
    if not isinstance(error, TMSError):
        _log.exception("request_broke", **_facts(exchange, operation))
        _refuse(exchange, TMSError(_BROKE.format(exchange.request_id)), operation)
    else:
        if error.kind in _OURS:
            facts = _facts(exchange, operation)
            _log.warning("request_failed", **facts, code=error.code, why=str(error))
        _refuse(exchange, error, operation)
    without_frames(error)


def _refuse(exchange: Exchange, error: TMSError, operation: str) -> None:
    """Answer with an error, or end an answer that was begun."""
    if exchange.response_started:
        exchange.abort()
        return
    if isinstance(error, NotOwner):  # behind one address the next connection may reach the owner
        exchange.keep_alive = False
    if operation == CDAP:
        answers.refuse(exchange, error)
        return
    refuse(exchange, error)


def _facts(exchange: Exchange, operation: str) -> dict[str, Any]:
    return {
        "request_id": exchange.request_id,
        "operation": operation,
        "method": exchange.method,
        "path": exchange.path.decode("ascii")[:300],
    }
