"""Faults of a service, of connections and of processes during a round."""

import socket
import threading
from collections.abc import Callable
from random import Random

from tests.proxy import Proxy, Reader

FAULTS = ("lose request", "lose answer", "half answer", "cut early", "twice")


class Lossy(Proxy):
    """A proxy between clients and a service: a share of the requests that change something, drawn
    at random, meets a fault, and `told` gets the fault and the request. While the service is down,
    connections are refused."""

    def __init__(self, url: str, seed: str, share: float, told: Callable[[str, str], None]) -> None:
        super().__init__(url)
        self._told = told
        self._random = Random(seed)
        self._share = share
        self._drawing = threading.Lock()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Relay one request after the other, each with a fault or none."""
        requests, answers = Reader(client), Reader(server)
        while request := requests.message():
            fault = self._draw() if request.startswith((b"POST", b"PUT", b"DELETE")) else None
            if fault is not None:
                self._told(fault, request[: request.index(b"\r\n")].decode())
            if not self._pass(fault, request, client, server, answers):
                return

    def _draw(self) -> str | None:
        with self._drawing:
            if self._random.random() >= self._share:
                return None
            return self._random.choice(FAULTS)

    def _pass(
        self,
        fault: str | None,
        request: bytes,
        client: socket.socket,
        service: socket.socket,
        answers: Reader,
    ) -> bool:
        """Relay a request and its answer; True if the connection goes on."""
        if fault == "lose request":
            return False
        service.sendall(request)
        if fault == "cut early":  # the service continues while the client repeats the request
            with self._drawing:
                wait_s = self._random.choice((0.0, 0.005, 0.05))
            self.pause(wait_s)
            client.shutdown(socket.SHUT_RDWR)
            answers.message()
            return False
        answer = answers.message()
        if fault == "twice":
            service.sendall(request)
            answer = answers.message()
        if fault == "lose answer" or not answer:
            return False
        if fault == "half answer":
            client.sendall(answer[: len(answer) // 2])
            return False
        client.sendall(answer)
        return True
