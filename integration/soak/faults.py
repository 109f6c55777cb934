"""What happens to a service, to connections and to processes during a round."""

import socket
import threading
from collections.abc import Callable
from random import Random

from tests.proxy import Proxy, Reader

FAULTS = ("lose request", "lose answer", "half answer", "cut early", "twice")


class Lossy(Proxy):
    """Between clients and a service: of the requests that change something, a share that is drawn
    meets a fault, and `told` which and of what. The service may be away: connections are refused
    then."""

    def __init__(self, url: str, seed: str, share: float, told: Callable[[str, str], None]) -> None:
        super().__init__(url)
        self._told = told
        self._random = Random(seed)
        self._share = share
        self._drawing = threading.Lock()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """One request after the other, each with a fault or none."""
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
        """Whether the connection goes on."""
        if fault == "lose request":
            return False
        service.sendall(request)
        if fault == "cut early":  # the service goes on with it, while the client repeats it
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
