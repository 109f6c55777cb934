"""Web applications under uvicorn, as in production."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import uvicorn

from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def running(app: Any) -> Iterator[tuple[str, int]]:
    """The application under uvicorn, on a thread of its own; its address."""
    started: Future[None] = Future()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set_result(None)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # of the main thread only

    server = Server(uvicorn.Config(app, log_level="error"))  # uvicorn chooses the loop
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            started.result(PATIENCE_S)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the application did not stop"
