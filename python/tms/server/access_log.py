"""The access log: a line for each request, as the event `request` of the logger `tms.access`.

* A line has what the operation declares: its name, its path with the variable parts left open, the
  resource. It never has a query, a header, a body, nor a path as it was sent; a name that looks
  like a token is left out.
* Probes, scrapes and requests of other instances are logged at level debug, all others at info.
"""

from collections.abc import Sequence

from tms.api.operation import Resource
from tms.errors import TMSError
from tms.runtime.events import EventLog
from tms.server.guard import has_token, resource_of
from tms.server.http.exchange import Exchange
from tms.server.router import Route

LOGGER = "tms.access"


class AccessLog:
    """Logs requests once they are answered, or their clients are gone."""

    def __init__(self) -> None:
        self._log = EventLog(LOGGER)

    def write(
        self,
        exchange: Exchange,
        name: str,
        route: Route | None,
        varying: Sequence[bytes],
        seconds: float,
    ) -> None:
        """Log a request of the operation `name` that took so many seconds. Without an answer its
        status is 0; an answer that was not sent to its end has `cut`."""
        fields: dict[str, object] = {"method": exchange.method, "operation": name}
        quiet = False
        if route is not None:
            operation = route.operation
            quiet = operation.api == "service" or operation.on is Resource.INSTANCE
            fields |= {"path": operation.path, "resource": _resource(route, varying)}
        if exchange.principal:
            fields["principal"] = exchange.principal
        if not exchange.response_complete:
            fields["cut"] = True
        (self._log.debug if quiet else self._log.info)(
            "request",
            **fields,
            status=exchange.status,
            bytes_in=exchange.received,
            bytes_out=exchange.sent,
            ms=round(seconds * 1_000, 3),
            request_id=exchange.request_id,
            address=exchange.peer_address,
        )


def _resource(route: Route, varying: Sequence[bytes]) -> str:
    """The resource of a request; empty if its path does not name one."""
    try:
        resource = resource_of(route.operation, varying)
    except TMSError:
        return ""
    hidden = any(has_token(part.encode()) for part in resource.replace("/", ":").split(":"))
    return "" if hidden else resource
