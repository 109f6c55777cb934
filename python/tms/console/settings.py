"""The section `console` of the settings, and the front end that it opens.

Pages are loaded with the first request: a service that shows none starts as fast as before.
"""

from typing import TYPE_CHECKING, Literal

from tms.errors import TMSError
from tms.server.front import Front, FrontApp, FrontSection, FrontTerms
from tms.server.http.exchange import Exchange
from tms.server.problems import refuse
from tms.server.service import Service

if TYPE_CHECKING:
    from tms.console.console import Console

CONSOLE = "console"  # in metrics and logs


class ConsoleSection(FrontSection):
    """The console, at `/console` on the listener of HTTP."""

    pages: Literal["on", "off"] = "on"

    def open(self, service: Service, terms: FrontTerms) -> Front:
        """The console's paths, or none."""
        if self.pages == "off":
            return Front(CONSOLE)
        return Front(CONSOLE, paths=ConsolePaths(service, has_tls=terms.certificates is not None))


class ConsolePaths:
    """The paths of the console; see `server.front.Paths`. Used by the event loop's thread."""

    def __init__(self, service: Service, has_tls: bool) -> None:
        self._service = service
        self._has_tls = has_tls
        self._console: Console | None = None

    def has(self, path: bytes) -> bool:
        """True for `/console` and everything below."""
        return path == b"/console" or path.startswith(b"/console/")

    def refuse(self, exchange: Exchange, error: TMSError) -> None:
        """Answer with an error outside of a page."""
        (refuse if self._console is None else self._console.refuse)(exchange, error)

    async def answer(self, exchange: Exchange, app: FrontApp) -> None:
        """Answer a request. Raises `Disconnected`."""
        if self._console is None:
            loaded = await self._service.in_thread(_load, self._service, self._has_tls)
            self._console = self._console or loaded  # another request may have loaded it meanwhile
        exchange.operation = CONSOLE
        exchange.via = CONSOLE
        await self._console.answer(exchange, app)


def _load(service: Service, has_tls: bool) -> "Console":
    """The console, with the templates that all pages share."""
    from tms.console.console import Console
    from tms.console.rendering import environment

    environment()
    return Console(service, has_tls)
