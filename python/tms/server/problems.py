"""Errors as answers: problem documents, with what HTTP says besides."""

from collections.abc import Sequence

from tms.api import routes
from tms.api.routes import MethodNotAllowed
from tms.errors import ErrorKind, TMSError, Unauthenticated
from tms.server.http.exchange import Exchange

JSON_HEAD = f"content-type: {routes.JSON}\r\n".encode()
_PROBLEM_HEAD = f"content-type: {routes.PROBLEM}\r\n".encode()
_WORTH_RETRYING = frozenset((ErrorKind.OVERLOADED, ErrorKind.UNAVAILABLE, ErrorKind.STORAGE_FULL))


def refuse(exchange: Exchange, error: TMSError) -> None:
    """Answer with an error."""
    status, body = routes.problem(error, exchange.request_id)
    head = _PROBLEM_HEAD
    if error.kind in _WORTH_RETRYING:
        after_s = error.details.get("retry_after_s", routes.RETRY_AFTER_S)
        head += b"retry-after: %d\r\n" % after_s
    if isinstance(error, Unauthenticated):
        head += b"www-authenticate: Bearer\r\n"
    if isinstance(error, MethodNotAllowed):
        head += allow(error.details["allowed"])
    exchange.respond(status, head, body)


def allow(methods: Sequence[str]) -> bytes:
    """The header that names the methods of a path."""
    return f"allow: {', '.join(methods)}\r\n".encode()
