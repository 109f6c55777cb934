"""The life of a TCP proxy: it listens on a free port of this machine, passes each connection to a
thread of its own, can end them all, and ends with its `with` block. Subclasses define how bytes are
relayed."""

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

Address = tuple[str, int]


class TcpProxy(ABC):
    """Leads connections to `target`; no wait is longer than `wait_s`."""

    def __init__(self, target: Address, wait_s: float, listen_at: int = 0) -> None:
        self.connections = 0  # accepted ones
        self.target = target  # of new connections
        self._wait_s = wait_s
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", listen_at))
        self.port: int = self._listener.getsockname()[1]

    @abstractmethod
    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Pass bytes on until a side ends, which may be an `OSError`; both are ended then."""

    def dial(self) -> socket.socket:
        """A connection to the target."""
        return socket.create_connection(self.target, self._wait_s)

    def end_connections(self) -> None:
        """End every connection, as a server ends idle ones; returns when the client has seen it."""
        with self._lock:
            for one in self._sockets:
                end(one)
            self._sockets.clear()

    def start(self, work: Callable[..., object], *arguments: Any) -> None:
        """Work in a thread that the proxy waits for at its end."""
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def pause(self, seconds: float) -> bool:
        """Let time pass; True if the proxy ended meanwhile."""
        return self._ended.wait(seconds)

    def __enter__(self) -> Self:
        self.start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        end(self._listener)
        self.end_connections()
        for thread in self._threads:
            thread.join(self._wait_s)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self.start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            server = self.dial()
        except ConnectionError:  # the server is down
            end(client)
            return
        with self._lock:
            ended = self._ended.is_set()
            if not ended:
                self._sockets |= {client, server}
        try:
            if not ended:  # otherwise no thread would end it
                self.relay(client, server)
        except OSError:
            return
        finally:
            end(client)
            end(server)


def end(one: socket.socket) -> None:
    """End a connection, or stop listening."""
    with contextlib.suppress(OSError):  # the other side was faster
        one.shutdown(socket.SHUT_RDWR)
    one.close()
