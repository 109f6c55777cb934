"""The application: a request is answered by the operation that its path and method name.

* If other processes can reach the store, only its owner answers a request.
* Every error leaves as a problem document. That of an unexpected error has only the request id, and
  the log has the rest. A failed request is logged at most once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tms.access.tokens import without_secrets
from tms.api import routes
from tms.api.commits import transaction_id
from tms.api.operation import Resource
from tms.api.operations import OPERATIONS, ShardKey
from tms.api.routes import MethodNotAllowed
from tms.errors import (
    ErrorKind,
    NotFound,
    NotOwner,
    TMSError,
    Unavailable,
    without_frames,
)
from tms.model.access import Access
from tms.runtime.events import EventLog
from tms.server import backups, operating, operations, peer_blocks
from tms.server.commit import Committing
from tms.server.delayed import DelayedPublishing
from tms.server.fetch import Fetching
from tms.server.forwarding import HOP
from tms.server.front import Front, FrontApp, Paths
from tms.server.guard import Guard
from tms.server.http.compression import coding_of
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.http.request import path_text
from tms.server.problems import allow, refuse
from tms.server.publish import Publishing
from tms.server.receive import Receiving
from tms.server.router import Route, RouteTable
from tms.server.routing import route_of, route_to
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
_Refuse = Callable[[Exchange, TMSError], None]  # answers with an error
_OTHER = "other"  # in metrics and logs: requests for nothing that there is


class App:
    """Called once for each request."""

    def __init__(self, service: Service, fronts: Sequence[Front] = ()) -> None:
        self._service = service
        self._fronts = [(one.name, one.paths) for one in fronts if one.paths is not None]
        routes_of_all = [
            Route(OPERATIONS["publish"], Publishing(service), by_content=True),
            Route(OPERATIONS["fetch"], Fetching(service)),
            Route(OPERATIONS["commit"], Committing(service)),
            Route(OPERATIONS["stage"], Staging(service)),
            Route(OPERATIONS["receive"], Receiving(service)),
            Route(OPERATIONS["delayed.publish"], DelayedPublishing(service)),
            *operations.routes_of(service, fronts),
            *peer_blocks.routes_of(service),
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
        refuse_ = refuse
        service.inline_sync.note(exchange.connection)
        methods, varying = self.routes.find(exchange.path)
        route = methods.get(exchange.method)
        if service.draining:
            exchange.keep_alive = False
        if service.cors is not None and HOP not in exchange.headers:
            exchange.also += service.cors.head(exchange.headers.get(ORIGIN))
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
            elif (front := self._front(exchange.path)) is not None:
                name, paths = front
                refuse_ = paths.refuse
                await self._answer_by_front(exchange, paths)
            else:
                path = exchange.path.decode("ascii")[:200]
                raise NotFound(f"There is nothing at {path!r}; see {routes.OPENAPI}.")
        except Disconnected:
            return
        except Exception as error:
            _fail(exchange, error, name, refuse_)
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
        """Admit a request by the newest grants. Raises `Unauthenticated`, `Forbidden`."""
        operation, ownership = route.operation, self._service.ownership
        is_asked = operation.on is not Resource.INSTANCE and operation.access is not Access.OPEN
        if ownership is not None and is_asked:
            await ownership.confirm()
        await guard.admit(exchange, operation, varying)
        if operation.api == "transactions" and operation.access is Access.KNOWN and varying:
            await self._require_own(guard, exchange, path_text(varying[0]))

    async def _require_own(self, guard: Guard, exchange: Exchange, text: str) -> None:
        """Raise `TransactionNotFound` for an open transaction of another principal. Only the
        coordinator of transactions checks."""
        engine = self._service.engine
        if text == routes.NEW_TRANSACTION or not engine.coordinates:
            return
        id = transaction_id(text)
        info = await self._service.in_thread(engine.transactions.describe, id)
        if info.outcome == "open":
            guard.decisions.require_own(exchange, id, info.client)

    async def _answer_or_forward(
        self, route: Route, exchange: Exchange, varying: Sequence[bytes]
    ) -> None:
        """Answer an operation that others may have to answer. Raises `Unavailable`, `NotOwner`."""
        service = self._service
        if service.draining:
            raise Unavailable(DRAINING)
        if service.routing is None or route.by_content:
            await route.answer(exchange, varying)
            return
        find = partial(route_of, service.engine, route.operation, varying, exchange.query)
        await service.routing.answer(exchange, find, partial(route.answer, exchange, varying))

    def _front(self, path: bytes) -> tuple[str, Paths] | None:
        """The front end that answers a path, with its name; None if no front end does."""
        return next((front for front in self._fronts if front[1].has(path)), None)

    async def _answer_by_front(self, exchange: Exchange, paths: Paths) -> None:
        if self._service.strangers:
            self._service.strangers.require_none(exchange, True)
        if self._service.ownership is not None:
            await self._service.ownership.confirm()
        await paths.answer(exchange, FrontApp(partial(self._forwarded, exchange), self))

    async def _forwarded(self, exchange: Exchange, kept: ShardKey) -> bool:
        """True if another instance keeps this; then it has answered. Raises `Unavailable`."""
        routing = self._service.routing
        if routing is None:
            return False
        return await routing.sent_on(exchange, route_to(self._service.engine, kept))

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


def _fail(exchange: Exchange, error: Exception, operation: str, refuse_: _Refuse) -> None:
    """Answer with what was raised; the log has what is no fault of the client."""
    if not isinstance(error, TMSError):
        _log.exception("request_broke", **_facts(exchange, operation))
        _end(exchange, TMSError(_BROKE.format(exchange.request_id)), refuse_)
    else:
        if error.kind in _OURS:
            facts = _facts(exchange, operation)
            _log.warning("request_failed", **facts, code=error.code, why=str(error))
        _end(exchange, error, refuse_)
    without_frames(error)


def _end(exchange: Exchange, error: TMSError, refuse_: _Refuse) -> None:
    """Answer with an error, or abort an answer that was begun."""
    if exchange.response_started:
        exchange.abort()
        return
    if isinstance(error, NotOwner):  # behind one address the next connection may reach the owner
        exchange.keep_alive = False
    refuse_(exchange, error)


def _facts(exchange: Exchange, operation: str) -> dict[str, Any]:
    return {
        "request_id": exchange.request_id,
        "operation": operation,
        "method": exchange.method,
        "path": without_secrets(exchange.path)[:300],
    }
