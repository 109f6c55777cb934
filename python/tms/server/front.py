"""A front end: a protocol that the service speaks besides its own. `server` knows no front end; the
composition root (`tms.serve`) makes them from their sections of the settings.

    section.port_of_its_own ─▶ a bound listener ─▶ section.open(service, terms) ─▶ Front
    Front   name · paths, on HTTP's listener · listener, of its own · works, for other instances

* A front end is added by a folder with its section, and by one field of `serve.config.Settings`.
* Requests for paths of the service's own operations never reach a front end.
* `start` runs before the service is ready, `drain` from the first signal to stop, `stop` when the
  drain time is over or at a second signal.
"""

import socket
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from tms.api.operations import ShardKey
from tms.errors import TMSError
from tms.server.certificates import Certificates
from tms.server.http.exchange import Exchange
from tms.server.http.listening import endpoint_of
from tms.server.service import Service

PORT_MAX = 65_535


class FrontApp(NamedTuple):
    """The application's part in a request for a front end. `forwarded` forwards the request to the
    instance that keeps this, and is False if that is this instance; `answer` answers any request,
    also one that the front end makes."""

    forwarded: Callable[[ShardKey], Awaitable[bool]]
    answer: Callable[[Exchange], Awaitable[None]]


class Paths(Protocol):
    """Requests of a front end on the listener of HTTP. Used by the event loop's thread."""

    def has(self, path: bytes) -> bool:
        """True if the front end answers requests for this path."""
        ...

    async def answer(self, exchange: Exchange, app: FrontApp) -> None:
        """Answer a request. Raises what was wrong, which `refuse` answers."""
        ...

    def refuse(self, exchange: Exchange, error: TMSError) -> None:
        """Answer with an error, in the form of the protocol."""
        ...


class FrontListener(Protocol):
    """The connections of a front end on a port of its own. Used by the event loop's thread."""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        ...

    async def start(self) -> None:
        """Begin to accept connections."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, answer what was received within this time, close all connections."""
        ...

    def stop(self) -> None:
        """End the wait of `drain`."""
        ...


@dataclass(frozen=True, slots=True)
class Front:
    """A front end of a running service. `name` stands for it in metrics and logs; `works` does
    operations that other instances ask of it, by their names."""

    name: str
    paths: Paths | None = None
    listener: FrontListener | None = None
    works: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


class FrontTerms(NamedTuple):
    """The surroundings of a front end. `listener`: bound to the port of its own, None without one;
    `host`: of that listener, as configured; `is_guarded`: True if access is controlled;
    `clients_max`: connections for which there are descriptors; `certificates`: of the service, None
    if it speaks no TLS; `endpoint`: HOST:PORT at which clients reach the listener."""

    listener: socket.socket | None
    host: str
    is_guarded: bool
    clients_max: int
    certificates: Certificates | None = None
    endpoint: str = ""


def require_last_port(field: str, port: int, workers: int) -> None:
    """Raise `ValueError` unless the last worker's port, behind the first one's `port`, exists."""
    if port + workers - 1 > PORT_MAX:
        raise ValueError(
            f"{field}: {workers} workers need the ports {port} to {port + workers - 1}, and the "
            f"last port is {PORT_MAX}; choose {PORT_MAX - workers + 1} or less"
        )


class Section(BaseModel):
    """A part of the settings: strict, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FrontSection(Section):
    """The settings of a front end."""

    @property
    def port_of_its_own(self) -> int | None:
        """The port to bind for it, 0 for any; None if it needs none."""
        return None

    @property
    def has_a_port_for_each_worker(self) -> bool:
        """True if each worker of a data directory listens on a port of its own, the first one on
        the front end's port and the others on those that follow; False if they share one."""
        return False

    def require_ports(self, name: str, workers: int) -> None:
        """Raise `ValueError` unless there is a port for each of so many workers."""
        port = self.port_of_its_own
        if port and self.has_a_port_for_each_worker:
            require_last_port(f"{name}.port", port, workers)

    def endpoint(self, listener: socket.socket, host: str, nth: int) -> str:
        """HOST:PORT at which clients reach the listener of the nth process, counted from 0. `host`
        is the name by which other machines reach this one; empty: as bound."""
        return endpoint_of(listener, host)

    @abstractmethod
    def open(self, service: Service, terms: FrontTerms) -> Front:
        """The front end of a service, before that begins to answer."""
