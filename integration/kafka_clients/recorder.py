"""A TCP relay in front of a Kafka port that records the requests of its clients.

A request is a frame: its size in 4 bytes, then the API key, the version (2 bytes each) and the
correlation id (4 bytes). Frames are passed on as they come, whatever they hold.
"""

import contextlib
import socket
import struct
from collections import Counter

from tests.tcp_proxy import Address, TcpProxy, end

WAIT_S = 60
_CHUNK = 1 << 16
_HEAD = struct.Struct(">ihh")  # size, API key, version


class Recorder(TcpProxy):
    """Counts requests by API key and version. It listens at the same port while the service is
    down, and ends the connections that come then."""

    def __init__(self, target: Address, listen_at: int = 0) -> None:
        super().__init__(target, WAIT_S, listen_at)
        self.requests: Counter[tuple[int, int]] = Counter()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Pass both directions on, and count what the client asks."""
        self.start(_answers, server, client)
        frames = Frames()
        with contextlib.suppress(OSError):
            while chunk := client.recv(_CHUNK):
                heads = frames.heads(chunk)
                with self._lock:
                    self.requests.update(heads)
                server.sendall(chunk)
        end(server)


def _answers(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := server.recv(_CHUNK):
            client.sendall(chunk)
    end(client)


class Frames:
    """Finds the heads of frames in a stream."""

    def __init__(self) -> None:
        self._begun = b""  # of the next head
        self._left = 0  # bytes of the current frame

    def heads(self, chunk: bytes) -> list[tuple[int, int]]:
        """API key and version of each frame whose head ends in this chunk."""
        found: list[tuple[int, int]] = []
        at = 0
        while at < len(chunk):
            if self._left > 0:
                step = min(self._left, len(chunk) - at)
                self._left -= step
                at += step
                continue
            missing = _HEAD.size - len(self._begun)
            self._begun += chunk[at : at + missing]
            at += missing
            if len(self._begun) == _HEAD.size:
                size, key, version = _HEAD.unpack(self._begun)
                found.append((key, version))
                self._begun, self._left = b"", size - 4
        return found
