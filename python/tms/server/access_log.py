"""The access log: a line for each request, as the event `request` of the logger `tms.access`.

* It has what the operation declares of the request: its name, its path with what varies left open,
  the resource. Never a query, a header, a body, nor a path as it was sent; what looks like a token
  in a name is left out.
* A probe, a scrape, and what instances ask one another is told at level debug, all others at info.
"""

from collections.abc import Sequence

from tms.api.operation import Resource
from tms.errors import TMSError
from tms.events import EventLog
from tms.server.guard import has_token, resource_of
from tms.server.http.exchange import Exchange
from tms.server.router import Route

LOGGER = "tms.access"


class AccessLog:
    """Tells of requests once they were answered, or their clients are gone."""

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
        """Tell of one, of the operation `name`, which took so long. Without an answer its status is
        0; of one that was not sent to its end it says `cut`."""
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
    """What a request is about; empty if its path does not say so."""
    try:
        resource = resource_of(route.operation, varying)
    except TMSError:
        return ""
    hidden = any(has_token(part.encode()) for part in resource.replace("/", ":").split(":"))
    return "" if hidden else resource
