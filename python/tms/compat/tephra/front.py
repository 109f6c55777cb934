"""Tephra's protocol on one port: listener, methods and registration, from start to stop."""

import asyncio
import socket
from functools import partial
from ipaddress import ip_address

from tms.cluster.sessions import Sessions, session
from tms.compat.tephra.discovery import Registration
from tms.compat.tephra.frames import TEPHRA, FrameLimits, FrameServer
from tms.compat.tephra.handler import ThriftHandler
from tms.compat.tephra.messages import Messages, load_types
from tms.server.service import Service
from tms.topics.owners import Here


class TephraServer(FrameServer):
    """A transaction server for Tephra's clients; if another instance coordinates transactions, it
    relays that instance's answers. Used by the event loop's thread."""

    def __init__(self, service: Service, listener: socket.socket, limits: FrameLimits) -> None:
        types = load_types()
        engine = service.engine
        handler = ThriftHandler(
            types, lambda: engine.transactions, service.clock, lambda: not service.reasons()
        )
        messages = Messages(types, handler, engine.confirm_owner)

        def answer(message: bytes) -> bytes:
            route = engine.roles.commits.route()
            if isinstance(route, Here):
                return messages.answer(message)
            return route.peer.answer_tephra(message)

        super().__init__(listener, answer, limits)
        service.metrics.front_connections[TEPHRA] = lambda: len(self.connections)
        self.answer_here = messages.answer  # whichever instance coordinates
        self._sessions: Sessions | None = None

    def register(self, quorum: str, name: str, host: str) -> None:
        """From `start` to `drain`, let clients find it through ZooKeeper."""
        registration = Registration(name, reachable(host), self.port)
        self._sessions = Sessions(partial(session, quorum), registration)

    async def start(self) -> None:
        """Begin to answer, and say so."""
        await super().start()
        if self._sessions is not None:
            self._sessions.start()

    async def drain(self, timeout_s: float) -> None:
        """Withdraw the registration, then answer what was received."""
        if self._sessions is not None:
            await asyncio.to_thread(self._sessions.stop)
        await super().drain(timeout_s)


def reachable(host: str) -> str:
    """The name under which others reach a service that listens on `host`."""
    try:
        anywhere = ip_address(host).is_unspecified
    except ValueError:
        anywhere = False
    return socket.gethostname() if anywhere else host
