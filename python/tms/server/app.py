"""The application: a request is answered by the operation that its path and method name.

* In a store that others can reach, a request is answered only by the store's owner.
* Every error leaves as a problem document; one that nobody expected says no more than its request
  id, and the log has the rest. A failed request is logged at most once.
"""

from typing import Any

from tms.api import routes
from tms.api.operation import Resource
from tms.api.operations import OPERATIONS
from tms.api.routes import MethodNotAllowed
from tms.compat.cdap.app import Cdap, is_cdap
from tms.errors import ErrorKind, NotFound, NotOwner, TMSError, without_frames
from tms.events import EventLog
from tms.server import operating, operations
from tms.server.commit import Committing
from tms.server.delayed import DelayedPublishing
from tms.server.fetch import Fetching
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.publish import Publishing
from tms.server.receive import Receiving
from tms.server.router import Route, RouteTable, allowed, not_allowed
from tms.server.service import Service
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
_WORTH_RETRYING = frozenset((ErrorKind.OVERLOADED, ErrorKind.UNAVAILABLE, ErrorKind.STORAGE_FULL))
_PROBLEM_HEAD = f"content-type: {routes.PROBLEM}\r\n".encode()
_OTHER = "other"  # in metrics and logs: requests for nothing that there is


class App:
    """Called once for each request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cdap = Cdap(service)
        self.routes = RouteTable(
            [
                Route(OPERATIONS["publish"], Publishing(service)),
                Route(OPERATIONS["fetch"], Fetching(service)),
                Route(OPERATIONS["commit"], Committing(service)),
                Route(OPERATIONS["stage"], Staging(service)),
                Route(OPERATIONS["receive"], Receiving(service)),
                Route(OPERATIONS["delayed.publish"], DelayedPublishing(service)),
                *operations.routes_of(service),
                *operating.routes_of(service),
            ]
        )

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        service = self._service
        started, name = service.clock.monotonic_s(), _OTHER
        if service.draining:
            exchange.keep_alive = False
        try:
            methods, varying = self.routes.find(exchange.path)
            route = methods.get(exchange.method)
            if route is not None:
                name = route.operation.name
                if route.operation.on is not Resource.SERVICE and service.ownership is not None:
                    await service.confirm_owner()
                await route.answer(exchange, varying)
            elif methods and exchange.method == "OPTIONS":
                exchange.respond(routes.NO_CONTENT, _allow(allowed(methods)))
            elif methods:
                raise not_allowed(exchange.method, methods)
            elif is_cdap(parts := exchange.path.split(b"/")):
                name = "cdap"
                await service.confirm_owner()
                await self._cdap(exchange, parts)
            else:
                path = exchange.path.decode("ascii")[:200]
                raise NotFound(f"There is nothing at {path!r}; see {routes.OPENAPI}.")
        except Disconnected:
            return
        except TMSError as error:
            self._answer(exchange, error, name)
            without_frames(error)
        except Exception as exc:
            self._unexpected(exchange, name)
            without_frames(exc)
        metrics = service.metrics
        metrics.answers[name, exchange.status] += 1
        if name in metrics.seconds:
            metrics.seconds[name].observe(service.clock.monotonic_s() - started)

    def _answer(self, exchange: Exchange, error: TMSError, operation: str) -> None:
        if error.kind in _OURS:
            _log.warning(
                "request_failed", **_facts(exchange, operation), code=error.code, why=str(error)
            )
        if exchange.response_started:
            exchange.abort()
            return
        if isinstance(error, NotOwner):
            exchange.keep_alive = (
                False  # behind one address the next connection may reach the owner
            )
        status, body = routes.problem(error, exchange.request_id)
        head = _PROBLEM_HEAD
        if error.kind in _WORTH_RETRYING:
            head += b"retry-after: %d\r\n" % routes.RETRY_AFTER_S
        if isinstance(error, MethodNotAllowed):
            head += _allow(error.details["allowed"])
        exchange.respond(status, head, body)

    def _unexpected(self, exchange: Exchange, operation: str) -> None:
        _log.exception("request_broke", **_facts(exchange, operation))
        error = TMSError(
            "The service met an error of its own. Its log has the details under this request id."
        )
        if exchange.response_started:
            exchange.abort()
        else:
            status, body = routes.problem(error, exchange.request_id)
            exchange.respond(status, _PROBLEM_HEAD, body)


def _allow(methods: list[str]) -> bytes:
    return f"allow: {', '.join(methods)}\r\n".encode()


def _facts(exchange: Exchange, operation: str) -> dict[str, Any]:
    return {
        "request_id": exchange.request_id,
        "operation": operation,
        "method": exchange.method,
        "path": exchange.path.decode("ascii")[:300],
    }
