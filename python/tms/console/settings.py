"""The section `console` of the settings."""

from tms.console.console import CONSOLE, Console
from tms.server.front import Front, FrontSection, FrontTerms
from tms.server.service import Service


class ConsoleSection(FrontSection):
    """The console, at `/console` on the listener of HTTP."""

    enabled: bool = True

    def open(self, service: Service, terms: FrontTerms) -> Front:
        """The console's paths, or none."""
        if not self.enabled:
            return Front(CONSOLE)
        return Front(CONSOLE, paths=Console(service, has_tls=terms.certificates is not None))
