"""Networks between the processes of a test that can be cut, both ways or one, and healed.

with Link(port) as link:        # lead a client to link.port instead
    link.cut()                  # sent bytes vanish without an error
    link.heal()                 # earlier connections are ended, new ones work
"""

import contextlib
import socket
import threading

from tests.tcp_proxy import TcpProxy, end

WAIT_S = 60.0
_CHUNK = 1 << 16


class Link(TcpProxy):
    """Between clients and a port of this machine."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), WAIT_S)
        self._open = threading.Event()  # lets through what clients send
        self._answered = threading.Event()  # lets through what comes back
        self.heal()

    def cut(self, one_way: bool = False) -> None:
        """Lose all bytes sent from now on; with `one_way` only the answers."""
        self._answered.clear()
        if not one_way:
            self._open.clear()

    def heal(self) -> None:
        """Let bytes arrive again, over new connections: the old ones have lost some."""
        self._open.set()
        self._answered.set()
        self.end_connections()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Relay each direction in a thread of its own."""
        self.start(self._pump, server, client, self._answered)
        self._pump(client, server, self._open)

    def _pump(self, source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while raw := source.recv(_CHUNK):
                if passes.is_set():
                    sink.sendall(raw)
        end(source)
        end(sink)
