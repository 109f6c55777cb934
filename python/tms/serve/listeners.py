"""The bound sockets of the service: of HTTP, and of the front ends with a port of their own."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tms.errors import ConfigError
from tms.serve.config import Settings
from tms.server.http.listening import BACKLOG
from tms.server.serving import url_of


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of a process: of HTTP, the first of which names the service, and of front ends
    by their names. `nth` counts the processes of a data directory from 0."""

    http: Sequence[socket.socket]
    fronts: dict[str, socket.socket] = field(default_factory=dict)
    nth: int = 0

    def endpoints(self, settings: Settings) -> dict[str, str]:
        """HOST:PORT at which clients reach the front ends, by their names."""
        host = advertised_host(settings)
        return {
            name: section.endpoint(self.fronts[name], host, self.nth)
            for name, section in settings.fronts().items()
            if name in self.fronts
        }

    def close(self) -> None:
        """Close all of them."""
        for listener in (*self.http, *self.fronts.values()):
            listener.close()


def bind(settings: Settings) -> Listeners:
    """The listeners that the settings name. Raises `ConfigError`."""
    host = settings.server.host
    listeners = Listeners([listen(host, settings.server.port)])
    try:
        for name, section in settings.fronts().items():
            port = section.port_of_its_own
            if port is not None:
                listeners.fronts[name] = listen(host, port, _option(name))
    except BaseException:
        listeners.close()
        raise
    return listeners


def bind_worker(settings: Settings, shared: Listeners, nth: int) -> Listeners:
    """The listeners of the nth worker: those that all workers share, and those of its own. Raises
    `ConfigError`."""
    listeners = Listeners(shared.http, dict(shared.fronts), nth)
    for name, section in settings.fronts().items():
        port = section.port_of_its_own
        if nth and port is not None and section.has_a_port_for_each_worker:
            port = port and port + nth
            listeners.fronts[name] = listen(settings.server.host, port, _option(name))
    return listeners


def _option(front: str) -> str:
    return f"--{front}-port ({front}.port)"


def listen(host: str, port: int, option: str = "--port (server.port)") -> socket.socket:
    """The bound listener. Raises `ConfigError`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as exc:
        raise ConfigError(
            f"The service cannot listen on {host} port {port}: {exc.strerror}. Is another one "
            f"running there? Choose another port with {option}, 0 for any free one."
        ) from exc
    return listener


def reached_at(settings: Settings, listener: socket.socket, host: str = "") -> str:
    """The URL of a bound listener of HTTP, with another name of its `host` if that is given."""
    return url_of("https" if settings.tls.cert else "http", listener, host)


def advertised_host(settings: Settings) -> str:
    """The name by which other machines reach this one; empty unless configured."""
    return urlsplit(settings.server.advertise).hostname or ""
