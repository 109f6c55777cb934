"""ZooKeeper sessions, one after another, in a thread of their own. Only this file and `zookeeper`
know kazoo.

Invariants

* No other thread waits for ZooKeeper.
* One session at a time: when it is lost its ephemeral nodes go with it, and the next one starts
  from nothing. A session that is interrupted for longer than `abandon_s` is given up, and a new one
  tried: servers that have lost their data refuse for ever a client that has seen newer data.
* Between attempts there is a pause that grows up to `PAUSE_S_MAX`; an outage is logged once.
"""

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import make_digest_acl

from tms.runtime.events import EventLog
from tms.runtime.tls import ClientTls

SESSION_S = 10.0
ABANDON_S = 2 * SESSION_S
PAUSE_S, PAUSE_S_MAX = 0.5, 5.0
STOP_S = 5.0
_log = EventLog("tms.server")


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo says no types
    """Connects as all of TMS does: kazoo itself would verify no host."""

    def __init__(self, tls: ClientTls) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> socket.socket:
        connected = socket.create_connection(address, timeout)
        return self._tls.context().wrap_socket(connected, server_hostname=hostname)


def session(
    hosts: str,
    user: str = "",
    password: str = "",
    session_s: float = SESSION_S,
    tls: ClientTls | None = None,
) -> Any:
    """A session with these servers, not connected yet; over TLS if that is given. With a user, only
    that user can see or change the nodes that it makes."""
    silent = logging.getLogger("tms.kazoo")  # it tells of every attempt, we once
    silent.setLevel(logging.CRITICAL + 1)
    access: dict[str, Any] = {}
    if user:
        access["auth_data"] = [("digest", f"{user}:{password}")]
        access["default_acl"] = [make_digest_acl(user, password, all=True)]
    if tls is not None:
        tls.context()  # what is wrong with the files is known now
        access |= {"use_ssl": True, "handler": _TlsHandler(tls)}
    return KazooClient(
        hosts=hosts,
        timeout=session_s,
        connection_retry={"max_tries": -1, "max_delay": PAUSE_S_MAX},
        logger=silent,
        **access,
    )


class SessionUser(Protocol):
    """The work that is done with sessions. Called in their thread; an error ends the session."""

    def begin(self, zookeeper: Any) -> None:
        """A session has begun."""
        ...

    def look(self, zookeeper: Any) -> None:
        """Something may have changed."""
        ...

    def interrupted(self) -> None:
        """The session may have ended, which is unknown until `ended` or the next `begin`."""
        ...

    def ended(self, lost: bool) -> None:
        """The session is no more; `lost`: ZooKeeper has ended it."""
        ...


class Sessions:
    """Sessions, one after another until they are stopped."""

    def __init__(
        self, connect: Callable[[], Any], user: SessionUser, abandon_s: float | None = None
    ) -> None:
        self._connect = connect
        self._user = user
        self._abandon_s = ABANDON_S if abandon_s is None else abandon_s
        self._state = ""
        self._poked = threading.Event()
        self._stopping = False
        self._begun = False  # or about to be
        self._away = False
        self._pause_s = PAUSE_S / 2
        self._thread = threading.Thread(target=self._run, name="tms-zookeeper", daemon=True)

    def start(self) -> None:
        """Begin, in the background."""
        self._thread.start()

    def poke(self, _: object = None) -> None:
        """Something may have changed."""
        self._poked.set()

    def stop(self) -> None:
        """End the session, if there is one; waits for that at most `STOP_S`."""
        self._stopping = True
        self._poked.set()
        if self._begun:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._keep()
            except Exception as error:  # whatever it is, the service goes on
                if not self._away:
                    _log.warning("zookeeper_unreachable", error=repr(error)[:200])
                self._away = True
                self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
            self._poked.clear()
            if not self._stopping:
                self._poked.wait(self._pause_s)

    def _keep(self) -> None:
        """Use one session for as long as it lasts."""
        zookeeper, self._state, began = self._connect(), "", False
        try:
            zookeeper.add_listener(self._listen)
            zookeeper.start(SESSION_S)
            self._begun = True
            if self._stopping:
                return
            began = True
            self._user.begin(zookeeper)
            self._away, self._pause_s = False, PAUSE_S
            self._use(zookeeper)
        finally:
            ended = self._stopping or self._state == KazooState.LOST
            try:
                zookeeper.stop()
            finally:
                zookeeper.close()
                self._begun = False
                if began and ended:
                    self._user.ended(lost=not self._stopping)
                elif began:
                    self._user.interrupted()

    def _use(self, zookeeper: Any) -> None:
        while True:
            self._poked.clear()
            if self._stopping or self._state == KazooState.LOST:
                return
            if self._state == KazooState.SUSPENDED:
                self._user.interrupted()
                if not self._poked.wait(self._abandon_s):
                    return
            else:
                self._user.look(zookeeper)
                self._poked.wait()

    def _listen(self, state: str) -> None:
        self._state = state
        self._poked.set()
