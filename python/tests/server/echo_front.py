"""A front end that answers each frame with its bytes: what it takes to add a protocol."""

from pydantic import Field

from tms.api import routes
from tms.errors import TMSError
from tms.serve.config import Settings
from tms.server.framed import FramedConnection, FramedLimits, FramedServer
from tms.server.front import Front, FrontApp, FrontSection, FrontTerms
from tms.server.http.exchange import Exchange
from tms.server.service import Service

ECHO = "echo"


class EchoPaths:
    """`/echo/…` answers with the rest of the path."""

    def has(self, path: bytes) -> bool:
        return path.startswith(b"/echo/")

    async def answer(self, exchange: Exchange, app: FrontApp) -> None:
        if exchange.path == b"/echo/":
            raise TMSError("nothing to say")
        exchange.respond(routes.OK, b"", exchange.path.removeprefix(b"/echo/"))

    def refuse(self, exchange: Exchange, error: TMSError) -> None:
        exchange.respond(routes.BAD_REQUEST, b"", f"echo: {error.message}".encode())


async def echo(connection: FramedConnection, frame: bytes) -> bytes:
    """The answer to a frame."""
    return frame


class EchoSection(FrontSection):
    """The section `echo` of the settings."""

    port: int | None = Field(default=None, ge=0, le=65_535)
    frame_bytes_max: int = Field(default=1_000, ge=1)

    @property
    def port_of_its_own(self) -> int | None:
        return self.port

    def open(self, service: Service, terms: FrontTerms) -> Front:
        if terms.listener is None:
            return Front(ECHO, paths=EchoPaths())
        limits = FramedLimits(terms.clients_max, frame_bytes_max=self.frame_bytes_max)
        newest = terms.certificates and terms.certificates.newest
        server = FramedServer(ECHO, terms.listener, echo, limits, newest)
        return Front(ECHO, paths=EchoPaths(), listener=server)


class EchoSettings(Settings):
    """The settings of a service that echoes."""

    echo: EchoSection = EchoSection()
