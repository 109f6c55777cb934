"""Tephra's protocol on one port: listener, handler and registration, from start to stop."""

import asyncio
import socket
from functools import partial
from ipaddress import ip_address

from tms.compat.tephra.discovery import Registration, session
from tms.compat.tephra.frames import FrameLimits, FrameServer
from tms.compat.tephra.handler import Handler
from tms.compat.tephra.messages import Messages, load_types
from tms.server.service import Service


class TephraServer(FrameServer):
    """A transaction server for Tephra's clients. Used by the event loop's thread."""

    def __init__(self, service: Service, listener: socket.socket, limits: FrameLimits) -> None:
        types = load_types()
        handler = Handler(
            types, service.engine.transactions, service.clock, lambda: not service.reasons()
        )
        messages = Messages(types, handler, service.engine.confirm_owner)
        super().__init__(listener, messages.answer, limits)
        self._registration: Registration | None = None

    def register(self, quorum: str, name: str, host: str) -> None:
        """From `start` to `stop`, let clients find it through ZooKeeper."""
        connect = partial(session, quorum)
        self._registration = Registration(connect, name, reachable(host), self.port)

    async def start(self) -> None:
        """Begin to answer, and say so."""
        await super().start()
        if self._registration is not None:
            self._registration.start()

    async def stop(self, timeout_s: float) -> None:
        """Let no client find it any more, then answer what was received."""
        if self._registration is not None:
            await asyncio.to_thread(self._registration.stop)
        await super().stop(timeout_s)


def reachable(host: str) -> str:
    """The name under which others reach a service that listens on `host`."""
    try:
        anywhere = ip_address(host).is_unspecified
    except ValueError:
        anywhere = False
    return socket.gethostname() if anywhere else host
