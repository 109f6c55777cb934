"""The ASGI application: messages and commits go straight to their endpoints, everything else
through Starlette.

* Paths are matched as they were sent; a name is decoded once, by `request.topic_name`.
* In a store that others can reach, a request is answered only by the store's owner.
* Every error leaves as a problem document; one that nobody expected says no more than its request
  id, and the log has the rest. A failed request is logged at most once.
"""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Router

from tms.api import routes
from tms.api.routes import MethodNotAllowed
from tms.compat.cdap.app import Cdap, is_cdap
from tms.errors import ErrorKind, NotFound, NotOwner, TMSError, without_frames
from tms.events import EventLog
from tms.server import delayed, groups, operating, topics, transactions
from tms.server import queues as administration
from tms.server.commit import Committing
from tms.server.fetch import Fetching
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.publish import PublishEndpoint
from tms.server.queue_messages import QueueMessages
from tms.server.service import Service

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
_MESSAGES_METHODS = ("GET", "POST")


class App:
    """Called once for each request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._publish = PublishEndpoint(service)
        self._fetch = Fetching(service)
        self._commit = Committing(service)
        self._queues = QueueMessages(service)
        self._cdap = Cdap(service)
        self._rest = Router(
            [
                *topics.routes_of(service),
                *transactions.routes_of(service),
                *administration.routes_of(service),
                *groups.routes_of(service),
                *delayed.routes_of(service),
                *operating.routes_of(service),
            ],
            redirect_slashes=False,
            default=_nowhere,
        )

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """ASGI; the connection is one of ours."""
        exchange: Exchange = scope["tms.exchange"]
        clock = self._service.clock
        started, route = clock.monotonic_s(), "other"
        if self._service.draining:
            exchange.keep_alive = False
        try:
            parts = scope["raw_path"].split(b"/")
            if self._service.ownership is not None and scope["path"] not in operating.PATHS:
                await self._service.confirm_owner()
            if _is_messages(parts):
                if scope["method"] == "POST":
                    route = "publish"
                    await self._publish(exchange, parts[3], parts[5])
                elif scope["method"] == "GET":
                    route = "fetch"
                    await self._fetch(exchange, parts[3], parts[5])
                else:
                    raise _not_allowed(scope["method"], _MESSAGES_METHODS)
            elif self._queues.knows(parts):
                route = parts[-1].decode()
                if scope["method"] != "POST":
                    raise _not_allowed(scope["method"], ("POST",))
                await self._queues(exchange, parts)
            elif is_cdap(parts):
                route = "cdap"
                await self._cdap(exchange, parts)
            elif _is_commit(parts):
                route = "commit"
                if scope["method"] != "POST":
                    raise _not_allowed(scope["method"], ("POST",))
                await self._commit(exchange, parts[3])
            else:
                scope["app"] = self  # Starlette: raise, do not answer
                await self._rest(scope, receive, send)
        except Disconnected:
            return
        except TMSError as error:
            self._answer(exchange, error, route)
            without_frames(error)
        except HTTPException as exc:
            self._answer(exchange, _translated(exc, scope), route)
        except Exception as exc:
            self._unexpected(exchange, route)
            without_frames(exc)
        metrics = self._service.metrics
        metrics.answers[route, exchange.status] += 1
        if route in metrics.seconds:
            metrics.seconds[route].observe(clock.monotonic_s() - started)

    def _answer(self, exchange: Exchange, error: TMSError, route: str) -> None:
        if error.kind in _OURS:
            _log.warning(
                "request_failed", **_facts(exchange, route), code=error.code, why=str(error)
            )
        if exchange.response_started:
            exchange.abort()
            return
        if isinstance(error, NotOwner):
            exchange.keep_alive = (
                False  # behind one address the next connection may reach the owner
            )
        status, body = routes.problem(error, exchange.request_id)
        head = f"content-type: {routes.PROBLEM}\r\n"
        if error.kind in _WORTH_RETRYING:
            head += f"retry-after: {routes.RETRY_AFTER_S}\r\n"
        if isinstance(error, MethodNotAllowed):
            head += f"allow: {', '.join(error.details['allowed'])}\r\n"
        exchange.respond(status, head.encode(), body)

    def _unexpected(self, exchange: Exchange, route: str) -> None:
        _log.exception("request_broke", **_facts(exchange, route))
        error = TMSError(
            "The service met an error of its own. Its log has the details under this request id."
        )
        if exchange.response_started:
            exchange.abort()
        else:
            status, body = routes.problem(error, exchange.request_id)
            exchange.respond(status, f"content-type: {routes.PROBLEM}\r\n".encode(), body)


def _is_messages(parts: list[bytes]) -> bool:
    return (
        len(parts) == 7
        and parts[6] == b"messages"
        and parts[4] == b"topics"
        and parts[2] == b"namespaces"
        and parts[1] == b"v2"
    )


def _is_commit(parts: list[bytes]) -> bool:
    return (
        len(parts) == 5
        and parts[4] == b"commit"
        and parts[2] == b"transactions"
        and parts[1] == b"v2"
    )


async def _nowhere(scope: Any, receive: Any, send: Any) -> None:
    raise NotFound(f"There is nothing at {scope['path'][:200]!r}; see {routes.OPENAPI}.")


def _translated(exc: HTTPException, scope: dict[str, Any]) -> TMSError:
    if exc.status_code == routes.METHOD_NOT_ALLOWED and exc.headers is not None:
        return _not_allowed(scope["method"], sorted(exc.headers["Allow"].split(", ")))
    return TMSError(exc.detail)


def _not_allowed(method: str, allowed: Any) -> MethodNotAllowed:
    return MethodNotAllowed(
        f"The method {method} is not for this path; use {' or '.join(allowed)}.",
        allowed=list(allowed),
    )


def _facts(exchange: Exchange, route: str) -> dict[str, Any]:
    return {
        "request_id": exchange.request_id,
        "route": route,
        "method": exchange.scope["method"],
        "path": exchange.scope["path"][:300],
    }
