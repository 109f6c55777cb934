"""Many connections at once: idle ones, nearly idle ones, and greedy ones."""

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def descriptors(wanted: int) -> Iterator[None]:
    """Give this process so many descriptors; fails, with advice, if it may not have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= wanted, (
        f"this test needs {wanted} descriptors and may have {hard}: raise it, `ulimit -Hn {wanted}`"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Connections that never read; with `window_bytes` their side takes no more than that."""

    def __init__(self, address: tuple[str, int], window_bytes: int = 0) -> None:
        self._address = address
        self._window_bytes = window_bytes
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.sockets:
            one.close()

    def join(self, count: int, first: bytes = b"") -> None:
        """Open so many more connections, each of which sends `first`."""
        for _ in range(count):
            one = socket.socket()
            if self._window_bytes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._window_bytes)
            one.settimeout(20)
            one.connect(self._address)
            self.sockets.append(one)
            with contextlib.suppress(ConnectionError):  # already turned away
                one.sendall(first)

    def send(self, data: bytes) -> int:
        """Send to all; returns the number of connections that still take it."""
        took = 0
        for one in self.sockets:
            with contextlib.suppress(ConnectionError):
                one.sendall(data)
                took += 1
        return took

    def wait_ended(self, enough: int = 0) -> int:
        """Wait until at most `enough` connections are left that the service has not ended, or time
        is over; returns the number left."""
        end = time.monotonic() + PATIENCE_S
        left = set(self.sockets)
        with selectors.DefaultSelector() as selector:
            for one in left:
                selector.register(one, selectors.EVENT_READ)
            while len(left) > enough and (wait_s := end - time.monotonic()) > 0:
                for key, _ in selector.select(wait_s):
                    if isinstance(key.fileobj, socket.socket) and _ended(key.fileobj):
                        selector.unregister(key.fileobj)
                        left.discard(key.fileobj)
        return len(left)


def _ended(one: socket.socket) -> bool:
    try:
        return one.recv(1 << 16) == b""
    except ConnectionError:
        return True


def exchange(address: tuple[str, int], asked: bytes) -> int:
    """Send a request and read its whole answer without keeping it; the answer may begin before all
    of the request was sent. Returns the status."""
    with socket.create_connection(address, 60) as one:
        sender = threading.Thread(target=_send, args=(one, asked), daemon=True)
        sender.start()
        answer = one.makefile("rb")
        status, left = int(answer.readline().split()[1]), 0
        while (line := answer.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                left = int(value)
        while left:
            piece = answer.read(min(left, 1 << 18))
            assert piece, f"the answer ended {left} bytes early"
            left -= len(piece)
        if status >= 400:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        sender.join(PATIENCE_S)
        return status


def _send(one: socket.socket, asked: bytes) -> None:
    with contextlib.suppress(OSError):  # refused, with an answer
        one.sendall(asked)
