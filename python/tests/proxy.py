"""A TCP proxy between client and service that breaks requests and answers on purpose.

    with Proxy(url) as proxy:
        proxy.script(Fault.LOSE_ANSWER)        # the next request's answer never arrives
        tms.connect(proxy.url)

The proxy reads one HTTP request at a time from a connection and uses one fault of the script for
each `POST`; without a fault it passes the request on. Faults count from the moment they are
scripted, over all connections.
"""

import socket
from collections import deque
from enum import Enum, auto
from urllib.parse import urlsplit

from tests.tcp_proxy import Address, TcpProxy
from tests.waiting import PATIENCE_S


class Fault(Enum):
    """A fault of one request."""

    LOSE_REQUEST = auto()  # the connection ends before the service sees it
    CUT = auto()  # the service gets it, and the connection ends before it can answer
    LOSE_ANSWER = auto()  # the service does it, then the connection ends without an answer
    HALF_ANSWER = auto()  # … in the middle of the answer
    SWALLOW_ANSWER = auto()  # … and the connection stays open, silent
    TWICE = auto()  # the service gets it twice; the second answer is passed on
    LATER = (
        auto()
    )  # held back until the next request was answered, then sent; its answer is dropped
    TRICKLE = auto()  # the answer comes byte by byte


class Proxy(TcpProxy):
    """Between clients and the service at `url`."""

    def __init__(self, url: str, faulty_method: bytes = b"POST") -> None:
        super().__init__(_address(url), PATIENCE_S)
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests = 0
        self._faulty_method = faulty_method
        self._faults: deque[Fault] = deque()
        self._held: list[bytes] = []

    def lead_to(self, url: str) -> None:
        """Lead new connections to this service, for example after a restart."""
        self.target = _address(url)

    def script(self, *faults: Fault) -> None:
        """The faults of the next requests with the faulty method."""
        self._faults.extend(faults)

    @property
    def done(self) -> bool:
        """True if every scripted fault has happened."""
        return not self._faults and not self._held

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Relay one request after the other, each with a fault of the script or none."""
        requests, answers = Reader(client), Reader(server)
        while request := requests.message():
            self.requests += 1
            fault = None
            if request.startswith(self._faulty_method) and self._faults:
                fault = self._faults.popleft()
            if not self._carry_out(fault, request, client, server, answers):
                return

    def _carry_out(
        self,
        fault: Fault | None,
        request: bytes,
        client: socket.socket,
        service: socket.socket,
        answers: "Reader",
    ) -> bool:
        """Relay a request with a fault, or none; True if the connection goes on."""
        if fault is Fault.LOSE_REQUEST:
            return False
        if fault is Fault.LATER:
            self._held.append(request)
            return False
        service.sendall(request)
        if fault is Fault.CUT:
            return False
        answer = answers.message()
        if fault is Fault.TWICE:
            service.sendall(request)
            answer = answers.message()
        if fault is Fault.LOSE_ANSWER:
            return False
        if fault is Fault.HALF_ANSWER:
            client.sendall(answer[: len(answer) // 2])
            return False
        if fault is Fault.SWALLOW_ANSWER:
            return True
        for held in self._held[:]:
            self._held.remove(held)
            service.sendall(held)
            answers.message()
        if fault is Fault.TRICKLE:
            for at in range(len(answer)):
                client.sendall(answer[at : at + 1])
        else:
            client.sendall(answer)
        return bool(answer)


class Reader:
    """Takes HTTP messages with a Content-Length, or none, off a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = b""

    def message(self) -> bytes:
        """The next whole message; empty at the end."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not self._more():
                return b""
        size = end + 4
        for line in self._buffer[:end].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size += int(value)
        while len(self._buffer) < size:
            if not self._more():
                return b""
        message, self._buffer = self._buffer[:size], self._buffer[size:]
        return message

    def _more(self) -> bool:
        received = self._source.recv(1 << 20)
        self._buffer += received
        return bool(received)


def _address(url: str) -> Address:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port
